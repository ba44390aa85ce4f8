"""The peak memory of a call, as Linux counts it; for processes that do nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def peak_of(call: Callable[[], Any]) -> tuple[int, int, Any]:
    """Return the bytes that were resident before a call, the most that were while it ran, and what it gives."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is forgotten
    before = resident("VmRSS")
    found = call()
    return before, resident("VmHWM"), found


def resident(name: str) -> int:
    """Return a line of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
