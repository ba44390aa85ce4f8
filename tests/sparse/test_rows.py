"""Rows of every length, layout and dtype: long rows, columns, half precision, axes, empty shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.oracle.backends import Backend
from tests.oracle.truth import ulp_error
from tests.sparse.truth import wide

import softargmax as s

UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}
Z = np.random.default_rng(5).standard_normal((3, 4, 5)) * 2
PER_ROW = np.array([1.0, 1 + 1e-12, 1 + 1e-6, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 5.0])


def off(p: np.ndarray, true: np.ndarray, sum_error: float) -> float:
    """Return the largest error in ulp over all p >= 1e-30.

    sum_error * 2^-53 is first subtracted from each error, because an error of the sum of p may add this much.
    """
    large = true >= 1e-30
    error = np.abs(p.astype(np.longdouble) - true)[large]
    unit = np.spacing(true[large].astype(p.dtype)).astype(np.float64)
    return float(((error - sum_error * 2.0**-53) / unit).max())


@pytest.mark.no_sanitize  # tests of shorter rows make the same kinds of memory accesses
@pytest.mark.parametrize("alpha", [1.0001, 1.25, 1.5, 2.0, 2.5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("k", [1000, 4097, 1_000_000])
def test_long_rows(k: int, dtype: str, alpha: float) -> None:
    """The error of p does not grow with the number K of scores, because sums are compensated."""
    rng = np.random.default_rng(k)
    for spread in (1.0, 1e4) if k > 10_000 else (0.1, 1.0, 10.0, 1e4):
        z = (rng.standard_normal(k) * spread).astype(dtype)
        p, true = s.entmax(z, alpha), wide(z[None], alpha)[0]
        assert ((p > 0) == (true > 0))[(true >= np.finfo(dtype).tiny) | (true == 0)].all()
        total = math.fsum(p.astype(np.float64))
        slack = UNIT[dtype] * float(p.astype(np.float64).sum()) if dtype == "float32" else 2.0**-52
        assert abs(total - 1) <= slack
        if dtype == "float32" and alpha <= 2:
            assert off(p, true, 0.0) <= 4
        elif alpha <= 2:
            assert off(p, true, 4.0) <= 4


@pytest.mark.no_sanitize  # tests of shorter rows make the same kinds of memory accesses
def test_all_equal_and_heavy_tails() -> None:
    for k in (16, 4096, 1_000_000):
        for alpha in (1.1, 1.5, 2.0, 3.0):
            for dtype in ("float32", "float64"):
                assert ulp_error(s.entmax(np.full(k, -7.0, dtype), alpha), np.full(k, 1 / k)).max() <= 1
    z = np.random.default_rng(1).standard_cauchy(1_000_000).astype(np.float32)
    for alpha in (1.25, 1.5, 2.0):
        assert off(s.entmax(z, alpha), wide(z[None], alpha)[0], 0.0) <= 1


@pytest.mark.parametrize("alpha", [1.0001, 1.5, 1.75, 2.0])
def test_rows_that_are_read_again(alpha: float) -> None:
    """p is accurate for rows with more than 2^20 candidates, which the kernel reads again because its list is full.

    The test uses equal scores, many ties, one large score, and strided scores.
    """
    k = (1 << 20) + 4099
    assert ulp_error(s.entmax(np.zeros(k, np.float32), alpha), np.full(k, 1 / k)).max() <= 1
    assert s.threshold(np.zeros(k, np.float32), alpha).support_size == k
    z = np.random.default_rng(2).integers(0, 9, k).astype(np.float32) * np.float32(1e-6)
    assert off(s.entmax(z, alpha), repeated(z, alpha), 0.0) <= 1
    z[5] = 3.0
    one = s.entmax(z, alpha)
    assert off(one, repeated(z, alpha), 0.0) <= 1
    strided = np.zeros((k, 2), np.float32)
    strided[:, 0] = z
    assert (s.entmax(strided, alpha, axis=0)[:, 0] == one).all()


def repeated(z: np.ndarray, alpha: float) -> np.ndarray:
    """Return p of a row with few different values."""
    values, counts = np.unique(z, return_counts=True)
    return weighted(values.astype(np.longdouble), counts, alpha)[np.searchsorted(values, z)]


def weighted(values: np.ndarray, counts: np.ndarray, alpha: float) -> np.ndarray:
    """Return p of each value of a row in which value i occurs counts[i] times, by bisection for tau."""
    a, d = np.longdouble(alpha) - 1, values - values.max()
    low, high = np.longdouble(0), np.log(np.longdouble(counts.sum())) + 1

    def p(lam: Any) -> np.ndarray:
        inside = 1 + a * (d - lam) > 0
        return np.where(inside, np.exp(np.log1p(np.where(inside, a * (d - lam), 0)) / a), 0)

    for _ in range(120):
        middle = (low + high) / 2
        low, high = (middle, high) if (p(middle) * counts).sum() > 1 else (low, middle)
    return p(low)


@pytest.mark.parametrize("rows", [1, 17, 128, 129, 300])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_columns_are_rows(rows: int, dtype: str) -> None:
    """A column has the result of a row with the same scores and order.

    The kernel reads 128 columns at a time. Each column has its own order.
    """
    z = (np.random.default_rng(rows).standard_normal((70, rows)) * 2).astype(dtype)
    alpha = np.resize(PER_ROW, rows)
    found = s.entmax(z, alpha, axis=0)
    tau, support = s.threshold(z, alpha, axis=0)
    for i in {0, rows // 2, rows - 1}:
        column = np.array([alpha[i]])
        assert (found[:, i] == s.entmax(z[:, i].copy(), column)).all()
        alone = s.threshold(z[:, i].copy(), column)
        assert (tau[i], support[i]) == alone
        assert support[i] == (s.entmax(z[:, i].astype(np.float64), column) > 0).sum()


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0, 3.0])
def test_halves_are_the_rounded_float32(quick: Backend, alpha: float) -> None:
    for dtype in [dtype for dtype in quick.dtypes if "16" in dtype]:
        z = quick.array(Z, dtype)
        once = quick.array(quick.back(s.entmax(quick.array(quick.back(z), "float32"), alpha)), dtype)
        assert (quick.back(s.entmax(z, alpha)) == quick.back(once)).all()
        assert str(s.entmax(z, alpha).dtype).endswith(dtype)
        found = s.threshold(z, alpha)
        assert str(found.tau.dtype).endswith("float32")
        assert str(found.support_size.dtype).endswith("int64")


@pytest.mark.parametrize("axis", [0, 1, 2, -2, (0, 1), (2, 0), (1, 2), None, ()])
def test_axes(quick: Backend, axis: Any) -> None:
    axes = (
        tuple(range(3))
        if axis is None
        else tuple(sorted(a % 3 for a in (axis if isinstance(axis, tuple) else (axis,))))
    )
    kept = tuple(i for i in range(3) if i not in axes)
    flat = np.transpose(Z, (*kept, *axes)).reshape(*(Z.shape[i] for i in kept), -1)
    for alpha in (1.0, 1.25, 1.5, 2.0):
        p, alone = (s.entmax(quick.array(z), alpha, axis=a) for z, a in ((Z, axis), (flat, -1)))
        back = np.transpose(quick.back(p), (*kept, *axes)).reshape(flat.shape)
        assert (back == quick.back(alone)).all()
        found, wanted = s.threshold(quick.array(Z), alpha, axis=axis), s.threshold(quick.array(flat), alpha)
        assert quick.back(found.tau).shape == tuple(Z.shape[i] for i in kept)
        assert (quick.back(found.tau) == quick.back(wanted.tau)).all()
        assert (quick.back(found.support_size) == quick.back(wanted.support_size)).all()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (2, 0, 3), (0, 0), (1,), (1, 1, 1)])
def test_small_and_empty_shapes(quick: Backend, shape: tuple[int, ...]) -> None:
    z = quick.array(np.zeros(shape))
    for alpha in (1.0, 1.3, 1.5, 2.0, 3.0):
        assert s.entmax(z, alpha).shape == shape
        assert (quick.back(s.entmax(z, alpha)) == 1).all()
        for axis in (-1, None):
            found = s.threshold(z, alpha, axis=axis)
            rows = shape[:-1] if axis == -1 else ()
            assert tuple(found.tau.shape) == tuple(found.support_size.shape) == rows
            empty = math.prod(shape if axis is None else shape[-1:]) == 0
            assert (quick.back(found.support_size) == (0 if empty else 1)).all()
            assert (quick.back(found.tau) == (-math.inf if empty else -1.0)).all()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64"])
def test_integers_become_the_default_float(quick: Backend, dtype: str) -> None:
    result = s.sparsemax(quick.array([[0, 1, 1], [1, 0, 1]], dtype))
    assert str(result.dtype).endswith("float64" if quick.library in ("numpy", "array_api_strict") else "float32")
    assert quick.back(result).tolist() == [[0, 0.5, 0.5], [0.5, 0, 0.5]]


@pytest.mark.parametrize("shape", [(4, 1), (4, 5), (1, 5), (5,), (1,), ()])
def test_alpha_per_row(quick: Backend, shape: tuple[int, ...]) -> None:
    """alpha may have any shape that broadcasts with the rows. The reduced axis may be absent or have size 1."""
    alpha = np.resize(PER_ROW[3:], shape)
    z = np.moveaxis(np.stack([Z[0], Z[1], Z[2]], -1), -1, 0).transpose(1, 2, 0)  # rows of 3 along the last axis
    found = quick.back(s.entmax(quick.array(z), quick.array(alpha)))
    tau = quick.back(s.threshold(quick.array(z), quick.array(alpha)).tau)
    each = np.broadcast_to(alpha, (4, 5))
    for i in np.ndindex(4, 5):
        alone = quick.back(s.entmax(quick.array(z[i]), float(each[i])))
        assert found[i] == pytest.approx(alone, rel=1e-15 if quick.implementation == "native" else 1e-13)
        assert tau[i] == pytest.approx(float(s.threshold(quick.array(z[i]), float(each[i])).tau), rel=1e-14, abs=1e-14)


def test_every_option_changes_the_result(quick: Backend) -> None:
    z, mask = quick.array(Z), quick.array(np.arange(5) != 2)
    for function in (s.sparsemax, s.entmax, lambda z, **o: s.threshold(z, **o).tau):
        plain = quick.back(function(z))
        for options in ({"axis": 1}, {"axis": None}, {"where": mask}):
            changed = quick.back(function(z, **options))
            assert changed.shape != plain.shape or not np.allclose(changed, plain)
    for alpha in (1.0, 1.25, 2.0):
        assert not np.allclose(quick.back(s.entmax(z, alpha)), quick.back(s.entmax(z)))


@pytest.mark.parametrize("k", [1, 5, 16, 33, 64])
def test_short_rows_do_not_depend_on_other_lanes(k: int) -> None:
    """A short row has the same bits alone and next to rows of other orders or with NaN. Its p is accurate."""
    rng = np.random.default_rng(k)
    z = (rng.standard_normal((90, k)) * rng.choice([0.1, 1.0, 30.0, 1e6], (90, 1))).astype(np.float32)
    z[3], z[17, 0], z[18, -1], z[40, ::2] = -np.inf, np.nan, np.inf, -np.inf
    orders = rng.choice(PER_ROW, (90, 1))
    p, found = s.entmax(z, orders), s.threshold(z, orders)
    assert (s.entmax(np.asfortranarray(z), orders).tobytes("C"), s.entmax(z[::-1], orders[::-1])[::-1].tobytes()) == (
        p.tobytes(),
    ) * 2
    for row, order, whole, size in zip(z, orders, p, found.support_size, strict=True):
        assert s.entmax(row, order).tobytes() == whole.tobytes()
        if size > 0 and np.isfinite(row.max()):
            true = wide(row[None], float(order[0]))[0]
            assert ((whole > 0) == (true > 0))[(true >= 2.0**-126) | (true == 0)].all()
            if order <= 2:
                assert off(whole, true, 0.0) <= 1
