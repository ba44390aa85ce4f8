"""Measure the peak resident memory of a call, in a process that does nothing else (Linux only)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def peak_of(call: Callable[[], Any]) -> tuple[int, int, Any]:
    """Return the resident bytes before a call, the peak while it ran, and the result of the call."""
    before, found = reset_peak(), call()
    return before, resident("VmHWM"), found


def reset_peak() -> int:
    """Forget the peak of this process (VmHWM), and return its resident bytes."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return resident("VmRSS")


def measured(program: str, *arguments: object) -> Any:
    """Run a program in a process of its own, and return what it prints as JSON."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def resident(name: str) -> int:
    """Return a number of bytes from /proc/self/status, such as VmRSS or VmHWM."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
