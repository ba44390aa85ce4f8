"""The report of training: a table, a plot of perplexity over time, and JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from softargmax import stream
from softargmax.cli import plot, render

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

Record = dict[str, Any]


def about(facts: dict[str, Any]) -> str:
    """Return a description of the text, as one line for the report."""
    parted = facts["files"] and facts["held_out_files"]
    others = f"{facts['held_out_files']:,} other files" if parted else "the end of the text"
    return (
        f"{facts['tokens']:,} tokens of {facts['files'] or facts['held_out_files']:,} files, {facts['distinct']:,} "
        f"distinct; {facts['classes']:,} classes, {facts['unknown']:.1%} of the tokens unknown; "
        f"{facts['held_out_tokens']:,} tokens held out, from {others}"
    )


def printed(out: Console, records: Sequence[Record], folder: Path) -> None:
    """Print one line per layer, and the text that each layer generated."""
    shown = render.table("layer", "steps", "seconds", "steps/s", "s/epoch", "peak", "perplexity")
    first = records[0]
    shown.add_row("unigram counts", *[""] * 5, f"{first['unigram']:.2f}")
    for record in records:
        perplexity = record["perplexity"]
        shown.add_row(
            record["layer"],
            f"{record['steps']:,}",
            f"{record['seconds']:.1f}",
            f"{record['steps_per_second']:.1f}",
            f"{record['seconds_per_epoch']:,.{0 if record['seconds_per_epoch'] > 100 else 2}f}",
            f"{record['peak'] / 2**20:,.0f} MiB",
            "-" if perplexity is None else f"{perplexity:.2f}",
        )
    out.print(shown)
    out.print(
        f"[dim]Perplexity of {first['held_out_tokens']:,} tokens spread over the held-out text, with p normalised over "
        "all classes (-: the layer defines no p). Seconds are those of training only, with "
        f"{first['tokens_per_step']:,} tokens per step and {first['threads']} threads. Full report and picture: "
        f"{escape(str(folder))}/[/]"
    )
    for record in records:
        if "text" in record:
            out.print(f"\n[bold]{record['layer']}[/]\n{escape(record['text'])}")


def draw(records: Sequence[Record], output: Path) -> None:
    """Plot the perplexity of every layer against the seconds of training."""
    figure = plot.pyplot()(figsize=(6.8, 4.2), layout="constrained")
    from matplotlib.ticker import LogFormatter

    panel = figure.subplots()
    for i, (record, colour) in enumerate(zip(records, plot.shades(len(records)), strict=True)):
        points = [point for point in record["curve"] if point["perplexity"] is not None]
        if points:
            x, y = ([point[key] for point in points] for key in ("seconds", "perplexity"))
            panel.plot(x, y, "--" if i % 2 else "-", color=colour, linewidth=2, marker=".", label=record["layer"])
    panel.set(xscale="log", yscale="log", xlabel="seconds of training", ylabel="perplexity of held-out text")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(LogFormatter())
        axis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.5)))
    if panel.lines:
        panel.legend(frameon=False, fontsize=9)
    plot.tidy(panel)
    plot.save(figure, str(output))


def write(folder: Path, report: Record) -> None:
    """Write the picture and the JSON report. Each file appears only when it is complete."""
    draw(report["layers"], folder / "perplexity.svg")
    with stream.whole_file(folder / "report.json") as file:
        file.write((json.dumps(render.plain(report), indent=2) + "\n").encode())
