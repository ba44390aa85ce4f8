"""Measure the memory of attention for a long sequence, and for a single query with a million keys.

    python -m bench.attend_memory           half a minute on 2 cores; bench.attend writes the results

Each case runs in its own process. The memory of a case is the peak resident memory, minus the memory before the call
(which includes the inputs), minus the gradients. The exit code is 1 if a bound is missed.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from bench.peak import measured


class Shape(NamedTuple):
    """A case with one head, and the bound of its memory in bytes."""

    name: str
    queries: int
    keys: int
    width: int
    backward: bool
    bound: int


SHAPES = (
    Shape("attention, causal 1x1x32768x64", 32_768, 32_768, 64, backward=True, bound=200 << 20),
    Shape("attention, one query, 10^6 keys, forward only", 1, 1_000_000, 64, backward=False, bound=64 << 20),
)
MEASURE = """
import json, sys
import torch
import softargmax as sa
from bench.peak import peak_of
L, K, D, backward = map(int, sys.argv[1:])
torch.set_num_threads(2)
sa.set_num_threads(2)
q, k, v = (torch.randn(1, 1, n, D, requires_grad=bool(backward)) for n in (L, K, K))
def run(q, k, v):
    output = sa.attention(q, k, v, causal=True)
    return torch.autograd.grad(output, (q, k, v), torch.ones_like(output)) if backward else ()
run(*(x[:, :, :2] for x in (q, k, v)))
before, peak, gradients = peak_of(lambda: run(q, k, v))
print(json.dumps({"peak": peak, "beyond": peak - before - sum(x.nbytes for x in gradients), "scores": 4 * L * K}))
"""


def memory() -> tuple[dict[str, Any], bool]:
    """Measure every case. Return the record, and True if all cases are within their bounds."""
    found, kept = [], True
    for name, *numbers, bound in SHAPES:
        record = measured(MEASURE, *map(int, numbers))
        verdict = "" if record["beyond"] <= bound else " MISSED"
        kept = kept and not verdict
        mib = {key: f"{value / 2**20:.0f}" for key, value in record.items()}
        print(
            f"{name}: scores would be {mib['scores']} MiB; beyond inputs and gradients {mib['beyond']} "
            f"(<= {bound >> 20}), resident in all {mib['peak']}{verdict}"
        )
        found.append({"name": name, **record, "what": "beyond", "bound": bound})
    return {"memory": found}, kept


if __name__ == "__main__":
    sys.exit(0 if memory()[1] else 1)
