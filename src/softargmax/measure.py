"""Speed measurements: time several libraries in turn, compare their medians, and measure the machine's limits.

The speed of a shared machine drifts by a factor of two within a minute, so a single measurement is
unreliable. A ratio of medians is reliable if the libraries take turns within one run, because the drift then affects
all of them equally. `softargmax bench` and the sweep under ``bench/`` both use this module.

    case = Case("softmax 512x32768, out=", {"softargmax": ours, "torch": theirs}, bytes=2 * z.nbytes)
    result = measure(case)
    result.ratio("torch")            # torch's median / softargmax's median
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OURS = "softargmax"

# Smallest duration of a sample, in seconds. Short calls are repeated until a sample takes this long, so that the time
# to read the clock is negligible.
SHORTEST_SAMPLE = 2e-3


@dataclass(frozen=True)
class Case:
    """One benchmark: a computation, and the libraries that run it, called its sides.

    Arguments
    ---------
    name : str
        The computation and the shape of its input.
    sides : mapping of str to callable
        The libraries by name: `OURS` and the installed peers. Each callable runs the whole computation once.
    bytes : int
        Bytes that any implementation must move: inputs read once, outputs written once. 0 if memory does
        not limit the speed.
    multiply_adds : float
        Number of vector multiplications or multiply-adds, each on 16 floats, in one call of our kernel. 0 if unknown.
    """

    name: str
    sides: Mapping[str, Callable[[], object]]
    bytes: int = 0
    multiply_adds: float = 0.0


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median, the lower quartile and the upper quartile of the samples."""

    median: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, samples: list[float]) -> Timing:
        """Summarise a list of samples."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0], 1)
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high, len(samples))


@dataclass(frozen=True)
class Limits:
    """The measured peak rates of the machine: bytes copied and fused multiply-adds of 16 floats, per second."""

    copy_bytes: float
    multiply_adds: float
    threads: int

    def better(self, other: Limits) -> Limits:
        """Return the higher one of each rate. A measurement beside another program is too low."""
        return Limits(
            max(self.copy_bytes, other.copy_bytes), max(self.multiply_adds, other.multiply_adds), self.threads
        )


@dataclass(frozen=True)
class Result:
    """The timings of one case. `ratio` compares softargmax with a peer, `of_limit` with the machine's limit."""

    name: str
    timings: dict[str, Timing]
    bytes: int = 0
    multiply_adds: float = 0.0

    def ratio(self, peer: str) -> float:
        """Return the peer's median time divided by softargmax's. Above 1, softargmax is faster."""
        return self.timings[peer].median / self.timings[OURS].median

    @property
    def peers(self) -> list[str]:
        """The names of all sides except softargmax, in the order in which the case lists them."""
        return [side for side in self.timings if side != OURS]

    def limits(self, machine: Limits) -> dict[str, float]:
        """Return the shortest possible time of a call, in seconds, by each known limit.

        The keys are "memory" and "arithmetic". "memory" is an estimate, because caches may keep a part of the arrays.
        """
        seconds = {}
        if self.bytes:
            # A copy of n bytes moves 2 n bytes: n are read and n are written. `bytes` counts the bytes moved.
            seconds["memory"] = self.bytes / (2 * machine.copy_bytes)
        if self.multiply_adds:
            seconds["arithmetic"] = self.multiply_adds / machine.multiply_adds
        return seconds

    def of_limit(self, machine: Limits) -> float | None:
        """Return the shortest possible time of a call divided by softargmax's median, or None if no limit is known.

        The best possible value is 1.
        """
        limits = self.limits(machine)
        return max(limits.values()) / self.timings[OURS].median if limits else None

    def as_json(self, machine: Limits | None = None) -> dict[str, Any]:
        """Return plain dicts and numbers for a JSON file."""
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
    """One side (library) of a case while it is measured."""

    call: Callable[[], object]
    repeats: int = 1
    samples: list[float] = field(default_factory=list)

    def sample(self) -> None:
        """Time one sample of `repeats` calls, and store its seconds per call."""
        call, repeats = self.call, self.repeats
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        self.samples.append((time.perf_counter() - start) / repeats)

    def warm_up(self) -> None:
        """Warm up (memory pages, caches, lazy imports), and choose the number of calls per sample."""
        self.call()
        self.repeats = 1
        self.sample()
        while self.repeats * self.samples[-1] < SHORTEST_SAMPLE and self.repeats < 1 << 20:
            self.repeats *= 2
            self.sample()
        self.samples.clear()


