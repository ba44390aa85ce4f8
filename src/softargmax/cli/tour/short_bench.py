"""A few cases of ``softargmax bench``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softargmax.cli import bench, cases

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console


def run(out: Console | None, folder: Path) -> dict[str, Any]:  # noqa: ARG001  a stop's arguments are fixed
    """Time the short cases. The stop succeeds for any run times, because the machine may be busy."""
    record = bench.timed(out, "one alternating run", cases.short(), rounds=9)
    return {"ok": True, **record}
