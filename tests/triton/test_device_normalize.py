"""The CUDA kernels of normalize and of the loss on a GPU: values, bits over batches, strides and runs, and edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tests.triton.sum_bounds import sizes, within

import softargmax as sa

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from softargmax.core import triton_launch

DTYPES = (torch.float32, torch.bfloat16)
LENGTHS = (3, 100, 128, 500, 1000, 4096, 8192, 9000, 16384, 20000, 131072)
FEW, MANY = 7, 2 * triton_launch.AT_ONCE
"""Numbers of rows: for programs that take turns, and for programs that have a row each."""


@pytest.fixture(autouse=True)
def triton() -> Iterator[None]:
    """All calls run the CUDA kernels."""
    with sa.using("triton"):
        yield


def scores(rows: int, classes: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Normal scores, with a spread that differs from row to row. Some rows are confident."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, classes, generator=generator) * torch.logspace(-1, 1.5, rows)[:, None]
    z[::5, classes // 2] += 30.0
    return z.to(dtype).cuda()


def ulps(found: torch.Tensor, expected: torch.Tensor, at: torch.Tensor | None = None) -> float:
    """The largest error in units of the last place of the found dtype."""
    expected = expected.double()
    info = torch.finfo(found.dtype)
    place = expected.abs() if at is None else at
    unit = torch.exp2(torch.floor(torch.log2(place.clamp(min=info.tiny)))) * info.eps
    return float(((found.double() - expected).abs() / unit).max())


def _all(z: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    ours = z.clone().requires_grad_()
    p, log_p = sa.softmax(ours), sa.log_softmax(ours)
    pair = sa.cross_entropy_and_gradient(z, target, reduction="none")
    seed = torch.linspace(-1, 1, z.shape[1], device=z.device).to(z.dtype).expand(z.shape)
    (of_p,) = torch.autograd.grad(p, ours, seed, retain_graph=True)
    (of_log_p,) = torch.autograd.grad(log_p, ours, seed)
    return {
        "softmax": p.detach(), "log_softmax": log_p.detach(), "logsumexp": sa.logsumexp(z), "loss": pair.loss,
        "gradient": pair.gradient, "softmax backward": of_p, "log_softmax backward": of_log_p,
    }  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("classes", LENGTHS)
def test_values(classes: int, dtype: torch.dtype) -> None:
    rows = FEW if classes > 1 << 16 else MANY
    z, target = scores(rows, classes, dtype), torch.arange(rows, device="cuda") % classes
    found = _all(z, target)
    with sa.using("reference"):
        expected = _all(z.double(), target)
    half = dtype is not torch.float32
    for name in ("softmax", "log_softmax"):
        error = ulps(found[name], expected[name])
        assert error <= (0.51 if half else 3.0), f"{name} {classes} {dtype}: {error} ulp"
    largest = z.double().abs().amax(1).maximum(expected["logsumexp"].abs())
    error = ulps(found["logsumexp"], expected["logsumexp"], largest)
    assert error <= 4.0, f"logsumexp {classes} {dtype}: {error} ulp"
    error = (found["loss"].double() - expected["loss"]).abs() / (expected["loss"] + 2.0**-126)
    span = z.double().amax(1) - z.double().amin(1)  # the fast exponential adds 2^-24 for each unit
    allowed = 2.0**-20 + 2.0**-23 * span if half else torch.full_like(span, 3 * 2.0**-23)
    assert bool((error <= allowed).all()), (
        f"loss {classes} {dtype}: {float((error / allowed).max())} of what is allowed"
    )
    unit = 2.0**-8 if half else 4 * 2.0**-23
    for name in ("gradient", "softmax backward", "log_softmax backward"):
        size = expected[name].abs().amax(1, keepdim=True) + 2.0**-126
        if name == "softmax backward":
            size = size + expected["softmax"].amax(1, keepdim=True)
        error = float(((found[name].double() - expected[name]).abs() / size).max())
        assert error <= (4 if half and "backward" in name else 1) * unit, f"{name} {classes} {dtype}: {error}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("classes", LENGTHS)
def test_bits(classes: int, dtype: torch.dtype) -> None:
    z, target = scores(MANY, classes, dtype, 1), torch.arange(MANY, device="cuda") % classes
    whole, again = _all(z, target), _all(z, target)
    few = _all(z[:FEW].contiguous(), target[:FEW])
    one = _all(z[FEW - 1 : FEW].contiguous(), target[FEW - 1 : FEW])
    for name, x in whole.items():
        assert torch.equal(x, again[name]), f"{name} {classes} {dtype}: other bits in a second run"
        assert torch.equal(x[:FEW], few[name]), f"{name} {classes} {dtype}: other bits in a small batch"
        assert torch.equal(x[FEW - 1 : FEW], one[name]), f"{name} {classes} {dtype}: other bits alone"
    down = sa.softmax(z[:64].T.contiguous(), axis=0).T
    assert torch.equal(down, whole["softmax"][:64]), f"{classes} {dtype}: other bits with strides"
    spaced = torch.stack([z[:64], z[:64]], 1)[:, 0]
    assert torch.equal(sa.log_softmax(spaced), whole["log_softmax"][:64]), f"{classes} {dtype}: other bits in a view"
    same = z.clone()
    assert torch.equal(sa.softmax(same, out=same), whole["softmax"]), f"{classes} {dtype}: other bits in place"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("classes", LENGTHS)
def test_edges(classes: int, dtype: torch.dtype) -> None:
    z = scores(8, classes, dtype)
    inf, nan = float("inf"), float("nan")
    z[0, 0], z[1, -1], z[2], z[3, 0], z[4, 1] = inf, nan, -inf, -inf, inf
    z[4, 0] = inf
    where = torch.rand(8, classes, generator=torch.Generator().manual_seed(2)).cuda() > 0.3
    for options in ({}, {"where": where}, {"temperature": 0.0}, {"temperature": -2.0}):
        for function in (sa.softmax, sa.log_softmax, sa.logsumexp):
            found = function(z, **options)
            with sa.using("reference"):
                expected = function(z.double(), **options)
            torch.testing.assert_close(
                found.double(), expected.to(found.dtype).double(), rtol=1e-5 if dtype == torch.float32 else 1e-2,
                atol=1e-37, equal_nan=True,
            )  # fmt: skip
    target = torch.tensor([0, 1, 0, 1, 2, -100, 1, classes], device="cuda")
    found = sa.cross_entropy_and_gradient(z, target, reduction="none")
    with sa.using("reference"):
        expected = sa.cross_entropy_and_gradient(z.double()[:7], target[:7], reduction="none")
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one[:7].double(), other.to(one.dtype).double(), rtol=1e-2, atol=1e-7, equal_nan=True)
        assert bool(one[7].isnan().all()), "a class out of range: expected NaN"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("classes", [3, 100, 1000, 4096, 9000, 131072])
def test_sums_and_their_gradients(classes: int, dtype: torch.dtype) -> None:
    z, other = scores(FEW, classes, dtype), scores(FEW, classes, dtype, 1)

    def results(z: torch.Tensor, other: torch.Tensor) -> list[torch.Tensor]:
        p, q = z.clone().requires_grad_(), other.clone().requires_grad_()
        found = [sa.entropy(p), sa.soft_argmax(p), sa.kl_divergence(p, q)]
        slopes = [torch.autograd.grad(x.sum(), (p, q), allow_unused=True) for x in found]
        return [*(x.detach() for x in found), *(x for pair in slopes for x in pair if x is not None)]

    found = results(z, other)
    with sa.using("reference"):
        expected = results(z.double(), other.double())
    for one, right in zip(found[:3], expected[:3], strict=True):
        assert ulps(one, right) <= 3.0
    of = [*sizes(sa.entropy, z), *sizes(sa.soft_argmax, z), *sizes(sa.kl_divergence, z, other)]
    for one, right, size in zip(found[3:], expected[3:], of, strict=True):
        assert within(one, right, size)
    again = results(z[1:2].contiguous(), other[1:2].contiguous())
    assert all(torch.equal(one[1:2], x) for one, x in zip(found, again, strict=True))


def seeds(found: torch.Tensor) -> torch.Tensor:
    """Incoming gradients: the same for each dtype of a result."""
    numbers = torch.arange(found.numel(), device=found.device) * 7 % 16
    return (numbers.to(found.dtype) / 8 - 1).reshape(found.shape)


def with_gradient(function: Callable[[torch.Tensor], torch.Tensor], z: torch.Tensor) -> list[torch.Tensor]:
    """A result, and the gradient of its product with `seeds`."""
    leaf = z.clone().requires_grad_()
    found = function(leaf)
    return [found.detach(), torch.autograd.grad(found, leaf, seeds(found))[0]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("classes", [3, 100, 1000, 5000, 131072])
def test_prefixes_and_renyi_entropies(classes: int, dtype: torch.dtype) -> None:
    z = scores(FEW, classes, dtype)
    for function in (sa.logcumsumexp, lambda z: sa.renyi_entropy(z, 0.5), lambda z: sa.renyi_entropy(z, 2.0)):
        found, slope = with_gradient(function, z)
        with sa.using("reference"):
            expected, right = with_gradient(function, z.double())
        prefixes = function is sa.logcumsumexp
        largest = z.double().abs().cummax(1).values.maximum(expected.abs()) if prefixes else None
        assert ulps(found, expected, largest) <= (0.51 if found.dtype is not torch.float32 or not prefixes else 3.0)
        # Gradients are computed in float64, and rounded to float32, and then to their dtype. The sums of a prefix have
        # at most 2 K terms of size 1.
        half = torch.finfo(dtype).eps / 2 if dtype is torch.bfloat16 else 0.0
        rounding = (2.0**-24 + half) * right.abs() + 2.0**-126
        size = 2.0 * classes if prefixes else right.abs().amax(1, keepdim=True)
        assert bool(((slope.double() - right).abs() <= rounding + 2.0**-40 * size).all())
        again = with_gradient(function, z)
        assert torch.equal(found, again[0])
        assert torch.equal(slope, again[1])
        if prefixes:
            assert torch.equal(sa.logcumsumexp(z[1:2].contiguous()), found[1:2])
            assert torch.equal(sa.logcumsumexp(z.T.contiguous(), axis=0).T, found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trailing", [(), (3,), (12,)])
def test_segments(trailing: tuple[int, ...], dtype: torch.dtype) -> None:
    z = (torch.randn(20865, *trailing, generator=torch.Generator().manual_seed(3)) * 5.0).to(dtype).cuda()
    offsets = torch.tensor([0, 0, 1, 6, 262, 862, 865, 20865], device="cuda")
    of = torch.repeat_interleave(offsets.diff())

    def totals(x: torch.Tensor) -> torch.Tensor:
        """The sum of each segment, at every score of the segment."""
        return torch.zeros(len(offsets) - 1, *x.shape[1:], dtype=x.dtype, device=x.device).index_add_(0, of, x)[of]

    for function in (sa.segment_softmax, sa.segment_log_softmax, sa.segment_logsumexp):
        found, slope = with_gradient(lambda z, function=function: function(z, offsets), z)
        with sa.using("reference"):
            expected, right = with_gradient(lambda z, function=function: function(z, offsets), z.double())
            p, log_p = sa.segment_softmax(z.double(), offsets), sa.segment_log_softmax(z.double(), offsets)
        g = seeds(found).double().abs()
        if function is sa.segment_softmax:
            size = p * (g + totals(p * g))
        else:
            size = p * g[of] if len(g) < len(z) else g + p * (1.0 + log_p.abs()) * totals(g)
        unit = torch.finfo(dtype).eps / 2  # halves round p, or log p
        allowed = (8 * 2.0**-24 + 2 * unit * (dtype is not torch.float32)) * size + unit * right.abs() + 2.0**-126
        assert bool(((slope.double() - right).abs() <= allowed).all()), function
        largest = z.double().abs().amax() if function is sa.segment_logsumexp else None
        same = found.double() == expected  # an empty segment has a logsumexp of -inf
        error = ulps(found[~same], expected[~same], None if largest is None else largest.expand_as(expected[~same]))
        assert error <= (3.0 if dtype is torch.float32 or largest is not None else 0.51)
