"""The reliability diagram."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

BLUE, GREY = "#3b6ea5", "#999999"
Floats = NDArray[np.float64]


def reliability(
    edges: Floats, counts: NDArray[np.int64], confidence: Floats, accuracy: Floats, errors: Floats, title: str
) -> Figure:
    """Plot accuracy against confidence, with standard errors and the diagonal, and below it the rows per bin."""
    figure = Figure(figsize=(5.0, 5.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    filled = counts > 0
    points = (confidence[filled], accuracy[filled], errors[filled])
    above.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="perfect calibration")
    above.errorbar(*points, fmt="o", color=BLUE, capsize=2, label="observed")
    above.set_title(title, loc="left", fontsize=10)
    above.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
    above.legend(frameon=False, loc="upper left", fontsize=9)
    below.bar(edges[:-1], counts, np.diff(edges), align="edge", color=GREY, edgecolor="white")
    below.set(xlabel="confidence: the largest p", ylabel="rows")
    for panel in (above, below):
        panel.spines[["top", "right"]].set_visible(False)
    return figure
