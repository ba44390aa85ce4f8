"""The CUDA kernels of the sparse maps in Triton's interpreter: values, gradients, bits, edge rows, and losses.

Errors are relative to the largest p of a row. A float32 kernel rounds a score's distance to the largest score, t, and
p, and GENERAL also a power: a few units of 2^-24, fewer than UNITS of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import softargmax as sa
from softargmax.core import dispatch

if not dispatch.INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1: run `make test-triton`", allow_module_level=True)

import torch

from softargmax.core.scale import UNIT
from softargmax.sparse import loss_operations, operations, triton_kernels, triton_loss

LONG = 16400  # three parts of 8,192 scores or five of 4,096, the last with 16 scores
ALPHAS = (2.0, 1.5, 1.3, 1.01)
UNITS = 8
INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def triton() -> Iterator[None]:
    """All calls run the CUDA kernels."""
    with sa.using("triton"):
        yield


def scores(*shape: int, spread: float = 1.0, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


def definition(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The result of the definition in float64."""

    def wide(x: Any) -> Any:
        return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    with sa.using("reference"):
        return function(*map(wide, arguments), **{name: wide(x) for name, x in options.items()})


def bound(dtype: torch.dtype) -> float:
    """The largest error of p, relative to the largest p of its row."""
    return UNITS * 2.0**-24 + {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]


