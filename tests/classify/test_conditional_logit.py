"""ConditionalLogit against statsmodels, published coefficients, and the definition."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize

from softargmax.classify import ConditionalLogit, choice_sets
from softargmax.classify.choice_sets import ChoiceSets, likelihood

statsmodels = pytest.importorskip("statsmodels.api")
conditional_models = pytest.importorskip("statsmodels.discrete.conditional_models")
MODES = {1: "air", 2: "train", 3: "bus", 4: "a car"}


class Table(NamedTuple):
    """Choices in long format."""

    X: np.ndarray
    y: np.ndarray
    choosers: np.ndarray


def draw(choosers: int = 40, features: int = 3, seed: int = 0, most: int = 6) -> Table:
    """Return choices from the model with coefficients 1, -1, 1, .. among 2 to `most` alternatives."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, most + 1, choosers)
    owner = np.repeat(np.arange(choosers), sizes)
    X = rng.standard_normal((len(owner), features)) * 0.7 + 5
    utility = X @ (-1.0) ** np.arange(features) + rng.gumbel(size=len(owner))
    best = np.maximum.reduceat(utility, np.append(0, np.cumsum(sizes)[:-1]))
    return Table(X, utility == best[owner], owner)


@pytest.fixture(scope="module")
def travel() -> Any:
    data = statsmodels.datasets.modechoice.load_pandas().data
    data["label"] = data["mode"].map(MODES)
    data["income_air"] = data.hinc * (data["mode"] == 1)
    return data


def log_likelihood(coef: np.ndarray, t: Table, weight: np.ndarray | None = None) -> float:
    total = 0.0
    for i in np.unique(t.choosers):
        z, chosen = t.X[t.choosers == i] @ coef, t.y[t.choosers == i] > 0
        own = z[chosen].item() - z.max() - math.log(np.exp(z - z.max()).sum())
        total += own * (1.0 if weight is None else weight[t.choosers == i][0])
    return total


def test_the_published_coefficients_of_the_travel_mode_data(travel: Any) -> None:
    """Greene, Econometric analysis (5th edition), table 21.11."""
    model = ConditionalLogit().fit(
        travel[["gc", "ttme", "income_air"]], travel.choice, travel.individual, alternatives=travel.label
    )
    assert list(model.names_) == ["gc", "ttme", "income_air", "air", "bus", "train"]
    assert_allclose(model.coef_, [-0.0155, -0.0961, 0.0133, 5.2074, 3.1632, 3.8690], atol=5.1e-5)
    table = model.summary()
    assert_allclose(table.std_err, [0.0044, 0.0104, 0.0103, 0.7791, 0.4503, 0.4431], atol=5.1e-5)
    assert_allclose(model.log_likelihood_, -199.1284, atol=5.1e-5)
    assert_allclose(model.null_log_likelihood_, 210 * math.log(0.25), rtol=1e-14)
    assert str(table).splitlines()[1].split()[:3] == ["gc", "-0.0155", "0.004408"]


def test_coefficients_and_errors_equal_those_of_statsmodels() -> None:
    t = draw(200)
    theirs = conditional_models.ConditionalLogit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = theirs(t.y.astype(float), t.X, groups=t.choosers).fit(method="newton", disp=0, tol=1e-12)
    model = ConditionalLogit().fit(*t)
    assert_allclose(model.coef_, peer.params, rtol=1e-6)
    assert_allclose(model.summary().std_err, peer.bse, rtol=1e-6)
    assert_allclose(model.log_likelihood_, peer.llf, rtol=1e-12)


def test_the_derivatives_of_the_log_likelihood() -> None:
    t, coef = draw(), np.array([0.3, -0.2, 0.5])
    weight = np.random.default_rng(1).random(40)
    bounds = np.append(np.flatnonzero(np.diff(t.choosers, prepend=-1)), len(t.y))
    sets = ChoiceSets(t.X, bounds, t.y.astype(np.int64), None, weight)
    found, rows = likelihood(sets, coef), weight[t.choosers]
    assert_allclose(found.value, log_likelihood(coef, t, rows), rtol=1e-13)
    step = 1e-5
    for i, unit in enumerate(np.eye(3) * step):
        slope = log_likelihood(coef + unit, t, rows) - log_likelihood(coef - unit, t, rows)
        assert_allclose(found.gradient[i], slope / (2 * step), rtol=1e-7)
        change = likelihood(sets, coef + unit).gradient - likelihood(sets, coef - unit).gradient
        assert_allclose(-found.information[i], change / (2 * step), rtol=1e-6, atol=1e-6)
    each = [
        likelihood(ChoiceSets(t.X[a:b], np.array([0, b - a]), sets.rank[a:b], None, weight[i : i + 1]), coef).gradient
        for i, (a, b) in enumerate(itertools.pairwise(bounds))
    ]
    assert_allclose(found.gradient, np.sum(each, axis=0), rtol=1e-12)
    assert_allclose(found.outer, np.einsum("na,nb->ab", each, each), rtol=1e-12)


