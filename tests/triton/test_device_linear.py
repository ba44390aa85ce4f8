"""The loss of a last layer on a GPU: accuracy, bits, and vectors that are not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import softargmax as sa

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

N, D, K = 3000, 256, 20011
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
IGNORED, MASKED = 5, 11


@pytest.fixture(autouse=True)
def triton() -> Iterator[None]:
    """All calls run the kernels."""
    with sa.using("triton"):
        yield


def layer(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """h, W and targets. The scores are as large as those of a trained model."""
    g = torch.Generator("cuda").manual_seed(0)
    h = torch.randn(N, D, device="cuda", dtype=dtype, generator=g)
    w = torch.randn(K, D, device="cuda", dtype=dtype, generator=g) * (3 / D**0.5)
    target = torch.randint(0, K, (N,), device="cuda", generator=g)
    target[IGNORED] = -100
    return h, w, target


def formula(h: Tensor, w: Tensor, target: Tensor) -> Tensor:
    """The loss by torch, in the dtype of the arrays."""
    return functional.cross_entropy(h @ w.t(), target)


def both(loss: Callable[..., Tensor], h: Tensor, w: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, and its gradients with respect to h and W."""
    h, w = h.detach().requires_grad_(), w.detach().requires_grad_()
    found = loss(h, w, target)
    return found.detach(), *torch.autograd.grad(found, (h, w))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(dtype: torch.dtype) -> None:
    given = layer(dtype)
    found = both(sa.linear_cross_entropy, *given)
    exact, usual = (
        both(formula, *(x.to(kind) for x in given[:2]), given[2]) for kind in (torch.float64, torch.float32)
    )
    for name, one, other, naive in zip(("loss", "dh", "dw"), found, exact, usual, strict=True):
        # dz of half-precision vectors is rounded, and so are gradients.
        unit = 2.0**-20 if name == "loss" else torch.finfo(dtype).eps
        size = other.abs().max()
        error, allowed = (one.double() - other).abs().max(), 2 * unit * size + 4 * (naive - other).abs().max()
        print(f"{dtype} {name}: error {error / size:.1e}, allowed {allowed / size:.1e}")
        assert error <= allowed, name


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_depend_on_the_row_only(dtype: torch.dtype) -> None:
    h, w, target = layer(dtype)
    first, again = (both(sa.linear_cross_entropy, h, w, target) for _ in range(2))
    assert all(map(torch.equal, first, again))
    rows = sa.linear_cross_entropy(h, w, target, reduction="none")
    for size in (1, 100, 1024):
        part = slice(7, 7 + size)
        assert torch.equal(sa.linear_cross_entropy(h[part], w, target[part], reduction="none"), rows[part])


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_that_do_not_count_change_no_gradient(dtype: torch.dtype) -> None:
    h, w, target = layer(dtype)
    target = torch.where(target == MASKED, MASKED + 1, target)
    where, bias = torch.arange(K, device="cuda") != MASKED, torch.zeros(K, device="cuda", dtype=dtype)
    clean = sa.linear_cross_entropy_and_gradient(h, w, target, bias=bias, where=where)
    h[IGNORED], w[MASKED, 1], w[MASKED, 3] = torch.nan, torch.inf, torch.nan
    found = sa.linear_cross_entropy_and_gradient(h, w, target, bias=bias, where=where)
    for one, other in zip(found, clean, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-6)
