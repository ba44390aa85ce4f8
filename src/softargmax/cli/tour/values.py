"""Compare values printed in the literature with computed values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import softargmax
from softargmax.cli import render

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rich.console import Console

CHAIN: list[float] = [1, 2, 3, 4, 1, 2, 3]

# (name, scores, temperature, printed values, number of printed decimals)
CHECKED: tuple[tuple[str, list[float], float, list[float], int], ...] = (
    ("softmax(1,2,3,4,1,2,3)", CHAIN, 1.0,
     [0.02364054, 0.06426166, 0.1746813, 0.474833, 0.02364054, 0.06426166, 0.1746813], 7),
    ("the same, T = 10", CHAIN, 10.0, [0.125, 0.138, 0.153, 0.169, 0.125, 0.138, 0.153], 3),
    ("softmax(1,2,8)", [1, 2, 8], 1.0, [0.001, 0.002, 0.997], 3),
    ("softmax(0,10)", [0, 10], 1.0, [0.00005, 0.99995], 5),
    ("softmax(0,10), T = 100", [0, 10], 100.0, [0.475, 0.525], 3),
    ("softmax(2,2.1)", [2.0, 2.1], 1.0, [0.475, 0.525], 3),
    ("softmax(2.11,2.1)", [2.11, 2.1], 1.0, [0.5025, 0.4975], 4),
    ("arg max of (1,5,5)", [1, 5, 5], 0.0, [0.0, 0.5, 0.5], 15),
)  # fmt: skip


def run(out: Console | None, folder: Path) -> dict[str, Any]:  # noqa: ARG001  a stop's arguments are fixed
    """Compute every value and compare it with the decimals printed in the literature."""
    shown = render.table("", "printed", "computed", "")
    shown.columns[1].justify = shown.columns[2].justify = "left"
    found = []
    for what, scores, temperature, printed, decimals in CHECKED:
        p = softargmax.softmax(scores, temperature=temperature)
        agrees = bool(np.all(np.abs(p - printed) <= 0.6 * 10.0**-decimals))
        found.append(agrees)
        shown.add_row(what, written(printed, decimals), written(p, decimals), "✓" if agrees else "✗")
    confident = float(softargmax.log_softmax([40.0, 0.0])[0])
    found.append(abs(confident / -4.248354255291589e-18 - 1) < 1e-15)
    tick = "✓" if found[-1] else "✗"
    shown.add_row("log_softmax(40,0)[0]", "-4.248354e-18", f"{confident:.6e}", tick)
    if out is not None:
        out.print(shown)
    return {"ok": all(found), "checked": len(found)}


def written(values: Iterable[float], decimals: int) -> str:
    """Return the first three values as text, rounded to `decimals` decimals, or to 7 if `decimals` is larger.

    If there are more than four values and `decimals` is above 4, return only the first two.
    """
    words = [f"{value:.{min(decimals, 7)}f}".rstrip("0").rstrip(".") for value in values]
    most = 2 if len(words) > 4 and decimals > 4 else 3
    return " ".join(words[:most]) + (" ..." if len(words) > most else "")