def test_blocks_do_not_change_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    t = draw()
    whole = ConditionalLogit().fit(*t)
    monkeypatch.setattr(choice_sets, "BLOCK", 5)
    parts = ConditionalLogit().fit(*t)
    assert_allclose(parts.coef_, whole.coef_, rtol=1e-12)
    assert_allclose(parts.robust_covariance_, whole.robust_covariance_, rtol=1e-10)


def test_the_order_of_rows_does_not_matter() -> None:
    t = draw()
    order = np.random.default_rng(3).permutation(len(t.y))
    model, other = ConditionalLogit().fit(*t), ConditionalLogit().fit(*(x[order] for x in t))
    assert_allclose(other.coef_, model.coef_, rtol=1e-10)
    p = model.predict_proba(t.X, t.choosers)
    assert_allclose(model.predict_proba(t.X[order], t.choosers[order]), p[order], rtol=1e-14)
    assert_allclose(np.bincount(t.choosers, p), 1.0, rtol=1e-14)


def test_rows_that_are_not_available_are_left_out() -> None:
    t = draw()
    available = t.y | (np.random.default_rng(2).random(len(t.y)) < 0.7)
    names = np.array(["p", "q", "r"])[t.choosers % 3]
    masked = ConditionalLogit().fit(t.X, t.y, names[0] + t.choosers.astype(str), available=available.astype(int))
    dropped = ConditionalLogit().fit(t.X[available], t.y[available], t.choosers[available])
    assert_allclose(masked.coef_, dropped.coef_, rtol=1e-10)
    p = masked.predict_proba(t.X, t.choosers, available=available)
    assert not p[~available].any()
    assert_allclose(p[available], dropped.predict_proba(t.X[available], t.choosers[available]), rtol=1e-9)


def test_weights_are_repetitions() -> None:
    t = draw()
    times = np.random.default_rng(2).integers(0, 3, 40)
    weighted = ConditionalLogit().fit(*t, sample_weight=times[t.choosers])
    again = [np.flatnonzero(t.choosers == i) for i in range(40) for _ in range(times[i])]
    owner = np.repeat(np.arange(len(again)), [len(one) for one in again])
    rows = np.concatenate(again)
    repeated = ConditionalLogit().fit(t.X[rows], t.y[rows], owner)
    assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-10)
    assert_allclose(weighted.covariance_, repeated.covariance_, rtol=1e-9)


def test_rankings_are_the_model_of_plackett_and_luce() -> None:
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(60), 4)
    X = rng.standard_normal((240, 2))
    utility = (X @ [1.0, -0.5] + rng.gumbel(size=240)).reshape(60, 4)
    rank = 1 + np.argsort(np.argsort(-utility, axis=1), axis=1).ravel()
    rank[rank > rng.integers(1, 5, 60)[owner]] = 0  # some choosers rank their favourites only

    def loss(coef: np.ndarray) -> float:
        total = 0.0
        for i in range(60):
            z, own = X[owner == i] @ coef, rank[owner == i]
            order = np.argsort(np.where(own == 0, 9, own))
            for k in range(own.max()):
                total += math.log(np.exp(z[order[k:]]).sum()) - z[order[k]]
        return total

    found = minimize(loss, np.zeros(2), tol=1e-12)
    model = ConditionalLogit().fit(X, rank, owner)
    assert_allclose(model.coef_, found.x, atol=1e-5)
    assert_allclose(model.log_likelihood_, -found.fun, rtol=1e-10)


def test_the_correction_for_sampled_alternatives() -> None:
    """With offsets of -log q, coefficients from a sample of the alternatives estimate those of all alternatives."""
    rng, choosers, size = np.random.default_rng(0), 4000, 12
    X = rng.standard_normal((choosers, size, 1))
    utility = X[..., 0] * 1.5 + rng.gumbel(size=(choosers, size))
    chosen = utility.argmax(axis=1)
    q = np.where(X[..., 0] > 0, 0.8, 0.2)  # the probability that an alternative that is not chosen is sampled
    kept = rng.random((choosers, size)) < q
    kept[np.arange(choosers), chosen] = True
    owner, alternative = np.nonzero(kept)
    y = chosen[owner] == alternative
    rows = X[owner, alternative], y, owner
    corrected = ConditionalLogit().fit(*rows, offset=-np.log(q[owner, alternative]))
    error = corrected.summary().std_err[0]
    assert abs(corrected.coef_[0] - 1.5) < 4 * error
    assert abs(ConditionalLogit().fit(*rows).coef_[0] - 1.5) > 8 * error


