"""How this library measures speed: sides that take turns, medians, ratios, and the machine's limits beside them.

A shared machine drifts by a factor of two within a minute, so a time says little and a time measured elsewhere says
nothing. What holds is a ratio of medians from one run in which the sides alternate: the drift hits them alike.
`softargmax bench` and the sweep under ``bench/`` both measure through this file.

    case = Case("softmax 512x32768, out=", {"softargmax": ours, "torch": theirs}, bytes=2 * z.nbytes)
    result = measure(case)
    result.ratio("torch")            # torch's median over ours: above 1, ours is faster
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OURS = "softargmax"

# A sample shorter than this says more about the clock than about the call: short calls are repeated to fill it.
SHORTEST_SAMPLE = 2e-3


@dataclass(frozen=True)
class Case:
    """One line of a bench: what is computed, and by whom.

    Arguments
    ---------
    name : str
        What is computed, with its shape.
    sides : mapping of str to callable
        Who computes it: `OURS` and the installed peers. Each callable does the whole work once.
    bytes : int
        Bytes that any implementation has to move (inputs read once, outputs written once); 0 where that is no limit.
    multiply_adds : float
        Multiplications of 16 floats, with or without an addition, that our kernel does in all; 0 where unknown.
    """

    name: str
    sides: Mapping[str, Callable[[], object]]
    bytes: int = 0
    multiply_adds: float = 0.0


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median of the samples and their quartiles."""

    median: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, samples: list[float]) -> Timing:
        """Summarise samples."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0], 1)
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high, len(samples))


@dataclass(frozen=True)
class Limits:
    """What the machine can do at best, measured: bytes copied a second, fused multiply-adds of 16 floats a second."""

    copy_bytes: float
    multiply_adds: float
    threads: int


@dataclass(frozen=True)
class Result:
    """The timings of one case; `ratio` compares, `of_limit` says how near the machine's limit ours is."""

    name: str
    timings: dict[str, Timing]
    bytes: int = 0
    multiply_adds: float = 0.0

    def ratio(self, peer: str) -> float:
        """Give the peer's median over ours: above 1, ours is faster."""
        return self.timings[peer].median / self.timings[OURS].median

    @property
    def peers(self) -> list[str]:
        """Everyone but us, in the order of the case."""
        return [side for side in self.timings if side != OURS]

    def limits(self, machine: Limits) -> dict[str, float]:
        """Give the seconds that the machine's limits alone would take: `memory` and, where known, `arithmetic`."""
        seconds = {}
        if self.bytes:
            # A copy of n bytes moves 2 n (n read, n written): the limit counts moved bytes.
            seconds["memory"] = self.bytes / (2 * machine.copy_bytes)
        if self.multiply_adds:
            seconds["arithmetic"] = self.multiply_adds / machine.multiply_adds
        return seconds

    def of_limit(self, machine: Limits) -> float | None:
        """Give the largest limit over our median (1: as fast as the machine allows), None where none is known."""
        limits = self.limits(machine)
        return max(limits.values()) / self.timings[OURS].median if limits else None

    def as_json(self, machine: Limits | None = None) -> dict[str, Any]:
        """Give plain dicts and numbers for a JSON file."""
        record: dict[str, Any] = {
            "name": self.name,
            "seconds": {side: asdict(timing) for side, timing in self.timings.items()},
            "ratios": {peer: self.ratio(peer) for peer in self.peers if OURS in self.timings},
            "bytes": self.bytes,
            "multiply_adds": self.multiply_adds,
        }
        if machine is not None and OURS in self.timings:
            record["limits"] = self.limits(machine)
            record["of_limit"] = self.of_limit(machine)
        return record


