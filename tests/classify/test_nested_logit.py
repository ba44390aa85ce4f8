"""NestedLogit against the definition, the conditional logit and random utilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize

from softargmax.classify import ConditionalLogit, NestedLogit
from softargmax.classify.choice_sets import ChoiceSets
from softargmax.classify.nests import levels_of, log_probabilities, set_gradients, tree_of

DEEP = {"A": {"B": ["p", "q"], "r": ["r"]}, "C": ["s", "t"], "D": {"E": {"F": ["u"]}}}
FLAT = {"left": ["p", "q", "r"], "right": ["s", "t", "u"]}
LABELS = np.array(list("pqrstu"))


class Table(NamedTuple):
    """Choices in long format."""

    X: np.ndarray
    y: np.ndarray
    choosers: np.ndarray
    labels: np.ndarray


def draw(choosers: int = 60, seed: int = 0, features: int = 2) -> Table:
    """Return choices among some of the six alternatives, two or more for each chooser, in any order of the rows."""
    rng = np.random.default_rng(seed)
    there = rng.random((choosers, 6)) < 0.7
    there[:, 0] = there[np.arange(choosers), rng.integers(1, 6, choosers)] = True
    owner, alternative = np.nonzero(there)
    X = rng.standard_normal((len(owner), features))
    utility = X @ (-1.0) ** np.arange(features) + rng.gumbel(size=len(owner))
    best = np.array([utility[owner == i].max() for i in range(choosers)])
    order = rng.permutation(len(owner))
    return Table(*(x[order] for x in (X, utility == best[owner], owner, LABELS[alternative])))


def log_p(z: dict[Any, float], nests: Any, scales: Mapping[str, float], scale: float = 1.0) -> dict[Any, float]:
    """Return log p of each alternative in a nest, and the value of the nest: the formula, for one chooser."""
    children: list[tuple[float, dict[Any, float]]] = []
    if isinstance(nests, Mapping):
        for name, members in nests.items():
            inner = log_p(z, members, scales, scales.get(name, 1.0))
            if inner:
                children.append((inner.pop("value"), inner))
    else:
        children = [(z[one], {one: 0.0}) for one in nests if one in z]
    if not children:
        return {}
    lse = math.log(sum(math.exp(value / scale) for value, _ in children))
    found = {one: value / scale - lse + own for value, inner in children for one, own in inner.items()}
    return found | {"value": scale * lse}


def truth(t: Table, coef: np.ndarray, nests: Any, scales: Mapping[str, float]) -> np.ndarray:
    found = np.zeros(len(t.y))
    for i in np.unique(t.choosers):
        rows = np.flatnonzero(t.choosers == i)
        p = log_p(dict(zip(t.labels[rows], t.X[rows] @ coef, strict=True)), nests, scales)
        found[rows] = [p[one] for one in t.labels[rows]]
    return found


def arranged(t: Table, nests: Any) -> tuple[ChoiceSets, Any]:
    tree = tree_of(nests)
    position = np.array([tree.alternatives.index(one) for one in t.labels])
    order = np.lexsort((position, t.choosers))
    bounds = np.append(np.flatnonzero(np.diff(t.choosers[order], prepend=-1)), len(order))
    sets = ChoiceSets(t.X[order], bounds, t.y[order].astype(np.int64), None, np.ones(len(bounds) - 1), position[order])
    return sets, (tree, order, levels_of(tree, bounds, position[order]))


CHAIN = {"out": {"in": ["p", "q"]}, "single": ["r"], "rest": ["s", "t", "u"]}
CASES = {
    "chain": (CHAIN, {"in": 0.4, "rest": 0.9}),
    "flat": (FLAT, {"left": 0.4, "right": 0.8}),
    "deep": (DEEP, {"A": 0.7, "B": 0.3, "C": 0.5}),
}
each = pytest.mark.parametrize(("nests", "scales"), CASES.values(), ids=list(CASES))


@each
def test_probabilities(nests: Any, scales: dict[str, float]) -> None:
    t, coef = draw(), np.array([0.8, -1.2])
    sets, (tree, order, levels) = arranged(t, nests)
    assert tree.names == tuple(scales)
    found = log_probabilities(levels, sets.X @ coef, np.array(list(scales.values())))
    assert_allclose(found, truth(t, coef, nests, scales)[order], rtol=1e-12, atol=1e-13)
    sums = np.add.reduceat(np.exp(found), sets.offsets[:-1])
    assert_allclose(sums, 1.0, rtol=1e-13)


@each
def test_gradients(nests: Any, scales: dict[str, float]) -> None:
    sets, (_, _, levels) = arranged(draw(), nests)
    point = np.array([0.8, -1.2, *scales.values()])
    found, slopes = set_gradients(sets, levels, point[:2], point[2:])
    rows = log_probabilities(levels, sets.X @ point[:2], point[2:])
    assert_allclose(found, rows[np.flatnonzero(sets.rank)], rtol=1e-12, atol=1e-14)
    step = 1e-5
    for i, unit in enumerate(np.eye(len(point)) * step):
        up, down = (set_gradients(sets, levels, x[:2], x[2:])[0] for x in (point + unit, point - unit))
        assert_allclose(slopes[:, i], (up - down) / (2 * step), rtol=1e-6, atol=1e-7)


@each
def test_the_fit_is_the_maximum(nests: Any, scales: dict[str, float]) -> None:
    t = draw(150)
    model = NestedLogit(nests, fit_constants=False).fit(t.X, t.y, t.choosers, alternatives=t.labels)

    def loss(x: np.ndarray) -> float:
        return -float(truth(t, x[:2], nests, dict(zip(scales, x[2:], strict=True)))[t.y].sum())

    assert_allclose(model.log_likelihood_, -loss(model.coef_), rtol=1e-12)
    found = minimize(loss, np.array([1.0, -1.0, *([0.9] * len(scales))]), method="Nelder-Mead", tol=1e-10)
    assert_allclose(model.coef_, found.x, atol=1e-4)
    assert model.scales_ == dict(zip(scales, model.coef_[2:], strict=True))
    assert list(model.names_) == ["x0", "x1", *scales]
    p = model.predict_proba(t.X, t.choosers, alternatives=t.labels)
    assert_allclose(np.log(p), truth(t, model.coef_[:2], nests, model.scales_), rtol=1e-12, atol=1e-13)


def test_scales_of_one_are_the_conditional_logit() -> None:
    t = draw(400)
    flat = ConditionalLogit().fit(t.X, t.y, t.choosers, alternatives=t.labels)
    single = {one: [one] for one in LABELS}
    nested = NestedLogit(single).fit(t.X, t.y, t.choosers, alternatives=t.labels)
    assert_allclose(nested.coef_, flat.coef_, rtol=1e-6, atol=1e-8)
    assert_allclose(nested.covariance_, flat.covariance_, rtol=1e-5, atol=1e-9)
    assert_allclose(nested.robust_covariance_, flat.robust_covariance_, rtol=1e-5, atol=1e-9)
    wider = NestedLogit(FLAT).fit(t.X, t.y, t.choosers, alternatives=t.labels)
    test = wider.likelihood_ratio_test(flat)
    assert test.degrees_of_freedom == 2
    assert test.p_value > 0.01  # the utilities were independent


def test_it_recovers_alternatives_that_are_alike() -> None:
    """The scale of a nest in which utilities have the correlation 1 - s^2 is s."""
    rng, choosers, scale = np.random.default_rng(0), 6000, 0.5
    X = rng.standard_normal((choosers, 4, 1))
    z = 1.3 * X[..., 0]
    value = scale * np.log(np.exp(z[:, :2] / scale).sum(axis=1))
    nest = np.column_stack([value, z[:, 2:]])
    top = (nest + rng.gumbel(size=nest.shape)).argmax(axis=1)
    inner = (z[:, :2] / scale + rng.gumbel(size=(choosers, 2))).argmax(axis=1)
    chosen = np.where(top == 0, inner, top + 1)
    owner, label = np.repeat(np.arange(choosers), 4), np.tile(np.arange(4), choosers)
    y = chosen[owner] == label
    nests = {"pair": [0, 1], "c": [2], "d": [3]}
    model = NestedLogit(nests).fit(X.reshape(-1, 1), y, owner, alternatives=label)
    errors = model.summary().std_err
    assert_allclose(model.coef_, [1.3, 0, 0, 0, scale], atol=4 * errors.max())
    assert errors.max() < 0.06
    assert_allclose(model.summary(robust=True).std_err, errors, rtol=0.1)


def test_weights_and_available_alternatives() -> None:
    t = draw(100)
    available = t.y | (np.random.default_rng(1).random(len(t.y)) < 0.7)
    options = {"fit_constants": False}
    masked = NestedLogit(FLAT, **options).fit(t.X, t.y, t.choosers, alternatives=t.labels, available=available)
    rows = [x[available] for x in t]
    dropped = NestedLogit(FLAT, **options).fit(*rows[:3], alternatives=rows[3])
    assert_allclose(masked.coef_, dropped.coef_, rtol=1e-8)
    twice = NestedLogit(FLAT, **options).fit(*t[:3], alternatives=t.labels, sample_weight=np.full(len(t.y), 2.0))
    once = NestedLogit(FLAT, **options).fit(*t[:3], alternatives=t.labels)
    assert_allclose(twice.coef_, once.coef_, rtol=1e-6)
    assert_allclose(twice.covariance_, once.covariance_ / 2, rtol=1e-4, atol=1e-9)
    assert_array_equal(
        masked.predict_proba(t.X, t.choosers, alternatives=t.labels, available=available) == 0, ~available
    )


def test_alternatives_that_are_the_same_warn() -> None:
    """The scale of two identical buses tends to 0."""
    rng, choosers = np.random.default_rng(0), 400
    owner, label = np.repeat(np.arange(choosers), 3), np.tile(["blue", "car", "red"], choosers)
    price = rng.uniform(0, 2, (choosers, 3))
    utility = -price + rng.gumbel(size=(choosers, 2))[:, [0, 1, 0]]
    y = (utility == utility.max(axis=1, keepdims=True)).ravel()
    nests = {"bus": ["blue", "red"], "road": ["car"]}
    with pytest.warns(Warning, match="nests: the scale of 'bus' is at its lower bound; treat its alternatives as one"):
        model = NestedLogit(nests, fit_constants=False).fit(price.reshape(-1, 1), y, owner, alternatives=label)
    assert model.scales_ == {"bus": 1e-3}
    assert np.isfinite(model.summary().std_err[0])
    assert np.isnan(model.summary().std_err[1])


def test_the_offset_is_part_of_the_score() -> None:
    t = draw(100)
    shift = np.random.default_rng(4).standard_normal(len(t.y))
    options = {"alternatives": t.labels}
    model = NestedLogit(FLAT, fit_constants=False).fit(np.column_stack([t.X, shift]), t.y, t.choosers, **options)
    known = shift * model.coef_[2]
    fixed = NestedLogit(FLAT, fit_constants=False).fit(*t[:3], **options, offset=known)
    assert_allclose(fixed.coef_, np.delete(model.coef_, 2), rtol=1e-5)
    p = fixed.predict_proba(t.X, t.choosers, **options, offset=known)
    assert_allclose(p, model.predict_proba(np.column_stack([t.X, shift]), t.choosers, **options), rtol=1e-5)


T = draw(20)


def fit(nests: Any, labels: Any = T.labels, y: Any = T.y) -> None:
    NestedLogit(nests).fit(T.X, y, T.choosers, alternatives=labels)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fit([["p"]]), TypeError, "nests: expected a dict of names and alternatives, got list"),
        (lambda: fit({}), TypeError, "nests: expected a dict"),
        (
            lambda: fit({"a": ["p", "q"], "b": ["q"]}),
            ValueError,
            "nests: expected each alternative in one nest, got 'q'",
        ),
        (lambda: fit({"a": [], "b": ["q"]}), ValueError, "nests: expected alternatives in nest 'a'"),
        (lambda: fit({"a": "pq"}), ValueError, "nests: expected alternatives in nest 'a', got 'pq'"),
        (
            lambda: fit({"a": {"a": ["p", "q"], "c": ["r"]}}),
            ValueError,
            "nests: expected different names, got 'a' twice",
        ),
        (
            lambda: fit({"a": ["p", {"b": ["q"]}]}),
            ValueError,
            "nests: expected a list .*, or a dict .*, got both in 'a'",
        ),
        (lambda: fit({"a": ["p", "q"]}), ValueError, "alternatives: expected one of 'p', 'q', got 'r'"),
        (lambda: fit(FLAT, None), ValueError, "alternatives: expected a label for each row, got None"),
        (lambda: fit(FLAT, y=T.y * 2 - 0), ValueError, "y: expected the ranks 1, 2"),
        (NestedLogit, TypeError, "nests"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
