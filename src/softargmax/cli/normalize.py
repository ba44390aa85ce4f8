"""The default command: softmax or log-softmax of numbers, a file, or standard input."""

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

import softargmax
from softargmax import stream
from softargmax.cli import parse, render, scores_file
from softargmax.cli.errors import FailedRunError, WrongUseError, refused_as
from softargmax.cli.options import Axis, Base, Columns, Dtype, Header, Json, Output, Scheduler, Temperature, Values
from softargmax.core.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from softargmax.cli.dask_cluster import Cluster

    Array = np.ndarray[Any, Any]

Log = Annotated[bool, typer.Option("--log", "-l", help="Compute the logarithms of the probabilities.")]
Memory = Annotated[str, typer.Option("--memory", help="Memory for converting a .npy file.")]
MEMORY = "256M"


def command(  # noqa: PLR0913 one argument per option
    values_: Values = None,
    *,
    temperature: Temperature = 1.0,
    base: Base = None,
    log: Log = False,
    axis: Axis = "-1",
    output: Output = None,
    dtype: Dtype = None,
    memory: Memory = MEMORY,
    header: Header = None,
    columns: Columns = None,
    scheduler: Scheduler = None,
    json: Json = False,
) -> None:
    """Compute probabilities of numbers or of a file (the default: softargmax 1 2 3)."""
    words = values_ or []
    if not words:
        raise WrongUseError("nothing to do; give numbers, one file, or - for standard input (softargmax --help)")
    options: dict[str, Any] = {
        "temperature": temperature, "base": base, "axis": parse.axis_named(axis), "dtype": parse.dtype_named(dtype)
    }  # fmt: skip
    name = "log_softmax" if log else "softmax"
    cap = parse.bytes_named(memory)
    parse.check_options(options, memory=cap)
    reading = scores_file.Reading(header, columns)
    if scheduler is not None:
        cluster = on_cluster(scheduler, words, reading, memory)
        convert(partial(cluster.write, getattr(softargmax, name), **options), output, json=json)
        return
    path = parse.source(words)
    kind = None if output is None else scores_file.kind_of(output)
    if output is not None:
        parse.check_target(output, path)
    scores, names = readable(words, path, reading)
    if not isinstance(scores, str):
        parse.check_options(options, scores.shape)
    run = partial(computed, name, scores, **options, memory=cap)
    if kind == ".npy":
        convert(run, output, json=json)
        return
    result = run()
    if output is not None:
        scores_file.write(output, result, names)
        if json:
            print(render.as_json({"output": output, "shape": result.shape, "dtype": str(result.dtype)}))
        return
    read = np.load(scores, allow_pickle=False) if isinstance(scores, str) else scores
    if json:
        wide = np.result_type(result.dtype, np.float32)  # logsumexp is at least float32, even for float16 probabilities
        lse = stream.logsumexp(read, **{**options, "dtype": wide})
        key = "log_probabilities" if log else "probabilities"
        print(render.as_json({"values": read, key: result, "logsumexp": lse, **options, "dtype": str(result.dtype)}))
        return
    render.results(read, result, np.exp(result.astype(float)) if log else result, log=log, names=names)


def readable(words: list[str], path: str | None, reading: scores_file.Reading) -> tuple[Array | str, list[str] | None]:
    """Return the scores (an array, or the name of a .npy file for streaming) and the names of their columns."""
    if path is not None and path.lower().endswith(".npy") and reading == scores_file.Reading():
        return path, None
    return scores_file.scores_of(words, path, reading)


def computed(name: str, scores: Array | str, *target: str, **options: Any) -> Array:
    """Call the function `name` of `softargmax.stream`. If `scores` is a file name, errors become FailedRunError."""
    with refused_as(FailedRunError) if isinstance(scores, str) else nullcontext():
        result: Array = getattr(stream, name)(scores, *target, **options)
    return result


def on_cluster(scheduler: str, words: list[str], reading: scores_file.Reading, memory: str = MEMORY) -> Cluster:
    """Return the scores that the workers of a cluster read."""
    with refused_as(FailedRunError):
        require("--scheduler needs", "dask", dask="dask", distributed="distributed")
    from softargmax.cli.dask_cluster import Cluster

    return Cluster.of(scheduler, words, reading, parse.bytes_named(memory))


def convert(run: Callable[..., Any], output: str | None, *, json: bool) -> None:
    """Call `run` to compute the result and write it to `output`. Then print its size and the time."""
    start = time.perf_counter()
    with render.progress(Path(output or "").name, quiet=json) as progress:
        result = run(output, progress=progress)
    seconds = time.perf_counter() - start
    fields = {"output": output, "shape": result.shape, "dtype": str(result.dtype), "bytes": result.nbytes}
    if json:
        print(render.as_json({**fields, "seconds": round(seconds, 4)}))
    elif sys.stdout.isatty():
        size = f"{result.nbytes / 2**20:,.1f} MiB"
        shape = " x ".join(map(str, result.shape)) or "one value"
        render.console().print(f"{escape(str(output))}  [dim]{shape} {result.dtype}, {size} in {seconds:.2f} s[/]")
