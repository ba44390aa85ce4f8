"""Measure the error of the sparse maps and of the entmax package in ulp.

    python -m bench.sparse_accuracy         about a minute; writes bench/results/sparse_accuracy.json

True values come from bisection and Newton's method in longdouble, which tests/sparse/test_truth.py compares with
mpmath. Rows are float32, with 7 to 100,000 normal scores and spreads of 1 to 10,000. Only probabilities p whose true
value is at least 1e-30 count. Up to order 2 the error is in ulp of p. Above order 2 it is in ulp of the largest p of
the row, because the derivative of a small p with respect to its score has no bound.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import entmax as peer
import numpy as np
import torch
from bench.machine import machine
from tests.sparse.truth import wide

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

RESULT = Path(__file__).parent / "results" / "sparse_accuracy.json"
ORDERS = (1 + 1e-4, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
SPREADS = (1.0, 10.0, 100.0, 10_000.0)
SHAPES = ((2000, 7), (500, 64), (50, 1000), (5, 10_000), (2, 100_000))
BOUND = 4.0


def rows() -> Iterator[NDArray[np.float32]]:
    """Yield matrices of every length and spread."""
    for shape in SHAPES:
        rng = np.random.default_rng(shape)
        for spread in SPREADS:
            yield (spread * rng.standard_normal(shape)).astype(np.float32)


def theirs(z: NDArray[np.float32], alpha: float) -> NDArray[np.float32]:
    """Return p of the entmax package, from its function for this order."""
    maps = {1.5: peer.entmax15, 2.0: peer.sparsemax}
    function = maps.get(alpha, lambda z, dim: peer.entmax_bisect(z, alpha, dim=dim))
    return function(torch.from_numpy(z), dim=-1).numpy()


def off(p: NDArray[np.float32], true: NDArray[np.longdouble], alpha: float) -> tuple[float, int]:
    """Return the largest error in ulp, and the number of entries that are wrongly zero or wrongly above zero.

    An entry is wrong if p is 0 although the truth is a normal number, or if p is above 0 although the truth is 0.
    """
    counts = true >= 1e-30
    size = true if alpha <= 2 else np.broadcast_to(true.max(-1, keepdims=True), true.shape)
    error = np.abs(p - true)[counts] / np.spacing(size[counts].astype(np.float32))
    return float(error.max()), int(((p > 0) != (true > 0))[(true == 0) | (true >= 2.0**-126)].sum())


def main() -> int:
    """Measure every order and write the result. Return 1 if an error exceeds the bound or a support is wrong."""
    found = []
    for alpha in ORDERS:
        worst = {"softargmax": [0.0, 0], "entmax": [0.0, 0]}
        for z in rows():
            true = wide(z, alpha)
            ours = sa.entmax(z, alpha)
            for side, p in (("softargmax", ours), ("entmax", theirs(z, alpha))):
                ulp, wrong = off(p, true, alpha)
                worst[side] = [max(worst[side][0], ulp), worst[side][1] + wrong]
        found.append({"alpha": alpha, **{side: {"ulp": x[0], "support": x[1]} for side, x in worst.items()}})
        print(f"alpha {alpha:<8g}", *(f"{side}: {x[0]:.3g} ulp, {x[1]} wrong zeros" for side, x in worst.items()))
    RESULT.write_text(json.dumps({"machine": machine(), "rows": found}, indent=1) + "\n", encoding="utf-8")
    return int(any(row["softargmax"]["ulp"] > BOUND or row["softargmax"]["support"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
