"""The CUDA kernels of segments in the interpreter: values, edges, bits, wrong bounds, and derivatives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.oracle.truth import ulp_error

import softargmax as sa
from softargmax.core import dispatch

if not dispatch.INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1: run `make test-triton`", allow_module_level=True)

import torch

from softargmax.core.scale import UNIT
from softargmax.normalize import segment_operations, triton_segments

INF, NAN = float("inf"), float("nan")
OFFSETS = torch.tensor([0, 0, 1, 6, 262, 862, 865])
"""Segments of 0, 1, 5, 256, 600 and 3 scores."""
PAIRS = (
    (sa.segment_softmax, sa.softmax),
    (sa.segment_log_softmax, sa.log_softmax),
    (sa.segment_logsumexp, sa.logsumexp),
)


@pytest.fixture(autouse=True)
def triton() -> Iterator[None]:
    """All calls run the CUDA kernels."""
    with sa.using("triton"):
        yield


def scores(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 5.0).to(dtype)


def rows(function: Any, z: torch.Tensor, **options: Any) -> list[np.ndarray]:
    """The definition's result in float64 for the scores of each segment."""
    with sa.using("reference"):
        return [function(z[a:b].double(), axis=0, **options).numpy() for a, b in pairwise(OFFSETS.tolist())]


