"""``softargmax plot``: how temperature moves a distribution, drawn to a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

import softargmax
from softargmax import stream
from softargmax.cli import show, tables, values
from softargmax.cli.errors import FailedRunError, WrongUseError

if TYPE_CHECKING:
    from collections.abc import Sequence

Values = Annotated[list[str] | None, typer.Argument(help="Numbers, or one file with one row.", metavar="VALUES")]
Temperatures = Annotated[list[float] | None, typer.Option("--temperatures", "-t", help="One or more: 0.1 1 10.")]
Output = Annotated[str, typer.Option("--output", "-o", help="The picture: .png, .svg or .pdf.")]
Base = Annotated[float | None, typer.Option("--base", "-b", help="Exponentials of this base in place of e.")]
Json = Annotated[bool, typer.Option("--json", help="Print the drawn numbers as JSON.")]

KINDS = (".png", ".svg", ".pdf")
MOST_BARS = 64


def command(
    values_: Values = None,
    temperatures: Temperatures = None,
    output: Output = "softargmax.png",
    base: Base = None,
    json: Json = False,
) -> None:
    """How temperature moves the distribution, as a picture."""
    words = values_ or []
    if not words:
        raise WrongUseError("nothing to draw; give numbers: softargmax plot 1 2 3 4 --temperatures 0.1 1 10")
    path = values.source(words)
    scores = values.numbers(words) if path is None else tables.read_any(path)
    if scores.ndim != 1:
        raise WrongUseError(f"{path}: shape {scores.shape}; plot draws one row of scores")
    if Path(output).suffix.lower() not in KINDS:
        raise WrongUseError(f"--output {output}: the name may end in {', '.join(KINDS)}")
    sweep = temperatures or [0.1, 1.0, 10.0]
    drawn = [softargmax.softmax(scores, temperature=T, base=base) for T in sweep]
    draw(scores, sweep, drawn, output)
    if json:
        print(show.as_json({"output": output, "values": scores, "temperatures": sweep, "probabilities": drawn}))
    else:
        print(output)


def pyplot() -> Any:
    """Import matplotlib, ready to draw to files."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise FailedRunError(
            "pictures need matplotlib, which is not installed: pip install 'softargmax[plot]'"
        ) from error
    return Figure


def draw(scores: np.ndarray[Any, Any], sweep: Sequence[float], drawn: Sequence[Any], output: str) -> None:
    """Draw one panel a temperature: bars over the positions of the scores, the entropy in the corner."""
    figure = pyplot()(figsize=(max(3.2 * len(sweep), 4.0), 3.4), layout="constrained")
    panels = figure.subplots(1, len(sweep), sharey=True, squeeze=False)[0]
    colours = shades(len(sweep))
    positions = np.arange(scores.size)
    for panel, temperature, p, colour in zip(panels, sweep, drawn, colours, strict=True):
        if scores.size <= MOST_BARS:
            panel.bar(positions, p, color=colour, width=0.78)
        else:
            panel.fill_between(positions, p, step="mid", color=colour)
        panel.set_title(f"T = {temperature:g}", loc="left", fontsize=11)
        spread = np.exp(softargmax.entropy(scores, temperature=temperature)) if np.isfinite(p).all() else np.nan
        corner = {"transform": panel.transAxes, "ha": "right", "va": "top", "color": "0.35", "fontsize": 9}
        panel.text(0.98, 0.97, f"perplexity {spread:.3g}", **corner)
        if scores.size <= 16:
            panel.set_xticks(positions, [f"{z:g}" for z in scores])
        tidy(panel)
        panel.set_xlabel("score z" if scores.size <= 16 else "position")
    panels[0].set_ylabel("probability")
    panels[0].set_ylim(0, max(float(np.nanmax(drawn)) * 1.14, 1e-12))
    save(figure, output)


def shades(count: int) -> list[Any]:
    """Give a colour from cold to hot for each of `count` temperatures."""
    import matplotlib as mpl

    return [mpl.colormaps["plasma"](0.08 + 0.72 * index / max(count - 1, 1)) for index in range(count)]


def tidy(panel: Any) -> None:
    """Leave a panel with what says something."""
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    panel.tick_params(labelsize=9, length=3)
    panel.grid(axis="y", color="0.9", linewidth=0.8)
    panel.set_axisbelow(True)


def save(figure: Any, output: str) -> None:
    """Write a picture that appears when it is whole."""
    with stream.whole_file(output) as file:
        figure.savefig(file, format=Path(output).suffix[1:].lower(), dpi=160)
