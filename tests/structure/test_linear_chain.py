"""Linear chains against all paths: log Z, marginals, entropy, best paths, draws and log-probabilities."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import array_api_strict
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import softargmax as s

INF = math.inf
BACKENDS = ("native", "reference")


class Paths(NamedTuple):
    """All paths of a sequence, and their scores."""

    tags: np.ndarray
    score: np.ndarray

    @property
    def p(self) -> np.ndarray:
        return np.exp(self.score - self.log_z)

    @property
    def log_z(self) -> float:
        top = self.score.max(initial=-INF)
        return float(top + np.log(np.exp(self.score - top).sum())) if top > -INF else -INF


def paths(e: np.ndarray, t: np.ndarray) -> Paths:
    """Enumerate the paths. `t` is one matrix, or one per step."""
    length, tags = e.shape
    t = np.broadcast_to(t, (max(length - 1, 0), tags, tags))
    every = list(itertools.product(range(tags), repeat=length))
    score = [
        sum(e[k, y] for k, y in enumerate(path)) + sum(t[k, a, b] for k, (a, b) in enumerate(itertools.pairwise(path)))
        for path in every
    ]
    return Paths(np.array(every, np.int64).reshape(len(every), length), np.array(score, float))


def draw(*shape: int, seed: int = 0, spread: float = 1.0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape) * spread


def forbidden(t: np.ndarray) -> np.ndarray:
    found = t.copy()
    found[..., 0, 1] = found[..., 2, 2] = -INF
    return found


CASES = {
    "plain": (draw(5, 3), draw(3, 3, seed=1)),
    "steps": (draw(4, 3), draw(3, 3, 3, seed=1)),
    "forbidden": (draw(5, 3), forbidden(draw(3, 3, seed=1))),
    "far": (draw(5, 3, spread=1e4), draw(3, 3, seed=1, spread=1e4)),
    "one tag": (draw(5, 1), draw(1, 1, seed=1)),
    "one position": (draw(1, 4), draw(4, 4, seed=1)),
    "nine tags": (draw(3, 9), draw(9, 9, seed=1, spread=4)),
    "empty": (np.zeros((0, 3)), draw(3, 3)),
}


@pytest.mark.parametrize("implementation", BACKENDS)
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_all_results(case: tuple[np.ndarray, np.ndarray], implementation: str) -> None:
    e, t = case
    truth = paths(e, t)
    with s.using(implementation):
        chain = s.linear_chain(e, t)
        assert_allclose(chain.log_z, truth.log_z, rtol=1e-14, atol=1e-14)
        tags = np.arange(e.shape[1])
        at = truth.tags[:, :, None] == tags  # path, position, tag
        most = abs(truth.score[np.isfinite(truth.score)]).max()
        rounding = 2.0**-52 * len(e) * most  # of alpha and beta
        assert_allclose(chain.marginals(), np.einsum("p,ptj->tj", truth.p, at), rtol=1e-12 + rounding, atol=1e-15)
        pairs = np.einsum("p,pti,ptj->tij", truth.p, at[:, :-1], at[:, 1:])
        assert_allclose(chain.pair_marginals(), pairs, rtol=1e-12 + rounding, atol=1e-15)
        entropy = -sum(p * math.log(p) for p in truth.p if p > 0)
        assert_allclose(chain.entropy(), entropy, rtol=1e-12, atol=1e-14 + rounding * (1 + most))
        best = chain.best()
        assert_array_equal(best.tags, truth.tags[truth.score.argmax()])
        assert_allclose(best.score, truth.score.max(), rtol=1e-15)
        for path in range(0, len(truth.tags), 7):
            assert_allclose(chain.score(truth.tags[path]), truth.score[path], rtol=1e-13)
            assert_allclose(chain.log_prob(truth.tags[path]), truth.score[path] - truth.log_z, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("implementation", BACKENDS)
@pytest.mark.parametrize("steps", [1, 4])
def test_infinite_scores_share_the_probability(implementation: str, steps: int) -> None:
    """As in a softmax. Each tag shares its probability among the tags before it."""
    e, t = draw(3, 5, 4), draw(steps, 4, 4, seed=1) if steps > 1 else draw(4, 4, seed=1)
    e[0, 2, 1] = e[1, 0, :2] = e[1, 3, 3] = INF
    lengths = np.array([5, 4, 5])
    with s.using(implementation):
        chain = s.linear_chain(e, t, lengths=lengths)
        p, pairs = chain.marginals(), chain.pair_marginals()
        assert_array_equal(chain.log_z == INF, [True, True, False])
        assert_array_equal(np.isnan(chain.entropy()), [True, True, False])
        assert np.isnan(chain.log_prob(np.full((3, 5), 1))[0])
        assert_array_equal(s.linear_chain([[INF, 0.0, INF]], np.zeros((3, 3))).marginals(), [[0.5, 0.0, 0.5]])
    inside = np.arange(5) < lengths[:, None]
    assert_allclose(p.sum(-1), inside, rtol=1e-14)
    assert_allclose(pairs.sum(-1), p[:, :-1] * inside[:, 1:, None], rtol=1e-14, atol=1e-15)
    assert_allclose(pairs.sum(-2), p[:, 1:], rtol=1e-14, atol=1e-15)
    assert_array_equal(p[0, 2:], [[0, 1, 0, 0], [0.25] * 4, [0.25] * 4])
    assert_array_equal(pairs[1, 0] > 0, [[True] * 4] * 2 + [[False] * 4] * 2)
    first, second = (t, t) if steps == 1 else t[:2]
    alpha = e[0, 1] + s.logsumexp(e[0, 0][:, None] + first, axis=0)
    assert_allclose(p[0, 1], s.softmax(alpha + second[:, 1]), rtol=1e-12)  # given tag 1 at position 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sequence_has_the_same_bits_in_every_batch_and_with_any_padding(dtype: str) -> None:
    e, t = draw(40, 12, 7).astype(dtype), draw(7, 7, seed=1, spread=5).astype(dtype)
    lengths = np.random.default_rng(2).integers(0, 13, 40)
    lengths[:2] = 0, 12
    whole = s.linear_chain(e, t, lengths=lengths)
    drawn = whole.sample(3, seed=5)
    for threads in (1, 2):
        s.set_num_threads(threads)
        for i in (0, 1, 7, 39):
            alone = s.linear_chain(e[i, : lengths[i]], t)
            padded = s.linear_chain(np.pad(e[i], ((0, 9), (0, 0)), constant_values=math.nan), t, lengths=lengths[i])
            for one in (alone, padded):
                assert_array_equal(one.log_z, whole.log_z[i])
                length = one.marginals().shape[0]
                path = np.zeros(length, np.int64)
                assert_array_equal(one.log_prob(path), whole.log_prob(np.zeros((40, 12), np.int64))[i])
                assert_array_equal(one.entropy(), whole.entropy()[i])
                n = min(lengths[i], one.marginals().shape[0])
                assert_array_equal(one.marginals()[:n], whole.marginals()[i, :n])
                assert_array_equal(one.pair_marginals()[: max(n - 1, 0)], whole.pair_marginals()[i, : max(n - 1, 0)])
                assert_array_equal(one.best().tags[:n], whole.best().tags[i, :n])
                assert_array_equal(one.sample(3, seed=5, stream=i)[:, :n], drawn[i, :, :n])
                assert_array_equal(one.sample(seed=5, stream=i)[:n], drawn[i, 0, :n])
    s.set_num_threads(0)
    outside = np.arange(12) >= lengths[:, None]
    assert (whole.marginals()[outside] == 0).all()
    assert (whole.best().tags[outside] == -1).all()
    assert (drawn.transpose(0, 2, 1)[outside] == -1).all()


def test_many_tags_and_sequences() -> None:
    """More tags than one step of the product takes at once, and more sequences than groups of sums, on threads."""
    e, t = draw(40, 9, 37), draw(37, 37, seed=1)

    def results() -> tuple[np.ndarray, ...]:
        chain = s.linear_chain(e, t)
        return chain.log_z, chain.marginals(), chain.pair_marginals()

    found = results()
    with s.using("reference"):
        for one, wanted in zip(found, results(), strict=True):
            assert_allclose(one, wanted, rtol=1e-12, atol=1e-15)
    for threads in (1, 2, 3):
        s.set_num_threads(threads)
        for one, again in zip(found, results(), strict=True):
            assert_array_equal(one, again)
    s.set_num_threads(0)


def test_one_matrix_per_sequence() -> None:
    e, t = draw(2, 4, 3), draw(2, 1, 3, 3, seed=1)
    assert_array_equal(s.linear_chain(e, t).log_z, [s.linear_chain(x, y[0]).log_z for x, y in zip(e, t, strict=True)])


def test_start_and_end() -> None:
    e, t, start, end = draw(2, 4, 3), draw(3, 3, seed=1), draw(3, seed=2), draw(3, seed=3)
    chain = s.linear_chain(e, t, lengths=[4, 2], start=start, end=end)
    for i, n in enumerate((4, 2)):
        one = e[i, :n].copy()
        one[0] += start
        one[-1] += end
        assert_allclose(chain.log_z[i], paths(one, t).log_z, rtol=1e-14)


@pytest.mark.parametrize("implementation", BACKENDS)
def test_edges(implementation: str) -> None:
    with s.using(implementation):
        no_path = s.linear_chain(np.zeros((2, 2)), np.full((2, 2), -INF))
        assert no_path.log_z == -INF
        assert (no_path.marginals() == 0).all()
        assert no_path.entropy() == 0
        assert_array_equal(no_path.best().tags, [-1, -1])
        assert no_path.log_prob([0, 1]) == -INF
        masked = s.linear_chain([[0.0, -INF], [0.0, 0.0]], [[0.0, 0.0], [INF, 0.0]])
        assert_array_equal(masked.marginals(), [[1.0, 0.0], [0.5, 0.5]])
        assert math.isnan(s.linear_chain(np.array([[0.0, math.nan]]), np.zeros((2, 2))).log_z)
        assert math.isnan(s.linear_chain(np.array([[0.0, math.nan], [0.0, 0.0]]), np.zeros((2, 2))).log_z)
        dead = np.array([[0.0, -INF], [-INF, 0.0]])  # only tag 0, then only tag 1
        one = s.linear_chain(dead, np.array([[-700.0, -800.0], [0.0, 0.0]]))
        assert one.log_z == -800
        assert_array_equal(one.marginals(), [[1.0, 0.0], [0.0, 1.0]])


def test_draws_have_the_probabilities_of_paths() -> None:
    e, t = draw(4, 3), draw(3, 3, seed=1)
    truth = paths(e, forbidden(t))
    n = 40_000
    drawn = s.linear_chain(e, forbidden(t)).sample(n, seed=3)
    counts = np.bincount(drawn @ 3 ** np.arange(3, -1, -1), minlength=81)
    expected = truth.p * n
    assert counts[expected == 0].sum() == 0
    some = expected > 0
    chi2 = ((counts[some] - expected[some]) ** 2 / expected[some]).sum()
    assert chi2 < some.sum() + 5 * math.sqrt(2 * some.sum())


RESULTS: dict[str, Any] = {
    "log_z": lambda chain, _: chain.log_z,
    "marginals": lambda chain, _: chain.marginals(),
    "pair_marginals": lambda chain, _: chain.pair_marginals(),
    "entropy": lambda chain, _: chain.entropy(),
    "log_prob": lambda chain, tags: chain.log_prob(tags),
    "best": lambda chain, _: chain.best().tags,
    "best paths": lambda chain, _: chain.best(3).score,
    "sample": lambda chain, _: chain.sample(2, seed=1),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("length", [0, 1, 4])
def test_strict_arrays(length: int, name: str) -> None:
    """Arrays of array-api-strict, which refuse everything outside of the standard."""
    arrays = [draw(2, length, 3), draw(2, max(length - 1, 0), 3, 3, seed=1), np.array([length, length // 2])]
    tags, shared = np.zeros((2, length), np.int64), draw(3, 3, seed=1)
    e, t, lengths, y, same = map(array_api_strict.asarray, (*arrays, tags, shared))
    for one, own in (
        (
            s.linear_chain(e, t, lengths=lengths, start=same[0, :], end=same[1, :]),
            s.linear_chain(*arrays[:2], lengths=arrays[2], start=shared[0], end=shared[1]),
        ),
        (s.linear_chain(e, same), s.linear_chain(arrays[0], shared)),
    ):
        found = RESULTS[name](one, y)
        assert type(found) is type(e)
        assert_allclose(np.asarray(found), RESULTS[name](own, tags), rtol=1e-12, atol=1e-15)


def test_half_precision_and_lists() -> None:
    e, t = draw(5, 3).astype("f2"), draw(3, 3, seed=1).astype("f2")
    chain = s.linear_chain(e, t)
    assert chain.log_z.dtype == np.float32
    assert_array_equal(chain.log_z, s.linear_chain(e.astype("f4"), t.astype("f4")).log_z)
    assert s.linear_chain([[0, 1]], [[0, 0], [0, 0]]).log_z == math.log1p(math.e)


GOOD: dict[str, Any] = {"e": np.zeros((2, 4, 3)), "t": np.zeros((3, 3))}


@pytest.mark.parametrize(
    ("e", "t", "options", "error", "words"),
    [
        (np.zeros(3), GOOD["t"], {}, ValueError, "emissions: expected shape"),
        (np.zeros((4, 0)), GOOD["t"], {}, ValueError, "emissions: expected shape"),
        (GOOD["e"], np.zeros((3, 2)), {}, ValueError, r"transitions: expected \(3, 3\)"),
        (GOOD["e"], np.zeros((4, 3, 3)), {}, ValueError, "transitions: expected"),
        (GOOD["e"], GOOD["t"], {"lengths": [1]}, ValueError, "lengths: expected integers of shape"),
        (GOOD["e"], GOOD["t"], {"lengths": [1.0, 2.0]}, ValueError, "lengths: expected integers"),
        (GOOD["e"], GOOD["t"], {"lengths": [1, 5]}, ValueError, "lengths: expected integers from 0 to 4"),
        (GOOD["e"], GOOD["t"], {"start": np.zeros(2)}, ValueError, r"start: expected shape \(3,\)"),
        (GOOD["e"], GOOD["t"], {"end": np.zeros((3, 1))}, ValueError, r"end: expected shape \(3,\)"),
        (GOOD["e"], "no", {}, TypeError, "transitions"),
    ],
)
def test_errors(e: Any, t: Any, options: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        s.linear_chain(e, t, **options)


def test_errors_of_paths_and_draws() -> None:
    chain = s.linear_chain(GOOD["e"], GOOD["t"], lengths=[4, 2])
    with pytest.raises(IndexError, match=r"tags: expected 0 to 2, got 3 at \(1, 1\)"):
        chain.score([[0, 0, 0, 0], [0, 3, 9, 9]])
    with pytest.raises(ValueError, match="tags: expected integers of shape"):
        chain.score([0, 0, 0, 0])
    with pytest.raises(ValueError, match="num_samples: expected"):
        chain.sample(0, seed=1)
    with pytest.raises(TypeError, match="seed"):
        chain.sample(seed="a")
