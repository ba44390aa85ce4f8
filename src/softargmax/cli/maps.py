"""The subcommands logsumexp, entropy, sparsemax, entmax, top-k and sample."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

import softargmax
from softargmax.cli import normalize, parse, render, scores_file
from softargmax.cli.errors import WrongUseError, refused_as
from softargmax.cli.options import Axis, Base, Columns, Header, Json, Output, Scheduler, Temperature, Values

if TYPE_CHECKING:
    from collections.abc import Callable

    from softargmax.cli.dask_cluster import Cluster
    from softargmax.cli.scores_file import Array

Alpha = Annotated[float, typer.Option("--alpha", parser=parse.number, help="The order: 1 is softmax, 2 is sparsemax.")]
K = Annotated[int, typer.Option("-k", help="Keep this many of the largest scores.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="Draws per row.")]
TopK = Annotated[int | None, typer.Option("--top-k", help="Draw from this many of the most probable classes.")]
TopP = Annotated[
    float | None, typer.Option("--top-p", help="Draw from the most probable classes with this total probability.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of the draws; random by default.")]


class Inputs(NamedTuple):
    """The parsed arguments of a subcommand: scores and column names, or files on a cluster, and the output."""

    table: scores_file.Table | Cluster
    output: str | None
    json: bool

    @classmethod
    def of(
        cls,
        words: list[str] | None,
        header: bool | None,
        columns: str | None,
        scheduler: str | None,
        output: str | None,
        json: bool,
    ) -> Inputs:
        """Check the name of the output file, then read the scores."""
        if not words:
            raise WrongUseError("nothing to do; give numbers, one file, or - for standard input")
        reading = scores_file.Reading(header, columns)
        if scheduler is not None:
            return cls(normalize.on_cluster(scheduler, words, reading), output, json)
        path = parse.source(words)
        check_output(output, path)
        return cls(scores_file.scores_of(words, path, reading), output, json)

    def report(self, key: str, function: Callable[..., Array], **options: Any) -> None:
        """Call `function` with the scores, and write or print the result. In JSON, `key` is the name of the result."""
        as_scores = key == "probabilities"  # the result has one value per score, so the column names still apply
        scores: Any = None
        names = None
        if isinstance(self.table, scores_file.Table):
            scores, names = self.table
            with refused_as(WrongUseError):
                result = np.asarray(function(scores, **options))
        elif as_scores:
            normalize.convert(partial(self.table.write, function, **options), self.output, json=self.json)
            return
        else:
            check_output(self.output)
            with render.progress(self.table.path.name, quiet=self.json) as progress:
                result = self.table.rows(function, progress=progress, **options)
        if self.output is not None:
            scores_file.write(self.output, result, names if as_scores else None)
        if self.json:
            where = {key: result} if self.output is None else {"output": self.output, "shape": result.shape}
            values = {} if scores is None else {"values": scores}
            print(render.as_json({**values, **where, **options}))
        elif self.output is None and as_scores:
            render.results(scores, result, result, names=names)
        elif self.output is None:
            print(*scores_file.text_of(result, "\t"), sep="", end="")


def check_output(output: str | None, source: str | None = None) -> None:
    """Check the name of an output file."""
    if output is not None:
        scores_file.kind_of(output)
        parse.check_target(output, source)


def logsumexp(
    values_: Values = None,
    *,
    temperature: Temperature = 1.0,
    base: Base = None,
    axis: Axis = "-1",
    header: Header = None,
    columns: Columns = None,
    scheduler: Scheduler = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Compute the smooth maximum of each row: T log sum exp(z / T)."""
    inputs = Inputs.of(values_, header, columns, scheduler, output, json)
    options = {"axis": parse.axis_named(axis), "temperature": temperature, "base": base}
    inputs.report("logsumexp", softargmax.logsumexp, **options)


def entropy(
    values_: Values = None,
    *,
    temperature: Temperature = 1.0,
    base: Base = None,
    axis: Axis = "-1",
    header: Header = None,
    columns: Columns = None,
    scheduler: Scheduler = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Compute the entropy of each row's probabilities, in nats."""
    inputs = Inputs.of(values_, header, columns, scheduler, output, json)
    options = {"axis": parse.axis_named(axis), "temperature": temperature, "base": base}
    inputs.report("entropy", softargmax.entropy, **options)


def sparsemax(
    values_: Values = None,
    *,
    axis: Axis = "-1",
    header: Header = None,
    columns: Columns = None,
    scheduler: Scheduler = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Compute sparse probabilities: the Euclidean projection of each row onto the simplex."""
    inputs = Inputs.of(values_, header, columns, scheduler, output, json)
    inputs.report("probabilities", softargmax.sparsemax, axis=parse.axis_named(axis))


def entmax(
    values_: Values = None,
    *,
    alpha: Alpha = 1.5,
    axis: Axis = "-1",
    header: Header = None,
    columns: Columns = None,
    scheduler: Scheduler = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Compute entmax: the family of maps with softmax at order 1 and sparsemax at order 2."""
    inputs = Inputs.of(values_, header, columns, scheduler, output, json)
    inputs.report("probabilities", softargmax.entmax, alpha=alpha, axis=parse.axis_named(axis))


def top_k(
    values_: Values = None,
    *,
    k: K = 5,
    temperature: Temperature = 1.0,
    axis: Axis = "-1",
    header: Header = None,
    columns: Columns = None,
    scheduler: Scheduler = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Compute softmax over the k largest scores of each row. All other probabilities are 0."""
    inputs = Inputs.of(values_, header, columns, scheduler, output, json)
    options = {"k": k, "axis": parse.axis_named(axis), "temperature": temperature}
    inputs.report("probabilities", softargmax.topk_softmax, **options)


def sample(  # noqa: PLR0913 one argument per option
    values_: Values = None,
    *,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    count: Count = 1,
    seed: Seed = None,
    axis: Axis = "-1",
    header: Header = None,
    columns: Columns = None,
    scheduler: Scheduler = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Draw class indices (from 0) from the probabilities of each row."""
    inputs = Inputs.of(values_, header, columns, scheduler, output, json)
    options = {"axis": parse.axis_named(axis), "temperature": temperature, "top_k": top_k, "top_p": top_p}
    drawn = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
    inputs.report("places", softargmax.categorical, **options, num_samples=count, seed=drawn)
