"""Algebra, edge rows and precision of `State`, on every array library that has a reference implementation."""

from __future__ import annotations

import math
import pickle
import re
import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracle.backends import BACKENDS, Backend
from tests.oracle.truth import family_truth, ulp_error

import softargmax
from softargmax import State
from softargmax.core.error_free import total, two_product, two_sum

pytestmark = pytest.mark.no_sanitize  # State runs no native code
LIBRARIES = [backend for backend in BACKENDS if backend.implementation == "reference"]
INF = math.inf
score = st.one_of(st.floats(-1e4, 1e4), st.sampled_from([-INF, 0.0, -0.0, 1e300, -1e300, 5e-324]))
rows = st.lists(score, max_size=12)


def state_of(scores: Any, values: Any = None) -> State:
    return State.empty((), width=None if values is None else len(values[0])).fold(np.array(scores, float), values)


def close(a: State, b: State) -> None:
    """Check that two states are equal up to the rounding errors of a few merges."""
    assert a.m == b.m
    assert a.r == b.r or abs(a.r - b.r) <= 16 * 2.0**-53 * (1 + a.r) or math.isnan(a.r + b.r)
    assert np.allclose(a.finalize().lse, b.finalize().lse, rtol=1e-15, atol=1e-15, equal_nan=True)


@given(rows, rows, rows)
def test_merge_is_associative(x: list[float], y: list[float], z: list[float]) -> None:
    a, b, c = map(state_of, (x, y, z))
    close(a.merge(b).merge(c), a.merge(b.merge(c)))
    close(a.merge(b, c), a.merge(b).merge(c))


@given(rows, rows)
def test_merge_is_commutative_and_agrees_with_fold(x: list[float], y: list[float]) -> None:
    a, b = state_of(x), state_of(y)
    close(a.merge(b), b.merge(a))
    close(a.merge(b), state_of(x + y))
    close(a.merge(b), a.fold(np.array(y, float)))


@given(rows)
def test_empty_is_the_identity(x: list[float]) -> None:
    a, empty = state_of(x), State.empty(())
    assert a.merge(empty)[:2] == a[:2]
    assert empty.merge(a)[:2] == a[:2]


@given(rows)
def test_l_is_zero_or_at_least_one(x: list[float]) -> None:
    assert state_of(x).l == 0 or state_of(x).l >= 1


@given(st.lists(st.integers(0, 7), max_size=4))
def test_any_split_gives_the_same_state(cuts: list[int]) -> None:
    scores = np.array([3.0, -INF, 0.5, 700.0, 699.0, -1e4, 2.0, 700.0])
    values = np.arange(16.0).reshape(8, 2)
    state = State.empty((), width=2)
    edges = [0, *sorted(cuts), 8]
    for a, b in pairwise(edges):
        state = state.fold(scores[a:b], values[a:b])
    whole = state_of(scores, values)
    close(state, whole)
    p = np.exp(scores - whole.finalize().lse)
    assert np.allclose(state.finalize().output, p @ values, rtol=1e-14)


@pytest.mark.parametrize("backend", LIBRARIES, ids=str)
def test_edges(backend: Backend) -> None:
    nan = math.nan
    for first, second, m, r, lse in (
        ([-INF], [-INF], -INF, -1.0, -INF),
        ([], [], -INF, -1.0, -INF),
        ([-INF], [2.0], 2.0, 0.0, 2.0),
        ([INF, 1.0], [INF, INF], INF, 2.0, INF),
        ([1e38], [INF], INF, 0.0, INF),
        ([1.0], [nan], nan, None, nan),
        ([nan], [INF], nan, None, nan),
        ([nan], [-INF], nan, None, nan),
        ([40.0], [0.0], 40.0, math.exp(-40), 40.0),
        ([0.0], [-40.0], 0.0, math.exp(-40), math.exp(-40)),
        ([5.0, 5.0], [5.0], 5.0, 2.0, 5 + math.log(3)),
    ):
        for one, two in ((first, second), (second, first)):
            a, b = (backend.array(np.array(x, float)) for x in (one, two))
            empty = State.empty((), like=backend.array([0.0]))
            state = empty.fold(a).merge(empty.fold(b))
            for found, expected in ((state.m, m), (state.r, r), (state.finalize().lse, lse)):
                if expected is not None:
                    assert ulp_error(backend.back(found), expected).max() <= 2, (one, two, state)


