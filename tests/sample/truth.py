"""The exact distributions of draws, by brute force in float64, and a chi-square test of counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _sets(p: Array, name: str, value: float) -> Array:
    """Return the mask of the entries that one filter keeps, computed by plain Python loops."""
    support = [i for i in range(len(p)) if p[i] > 0]
    h = -sum(p[i] * np.log(p[i]) for i in support)
    top = max(p)
    if name == "top_k":
        kept = sorted(support, key=lambda i: (-p[i], i))[: int(value)]
    elif name in ("top_p", "typical_p"):
        key = (lambda i: (-p[i], i)) if name == "top_p" else (lambda i: (abs(-np.log(p[i]) - h), i))
        kept, mass = [], 0.0
        for i in sorted(support, key=key):
            if mass >= value and value < 1:
                break
            kept.append(i)
            mass += p[i]
    else:
        least = {
            "min_p": lambda: value * top,
            "epsilon": lambda: min(value, top),
            "eta": lambda: min(value, np.sqrt(value) * np.exp(-h), top),
        }[name]()
        kept = [i for i in support if p[i] >= least]
    found = np.zeros(len(p), bool)
    found[kept] = True
    return found


NAMES = ("top_k", "top_p", "min_p", "typical_p", "epsilon", "eta")


def distribution(z: Array, temperature: float = 1.0, order: str = "top_k_first", **filters: float) -> Array:
    """Return the probabilities of the classes of a row after the filters. Removed classes have probability 0."""
    z = np.asarray(z, np.float64)
    x = (z - z.max()) / temperature
    whole = p = np.exp(x) / np.exp(x).sum()
    kept = p > 0
    for name in NAMES:
        if name in filters:
            kept &= _sets(whole if order == "joint" else p, name, filters[name])
            p = np.where(kept, whole, 0.0)
            p = p / p.sum() if p.sum() else p
    if not kept.any():
        p = np.eye(len(z))[int(np.argmax(whole))]
    return p


def p_value(draws: Array, p: Array) -> float:
    """Return the p-value of a chi-square test of counts. Cells with an expectation below 5 form one cell."""
    from scipy import stats  # the environment of the sanitizers has no SciPy

    draws = np.asarray(draws).reshape(-1)
    counts = np.bincount(draws, minlength=len(p)).astype(np.float64)
    assert counts[p == 0].sum() == 0, "a class of probability 0 was drawn"
    expected = p * draws.size
    small = expected < 5
    observed = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    return float(stats.chisquare(observed, expected).pvalue) if len(expected) > 1 else 1.0
