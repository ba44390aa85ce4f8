"""Describe the machine, the commit, and the other programs of a run, for the head of a result file."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from softargmax import measure
from softargmax.core import native

ROOT = Path(__file__).resolve().parent.parent
BEFORE = 2.0
"""Seconds before a run in which the processors are watched."""
OTHERS = 0.1
"""The largest number of processors that other programs may use during a run whose results are written."""


def machine() -> dict[str, Any]:
    """Return `softargmax.measure.machine`, the instruction set and threads of our kernels, and the commit.

    The commit has "-dirty" if the library, its build or a bench differs from it.
    """
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    built_from = ["src", "CMakeLists.txt", "cmake", "pyproject.toml", "bench/*.py"]
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *built_from], check=False)
    commit = found.stdout.strip() + "-dirty" * (changed.returncode != 0)
    ours = {name: value for name, value in native.info().items() if name in ("isa", "threads")}
    return measure.machine() | ours | ({} if found.returncode else {"commit": commit})


class Others:
    """Counts how many processors other programs use, on average from its creation on.

    Only processors that this process may run on count. A hypervisor that takes a processor away counts as a program.
    """

    def __init__(self) -> None:
        self.start = seconds()

    def processors(self) -> float:
        """Return the number of processors that other programs have used."""
        clock, everything, own = (now - then for now, then in zip(seconds(), self.start, strict=True))
        return round(max(0.0, everything - own) / clock, 2)


def seconds() -> tuple[float, float, float]:
    """Return the time, and the CPU seconds of all programs and of this process with its children that have ended."""
    used, tick = 0, os.sysconf("SC_CLK_TCK")
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *ticks = line.split()
        if name.removeprefix("cpu") in map(str, os.sched_getaffinity(0)):
            user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, ticks[:8])
            used += user + nice + system + interrupts + soft + stolen
    return time.monotonic(), used / tick, sum(os.times()[:4])


class Run:
    """A run of a bench, from its creation on. Creating it takes BEFORE seconds."""

    def __init__(self) -> None:
        before = Others()
        time.sleep(BEFORE)
        self.before, self.others = before.processors(), Others()

    def machine(self) -> dict[str, Any]:
        """Describe the machine, and the number of processors that others used before the run and during it.

        Raise an error if others used more than OTHERS processors during the run.
        """
        during = self.others.processors()
        if during > OTHERS:
            raise SystemExit(f"wrote nothing: other programs used {during} processors during the run, above {OTHERS}")
        return machine() | {"others": {"before": self.before, "during": during}}
