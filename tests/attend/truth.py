"""Attention by brute force in longdouble: for each query, a loop over the keys that it sees."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
from tests.sparse.truth import wide

INF = math.inf


def at(array: Any, *place: int) -> float:
    """Return the element at index `place` of the broadcast array."""
    array = np.asarray(array)
    place = place[len(place) - array.ndim :]
    return array[tuple(0 if n == 1 else i for i, n in zip(place, array.shape, strict=True))]


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return output and lse in float64."""
    *batch, heads, length, width = q.shape
    groups, keys = k.shape[-3:-1]
    output, lse = np.zeros((*batch, heads, length, v.shape[-1])), np.full((*batch, heads, length), -INF)
    for place in product(*map(range, (*batch, heads, length))):
        *entry, head, i = place
        source = (*entry, head // (heads // groups))
        count = int(at(options["key_lengths"], *entry)) if options.get("key_lengths") is not None else keys
        visible = [j for j in range(count) if sees(i + count - length, j, **options)]
        if options.get("mask") is not None:
            visible = [j for j in visible if at(options["mask"], *place, j)]
        scale = width**-0.5 if options.get("scale") is None else at(options["scale"], *place)
        scores = {}
        for j in visible:
            s = scale * np.dot(q[place].astype(np.longdouble), k[(*source, j)].astype(np.longdouble))
            if options.get("softcap"):
                s = options["softcap"] * np.tanh(s / options["softcap"])
            b = at(options["bias"], *place, j) if options.get("bias") is not None else 0.0
            if b > -INF:
                m = at(options["slopes"], *entry, head) if options.get("slopes") is not None else 0.0
                scores[j] = s + b - np.longdouble(m) * abs(i + count - length - j)
        z = [float(x) for x in scores.values()]
        if options.get("sink") is not None:
            z.append(float(at(options["sink"], head)))
        if not z:
            continue
        order = float(at(options.get("alpha", 1.0), *place))
        p = wide(np.array([z]), order)[0]
        lse[place] = max(z) + math.log(math.fsum(math.exp(x - max(z)) for x in z))
        for weight, j in zip(p, scores, strict=False):
            output[place] += (weight * v[(*source, j)].astype(np.longdouble)).astype(float)
    return output, lse


def sees(place: int, key: int, *, causal: bool = False, window: Any = None, **_: Any) -> bool:
    """True if a query at this position sees a key."""
    left, right = window or (None, None)
    if causal and key > place:
        return False
    return (left is None or key >= place - left) and (right is None or key <= place + right)