def test_the_tail_of_a_confident_row_survives_merges() -> None:
    tail = state_of([0.0, -1.0, -2.0])
    state = state_of([45.0]).merge(tail, State.empty(()), state_of([1.0]))
    truth = family_truth(np.array([[45.0, 0.0, -1.0, -2.0, 1.0]])).log_softmax
    own = type(truth)(truth.hi[0, 0], truth.lo[0, 0], truth.lift[0, 0])
    assert ulp_error(-np.log1p(state.r), *own) <= 2


@pytest.mark.parametrize("z", [[0.0, 40.0, 1.0], [0.0, 0.0, -60.0, 0.0, 80.0], [-90.0, 0.0]])
def test_the_tail_of_a_confident_row_survives_a_fold(z: list[float]) -> None:
    tail = math.fsum(sorted(math.exp(x - max(z)) for x in z)[:-1])
    assert abs(state_of(z).r - tail) <= 2 * math.ulp(tail)


def test_rows_are_independent_along_any_axis() -> None:
    scores = np.arange(24.0).reshape(2, 3, 4)
    state = State.empty((2, 4)).fold(scores, axis=1)
    for i in range(2):
        for j in range(4):
            assert state.finalize().lse[i, j] == state_of(scores[i, :, j]).finalize().lse


def test_values_with_weight_zero_are_not_read() -> None:
    state = state_of([0.0, -INF, 0.0], [[1.0], [math.nan], [3.0]])
    assert state.finalize().output == 2.0
    assert State.empty((), width=1).finalize().output == 0.0


def test_values_are_passed_always_or_never() -> None:
    with pytest.raises(ValueError, match=r"^values: "):
        State.empty(()).fold(np.zeros(2), np.zeros((2, 1)))
    with pytest.raises(ValueError, match=r"^values: "):
        State.empty((), width=1).fold(np.zeros(2))
    with pytest.raises(ValueError, match=r"^others: "):
        State.empty(()).merge(State.empty((), width=1))


@pytest.mark.slow
def test_float32_is_kept_if_requested() -> None:
    jnp = pytest.importorskip("jax.numpy")
    assert State.empty((2,), like=jnp.ones(1)).fold(jnp.ones((2, 3))).r.dtype == np.float32


@given(st.floats(-1e100, 1e100), st.floats(-1e100, 1e100))
def test_pairs_are_exact(a: float, b: float) -> None:
    from fractions import Fraction

    s, e = two_sum(np.float64(a), np.float64(b))
    assert Fraction(float(s)) + Fraction(float(e)) == Fraction(a) + Fraction(b)
    if a == 0 or b == 0 or abs(a * b) > 1e-250:
        p, e = two_product(np.float64(a), np.float64(b))
        assert Fraction(float(p)) + Fraction(float(e)) == Fraction(a) * Fraction(b)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 127, 128, 129, 1000])
def test_totals_are_exact_to_a_rounding(n: int) -> None:
    x = np.random.default_rng(n).standard_normal(n) * np.logspace(0, 12, n)
    high, low = total(x)
    assert high[0] + low[0] == pytest.approx(math.fsum(x), rel=1e-15, abs=1e-18)
    swapped = total(np.stack([x, x])[:, ::-1].copy()[:, ::-1])
    assert (swapped[0] + swapped[1])[1, 0] == (high + low)[0]


