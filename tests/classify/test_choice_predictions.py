"""Predictions and scores of models of choices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.classify.test_conditional_logit import MODES, draw, travel

from softargmax.classify import ConditionalLogit, NestedLogit

__all__ = ["travel"]  # the fixture
NESTS = {"fly": ["air"], "ground": ["train", "bus", "a car"]}


def fitted(data: Any, model: Any) -> tuple[Any, dict[str, Any]]:
    given = {"X": data[["gc", "ttme"]], "choosers": data.individual, "alternatives": data.label}
    return model.fit(y=data.choice, **given), given


@pytest.mark.parametrize("model", [ConditionalLogit(), NestedLogit(NESTS)], ids=["conditional", "nested"])
def test_predictions_and_scores(travel: Any, model: Any) -> None:
    data = travel.sample(frac=1.0, random_state=3)  # rows in any order
    fit, given = fitted(data, model)
    assert fit.score(y=data.choice, **given) == pytest.approx(fit.log_likelihood_ / 210, rel=1e-12)
    best = fit.predict(**given)
    data["p"] = fit.predict_proba(**given)
    assert best.dtype == bool
    assert (
        data.loc[data.groupby("individual").p.idxmax()].index == data.index[best][data.individual[best].argsort()]
    ).all()
    hidden = fit.predict(**given, available=~best)
    assert (data.p[hidden].to_numpy() < data.groupby("individual").p.transform("max")[hidden].to_numpy()).all()


def test_equal_probabilities_predict_the_first_row() -> None:
    t = draw()
    fit = ConditionalLogit().fit(*t)
    X, choosers = np.repeat(t.X[:2], [3, 3], axis=0), np.array([5, 5, 5, 2, 2, 2])
    assert fit.predict(X, choosers).tolist() == [True, False, False] * 2


def test_scores_of_rankings_and_weights() -> None:
    t = draw(most=4)
    order = np.lexsort((np.random.default_rng(1).random(len(t.y)), t.choosers))
    rank = np.zeros(len(t.y), np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(t.choosers, t.choosers) + 1
    weight = 1.0 + t.choosers % 3
    fit = ConditionalLogit().fit(t.X, rank, t.choosers, sample_weight=weight)
    total = weight[np.unique(t.choosers, return_index=True)[1]].sum()
    assert fit.score(t.X, rank, t.choosers, sample_weight=weight) == pytest.approx(
        fit.log_likelihood_ / total, rel=1e-12
    )


def test_bad_input(travel: Any) -> None:
    fit, given = fitted(travel, NestedLogit(NESTS))
    with pytest.raises(ValueError, match="y: expected one choice for each chooser, got ranks"):
        fit.score(y=np.tile([1, 2, 3, 4], 210), **given)
    with pytest.raises(ValueError, match="y: expected a choice for each chooser, got none for chooser 1"):
        fit.score(y=np.zeros(840), **given)
    with pytest.raises(ValueError, match="alternatives: expected"):
        fit.predict(given["X"], given["choosers"], alternatives=["boat"] * 840)
    assert set(MODES.values()) == set(fit.alternatives_)
