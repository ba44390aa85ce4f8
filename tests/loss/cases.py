"""Cases with every option of the losses and every pair of options, shared by the tests of this folder."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

RNG = np.random.default_rng(5)
K = 6
# Rows with scores of all sizes up to 1e4. Rows 1, 4 and 8 are confident in the target, row 5 in another class. Row 7 is
# constant.
Z = RNG.standard_normal((12, K)) * RNG.choice([1.0, 8.0, 300.0], (12, 1))
Z[1], Z[4], Z[5] = [0, 1, -3, 2, -1, 22], [-40, -41, -42, 2, -43, -44], [1, 2, 30, 3, -2, 4]
Z[7], Z[8] = [7.5] * K, RNG.uniform(-1e4, 1e4, K)
CLASSES = np.array([0, 5, 2, -100, 3, 0, 1, 4, int(Z[8].argmax()), 2, -100, 1])
SOFT = RNG.dirichlet(np.ones(K), 12)
WHERE = RNG.random((12, K)) < 0.8
WEIGHT = RNG.uniform(0.2, 3, K)
PER_ROW = RNG.uniform(0.5, 3, 12)

CHOICES: dict[str, tuple[Any, ...]] = {
    "target": (CLASSES, SOFT),
    "reduction": ("mean", "sum", "none"),
    "weight": (None, WEIGHT),
    "label_smoothing": (0.0, 0.1, 1.0),
    "z_loss": (0.0, 1e-2),
    "softcap": (None, 20.0),
    "temperature": (1.0, 2.5, -0.7, PER_ROW),
    "where": (None, WHERE, WHERE[0]),
}
PRODUCTS = [dict(zip(CHOICES, picked, strict=True)) for picked in itertools.product(*CHOICES.values())]
THREES = PRODUCTS[::7]
"""Every seventh case of PRODUCTS. For any three options, these cases contain all combinations of their choices."""


def rounded(case: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Return the case with its floating arrays converted to `dtype`."""
    return {
        name: value.astype(dtype) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value
        for name, value in case.items()
    }


def shown(case: dict[str, Any]) -> str:
    """Describe the case in one line. Arrays are replaced by their shapes."""
    return ", ".join(f"{k}={v.shape if isinstance(v, np.ndarray) else v}" for k, v in case.items())