def measure(case: Case, *, rounds: int = 15, seconds: float = 20.0) -> Result:
    """Time the sides of a case in turn: every round takes one sample of each side, in a rotating order.

    Arguments
    ---------
    case : Case
        The case to time.
    rounds : int
        The number of samples per side, at least 3.
    seconds : float
        Stop after this many seconds, once every side has three samples.
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


def machine_limits(threads: int | None = None) -> Limits:
    """Measure the peak rates of the machine: copies far larger than the caches, and multiply-adds.

    By default the measurement uses all processors that this process may run on. It takes a second. To notice other
    programs, measure before and after a run, and use `Limits.better`.
    """
    threads = threads or len(os.sched_getaffinity(0))
    return Limits(copy_rate(threads), arithmetic_rate(threads), threads)


def copy_rate(threads: int, megabytes: int = 64) -> float:
    """Measure the bytes copied per second. Each thread copies its own part of an array.

    Each copied byte counts once here, although it is read and written.
    """
    source = np.ones(megabytes << 20, np.uint8)
    target = np.zeros_like(source)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:

        def copy() -> None:
            for done in [pool.submit(np.copyto, to, part) for part, to in parts]:
                done.result()

        return source.nbytes / best_of(copy)


def arithmetic_rate(threads: int) -> float:
    """Return how many fused multiply-adds, each on 16 floats, the processor computes per second.

    A compiled loop measures the number. Its data stay in registers.
    """
    from softargmax.core import _native  # not at the top, so that other commands work even if the core fails to load

    rounds, seconds = 1000, 0.0
    while seconds < 5e-3:  # the time to wake threads is then negligible
        rounds *= 2
        start = time.perf_counter()
        _native.multiply_adds(rounds)
        seconds = time.perf_counter() - start
    with ThreadPoolExecutor(threads) as pool:
        seconds = best_of(lambda: list(pool.map(_native.multiply_adds, [rounds] * threads)))
    return threads * rounds * _native.MULTIPLY_ADDS / seconds


def best_of(call: Callable[[], object], seconds: float = 0.5) -> float:
    """Repeat a call for at least `seconds`, and return its shortest time.

    The shortest time, and not the typical one, shows what the machine can do.
    """
    side = Side(call)
    side.warm_up()
    start = time.perf_counter()
    while len(side.samples) < 9 or time.perf_counter() - start < seconds:
        side.sample()
    return min(side.samples)


def machine() -> dict[str, Any]:
    """Return a description of the machine and the installed versions, for the head of a result file."""
    packages = ("softargmax", "numpy", "scipy", "torch", "jax", "entmax", "scikit-learn", "transformers", "gensim")
    return {
        "cpu": cpu_name(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": sys.version.split()[0],
        "packages": {name: version for name in packages if (version := package_version(name)) is not None},
    }


def package_version(name: str) -> str | None:
    """Return the version of an installed package without importing it, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cpu_fields() -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo by lower-case name, or {} if there is no such file."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return {}
    first = cpuinfo.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    lines = (line.partition(":") for line in first.splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def cpu_name() -> str:
    """Return the name of the processor."""
    return cpu_fields().get("model name") or platform.processor() or platform.machine()


def processor() -> dict[str, Any]:
    """Describe the processor: family, model, stepping, caches, and the kernels' instruction sets that it supports.

    The numbers identify the processor even if a virtual machine hides the model's name.
    """
    from softargmax.core import _native  # here for the same reason as in `arithmetic_rate`

    fields = cpu_fields()
    caches = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        facts = [folder / name for name in ("level", "type", "size")]
        if not all(fact.exists() for fact in facts):  # some virtual machines hide the size
            continue
        level, kind, size = (fact.read_text(encoding="utf-8").strip() for fact in facts)
        if kind != "Instruction":
            caches[f"L{level}"] = size
    return {
        **{name: fields[key] for name, key in (("family", "cpu family"), ("model", "model"), ("stepping", "stepping"))
           if key in fields},
        "caches": caches,
        "isas": [name for name, runs in _native.isas().items() if runs],
    }  # fmt: skip


def readable(seconds: float) -> str:
    """Format a time with three digits and a unit.

    >>> readable(0.00512), readable(1.1e-6), readable(0.9996), readable(0.124), readable(584e-9), readable(1234.5)
    ('5.12 ms', '1.10 µs', '1.00 s', '124 ms', '584 ns', '1,234 s')
    """
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
    unit, size = next((one for one in units if float(f"{seconds:.3g}") >= one[1]), units[-1])
    return f"{three_digits(seconds / size)} {unit}"


def three_digits(number: float) -> str:
    """Format a number with three digits, or as an integer if it is 1000 or more.

    >>> three_digits(1.3), three_digits(99.96), three_digits(1012.3)
    ('1.30', '100', '1,012')
    """
    return f"{number:,.0f}" if number >= 999.5 else f"{number:#.3g}".rstrip(".")
