"""Convert a score file that is several times larger than the memory used."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softargmax.cli import file_conversion, render

if TYPE_CHECKING:
    from rich.console import Console

SIZE = 384 << 20
CAP = 64 << 20  # limit of the process's peak memory, including the interpreter and NumPy
MEMORY = 24 << 20  # limit of the stream's own memory


def run(out: Console | None, folder: Path) -> dict[str, Any]:
    """Write a file, convert it in a process that measures its peak memory, compare rows, and remove both files."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        source, target = Path(name) / "scores.npy", Path(name) / "probabilities.npy"
        shape = file_conversion.write_scores(source, SIZE)
        found = file_conversion.convert_in_subprocess(source, target, MEMORY)
        equal = file_conversion.equal_rows(source, target)
        size = source.stat().st_size
    if out is not None:
        shown = render.table("", "MiB")
        shown.add_row(f"scores.npy, {shape[0]:,} x {shape[1]:,} float32", f"{size / 2**20:,.0f}")
        shown.add_row("limit of this stop", f"{CAP / 2**20:,.0f}")
        shown.add_row("the process before the conversion", f"{found['before'] / 2**20:,.0f}")
        shown.add_row("its peak (VmHWM)", f"{found['peak'] / 2**20:,.0f}")
        out.print(shown)
        rate = 2 * size / found["seconds"] / 1e9
        bits = "have" if equal else "do NOT have"
        out.print(f"sampled rows {bits} the same bits as the in-memory result; {rate:.1f} GB/s read and written")
    return {"ok": equal and found["peak"] <= CAP, "bytes": size, "cap": CAP, "rows_equal": equal, **found}
