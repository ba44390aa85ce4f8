"""One digest for each room, computed from rows of several blocks.

A row of more than 4096 scores is folded block by block. If the merge of two states is off by one ulp, each of these
digests changes, also in the rooms that use states through another room. The error bounds of other tests are too wide to
detect an error of one ulp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.digests.digest import digest
from tests.digests.inputs import below, scores

import softargmax
from softargmax.core import _native

ROWS, SIZE = 16, 3 * 4096 + 5
Z = scores(ROWS, SIZE, salt="long rows")


def _core() -> Any:
    first, *others = (softargmax.State.empty((ROWS,)).fold(x) for x in np.array_split(Z, 5, axis=-1))
    return first.merge(*others).finalize()


def _normalize() -> Any:
    return softargmax.softmax(Z)


def _loss() -> Any:
    return softargmax.cross_entropy_and_gradient(Z, below(SIZE, ROWS), reduction="none")


def _last_layer() -> Any:
    """A last layer whose rows are computed in three parts. The gradients of its weights are sums over the parts."""
    rows, width, classes = 24, 2, 200_000
    assert len(_native.bounds_of_parts(rows, width, classes, _native.PARTS)) == 1 + 3
    h, w = scores(rows, width, salt="h"), scores(classes, width, salt="w")
    return softargmax.linear_cross_entropy_and_gradient(h, w, below(classes, rows))


def _sparse() -> Any:
    return softargmax.entmax(Z, alpha=1.0)


def _sample() -> Any:
    return softargmax.gumbel_softmax(Z, seed=1)


def _attend() -> Any:
    pytest.importorskip("torch")
    q, k, v = (scores(1, 1, n, 2, salt=salt) for n, salt in ((ROWS, "q"), (SIZE, "k"), (SIZE, "v")))
    return softargmax.attention(q, k, v)


def _output() -> Any:
    torch = pytest.importorskip("torch")
    layer = softargmax.nn.FullSoftmax(1, SIZE, dtype=torch.float64)
    layer.weight.data = torch.from_numpy(Z[:1].T.copy())
    h = torch.from_numpy(scores(ROWS, 1, salt="h"))
    return layer.log_prob(h)


def _classify() -> Any:
    pytest.importorskip("sklearn")
    model = softargmax.classify.SoftmaxRegression()
    model.coef_, model.intercept_ = Z[:1].T.copy(), np.zeros(SIZE)
    model.classes_, model.n_features_in_ = np.arange(SIZE), 1
    return model.predict_proba(scores(ROWS, 1, salt="x"))


def _stream() -> Any:
    return softargmax.stream.softmax(np.array_split(Z, 7, axis=-1))


ROOMS = {
    _core: "c35b657e1401426f",
    _normalize: "f73de201a81ca935",
    _loss: "87b17a9631b50661",
    _last_layer: "de4062fda108e4ac",
    _sparse: "f73de201a81ca935",
    _sample: "b4b7743390b67ca9",
    _attend: "1d4f1215c5cadc36",
    _output: "6ba3fae67d69d989",
    _classify: "1fba9a3b742079d1",
    _stream: "f73de201a81ca935",
}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__[1:])
def test_long_rows_keep_their_bits(room: Any) -> None:
    assert digest(room) == ROOMS[room]
