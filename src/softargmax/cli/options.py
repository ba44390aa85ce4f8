"""Arguments and options that several commands have, each with one meaning."""

from __future__ import annotations

from typing import Annotated

import typer

from softargmax.cli import values

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
Axis = Annotated[str, typer.Option("--axis", "-a", help="Along what the probabilities sum to 1: -1, 0, 0,1 or all.")]
Header = Annotated[
    bool | None, typer.Option("--header/--no-header", help="Whether the first line is a header; guessed without it.")
]
Columns = Annotated[
    str | None, typer.Option("--columns", help="Columns of a text file: names, or numbers from 1, with commas between.")
]
Output = Annotated[str | None, typer.Option("--output", "-o", help="Write to this .npy, .csv, .tsv or .txt file.")]
Dtype = Annotated[str | None, typer.Option("--dtype", help="f16, f32 or f64; without it what the scores have.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
