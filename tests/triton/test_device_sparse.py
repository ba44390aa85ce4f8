"""The CUDA kernels of the sparse maps on a GPU: values, gradients, losses, and bits over batches, strides and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import softargmax as sa

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

ALPHAS = (2.0, 1.5, 1.3)
DTYPES = (torch.float32, torch.bfloat16)
CHECKED = ((64, 1), (64, 5), (33, 128), (16, 1000), (8, 4096), (6, 10000), (4, 16384), (3, 20000), (2, 131072))
each = pytest.mark.parametrize(
    ("rows", "classes", "dtype", "alpha"),
    [(*shape, dtype, alpha) for shape in CHECKED for dtype in DTYPES for alpha in ALPHAS],
)


@pytest.fixture(autouse=True)
def triton() -> Iterator[None]:
    """All calls run the CUDA kernels."""
    torch.manual_seed(0)
    with sa.using("triton"):
        yield


def scores(rows: int, classes: int, dtype: torch.dtype, spread: float = 1.0) -> torch.Tensor:
    return (torch.randn(rows, classes, device="cuda") * spread).to(dtype)


def truth(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a definition in float64."""
    with sa.using("reference"):
        wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in arguments]
        return function(*wide)


def expect(ok: torch.Tensor | bool, *facts: Any) -> None:
    """Assert that a condition holds everywhere, and show some facts if it does not."""
    assert bool(torch.as_tensor(ok).all()), facts


def check_map(z: torch.Tensor, alpha: float) -> None:
    """p, tau, the support and the gradient."""
    facts = tuple(z.shape), z.dtype, alpha
    p, (tau, support) = truth(sa.entmax, z, alpha), truth(sa.threshold, z, alpha)
    ours, g = z.clone().requires_grad_(), torch.randn_like(z)
    found, roots = sa.entmax(ours, alpha), sa.threshold(z, alpha)
    unit = 2.0**-24 if z.dtype == torch.float32 else 2.0**-8
    off = (found.double() - p).abs().amax(1) / p.amax(1)
    expect(off <= 1e-6 + unit, "p", *facts, off.max().item())
    off = (roots.tau - tau).abs() / (1 + tau.abs())
    expect(off <= 1e-6, "tau", *facts, off.max().item())
    near = ((p > 0) & (p < 1e-12 * p.amax(1, keepdim=True))).sum(1)
    expect((roots.support_size - support).abs() <= near, "support", *facts)
    found.backward(g)
    s = torch.where(found > 0, found.detach().double() ** (2 - alpha), 0.0)
    s = torch.where(found.detach() > 0, s, 0.0)
    expected = s * (g.double() - (s * g.double()).sum(1, keepdim=True) / s.sum(1, keepdim=True))
    off = (ours.grad.double() - expected).abs().amax(1) / (s.amax(1) * g.double().abs().amax(1))
    expect(off <= 2e-6 + unit, "gradient", *facts, off.max().item())


def check_loss(z: torch.Tensor, alpha: float) -> None:
    """The loss of classes, and its gradient."""
    facts = tuple(z.shape), z.dtype, alpha
    target = torch.randint(0, z.shape[1], (len(z),), device=z.device)
    target[::2] = z[::2].argmax(1)
    expected = truth(lambda z: sa.entmax_loss(z, target, alpha, reduction="none"), z)
    ours = z.clone().requires_grad_()
    found = sa.entmax_loss(ours, target, alpha, reduction="none")
    found.sum().backward()
    off = (found - expected).abs() / (1e-2 + expected)
    expect(off <= 4e-6, "loss", *facts, off.max().item())
    slope = truth(sa.entmax, z, alpha)
    slope[torch.arange(len(z), device=z.device), target] -= 1.0
    unit = 2.0**-24 if z.dtype == torch.float32 else 2.0**-8
    expect((ours.grad.double() - slope).abs() <= 1e-6 + unit, "gradient of the loss", *facts)


def check_bits(z: torch.Tensor, alpha: float) -> None:
    """The bits of rows in other batches, with other strides, and in a second run."""
    p, facts = sa.entmax(z, alpha), (tuple(z.shape), z.dtype, alpha)
    expect(torch.equal(p, sa.entmax(z, alpha)), "bits of a second run", *facts)
    expect(torch.equal(p, torch.cat([sa.entmax(z[at : at + 3], alpha) for at in range(0, len(z), 3)])), "batch", *facts)
    expect(torch.equal(p, sa.entmax(z.T.contiguous(), alpha, axis=0).T), "bits of other strides", *facts)


@each
def test_values_gradients_and_losses(rows: int, classes: int, dtype: torch.dtype, alpha: float) -> None:
    for spread in (0.01, 1.0, 20.0):
        z = scores(rows, classes, dtype, spread)
        check_map(z, alpha)
        check_loss(z, alpha)


@each
def test_bits(rows: int, classes: int, dtype: torch.dtype, alpha: float) -> None:
    check_bits(scores(rows, classes, dtype), alpha)


def test_edges() -> None:
    """Rows with NaN and infinities, masks and temperatures."""
    inf, nan = float("inf"), float("nan")
    for classes in (6, 20000):
        z = torch.randn(6, classes, device="cuda")
        z[0, 5], z[1, 0], z[2], z[3, 0], z[4, 2], z[5, 2], z[5, 3] = inf, nan, -inf, -inf, inf, inf, nan
        where = torch.ones(6, classes, dtype=torch.bool, device="cuda")
        where[0, ::2] = where[5, 3] = False
        temperature = torch.tensor([[1.0], [2.0], [0.0], [0.5], [-3.0], [inf]], device="cuda")
        for alpha in ALPHAS:
            for options in ({}, {"where": where}, {"temperature": 0.0}, {"temperature": -2.0},
                            {"temperature": temperature, "where": where}):  # fmt: skip
                found = sa.entmax(z, alpha, **options)
                with sa.using("reference"):
                    expected = sa.entmax(z.double(), alpha, **options)
                close = torch.isclose(found.double(), expected, rtol=2e-6, atol=1e-7, equal_nan=True)
                expect(close, "edges", classes, alpha, list(options))
