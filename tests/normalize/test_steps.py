"""The fold tests 64 scores at once for ties and for scores outside its reach. A score may be in any of these places."""

from __future__ import annotations

import math

import numpy as np
import pytest

import softargmax as s

INSIDE = 64  # the second of four steps
SPECIAL = {
    "tie": "top",
    "confident": "far above",
    "far": -300.0,
    "outside": -math.inf,
    "NaN": math.nan,
    "infinite": math.inf,
}


def ulp(x: np.ndarray) -> np.ndarray:
    return np.spacing(np.abs(x).astype(np.float32)).astype(float)


@pytest.mark.parametrize("special", SPECIAL.values(), ids=list(SPECIAL))
@pytest.mark.parametrize("implementation", ["native", "reference"])
def test_a_special_score_in_each_place_of_a_step(special: float | str, implementation: str) -> None:
    z = np.tile(np.random.default_rng(0).standard_normal(4 * INSIDE).astype(np.float32), (INSIDE, 1))
    place = np.arange(INSIDE)
    if special == "far above":  # log sum e^z is then log1p(r), of which r is the sum of the other terms
        z -= np.float32(25)
    z[place, INSIDE + place] = {"top": z.max(), "far above": 0.0}.get(special, special)
    wide = z.astype(float)
    with np.errstate(invalid="ignore"):
        top = wide.max(axis=1, keepdims=True)
        terms = np.where(wide == top, 1.0, np.exp(wide - top)) if special != math.inf else (wide == top).astype(float)
        first = np.arange(4 * INSIDE) == wide.argmax(axis=1)[:, None]
        others = np.where(first, 0.0, terms).sum(axis=1, keepdims=True)
        lse, p = (top + np.log1p(others))[:, 0], terms / (1 + others)
    with s.using(implementation):
        found, shares = s.logsumexp(z), s.softmax(z)
    if np.isnan(lse).all():
        assert np.isnan(found).all()
        assert np.isnan(shares).all()
        return
    finite = np.isfinite(lse)
    assert (found[~finite] == lse[~finite]).all()
    assert (abs(found[finite] - lse[finite]) <= ulp(lse[finite])).all()
    assert (abs(shares - p) <= 2 * ulp(p)).all()
