"""Edge rows of the draws, and errors that name the wrong argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.oracle.backends import Backend

import softargmax

pytestmark = pytest.mark.sanitize

INF, NAN = np.inf, np.nan
# Rows in which only one class can be drawn.
CERTAIN: list[tuple[list[float], dict[str, Any], int]] = [
    ([-INF, 3, -INF], {}, 1),
    ([1, INF, 2], {}, 1),
    ([1, INF, NAN], {"where": [True, True, False]}, 1),
    ([1, 5, 5], {"temperature": 0.0}, 1),
    ([1, 5, 5], {"temperature": -0.0}, 1),
    ([1, 5, 5], {"top_k": 1}, 1),
    ([1, 5, 5], {"top_p": 1e-9}, 1),
    ([INF, 2, INF], {"temperature": 0.0}, 0),
    ([INF, 2, INF], {"top_k": 1}, 0),
    ([7], {}, 0),
    ([7], {"temperature": INF}, 0),
    ([NAN, 5, INF], {"where": [False, True, False]}, 1),
    ([3e38, -3e38], {}, 0),
    ([0, 1], {"temperature": 1e-30}, 1),
    ([-INF, 2], {"temperature": INF}, 1),
    ([0, 9], {"min_p": 1.0}, 1),
]


@pytest.mark.parametrize(("z", "options", "expected"), CERTAIN, ids=str)
def test_certain_draws(backend: Backend, z: list[float], options: dict[str, Any], expected: int) -> None:
    given = {k: backend.array(v) if k == "where" else v for k, v in options.items()}
    for dtype in backend.dtypes:
        if dtype == "float16" and any(np.isfinite(x) and abs(x) > 6e4 for x in z):
            continue
        for seed in range(3):
            drawn = softargmax.categorical_with_logprob(backend.array(z, dtype), seed=seed, **given)
            assert int(drawn.index) == expected
            assert float(drawn.logprob) == 0.0
            assert int(drawn.support_size) == 1 or 3e38 in z or 1e-30 in options.values()


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 990}, {"where": np.arange(1000) % 7 != 3}], ids=["all", "filtered", "masked"]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_far_scores_without_replacement(quick: Backend, dtype: str, options: dict[str, Any]) -> None:
    """If the z / T of a row are at least 1e35 apart, noise cannot change their order: the largest scores are drawn."""
    if quick.library == "jax":
        pytest.skip("JAX computes in float32, where distances from the maximum above 1e30 are set to 1e30")
    where = np.asarray(options.get("where", np.ones(1000, bool)))
    given = {**options, **({"where": quick.array(where)} if "where" in options else {})}
    for low, high, temperature in (
        (-3e38, -1.5e38, 1.0),
        (-50.0, -10.0, 1e-40),
        (-1.5e38, -3e38, 1.0),
        (0, -50, 1e-38),
    ):
        z = np.linspace(low, high, 1000).astype(dtype)
        z[0] = 0
        largest = np.flatnonzero(where)[np.argsort(-z[where], kind="stable")]
        for n in (1, 3, 300):
            found = softargmax.categorical(
                quick.array(z), num_samples=n, replace=False, seed=0, temperature=temperature, **given
            )
            assert np.array_equal(quick.back(found), largest[:n]), (low, n)


BAD = [
    ([[0.0, 1.0], [-INF, -INF]], {}, r"expected a score above -inf in the support, got none in row \(1,\)"),
    ([[0.0, 1.0], [NAN, 1.0]], {}, r"NaN in row \(1,\)"),
    ([[0.0, 1.0], [NAN, INF]], {"temperature": 0.0}, r"NaN in row \(1,\)"),
    (
        [[0.0, 1.0], [2.0, 1.0]],
        {"where": [[True, True], [False, False]]},
        r"expected a score above -inf in the support, got none in row \(1,\)",
    ),
    (
        [[0.0, 1.0], [-INF, 1.0]],
        {"num_samples": 2, "replace": False},
        r"classes for 2 draws without replacement, got fewer in row \(1,\)",
    ),
    ([[0.0, 1.0]], {"num_samples": 2, "replace": False, "temperature": 0.0}, r"2 draws without replacement"),
    ([[0.0, 1.0]], {"num_samples": 2, "replace": False, "top_k": 1}, r"2 draws without replacement"),
    ([[0.0, 1.0]], {"num_samples": 3, "replace": False}, r"num_samples: expected at most 2, .*, got 3"),
]


@pytest.mark.parametrize(("z", "options", "message"), BAD, ids=lambda x: str(x)[:50])
def test_rows_that_cannot_be_drawn_from(quick: Backend, z: Any, options: dict[str, Any], message: str) -> None:
    given = {k: quick.array(v) if k == "where" else v for k, v in options.items()}
    for more in ({}, {"top_p": 0.9}):
        with pytest.raises(ValueError, match=message):
            softargmax.categorical(quick.array(z), seed=0, **given, **more)


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 5}, {"num_samples": 3}], ids=str)
def test_infinities_and_nan_in_different_blocks(options: dict[str, Any]) -> None:
    """A NaN in any block raises an error, even in a row with +inf. A row with +inf draws only its infinities."""
    z = np.zeros(20_000)
    z[[9000, 17_000]] = INF
    drawn = [softargmax.categorical(z, seed=s, **options) for s in range(30)]
    assert set(np.concatenate([np.ravel(d) for d in drawn]).tolist()) == {9000, 17_000}
    for place in (0, 9001, 19_999):
        wrong = z.copy()
        wrong[place] = NAN
        with pytest.raises(ValueError, match="NaN in row"):
            softargmax.categorical(wrong, seed=0, **options)


def test_errors_name_the_index_of_the_row() -> None:
    z = np.zeros((3, 4, 5))
    z[1, 2] = NAN
    with pytest.raises(ValueError, match=r"NaN in row \(1, 2\)"):
        softargmax.categorical(z, seed=0)
    with pytest.raises(ValueError, match=r"in row \(\)"):
        softargmax.categorical(np.full(3, -INF), seed=0)
    with pytest.raises(ValueError, match="expected a score above -inf in the support, got none"):
        softargmax.categorical(np.zeros((2, 0)), seed=0, top_k=1)


def test_shapes_and_types(backend: Backend) -> None:
    z = backend.array(np.zeros((2, 3, 4)), "float32")
    several = [softargmax.categorical(z, seed=0, num_samples=n) for n in (None, 1, 0)]
    none = softargmax.categorical(z[:0, ...], seed=0), softargmax.filter_scores(z[:0, ...], top_p=0.5)
    assert [tuple(x.shape) for x in (*several, *none)] == [(2, 3), (2, 3, 1), (2, 3, 0), (0, 3), (0, 3, 4)]
    drawn = softargmax.categorical_with_logprob(z, seed=0, num_samples=5)
    assert [tuple(x.shape) for x in drawn] == [(2, 3, 5), (2, 3, 5), (2, 3)]
    assert "float32" in str(drawn.logprob.dtype)
    assert backend.back(drawn.logprob) == pytest.approx(np.full((2, 3, 5), -np.log(4)), rel=1e-6)
    assert tuple(softargmax.filter_scores(z, top_k=2).shape) == (2, 3, 4)
    with pytest.raises(ValueError, match="0-d"):
        softargmax.categorical(backend.array(1.0), seed=0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_log_probabilities(dtype: str) -> None:
    """logprob is the log-probability of the draw in the filtered distribution. It is accurate on confident rows too."""
    z = (np.random.default_rng(0).standard_normal((50, 300)) * 3).astype(dtype)
    for options in ({}, {"top_k": 20}, {"top_p": 0.8, "temperature": 0.7}, {"min_p": 0.05}):
        drawn = softargmax.categorical_with_logprob(z, seed=1, **options)
        t = options.get("temperature", 1.0)
        left = softargmax.filter_scores(z, **options).astype(np.float64)
        log_p = softargmax.log_softmax(left, temperature=t)
        assert (drawn.support_size == (left > -INF).sum(axis=1)).all()
        expected = np.take_along_axis(log_p, drawn.index[:, None], axis=1)[:, 0]
        assert drawn.logprob == pytest.approx(
            expected, rel=1e-15 if dtype == "float64" else 1e-7, abs=1e-14 if dtype == "float64" else 1e-7
        )
    sure = softargmax.categorical_with_logprob(np.array([40.0, 0.0]), seed=0)
    assert float(sure.logprob) == pytest.approx(-np.exp(-40.0), rel=1e-12)


def test_parameters_per_row(quick: Backend) -> None:
    """In a batch with one parameter per row, each row has the same draws as in a call for this row alone."""
    z = np.random.default_rng(2).standard_normal((6, 50)).astype("float32") * 2
    options = {
        "temperature": [0.0, 0.5, 1.0, 2.0, np.inf, 1.0],
        "top_k": [50, 5, 1, 20, 50, 3],
        "top_p": [1.0, 0.5, 0.9, 0.3, 0.2, 1.0],
        "min_p": [0.0, 0.1, 0.0, 0.2, 0.0, 1.0],
    }
    arrays = {k: quick.array(v, "int32" if k == "top_k" else "float32") for k, v in options.items()}
    found = quick.back(softargmax.categorical(quick.array(z), seed=4, num_samples=9, **arrays))
    for i, row in enumerate(z):
        one = {k: quick.array(v[i : i + 1], "int32" if k == "top_k" else "float32") for k, v in options.items()}
        alone = softargmax.categorical(
            quick.array(row[None]), seed=4, num_samples=9, stream=quick.array([i], "int32"), **one
        )
        assert (quick.back(alone)[0] == found[i]).all()


FILTERS = ("temperature", "top_k", "top_p", "min_p")
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"top_k": -2}, ValueError, "top_k: expected an integer: 1 or above, or -1 or 0 for all classes, got -2"),
    ({"top_k": 1.5}, ValueError, "top_k: expected an integer: 1 or above, or -1 or 0 for all classes, got 1.5"),
    ({"top_k": 7.5}, ValueError, "top_k: expected an integer: 1 or above, or -1 or 0 for all classes, got 7.5"),
    ({"top_k": INF}, ValueError, "top_k: expected an integer: 1 or above, or -1 or 0 for all classes, got inf"),
    (
        {"top_k": [1, -2]},
        ValueError,
        r"top_k: expected an integer: 1 or above, or -1 or 0 for all classes, got -2 in row \(1,\)",
    ),
    (
        {"top_k": [1.5, 2]},
        ValueError,
        r"top_k: expected an integer: 1 or above, or -1 or 0 for all classes, got 1.5 in row \(0,\)",
    ),
    ({"top_k": [1, 2, 3]}, ValueError, r"top_k: expected a number, or a shape that broadcasts with .*got shape \(3,\)"),
    ({"top_k": "2"}, TypeError, "top_k"),
    ({"top_p": 0.0}, ValueError, "top_p: expected a number above 0, at most 1, got 0.0"),
    ({"top_p": 1.01}, ValueError, "top_p"),
    ({"top_p": NAN}, ValueError, "top_p"),
    ({"top_p": [0.5, NAN]}, ValueError, r"top_p: expected a number above 0, at most 1, got nan in row \(1,\)"),
    ({"min_p": -0.1}, ValueError, "min_p: expected a number from 0 to 1, got -0.1"),
    ({"min_p": 1.1}, ValueError, "min_p"),
    ({"temperature": -1.0}, ValueError, "temperature: expected a number from 0 on, infinity included, got -1.0"),
    ({"temperature": NAN}, ValueError, "temperature: expected a number from 0 on, infinity included, got nan"),
    (
        {"temperature": [1.0, -1.0]},
        ValueError,
        r"temperature: expected a number from 0 on, infinity included, got -1 in row \(1,\)",
    ),
    (
        {"temperature": [[1.0], [NAN]]},
        ValueError,
        r"temperature: expected a number from 0 on, infinity included, got nan in row \(1,\)",
    ),
    *(
        (
            {name: sign * 10**400},
            ValueError,
            f"{name}: expected a number in the range of float64, got an integer outside it",
        )
        for name in FILTERS
        for sign in (1, -1)
    ),
    ({"temperature": None}, TypeError, "temperature"),
    ({"where": [1, 1, 1, 1]}, TypeError, "where"),
    ({"where": [True, True]}, ValueError, "where"),
    ({"order": "top_p_first"}, ValueError, "order: expected 'top_k_first' or 'joint', got 'top_p_first'"),
]
WRONG_DRAWS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"seed": 1, "generator": np.random.default_rng(0)}, ValueError, "seed, generator: expected one of them, got both"),
    ({"seed": -1}, ValueError, "seed"),
    ({"seed": 2**64}, ValueError, r"seed: expected an integer from 0 to 2\^64 - 1, got one above 2\^64 - 1"),
    ({"seed": 10**400}, ValueError, r"seed: expected an integer from 0 to 2\^64 - 1, got one above 2\^64 - 1"),
    ({"seed": 1.0}, TypeError, r"seed: expected an integer from 0 to 2\^64 - 1, got 1.0"),
    ({"seed": True}, TypeError, r"seed: expected an integer from 0 to 2\^64 - 1, got True"),
    (
        {"seed": np.random.default_rng(0)},
        TypeError,
        r"seed: expected an integer from 0 to 2\^64 - 1, got Generator\(PCG64\) .*; pass a generator as generator=",
    ),
    ({"seed": None, "generator": "default"}, TypeError, "generator: expected a numpy.random.Generator, .*got str"),
    ({"axis": (0, 1)}, TypeError, r"axis: expected one integer, got \(0, 1\)"),
    ({"axis": 2}, ValueError, "axis: expected from -2 to 1, got 2, which is out of range for 2 dimensions"),
    ({"num_samples": -1}, ValueError, r"num_samples: expected an integer from 0 to 2\^31 - 1, got -1"),
    ({"num_samples": 2.0}, TypeError, "num_samples: expected an integer, 0 or above, got 2.0"),
    ({"stream": [0, 1, 2]}, ValueError, r"stream: expected the rows' shape, \(2,\), got \(3,\)"),
    ({"stream": [0.0, 1.0]}, TypeError, "stream: expected integers, one per row, got dtype float64"),
    ({"stream": [True, False]}, TypeError, "stream: expected integers, one per row, got dtype bool"),
]


@pytest.mark.parametrize(
    ("options", "error", "message"), WRONG + WRONG_DRAWS, ids=lambda x: x if isinstance(x, str) else ""
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    z = np.zeros((2, 4))
    for function in (softargmax.categorical, softargmax.categorical_with_logprob):
        with pytest.raises(error, match=message):
            function(z, **{"seed": 0, **options})
    if (options, error, message) in WRONG:
        with pytest.raises(error, match=message):
            softargmax.filter_scores(z, **options)


def test_wrong_arguments_of_the_others() -> None:
    with pytest.raises(TypeError, match="colour"):
        softargmax.categorical_with_logprob([0.0], colour=1)  # type: ignore[call-arg]
    for name in ("typical_p", "epsilon", "eta"):
        for value in (1.5, 10**400):
            with pytest.raises(ValueError, match=rf"{name}: expected .*, got (1.5|an integer)"):
                softargmax.filter_scores([0.0, 1.0], **{name: value})
    for function in (softargmax.gumbel_softmax, softargmax.boltzmann_policy):
        for value in (-1, -(10**400), 10**400, NAN, [-1.0]):
            with pytest.raises(
                ValueError, match=r"temperature: expected a number .*, got (-1|nan|an integer outside it)"
            ):
                function([[0.0, 1.0]], temperature=value)
    for shape in (-1, 10**400, (2**40, 2**40)):
        with pytest.raises(ValueError, match="shape: "):
            softargmax.gumbel(shape, seed=0)
    with pytest.raises(ValueError, match="values: expected at least one axis, for the classes, got a 0-d array"):
        softargmax.boltzmann_policy(1.0, temperature=1.0)
    with pytest.raises(ValueError, match=r"epsilon: expected .*, got an integer outside"):
        softargmax.boltzmann_policy([0.0, 1.0], temperature=1.0, epsilon=10**400)
    with pytest.raises(ValueError, match="0-d"):
        softargmax.gumbel_softmax(1.0)
    with pytest.raises(ValueError, match="epsilon: expected a number from 0 to 1, got 2"):
        softargmax.boltzmann_policy([0.0, 1.0], temperature=1.0, epsilon=2)
    with pytest.raises(ValueError, match=r"epsilon: expected a number from 0 to 1, got -1 in row \(0,\)"):
        softargmax.boltzmann_policy([[0.0, 1.0]], temperature=1.0, epsilon=[-1.0])


def test_libraries_without_a_default_generator() -> None:
    strict = pytest.importorskip("array_api_strict")
    z = strict.asarray([0.0, 1.0])
    with pytest.raises(ValueError, match="seed: expected an integer, as the library of Array"):
        softargmax.categorical(z)
    assert int(softargmax.categorical(z, generator=np.random.default_rng(0))) in (0, 1)
    with pytest.raises(TypeError, match="generator"):
        softargmax.categorical(z, generator=7)


@pytest.mark.parametrize("options", [{}, {"top_k": 1}, {"top_k": 7}, {"top_p": 0.1}, {"typical_p": 0.1, "eta": 0.5}])
def test_filters_of_no_classes(quick: Backend, options: dict[str, Any]) -> None:
    """Scores without classes stay empty for every valid k. An invalid k raises an error."""
    assert tuple(softargmax.filter_scores(quick.array(np.zeros((2, 0))), **options).shape) == (2, 0)
    with pytest.raises(ValueError, match=r"top_k: expected an integer: 1 or above, or -1 or 0 for all classes, got -2"):
        softargmax.filter_scores(quick.array(np.zeros((2, 0))), top_k=-2)


def test_every_class_by_top_k(backend: Backend) -> None:
    """A top_k of -1 (as in vLLM), of 0 (as in transformers), or of K or more keeps all K classes."""
    z = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    for k in (-1, 0, 4, 5, 50, np.int64(50)):
        assert np.array_equal(backend.back(softargmax.filter_scores(backend.array(z), top_k=k)), z), k
    for dtype in ("int32", "float32"):
        found = softargmax.filter_scores(backend.array(z), top_k=backend.array([-1, 0, 50, 4, 2], dtype))
        assert (backend.back(found) > -INF).sum(axis=1).tolist() == [4, 4, 4, 4, 2]
    mixed = found
    wide = np.zeros((2, 300), np.float32)
    if backend.library == "numpy":
        found = softargmax.filter_scores(wide, top_k=np.array([3, 0], np.uint8))  # uint8 cannot represent K = 300
        assert (found > -INF).sum(axis=1).tolist() == [3, 300]
    listed = softargmax.filter_scores(backend.array(z), top_k=[-1, 0, 50, 4, 2])
    assert np.array_equal(backend.back(listed), backend.back(mixed))


def test_filters_of_empty_and_nan_rows(quick: Backend) -> None:
    z = np.array([[-INF, -INF, -INF], [NAN, 1.0, -INF], [2.0, 1.0, 0.0]])
    for options in ({"top_k": 1}, {"top_p": 0.1}, {"typical_p": 0.1, "eta": 0.5}):
        found = quick.back(softargmax.filter_scores(quick.array(z), **options))
        assert np.array_equal(found[:2], z[:2], equal_nan=True)
        assert (found[2] > -INF).sum() == 1
