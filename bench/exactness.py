"""Count how often exact shifts and permutations of a row keep all bits of softmax and log_softmax in float32.

    python -m bench.exactness               some seconds; writes bench/results/exactness.json

Scores are normal with standard deviation 4, rounded to multiples of 2^-10. Shifts are integers from 1 to 64, so that
every shifted score is exact.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import numpy as np
from bench.machine import ROOT, machine

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

RESULT = ROOT / "bench" / "results" / "exactness.json"
ROWS, LENGTHS, GRID = 10_000, (8, 64, 1024), 1024


def shares(function: Callable[..., NDArray[np.float32]], length: int) -> dict[str, float]:
    """Return the share of rows whose results all keep their bits."""
    rng = np.random.default_rng(length)
    z = (np.rint(4 * GRID * rng.standard_normal((ROWS, length))) / GRID).astype(np.float32)
    shifted = z + rng.integers(1, 65, (ROWS, 1)).astype(np.float32)
    order = rng.permuted(np.tile(np.arange(length), (ROWS, 1)), axis=1)
    result, permuted = function(z), function(np.take_along_axis(z, order, 1))
    return {
        "shift": float((function(shifted) == result).all(1).mean()),
        "permutation": float((permuted == np.take_along_axis(result, order, 1)).all(1).mean()),
    }


def main() -> int:
    """Count, print, and write the shares."""
    functions = {"softmax": sa.softmax, "log_softmax": sa.log_softmax}
    found = {name: {str(n): shares(f, n) for n in LENGTHS} for name, f in functions.items()}
    print(json.dumps(found, indent=1))
    RESULT.write_text(json.dumps({"machine": machine(), "shares": found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
