"""Compare softmax, entmax and sparsemax of the same scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape

import softargmax
from softargmax.cli import plot, render

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

SCORES = np.array([2.4, 2.1, 1.7, 1.2, 0.6, 0.1, -0.7, -1.6])
ORDERS = {"softmax": 1.0, "entmax 1.25": 1.25, "entmax 1.5": 1.5, "sparsemax": 2.0}


def run(out: Console | None, folder: Path) -> dict[str, Any]:
    """Print the probabilities and how many of them are above 0, and draw them."""
    p = {name: softargmax.entmax(SCORES, alpha) for name, alpha in ORDERS.items()}
    support = [int(softargmax.threshold(SCORES, alpha).support_size) for alpha in ORDERS.values()]
    picture = folder / "sparse.png"
    draw(p, str(picture))
    whole = all(abs(row.sum() - 1) < 1e-15 * row.size for row in p.values())
    if out is not None:
        shown = render.table("z", *p)
        for z, *row in zip(SCORES, *p.values(), strict=True):
            shown.add_row(f"{z:g}", *(f"{value:.4f}" if value else "0" for value in row))
        shown.add_row("above 0", *map(str, support))
        out.print(shown)
        out.print(f"[dim]side by side: {escape(str(picture))}[/]")
    return {"ok": whole and support == sorted(support, reverse=True) and support[-1] < SCORES.size, "support": support}


def draw(p: dict[str, np.ndarray[Any, Any]], output: str) -> None:
    """Draw a group of bars per score, one bar per map."""
    figure = plot.pyplot()(figsize=(7.6, 4.0), layout="constrained")
    panel, place = figure.subplots(), np.arange(SCORES.size)
    width = 0.8 / len(p)
    for i, (colour, (name, row)) in enumerate(zip(plot.shades(len(p)), p.items(), strict=True)):
        panel.bar(place + (i - (len(p) - 1) / 2) * width, row, width, color=colour, label=name)
    panel.set_xticks(place, [f"{z:g}" for z in SCORES])
    panel.set_xlabel("score")
    panel.set_ylabel("probability")
    panel.set_title("sparser probabilities as the order grows", loc="left", fontsize=11)
    panel.legend(frameon=False, fontsize=9)
    plot.tidy(panel)
    plot.save(figure, output)
