"""The best paths of linear chains, against all paths."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.structure.test_linear_chain import BACKENDS, CASES, draw, paths

import softargmax as s


@pytest.mark.parametrize("implementation", BACKENDS)
@pytest.mark.parametrize("count", [1, 2, 7, 100])
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_the_best_paths_of_all(case: tuple[Any, Any], count: int, implementation: str) -> None:
    e, t = case
    truth = paths(e, t)
    possible = [i for i in np.argsort(-truth.score, kind="stable") if truth.score[i] > -math.inf][:count]
    with s.using(implementation):
        found = s.linear_chain(e, t).best(count)
    assert found.tags.shape == (count, len(e))
    assert_array_equal(found.tags[: len(possible)], truth.tags[possible])
    assert_allclose(found.score[: len(possible)], truth.score[possible], rtol=1e-12)
    assert (found.tags[len(possible) :] == -1).all()
    assert (found.score[len(possible) :] == -math.inf).all()


@pytest.mark.parametrize("implementation", BACKENDS)
def test_equal_scores_have_the_first_tags(implementation: str) -> None:
    """The last tag decides first, then the tag before it, and so on: each tag's list is in this order."""
    e, t = np.zeros((3, 2)), np.zeros((2, 2))
    with s.using(implementation):
        tags = s.linear_chain(e, t).best(8).tags
    assert_array_equal(tags @ [1, 2, 4], np.arange(8))


def test_batches_lengths_threads_and_dtypes() -> None:
    e, t, ends = draw(40, 9, 5).astype("f4"), draw(40, 8, 5, 5, seed=1).astype("f4"), draw(2, 5, seed=2)
    lengths = np.random.default_rng(3).integers(0, 10, 40)
    results = []
    for threads in (1, 2):
        s.set_num_threads(threads)
        results.append(s.linear_chain(e, t, lengths=lengths, start=ends[0], end=ends[1]).best(3))
    s.set_num_threads(0)
    for one, other in zip(*results, strict=True):
        assert_array_equal(one, other)
    assert results[0].score.dtype == np.float32
    for i, n in enumerate(lengths):
        alone = s.linear_chain(e[i, :n], t[i, : max(n - 1, 0)], start=ends[0], end=ends[1])
        assert_array_equal(alone.best(3).tags, results[0].tags[i, :, :n])
        assert_array_equal(alone.best(3).score, results[0].score[i])
        for tags, score in zip(*alone.best(3), strict=True):
            assert score == -math.inf or alone.score(tags) == pytest.approx(score, rel=1e-6)
        assert (results[0].tags[i, :, n:] == -1).all()


@pytest.mark.parametrize("implementation", BACKENDS)
def test_a_nan_on_a_path_makes_all_scores_nan(implementation: str) -> None:
    e = np.zeros((2, 3, 2))
    e[0, 1, 1] = math.nan
    with s.using(implementation):
        found = s.linear_chain(e, np.zeros((2, 2))).best(4)
    assert np.isnan(found.score[0]).all()
    assert (found.tags[0] == -1).all()
    assert (found.score[1] == 0).all()


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True])
def test_errors(count: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="num_paths: expected"):
        s.linear_chain(np.zeros((2, 2)), np.zeros((2, 2))).best(count)