def expect_close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Compare p with the truth."""
    assert found.dtype == dtype
    assert ((found.double() - expected).abs() <= bound(dtype) * expected.amax(-1, keepdim=True) + 2.0**-24).all()


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("classes", "dtype"), [(1, torch.float32), (7, torch.bfloat16), (300, torch.float32),
                                                (300, torch.float16)])  # fmt: skip
def test_p_tau_and_the_support(classes: int, dtype: torch.dtype, alpha: float) -> None:
    for spread in (0.01, 3.0):
        z = scores(2, classes, spread=spread, dtype=dtype)
        expect_close(sa.entmax(z, alpha), definition(sa.entmax, z, alpha), dtype)
        found, expected = sa.threshold(z, alpha), definition(sa.threshold, z, alpha)
        assert found.tau.dtype == torch.float32
        assert ((found.tau - expected.tau).abs() <= UNITS * 2.0**-24 * (1 + expected.tau.abs())).all()
        assert alpha == 1.01 or torch.equal(found.support_size, expected.support_size)


@pytest.mark.parametrize(("alpha", "dtype"), [(2.0, torch.float32), (1.5, torch.bfloat16), (1.3, torch.float32)])
def test_rows_in_parts(alpha: float, dtype: torch.dtype) -> None:
    z = scores(4, LONG, spread=3.0, dtype=dtype)
    z[1, 5], z[2, LONG - 1], z[3] = INF, NAN, -INF
    ours, g = z.clone().requires_grad_(), scores(4, LONG, seed=1, dtype=dtype)
    found, expected = sa.entmax(ours, alpha), definition(sa.entmax, z, alpha)
    expect_close(found[[0, 1, 3]], expected[[0, 1, 3]], dtype)
    assert found[2].isnan().all()
    found.backward(g)
    expected = gradient_of(found.detach(), alpha, g, constant=[1, 2])
    assert ((ours.grad - expected)[[0, 1, 3]].abs() <= 4 * bound(dtype) * g.abs().amax()).all()
    root = sa.threshold(z, alpha)
    assert root.support_size.tolist() == [int((found[0] > 0).sum()), 1, -1, 0]
    assert root.tau.isnan().tolist() == [False, False, True, False]
    target = torch.tensor([0, 5, 1, 2])
    loss = sa.entmax_loss(z, target, alpha, reduction="none")
    expected = definition(lambda z: sa.entmax_loss(z, target, alpha, reduction="none"), z)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6, equal_nan=True)


def gradient_of(p: torch.Tensor, alpha: float, g: torch.Tensor, constant: list[int]) -> torch.Tensor:
    """s (g - <s, g> / <s, 1>) in float64, and 0 in constant rows."""
    p, g = p.double(), g.double()
    s = torch.where(p > 0, p.clamp_min(1e-300) ** (2 - alpha), 0.0)
    s[constant] = 0.0
    mean = (s * g).sum(-1, keepdim=True) / s.sum(-1, keepdim=True).clamp_min(1e-300)
    return s * (g - mean)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradients(alpha: float) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        z, g = scores(4, 65, dtype=dtype), scores(4, 65, seed=1, dtype=dtype)
        z[3, 2] = INF
        ours = z.clone().requires_grad_()
        p = sa.entmax(ours, alpha, temperature=0.5)
        p.backward(g)
        expected = 2.0 * gradient_of(p.detach(), alpha, g, constant=[3])
        assert ((ours.grad.double() - expected).abs() <= 4 * bound(dtype) * g.abs().amax()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_every_batch_and_layout(dtype: torch.dtype) -> None:
    for alpha, classes in ((2.0, 3), (1.5, 100), (1.3, 300)):
        z = scores(5, classes, dtype=dtype)
        whole = sa.entmax(z, alpha)
        assert torch.equal(whole, torch.stack([sa.entmax(row, alpha) for row in z]))
        assert torch.equal(whole, sa.entmax(z.T.contiguous(), alpha, axis=0).T)
        assert torch.equal(whole, sa.entmax(torch.stack([z, z]).transpose(0, 1), alpha, axis=-1)[:, 0])


OPTIONS: list[dict[str, Any]] = [
    {}, {"temperature": 0.5}, {"temperature": -3.0}, {"temperature": 0.3}, {"temperature": 0.0},
    {"temperature": INF}, {"temperature": torch.tensor([[0.3], [-2.0], [INF], [0.0], [1.0], [1e-9]])},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("alpha", ALPHAS[:3])
def test_special_rows_masks_and_temperatures(alpha: float, options: dict[str, Any]) -> None:
    z = scores(6, 9)
    z[0, 5], z[1, 3], z[2], z[3, 0], z[4, 2], z[5, 2], z[5, 3] = INF, NAN, -INF, -INF, -INF, INF, NAN
    where = torch.ones(6, 9, dtype=torch.bool)
    where[0, ::2] = where[4, -5:] = where[5, 3] = False
    for more in ({}, {"where": where}):
        found, expected = sa.entmax(z, alpha, **options, **more), definition(sa.entmax, z, alpha, **options, **more)
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6, atol=UNITS * 2.0**-24)
        root, true = sa.threshold(z, alpha, **options, **more), definition(sa.threshold, z, alpha, **options, **more)
        np.testing.assert_allclose(root.tau.numpy(), true.tau.float().numpy(), rtol=1e-6, atol=1e-6)
        assert torch.equal(root.support_size, true.support_size)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("options", [{}, {"temperature": 2.5}, {"where": True}])
def test_losses_and_gradients(alpha: float, options: dict[str, Any]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        z, target = scores(6, 33, spread=2.0, dtype=dtype), torch.tensor([1, -100, 3, 32, 0, 7])
        z[2, 3], z[4, 0], z[5, 1] = 20.0, INF, NAN
        more = dict(options)
        if "where" in more:
            more["where"] = torch.rand(6, 33, generator=torch.Generator().manual_seed(2)) > 0.2
        ours, theirs = z.clone().requires_grad_(), z.double().requires_grad_()
        found = sa.entmax_loss(ours, target, alpha, reduction="none", **more)
        found[:5].sum().backward()
        with sa.using("reference"):
            expected = sa.entmax_loss(theirs, target, alpha, reduction="none", **more)
            expected[:5].sum().backward()
        np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=2e-6, atol=1e-9)
        assert ((ours.grad.double() - theirs.grad)[:5].abs() <= bound(dtype)).all()


def test_a_confident_row_has_an_accurate_loss_and_gradient() -> None:
    z = torch.tensor([[1.0, 0.25, 0.125]], requires_grad=True)
    loss = sa.sparsemax_loss(z, torch.tensor([0]))
    loss.backward()
    rest = 0.125  # p = (7/8, 1/8, 0)
    assert loss.item() == pytest.approx(rest**2, rel=1e-7)
    assert z.grad.tolist() == [[-rest, rest, 0.0]]


def test_losses_of_rows_in_other_orders() -> None:
    z, target = scores(3, 7, 4), torch.tensor([[1, 2, 3, 0], [6, 5, 4, 3], [0, 0, -100, 1]])
    for x in (z, z.transpose(0, 2).contiguous().transpose(0, 2)):
        ours = x.detach().requires_grad_()
        sa.entmax_loss(ours, target, axis=1, reduction="sum").backward()
        theirs = z.double().requires_grad_()
        with sa.using("reference"):
            sa.entmax_loss(theirs, target, axis=1, reduction="sum").backward()
        assert ((ours.grad - theirs.grad).abs() <= bound(torch.float32)).all()


def test_second_derivatives_forward_mode_and_vmap() -> None:
    z, tangent = scores(3, 5), scores(3, 5, seed=1)

    def loss(z: torch.Tensor) -> torch.Tensor:
        return sa.entmax(z).square().sum() + sa.sparsemax_loss(z, torch.tensor([0, 1, 2]))

    def of(function: Callable[..., Any]) -> tuple[Any, ...]:
        return torch.func.hessian(function)(z), torch.func.jvp(function, (z,), (tangent,))[1]

    found = of(loss)
    with sa.using("reference"):
        expected = of(loss)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    batches = torch.stack([z, tangent])
    assert torch.equal(torch.vmap(sa.entmax)(batches), torch.stack([sa.entmax(z), sa.entmax(tangent)]))


def test_the_operators_pass_opcheck() -> None:
    z, target = scores(3, 5).requires_grad_(), torch.tensor([[1], [2], [0]])
    i = operations.Scores(z, 1.5, None, UNIT, (1,))
    torch.library.opcheck(operations.entmax.torch.overload, operations.entmax.torch.flatten(i))
    loss = loss_operations.OfClasses(z, target, 1.5, None, UNIT, (1,), -100)
    torch.library.opcheck(loss_operations.entmax_loss.torch.overload, loss_operations.entmax_loss.torch.flatten(loss))


def test_the_definitions_serve_what_no_kernel_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    for module in (triton_kernels, triton_loss):
        monkeypatch.setattr(module, "launch", lambda *_a, **_k: launched.append(1))
    z, target = scores(3, 5), torch.tensor([1, 0, 4])
    for alpha in (0.5, 3.0, torch.tensor([1.5, 2.0, 0.7])[:, None]):
        ours = z.clone().requires_grad_()
        p = sa.entmax(ours, alpha)
        expect_close(p, definition(sa.entmax, z, alpha), torch.float32)
        p.square().sum().backward()
        sa.entmax_loss(ours, target, alpha).backward()
        assert ours.grad.isfinite().all()
    assert sa.entmax(z.double()).dtype == torch.float64
    assert sa.entmax(torch.empty(3, 0)).shape == (3, 0)
    assert sa.entmax_loss(z, target, temperature=torch.tensor([[1.0], [0.5], [2.0]]), reduction="none").shape == (3,)
    assert not launched
    assert "cuda" in operations.entmax.kernels
