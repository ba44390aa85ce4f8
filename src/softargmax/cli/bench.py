"""``softargmax bench``: compare run times with other installed libraries and with the limits of the machine."""

from __future__ import annotations

import json as json_module
import platform
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softargmax import measure, stream
from softargmax.cli import cases, file_conversion, parse, render
from softargmax.cli.errors import FailedRunError, WrongUseError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

STREAM = "stream"

Room = Annotated[str | None, typer.Argument(help=f"One of {', '.join(cases.ROOMS)}, {STREAM}; all by default.")]
Json = Annotated[str | None, typer.Option("--json", help="Write the results as JSON to this file; - prints them.")]
Rounds = Annotated[int, typer.Option("--rounds", min=3, help="Samples per function.")]
Size = Annotated[str, typer.Option("--size", help="Size of the file for the stream room.")]
Memory = Annotated[str, typer.Option("--memory", help="Memory that the stream may use.")]


def command(
    room: Room = None, json: Json = None, rounds: Rounds = 15, size: Size = "1G", memory: Memory = "128M"
) -> None:
    """Compare run times with other installed libraries and with the limits of the machine."""
    from softargmax.core import native  # not at the top, so that other commands work even if the core fails to load

    rooms = [*cases.ROOMS, STREAM]
    if room is not None and room not in rooms:
        raise WrongUseError(f"{room}: expected one of {', '.join(rooms)}")
    cap, bytes_ = parse.bytes_named(memory), parse.bytes_named(size, "--size")
    parse.check_options({}, memory=cap)
    if json not in (None, "-"):
        parse.check_target(str(json))
    out = None if json == "-" else render.console()
    facts = native.info()
    missing = lacks(facts["isa"], facts["isas"], facts["threads"])
    record: dict[str, Any] = {"machine": measure.machine(), "lacks": missing}
    if out is not None and missing:
        out.print(f"This run lacks: {'; '.join(missing)}.", highlight=False)
    for name, make in cases.ROOMS.items():
        if room in (None, name):
            record[name] = timed(out, name, make(), rounds)
    if room in (None, STREAM):
        record[STREAM] = stream_row(out, bytes_, cap)
    if json == "-":
        print(render.as_json(record))
    elif json is not None:
        with stream.whole_file(json) as file:
            file.write((json_module.dumps(render.plain(record), indent=2) + "\n").encode())
    if STREAM in record and not record[STREAM]["rows_equal"]:
        raise FailedRunError("stream: expected sampled rows to equal the in-memory result, got different bits")


PEERS = ("torch", "scipy")
WIDTHS = {"x86-64-v4": 16, "x86-64-v3": 8}
"""Floats per instruction, by instruction set."""


def lacks(isa: str, isas: dict[str, bool], threads: int) -> list[str]:
    """Return what a faster or more complete run would need, given the facts of `native.info`."""
    reasons = {True: "another one was selected", False: "not supported by the processor", None: "not in this build"}
    known = list(WIDTHS) if isa != "neon" and platform.machine() == "x86_64" else []
    better = known[: known.index(isa)] if isa in known else known
    found = [f"{name} ({WIDTHS[name]} floats per instruction; {reasons[isas.get(name)]})" for name in better]
    if threads == 1:
        found.append("a second thread")
    return found + [f"the peer {name} (not installed)" for name in PEERS if find_spec(name) is None]


def timed(out: Console | None, name: str, benchmarks: Iterable[measure.Case], rounds: int) -> dict[str, Any]:
    """Time the benchmark cases, print a table, and return the limits and times as JSON values."""
    before = measure.machine_limits()
    results = []
    for case in benchmarks:
        if out is not None and out.is_terminal:
            with out.status(case.name):
                results.append(measure.measure(case, rounds=rounds))
        else:
            results.append(measure.measure(case, rounds=rounds))
    limits = before.better(measure.machine_limits())
    if out is not None:
        print_results(out, name, results, limits)
    return {
        "limits": {"copy_bytes_per_second": limits.copy_bytes, "multiply_adds_per_second": limits.multiply_adds,
                   "threads": limits.threads},
        "cases": [result.as_json(limits) for result in results],
    }  # fmt: skip


def print_results(out: Console, title: str, results: list[measure.Result], limits: measure.Limits) -> None:
    """Print one line per case: our median time, each other library's median divided by ours, and the memory limit."""
    peers = list(dict.fromkeys(peer for result in results for peer in result.peers))
    shown = render.table(title, "ours", *(f"vs {peer}" for peer in peers), "memory limit")
    for result in results:
        ours = result.timings[measure.OURS].median
        ratios = [f"{result.ratio(peer):.2f}" if peer in result.timings else "" for peer in peers]
        memory = result.limits(limits).get("memory")
        limit = "" if memory is None else f"{measure.readable(memory)} ({memory / ours:.0%})"
        shown.add_row(result.name, measure.readable(ours), *ratios, limit)
    out.print(shown)
    copies, rate = f"{limits.copy_bytes / 1e9:.1f} GB/s", f"{limits.multiply_adds / 1e9:.1f}e9"
    out.print(
        "[dim]Medians of alternating runs. vs: the peer's time divided by ours; above 1, ours is faster. memory limit: "
        f"the time to move the data at the measured copy speed. This machine ({limits.threads} threads) copies "
        f"{copies} and does {rate} multiply-adds of 16 floats per second.[/]"
    )


def stream_row(out: Console | None, size: int, memory: int) -> dict[str, Any]:
    """Convert a file in a separate process, and check sampled rows of the result.

    Print and return the sizes, the time, the peak memory and the result of the check.
    """
    with tempfile.TemporaryDirectory(prefix="softargmax-") as name:
        source, target = Path(name) / "scores.npy", Path(name) / "probabilities.npy"
        shape = file_conversion.write_scores(source, size)
        found = file_conversion.convert_in_subprocess(source, target, memory)
        found |= {"bytes": source.stat().st_size, "shape": shape, "memory": memory}
        found["rows_equal"] = file_conversion.equal_rows(source, target)
    if out is not None:
        shown = render.table(STREAM, "file", "windows", "peak", "speed", "rows")
        mib = {key: f"{found[key] / 2**20:,.0f} MiB" for key in ("bytes", "memory", "peak")}
        speed = f"{2 * found['bytes'] / found['seconds'] / 1e9:.1f} GB/s"
        same = "same bits" if found["rows_equal"] else "differ"
        shown.add_row(".npy to .npy", mib["bytes"], mib["memory"], mib["peak"], speed, same)
        out.print(shown)
    return found
