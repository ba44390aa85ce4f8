"""Run every native kernel of attention on buffers next to a protected page, and print one digest per result.

SOFTARGMAX_ISA=baseline python tests/attend/worker.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from tests.native.guard_worker import Fenced
from tests.native.isa_worker import digest

import softargmax as s
from softargmax.core import native

_rng = np.random.default_rng(8)
SHAPES = {  # (batch, heads, groups, queries, keys, width of q and k, width of v)
    "odd": (2, 4, 2, 13, 35, 7, 5),
    "long": (1, 2, 2, 130, 1100, 16, 32),
    "decoding": (3, 8, 2, 1, 700, 64, 64),
    "few": (1, 2, 1, 3, 77, 7, 32),
    "tail": (1, 1, 1, 2, 66, 17, 33),
    "one": (1, 1, 1, 1, 1, 1, 1),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (40, 3), "sink": 0.5},
    "bent": {"softcap": 1.5, "bias": 1, "mask": 1, "scale": 1},
    "lengths": {"key_lengths": 1, "causal": True},
    "slopes": {"slopes": 1, "key_lengths": 1, "softcap": 4.0},
}


def options_of(name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the named options, with arrays that fit the shape in place of each 1."""
    batch, heads, _, queries, keys, *_ = shape
    arrays: dict[str, Any] = {
        "bias": _rng.standard_normal((heads, queries, keys)).astype(np.float32),
        "mask": _rng.random((batch, 1, queries, keys)) < 0.7,
        "scale": _rng.uniform(0.1, 0.5, (heads, queries)),
        "slopes": _rng.uniform(0.0, 1.0, heads),
        "key_lengths": np.arange(keys, keys - batch, -1).clip(0),
    }
    return {key: arrays.get(key, value) if value == 1 else value for key, value in OPTIONS[name].items()}


def results(fences: list[Fenced], *, end: bool) -> dict[str, Any]:
    """Return the results of all native kernels of attention.

    The arguments lie at the end of the fenced memory if `end` is True, and otherwise at its start.
    """
    found: dict[str, Any] = {}
    for size, shape in SHAPES.items():
        batch, heads, groups, queries, keys, width, values = shape
        for dtype in ("float16", "float32", "float64"):
            sizes = (heads, queries, width), (groups, keys, width), (groups, keys, values), (heads, queries, values)
            rng = np.random.default_rng(len(found))
            given = [
                fence.place(rng.standard_normal((batch, *n)).astype(dtype), end=end)
                for fence, n in zip(fences, sizes, strict=False)
            ]
            for name in OPTIONS:
                options = options_of(name, shape)
                for fence, key in zip(fences[4:], ("bias", "mask"), strict=True):
                    if key in options:
                        options[key] = fence.place(options[key], end=end)
                pair = s.attention_with_lse(*given[:3], **options)
                gradients = s.attention_vjp(*given, **options)
                found |= {f"{size} {dtype} {name} {i}": x for i, x in enumerate((*pair, *gradients)) if x is not None}
    k, v = (fences[i].place(_rng.standard_normal((9, 16, 2, 64)).astype(np.float32), end=end) for i in (1, 2))
    q = fences[0].place(_rng.standard_normal((2, 4, 3, 64)).astype(np.float32), end=end)
    found["paged"] = s.attention_paged(q, k, v, [[8, 0, 3], [2, -1, 99]], [40, 16])
    return found


def main() -> None:
    """Print the instruction set and the digests as JSON."""
    global _rng  # noqa: PLW0603 buffers at both ends get the same random numbers
    fences, digests = [Fenced(8 * 2 * 1100 * 130 * 8) for _ in range(6)], []
    with s.using("native"), np.errstate(all="ignore"):
        for end in (True, False):
            _rng = np.random.default_rng(8)
            digests.append({name: digest(x) for name, x in results(fences, end=end).items()})
    assert digests[0] == digests[1]
    sys.stdout.write(json.dumps({"isa": native.info()["isa"], "digests": digests[0]}))


if __name__ == "__main__":
    main()
