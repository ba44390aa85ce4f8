"""A score file several times larger than the memory it is converted in."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softargmax.cli import render, streamed

if TYPE_CHECKING:
    from rich.console import Console

SIZE = 384 << 20
CAP = 64 << 20  # what the converting process may hold at its peak, the interpreter and NumPy included
MEMORY = 24 << 20  # what the stream may use of it


def run(out: Console | None, folder: Path) -> dict[str, Any]:
    """Write the file, convert it in a process that measures its own peak, check rows to the bit, remove both."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        source, target = Path(name) / "scores.npy", Path(name) / "probabilities.npy"
        shape = streamed.write_scores(source, SIZE)
        found = streamed.convert_apart(source, target, MEMORY)
        equal = streamed.equal_rows(source, target)
        size = source.stat().st_size
    if out is not None:
        shown = render.table("", "MiB")
        shown.add_row(f"scores.npy, {shape[0]:,} x {shape[1]:,} float32", f"{size / 2**20:,.0f}")
        shown.add_row("the cap of this step", f"{CAP / 2**20:,.0f}")
        shown.add_row("the process before the work", f"{found['before'] / 2**20:,.0f}")
        shown.add_row("its peak (VmHWM)", f"{found['peak'] / 2**20:,.0f}")
        out.print(shown)
        rate = 2 * size / found["seconds"] / 1e9
        bits = "have" if equal else "do NOT have"
        out.print(f"sampled rows {bits} the bits of the in-memory result; {rate:.1f} GB/s read and written")
    return {"ok": equal and found["peak"] <= CAP, "bytes": size, "cap": CAP, "rows_equal": equal, **found}