def _tensor() -> Any:
    return pytest.importorskip("torch").ones(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: State.empty(()).fold(np.ones((3, 4))),
            ValueError,
            "scores: expected the state's shape, (), once axis -1 is removed, got (3,) from shape (3, 4)",
        ),
        (
            lambda: State.empty((2,)).fold(np.ones(4)),
            ValueError,
            "scores: expected the state's shape, (2,), once axis -1 is removed, got () from shape (4,)",
        ),
        (
            lambda: State.empty((2, 4)).fold(np.ones((2, 3, 4))),
            ValueError,
            "scores: expected the state's shape, (2, 4), once axis -1 is removed, got (2, 3) from shape (2, 3, 4)",
        ),
        (
            lambda: State.empty((2,)).fold(np.ones((1, 0))),
            ValueError,
            "scores: expected the state's shape, (2,), once axis -1 is removed, got (1,) from shape (1, 0)",
        ),
        (
            lambda: State.empty(()).fold(np.array([1j])),
            TypeError,
            "scores: expected dtype float16, bfloat16, float32, float64, an integer or bool, got complex128",
        ),
        (
            lambda: State.empty((2,)).fold(_tensor()),
            TypeError,
            "scores: expected ndarray, as in the state, got Tensor; State.empty(",
        ),
        (
            lambda: State.empty(()).fold(["a"]),
            TypeError,
            "scores: expected dtype float16, bfloat16, float32, float64, an integer or bool, got <U1",
        ),
        (lambda: State.empty(()).fold([1.0, [2.0]]), ValueError, "scores: "),
        (
            lambda: State.empty((2,)).fold(np.ones((2, 3)), axis=3),
            IndexError,
            "axis: expected from -2 to 1, got 3, which is out of range for 2 dimensions",
        ),
        (lambda: State.empty((2,)).fold(np.ones((2, 3)), axis=(0, 1)), TypeError, "axis: "),
        (lambda: State.empty((), 2).fold([1, 2], [[1, 2]]), ValueError, "values: expected shape (2, 2), got (1, 2)"),
        (lambda: State.empty((), 2).fold([1, 2], [[1], [2]]), ValueError, "values: expected shape (2, 2), got (2, 1)"),
        (lambda: State.empty((), 2).fold([1, 2], [1, 2]), ValueError, "values: expected shape (2, 2), got (2,)"),
        (
            lambda: State.empty((), 1).fold([1], np.ones((3, 1, 1))),
            ValueError,
            "values: expected shape (1, 1), got (3, 1, 1)",
        ),
        (
            lambda: State.empty((), 1).fold([1], [["a"]]),
            TypeError,
            "values: expected dtype float16, bfloat16, float32, float64, an integer or bool, got <U1",
        ),
        (lambda: State.empty("a"), TypeError, "shape: expected an integer or a tuple of integers, got 'a'"),
        (lambda: State.empty((2, 1.5)), TypeError, "shape: expected an integer or a tuple of integers, got (2, 1.5)"),
        (lambda: State.empty(-1), ValueError, "shape: expected 0 or more, got -1"),
        (lambda: State.empty((), "a"), TypeError, "width: expected an integer, got 'a'"),
        (lambda: State.empty((), -1), ValueError, "width: expected 0 or more, got -1"),
        (lambda: State.empty((), like={}), TypeError, "like: "),
        (lambda: State.empty(2).merge(3), TypeError, "others: expected a State, got int"),
        (
            lambda: State.empty(2).merge(State.empty((3, 1))),
            ValueError,
            "others: expected the first state's rows, (2,), got (3, 1)",
        ),
        (
            lambda: State.empty(2).merge(State.empty(2), State.empty(1)),
            ValueError,
            "others: expected the first state's rows, (2,), got (1,)",
        ),
        (
            lambda: State.empty(2, 1).merge(State.empty(2, 3)),
            ValueError,
            "others: expected the shape of the first state's o, (2, 1), got (2, 3)",
        ),
    ],
)
def test_bad_arguments(call: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match="^" + re.escape(says)):
        call()


def test_errors_list_each_allowed_shape_once() -> None:
    for rows, may in ((), "(3, 2)"), ((4,), "(3, 2) or (4, 3, 2)"):
        with pytest.raises(ValueError, match=rf"^values: expected shape {re.escape(may)}, got \(3, 5\)$"):
            State.empty(rows, 2).fold(np.ones((*rows, 3)), np.ones((3, 5)))


def test_libraries_and_devices_are_not_mixed() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"^scores: expected ndarray, as in the state, got Tensor"):
        State.empty(()).fold(torch.ones(2))
    message = "others: expected states of ndarray like the first state, got a state of Tensor"
    with pytest.raises(TypeError, match=f"^{message}"):
        State.empty(()).merge(State.empty((), like=torch.ones(1)))