def test_elasticities_are_derivatives() -> None:
    t = draw(5)
    model = ConditionalLogit().fit(*draw(100))
    found, p = model.elasticities(t.X, t.choosers, "x1"), model.predict_proba(t.X, t.choosers)
    row, step = 2, 1e-6
    moved = t.X.copy()
    moved[row, 1] *= 1 + step
    change = (np.log(model.predict_proba(moved, t.choosers)) - np.log(p)) / step
    same = t.choosers == t.choosers[row]
    expected = np.where(np.arange(len(p)) == row, found.own[row], found.cross[row]) * same
    assert_allclose(change, expected, atol=1e-4)


def test_tests_of_hypotheses(travel: Any) -> None:
    columns = travel[["gc", "ttme"]], travel.choice, travel.individual
    model = ConditionalLogit().fit(*columns, alternatives=travel.label)
    smaller = ConditionalLogit(fit_constants=False).fit(*columns, alternatives=travel.label)
    test = model.likelihood_ratio_test(smaller)
    assert test.degrees_of_freedom == 3
    assert_allclose(test.statistic, 2 * (model.log_likelihood_ - smaller.log_likelihood_))
    assert test.p_value < 1e-10
    assert model.likelihood_ratio_test().degrees_of_freedom == 5
    # Greene, Econometric analysis, example 21.8: without air, the hypothesis is rejected.
    independence = model.independence_test(*columns, ["air"], alternatives=travel.label)
    assert independence.degrees_of_freedom == 4
    assert_allclose(independence.statistic, 33.3363, rtol=2e-3)
    # If the model is right, it is not rejected.
    rng = np.random.default_rng(0)
    owner, label = np.repeat(np.arange(2000), 4), np.tile(list("abcd"), 2000)
    X = rng.standard_normal((8000, 2))
    utility = (X @ [1.0, -1.0] + rng.gumbel(size=8000)).reshape(-1, 4)
    y = (utility == utility.max(axis=1, keepdims=True)).ravel()
    right = ConditionalLogit().fit(X, y, owner, alternatives=label)
    assert right.independence_test(X, y, owner, ["d"], alternatives=label).p_value > 0.01


def test_robust_errors_are_near_the_others_for_a_right_model() -> None:
    model = ConditionalLogit().fit(*draw(3000))
    assert_allclose(model.summary(robust=True).std_err, model.summary().std_err, rtol=0.05)
    narrow, wide = model.summary(confidence=0.5), model.summary(confidence=0.95)
    assert_allclose((wide.high - wide.low) / (narrow.high - narrow.low), 1.959964 / 0.67449, rtol=1e-5)


def test_a_fit_that_does_not_converge_warns() -> None:
    with pytest.warns(Warning, match="max_iter, 1, was reached"):
        ConditionalLogit(max_iter=1).fit(*draw())


def test_rows_that_are_not_available_may_have_nan() -> None:
    t = draw()
    available = t.y | (np.random.default_rng(2).random(len(t.y)) < 0.7)
    X = np.where(available[:, None], t.X, np.nan)
    offset = np.where(available, 0.5, np.nan)
    model = ConditionalLogit().fit(X, t.y, t.choosers, available=available, offset=offset)
    dropped = ConditionalLogit().fit(t.X[available], t.y[available], t.choosers[available])
    assert_allclose(model.coef_, dropped.coef_, rtol=1e-10)
    assert (model.predict_proba(X, t.choosers, available=available)[~available] == 0).all()
    found = model.elasticities(X, t.choosers, 0, available=available)
    assert (found.own[~available] == 0).all()
    assert (found.cross[~available] == 0).all()


def test_choosers_of_rows_in_any_order_with_gaps() -> None:
    model = ConditionalLogit().fit(*draw(50))
    X = np.ones((4, 3))
    assert_allclose(model.predict_proba(X, [0, 1, 0, 1]), 0.5)
    with pytest.raises(ValueError, match=r"available: .*got none for chooser 2"):
        model.predict_proba(X, [0, 1, 0, 2], available=[1, 1, 1, 0])


