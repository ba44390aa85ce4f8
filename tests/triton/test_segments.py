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


@pytest.mark.parametrize("function", [function for function, _ in PAIRS])
def test_derivatives(function: Any) -> None:
    ours, theirs = scores(865, 2).requires_grad_(), scores(865, 2).double().requires_grad_()
    found = function(ours, OFFSETS)
    g = scores(*found.shape)
    (slope,) = torch.autograd.grad(found, ours, g)
    with sa.using("native"):
        (expected,) = torch.autograd.grad(function(theirs, OFFSETS), theirs, g.double())
        p = sa.segment_softmax(theirs.detach(), OFFSETS)
    size = g.double().abs()
    terms = {
        sa.segment_softmax: lambda: p * (size + totals(p * size)),
        sa.segment_log_softmax: lambda: size + p * totals(size),
        sa.segment_logsumexp: lambda: p * size[torch.repeat_interleave(OFFSETS.diff())],
    }
    # p, and the sum over a segment, have errors of some units of float32.
    assert ((slope.double() - expected).abs() <= 8 * 2.0**-24 * terms[function]() + 2.0**-149).all()


def test_the_definitions_serve_what_no_kernel_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    monkeypatch.setattr(triton_segments, "launch", lambda *_a, **_k: launched.append(1))
    assert sa.segment_softmax(scores(4).double(), torch.tensor([0, 4])).dtype == torch.float64
    assert sa.segment_logsumexp(scores(0), torch.tensor([0])).shape == (0,)
    assert not launched
    sa.segment_softmax(scores(4), torch.tensor([0, 4]))
    assert launched
