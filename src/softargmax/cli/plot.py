"""``softargmax plot``: a picture of the distribution at several temperatures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

import softargmax
from softargmax import stream
from softargmax.cli import parse, render, scores_file
from softargmax.cli.errors import FailedRunError, WrongUseError
from softargmax.cli.options import Base, Columns, Header, Values
from softargmax.core.extras import install

if TYPE_CHECKING:
    from collections.abc import Sequence

Temperatures = Annotated[
    list[float] | None, typer.Option("--temperatures", "-t", parser=parse.number, help="One or more: 0.1 1 10.")
]
Output = Annotated[str, typer.Option("--output", "-o", help="The picture file: .png, .svg or .pdf.")]
Json = Annotated[bool, typer.Option("--json", help="Print the plotted numbers as JSON.")]

KINDS = (".png", ".svg", ".pdf")
MOST_BARS = 64


def command(
    values_: Values = None,
    *,
    temperatures: Temperatures = None,
    output: Output = "softargmax.png",
    base: Base = None,
    header: Header = None,
    columns: Columns = None,
    json: Json = False,
) -> None:
    """Plot how temperature changes the distribution."""
    words = values_ or []
    if not words:
        raise WrongUseError("nothing to draw; give numbers: softargmax plot 1 2 3 4 --temperatures 0.1 1 10")
    path = parse.source(words)
    scores = scores_file.scores_of(words, path, scores_file.Reading(header, columns)).scores
    if scores.ndim != 1:
        raise WrongUseError(f"{path}: expected one row of scores, got shape {scores.shape}")
    if Path(output).suffix.lower() not in KINDS:
        raise WrongUseError(f"--output {output}: expected a name that ends in {', '.join(KINDS)}")
    if not scores.size:
        raise FailedRunError(f"{path}: expected at least one score, got none")
    parse.check_target(output, path)
    sweep = temperatures or [0.1, 1.0, 10.0]
    for T in sweep:
        parse.check_options({"temperature": T, "base": base})
    panels = [panel_of(scores, T, base) for T in sweep]
    draw(scores, panels, output)
    if json:
        keys = ("temperatures", "probabilities", "perplexities")
        fields = {key: list(column) for key, column in zip(keys, zip(*panels, strict=True), strict=True)}
        print(render.as_json({"output": output, "values": scores, **fields}))
    else:
        print(output)


class Panel(NamedTuple):
    """The content of one panel of the figure: the probabilities and the perplexity at one temperature."""

    temperature: float
    p: np.ndarray[Any, Any]
    perplexity: float


def panel_of(scores: np.ndarray[Any, Any], temperature: float, base: float | None) -> Panel:
    """Compute the probabilities and the perplexity of one panel. If a probability is NaN, the perplexity is NaN."""
    p = softargmax.softmax(scores, temperature=temperature, base=base)
    known = np.isfinite(p).all()
    entropy = softargmax.entropy(scores, temperature=temperature, base=base) if known else np.nan
    return Panel(temperature, p, float(np.exp(entropy)))


def pyplot() -> Any:
    """Return matplotlib's Figure, which draws to files without a display."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise FailedRunError(f"pictures need matplotlib, which is not installed: {install('plot')}") from error
    return Figure


def draw(scores: np.ndarray[Any, Any], drawn: Sequence[Panel], output: str) -> None:
    """Draw one panel per temperature: the probabilities, and the perplexity in the corner.

    Up to `MOST_BARS` scores are drawn as bars, more as a filled area. NaN probabilities are not drawn.
    """
    figure = pyplot()(figsize=(max(3.2 * len(drawn), 4.0), 3.4), layout="constrained")
    panels = figure.subplots(1, len(drawn), sharey=True, squeeze=False)[0]
    colours = shades(len(drawn))
    positions = np.arange(scores.size)
    for panel, (temperature, p, perplexity), colour in zip(panels, drawn, colours, strict=True):
        if scores.size <= MOST_BARS:
            panel.bar(positions, p, color=colour, width=0.78)
        else:
            panel.fill_between(positions, p, step="mid", color=colour)
        panel.set_title(f"T = {temperature:g}", loc="left", fontsize=11)
        corner = {"transform": panel.transAxes, "ha": "right", "va": "top", "color": "0.35", "fontsize": 9}
        panel.text(0.98, 0.97, f"perplexity {perplexity:.3g}", **corner)
        if scores.size <= 16:
            panel.set_xticks(positions, [f"{z:g}" for z in scores])
        tidy(panel)
        panel.set_xlabel("score z" if scores.size <= 16 else "position")
    panels[0].set_ylabel("probability")
    top = max(float(np.nan_to_num(panel.p, nan=0.0).max()) for panel in drawn)
    panels[0].set_ylim(0, top * 1.14 or 1.0)
    save(figure, output)


def shades(count: int) -> list[Any]:
    """Return `count` colours from cold to hot."""
    import matplotlib as mpl

    return [mpl.colormaps["plasma"](0.08 + 0.72 * index / max(count - 1, 1)) for index in range(count)]


def tidy(panel: Any) -> None:
    """Remove the top and right edges of the frame, and add light horizontal grid lines."""
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    panel.tick_params(labelsize=9, length=3)
    panel.grid(axis="y", color="0.9", linewidth=0.8)
    panel.set_axisbelow(True)


def save(figure: Any, output: str) -> None:
    """Write a picture. The file appears only when it is complete."""
    with stream.whole_file(output) as file:
        figure.savefig(file, format=Path(output).suffix[1:].lower(), dpi=160)
