"""The operators' own checks, and that eager, compiled and transformed calls run the compiled core."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
ops = importlib.import_module("softargmax.loss.torch_ops")

import softargmax as s  # noqa: E402 not without torch

Z = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
CLASSES = torch.tensor([[0, 1, -100, 3, 2], [3, 3, 2, 1, 0], [1, 1, -100, 2, 2]]).unsqueeze(1)
WEIGHT = torch.rand(1, 4, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
WHERE = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(3)) < 0.8
BETA = torch.rand(3, 1, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) + 0.5
PLAIN = [1], False, 1.0, 0.0, -100, 0.0, 0.0, 0.0
EVERYTHING = [1], False, 0.7, 0.0, -100, 0.1, 1e-2, 5.0
FORWARD = {
    "plain": (Z, CLASSES, None, None, None, None, *PLAIN),
    "everything": (Z, CLASSES, WEIGHT, WHERE, BETA, torch.zeros_like(BETA), *EVERYTHING),
    "soft": (Z, torch.softmax(Z, 1), None, None, None, None, [1], True, *PLAIN[2:]),
}


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("tracked", [False, True])
def test_opcheck(name: str, tracked: bool) -> None:
    z, *rest = FORWARD[name]
    z = z.clone().requires_grad_(tracked)
    torch.library.opcheck(ops.cross_entropy_rows.overload, (z, *rest))
    _, states = ops.cross_entropy_rows(z.detach(), *rest)
    g = torch.rand(3, 1, 5, dtype=torch.float64).requires_grad_(tracked)
    torch.library.opcheck(ops.cross_entropy_vjp.overload, (g, states, z, *rest))


def test_derivatives_run_on_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward of classes as targets call nothing else."""
    monkeypatch.delattr(importlib.import_module("softargmax.loss.reference_rows"), "look")
    z = Z.clone().requires_grad_()
    options: dict[str, Any] = {
        "axis": 1,
        "weight": WEIGHT[0, :, 0],
        "label_smoothing": 0.1,
        "softcap": 5.0,
        "where": WHERE,
    }
    s.cross_entropy(z, CLASSES[:, 0], **options).backward()
    assert z.grad is not None
    gradient = s.cross_entropy_and_gradient(
        Z.numpy(),
        CLASSES[:, 0].numpy(),
        **{k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in options.items()},
    ).gradient
    assert torch.equal(z.grad, torch.from_numpy(gradient))


def test_targets_are_checked_by_the_operator() -> None:
    with pytest.raises(IndexError, match="target: 7 in row 1"):
        torch.ops.softargmax.cross_entropy(
            Z[0], torch.tensor([[0, 7, 0, 0, 0]]), None, None, None, None, [0], *PLAIN[1:]
        )
