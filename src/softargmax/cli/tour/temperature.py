"""One row of scores at temperatures from 0 to infinity, plotted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape

import softargmax
from softargmax.cli import plot, render

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

SCORES = np.array([1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0])


def run(out: Console | None, folder: Path) -> dict[str, Any]:
    """Plot the probabilities against the temperature, and check the limits at 0 and infinity."""
    sweep = np.geomspace(0.05, 200, 121)
    p = np.array([softargmax.softmax(SCORES, temperature=T) for T in sweep])
    entropy = np.array([softargmax.entropy(SCORES, temperature=T) for T in sweep])
    picture = folder / "temperature.png"
    draw(sweep, p, entropy, str(picture))
    cold, hot = softargmax.softmax(SCORES, temperature=0), softargmax.softmax(SCORES, temperature=np.inf)
    rising = bool(np.all(np.diff(entropy) >= -1e-12))
    limits = bool(np.array_equal(cold, softargmax.hardmax(SCORES)) and np.allclose(hot, 1 / SCORES.size, rtol=1e-15))
    if out is not None:
        scores, first, count = np.unique(SCORES, return_index=True, return_counts=True)
        names = [f"z = {z:g}" + (f" (x{times})" if times > 1 else "") for z, times in zip(scores, count, strict=True)]
        shown = render.table("T", *names, "perplexity")
        for T in (0.0, 0.1, 1.0, 10.0, np.inf):
            row = softargmax.softmax(SCORES, temperature=T)
            spread = float(np.exp(softargmax.entropy(SCORES, temperature=T)))
            shown.add_row(f"{T:g}", *(f"{value:.4f}" for value in row[first]), f"{spread:.3f}")
        out.print(shown)
        out.print(f"[dim]the whole sweep: {escape(str(picture))}[/]")
    return {"ok": rising and limits, "picture": str(picture)}


def draw(sweep: np.ndarray[Any, Any], p: np.ndarray[Any, Any], entropy: np.ndarray[Any, Any], output: str) -> None:
    """Plot one line of probabilities per distinct score, and the perplexity below."""
    figure = plot.pyplot()(figsize=(7.6, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
    scores, first, count = np.unique(SCORES, return_index=True, return_counts=True)
    for colour, z, index, times in zip(plot.shades(len(scores)), scores, first, count, strict=True):
        name = f"z = {z:g}" + (f", {times} times" if times > 1 else "")
        above.plot(sweep, p[:, index], color=colour, linewidth=2, label=name)
    above.axhline(1 / SCORES.size, color="0.6", linewidth=1, linestyle=":")
    above.legend(frameon=False, fontsize=9, loc="upper right")
    above.set_ylabel("probability")
    above.set_ylim(-0.03, 1.05)
    above.set_title("softmax(1, 2, 3, 4, 1, 2, 3) from arg max to uniform", loc="left", fontsize=11)
    below.plot(sweep, np.exp(entropy), color="0.25", linewidth=2)
    below.set_ylabel("perplexity")
    below.set_xlabel("temperature T")
    below.set_xscale("log")
    below.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    below.minorticks_off()
    below.set_ylim(0.8, SCORES.size + 0.5)
    for panel in (above, below):
        plot.tidy(panel)
    plot.save(figure, output)
