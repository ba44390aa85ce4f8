"""The values of log_matmul: errors in ulp, identities, edges, masks, and bits that depend on no other row."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tests.oracle.truth import ulp_error
from tests.structure.truth import errors

import softargmax as s

DTYPES = ("float32", "float64")
BOUND = 4.0


def draw(*shape: int, seed: int = 0, spread: float = 1.0, dtype: str = "float64") -> np.ndarray:
    return (np.random.default_rng((seed, *shape)).standard_normal(shape) * spread).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [1e-3, 1.0, 10.0, 40.0, 100.0, 1e3, 1e4])
@pytest.mark.parametrize("shape", [(6, 3, 7), (9, 70, 17), (4, 600, 9)], ids=str)
def test_error(shape: tuple[int, int, int], spread: float, dtype: str) -> None:
    a, b = draw(*shape[:2], spread=spread, dtype=dtype), draw(*shape[1:], seed=1, spread=spread, dtype=dtype)
    assert errors(s.log_matmul(a, b), a, b).max() <= BOUND


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gap", [20.0, 45.0, 60.0, 90.0, 500.0, 5000.0])
def test_error_where_the_largest_term_is_far_from_the_largest_entries(gap: float, dtype: str) -> None:
    """The row's and the column's largest entries meet a partner that is `gap` smaller, so the leading k is another."""
    a, b = draw(8, 30, dtype=dtype), draw(30, 8, seed=1, dtype=dtype)
    a[:, 3] += gap
    b[3] -= 2 * gap
    b[7] += gap
    a[:, 7] -= 2 * gap
    c = s.log_matmul(a, b)
    assert errors(c, a, b).max() <= BOUND
    if gap > 100:
        scaled = np.exp(a - a.max(1, keepdims=True)) @ np.exp(b - b.max(0))
        assert (scaled == 0).all()  # a product of shifted exponentials underflows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [16, 512, 4096])
def test_error_of_constant_matrices(length: int, dtype: str) -> None:
    """All terms are equal, so all rounding errors of their sum have the same sign."""
    a, b = np.full((2, length), -3.1, dtype), np.full((length, 3), 0.07, dtype)
    assert errors(s.log_matmul(a, b), a, b).max() <= BOUND


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_of_results_near_zero(dtype: str) -> None:
    """The largest term is 0, and the others are tiny: the result is about their sum."""
    a, b = np.full((5, 4), -50.0, dtype), draw(4, 6, dtype=dtype) - 1
    a[:, 0], b[0] = 3.0, -3.0
    assert errors(s.log_matmul(a, b), a, b).max() <= BOUND
    probabilities = np.random.default_rng(2).dirichlet([0.3] * 5, size=5)
    a = np.log(probabilities).astype(dtype)
    assert errors(s.log_matmul(a, a), a, a).max() <= BOUND


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.1, 3.7, -1.0, -0.03, 1e4])
def test_temperatures(temperature: float, dtype: str) -> None:
    a, b = draw(5, 40, spread=3, dtype=dtype), draw(40, 6, seed=1, spread=3, dtype=dtype)
    c = s.log_matmul(a, b, temperature=temperature)
    assert errors(c, a, b, 1 / temperature).max() <= BOUND
    assert_array_equal(s.log_matmul(a, b, base=2.0, temperature=math.log(2.0) * temperature).round(3), c.round(3))
    each = s.log_matmul(np.stack([a, a]), b, temperature=[temperature, 1.0])
    assert_array_equal(each[0], c)
    assert_array_equal(each[1], s.log_matmul(a, b))
    assert_array_equal(s.log_matmul(a, b, temperature=[[temperature], [1.0]])[:, 0], each)


@pytest.mark.parametrize("dtype", DTYPES)
def test_limits(dtype: str) -> None:
    a, b = draw(7, 30, dtype=dtype), draw(30, 9, seed=1, dtype=dtype)
    sums = a[:, :, None] + b
    assert_array_equal(s.log_matmul(a, b, temperature=0), sums.max(1))
    assert_array_equal(s.log_matmul(a, b, temperature=-0.0), sums.min(1))
    assert_array_equal(s.log_matmul(a, b, temperature=math.inf), np.full((7, 9), math.inf))
    assert_array_equal(s.log_matmul(a[:, :1], b[:1], temperature=math.inf), a[:, :1] + b[:1])
    assert ulp_error(s.log_matmul(a, b, temperature=1e-9), sums.max(1).astype(float)).max() <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_identities(dtype: str) -> None:
    a, b, c = (draw(20, 20, seed=seed, spread=4, dtype=dtype) for seed in range(3))
    identity = np.where(np.eye(20, dtype=bool), 0.0, -math.inf).astype(dtype)
    assert_array_equal(s.log_matmul(a, identity), a)
    assert_array_equal(s.log_matmul(identity, a), a)
    left, right = s.log_matmul(s.log_matmul(a, b), c), s.log_matmul(a, s.log_matmul(b, c))
    largest = np.abs(np.stack([left, right, np.full_like(left, 30)])).max(0)
    assert ulp_error(left, right, at=largest).max() <= 4 * BOUND
    assert_array_equal(s.log_matmul(a, b), s.log_matmul(b.T, a.T).T)


INF = math.inf
EDGES = [
    ([[-INF, -INF]], [[1.0], [2.0]], -INF),
    ([[0.0, 1.0]], [[-INF], [-INF]], -INF),
    ([[0.0, -INF]], [[2.0], [3.0]], 2.0),
    ([[0.0, -INF]], [[2.0], [math.nan]], 2.0),
    ([[0.0, -INF]], [[2.0], [INF]], 2.0),
    ([[0.0, INF]], [[2.0], [3.0]], INF),
    ([[0.0, INF]], [[2.0], [-INF]], 2.0),
    ([[0.0, INF]], [[math.nan], [3.0]], math.nan),
    ([[math.nan, 0.0]], [[2.0], [3.0]], math.nan),
    ([[0.0, 0.0]], [[0.0], [0.0]], math.log(2)),
    ([[-1e30, 5.0]], [[0.0], [0.0]], 5.0),
    ([[3e38, 0.0]], [[1.0], [0.0]], 3e38),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("edge", EDGES, ids=str)
def test_edges(edge: tuple[list, list, float], implementation: str, dtype: str) -> None:
    """Edge elements stand in a product with ordinary rows and columns, which do not change."""
    a = np.vstack([np.array(edge[0], dtype), draw(3, 2, dtype=dtype)])
    b = np.hstack([np.array(edge[1], dtype), draw(2, 4, seed=1, dtype=dtype)])
    with s.using(implementation):
        c = s.log_matmul(a, b)
        assert_array_equal(c[0, 0], np.array(edge[2], dtype))
        assert_array_equal(c[1:, 1:], s.log_matmul(a[1:], b[:, 1:]))
        assert_array_equal(s.log_matmul(-a, -b, temperature=-1.0), -c)


def test_no_terms_and_no_elements() -> None:
    assert_array_equal(s.log_matmul(np.zeros((2, 0)), np.zeros((0, 3))), np.full((2, 3), -INF))
    assert_array_equal(s.log_matmul(np.zeros((2, 0)), np.zeros((0, 3)), temperature=-1), np.full((2, 3), INF))
    assert s.log_matmul(np.zeros((0, 4)), np.zeros((4, 3))).shape == (0, 3)
    assert s.log_matmul(np.zeros((0, 2, 4)), np.zeros((4, 3))).shape == (0, 2, 3)
    assert s.log_matmul(np.zeros((3, 2, 0)), np.zeros((0, 5))).shape == (3, 2, 5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masks(dtype: str) -> None:
    rng = np.random.default_rng(3)
    a, b = draw(6, 9, dtype=dtype), draw(9, 5, seed=1, dtype=dtype)
    in_a, in_b = rng.random((6, 9)) < 0.6, rng.random((9, 5)) < 0.6
    masked = s.log_matmul(np.where(in_a, a, math.nan), np.where(in_b, b, INF), where_a=in_a, where_b=in_b)
    assert_array_equal(masked, s.log_matmul(np.where(in_a, a, -INF), np.where(in_b, b, -INF)))
    assert_array_equal(s.log_matmul(a, b[:, 0], where_b=in_b[:, 0]), s.log_matmul(a, b, where_b=in_b)[:, 0])
    assert_array_equal(s.log_matmul(a[0], b, where_a=in_a[0]), s.log_matmul(a, b, where_a=in_a)[0])
    low = s.log_matmul(a, b, where_a=in_a, where_b=in_b, temperature=[-1.0])
    assert_array_equal(low[0], -s.log_matmul(-a, -b, where_a=in_a, where_b=in_b))


def test_half_precision_is_float32_rounded_once() -> None:
    a, b = draw(5, 30, spread=3, dtype="float16"), draw(30, 4, seed=1, spread=3, dtype="float16")
    assert_array_equal(s.log_matmul(a, b), s.log_matmul(a.astype("f4"), b.astype("f4")).astype("f2"))
    assert s.log_matmul(a, b.astype("f8")).dtype == np.float64
    assert s.log_matmul([[1, 2]], [[1], [2]]).dtype == np.float64


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [1.0, 60.0])
def test_bits_depend_on_the_row_and_the_column_only(spread: float, dtype: str) -> None:
    a, b = draw(130, 70, spread=spread, dtype=dtype), draw(70, 90, seed=1, spread=spread, dtype=dtype)
    a[5], b[:, 7], a[6, 3] = -INF, math.nan, INF
    whole = s.log_matmul(a, b)
    for threads in (1, 2, 3):
        s.set_num_threads(threads)
        assert_array_equal(s.log_matmul(a, b), whole)
    s.set_num_threads(0)
    order, columns = np.random.default_rng(1).permutation(130), np.random.default_rng(2).permutation(90)
    assert_array_equal(s.log_matmul(a[order], b[:, columns]), whole[order][:, columns])
    for i, j in ((0, 0), (5, 7), (6, 89), (129, 33)):
        assert_array_equal(s.log_matmul(a[i : i + 1], b[:, j : j + 1]), whole[i : i + 1, j : j + 1])
        assert_array_equal(s.log_matmul(a[i], b[:, j]), whole[i, j])
    assert_array_equal(s.log_matmul(np.asfortranarray(a), b[:, ::-1])[:, ::-1], whole)


@pytest.mark.parametrize(("left", "right"), [((3,), (3,)), ((3,), ()), ((), (3,)), ((2, 1), (3,)), ((1,), (4, 1))])
def test_batches(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = draw(*left, 4, 5), draw(*right, 5, 6, seed=1)
    c = s.log_matmul(a, b)
    batch = np.broadcast_shapes(left, right)
    assert c.shape == (*batch, 4, 6)
    a, b = np.broadcast_to(a, (*batch, 4, 5)), np.broadcast_to(b, (*batch, 5, 6))
    for at in np.ndindex(batch):
        assert_array_equal(c[at], s.log_matmul(a[at], b[at]))
    assert s.log_matmul(a[(0,) * len(batch)][0], b).shape == (*batch, 6)
    assert s.log_matmul(a, b[(0,) * len(batch)][:, 0]).shape == (*batch, 4)


@pytest.mark.parametrize("temperature", [1.0, -2.0, 0.0, math.inf])
def test_the_definition_agrees(temperature: float) -> None:
    a, b = draw(2, 6, 9, spread=5), draw(2, 9, 5, seed=1, spread=5)
    a[0, 0, :4], b[1, 2] = -INF, INF
    with s.using("reference"):
        wanted = s.log_matmul(a, b, temperature=temperature)
    found = s.log_matmul(a, b, temperature=temperature)
    finite = np.isfinite(wanted)
    assert_array_equal(found[~finite], wanted[~finite])
    assert ulp_error(found[finite], wanted[finite], at=np.maximum(abs(wanted[finite]), 1)).max(initial=0) <= BOUND


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (((np.zeros((2, 3)), np.zeros((2, 3))), {}), ValueError, r"b: expected shape \(\.\.\., 3, J\)"),
        (((np.zeros((2, 2, 3)), np.zeros((5, 3, 1))), {}), ValueError, "b: .*batch"),
        (((1.0, np.zeros((2, 3))), {}), ValueError, "a: expected at least one axis, got a number"),
        (((np.zeros((2, 3)), np.zeros(3)), {"where_a": np.ones((2, 3))}), TypeError, "where_a: expected dtype bool"),
        (((np.zeros((2, 3)), np.zeros(3)), {"where_b": np.ones(4, bool)}), ValueError, "where_b: expected a shape"),
        (((np.zeros((2, 3)), np.zeros(3)), {"temperature": math.nan}), ValueError, "temperature: expected"),
        (((np.zeros((3, 2, 3)), np.zeros(3)), {"temperature": [1.0, 2.0]}), ValueError, "temperature: .*the batch"),
        (((np.zeros((2, 3)), np.zeros(3)), {"base": -1.0}), ValueError, "base: expected"),
        (((np.zeros((2, 3), complex), np.zeros(3)), {}), TypeError, "a: expected dtype"),
        (((np.zeros((2, 3)), np.zeros(3)), {"where": np.ones(3, bool)}), TypeError, "where"),
    ],
)
def test_errors(given: tuple, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        s.log_matmul(*given[0], **given[1])
