"""The core's matrix product is accurate, and a row has the same bits in every batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import softargmax as s
from softargmax.core import _native

SHAPES = ((1, 1, 1), (5, 33, 7), (130, 1030, 600), (97, 50, 1500), (97, 60, 900), (13, 2, 513), (3, 2, 0), (0, 3, 4))


def product(a: Any, b: Any, bias: Any = None) -> Any:
    out = np.full((a.shape[0], b.shape[1]), np.nan, np.float64 if np.float64 in (a.dtype, b.dtype) else np.float32)
    _native.product(a, b, out, bias)
    return out


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_against_float64(shape: tuple[int, int, int], dtype: str) -> None:
    m, n, k = shape
    rng = np.random.default_rng(k)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((n, k)).astype(dtype).T
    bias = rng.standard_normal(n).astype("float64" if dtype == "float64" else "float32")
    found = product(a, b, bias)
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble) + bias
    size = np.abs(a).astype(float) @ np.abs(b).astype(float) + np.abs(bias)
    unit = np.finfo(bias.dtype).eps / 2
    # The bound adds the rounding errors of chains of 512 terms and of the sum of the chains.
    assert (np.abs(found - exact) <= (min(k, 512) + k / 512 + 2) * unit * size).all()
    more = found.copy()
    _native.product(a, b, more, None, adds=True)
    assert np.allclose(more, 2 * exact - bias, rtol=1e-3, atol=1e-3 * (1 + k) ** 0.5)


def test_bits_of_a_row_do_not_depend_on_other_rows() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((230, 700)).astype("float32"), rng.standard_normal((700, 1100)).astype("float32")
    whole = product(a, b)
    for i, j in ((0, 1), (5, 6), (229, 230), (100, 113)):
        assert np.array_equal(product(a[i:j], b), whole[i:j])
        assert np.array_equal(product(a, b[:, i:j]), whole[:, i:j])
    assert np.array_equal(product(np.asfortranarray(a), np.asfortranarray(b)), whole)
    try:
        for threads in (1, 2, 3):
            s.set_num_threads(threads)
            assert np.array_equal(product(a, b), whole)
    finally:
        s.set_num_threads(0)


def test_more_rows_than_are_packed_at_once() -> None:
    """One piece packs at most 1024 rows at once."""
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2100, 600)).astype("float32"), rng.standard_normal((600, 70)).astype("float32")
    s.set_num_threads(1)
    try:
        whole = product(a, b)
        for i, j in ((0, 1100), (1000, 2100), (2099, 2100)):
            assert np.array_equal(product(a[i:j], b), whole[i:j])
    finally:
        s.set_num_threads(0)
    assert np.array_equal(product(a, b), whole)


@pytest.mark.parametrize("depth", [0, 511, 600, 1500])
def test_rows_that_are_not_packed_have_the_same_bits(depth: int) -> None:
    """With at most 64 columns, contiguous rows are read where they are. Rows with another stride are packed."""
    rng = np.random.default_rng(6)
    memory = rng.standard_normal((100, depth + 3)).astype("float32")
    memory[24:48] = 0
    a, b = memory[:, 1 : depth + 1], rng.standard_normal((depth, 64)).astype("float32")
    packed = product(np.asfortranarray(a), b)
    assert np.array_equal(product(a, b), packed)
    assert np.array_equal(product(a, np.asfortranarray(b[:, :33])), packed[:, :33])
    wider = product(a, np.concatenate([b, b], 1))
    assert np.array_equal(wider[:, :64], packed)
    for sparse in (False, True):
        added = np.ones_like(packed)
        _native.product(a, b, added, None, adds=True, sparse=sparse)
        again = np.ones_like(packed)
        _native.product(np.asfortranarray(a), b, again, None, adds=True)
        assert np.array_equal(added, again)


def test_large_products_are_written_past_the_caches() -> None:
    """The bits are those of rows that are computed alone, for aligned memory and memory that is not aligned."""
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((2061, 7)).astype("float32"), rng.standard_normal((7, 2080)).astype("float32")
    memory = np.empty(a.shape[0] * b.shape[1] + 16, np.float32)
    first = -memory.ctypes.data // 4 % 16
    for begin in (first, first + 1):
        out = memory[begin : begin + a.shape[0] * b.shape[1]].reshape(a.shape[0], -1)
        _native.product(a, b, out)
        for i in (0, 11, 1000, 2060):
            assert np.array_equal(out[i : i + 1], product(a[i : i + 1], b))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_few_rows_have_the_bits_of_many(dtype: str) -> None:
    """With few rows, the product reads the second matrix in place. With many, it copies this matrix into panels."""
    rng = np.random.default_rng(3)
    s.set_num_threads(1)  # with more threads, many rows would be computed as several pieces of few rows
    try:
        for depth, n in ((1, 1), (3, 40), (16, 31), (17, 33), (515, 70), (1030, 600), (1600, 50)):
            a, b = rng.standard_normal((60, depth)).astype(dtype), rng.standard_normal((depth, n)).astype(dtype)
            bias, before = rng.standard_normal(n).astype(dtype), rng.standard_normal((60, n)).astype(dtype)
            with_bias, added = product(a, b, bias), before.copy()
            _native.product(a, b, added, adds=True)
            for m in (1, 2, 4, 5, 8, 9, 12, 13, 24, 25):
                for order in (b, np.asfortranarray(b), np.repeat(b, 2, 1)[:, ::2], b[::-1].copy()[::-1]):
                    assert np.array_equal(product(a[:m], order, bias), with_bias[:m])
                    found = before[:m].copy()
                    _native.product(a[:m], order, found, adds=True)
                    assert np.array_equal(found, added[:m])
                    _native.product(a[:m], order, found, sparse=True)
                    assert np.array_equal(found, product(a, b)[:m])
            row = np.broadcast_to(b[:, :1], b.shape)  # columns with stride 0
            assert np.array_equal(product(a[:3], row), product(a, row.copy())[:3])
            half = a[:3].astype("float16")
            assert np.array_equal(product(half, b), product(half.astype(dtype), b))
    finally:
        s.set_num_threads(0)


def test_losses_of_a_last_layer_have_the_same_bits_in_every_batch() -> None:
    rng = np.random.default_rng(2)
    h, w = rng.standard_normal((400, 64)).astype("float32"), rng.standard_normal((3000, 64)).astype("float32")
    y = rng.integers(0, 3000, 400)
    rows = s.linear_cross_entropy(h, w, y, reduction="none")
    for i, j in ((0, 1), (57, 58), (399, 400), (100, 107)):
        assert np.array_equal(s.linear_cross_entropy(h[i:j], w, y[i:j], reduction="none"), rows[i:j])
    order = rng.permutation(400)
    assert np.array_equal(s.linear_cross_entropy(h[order], w, y[order], reduction="none"), rows[order])


def test_wrong_shapes_are_refused() -> None:
    a, b, out = np.ones((2, 3)), np.ones((3, 4)), np.ones((2, 4))
    for wrong in ((a, b.T, out), (a, b, out.T), (a, b, out[:, :3]), (a[0], b, out), (a, b, out, np.ones(3))):
        with pytest.raises(ValueError, match=r"a, b, out|bias"):
            _native.product(*wrong)
    with pytest.raises(ValueError, match="bias"):
        _native.product(a, b, out, np.ones(4), adds=True)
    with pytest.raises(TypeError, match="out"):
        _native.product(a, b, out.astype("float32"))


def test_tiles_of_zeros_change_no_bit() -> None:
    rng = np.random.default_rng(1)
    for m, k, n in ((60, 1100, 70), (13, 30, 33), (130, 512, 40), (60, 1000, 40)):
        a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        a[12:36] = 0
        a[:, 512:] *= rng.random((m, 1)) < 0.1
        start = rng.standard_normal((m, n)).astype(np.float32)
        for adds in (False, True):
            plain, sparse = start.copy(), start.copy()
            _native.product(a, b, plain, None, adds)
            _native.product(a, b, sparse, None, adds, sparse=True)
            assert plain.tobytes() == sparse.tobytes()


def test_tiles_of_zeros_leave_no_negative_zero() -> None:
    """The first 512 products underflow from below. A tile of zeros, which may be skipped, would turn -0 into +0."""
    b = np.full((1024, 40), 1e-30, np.float32)
    for m in (1, 30):
        a = np.zeros((m, 1024), np.float32)
        a[:, :512] = -1e-30
        for bias in (None, np.full(40, -0.0, np.float32)):
            for sparse in (False, True):
                found = np.empty((m, 40), np.float32)
                _native.product(a, b, found, bias, sparse=sparse)
                assert not np.signbit(found).any()


@pytest.mark.parametrize(
    "x",
    [np.zeros((2, 2), object), np.zeros((2, 2), ">f4"), [[1.0]], 3, (), (np.zeros((2, 2), np.uint16),)],
    ids=["object", "other byte order", "list", "number", "empty tuple", "tuple of bits"],
)
def test_arrays_that_kernels_cannot_read_are_refused(x: Any) -> None:
    with pytest.raises(
        TypeError, match=r"expected a NumPy array of a supported dtype|expected an address, a type, a shape"
    ):
        _native.finite(x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_finite(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = np.random.default_rng(2).standard_normal((40, 1000)).astype(kind)

    finite = _native.finite
    x[3, 4] = ml_dtypes.finfo(kind).max
    assert finite(x)
    assert finite(x.T)
    assert finite(x[:0])
    for value in (np.inf, -np.inf, np.nan):
        x[17, 999] = value
        assert not finite(x)
        assert not finite(x.T)
        assert not finite(x[:, ::3])
        assert finite(x[:, ::2])
