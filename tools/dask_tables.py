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
    usual, small = {**record["functions"], **record["fits"]}, record["small"]
    peer = next(name for name in record["versions"] if name == "dask-ml")
    head = [
        "",
        "MB",
        "cluster",
        "threads",
        "ratio",
        "peer, cluster",
        "peer, threads",
        "chunks of memory",
        "of the peer",
    ]
    usual_rows, small_rows = (
        [[_code(name), f"{one['chunk'] / 1e6:.0f}", *_times(one), *_memory(one)] for name, one in some.items()]
        for some in (usual, small)
    )
    many = [
        [_code(name), *(f"{one[key]:,}" for key in ("tasks", "inputs")), *_times(one)[:3], _per_task(one)]
        for name, one in record["graphs"].items()
    ]
    bits = [[_code(name), *_bits(one)] for name, one in record["bits"].items()]
    fits = {name: one for name, one in {**usual, **small}.items() if "other bits" in one}
    bits += [[_code(name), *_others(one["other bits"])] for name, one in fits.items()]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items() if version)
    of_peer = "" if record["versions"][peer] else f" {peer} was not installed."
    for name, error in record["fail"].items():
        of_peer += f" {peer}'s model for {_code(name)} fails here ({error})."
    return "\n\n".join([
        table(head, usual_rows),
        "Small chunks:",
        table(head, small_rows),
        "Rows with 1000 chunks each, and the time of the cluster divided by the number of tasks:",
        table(["", "tasks", "most inputs of a task", "cluster", "threads", "ratio", "per task"], many),
        "Results with other bits than those of one chunk, and rows of NaN among rows with infinities:",
        table(["", "other bits", "peer, other bits", "NaN", "peer, NaN"], bits),
        f"{measured_on(record)} With {versions}.{of_peer}",
    ])  # fmt: skip


def _per_task(one: dict[str, Any]) -> str:
    cluster = next(timing["median"] for side, timing in one["seconds"].items() if side.endswith("cluster"))
    return readable(cluster / one["tasks"])


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
