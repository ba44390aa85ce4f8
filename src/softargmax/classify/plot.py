"""The reliability diagram."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from softargmax.classify.report import standard_errors

if TYPE_CHECKING:
    from softargmax.classify.report import CalibrationReport

BLUE, GREY = "#3b6ea5", "#999999"


def reliability(report: CalibrationReport, title: str) -> Figure:
    """Accuracy over confidence in bins, with standard errors, beside the diagonal; below, how many rows are in each."""
    figure = Figure(figsize=(5.0, 5.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    filled = report.counts > 0
    sure, right, count = report.bin_confidence[filled], report.bin_accuracy[filled], report.counts[filled]
    above.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="as right as sure")
    above.errorbar(sure, right, standard_errors(count, right * count), fmt="o", color=BLUE, capsize=2, label="found")
    low, high = report.ece_interval
    said = f"calibration error {report.ece:.3f} ({low:.3f} to {high:.3f})"
    above.set_title(f"{title}\n{said}" if title else said, loc="left", fontsize=10)
    above.set(ylabel="share that is right", xlim=(0, 1), ylim=(0, 1.02))
    above.legend(frameon=False, loc="upper left", fontsize=9)
    below.bar(report.edges[:-1], report.counts, np.diff(report.edges), align="edge", color=GREY, edgecolor="white")
    below.set(xlabel="confidence: the largest p", ylabel="rows")
    for panel in (above, below):
        panel.spines[["top", "right"]].set_visible(False)
    return figure
