"""Kernels that read single rows (vectors) of a table: values, bits, order of indices, errors for wrong arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.native import vectors
from tests.native.operations import same_bits
from tests.native.vectors import problem

import softargmax
from softargmax.core import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTHS = (0, 1, 2, 15, 16, 17, 63, 64, 65, 100, 128, 256, 257, 300)
PAIRS = [5, 0, 1, 2, 30, 0, 9]
DTYPES = [("float32", w) for w in ("float16", "float32", "float64")] + [("float64", w) for w in ("float16", "float64")]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    yield
    softargmax.set_num_threads(0)


def bound(dtype: str, width: int, size: Any = 1.0) -> Any:
    """Return the error bound: 2 eps for adding the partial sums, and (width / 64) eps for adding the terms of each.

    In float32 there are 64 partial sums of width / 64 terms, so the bound allows eps per term. In float64 there are 32
    partial sums of width / 32 terms, so the bound allows eps / 2 per term.
    """
    return np.finfo(dtype).eps * (2 + width / 64) * size


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("dtype", "weights"), DTYPES)
def test_scores(dtype: str, weights: str, width: int) -> None:
    p = problem(PAIRS, width, 12, dtype, weights)
    size = (np.abs(p.h[p.rows].astype(float) * p.weight[p.nodes])).sum(1) + np.abs(p.bias[p.nodes])
    assert (np.abs(vectors.dots(p) - vectors.true_dots(p)) <= bound(dtype, width, size)).all()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("dtype", "weights"), DTYPES)
def test_sums(dtype: str, weights: str, width: int) -> None:
    p = problem([*PAIRS, 1700], width, 12, dtype, weights)
    f, w, h = (x.astype(np.float64) for x in (p.factors, p.weight, p.h))
    each, size, ones = np.zeros(h.shape), np.zeros(h.shape), np.zeros((12, width + 1))
    np.add.at(each, p.rows, f[:, None] * w[p.nodes])
    np.add.at(size, p.rows, np.abs(f[:, None] * w[p.nodes]))
    assert (np.abs(vectors.row_sums(p) - each) <= bound(dtype, 600, size)).all()
    np.add.at(ones, p.nodes, f[:, None] * np.concatenate([h[p.rows], np.ones((len(f), 1))], axis=1))
    sums, totals = vectors.node_sums(p)
    used = np.unique(p.nodes)
    np.testing.assert_allclose(
        np.concatenate([sums, totals[:, None]], axis=1), ones[used], atol=400 * np.finfo(dtype).eps
    )


def test_sums_of_thousands_of_terms_have_few_roundings() -> None:
    """A sum of 2^18 terms has a relative error below 1e-5, because terms are added in chunks of 512.

    If the 2^18 terms were added one after another, the error would be above 1e-4.
    """
    n = 1 << 18
    table, factors = np.full((1, 3), 0.1, np.float32), np.ones(n, np.float32)
    out, totals = np.empty((1, 3), np.float32), np.empty(1, np.float32)
    index, starts = np.zeros(n, np.int64), np.array([0, n])
    _native.sums(sums=out, table=table, index=index, factors=factors, starts=starts, order=None, totals=totals)
    assert np.abs(out / (n * float(table[0, 0])) - 1).max() < 1e-5
    assert abs(np.cumsum(np.full(n, 0.1, np.float32))[-1] / (n * 0.1) - 1) > 1e-4
    assert totals[0] == n


@pytest.mark.parametrize("width", [0, 1, 16, 65, 300])
@pytest.mark.parametrize(("dtype", "weights"), DTYPES)
def test_binary_logistic_losses(dtype: str, weights: str, width: int) -> None:
    p = problem([*PAIRS, 800], width, 12, dtype, weights)
    for found, true in zip(vectors.logistic_losses(p), vectors.true_logistic_losses(p), strict=True):
        np.testing.assert_allclose(found, true, rtol=60 * np.finfo(dtype).eps, atol=300 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_binary_logistic_loss_keeps_its_digits(dtype: str) -> None:
    """Loss and slope have small relative errors at any score. Infinities and NaN affect only their own row."""
    end = 80.0 if dtype == "float32" else 700.0
    x = np.concatenate([np.linspace(-end, end, 4001), [1e30, -1e30, np.inf, -np.inf, np.nan]]).astype(dtype)
    n = len(x)
    p = problem([1] * n, 0, 1, dtype)._replace(signs=np.ones(n, np.int8), shift=x, bias=np.zeros(1, dtype))
    loss, slopes, _ = vectors.logistic_losses(p)
    sure = slice(0, 4001)
    e, eps = np.exp(-np.abs(x[sure].astype(np.float64))), np.finfo(dtype).eps
    true_loss, true_slopes = np.maximum(-x[sure], 0) + np.log1p(e), -np.where(x[sure] < 0, 1, e) / (1 + e)
    np.testing.assert_allclose(loss[sure], true_loss, rtol=3 * eps)
    np.testing.assert_allclose(slopes[sure], true_slopes, rtol=4 * eps)
    assert loss[-5] == slopes[-5] == loss[-3] == slopes[-3] == 0
    assert loss[-4] == np.float64(x[-4]) * -1
    assert loss[-2] == np.inf
    assert slopes[-2] == -1
    assert np.isnan([loss[-1], slopes[-1]]).all()


def test_a_sign_of_zero_adds_no_loss() -> None:
    p = problem([4], 3, 5, "float32")
    p = p._replace(signs=np.array([1, 0, -1, 0], np.int8), shift=np.array([0, np.nan, 0, np.inf], np.float32))
    loss, slopes, dh = vectors.logistic_losses(p)
    assert np.isfinite([*loss, *slopes, *dh[0]]).all()
    assert (slopes != 0).tolist() == [True, False, True, False]


# --- bits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pairs_do_not_affect_each_other(dtype: str) -> None:
    """A row gives the same bits alone and in a batch. The bits of a node's gradient do not depend on other nodes."""
    p = problem([7, 0, 70, 900, 3], 100, 20, dtype)
    x, dh, (loss, slopes, step) = vectors.dots(p), vectors.row_sums(p), vectors.logistic_losses(p)
    for row in range(5):
        part = slice(p.starts[row], p.starts[row + 1])
        alone = p._replace(
            h=p.h[row : row + 1],
            starts=p.starts[row : row + 2] - p.starts[row],
            **{name: getattr(p, name)[part] for name in ("nodes", "signs", "shift", "factors")},
        )
        assert same_bits(vectors.dots(alone), x[part])
        assert same_bits(vectors.row_sums(alone)[0], dh[row])
        for found, whole in zip(
            vectors.logistic_losses(alone), (loss[row : row + 1], slopes[part], step[row : row + 1]), strict=True
        ):
            assert same_bits(found, whole)
    sums, totals = vectors.node_sums(p)
    for i, node in enumerate(np.unique(p.nodes)):
        here = p.nodes == node
        out, total = np.empty((1, 100), dtype), np.empty(1, dtype)
        arguments = {"index": p.rows[here], "factors": p.factors[here], "starts": np.array([0, here.sum()])}
        _native.sums(sums=out, table=p.h, order=None, totals=total, **arguments)
        assert same_bits(out[0], sums[i])
        assert same_bits(total[0], totals[i])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_threads(dtype: str) -> None:
    counts = np.random.default_rng(0).integers(0, 12, 900).tolist()
    p = problem([*counts, 3000], 100, 300, dtype)
    texts = [vectors.text(400, 64, 200, dtype, tree=tree, samples=5) for tree in (False, True)]

    def results() -> list[Any]:
        found = [vectors.dots(p), vectors.row_sums(p), *vectors.node_sums(p), *vectors.logistic_losses(p)]
        found += [np.asarray(x) for t in texts for x in vectors.descend(t, 0.1, 0.05, 64)]
        return [*found, vectors.alias_draws(70_003, 999), vectors.random_blocks(70_003)]

    softargmax.set_num_threads(1)
    one = results()
    for threads in (2, 5):
        softargmax.set_num_threads(threads)
        assert all(same_bits(a, b) for a, b in zip(results(), one, strict=True)), threads


