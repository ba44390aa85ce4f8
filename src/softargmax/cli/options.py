"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from softargmax.cli import parse

Values = Annotated[
    list[str] | None,
    typer.Argument(help="Numbers, one file (.npy .csv .tsv .txt), or - for standard input.", metavar="VALUES"),
]
Temperature = Annotated[
    float,
    typer.Option("--temperature", "-t", parser=parse.number, help="Divides the scores; 0 gives the arg max."),
]
Base = Annotated[
    float | None, typer.Option("--base", "-b", parser=parse.number, help="Base of the exponentials; e by default.")
]
Axis = Annotated[str, typer.Option("--axis", "-a", help="Axes along which probabilities sum to 1: -1, 0, 0,1 or all.")]
Header = Annotated[
    bool | None, typer.Option("--header/--no-header", help="Whether the first line is a header; detected by default.")
]
Columns = Annotated[
    str | None, typer.Option("--columns", help="Columns of a text file: names, or numbers from 1, separated by commas.")
]
Output = Annotated[str | None, typer.Option("--output", "-o", help="Write to this .npy, .csv, .tsv or .txt file.")]
Dtype = Annotated[str | None, typer.Option("--dtype", help="f16, f32 or f64; the dtype of the scores by default.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Scheduler = Annotated[
    str | None,
    typer.Option("--scheduler", help="Address of a Dask cluster that reads and writes files, such as tcp://host:8786."),
]
