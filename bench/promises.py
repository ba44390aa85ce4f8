"""Measure cases, print the ratio to each peer and whether it is as promised, and write the results."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from bench.machine import ROOT, Run

import softargmax as sa
from softargmax.core import native
from softargmax.measure import Case, Limits, Result, machine_limits, measure, processor, readable, three_digits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

RESULTS = ROOT / "bench" / "results"
AVX2 = RESULTS / "avx2"
"""Results of runs in which we and the peers may use AVX2 only (`make bench-avx2`)."""
THREADS = 2
SPREAD, AGREEMENT, TRIES = 1.15, 1.1, 5
"""A case is measured until the quartiles of each side differ by at most the factor SPREAD, or until the medians of two
measurements differ by at most the factor AGREEMENT. If neither is so after TRIES measurements, it is disturbed."""


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


def folder() -> Path:
    """Return the folder for results. Raise an error if we and the peers may use different instruction sets."""
    _, _, variables = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "").partition("\nAVX2 = ")
    only = dict(word.split("=", 1) for word in shlex.split(variables.split("\n", 1)[0]))
    best, limited = processor()["isas"][0], only.items() & os.environ.items()
    if isa() == best and not limited:
        return AVX2 if best == "x86-64-v3" else RESULTS
    if isa() == "x86-64-v3" and len(limited) == len(only):
        return AVX2
    raise SystemExit(f"expected {best} without variables that limit the peers, or make bench-avx2, got {isa()}")


def undisturbed(case: Case, rounds: int) -> tuple[Result, bool]:
    """Measure a case until it is not disturbed. Return the last result, and False if it is disturbed."""
    found: list[Result] = []
    for _ in range(TRIES):
        found.append(measure(case, rounds=rounds))
        timings = found[-1].timings
        if all(one.high <= SPREAD * one.low for one in timings.values()) or any(
            all(1 / AGREEMENT <= timings[side].median / one.median <= AGREEMENT for side, one in other.timings.items())
            for other in found[:-1]
        ):
            return found[-1], True
    return found[-1], False


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
    return f"{peer} {three_digits(ratio)}{verdict}"


def run(promises: Iterable[Promise], words: list[str], rounds: int) -> tuple[list[dict[str, Any]], Limits, list[str]]:
    """Measure the cases whose names contain every word.

    Return the records, the limits of the machine, and the names of the disturbed cases.
    """
    limits = {THREADS: machine_limits(THREADS)}
    print(
        f"copy {limits[THREADS].copy_bytes / 1e9:.1f} GB/s, "
        f"{limits[THREADS].multiply_adds / 1e9:.2f} G multiply-adds of 16 floats a second"
    )
    found, disturbed = [], []
    for promise in promises:
        if all(word in promise.name for word in words):
            torch.set_num_threads(promise.threads)
            sa.set_num_threads(promise.threads)
            if promise.threads not in limits:
                limits[promise.threads] = machine_limits(promise.threads)
            result, quiet = undisturbed(promise.case(), min(rounds, promise.rounds))
            print(line(promise, result, limits[promise.threads]), "" if quiet else "DISTURBED", flush=True)
            found.append((result, {"threads": promise.threads, "targets": promise.targets, "aims": promise.aims}))
            disturbed += [] if quiet else [promise.name]
    limits = {threads: before.better(machine_limits(threads)) for threads, before in limits.items()}
    return [result.as_json(limits[more["threads"]]) | more for result, more in found], limits[THREADS], disturbed


def is_missed(records: list[dict[str, Any]]) -> bool:
    """Return True if a ratio is below its promise."""
    return any(one["ratios"][peer] < target for one in records for peer, target in one["targets"].items())


def main(
    about: str | None,
    promises: Iterable[Promise],
    room: str,
    more: Callable[[], tuple[dict[str, Any], bool]] = lambda: ({}, True),
) -> int:
    """Run the cases that the command line selects. Return the exit code, which is 1 if a promise is missed.

    If a case is disturbed or other programs run, nothing is written, and the exit code is 1. `more` returns further
    fields of the record, and True if they keep the promises.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only the cases whose names contain all of these words")
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    if options.words:
        records, *_ = run(promises, options.words, options.rounds)
        return int(is_missed(records))
    result, watched = folder() / f"{room}.json", Run()
    records, limits, disturbed = run(promises, [], options.rounds)
    also, kept = more()
    here = watched.machine()
    if disturbed:
        raise SystemExit(f"wrote nothing: disturbed cases: {'; '.join(disturbed)}")
    sets = {"isa": isa(), "torch's instruction set": torch.backends.cpu.get_cpu_capability()}
    record = {"machine": here, **sets, "limits": vars(limits), "results": records, **also}
    result.parent.mkdir(exist_ok=True)
    result.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("wrote", result)
    return int(is_missed(records) or not kept)
