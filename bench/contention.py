"""Time softargmax and its peers in turns, on an idle and on a busy machine: at least one call of every room.

    python -m bench.contention            30 minutes; writes bench/results/contention.json

There are four conditions: alone, beside one busy process, beside one busy process per core, and two threads on one
core. They are timed in turns too, forwards and backwards, each turn in new processes, and the median of all turns
counts. The cases (bench/contention_cases.py) are calls on tensors, against torch, and calls on arrays in a process
without torch, against SciPy and scikit-learn.

The slowdown of a side is its time under a condition divided by its time alone. Our slowdown should be at most EXCESS
times torch's. SciPy's functions run on one thread, which busy processes slow down less, so there is no such limit for
arrays. If softargmax is faster alone, it should be faster under every condition. Beside one busy process, linear
cross-entropy should take at most LINEAR_SLOWDOWN times its time alone, with and without gradients.

Then eight processes run at the same time, with one thread each and with two, in ROUNDS turns. The median of the calls
that they finish with two threads should be at least SHARE of the median with one thread.

The program prints which of these limits are missed. If one is, the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.contention_cases import KINDS, LINEAR, PEER, THREADS
from bench.machine import ROOT, Run

from softargmax.measure import OURS

if TYPE_CHECKING:
    from collections.abc import Iterator

    Times = dict[str, dict[str, float]]  # seconds by case and side

RESULT = ROOT / "bench" / "results" / "contention.json"
PYTHON = [sys.executable, "-m", "bench.contention_cases"]
CORES = sorted(os.sched_getaffinity(0))
ONE_CORE = "two threads on one core"
CONDITIONS: dict[str, tuple[int, list[str]]] = {
    "alone": (0, []),
    "one busy process": (1, []),
    "one busy process per core": (len(CORES), []),
    ONE_CORE: (0, ["taskset", "-c", str(CORES[0])]),
}
"""For each condition, the number of busy processes, and the command that starts a process."""
TURNS, ROUNDS, PROCESSES = 5, 3, 8
EXCESS, LINEAR_SLOWDOWN, SHARE = 1.3, 1.9, 0.8


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run `count` busy processes inside the `with` block."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measured(condition: str) -> Times:
    """Return the times of every case under a condition."""
    count, start = CONDITIONS[condition]
    found: Times = {}
    with busy(count):
        for kind in KINDS:
            command = [*start, *PYTHON, kind]
            found |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def under_all_conditions() -> dict[str, Times]:
    """Return the times by condition, case and side: the median of TURNS turns. Every second turn runs backwards."""
    turns = [
        {condition: measured(condition) for condition in list(CONDITIONS)[:: -1 if turn % 2 else 1]}
        for turn in range(TURNS)
    ]
    return {
        condition: {
            name: {side: statistics.median(turn[condition][name][side] for turn in turns) for side in sides}
            for name, sides in turns[0][condition].items()
        }
        for condition in CONDITIONS
    }


def throughput() -> dict[int, dict[str, float]]:
    """Return the rounds per second of PROCESSES processes, by their number of threads and side: the median of ROUNDS.

    Every second turn runs backwards.
    """
    runs = [(threads, side) for threads in (1, THREADS) for side in (OURS, PEER)]
    found: dict[tuple[int, str], list[float]] = {run: [] for run in runs}
    for turn in range(ROUNDS):
        for run in runs[:: -1 if turn % 2 else 1]:
            found[run].append(rounds_per_second(*run))
    return {
        threads: {side: statistics.median(found[threads, side]) for side in (OURS, PEER)} for threads in (1, THREADS)
    }


def rounds_per_second(threads: int, side: str) -> float:
    """Run PROCESSES processes at the same time. Return the sum of their rounds per second.

    One round calls every case of tensors once. All processes begin when the last one is ready.
    """
    command = [*PYTHON, "torch", "--rounds", side, "--threads", str(threads)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    started = [subprocess.Popen(command, text=True, **pipes) for _ in range(PROCESSES)]
    try:
        for one in started:
            one.stdout.readline()
        for one in started:
            print(file=one.stdin, flush=True)
        return sum(float(one.communicate()[0]) for one in started)
    finally:
        for one in started:
            one.kill()
            one.wait()


def misses(found: dict[str, Times], shares: dict[str, float]) -> list[str]:
    """Return a sentence for each limit that is missed.

    `shares` has, for each side, the number of calls finished with two threads, divided by the number with one thread.
    """
    missed = []
    for condition, times in found.items():
        for name, now in times.items():
            alone = found["alone"][name]
            peer = next(side for side in alone if side != OURS)
            excess = now[OURS] / alone[OURS] / (now[peer] / alone[peer])
            if peer == PEER and excess > EXCESS:
                missed.append(f"{name}, {condition}: the slowdown is {excess:.2f} times torch's, above {EXCESS}")
            if now[OURS] > now[peer] and alone[OURS] < alone[peer]:
                missed.append(f"{name}, {condition}: slower than {peer}, but faster alone")
    for name, now in found["one busy process"].items():
        slowdown = now[OURS] / found["alone"][name][OURS]
        if name.startswith(LINEAR) and slowdown > LINEAR_SLOWDOWN:
            missed.append(f"{name}, one busy process: a slowdown of {slowdown:.2f}, above {LINEAR_SLOWDOWN}")
    if shares[OURS] < SHARE:
        missed.append(f"{PROCESSES} processes: {THREADS} threads finish {shares[OURS]:.2f} of the calls, below {SHARE}")
    return missed


def main() -> int:
    """Measure all conditions, print a table, write the result, and return the exit code."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    watched = Run()
    found = under_all_conditions()
    print(f"{'':46} {'condition':26} {'peer/ours':>10} {'slowdown':>9} {'peer':>8}")
    for name, alone in found["alone"].items():
        for condition, times in found.items():
            (ours, before), (theirs, theirs_before) = zip(times[name].values(), alone.values(), strict=True)
            slowdowns = f"{ours / before:9.2f} {theirs / theirs_before:8.2f}"
            print(f"{name:46} {condition:26} {theirs / ours:10.2f} {slowdowns}")
    rounds = throughput()
    shares = {side: rounds[THREADS][side] / rounds[1][side] for side in (OURS, PEER)}
    for side, share in shares.items():
        print(f"{PROCESSES} processes of {side}: {THREADS} threads finish {share:.2f} of the calls of one thread")
    missed = misses(found, shares)
    for miss in missed:
        print(miss)
    record = {"machine": watched.machine()}
    record |= {"seconds": found, "processes": PROCESSES, "rounds per second": rounds}
    RESULT.write_text(json.dumps(record | {"misses": missed}, indent=1) + "\n", encoding="utf-8")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