def test_strides_of_tables() -> None:
    p = problem(PAIRS, 33, 12, "float32")
    wide = np.zeros((12, 80), np.float32)
    wide[:, 20:53] = p.weight
    apart = p._replace(weight=wide[:, 20:53], bias=np.repeat(p.bias, 3)[::3], h=np.repeat(p.h, 2, axis=0)[::2])
    assert same_bits(vectors.dots(apart), vectors.dots(p))
    assert same_bits(vectors.row_sums(apart), vectors.row_sums(p))
    assert all(same_bits(a, b) for a, b in zip(vectors.logistic_losses(apart), vectors.logistic_losses(p), strict=True))


# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 2047, 2048, 100_003, 1 << 22, (1 << 31) - 1])
@pytest.mark.parametrize("count", [0, 1, 2, 100, 5000])
def test_places_by_row(count: int, most: int) -> None:
    rng = np.random.default_rng([count, most])
    index = np.minimum((most * rng.random(count) ** 2).astype(np.int64), most)
    if count:
        index[-1] = most
    order, rows, starts = vectors.places(index)
    expected, first = np.unique(index, return_index=True)
    assert same_bits(order, np.argsort(index, kind="stable"))
    assert same_bits(rows, expected)
    assert starts.tolist() == [*np.searchsorted(np.sort(index), expected), count]
    assert (order[starts[:-1]] == first).all()