@pytest.mark.parametrize("options", [{}, {"temperature": -2.5}, {"temperature": 0.0}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trailing", [(), (3,), (2, 5)])
def test_segments_are_rows(trailing: tuple[int, ...], dtype: torch.dtype, options: dict[str, float]) -> None:
    z = scores(865, *trailing, dtype=dtype)
    for function, alone in PAIRS:
        found, expected = function(z, OFFSETS, **options), rows(alone, z, **options)
        if function is sa.segment_logsumexp:
            assert ulp_error(found.numpy(), np.stack(expected), at=float(z.abs().max())).max() <= 3
            continue
        error = ulp_error(found.float().numpy(), np.concatenate(expected), dtype=str(dtype)[6:])
        assert error.max() <= (3 if dtype is torch.float32 else 0.51)


def test_a_temperature_for_each_segment() -> None:
    z, temperature = scores(865, 2), torch.tensor([1.0, 2.0, 0.0, -1.0, INF, 0.5])[:, None]
    for function, alone in PAIRS[:2]:
        found = function(z, OFFSETS, temperature=temperature)
        for (a, b), t in zip(pairwise(OFFSETS.tolist()), temperature[:, 0].tolist(), strict=True):
            with sa.using("reference"):
                expected = alone(z[a:b].double(), axis=0, temperature=t).numpy()
            np.testing.assert_allclose(found[a:b].numpy(), expected, rtol=2e-6, atol=1e-37)


def test_edges_stay_in_their_segment() -> None:
    z = scores(865)
    z[0], z[3], z[10], z[20], z[300], z[862:] = NAN, INF, INF, NAN, -INF, -INF
    z[600], z[601], z[602] = INF, INF, -1e38
    for function, alone in PAIRS:
        found, expected = function(z, OFFSETS).numpy(), rows(alone, z)
        truth = np.stack(expected) if function is sa.segment_logsumexp else np.concatenate(expected)
        np.testing.assert_allclose(found, truth, rtol=1e-6, atol=1e-37)


def test_a_segment_has_the_same_bits_alone_and_in_every_layout() -> None:
    z = scores(865, 11)
    for function, _ in PAIRS:
        whole = function(z, OFFSETS)
        assert torch.equal(function(z.T.contiguous().T, OFFSETS), whole)
        assert torch.equal(function(z[:, 4], OFFSETS), whole[:, 4])
        alone = function(z[262:862], torch.tensor([0, 600]))
        assert torch.equal(alone, whole[4:5] if function is sa.segment_logsumexp else whole[262:862])


@pytest.mark.parametrize("bounds", [[0, 5, 3, 7], [1, 2, 7, 7], [0, 2, 4, 6], [0, -4, 900, 7]])
def test_wrong_bounds_give_nan(bounds: list[int]) -> None:
    z = scores(7)
    z[2] = -INF
    i = segment_operations.SegmentScores(z, torch.tensor(bounds), UNIT, z.dtype)
    for operation in (segment_operations.segment_softmax, segment_operations.segment_log_softmax):
        assert all(x.isnan().all() for x in operation(i))
    assert segment_operations.segment_logsumexp.first(i).isnan().all()


def totals(x: torch.Tensor) -> torch.Tensor:
    """The sum of each segment, at every score of the segment."""
    of = torch.repeat_interleave(OFFSETS.diff())
    return torch.zeros(len(OFFSETS) - 1, *x.shape[1:], dtype=x.dtype).index_add_(0, of, x)[of]


def slope(function: Any, z: torch.Tensor, g: torch.Tensor, offsets: torch.Tensor = OFFSETS, **options: Any) -> Any:
    """The gradient of <g, function(z)>."""
    ours = z.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    return torch.autograd.grad(function(ours, offsets, **options), ours, g)[0]


TEMPERATURES = torch.tensor([[1.0], [2.0], [0.7], [-1.0], [INF], [0.5]])
"""One for each segment."""


@pytest.mark.parametrize("temperature", [1.0, -2.5, TEMPERATURES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [function for function, _ in PAIRS])
def test_derivatives(function: Any, dtype: torch.dtype, temperature: Any) -> None:
    z = scores(865, 2, dtype=dtype)
    with sa.using("reference"):
        g = scores(*function(z, OFFSETS).shape).to(function(z[:1], torch.tensor([0, 1])).dtype)
    found = slope(function, z, g, temperature=temperature)
    wide, of = g.double(), torch.repeat_interleave(OFFSETS.diff())
    with sa.using("reference"):
        p = sa.segment_softmax(z.double(), OFFSETS, temperature=temperature)
        y = sa.segment_log_softmax(z.double(), OFFSETS, temperature=temperature)
    beta = (1.0 / temperature)[of].double() if isinstance(temperature, torch.Tensor) else 1.0 / temperature
    expected = {
        sa.segment_softmax: lambda: p * (wide - totals(p * wide)) * beta,
        sa.segment_log_softmax: lambda: (wide - p * totals(wide)) * beta,
        sa.segment_logsumexp: lambda: p * wide[of],
    }[function]()
    size = wide.abs()
    terms = {
        sa.segment_softmax: lambda: p * (size + totals(p * size)) * beta,
        sa.segment_log_softmax: lambda: (size + p * (1.0 + y.abs()) * totals(size)) * beta,
        sa.segment_logsumexp: lambda: p * size[of],
    }[function]()
    # p (or log p) has been rounded to its dtype, and has errors of 3 units of float32. The gradient adds 4 roundings.
    unit = torch.finfo(dtype).eps / 2
    allowed = ((0 if dtype is torch.float32 else 2) * unit + 8 * 2.0**-24) * terms.abs() + torch.finfo(dtype).tiny
    assert ((found.double() - expected).abs() <= allowed + unit * expected.abs()).all()


def test_a_gradient_has_the_same_bits_alone_and_in_every_layout() -> None:
    z, temperature = scores(865, 11), TEMPERATURES.expand(6, 11)
    for function, _ in PAIRS:
        rows = (6, 11) if function is sa.segment_logsumexp else (865, 11)
        g = torch.randn(rows, generator=torch.Generator().manual_seed(1))
        whole = slope(function, z, g, temperature=temperature)
        assert torch.equal(slope(function, z.T.contiguous().T, g, temperature=temperature), whole)
        assert torch.equal(slope(function, z, g.T.contiguous().T, temperature=temperature), whole)
        assert torch.equal(slope(function, z[:, 4], g[:, 4], temperature=temperature[:, 4]), whole[:, 4])
        own = g[4:5] if function is sa.segment_logsumexp else g[262:862]
        alone = slope(function, z[262:862], own, torch.tensor([0, 600]), temperature=temperature[4:5])
        assert torch.equal(alone, whole[262:862])
        expanded = slope(function, z, torch.ones(()).expand(rows))
        assert torch.equal(expanded, slope(function, z, torch.ones(rows)))


@pytest.mark.parametrize("function", [function for function, _ in PAIRS])
def test_gradients_of_special_segments(function: Any) -> None:
    z = scores(865)
    z[0], z[3], z[10], z[20], z[300], z[862:] = NAN, INF, INF, NAN, -INF, -INF
    z[600], z[601], z[602] = INF, INF, -1e38
    with sa.using("reference"):
        g = scores(*function(z, OFFSETS).shape)
    g[2] = INF
    for options in ({}, {"temperature": 0.0}):
        with sa.using("native"):
            expected = slope(function, z.double(), g.double(), **options)
        found = slope(function, z, g, **options).double()
        assert torch.equal(found.isnan(), expected.isnan())
        torch.testing.assert_close(found, expected, rtol=2.0**-18, atol=2.0**-18, equal_nan=True)


def test_wrong_bounds_give_nan_gradients() -> None:
    z, bounds = scores(7).fill_(NAN), torch.tensor([0, 5, 3, 7])
    of = segment_operations.SegmentVjp(z, z[:3], z, bounds, UNIT, z.dtype)
    for operation in (segment_operations.segment_softmax_vjp, segment_operations.segment_log_softmax_vjp):
        assert operation.first(of).isnan().all()
    assert (
        segment_operations.segment_logsumexp_vjp.first(segment_operations.SegmentLogSumExpVjp(z, z[:3], bounds))
        .isnan()
        .all()
    )


def records(z: torch.Tensor) -> dict[Any, Any]:
    """The arguments of each operation of gradients."""
    offsets, lse = torch.tensor([0, 2, 3]), torch.zeros(2, *z.shape[1:])
    of = segment_operations.SegmentVjp(z, lse, scores(*z.shape), offsets, UNIT, z.dtype)
    return {
        segment_operations.segment_softmax_vjp: of,
        segment_operations.segment_log_softmax_vjp: of,
        segment_operations.segment_logsumexp_vjp: segment_operations.SegmentLogSumExpVjp(z, lse, offsets),
    }


def test_the_operators_pass_opcheck() -> None:
    for operation, i in records(scores(3, 2).requires_grad_()).items():
        torch.library.opcheck(operation.torch.overload, operation.torch.flatten(i))


@pytest.mark.parametrize("function", [function for function, _ in PAIRS])
def test_second_derivatives_and_vmap(function: Any) -> None:
    # The spread is 1: with larger spreads, p is near 1, and its derivatives are small differences of larger numbers.
    z, offsets = scores(5) / 5.0, torch.tensor([0, 3, 5])

    def loss(z: torch.Tensor) -> torch.Tensor:
        return (function(z, offsets) ** 2).sum()

    def of(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        many = torch.stack([z, z.flip(0)])
        return torch.func.hessian(loss)(z), torch.func.vmap(torch.func.grad(loss))(many)

    found = of(z)
    with sa.using("native"):
        expected = of(z.double())
    for one, right in zip(found, expected, strict=True):
        scale = right.abs().max()
        assert ((one.double() - right).abs() <= 2.0**-18 * scale).all()


def test_the_definitions_serve_what_no_kernel_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    monkeypatch.setattr(triton_segments, "launch", lambda *_a, **_k: launched.append(1))
    assert sa.segment_softmax(scores(4).double(), torch.tensor([0, 4])).dtype == torch.float64
    assert sa.segment_logsumexp(scores(0), torch.tensor([0])).shape == (0,)
    for operation, i in records(scores(3, 2).double()).items():
        assert operation.first(i).shape == (3, 2)
    assert not launched
    forward = segment_operations.SegmentScores(scores(3, 2), torch.tensor([0, 2, 3]), UNIT, torch.float32)
    operations = (segment_operations.segment_softmax, segment_operations.segment_log_softmax,
                  segment_operations.segment_logsumexp)  # fmt: skip
    calls = dict.fromkeys(operations, forward) | records(scores(3, 2))
    for number, (operation, i) in enumerate(calls.items()):
        operation.first(i)
        assert len(launched) == number + 1
