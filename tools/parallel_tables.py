"""The tables of docs/parallel.md: what processes send, and how long steps take, measured and modelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.exchanges import OF_ROWS
from tools.measurements import NOT_YET, RESULTS, load, measured_on, table

from softargmax.measure import readable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.exchanges import Gather

ORDERS = ("in order", "in any order")


def formula(messages: Sequence[Gather]) -> str:
    """The number of messages, and their bytes for N rows and B blocks."""
    totals = [sum(numbers) for numbers in zip(*messages, strict=True)]
    terms = [f"{n}{of}" for n, of in zip(totals, ("", " N", " N B"), strict=False) if n]
    return f"{len(messages)}: {' + '.join(terms)}" if terms else "none"


def messages() -> str:
    """Return a table of what a process sends to all others in a call of each function of scores."""
    rows = [[_code(name), formula(one.forward), formula(one.backward)] for name, one in OF_ROWS.items()]
    return table(["function", "messages and bytes of the forward pass", "of the backward pass"], rows)


def _code(name: str) -> str:
    function, _, option = name.partition(", ")
    return f"`{function}`{', ' * bool(option)}{option}"


def scaling() -> str:
    """Return a table of the measured and modelled times of a step, and one of attention to split keys."""
    record = load(RESULTS / "scaling.json")
    if record is None:
        return NOT_YET
    cores, rows = record["machine"]["cores"], []
    for world, times in record["steps"].items():
        by_model = record["modelled steps"][world]
        cells = [cell for order in ORDERS for cell in (readable(times[order]), _error(by_model[order], times[order]))]
        rows.append([_shared(world, cores), readable(times["alone"]), *cells])
    head = ["processes", "one process alone", *(x for order in ORDERS for x in (order, "model's error"))]
    found = record["split keys"]
    of_keys = [
        [f"{int(keys):,}", *(cell for times in one.values() for cell in _split(times))] for keys, one in found.items()
    ]
    worlds = [_shared(world, cores) for world in next(iter(found.values()))]
    split = table(["keys", *(x for world in worlds for x in (f"split, {world}", "ratio"))], of_keys)
    intro = "One query of `attention_split_kv`, and the ratio to one process with all keys, timed in turns:"
    return f"{table(head, rows)}\n\n{intro}\n\n{split}\n\n{measured_on(record)}"


def _split(times: dict[str, float]) -> tuple[str, str]:
    """The time of attention to split keys, and its ratio to that of one process with all keys."""
    return readable(times["spread"]), f"{times['spread'] / times['alone']:.2f}"


def _shared(world: str, cores: int) -> str:
    return f"{world}, on {cores} cores" if int(world) > cores else world


def _error(modelled: float, measured: float) -> str:
    return f"{100 * (modelled / measured - 1):+.0f} %"


def modelled() -> str:
    """Return a table of the times of a step in many processes, by the model."""
    record = load(RESULTS / "scaling.json")
    if record is None:
        return NOT_YET
    networks = {"network": "measured", "slow network": "slow"}
    rows = [
        [f"{int(world):,}", readable(times["one process"])]
        + [readable(times[network][order]) for network in networks for order in ORDERS]
        for world, times in record["modelled"].items()
    ]
    head = ["processes, modelled", "one process with all classes"]
    head += [f"{network} network, {order}" for network in networks.values() for order in ORDERS]
    constants = [f"{name}: {_constants(record[network])}" for network, name in networks.items()]
    return f"{table(head, rows)}\n\nThe constants of the networks are, {'; '.join(constants)} (assumed)."


def _constants(network: dict[str, Any]) -> str:
    speed = f"{2e-9 * network['speed']:.3g} GFLOP/s in each process"
    return f"{readable(network['latency'])} per message, {network['bandwidth'] / 1e6:,.0f} MB/s, {speed}"
