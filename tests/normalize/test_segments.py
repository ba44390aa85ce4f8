"""Segments (rows of different lengths): the result of a segment is that of a call with its scores alone."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracle.backends import Backend
from tests.oracle.truth import ulp_error

import softargmax as s

INF, NAN = math.inf, math.nan
PAIRS = ((s.segment_softmax, s.softmax), (s.segment_log_softmax, s.log_softmax), (s.segment_logsumexp, s.logsumexp))


def pieces(offsets: Any) -> list[slice]:
    return [slice(int(a), int(b)) for a, b in pairwise(offsets)]


def compare(backend: Backend, z: np.ndarray, offsets: np.ndarray, **options: Any) -> None:
    # JAX would compile for every length (10 s in all). NumPy therefore computes the single rows, from the same float32
    # scores.
    array = (lambda x: x.astype(np.float32)) if backend.library == "jax" else backend.array
    for segmented, alone in PAIRS:
        found = backend.back(segmented(backend.array(z), backend.array(offsets, "int32"), **options))
        for i, piece in enumerate(pieces(offsets)):
            expected = backend.back(alone(array(z[piece]), axis=0, **options))
            got = found[i] if segmented is s.segment_logsumexp else found[piece]
            assert ulp_error(got, expected.astype(np.float64), at=np.abs(expected)).max(initial=0) <= 6


@pytest.mark.parametrize("trailing", [(), (3,), (2, 3)])
@pytest.mark.parametrize("offsets", [[0, 9], [0, 0, 9, 9], [0, 1, 1, 4, 9], [0, 2, 9, 9, 9]])
def test_segments_agree_with_rows(backend: Backend, offsets: list[int], trailing: tuple[int, ...]) -> None:
    if backend.library == "jax" and trailing:
        pytest.skip("JAX compiles every step again for every shape")
    z = np.random.default_rng(1).standard_normal((9, *trailing)) * 5
    compare(backend, z, np.array(offsets))
    compare(backend, z, np.array(offsets), temperature=-2.5)


def test_edges_stay_in_their_segment(backend: Backend) -> None:
    z = np.array([1.0, NAN, -INF, -INF, INF, 0.0, INF, 5.0, 5.0, -INF, 40.0, 0.0])
    offsets = np.array([0, 2, 4, 4, 7, 10, 12])
    with np.errstate(all="ignore"):
        compare(backend, z, offsets)
        compare(backend, z, offsets, temperature=0.0)
    lse = backend.back(s.segment_logsumexp(backend.array(z), backend.array(offsets, "int32")))
    assert np.array_equal(lse[:4], [NAN, -INF, -INF, INF], equal_nan=True)


@pytest.mark.parametrize("shape", [(0,), (0, 2), (3, 0)])
def test_empty_segments_and_axes_of_length_0(quick: Backend, shape: tuple[int, ...]) -> None:
    z = quick.array(np.zeros(shape))
    for offsets in ([0, shape[0]], [0, 0, shape[0]], [0] if shape[0] == 0 else [0, 3]):
        assert s.segment_softmax(z, quick.array(np.array(offsets))).shape == shape
        lse = s.segment_logsumexp(z, quick.array(np.array(offsets)))
        assert lse.shape == (len(offsets) - 1, *shape[1:])


def test_one_temperature_per_head(quick: Backend) -> None:
    z, t = np.random.default_rng(2).standard_normal((8, 3)), np.array([0.5, 2.0, INF])
    found = quick.back(s.segment_softmax(quick.array(z), quick.array(np.array([0, 3, 8])), temperature=quick.array(t)))
    for head in range(3):
        alone = s.segment_softmax(quick.array(z[:, head]), quick.array(np.array([0, 3, 8])), temperature=float(t[head]))
        assert found[:, head] == pytest.approx(quick.back(alone), rel=1e-15)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_any_integer_offsets(quick: Backend, dtype: str) -> None:
    z = quick.array(np.arange(6.0))
    wide = quick.back(s.segment_softmax(z, quick.array(np.array([0, 0, 2, 6]))))
    assert (quick.back(s.segment_softmax(z, quick.array([0, 0, 2, 6], dtype))) == wide).all()
    assert (quick.back(s.segment_softmax(z, [0, 0, 2, 6])) == wide).all()


def test_dtype_of_half_precision_results(quick: Backend) -> None:
    for dtype in quick.dtypes:
        z, offsets = quick.array(np.arange(6.0), dtype), [0, 2, 6]
        assert str(s.segment_softmax(z, offsets).dtype).endswith(dtype)
        assert str(s.segment_logsumexp(z, offsets).dtype).endswith("float32" if "16" in dtype else dtype)


@given(st.lists(st.integers(0, 40), max_size=12), st.sampled_from(["native", "reference"]))
def test_segments_of_any_lengths(lengths: list[int], name: str) -> None:
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    z = np.random.default_rng(len(lengths)).standard_normal(offsets[-1]) * 10
    with s.using(name):
        p, lse = s.segment_softmax(z, offsets), s.segment_logsumexp(z, offsets)
        for i, piece in enumerate(pieces(offsets)):
            assert ulp_error(p[piece], s.softmax(z[piece])).max(initial=0) <= 6
            assert lse[i] == pytest.approx(s.logsumexp(z[piece]), rel=1e-15)


def test_temperatures_that_fit_no_segments_are_refused(quick: Backend) -> None:
    z = quick.array(np.zeros((5, 3)))
    for function, _ in PAIRS:
        for shape in ((2,), (5,), (5, 1), (5, 3)):
            says = rf"^temperature: expected .* with the segments, \(2, 3\), got shape {re.escape(str(shape))}$"
            with pytest.raises(ValueError, match=says):
                function(z, [0, 2, 5], temperature=quick.array(np.ones(shape)))


LIMITS = [0.0, -0.0, 0.5, 1.0, -2.0, INF, -INF]
IDS = np.random.default_rng(3).integers(0, 7, 60)
IDS[IDS == 4] = 5  # segment 4 has no scores


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("trailing", [(), (3,)])
def test_segments_by_ids(quick: Backend, trailing: tuple[int, ...], masked: bool) -> None:
    """Each segment has the result of a call with its scores, its temperature and its mask, for any order of `index`."""
    rng = np.random.default_rng(4)
    z = rng.standard_normal((60, *trailing)) * 5
    z[[3, 8, 9]] = [[INF], [-INF], [NAN]] if trailing else [INF, -INF, NAN]
    where = rng.random(z.shape) < 0.7
    where[IDS == 2] = False
    options = {"where": quick.array(where, "bool")} if masked else {}
    t = quick.array(np.array(LIMITS).reshape(7, *(1 for _ in trailing)))
    for by_id, alone in PAIRS:
        found = quick.back(by_id(quick.array(z), index=quick.array(IDS, "int32"), temperature=t, **options))
        assert found.shape == ((7, *trailing) if by_id is s.segment_logsumexp else z.shape)
        for i, one in enumerate(LIMITS):
            rows = {"where": where[i == IDS]} if masked else {}
            expected = alone(z[i == IDS], axis=0, temperature=one, **rows)
            got = found[i] if by_id is s.segment_logsumexp else found[i == IDS]
            assert ulp_error(got, expected, at=np.abs(expected)).max(initial=0) <= 6, (by_id, one)


def test_ids_agree_with_offsets_of_sorted_scores(backend: Backend) -> None:
    z = np.random.default_rng(5).standard_normal((60, 2))
    order = np.argsort(IDS, kind="stable")
    offsets = backend.array(np.searchsorted(IDS[order], np.arange(8)), "int32")
    for function, _ in PAIRS:
        expected = backend.back(function(backend.array(z[order]), offsets))
        found = backend.back(function(backend.array(z), index=backend.array(IDS, "int32")))
        in_order = backend.back(function(backend.array(z[order]), index=backend.array(IDS[order], "int32")))
        for got in (in_order, found if function is s.segment_logsumexp else found[order]):
            if backend.library == "jax":  # XLA adds in a different order for each shape
                np.testing.assert_allclose(got, expected, rtol=4 * np.finfo("f4").eps)
            else:
                assert (got == expected).all()
    more = function(backend.array(z), index=list(map(int, IDS)), num_segments=9)
    assert tuple(more.shape) == (9, 2)
    assert (backend.back(more)[7:] == -INF).all()


def test_gradients_by_ids() -> None:
    torch = pytest.importorskip("torch")
    ids, where = torch.tensor([2, 0, 1, 0, 2, 2]), torch.tensor([True, True, True, True, False, True])
    z = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    t = torch.tensor([[0.5], [-1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    for name in ("native", "reference"):
        for function, _ in PAIRS:

            def of(z: Any, t: Any, function: Any = function) -> Any:
                found = function(z, index=ids, temperature=t, where=where[:, None])
                return torch.where(torch.isinf(found), 0.0, found)

            with s.using(name):
                assert torch.autograd.gradcheck(of, (z, t))
                assert torch.autograd.gradgradcheck(of, (z, t))


@pytest.mark.slow
def test_ids_whose_values_cannot_be_read() -> None:
    jax = pytest.importorskip("jax")
    z = jax.numpy.asarray(np.random.default_rng(6).standard_normal(9).astype(np.float32))
    ids = np.array([2, 0, 1, 0, 2, 2, 1, 0, 1])
    traced = jax.jit(lambda z, ids: s.segment_softmax(z, index=ids, num_segments=3))
    # JAX compiles the sums of each traced function differently, so their rounding errors differ.
    np.testing.assert_allclose(traced(z, ids), s.segment_softmax(z, index=ids), rtol=4 * np.finfo("f4").eps)
    assert np.isnan(traced(z, ids - 1)).all()
    assert np.isnan(traced(z, ids + 1)).all()
    with pytest.raises(
        ValueError, match="num_segments: expected an integer, as the values of index cannot be read here, got None"
    ):
        jax.jit(lambda z, ids: s.segment_softmax(z, index=ids))(z, ids)


WRONG_IDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, TypeError, "offsets, index: expected exactly one of them, got none"),
    ({"offsets": [0, 4], "index": [0, 0, 1, 1]}, TypeError, "offsets, index: expected exactly one of them, got both"),
    ({"offsets": [0, 4], "num_segments": 1}, TypeError, "num_segments: expected None with offsets"),
    ({"index": [0, 1]}, ValueError, r"index: expected one id per entry of z's first axis, shape \(4,\), got \(2,\)"),
    (
        {"index": [[0, 1, 2, 3]]},
        ValueError,
        r"index: expected one id per entry of z's first axis, shape \(4,\), got \(1, 4\)",
    ),
    ({"index": [0.0, 1.0, 2.0, 3.0]}, TypeError, "index: expected an integer type, got dtype float64"),
    ({"index": [True, False, True, False]}, TypeError, "index: expected an integer type, got dtype bool"),
    ({"index": [0, -1, 2, 3]}, ValueError, "index: expected segment ids of at least 0, got -1"),
    (
        {"index": [0, 1, 2, 3], "num_segments": 3},
        ValueError,
        "index: expected segment ids below num_segments, 3, got 3",
    ),
    ({"index": [0, 1, 2, 3], "num_segments": -1}, ValueError, "num_segments: expected an integer, 0 or above, got -1"),
    ({"index": [0, 1, 2, 3], "num_segments": 4.0}, TypeError, "num_segments: expected an integer, got 4.0"),
    ({"index": [0, 1, 2, 3], "where": [1, 0, 1, 0]}, TypeError, "where: expected dtype bool, got int64"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG_IDS)
def test_wrong_ids(options: dict[str, Any], error: type[Exception], message: str) -> None:
    for function, _ in PAIRS:
        with pytest.raises(error, match=f"^{message}"):
            function(np.zeros(4), **options)


def test_ids_of_no_scores() -> None:
    assert s.segment_softmax(np.zeros((0, 2)), index=[]).shape == (0, 2)
    assert (s.segment_logsumexp(np.zeros((0, 2)), index=[], num_segments=3) == np.full((3, 2), -INF)).all()


@pytest.mark.parametrize("offsets", [[0, 2**63], [2**63, 4], [0, 2**63, 4], [0, 2**64 - 1]])
def test_offsets_beyond_int64(quick: Backend, offsets: list[int]) -> None:
    z = quick.array(np.zeros(4))
    huge = max(offsets)
    with pytest.raises(ValueError, match=rf"^offsets: expected numbers from 0 to the length of z, 4, got {huge}$"):
        s.segment_softmax(z, quick.array(np.array(offsets, np.uint64)))
    with pytest.raises(
        ValueError, match=r"^offsets: expected (bounds from 0 to 4, the length of z, got|non-decreasing numbers)"
    ):
        s.segment_softmax(z, offsets)
    with pytest.raises(ValueError, match=rf"^offsets: expected bounds from 0 to 4, .*, got 0 to {10**30}$"):
        s.segment_softmax(z, [0, 10**30])


def test_offsets_that_are_empty(backend: Backend) -> None:
    z = backend.array(np.zeros(4))
    for offsets in ([], (), range(0), backend.array(np.zeros(0, np.int32)), backend.array(np.zeros(0, np.float32))):
        with pytest.raises(
            ValueError,
            match=r"^offsets: expected shape \(S \+ 1,\) for S segments "
            r"\(for no segments the array \[0\]\), got \(0,\)",
        ):
            s.segment_softmax(z, offsets)
