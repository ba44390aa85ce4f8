"""The default command: probabilities of numbers, of a file, or of standard input."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from softargmax import stream
from softargmax.cli import show, tables, values
from softargmax.cli.errors import FailedRunError, WrongUseError, refused_as

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, Any]

Values = Annotated[
    list[str] | None,
    typer.Argument(help="Numbers, one file (.npy .csv .tsv .txt), or - for standard input.", metavar="VALUES"),
]
Temperature = Annotated[
    float, typer.Option("--temperature", "-t", parser=values.number, help="Above 1 evens out, 0 is the arg max.")
]
Base = Annotated[
    float | None, typer.Option("--base", "-b", parser=values.number, help="Exponentials of this base in place of e.")
]
Log = Annotated[bool, typer.Option("--log", "-l", help="Logarithms of the probabilities, accurate near 0.")]
Axis = Annotated[str, typer.Option("--axis", "-a", help="Along what the probabilities sum to 1: -1, 0, 0,1 or all.")]
Output = Annotated[str | None, typer.Option("--output", "-o", help="Write to this .npy, .csv, .tsv or .txt file.")]
Dtype = Annotated[str | None, typer.Option("--dtype", help="f16, f32 or f64; without it what the scores have.")]
Memory = Annotated[str, typer.Option("--memory", help="How much the work on a .npy file may hold at once.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def command(
    values_: Values = None,
    temperature: Temperature = 1.0,
    base: Base = None,
    log: Log = False,
    axis: Axis = "-1",
    output: Output = None,
    dtype: Dtype = None,
    memory: Memory = "256M",
    json: Json = False,
) -> None:
    """Probabilities of numbers or of a file (the default: softargmax 1 2 3)."""
    words = values_ or []
    if not words:
        raise WrongUseError("nothing to do; give numbers, one file, or - for standard input (softargmax --help)")
    options: dict[str, Any] = {
        "temperature": temperature, "base": base, "axis": values.axis_named(axis), "dtype": values.dtype_named(dtype)
    }  # fmt: skip
    name = "log_softmax" if log else "softmax"
    path = values.source(words)
    kind = None if output is None else tables.kind_of(output)
    if output is not None:
        values.check_target(output, path)
    cap = values.bytes_named(memory)
    values.check_options(options, memory=cap)
    scores = values.numbers(words) if path is None else readable(path)
    if not isinstance(scores, str):
        values.check_options(options, scores.shape)
    run = partial(computed, name, scores, **options, memory=cap)
    if kind == ".npy":
        convert(run, str(output), json=json)
        return
    result = run()
    if output is not None:
        tables.write(output, result)
        if json:
            print(show.as_json({"output": output, "shape": result.shape, "dtype": str(result.dtype)}))
        return
    read = np.load(scores, allow_pickle=False) if isinstance(scores, str) else scores
    present(read, result, options, log=log, json=json)


def readable(path: str) -> Array | str:
    """Give what a stream can read: the name of a .npy file, or the numbers in a text file."""
    return path if path.lower().endswith(".npy") else tables.read(path)


def computed(name: str, scores: Array | str, *target: str, **options: Any) -> Array:
    """Run a function of the streams; of scores that are a file, what it refuses is a failed run."""
    with refused_as(FailedRunError) if isinstance(scores, str) else nullcontext():
        result: Array = getattr(stream, name)(scores, *target, **options)
    return result


def convert(run: Callable[..., Array], output: str, *, json: bool) -> None:
    """Write a .npy file, from scores in memory or from a .npy file of any size."""
    start = time.perf_counter()
    with show.progress(Path(output).name, quiet=json) as progress:
        result = run(output, progress=progress)
    seconds = time.perf_counter() - start
    told = {"output": output, "shape": result.shape, "dtype": str(result.dtype), "bytes": result.nbytes}
    if json:
        print(show.as_json({**told, "seconds": round(seconds, 4)}))
    elif sys.stdout.isatty():
        size = f"{result.nbytes / 2**20:,.1f} MiB"
        shape = " x ".join(map(str, result.shape)) or "one value"
        show.console().print(f"{escape(output)}  [dim]{shape} {result.dtype}, {size} in {seconds:.2f} s[/]")


def present(scores: Array, result: Array, options: dict[str, Any], *, log: bool, json: bool) -> None:
    """Print a result."""
    if json:
        wide = np.result_type(result.dtype, np.float32)  # a row's number is never a half
        lse = stream.logsumexp(scores, **{**options, "dtype": wide})
        key = "log_probabilities" if log else "probabilities"
        told = {"values": scores, key: result, "logsumexp": lse, **options, "dtype": str(result.dtype)}
        print(show.as_json(told))
        return
    shares = np.exp(result.astype(float)) if log else result
    if result.ndim <= 1:
        show.vector(np.atleast_1d(scores), np.atleast_1d(result), np.atleast_1d(shares).tolist(), log=log)
    elif sys.stdout.isatty():
        show.matrix(result, shares)
    else:
        sys.stdout.writelines(tables.text_of(result, "\t"))
