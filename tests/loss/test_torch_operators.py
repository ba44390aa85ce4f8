"""The torch operators pass opcheck. Forward passes and derivatives run the compiled core."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import softargmax as s  # noqa: E402 not without torch
from softargmax.core.scale import UNIT, Scale  # noqa: E402
from softargmax.loss import linear_operations, operations  # noqa: E402
from softargmax.loss.arguments import CrossEntropy, CrossEntropyVjp, Layer, LinearCrossEntropy, LinearVjp, LossOptions  # noqa: E402

Z = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
CLASSES = torch.tensor([[0, 1, -100, 3, 2], [3, 3, 2, 1, 0], [1, 1, -100, 2, 2]])
WEIGHT = torch.rand(1, 4, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
WHERE = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(3)) < 0.8
BETA = torch.rand(3, 1, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) + 0.5
PLAIN = LossOptions(CLASSES, None, None, None, UNIT, -100, 0.0, 0.0, 0.0)
FORWARD = {
    "plain": PLAIN,
    "everything": LossOptions(CLASSES, None, WEIGHT, WHERE, Scale(BETA, torch.zeros_like(BETA)), -100, 0.1, 1e-2, 5.0),
    "soft": PLAIN._replace(target=None, probabilities=torch.softmax(Z, 1)),
}


def record(name: str, z: Any, kept: int, *, mean: bool = False) -> CrossEntropy:
    return CrossEntropy(z, FORWARD[name], (1,), kept, mean, torch.float64)


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("kept", [0, 2])
def test_opcheck(name: str, tracked: bool, kept: int) -> None:
    z = Z.clone().requires_grad_(tracked)
    i, torch_operation = record(name, z, kept, mean=kept == 0), operations.cross_entropy.torch
    torch.library.opcheck(torch_operation.overload, torch_operation.flatten(i))
    states = operations.cross_entropy(i._replace(z=z.detach())).states
    g = torch.rand((3, 5)[:kept], dtype=torch.float64).requires_grad_(tracked)
    torch_operation = operations.cross_entropy_vjp.torch
    torch.library.opcheck(torch_operation.overload, torch_operation.flatten(CrossEntropyVjp(i, states, g, 0.0)))


@pytest.mark.parametrize("forms", ["", "hwb"])
@pytest.mark.parametrize("tracked", [False, True])
def test_opcheck_of_layers(forms: str, tracked: bool) -> None:
    h, w, bias = Z[0].clone().requires_grad_(tracked), Z[1].clone().requires_grad_(tracked), Z[2, :, 0].clone()
    options = PLAIN._replace(target=CLASSES[0, :4])
    i = LinearCrossEntropy(Layer(h, w, bias), options, 0, True, 0.0, forms, torch.float64, torch.float64)
    torch_operation = linear_operations.linear_cross_entropy.torch
    torch.library.opcheck(torch_operation.overload, torch_operation.flatten(i))
    torch_operation = linear_operations.linear_cross_entropy_vjp.torch
    g = torch.rand((), dtype=torch.float64).requires_grad_(tracked)
    torch.library.opcheck(torch_operation.overload, torch_operation.flatten(LinearVjp(i, g, "hw")))


def test_derivatives_run_on_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """With classes as targets, forward and backward pass run without the reference."""
    monkeypatch.delattr(importlib.import_module("softargmax.loss.reference"), "row_values")
    z = Z.clone().requires_grad_()
    options: dict[str, Any] = {
        "axis": 1,
        "weight": WEIGHT[0, :, 0],
        "label_smoothing": 0.1,
        "softcap": 5.0,
        "where": WHERE,
    }
    s.cross_entropy(z, CLASSES, **options).backward()
    assert z.grad is not None
    gradient = s.cross_entropy_and_gradient(
        Z.numpy(),
        CLASSES.numpy(),
        **{k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in options.items()},
    ).gradient
    assert torch.equal(z.grad, torch.from_numpy(gradient))


def test_targets_are_checked_by_the_operator() -> None:
    flat = operations.cross_entropy.torch.flatten(record("plain", Z, 0))
    wrong = [torch.full_like(x, 7) if x is CLASSES else x for x in flat]
    with pytest.raises(IndexError, match=r"target: expected 0 to 3, or -100 \(ignored\), got 7 at \(0, 0\)"):
        torch.ops.softargmax.cross_entropy(*wrong)