def test_the_offset_is_part_of_the_score() -> None:
    t = draw()
    shift = np.random.default_rng(4).standard_normal(len(t.y))
    model = ConditionalLogit().fit(np.column_stack([t.X, shift]), *t[1:])
    known = shift * model.coef_[3]
    fixed = ConditionalLogit().fit(*t, offset=known)
    assert_allclose(fixed.coef_, model.coef_[:3], rtol=1e-8)
    p = fixed.predict_proba(t.X, t.choosers, offset=known)
    assert_allclose(p, model.predict_proba(np.column_stack([t.X, shift]), t.choosers), rtol=1e-7)
    assert_allclose(fixed.elasticities(t.X, t.choosers, 1, offset=known).cross, -t.X[:, 1] * fixed.coef_[1] * p)


def test_robust_errors_have_one_cluster_for_each_chooser() -> None:
    """Also for rankings, whose choices are several terms of one chooser, and with weights."""
    rng = np.random.default_rng(0)
    owner, X = np.repeat(np.arange(50), 4), rng.standard_normal((200, 2))
    rank = 1 + np.argsort(rng.random((50, 4)), axis=1).ravel()
    weight = rng.integers(1, 4, 50).astype(float)
    model = ConditionalLogit().fit(X, rank, owner, sample_weight=weight[owner])
    outer = np.zeros((2, 2))
    for i in range(50):
        slope = np.zeros(2)
        z, x, own = X[owner == i] @ model.coef_, X[owner == i], rank[owner == i]
        for k in range(1, 5):
            left = own >= k
            p = np.exp(z[left]) / np.exp(z[left]).sum()
            slope += x[own == k][0] - p @ x[left]
        outer += weight[i] ** 2 * np.outer(slope, slope)
    assert_allclose(model.robust_covariance_, model.covariance_ @ outer @ model.covariance_, rtol=1e-9)


def test_separated_choices_warn() -> None:
    X, owner = np.tile([[0.0], [1.0]], (30, 1)), np.repeat(np.arange(30), 2)
    with pytest.warns(Warning, match="X: expected choices that no feature separates; 'x0' does"):
        ConditionalLogit().fit(X, np.tile([False, True], 30), owner)


def test_the_independence_test_takes_all_columns(travel: Any) -> None:
    columns = travel[["gc", "ttme"]], travel.choice, travel.individual
    labels = travel.label
    weight = 1.0 + travel.individual.to_numpy() % 2
    model = ConditionalLogit().fit(*columns, alternatives=labels, sample_weight=weight)
    found = model.independence_test(*columns, ["air"], alternatives=labels, sample_weight=weight)
    there = np.ones(len(labels), bool)
    same = model.independence_test(
        *columns, ["air"], alternatives=labels, sample_weight=weight, available=there, offset=np.zeros(len(labels))
    )
    assert_allclose(same.statistic, found.statistic, rtol=1e-9)
    for drop in ("air", []):
        with pytest.raises(ValueError, match="drop: expected a list of at least one alternative"):
            model.independence_test(*columns, drop, alternatives=labels)


T = draw(6)
Y, CONSTANT = T.y.astype(int), np.ones(len(T.y))
AT = int(np.flatnonzero(T.y)[1])
LABELS = np.array(list("abcdef"))[np.arange(len(T.y)) % 6]


