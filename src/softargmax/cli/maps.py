"""The other functions of the family as subcommands, for numbers, files and standard input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

import softargmax
from softargmax.cli import render, tables, values
from softargmax.cli.errors import WrongUseError, refused_as
from softargmax.cli.options import Axis, Base, Columns, Header, Json, Output, Temperature, Values

if TYPE_CHECKING:
    from collections.abc import Callable

    from softargmax.cli.tables import Array

Alpha = Annotated[float, typer.Option("--alpha", parser=values.number, help="The order: 1 is softmax, 2 sparsemax.")]
K = Annotated[int, typer.Option("-k", help="How many of the largest scores share the probability.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="Draws of each row.")]
TopK = Annotated[int | None, typer.Option("--top-k", help="Draw from so many of the most probable.")]
TopP = Annotated[float | None, typer.Option("--top-p", help="Draw from the most probable of this mass.")]
Seed = Annotated[int | None, typer.Option("--seed", help="The same seed, the same draws; a new one without it.")]


class Given(NamedTuple):
    """Arguments from a command line: scores, the names of their columns, and the output."""

    table: tables.Table
    output: str | None
    json: bool

    @classmethod
    def of(
        cls, words: list[str] | None, header: bool | None, columns: str | None, output: str | None, json: bool
    ) -> Given:
        """Read the scores, and look at the name of the result before that."""
        if not words:
            raise WrongUseError("nothing to do; give numbers, one file, or - for standard input")
        path = values.source(words)
        if output is not None:
            tables.kind_of(output)
            values.check_target(output, path)
        return cls(tables.given(words, path, tables.Reading(header, columns)), output, json)

    def told(self, key: str, function: Callable[..., Array], **options: Any) -> None:
        """Call a function of the scores, and write or print what it finds; JSON calls it `key`."""
        scores, names = self.table
        as_scores = key == "probabilities"  # one for each score, so that the columns keep their names
        with refused_as(WrongUseError):
            result = np.asarray(function(scores, **options))
        if self.output is not None:
            tables.write(self.output, result, names if as_scores else None)
        if self.json:
            where = {key: result} if self.output is None else {"output": self.output, "shape": result.shape}
            print(render.as_json({"values": scores, **where, **options}))
        elif self.output is None and as_scores:
            render.results(scores, result, result, names=names)
        elif self.output is None:
            print(*tables.text_of(result, "\t"), sep="", end="")


def logsumexp(
    values_: Values = None,
    *,
    temperature: Temperature = 1.0,
    base: Base = None,
    axis: Axis = "-1",
    header: Header = None,
    columns: Columns = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """The smooth maximum of each row: T log sum exp(z / T)."""
    given = Given.of(values_, header, columns, output, json)
    options = {"axis": values.axis_named(axis), "temperature": temperature, "base": base}
    given.told("logsumexp", softargmax.logsumexp, **options)


def entropy(
    values_: Values = None,
    *,
    temperature: Temperature = 1.0,
    base: Base = None,
    axis: Axis = "-1",
    header: Header = None,
    columns: Columns = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """The entropy of each row's probabilities, in nats."""
    given = Given.of(values_, header, columns, output, json)
    options = {"axis": values.axis_named(axis), "temperature": temperature, "base": base}
    given.told("entropy", softargmax.entropy, **options)


def sparsemax(
    values_: Values = None,
    *,
    axis: Axis = "-1",
    header: Header = None,
    columns: Columns = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Sparse probabilities: the nearest point of the simplex."""
    given = Given.of(values_, header, columns, output, json)
    given.told("probabilities", softargmax.sparsemax, axis=values.axis_named(axis))


def entmax(
    values_: Values = None,
    *,
    alpha: Alpha = 1.5,
    axis: Axis = "-1",
    header: Header = None,
    columns: Columns = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Probabilities of any order between softmax (1) and sparsemax (2), or above."""
    given = Given.of(values_, header, columns, output, json)
    given.told("probabilities", softargmax.entmax, alpha=alpha, axis=values.axis_named(axis))


def top_k(
    values_: Values = None,
    *,
    k: K = 5,
    temperature: Temperature = 1.0,
    axis: Axis = "-1",
    header: Header = None,
    columns: Columns = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Softmax of each row's k largest scores; 0 elsewhere."""
    given = Given.of(values_, header, columns, output, json)
    options = {"k": k, "axis": values.axis_named(axis), "temperature": temperature}
    given.told("probabilities", softargmax.topk_softmax, **options)


def sample(  # noqa: PLR0913 one for each option
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
    output: Output = None,
    json: Json = False,
) -> None:
    """Draw places (from 0) of each row by their probabilities."""
    given = Given.of(values_, header, columns, output, json)
    options = {"axis": values.axis_named(axis), "temperature": temperature, "top_k": top_k, "top_p": top_p}
    drawn = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
    given.told("places", softargmax.categorical, **options, num_samples=count, seed=drawn)
