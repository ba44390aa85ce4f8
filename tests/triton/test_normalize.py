"""Long rows by turns and with a program each, short rows in every block, and confident rows, in the interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.oracle.truth import ulp_error

import softargmax as sa
from softargmax.core import dispatch

if not dispatch.INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1: run `make test-triton`", allow_module_level=True)

import torch

from softargmax.core import triton_launch
from softargmax.loss import triton_kernels as loss_kernels
from softargmax.normalize import triton_kernels

INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def triton() -> Iterator[None]:
    """All calls run the CUDA kernels."""
    with sa.using("triton"):
        yield


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 256 scores, so that short rows are long rows."""
    for module in (triton_launch, loss_kernels):
        monkeypatch.setattr(module, "PART", 256)
    monkeypatch.setattr(triton_kernels, "REGISTERS", 256)


def results(z: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
    """The results of all kernels."""
    ours = z.clone().requires_grad_()
    p, lse = sa.softmax_with_lse(ours)
    log_p = sa.log_softmax(ours)
    seed = torch.linspace(-1.0, 1.0, z.shape[1]).to(z.dtype).expand(z.shape)
    of_p, of_log_p = torch.autograd.grad(p, ours, seed)[0], torch.autograd.grad(log_p, ours, seed)[0]
    smooth = sa.logsumexp(ours)
    of_lse = torch.autograd.grad(smooth, ours, torch.full_like(smooth, -1.7))[0]
    losses = sa.cross_entropy_and_gradient(z, target, label_smoothing=0.1, reduction="none")
    return [p.detach(), lse.detach(), log_p.detach(), of_p, of_log_p, smooth.detach(), of_lse, *losses]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [5, 600])
def test_the_gradient_of_logsumexp_is_p_g(classes: int, dtype: torch.dtype, small_parts: None) -> None:
    z = (torch.randn(4, classes, generator=torch.Generator().manual_seed(0)) * 5.0).to(dtype)
    z[1, 3], z[2, 2] = INF, NAN
    leaf, g = z.clone().requires_grad_(), torch.tensor([1.5, -2.0, 1.0, 0.3])
    smooth = sa.logsumexp(leaf)
    (found,) = torch.autograd.grad(smooth, leaf, g.to(smooth.dtype))
    with sa.using("reference"):
        p = sa.softmax(z.double())
    expected = torch.where(p == 0.0, 0.0, p * g.double()[:, None])
    error = ulp_error(found.float().numpy(), expected.numpy(), dtype=str(dtype)[6:])
    assert error.max() <= (4 if dtype is torch.float32 else 0.51)  # p within 3 ulp, and a rounding


@pytest.mark.parametrize(("classes", "dtype"), [(512, torch.float32), (600, torch.bfloat16)])
def test_turns_and_programs_of_their_own_give_the_same_bits(
    classes: int, dtype: torch.dtype, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    z = torch.randn(4, classes, generator=torch.Generator().manual_seed(0)) * 5.0
    z[1, 500], z[2, 3], z[3, 10] = 60.0, INF, NAN
    z, target = z.to(dtype), torch.tensor([5, 500, 3, -100])
    by_turns = results(z, target)
    monkeypatch.setattr(triton_launch, "MANY", 1)
    for one, other in zip(by_turns, results(z, target), strict=True):
        assert torch.equal(one.nan_to_num(nan=7.0), other.nan_to_num(nan=7.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [2, 16, 130, 1000])
def test_short_rows_have_the_same_bits_in_every_block(classes: int, dtype: torch.dtype) -> None:
    z = torch.randn(21, classes, generator=torch.Generator().manual_seed(1)) * 4.0
    z[3, 0], z[4, 1], z[5, 0] = 50.0, INF, NAN
    z, target = z.to(dtype), torch.arange(21) % classes
    whole = results(z, target)
    for rows in (slice(2, 5), slice(20, 21)):
        for one, other in zip(whole, results(z[rows], target[rows]), strict=True):
            assert torch.equal(one[rows].nan_to_num(nan=7.0), other.nan_to_num(nan=7.0))
    if classes <= triton_launch.STRIDED:
        for one, other in zip(whole, results(z.T.contiguous().T, target), strict=True):
            assert torch.equal(one.nan_to_num(nan=7.0), other.nan_to_num(nan=7.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [3, 200])
def test_confident_rows(classes: int, dtype: torch.dtype) -> None:
    # Above some r, r is the sum of all terms less the largest one; below, the maxima are left out of the sum.
    z = torch.randn(64, classes, generator=torch.Generator().manual_seed(2))
    z[:, 0] = torch.linspace(0.0, 40.0, 64)
    z, target = z.to(dtype), torch.zeros(64, dtype=torch.int64)
    found = sa.cross_entropy(z, target, reduction="none"), sa.log_softmax(z)[:, 0]
    with sa.using("reference"):
        expected = sa.cross_entropy(z.double(), target, reduction="none"), sa.log_softmax(z.double())[:, 0]
    if dtype is torch.float32:
        for one, other in zip(found, expected, strict=True):
            assert ulp_error(one.numpy(), other.numpy()).max() <= 3
    else:
        span = (z.amax(1) - z.amin(1)).double()
        assert ((found[0] / expected[0] - 1.0).abs() <= 2.0**-20 + 2.0**-24 * span).all()
        assert ulp_error(found[1].float().numpy(), expected[1].numpy(), dtype="bfloat16").max() <= 0.51


@pytest.mark.parametrize("classes", [2, 3, 100])
def test_sums_near_every_power_of_two(classes: int) -> None:
    # log(1 + r) for r from 1e-30 to 99.
    z = torch.full((60, classes), -1.0) * torch.linspace(0.0, 70.0, 60)[:, None]
    z[:, 0] = 0.0
    found = sa.logsumexp(z)
    with sa.using("reference"):
        expected = sa.logsumexp(z.double())
    assert ulp_error(found.numpy(), expected.numpy()).max() <= 3
    assert np.isfinite(found.numpy()).all()


@pytest.mark.parametrize("lowest", [-1e38, float(torch.finfo(torch.float32).min)])
@pytest.mark.parametrize("temperature", [1.5, 0.7, -3.0])
def test_huge_scores_at_a_temperature(temperature: float, lowest: float) -> None:
    z = torch.tensor([[lowest, 0.3, 1.0, -2.0], [0.0, lowest, lowest, 1e30]])
    for function in (sa.softmax, sa.log_softmax, sa.logsumexp):
        with sa.using("reference"):
            expected = function(z.double(), temperature=temperature)
        torch.testing.assert_close(function(z, temperature=temperature), expected.float(), rtol=1e-6, atol=1e-37)
