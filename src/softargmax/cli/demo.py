"""``softargmax demo``: a guided tour of the library."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from softargmax.cli import render
from softargmax.cli.errors import FailedRunError, WrongUseError
from softargmax.cli.tour import STOPS, Stop

Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for pictures and files.")]
Only = Annotated[list[str] | None, typer.Option("--only", help="Run only this stop (may be repeated).")]
Json = Annotated[bool, typer.Option("--json", help="Print the findings of each stop as JSON.")]


def command(output: Output = Path("demo-output"), only: Only = None, json: Json = False) -> None:
    """Run the tour: checked values, pictures, classifiers, a language model, a large file, a short benchmark."""
    out = render.console()
    output.mkdir(parents=True, exist_ok=True)
    stops = chosen(only)
    findings, failed, start = {}, [], time.perf_counter()
    for number, stop in enumerate(stops, 1):
        if not json:
            out.print(f"\n[bold]{number}. {stop.title}[/]")
        began = time.perf_counter()
        finding = stop.run(out if not json else None, output)
        finding["seconds"] = round(time.perf_counter() - began, 2)
        findings[stop.name] = finding
        if not finding["ok"]:
            failed.append(stop.name)
        if not json:
            verdict = "[green]passed[/]" if finding["ok"] else "[red]failed[/]"
            out.print(f"{verdict} [dim]· {finding['seconds']:.1f} s[/]")
    seconds = time.perf_counter() - start
    if json:
        print(render.as_json({"stops": findings, "seconds": round(seconds, 2), "ok": not failed}))
    elif not failed:
        out.print(f"\nThe tour took {seconds:.0f} s. Its pictures are in {escape(str(output))}/")
    if failed:
        raise FailedRunError(f"failed stops of the tour: {', '.join(failed)}")


def chosen(only: list[str] | None) -> tuple[Stop, ...]:
    """Return the requested stops, in the order of the tour."""
    known = [stop.name for stop in STOPS]
    for name in only or ():
        if name not in known:
            raise WrongUseError(f"--only {name}: expected one of {', '.join(known)}")
    return tuple(stop for stop in STOPS if not only or stop.name in only)