# --- descent ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("batch", [1, 7, 1000])
@pytest.mark.parametrize(("dtype", "near"), [("float32", 2e-5), ("float64", 1e-13)])
def test_steps(dtype: str, near: float, batch: int, tree: bool) -> None:
    for t in (vectors.text(50, 20, 15, dtype, tree=tree), vectors.text(3, 33, 500, dtype, tree=tree, samples=20)):
        for found, true in zip(
            vectors.descend(t, 0.3, 0.1, batch), vectors.true_descent(t, 0.3, 0.1, batch), strict=True
        ):
            np.testing.assert_allclose(found, true, rtol=near, atol=near)


def test_steps_without_pairs() -> None:
    for tree in (False, True):
        t = vectors.text(0, 5, 4, "float32", tree=tree)
        vectors_after, weight, loss = vectors.descend(t, 0.1, 0.1, 4)
        assert same_bits(vectors_after, t.vectors)
        assert same_bits(weight, t.weight)
        assert loss == 0


# --- wrong arguments --------------------------------------------------------------------------------------------------


@dataclass
class Wrong:
    error: type[Exception]
    change: dict[str, Any]


PROBLEM = problem([2, 3], 4, 6, "float32")
WRONG = [
    Wrong(IndexError, {"nodes": np.array([0, 1, 2, 6, 0])}),
    Wrong(IndexError, {"nodes": np.array([0, 1, -1, 5, 0])}),
    Wrong(ValueError, {"starts": np.array([0, 3, 2, 5])}),
    Wrong(ValueError, {"starts": np.array([0, 6, 5])}),
    Wrong(ValueError, {"starts": np.array([1, 3, 5])}),
    Wrong(ValueError, {"starts": np.array([0, 5])}),
    Wrong(ValueError, {"signs": np.ones(4, np.int8)}),
    Wrong(ValueError, {"bias": np.zeros(5, np.float32)}),
    Wrong(ValueError, {"weight": np.zeros((6, 3), np.float32)}),
    Wrong(ValueError, {"weight": np.zeros((6, 8), np.float32)[:, ::2]}),
    Wrong(TypeError, {"weight": np.zeros((6, 4), np.int64)}),
    Wrong(TypeError, {"shift": np.zeros(5)}),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: f"{next(iter(w.change))}")
def test_wrong_pairs_never_reach_the_kernel(wrong: Wrong) -> None:
    p = PROBLEM._replace(**wrong.change)
    arguments = {name: getattr(p, name) for name in ("h", "weight", "bias", "nodes", "starts", "signs", "shift")}
    loss, slopes, dh = (np.full(shape, 7, np.float32) for shape in (2, 5, (2, 4)))
    with pytest.raises(wrong.error):
        _native.coin_losses(loss=loss, slopes=slopes, dh=dh, **arguments)
    assert (np.concatenate([loss, slopes, dh.reshape(-1)]) == 7).all()


@pytest.mark.parametrize(
    ("error", "name", "change"),
    [
        (IndexError, "index", {"index": PROBLEM.nodes + 6}),
        (IndexError, "order", {"order": PROBLEM.nodes + 3}),
        (ValueError, "order", {"order": PROBLEM.nodes[:4]}),
        (ValueError, "starts", {"starts": PROBLEM.starts[::-1].copy()}),
        (ValueError, "starts", {"starts": np.array([0, 5])}),
        (ValueError, "totals", {"totals": np.zeros(3, np.float32)}),
        (TypeError, "factors", {"factors": np.zeros(5)}),
        (TypeError, "table", {"table": None}),
    ],
)
def test_wrong_sums_never_reach_the_kernel(error: type[Exception], name: str, change: dict[str, Any]) -> None:
    p, out = PROBLEM, np.full((2, 4), 7, np.float32)
    right = {"table": p.weight, "index": p.nodes, "factors": p.factors, "starts": p.starts, "order": None}
    with pytest.raises(error, match=name):
        _native.sums(sums=out, **{"totals": None, **right, **change})
    assert (out == 7).all()


def test_wrong_pairs_never_reach_the_scores() -> None:
    p, x = PROBLEM, np.full(5, 7, np.float32)
    arguments = {"h": p.h, "weight": p.weight, "bias": None, "nodes": p.nodes}
    with pytest.raises(IndexError, match="rows"):
        _native.pair_scores(rows=p.rows + 1, x=x, **arguments)
    with pytest.raises(ValueError, match="rows"):
        _native.pair_scores(rows=p.rows[:4], x=x, **arguments)
    assert (x == 7).all()