def test_inputs_that_a_state_accepts() -> None:
    assert State.empty(np.int64(2)).m.shape == State.empty((np.int64(2),)).m.shape == State.empty([2]).m.shape == (2,)
    assert State.empty((), np.int64(3)).o.shape == (3,)
    assert State.empty(()).fold(5.0).m == 5.0
    assert State.empty(()).fold([1, 2]).m.dtype == np.float64
    assert State.empty(()).fold(np.array([1, 2], ">i4")).m == 2.0
    assert State.empty((2,)).fold(np.ones((2, 0))).m.tolist() == [-INF, -INF]
    each = State.empty((2,), 1).fold(np.zeros((2, 3)), np.arange(6.0).reshape(2, 3, 1))
    assert each.finalize().output.tolist() == [[1.0], [4.0]]
    shared = State.empty((2,), 1).fold(np.zeros((2, 3)), [[0.0], [1.0], [5.0]])
    assert shared.finalize().output.tolist() == [[2.0], [2.0]]


def test_integers_keep_their_digits() -> None:
    torch = pytest.importorskip("torch")
    state = State.empty((), like=torch.ones(1, dtype=torch.float64))
    assert state.fold(torch.tensor([2**24 + 1])).m == 2.0**24 + 1


@pytest.mark.slow
def test_states_pass_through_transformations() -> None:
    jax = pytest.importorskip("jax")
    z = jax.numpy.arange(12.0).reshape(4, 3)

    def step(state: State, block: Any) -> tuple[State, None]:
        return state.merge(State.empty((), like=block).fold(block)), None

    scanned = jax.jit(lambda z: jax.lax.scan(step, State.empty((), like=z), z)[0].finalize().lse)(z)
    mapped = jax.vmap(lambda z: State.empty((), like=z).fold(z))(z)
    assert np.isclose(scanned, float(np.logaddexp.reduce(np.arange(12.0))))
    assert mapped.m.tolist() == [2.0, 5.0, 8.0, 11.0]
    torch = pytest.importorskip("torch")
    each = torch.vmap(lambda z: State.empty((), like=z).fold(z).finalize().lse)(torch.arange(12.0).reshape(4, 3))
    assert np.allclose(each, np.log(np.exp(mapped.m) * mapped.l))


def test_a_long_block_is_folded_in_parts() -> None:
    """A fold splits a long block into parts, so that temporary arrays stay small. The result is accurate."""
    z = np.random.default_rng(1).standard_normal((2, 1_000_000)).astype(np.float32)
    values = np.random.default_rng(2).standard_normal((1_000_000, 2)).astype(np.float32)
    tracemalloc.start()
    state = State.empty((2,), width=2).fold(z, values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * z.nbytes
    output, lse = state.finalize()
    p = softargmax.softmax(z.astype(np.float64))
    assert np.allclose(lse, softargmax.logsumexp(z.astype(np.float64)), rtol=1e-15)
    assert np.allclose(output, p @ values.astype(np.float64), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("fields", [(), (np.zeros(2),)])
def test_the_error_says_how_to_make_a_state(fields: tuple[Any, ...]) -> None:
    with pytest.raises(
        TypeError, match=r"State\(\) needs m and r; State\.empty\(\) is the state of no scores, and fold"
    ):
        State(*fields)


def test_states_are_equal_or_not() -> None:
    state = State.empty((2,), width=1).fold(np.array([[1.0, 2.0], [3.0, -np.inf]]), np.ones((2, 1)))
    again = pickle.loads(pickle.dumps(state))
    assert (state == again) is True
    assert (state != again) is False
    for other in (
        state._replace(m=state.m + 1), state._replace(r=state.r + 1), state._replace(o=None), State.empty((3,)),
        State.empty((2,), width=1), tuple(state), None,
    ):  # fmt: skip
        assert (state == other) is False
        assert (state != other) is True
    torch = pytest.importorskip("torch")
    other = State(*map(torch.from_numpy, state))
    for one, two in ((state, other), (other, state)):
        assert (one == two) is False
    assert (other == State(*map(torch.from_numpy, state))) is True
    nan = State.empty(()).fold(np.array([np.nan]))
    assert nan != nan  # noqa: PLR0124 NaN differs from itself
    with pytest.raises(TypeError, match="a State has no hash"):
        hash(state)