@dataclass
class Side:
    """One side while it is being measured."""

    call: Callable[[], object]
    repeats: int = 1
    samples: list[float] = field(default_factory=list)

    def sample(self) -> None:
        """Time the call once (as often as fills the shortest sample)."""
        call, repeats = self.call, self.repeats
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        self.samples.append((time.perf_counter() - start) / repeats)

    def warm_up(self) -> None:
        """Run until the first costs (pages, caches, lazy imports) are paid, and choose how often a sample repeats."""
        self.call()
        self.repeats = 1
        self.sample()
        while self.repeats * self.samples[-1] < SHORTEST_SAMPLE and self.repeats < 1 << 20:
            self.repeats *= 2
            self.sample()
        self.samples.clear()


def measure(case: Case, *, rounds: int = 15, seconds: float = 20.0) -> Result:
    """Time the sides of a case in turns: every round runs each side once, in an order that rotates.

    Arguments
    ---------
    case : Case
        What to time.
    rounds : int
        How many samples a side gets, at least 3.
    seconds : float
        Stop after this long, once every side has three samples.
    """
    sides = {name: Side(call) for name, call in case.sides.items()}
    for side in sides.values():
        side.warm_up()
    order = list(sides.values())
    start = time.perf_counter()
    for turn in range(max(rounds, 3)):
        if turn >= 3 and time.perf_counter() - start > seconds:
            break
        for side in order[turn % len(order) :] + order[: turn % len(order)]:
            side.sample()
    return Result(
        case.name, {name: Timing.of(side.samples) for name, side in sides.items()}, case.bytes, case.multiply_adds
    )


# --- the machine --------------------------------------------------------------------------------------------------


@cache
def machine_limits(threads: int | None = None) -> Limits:
    """Measure what the machine can do at best: copying (all threads, far larger than the caches) and multiply-adds."""
    threads = threads or len(os.sched_getaffinity(0))
    return Limits(copy_rate(threads), arithmetic_rate(threads), threads)


def copy_rate(threads: int, megabytes: int = 64) -> float:
    """Measure the bytes copied a second, each thread copying its own part; half the bytes moved."""
    source = np.ones(megabytes << 20, np.uint8)
    target = np.zeros_like(source)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:

        def copy() -> None:
            for done in [pool.submit(np.copyto, to, part) for part, to in parts]:
                done.result()

        return source.nbytes / best_of(copy)


def arithmetic_rate(threads: int) -> float:
    """Measure fused multiply-adds of 16 floats a second, by the compiled core's own loop in registers."""
    from softargmax.core import _native  # at the top, a core that cannot be loaded would end every command

    start = time.perf_counter()
    _native.multiply_adds(1000)
    rounds = max(1000, int(1000 * 5e-3 / (time.perf_counter() - start)))  # 5 ms: waking the threads does not count
    with ThreadPoolExecutor(threads) as pool:
        seconds = best_of(lambda: list(pool.map(_native.multiply_adds, [rounds] * threads)))
    return threads * rounds * _native.MULTIPLY_ADDS / seconds


def best_of(call: Callable[[], object], seconds: float = 0.5) -> float:
    """Time a call for a while and give the least: a limit is what is possible, not what is usual."""
    side = Side(call)
    side.warm_up()
    start = time.perf_counter()
    while len(side.samples) < 9 or time.perf_counter() - start < seconds:
        side.sample()
    return min(side.samples)


def machine() -> dict[str, Any]:
    """Describe the machine and the versions installed, for the head of a result file."""
    packages = ("softargmax", "numpy", "scipy", "torch", "jax", "entmax", "scikit-learn", "transformers", "gensim")
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": sys.version.split()[0],
        "packages": {name: version for name in packages if (version := package_version(name)) is not None},
    }


def package_version(name: str) -> str | None:
    """Give an installed package's version without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """Give the processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def readable(seconds: float) -> str:
    """Write a time for people: three figures and a unit.

    >>> readable(0.00512), readable(1.1e-6), readable(2.5)
    ('5.12 ms', '1.10 µs', '2.50 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if seconds >= size:
            return f"{seconds / size:#.3g} {unit}"
    return f"{seconds / 1e-9:#.3g} ns"