def fitted(**options: Any) -> ConditionalLogit:
    return ConditionalLogit(**options).fit(*draw(50))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: ConditionalLogit().fit(T.X, 0 * Y, T.choosers),
            ValueError,
            "y: expected a choice .*, got none for chooser 0",
        ),
        (
            lambda: ConditionalLogit().fit(T.X, 0 * Y + 1, T.choosers),
            ValueError,
            "y: expected one choice for each chooser",
        ),
        (lambda: ConditionalLogit().fit(T.X, Y * 2, T.choosers), ValueError, "y: expected the ranks 1, 2, ..*, got 2"),
        (
            lambda: ConditionalLogit().fit(T.X, -Y, T.choosers),
            ValueError,
            "y: expected True for the chosen rows, or ranks from 0 to .*, got -1 in row",
        ),
        (lambda: ConditionalLogit().fit(T.X, Y * 0.5, T.choosers), ValueError, "y: expected True for the chosen rows"),
        (lambda: ConditionalLogit().fit(T.X, Y[1:], T.choosers), ValueError, "y: expected one entry per row of X"),
        (lambda: ConditionalLogit().fit(T.X, Y, T.choosers[1:]), ValueError, "choosers: expected one entry per row"),
        (
            lambda: ConditionalLogit().fit(*T, available=np.arange(len(Y)) != AT),
            ValueError,
            f"available: expected True for the chosen alternatives, got False in row {AT}",
        ),
        (
            lambda: fitted().predict_proba(T.X, T.choosers, available=T.choosers > 0),
            ValueError,
            "available: expected an available alternative for each chooser, got none for chooser 0",
        ),
        (lambda: ConditionalLogit().fit(*T, available=CONSTANT * 2), ValueError, "available: expected booleans"),
        (lambda: ConditionalLogit().fit(*T, offset=CONSTANT * np.nan), ValueError, "offset: expected finite numbers"),
        (
            lambda: ConditionalLogit().fit(*T, sample_weight=-CONSTANT),
            ValueError,
            "sample_weight: expected finite numbers",
        ),
        (
            lambda: ConditionalLogit().fit(*T, sample_weight=np.arange(len(Y))),
            ValueError,
            "one weight for all rows of a",
        ),
        (
            lambda: ConditionalLogit().fit(np.column_stack([T.X, CONSTANT]), Y, T.choosers),
            ValueError,
            "X: expected features that differ .* got no information about 'x3'",
        ),
        (
            lambda: ConditionalLogit().fit(np.column_stack([T.X, T.X.sum(axis=1)]), Y, T.choosers),
            ValueError,
            "X: expected features that .* are not collinear",
        ),
        (lambda: ConditionalLogit(tol=-1).fit(*T), ValueError, "tol: expected"),
        (lambda: ConditionalLogit(max_iter=0).fit(*T), ValueError, "max_iter: expected 1 or more, got 0"),
        (
            lambda: ConditionalLogit().fit(T.X, Y, T.choosers * np.nan),
            ValueError,
            "choosers: expected a label in each row",
        ),
        (
            lambda: ConditionalLogit().fit(T.X, Y, np.array([None, *T.choosers[1:]])),
            ValueError,
            "choosers: expected a label in each row, got None in row 0",
        ),
        (
            lambda: ConditionalLogit().fit(T.X, Y, np.array(["a", *T.choosers[1:]], object)),
            TypeError,
            "choosers: expected labels of one type, got the string 'a' at index 0",
        ),
        (
            lambda: ConditionalLogit().fit(np.where(np.arange(len(Y))[:, None] == 3, np.nan, T.X), Y, T.choosers),
            ValueError,
            "X: expected finite numbers, got .* in row 3",
        ),
        (
            lambda: ConditionalLogit().fit(*T, alternatives=np.where(T.y, "a", "b")),
            ValueError,
            "alternatives: expected somebody to choose each alternative, got nobody for 'b'",
        ),
        (
            lambda: ConditionalLogit().fit(T.X, Y.astype(str), T.choosers),
            TypeError,
            "y: expected True for the chosen rows",
        ),
        (
            lambda: fitted().likelihood_ratio_test(3),
            TypeError,
            "restricted: expected a fitted model of choices, got int",
        ),
        (
            lambda: fitted().likelihood_ratio_test(ConditionalLogit().fit(draw(60).X[:, :1], *draw(60)[1:])),
            ValueError,
            "restricted: expected a model of the same 50 choosers, got one of 60",
        ),
        (lambda: ConditionalLogit(max_iter=1.5).fit(*T), TypeError, "max_iter: expected"),
        (lambda: fitted().elasticities(T.X, T.choosers, "price"), ValueError, "feature: expected one of x0, x1, x2"),
        (lambda: fitted().elasticities(T.X, T.choosers, 3), ValueError, "feature: expected 0 to 2, got 3"),
        (
            lambda: fitted().likelihood_ratio_test(fitted()),
            ValueError,
            "restricted: expected fewer than 3 coefficients",
        ),
        (lambda: fitted().independence_test(*T, ["z"], alternatives=LABELS), ValueError, "drop: expected one of"),
        (
            lambda: ConditionalLogit().fit(*draw(300, most=6), alternatives=np.resize(list("ab"), 1200)),
            ValueError,
            "alternatives: expected one entry per row",
        ),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_labels_that_the_fit_has_not_seen() -> None:
    t = draw(200)
    labels = np.random.default_rng(0).choice(list("ab"), len(t.y))
    model = ConditionalLogit().fit(*t, alternatives=labels)
    with pytest.raises(ValueError, match=r"alternatives: expected one of \['a' 'b'\], got 'c'"):
        model.predict_proba(t.X, t.choosers, alternatives=np.full(len(t.y), "c"))
    with pytest.raises(ValueError, match="alternatives: expected a label for each row"):
        model.predict_proba(t.X, t.choosers)
    assert_array_equal(model.alternatives_, ["a", "b"])
