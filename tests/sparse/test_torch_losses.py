"""Derivatives of the Fenchel-Young losses on torch tensors, and the modules."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from tests.oracle.backends import Backend

torch = pytest.importorskip("torch")
from tests.sparse.torch_cases import IGNORED, draw  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402

import softargmax as s  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(line) for line in IGNORED]
# The target of the first row is outside the support from order 1.5 on. The target of the second row is inside it. The
# third row is ignored. There are only 12 scores, because the time of the derivative checks grows with the square of
# this number. With 24 scores the checks took a minute.
TARGET = torch.tensor([0, 3, -100])
SOFT = torch.softmax(draw(3, 4, seed=9), -1)


def scores() -> Tensor:
    return (0.7 * draw(3, 4, seed=4)).requires_grad_()


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.25, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("kind", ["classes", "smoothed", "soft"])
def test_first_second_and_forward_derivatives(alpha: float, kind: str, differentiating: Backend) -> None:
    """First, second and forward derivatives agree with finite differences.

    For the kernels, all second derivatives are checked. For the reference, only one random combination is checked.
    """
    if differentiating.library != "torch":
        pytest.skip("gradcheck needs torch")

    def loss(z: Tensor) -> Tensor:
        return s.entmax_loss(z, SOFT if kind == "soft" else TARGET, alpha, label_smoothing=0.2 * (kind == "smoothed"))

    assert gradcheck(loss, scores(), check_forward_ad=True)
    assert gradgradcheck(loss, scores(), fast_mode=differentiating.implementation == "reference")


@pytest.mark.parametrize("alpha", [0.1, 0.6, 0.99, 1.3, 1.8, 2.5])
def test_derivatives_to_alpha(alpha: float, differentiating: Backend) -> None:
    if differentiating.library != "torch":
        pytest.skip("gradcheck needs torch")
    order = torch.full((3,), alpha, dtype=torch.float64, requires_grad=True)

    def loss(z: Tensor, alpha: Tensor) -> Tensor:
        return s.entmax_loss(z, TARGET, alpha, reduction="none")

    assert gradcheck(loss, (scores(), order), check_forward_ad=True)
    assert gradgradcheck(loss, (scores(), order), fast_mode=differentiating.implementation == "reference")


def test_the_derivative_to_alpha_is_finite_at_one() -> None:
    z, found = draw(3, 7), []
    for alpha in (1.0, 1.0 + 1e-9, 1.0 + 1e-4):
        order = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
        s.entmax_loss(z, torch.tensor([1, 2, 3]), order).backward()
        found.append(float(order.grad))
    assert found[1] == pytest.approx(found[0], rel=1e-7)
    assert found[2] == pytest.approx(found[0], rel=1e-3)


def test_transforms_and_compile() -> None:
    z, y = draw(4, 6, seed=1), torch.tensor([0, 3, 1, 5])
    alone = torch.stack([s.entmax_loss(row, t) for row, t in zip(z, y, strict=True)])
    assert torch.equal(torch.func.vmap(s.entmax_loss)(z, y), alone)
    jacobian = torch.func.jacrev(lambda z: s.entmax_loss(z, y))(z)
    leaf = z.clone().requires_grad_()
    torch.compile(lambda z: s.entmax_loss(z, y), fullgraph=True, backend="aot_eager")(leaf).backward()
    assert torch.equal(leaf.grad, jacobian)


def modules() -> list[tuple[torch.nn.Module, Callable[[Tensor, Tensor], Tensor]]]:
    weight = draw(6, seed=4).abs()
    return [
        (s.nn.SparsemaxLoss(), lambda z, y: s.sparsemax_loss(z, y, axis=1)),
        (s.nn.EntmaxLoss(1.3, weight), lambda z, y: s.entmax_loss(z, y, 1.3, axis=1, weight=weight)),
        (
            s.nn.EntmaxLoss(label_smoothing=0.1, reduction="sum", ignore_index=3),
            lambda z, y: s.entmax_loss(z, y, axis=1, label_smoothing=0.1, reduction="sum", ignore_index=3),
        ),
    ]


@pytest.mark.parametrize("which", range(3))
def test_loss_modules(which: int) -> None:
    module, function = modules()[which]
    z, y = draw(3, 6, 2), torch.tensor([[0, 3], [2, 5], [1, 1]])
    assert torch.equal(module(z, y), function(z, y))
    assert torch.equal(module(z[0, :, 0], y[0, 0]), function(z[0, :, 0][None], y[:1, 0]))


def test_map_modules() -> None:
    z, mask = draw(3, 6), torch.arange(6) < 5
    assert torch.equal(s.nn.Sparsemax(dim=0)(z), s.sparsemax(z, axis=0))
    assert torch.equal(s.nn.Entmax(1.2)(z, where=mask), s.entmax(z, 1.2, where=mask))
    alpha = torch.nn.Parameter(torch.tensor([[1.2], [1.5], [2.0]], dtype=torch.float64))
    module = s.nn.Entmax(alpha)
    assert list(module.parameters()) == [alpha]
    module(z)[:, 0].sum().backward()
    assert alpha.grad.shape == alpha.shape
    assert "alpha" in dict(s.nn.Entmax(torch.tensor(1.5)).named_buffers())
    assert repr(s.nn.Entmax(1.5, dim=1)) == "Entmax(alpha=1.5, dim=1)"
    with pytest.raises(ValueError, match=r"alpha: expected a finite number above 0, got 0.0"):
        s.nn.Entmax(0.0)


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0, 3.0])
def test_a_nan_incoming_gradient_affects_only_the_support(alpha: float, differentiating: Backend) -> None:
    # JAX has one implementation for all lengths. Compiling it for a second length would take 8 s.
    for length in (40,) if differentiating.library == "jax" else (40, 80):
        row = np.full((2, length), -math.inf, np.float32)
        row[:, :4] = 1, 0.98, 0.97, -50
        y, g = differentiating.array([0, 0], "int32"), differentiating.array([math.nan, math.inf], "float32")
        with differentiating.using():
            found = differentiating.gradient(
                lambda z, y=y: s.entmax_loss(z, y, alpha, reduction="none"), differentiating.array(row), g
            )
        assert not np.isfinite(found[:, :3]).any()
        # The kernel's gradient is 0 where p is 0. The reference's gradient is 0 where the score is -inf.
        outside = 3 if differentiating.implementation == "native" else 4
        np.testing.assert_array_equal(found[:, outside:], 0)
