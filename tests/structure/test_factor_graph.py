"""Factor graphs and contractions against all configurations."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import array_api_strict
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import softargmax as s

INF = math.inf
LETTERS = "abcdefg"


class Graph(NamedTuple):
    """A graph, and the score of all configurations in an array with an axis per variable."""

    subscripts: str
    factors: list[np.ndarray]
    variables: str
    score: np.ndarray

    @property
    def p(self) -> np.ndarray:
        return np.exp(self.score - self.log_z)

    @property
    def log_z(self) -> float:
        top = self.score.max()
        return float(top + np.log(np.exp(self.score - top).sum()))

    def marginal(self, variables: str) -> np.ndarray:
        return np.einsum(f"{self.variables}->{variables}", self.p)


def graph_of(labels: list[str], factors: list[np.ndarray], temperature: float = 1.0) -> Graph:
    variables = "".join(dict.fromkeys("".join(labels)))
    sizes = {
        label: size for own, x in zip(labels, factors, strict=True) for label, size in zip(own, x.shape, strict=True)
    }
    score = np.zeros([sizes[x] for x in variables])
    for own, x in zip(labels, factors, strict=True):
        order = np.argsort([variables.index(label) for label in own])
        score = score + x.transpose(order).reshape([sizes[v] if v in own else 1 for v in variables])
    return Graph(",".join(labels) + "->", factors, variables, score / temperature)


def random_graph(seed: int, *, tree: bool = False, spread: float = 1.0, forbid: bool = False) -> Graph:
    """Return a tree, or a graph with loops and factors of up to three variables."""
    rng = np.random.default_rng(seed)
    variables = LETTERS[: rng.integers(2, 7)]
    sizes = {x: int(rng.integers(1, 5)) for x in variables}
    labels = [variables[int(rng.integers(0, i))] + variables[i] for i in range(1, len(variables))]
    labels += [x for x in variables if rng.random() < 0.5]
    if not tree:
        count = min(3, len(variables))
        labels += ["".join(rng.permutation(list(variables))[:count]) for _ in range(2)]
    factors = [rng.standard_normal([sizes[x] for x in own]) * spread for own in labels]
    if forbid:
        factors[0][(0,) * factors[0].ndim] = -INF
    return graph_of(labels, factors)


CASES = {
    **{f"tree {seed}": random_graph(seed, tree=True) for seed in range(6)},
    **{f"loops {seed}": random_graph(seed) for seed in range(10, 18)},
    "far": random_graph(20, spread=1e3),
    "one entry forbidden": random_graph(23, forbid=True),
    "one factor": graph_of(["ab"], [np.random.default_rng(0).standard_normal((2, 3))]),
    "two parts": graph_of(["ab", "cd"], list(np.random.default_rng(0).standard_normal((2, 2, 3)))),
}
BACKENDS = ("native", "reference")
ROUNDING = 2.0**-52


@pytest.mark.parametrize("implementation", BACKENDS)
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_all_results(case: Graph, implementation: str) -> None:
    with s.using(implementation):
        graph = s.factor_graph(case.subscripts, *case.factors)
        most = abs(case.score[np.isfinite(case.score)]).max()
        rounding = 8 * ROUNDING * len(case.factors) * (1 + most)  # 4 ulp for each product on the way up, and down
        assert graph.variables == case.variables
        assert_allclose(graph.log_z, case.log_z, rtol=0, atol=rounding)
        for own, p in zip(case.subscripts[:-2].split(","), graph.marginals(), strict=True):
            assert_allclose(p, case.marginal(own), rtol=rounding, atol=0)
        ends = case.variables[-1] + case.variables[0]
        assert_allclose(graph.marginal(ends), case.marginal(ends), rtol=rounding, atol=0)
        p = case.p[case.p > 0]
        assert_allclose(graph.entropy(), -(p * np.log(p)).sum(), rtol=0, atol=2 * rounding)
        best = graph.best()
        assert best.score == pytest.approx(case.score.max(), rel=0, abs=rounding)
        assert case.score[tuple(best.values)] == case.score.max()
        some = graph.sample(4, seed=1)
        for values in some:
            assert_allclose(graph.log_prob(values), case.score[tuple(values)] - case.log_z, rtol=0, atol=rounding)
            assert_allclose(graph.score(values), case.score[tuple(values)], rtol=0, atol=rounding)


@pytest.mark.parametrize("temperature", [0.3, 4.0, np.float64(2.0), np.array(2.0)])
def test_temperature(temperature: Any) -> None:
    case = random_graph(11)
    graph = s.factor_graph(case.subscripts, *case.factors, temperature=temperature)
    cold = s.factor_graph(case.subscripts, *(x / float(temperature) for x in case.factors))
    assert_allclose(graph.log_z, cold.log_z, rtol=1e-14)
    assert_allclose(graph.entropy(), cold.entropy(), rtol=1e-12)
    assert_allclose(graph.marginal("b"), cold.marginal("b"), rtol=1e-12)
    values = graph.sample(seed=3)
    assert_allclose(graph.log_prob(values), cold.log_prob(values), rtol=1e-12)


def test_draws_follow_the_distribution() -> None:
    case = random_graph(12, forbid=True)
    draws, p = 20_000, case.p.ravel()
    values = s.factor_graph(case.subscripts, *case.factors).sample(draws, seed=5)
    count = np.bincount(np.ravel_multi_index(tuple(values.T), case.p.shape), minlength=p.size)
    assert (count[p == 0] == 0).all()
    frequent = p * draws >= 5
    cells = frequent.sum() + 1
    expected = np.append(p[frequent], p[~frequent].sum()) * draws
    seen = np.append(count[frequent], count[~frequent].sum())
    chi_square = ((seen - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()
    assert chi_square < cells + 5 * math.sqrt(2 * cells)


def test_a_batch_gives_the_bits_of_its_items() -> None:
    rng = np.random.default_rng(0)
    pairs, shared, unary = rng.standard_normal((5, 2, 3)), rng.standard_normal((3, 4)), rng.standard_normal((5, 4))
    ids = np.array([7, 1, 3, 9, 4])
    batch = s.factor_graph("nab,bc,nc->n", pairs, shared, unary)
    assert batch.log_z.shape == batch.entropy().shape == (5,)
    assert [p.shape for p in batch.marginals()] == [(5, 2, 3), (5, 3, 4), (5, 4)]
    drawn = batch.sample(3, seed=2, stream=ids)
    assert drawn.shape == (5, 3, 3)
    for i in range(5):
        one = s.factor_graph("ab,bc,c->", pairs[i], shared, unary[i])
        alone = s.factor_graph("nab,bc,nc->n", pairs[i : i + 1], shared, unary[i : i + 1])
        assert one.log_z == batch.log_z[i]
        for x, y in zip(one.marginals(), batch.marginals(), strict=True):
            assert_array_equal(x, y[i])
        assert_array_equal(one.best().values, batch.best().values[i])
        assert_array_equal(alone.sample(3, seed=2, stream=ids[i : i + 1])[0], drawn[i])


def test_an_impossible_graph() -> None:
    graph = s.factor_graph("nab,bc->n", np.array([np.full((2, 3), -INF), np.zeros((2, 3))]), np.zeros((3, 2)))
    assert_array_equal(graph.log_z, [-INF, math.log(12)])
    assert_array_equal(graph.best().values, [[-1, -1, -1], [0, 0, 0]])
    assert_array_equal(graph.best().score, [-INF, 0])
    assert_array_equal(graph.entropy()[0], 0)
    assert_array_equal(graph.log_prob([[0, 0, 0], [0, 0, 0]])[0], -INF)
    assert not graph.marginals()[0][0].any()
    with pytest.raises(ValueError, match="factors: expected a configuration with a score above -inf"):
        graph.sample(seed=0)


def test_an_ising_strip_against_the_transfer_matrix_and_all_states() -> None:
    width, length, coupling, temperature = 2, 12, 0.7, 1.3
    sites = [chr(ord("a") + i) for i in range(width * length)]
    rungs = [sites[2 * k] + sites[2 * k + 1] for k in range(length)]
    legs = [sites[2 * k + j] + sites[2 * k + 2 + j] for k in range(length - 1) for j in (0, 1)]
    alike = coupling * np.array([[1.0, -1.0], [-1.0, 1.0]])
    subscripts = ",".join(rungs + legs) + "->"
    log_z = s.factor_graph(subscripts, *[alike] * len(rungs + legs), temperature=temperature).log_z

    spins = np.array(list(itertools.product((1.0, -1.0), repeat=2)))
    within = coupling * spins[:, 0] * spins[:, 1]
    step = coupling * spins @ spins.T
    matrix = np.exp((step + within) / temperature)
    state = functools.reduce(lambda x, _: x @ matrix, range(length - 1), np.exp(within / temperature))
    assert_allclose(log_z, np.log(state.sum()), rtol=1e-14)

    energy = -within
    for _ in range(length - 1):  # of all 2^24 states, column by column
        energy = (energy.reshape(-1, 4)[:, :, None] - step - within).reshape(-1)
    states = s.boltzmann(energy, temperature)
    assert_allclose(-temperature * log_z, states.free_energy, rtol=1e-13)

    torch = pytest.importorskip("torch")
    t = torch.tensor(temperature, dtype=torch.float64, requires_grad=True)
    factors = [torch.from_numpy(alike)] * len(rungs + legs)
    (slope,) = torch.autograd.grad(s.factor_graph(subscripts, *factors, temperature=t).log_z, t, create_graph=True)
    mean_energy = t**2 * slope
    assert_allclose(mean_energy.item(), states.mean_energy, rtol=1e-12)
    (heat_capacity,) = torch.autograd.grad(mean_energy, t)
    assert_allclose(heat_capacity.item(), states.heat_capacity, rtol=1e-10)


# --- log_einsum -------------------------------------------------------------------------------------------------------

EINSUMS = ["ab,bc->ac", "ab,bc,cd->ad", "ab,b->a", "ab,cd->abcd", "abc,cb->a", "ab,ab->", "a,a->a", "ab->ba", "ab,bc"]


def table(labels: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, len(labels))).standard_normal([2 + ord(x) - ord("a") for x in labels])


def tables(subscripts: str) -> list[np.ndarray]:
    return [table(labels, i) for i, labels in enumerate(subscripts.split("->", maxsplit=1)[0].split(","))]


@pytest.mark.parametrize("subscripts", EINSUMS)
@pytest.mark.parametrize("temperature", [1.0, -0.5, 3.0])
def test_log_einsum(subscripts: str, temperature: float) -> None:
    x = tables(subscripts)
    truth = temperature * np.log(np.einsum(subscripts, *(np.exp(one / temperature) for one in x)))
    assert_allclose(s.log_einsum(subscripts, *x, temperature=temperature), truth, rtol=1e-13, atol=1e-13)
    base = s.log_einsum(subscripts, *x, temperature=temperature, base=2.0)
    truth = temperature * np.log2(np.einsum(subscripts, *(2.0 ** (one / temperature) for one in x)))
    assert_allclose(base, truth, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("subscripts", EINSUMS)
def test_the_tropical_limit(subscripts: str) -> None:
    x = tables(subscripts)
    assert_allclose(
        s.log_einsum(subscripts, *x, temperature=0), s.log_einsum(subscripts, *x, temperature=1e-9), atol=1e-7
    )


def test_diagonals_and_broadcast_axes() -> None:
    x = np.random.default_rng(0).standard_normal((3, 3, 3))
    assert_array_equal(s.log_einsum("aab->ab", x), np.einsum("aab->ab", x))
    assert_allclose(s.log_einsum("aaa->", x), np.log(np.exp(np.einsum("aaa->a", x)).sum()), rtol=1e-15)
    y = np.random.default_rng(1).standard_normal((4, 3, 3))
    truth = np.log(np.einsum("...ab,...bc->...ac", np.exp(y), np.exp(x[0])))
    for other in (x[0], x[:1]):
        assert_allclose(s.log_einsum("...ab,...bc->...ac", y, other), truth, rtol=1e-13, atol=1e-13)
    turned = truth.swapaxes(-1, -2)
    found = s.log_einsum("...cb,...ba->...ca", x[:1].swapaxes(-1, -2), y.swapaxes(-1, -2))
    assert_allclose(found, turned, rtol=1e-13, atol=1e-13)
    graph, each = s.factor_graph("...ab,...bc->...", y, x[:1]), s.factor_graph("nab,bc->n", y, x[0])
    assert_array_equal(graph.log_z, each.log_z)
    assert_array_equal(graph.score(np.zeros((4, 3), int)), each.score(np.zeros((4, 3), int)))
    assert_array_equal(graph.sample(3, seed=0), each.sample(3, seed=0))


def test_an_empty_batch() -> None:
    graph = s.factor_graph("nab,bc->n", np.zeros((0, 2, 3)), np.zeros((3, 4)))
    assert graph.log_z.shape == graph.entropy().shape == (0,)
    assert graph.marginals()[1].shape == (0, 3, 4)
    assert graph.best().values.shape == (0, 3)
    assert graph.sample(5, seed=0).shape == (0, 5, 3)


def test_nan_stays_in_its_item() -> None:
    pairs = np.zeros((2, 2, 3))
    pairs[1, 0, 0] = np.nan
    graph, alone = (
        s.factor_graph("nab,bc->n", pairs, np.zeros((3, 4))),
        s.factor_graph("ab,bc->", pairs[0], np.zeros((3, 4))),
    )
    assert graph.log_z[0] == alone.log_z
    assert np.isnan(graph.log_z[1])
    assert_array_equal(graph.marginals()[0][0], alone.marginals()[0])


def test_a_generator_seeds_the_draws() -> None:
    graph = s.factor_graph("ab->", np.zeros((2, 3)))
    first = graph.sample(9, generator=np.random.default_rng(1))
    assert_array_equal(graph.sample(9, generator=np.random.default_rng(1)), first)
    assert (graph.sample(9, generator=np.random.default_rng(2)) != first).any()


def test_the_support() -> None:
    """An entry outside the support leaves out its terms, even those of an infinite or NaN partner."""
    a, b = np.array([[-INF, 0.0]]), np.array([[np.nan, INF], [1.0, 2.0]])
    assert_array_equal(s.log_einsum("ab,bc->ac", a, b), [[1.0, 2.0]])
    assert_array_equal(s.log_einsum("ab,bc->abc", a, b), [[[-INF, -INF], [1.0, 2.0]]])
    assert_array_equal(s.log_einsum("ab,bc->abc", -a, -b, temperature=-1.0), [[[INF, INF], [-1.0, -2.0]]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtypes(dtype: Any) -> None:
    x = [one.astype(dtype) for one in tables("ab,bc,cd->ad")]
    found = s.log_einsum("ab,bc,cd->ad", *x)
    truth = np.log(np.einsum("ab,bc,cd->ad", *(np.exp(one.astype(float)) for one in x)))
    assert found.dtype == dtype
    most = sum(abs(one.astype(float)).max() for one in x)
    working = np.finfo(np.float32 if dtype == np.float16 else dtype).eps
    bound = 2 * 4 * working * most + np.finfo(dtype).eps * abs(truth)  # two products, and the last rounding
    assert (abs(found - truth) <= bound).all()
    graph = s.factor_graph("ab,bc,cd->", *x)
    assert graph.log_z.dtype == graph.entropy().dtype == (np.float32 if dtype == np.float16 else dtype)
    assert graph.marginals()[0].dtype == graph.marginal("c").dtype == dtype


def test_strict_arrays() -> None:
    x = tables("ab,bc,cd->ad")
    strict = [array_api_strict.asarray(one) for one in x]
    graph = s.factor_graph("ab,bc,cd->", *strict)
    with s.using("reference"):
        truth = s.factor_graph("ab,bc,cd->", *x)
        assert_array_equal(np.asarray(s.log_einsum("ab,bc,cd->ad", *strict)), s.log_einsum("ab,bc,cd->ad", *x))
        assert_array_equal(np.asarray(graph.marginals()[1]), truth.marginals()[1])
        assert_array_equal(np.asarray(graph.sample(5, seed=0)), truth.sample(5, seed=0))
        assert_array_equal(np.asarray(graph.best().values), truth.best().values)


# --- bad input --------------------------------------------------------------------------------------------------------

A, B = np.zeros((2, 3)), np.zeros((3, 4))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: s.log_einsum("ab,bc->ac", A, A), ValueError, "subscripts: .*Size of label 'b'"),
        (lambda: s.log_einsum("ab->c", A), ValueError, "subscripts: expected one label per axis"),
        (lambda: s.log_einsum("ab,bc->ac", A), ValueError, "subscripts: "),
        (lambda: s.log_einsum("abc->a", A), ValueError, "subscripts: "),
        (lambda: s.log_einsum("ab->"), ValueError, "operands: expected at least one array"),
        (lambda: s.log_einsum(["ab"], A), TypeError, "subscripts: expected a string such as 'ab,bc->ac', got list"),
        (
            lambda: s.log_einsum("ab,bc->ac", A, B > 0, temperature=[1.0, 2.0]),
            ValueError,
            "temperature: expected a number",
        ),
        (lambda: s.log_einsum("ab,b->a", A, "x"), TypeError, r"operands\[1\]: "),
        (lambda: s.log_einsum("ab->a", A, axis=0), TypeError, "no argument axis"),
        (
            lambda: s.log_einsum("ab,bc->ac", A[:, :1], B),
            ValueError,
            "subscripts: expected one size for 'b', got 1 and 3",
        ),
        (lambda: s.factor_graph("n->n", A[0]), ValueError, "subscripts: expected a letter that is not in the batch"),
        (
            lambda: s.factor_graph("ab,bc->", A, B + INF),
            ValueError,
            r"factors\[1\]: expected scores below inf, got inf",
        ),
        (lambda: s.factor_graph("ab,bc", A, B), ValueError, "expected '->' and the letters of the batch"),
        (lambda: s.factor_graph("aa->", np.zeros((2, 2))), ValueError, "different letters in each factor, got 'aa'"),
        (lambda: s.factor_graph("ab->", A, temperature=0), ValueError, "temperature: expected a finite number above 0"),
        (lambda: s.factor_graph("ab->", A[:0]), ValueError, "at least one value, got none for 'a'"),
        (
            lambda: s.factor_graph("ab->", A).marginal("x"),
            ValueError,
            "variables: expected letters out of 'ab', got 'x'",
        ),
        (lambda: s.factor_graph("ab->", A).marginal("aa"), ValueError, "variables: expected different letters"),
        (lambda: s.factor_graph("ab->", A).log_prob([0]), ValueError, r"values: expected integers of shape \(2,\)"),
        (lambda: s.factor_graph("ab->", A).score([1, 3]), IndexError, r"values: expected 0 to 2, got 3 at \(1,\)"),
        (lambda: s.factor_graph("ab->", A).sample(0), ValueError, "num_samples: expected an integer of at least 1"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
