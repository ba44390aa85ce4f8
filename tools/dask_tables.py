"""The tables of docs/dask.md: functions and fits on a cluster and on threads, and those of dask.array and dask-ml."""

from __future__ import annotations

from typing import Any

from tools.measurements import NOT_YET, RESULTS, load, measured_on, table

from softargmax.measure import OURS, readable


def measured() -> str:
    """Return tables of times and memory with usual and small chunks, of rows with many chunks, and of bits and NaN."""
    record = load(RESULTS / "dask.json")
    if record is None:
        return NOT_YET
    peer = next(name for name in record["versions"] if name == "dask-ml")
    head = ["", "cluster", "threads", "ratio", "peer, cluster", "peer, threads", "chunks of memory", "of the peer"]
    usual, small, fits = {**record["functions"], **record["fits"]}, record["small"], record["fits"]
    rows, small_rows = ([[_code(name), *_times(x), *_memory(x)] for name, x in some.items()] for some in (usual, small))
    many = [
        [_code(name), *(f"{one[key]:,}" for key in ("tasks", "inputs")), *_times(one)[:3]]
        for name, one in record["graphs"].items()
    ]
    bits = [[_code(name), *_bits(one)] for name, one in record["bits"].items()]
    bits += [[_code(name), *_others(one["other bits"])] for name, one in fits.items()]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items() if version)
    without = "" if record["versions"][peer] else f" {peer} was not installed."
    for name, error in record["fail"].items():
        without += f" {peer}'s model for {_code(name)} fails here ({error})."
    return "\n\n".join([
        "Chunks of 100 to 134 MB:",
        table(head, rows),
        "Small chunks, functions of 17 MB and fits of 5 to 8 MB, whose tasks take a few milliseconds:",
        table(head, small_rows),
        "Rows with 1000 chunks each:",
        table(["", "tasks", "most inputs of a task", "cluster", "threads", "ratio"], many),
        "Results with other bits than those of one chunk, and rows of NaN among rows with infinities:",
        table(["", "other bits", "peer, other bits", "NaN", "peer, NaN"], bits),
        f"{measured_on(record)} With {versions}.{without}",
    ])  # fmt: skip


def _code(name: str) -> str:
    function, _, rest = name.partition(" ")
    return f"`{function.rstrip(',')}`{' ' * bool(rest)}{rest}"


def _times(one: dict[str, Any]) -> list[str]:
    seconds = {side: timing["median"] for side, timing in one["seconds"].items()}
    peer = [readable(time) for side, time in seconds.items() if not side.startswith(OURS)]
    ours = [readable(time) for side, time in seconds.items() if side.startswith(OURS)]
    return [*ours, f"{one['cluster / threads']:.2f}", *(peer or ["", ""])]


def _memory(one: dict[str, Any]) -> list[str]:
    peer = [f"{chunks:.1f}" for side, chunks in one["beyond"].items() if side != OURS]
    return [f"{one['beyond'][OURS]:.1f}", *(peer or [""])]


def _bits(one: dict[str, Any]) -> list[str]:
    ours, peer = one.values()
    return [str(x) for key in ("other bits", "NaN") for x in (ours[key], peer[key])]


def _others(one: dict[str, int]) -> list[str]:
    ours, *peer = one.values()
    return [str(ours), *(map(str, peer) if peer else [""]), "", ""]
