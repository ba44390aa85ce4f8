"""The stops of the tour, in order.

A stop is a file in this folder with a function ``run(out, folder)``. This function prints to `out` (a rich Console, or
None for no output). It writes its files into `folder` and returns a dict of its results. The key ``ok`` is True if the
results are as expected. To add a stop, write the file and add a line to `STOPS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from softargmax.cli.tour.attention import run as attention
from softargmax.cli.tour.choices import run as choices
from softargmax.cli.tour.classifiers import run as classifiers
from softargmax.cli.tour.digit_scores import run as digits
from softargmax.cli.tour.processes import run as processes
from softargmax.cli.tour.regression import run as regression
from softargmax.cli.tour.sampling import run as sampling
from softargmax.cli.tour.short_bench import run as short_bench
from softargmax.cli.tour.sparse import run as sparse
from softargmax.cli.tour.stream_file import run as stream_file
from softargmax.cli.tour.temperature import run as temperature
from softargmax.cli.tour.values import run as values
from softargmax.cli.tour.words import run as words

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console


class Stop(NamedTuple):
    """A stop of the tour: its name for ``--only``, its title, and the function that runs it."""

    name: str
    title: str
    run: Callable[[Console | None, Path], dict[str, Any]]


STOPS = (
    Stop("values", "Values that can be checked by hand", values),
    Stop("temperature", "Temperature, from arg max to uniform", temperature),
    Stop("digits", "Real scores: handwritten digits", digits),
    Stop("regression", "A classifier trained on the digits: cross-entropy and its gradient", regression),
    Stop("classifiers", "Six classifiers and their calibration", classifiers),
    Stop("choices", "Choices among alternatives: how 210 people travel", choices),
    Stop("sparse", "Probabilities that are exactly 0", sparse),
    Stop("sampling", "Draws: a bandit, and samples with a gradient", sampling),
    Stop("attention", "Attention: entropy in long memories, soft and hard reads", attention),
    Stop("words", "A language model with three output layers", words),
    Stop("processes", "Two processes that share the classes of a last layer", processes),
    Stop("stream", "A file larger than the memory limit", stream_file),
    Stop("bench", "Run times compared with other installed libraries", short_bench),
)
