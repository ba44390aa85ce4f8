"""Filters keep the same sets as brute force and as Hugging Face's warpers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.oracle.backends import Backend
from tests.sample.tracing import traced
from tests.sample.truth import NAMES, distribution

import softargmax

pytestmark = pytest.mark.sanitize

VALUES = {"top_k": 5, "top_p": 0.7, "min_p": 0.08, "typical_p": 0.6, "epsilon": 0.02, "eta": 0.05}
RNG = np.random.default_rng(3)


def kept(z: Any, **options: Any) -> np.ndarray:
    return np.asarray(softargmax.filter_scores(z, **options)) > -np.inf


@pytest.mark.parametrize("order", ["top_k_first", "joint"])
@pytest.mark.parametrize("classes", [6, 100, 129, 5000])
def test_sets_of_brute_force(classes: int, order: str) -> None:
    """Every filter, every pair of filters, and all filters together keep the same classes as brute force."""
    combinations = [{a: VALUES[a], b: VALUES[b]} for i, a in enumerate(NAMES) for b in NAMES[i:]] + [VALUES]
    for number, filters in enumerate(combinations):
        z = RNG.standard_normal(classes) * (0.3, 1.0, 4.0, 30.0)[number % 4]
        t = (1.0, 0.6, 2.0)[number % 3]
        expected = distribution(z, t, order, **filters) > 0
        assert (kept(z, temperature=t, order=order, **filters) == expected).all(), (filters, t)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_core_and_reference_agree(dtype: str) -> None:
    for number in range(150):
        rng = np.random.default_rng(number)
        classes = int(rng.choice([1, 2, 5, 64, 200, 3000, 9000]))
        z = (rng.standard_normal((3, classes)) * rng.choice([0.01, 1, 5, 100])).astype(dtype)
        if number % 3 == 0:
            z = np.round(z)  # ties
        z[rng.random(z.shape) < 0.05] = -np.inf
        z[:, 0] = np.where(number % 7 == 0, np.inf, 1.0)
        names = rng.permutation(NAMES)[: rng.integers(1, 4)]
        drawn = {
            "top_k": int(rng.integers(1, classes + 1)),
            "top_p": rng.uniform(0.01, 1),
            "min_p": rng.uniform(0, 1) ** 3,
            "typical_p": rng.uniform(0.01, 1),
            "epsilon": rng.uniform(0, 1) ** 5,
            "eta": rng.uniform(0, 1) ** 5,
        }
        options = {str(n): drawn[str(n)] for n in names}
        options |= {
            "temperature": float(rng.choice([0.0, 0.3, 1.0, 4.0, np.inf])),
            "order": rng.choice(["top_k_first", "joint"]),
        }
        found = softargmax.filter_scores(z, **options)
        with softargmax.using("reference"):
            assert np.array_equal(found, softargmax.filter_scores(z, **options)), (number, options)


def test_ties_are_cut_by_column() -> None:
    z = np.array([1.0, 2.0, 2.0, 1.0, 2.0, 1.0])
    for implementation in ("native", "reference"):
        with softargmax.using(implementation):
            assert kept(z, top_k=2).tolist() == [0, 1, 1, 0, 0, 0]
            assert kept(z, top_k=4).tolist() == [1, 1, 1, 0, 1, 0]
            assert kept(np.zeros(10), top_p=0.5).tolist() == [1] * 5 + [0] * 5
            assert kept(np.zeros(10), top_p=0.51).tolist() == [1] * 6 + [0] * 4
            assert kept(z, min_p=1.0).tolist() == [0, 1, 1, 0, 1, 0]
            assert kept(np.zeros(8), typical_p=0.25).tolist() == [1, 1] + [0] * 6


@pytest.mark.parametrize("value", [0.0, 3.0])
@pytest.mark.parametrize("classes", [200, 5000, 70_000])
def test_long_ties(classes: int, value: float) -> None:
    """Filters keep the right classes, even if a row has more equal scores than the kernel's lists can store."""
    z = np.full((2, classes), 1.0)
    z[1, ::2] += value
    for dtype in ("float32", "float64"):
        found = kept(z.astype(dtype), top_p=0.3)
        assert found[0].sum() == int(np.ceil(0.3 * classes))
        assert found[0, : found[0].sum()].all()
        with softargmax.using("reference"):
            assert np.array_equal(found, kept(z.astype(dtype), top_p=0.3))
        assert kept(z.astype(dtype), top_k=classes // 3).sum(axis=1).tolist() == [classes // 3] * 2


def test_scores_closer_than_a_distance_can_tell() -> None:
    """If the distances of different scores from the maximum round to the same number, larger scores come first."""
    small = np.random.default_rng(0).permutation(5000) * 2.0**-1070
    for scores, p_small in ((small, 1 / 5000), (np.append(small, 1.0), 1 / (5000 + np.e))):
        order = np.argsort(-scores, kind="stable")
        mass = np.cumsum(np.where(scores[order] == 1.0, np.e * p_small, p_small))
        for options, number in (({"top_k": 4500}, 4500), ({"top_p": 0.61234}, np.searchsorted(mass, 0.61234) + 1)):
            for implementation in ("native", "reference"):
                with softargmax.using(implementation):
                    found = kept(scores, **options)
                assert sorted(order[:number]) == np.flatnonzero(found).tolist(), (implementation, options)


@pytest.mark.parametrize("order", ["top_k_first", "joint"])
def test_the_order_is_that_of_scores(backend: Backend, order: str) -> None:
    """Filters order scores exactly, even if their distances from the maximum round to the same number."""
    for row, dtype in (([20, 1.0000001, 1.0000002], "float32"), ([1.0, 1e-17, 2e-17], "float64")):
        if dtype not in backend.dtypes:
            continue
        z = backend.array(row, dtype)
        for options in ({"top_k": 2}, {"top_k": 2, "top_p": 1.0 - 1e-15}):
            run = traced(backend, lambda z, o=options: softargmax.filter_scores(z, order=order, **o))
            assert (backend.back(run(z)) > -np.inf).tolist() == [True, False, True]
    many = np.append(20.0, np.random.default_rng(0).permutation(40) * 2.0**-23 + 1.0).astype(np.float32)
    first = np.argsort(-many, kind="stable")
    run = traced(backend, lambda z: softargmax.filter_scores(z, top_p=0.75, temperature=10.0, order=order))
    found = np.flatnonzero(backend.back(run(backend.array(many))) > -np.inf)
    assert 1 < found.size < many.size
    assert sorted(first[: found.size]) == found.tolist()


def test_joint_filters_keep_the_top_score(backend: Backend) -> None:
    """The top score is kept, even if an earlier score of the row is smaller by a distance that rounds to 0."""
    z = np.array([0.0, 5e-324, *[-1.0] * 40])
    if "float64" in backend.dtypes:
        found = softargmax.filter_scores(backend.array(z), top_k=1, typical_p=0.1, order="joint")
        assert np.flatnonzero(backend.back(found) > -np.inf).tolist() == [1]


WARPERS = {
    "top_k": "TopKLogitsWarper",
    "top_p": "TopPLogitsWarper",
    "min_p": "MinPLogitsWarper",
    "typical_p": "TypicalLogitsWarper",
    "epsilon": "EpsilonLogitsWarper",
    "eta": "EtaLogitsWarper",
}


@pytest.mark.parametrize("name", WARPERS)
def test_sets_of_hugging_face(name: str) -> None:
    """filter_scores equals Hugging Face's warpers. Rows are float64 without ties, so rounding moves no boundary."""
    process = pytest.importorskip("transformers.generation.logits_process")
    import torch

    for value in {"top_k": (1, 5, 50)}.get(name, (0.03, 0.3, 0.9)):
        warper = getattr(process, WARPERS[name])(value)
        for spread in (0.5, 2.0, 6.0):
            z = (
                torch.randn(8, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(int(spread * 2)))
                * spread
            )
            theirs = warper(None, z.clone())
            assert torch.equal(softargmax.filter_scores(z, **{name: value}), theirs), (value, spread)


def test_a_chain_of_hugging_face() -> None:
    process = pytest.importorskip("transformers.generation.logits_process")
    import torch

    z = torch.randn(16, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    x = process.TemperatureLogitsWarper(0.7)(None, z)
    for warper in (process.TopKLogitsWarper(60), process.TopPLogitsWarper(0.8), process.MinPLogitsWarper(0.02)):
        x = warper(None, x)
    ours = softargmax.filter_scores(z, temperature=0.7, top_k=60, top_p=0.8, min_p=0.02)
    assert torch.equal(ours > -torch.inf, x > -torch.inf)


def test_float32_against_hugging_face() -> None:
    """In float32, at most one token per row differs from Hugging Face's. Ours are then the tokens of float64."""
    process = pytest.importorskip("transformers.generation.logits_process")
    import torch

    z = torch.randn(32, 2000, generator=torch.Generator().manual_seed(1)) * 3
    theirs = (process.TopPLogitsWarper(0.9)(None, z.clone()) > -torch.inf).numpy()
    ours = kept(z, top_p=0.9)
    for row in np.flatnonzero((ours != theirs).any(axis=1)):
        assert (ours[row] != theirs[row]).sum() == 1
        assert (ours[row] == (distribution(z[row].numpy(), top_p=0.9) > 0)).all()


def test_every_backend(backend: Backend) -> None:
    z = RNG.standard_normal((4, 60)).astype("float32") * 3
    for options in (
        VALUES,
        {"top_k": [1, 2, 3, 60], "top_p": [0.1, 0.5, 0.9, 1.0], "temperature": [1.0, 0.0, 2.0, 0.5]},
    ):
        given = {
            k: backend.array(v, "int32" if k == "top_k" else "float32") if isinstance(v, list) else v
            for k, v in options.items()
        }
        run = traced(backend, lambda z, given=given: softargmax.filter_scores(z, **given))
        found = backend.back(run(backend.array(z)))
        for i, row in enumerate(z):
            one = {k: v[i] if isinstance(v, list) else v for k, v in options.items()}
            t = one.pop("temperature", 1.0)
            p = distribution(row, t or 1.0, **(one if t else {"top_k": 1}))
            assert ((found[i] > -np.inf) == (p > 0)).all()


def test_order_changes_the_set() -> None:
    z = np.log([0.4, 0.3, 0.2, 0.1])
    assert kept(z, top_k=2, top_p=0.7).tolist() == [1, 1, 0, 0]
    assert kept(z, top_k=2, top_p=0.5).tolist() == [1, 0, 0, 0]
    assert kept(z, top_k=2, top_p=0.5, order="joint").tolist() == [1, 1, 0, 0]


def test_joint_filters_keep_at_least_one_class() -> None:
    """If the typical classes and the top classes do not overlap, the top class is kept."""
    z = np.log(np.append(0.4, np.full(60, 0.01)))
    for implementation in ("native", "reference"):
        with softargmax.using(implementation):
            assert kept(z, typical_p=0.3, top_k=1, order="joint").sum() == 1
            assert kept(z, typical_p=0.3, top_k=1, order="joint")[0]
            assert not kept(z, typical_p=0.3)[0]


@pytest.mark.parametrize("order", ["top_k_first", "joint"])
def test_draws_have_every_filter(quick: Backend, order: str) -> None:
    """Draws with a filter equal draws from the result of `filter_scores` at the same temperature."""
    z = np.random.default_rng(8).standard_normal((40, 30))
    for filters in ({name: VALUES[name]} for name in NAMES):
        left = softargmax.filter_scores(quick.array(z), temperature=1.5, order=order, **filters)
        options = {"temperature": 1.5, "num_samples": 20, "seed": 3}
        expected = quick.back(softargmax.categorical(left, **options))
        found = softargmax.categorical_with_logprob(quick.array(z), order=order, **options, **filters)
        assert (quick.back(found.index) == expected).all(), filters
        sizes = [(distribution(row, 1.5, order, **filters) > 0).sum() for row in z]
        assert quick.back(found.support_size).tolist() == sizes


@pytest.mark.parametrize("axis", [0, 1, -2])
def test_classes_along_any_axis(quick: Backend, axis: int) -> None:
    """Classes along any axis give the results of classes along the last axis.

    The test uses parameters per row with and without the class axis, masks with fewer axes, and streams of the rows.
    """
    rng = np.random.default_rng(9)
    z = rng.standard_normal((6, 7, 5))
    rows = np.moveaxis(z, axis, -1)
    temperature, k = rng.uniform(0.5, 2.0, rows.shape[:-1]), rng.integers(1, 5, rows.shape[:-1])
    where = rng.random((6, 1, 1) if axis == 0 else (7, 5)) < 0.8
    plain = {"temperature": temperature, "top_k": k, "typical_p": 0.9}
    masked = np.moveaxis(np.broadcast_to(where, z.shape), axis, -1)
    given = {
        "temperature": quick.array(np.expand_dims(temperature, axis)),
        "top_k": quick.array(k, "int32"),
        "typical_p": 0.9,
        "where": quick.array(where, "bool"),
    }
    draws = {"seed": 5, "stream": rng.permutation(temperature.size).reshape(temperature.shape), "num_samples": 3}
    expected = softargmax.categorical(rows, where=masked, **plain, **draws)
    draws["stream"] = quick.array(draws["stream"], "int32")
    found = softargmax.categorical(quick.array(z), axis=axis, **given, **draws)
    assert (quick.back(found) == expected).all()
    left = quick.back(softargmax.filter_scores(quick.array(z), axis=axis, **given))
    assert (np.moveaxis(left, axis, -1) == softargmax.filter_scores(rows, where=masked, **plain)).all()
    policy = quick.back(softargmax.boltzmann_policy(quick.array(z), axis=axis, temperature=1.0, epsilon=0.1))
    np.testing.assert_allclose(policy.sum(axis=axis), 1.0, rtol=1e-6)
