"""Measure cases, print the ratio to each peer and whether it is as promised, and write the results."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import softargmax as sa
from softargmax.core import native
from softargmax.measure import Case, Limits, Result, machine, machine_limits, measure, readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RESULTS = Path(__file__).parent / "results"
AVX2 = RESULTS / "avx2"
"""Results of runs in which we and the peers may use AVX2 only (`make bench-avx2`)."""
THREADS = 2


@dataclass
class Promise:
    """A case, and the smallest ratio (peer's median over ours) that we promise for each peer.

    `aims` are ratios that we want to reach, but do not promise.
    """

    name: str
    sides: dict[str, Callable[[], object]]
    targets: dict[str, float]
    bytes: int = 0
    multiply_adds: float = 0.0
    aims: dict[str, float] = field(default_factory=dict)
    rounds: int = 1000
    """Largest number of samples of each side, even if `--rounds` is larger. It is small if a peer takes seconds."""
    threads: int = THREADS

    def case(self) -> Case:
        """Return the case in the form that `softargmax.measure` takes."""
        return Case(self.name, self.sides, bytes=self.bytes, multiply_adds=self.multiply_adds)


def isa() -> str:
    """Return the instruction set that our kernels use."""
    return str(native.info()["isa"])


def line(promise: Promise, result: Result, limits: Limits) -> str:
    """Return one line for the terminal."""
    ours = result.timings["softargmax"]
    ratios = ", ".join(shown(peer, result.ratio(peer), promise.targets.get(peer)) for peer in result.peers)
    bounds = ", ".join(f"{name} {readable(seconds)}" for name, seconds in result.limits(limits).items())
    spread = f"[{readable(ours.low)}, {readable(ours.high)}]"
    return f"{result.name:48} {readable(ours.median):>8} {spread:22} {ratios:48} {bounds}"


def shown(peer: str, ratio: float, target: float | None) -> str:
    """Format a ratio, with the promised ratio if there is one."""
    verdict = "" if target is None else f" (>= {target:g})" + ("" if ratio >= target else " MISSED")
    return f"{peer} {ratio:.2f}{verdict}"


def run(promises: Iterable[Promise], words: list[str], rounds: int) -> tuple[list[dict[str, Any]], Limits]:
    """Measure the cases whose names contain every word. Return the records, and the limits of the machine."""
    torch.set_num_threads(THREADS)
    sa.set_num_threads(THREADS)
    limits = machine_limits(THREADS)
    print(
        f"copy {limits.copy_bytes / 1e9:.1f} GB/s, "
        f"{limits.multiply_adds / 1e9:.2f} G multiply-adds of 16 floats a second"
    )
    records = []
    for promise in promises:
        if all(word in promise.name for word in words):
            torch.set_num_threads(promise.threads)
            sa.set_num_threads(promise.threads)
            reachable = machine_limits(promise.threads)  # measured once for each number of threads
            result = measure(promise.case(), rounds=min(rounds, promise.rounds))
            print(line(promise, result, reachable), flush=True)
            more = {"threads": promise.threads, "targets": promise.targets, "aims": promise.aims}
            records.append(result.as_json(reachable) | more)
    return records, limits


def main(
    about: str | None,
    promises: Iterable[Promise],
    room: str,
    more: Callable[[], tuple[dict[str, Any], bool]] = lambda: ({}, True),
) -> int:
    """Run the cases that the command line selects. Return the exit code, which is 1 if a promise is missed.

    `more` returns further fields of the record, and True if they keep the promises.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only the cases whose names contain all of these words")
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    here = machine()  # before the run, so that the load is that of other programs
    records, limits = run(promises, options.words, options.rounds)
    missed = any(r["ratios"][peer] < target for r in records for peer, target in r["targets"].items())
    if not options.words:
        also, kept = more()
        missed = missed or not kept
        result = (AVX2 if isa() == "x86-64-v3" else RESULTS) / f"{room}.json"
        record = {"machine": here, "isa": isa(), "limits": vars(limits), "results": records, **also}
        result.parent.mkdir(exist_ok=True)
        result.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print("wrote", result)
    return int(missed)
