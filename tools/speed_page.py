"""The tables of docs/speed.md, and what must be true of them and of the reasons that the page gives."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tools.measurements import (
    ISAS,
    PEERS,
    RESULTS,
    avx2_record,
    benches,
    load,
    loaded,
    measured_on,
    processor_of,
    table,
    where,
)

from softargmax.measure import readable, three_digits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LARGEST, NEAR = 1.02, 1.15
"""The largest share of a limit of the machine that a result may reach: above it, the limit was measured too low. And
the largest multiple of its promise of a ratio that may have a reason: such a ratio may miss the promise in another run.
"""


class Miss(NamedTuple):
    """A ratio below the promise."""

    result: dict[str, Any]
    isa: str
    peer: str


def misses(factor: float = 1.0) -> Iterator[Miss]:
    """Yield every ratio below the promise times a factor, with all instruction sets and with AVX2 only."""
    for name, record in benches().items():
        for one in (record, avx2_record(name)):
            for result in one["results"] if one else []:
                for peer, promised in result.get("targets", {}).items():
                    if result["ratios"][peer] < factor * promised:
                        yield Miss(result, isa_of(one), peer)


def reasons(page: str) -> dict[str, list[str]]:
    """Return the reasons on the page: for each title, the patterns of the names of its lines."""
    found = re.findall(r"^- \*\*(.+?)\.\*\* <!-- lines: (.+?) -->", page, re.MULTILINE | re.DOTALL)
    return {title: [" ".join(line.split()) for line in lines.split(";")] for title, lines in found}


def reason(page: str, name: str) -> str:
    """Return the title of the first reason for a line, or an empty text."""
    return next((t for t, lines in reasons(page).items() if any(fnmatchcase(name, line) for line in lines)), "")


def below(page: str) -> str:
    """Return a table of the ratios below the promise, and the title of the reason of each."""
    rows = []
    for result, isa, peer in misses():
        ratio, promised, reached = result["ratios"][peer], result["targets"][peer], result.get("of_limit")
        shares = ["", ""] if reached is None else [f"{reached:.2f}", f"{reached * promised / ratio:.2f}"]
        cells = [f"{PEERS.get(peer, peer)} {three_digits(ratio)}", promise(promised), *shares]
        rows.append([f"{result['name']}, {isa}", *cells, reason(page, result["name"])])
    shares = ["limit / our time", "limit / promised time"]
    return table(["", "peer's time / ours", "promised", *shares, "reason"], rows)


def problems(page: str) -> Iterator[str]:
    """Yield a sentence for each line without a reason, reason without a line, and measurement that cannot be right."""
    missed, near = ({miss.result["name"] for miss in misses(factor)} for factor in (1.0, NEAR))
    missed |= {sentence.partition(":")[0] for sentence in (load(RESULTS / "contention.json") or {}).get("misses", [])}
    yield from (f"{name}: below the promise, without a reason" for name in sorted(missed) if not reason(page, name))
    used = {reason(page, name) for name in missed | near}
    yield from (f"{title}: a reason, but no line is near its promise" for title in reasons(page) if title not in used)
    for name, record in benches().items():
        for one in (record, avx2_record(name)):
            if one is None or "commit" not in one["machine"]:  # measured before these rules
                continue
            if processor_of(one["machine"]) != processor_of(record["machine"]):
                yield f"{name}: the run with AVX2 only is from another processor"
            for result in one["results"]:
                if (result.get("of_limit") or 0) > LARGEST:
                    yield f"{result['name']}, {isa_of(one)}: faster than the limit of the machine"


def isa_of(record: dict[str, Any]) -> str:
    """Return the instruction sets of a run."""
    return ISAS.get(record.get("isa", ""), "softargmax")


def memory() -> str:
    """Return a sentence on the time and memory of converting a large file, or an empty text if not measured."""
    record = load(RESULTS / "memory.json")
    if record is None:
        return ""
    found = record["conversion"]
    return (
        f"A file of {found['file_bytes'] / (1 << 30):.3g} GiB converted in {found['seconds']:.1f} s with a peak of "
        f"{found['peak_mib']:.0f} MiB (`python -m bench.memory`). {measured_on(record, packages=False)}"
    )


def extra_memory(record: dict[str, Any]) -> str:
    """Return a table of the memory of each case and the size of its scores, or an empty text if not measured."""
    found = record.get("memory", [])
    mib = [{key: f"{case[key] / 2**20:,.0f}" for key in ("scores", "beyond", "peak")} for case in found]
    rows = [
        [case["name"], sizes["scores"], sizes["beyond"], sizes["peak"]] for case, sizes in zip(found, mib, strict=True)
    ]
    head = ["forward and backward, MiB", "scores would be", "beyond inputs and gradients", "resident in all"]
    return f"\n\n{table(head, rows)}" if rows else ""


def extra_words(record: dict[str, Any]) -> str:
    """Return a table of the training speed and quality of word vectors, or an empty text if not measured."""
    quality, rows = record.get("quality", {}), []
    for result in record["results"] if quality else []:
        kind = result["name"].split(",")[0]
        for side, timing in result["seconds"].items():
            learned = quality[kind][side]
            speed = f"{record['tokens'] / timing['median']:,.0f}"
            rows.append([f"{kind}, {side}", speed, f"{learned['loss']:.3f}", f"{learned['agreement']:.2f}"])
        other = quality[kind]["gensim, another seed"]
        rows.append([f"{kind}, gensim, another seed", "", f"{other['loss']:.3f}", f"{other['agreement']:.2f}"])
    head = ["one epoch", "words a second", "loss on held-out files", "nearest neighbours shared with gensim"]
    return f"\n\n{table(head, rows)}" if rows else ""


def extra_fits(record: dict[str, Any]) -> str:
    """Return a table of the objective and memory of each fit, or an empty text if not measured."""
    rows = [
        [
            f"{case}, {side}",
            f"{fit['objective']:.8g}",
            f"{fit['derivative']:.1e}",
            str(fit["steps"]),
            f"{fit['memory_mib']:,.0f}",
        ]
        for case, sides in record.get("reached", {}).items()
        for side, fit in sides.items()
    ]
    head = ["fits", "objective", "largest derivative", "steps", "memory beyond the data, MiB"]
    return f"\n\n{table(head, rows)}" if rows else ""


def timings(record: dict[str, Any], avx2: dict[str, Any] | None) -> str:
    """Return one table of medians and ratios, with all instruction sets and, if it was measured, with AVX2 only."""
    others = {result["name"]: result for result in avx2["results"]} if avx2 else {}
    rows = [
        [result["name"], *cells(result), *(cells(others.get(result["name"])) if others else [])]
        for result in record["results"]
    ]
    isas = [isa_of(record), *(["AVX2"] if others else [])]
    more = "peer's time / ours (promised)", "limit of the machine"
    return table(["", *(head for isa in isas for head in (isa, *more))], rows)


def cells(result: dict[str, Any] | None) -> list[str]:
    """Return our median, the ratios to the peers, and the limits. A ratio below the promise is bold."""
    if result is None:
        return ["", "", ""]
    found = []
    for peer, ratio in result["ratios"].items():
        promised, aim = (result.get(kind, {}).get(peer) for kind in ("targets", "aims"))
        number = three_digits(ratio)
        number = number if promised is None or ratio >= promised else f"**{number}**"
        aimed = f", aim {aim:.3g}" if aim and promised and aim > promised else ""
        found.append(
            f"{PEERS.get(peer, peer)} {number}" + ("" if promised is None else f" ({promise(promised)}{aimed})")
        )
    limits = ", ".join(f"{name} {readable(value)}" for name, value in result.get("limits", {}).items())
    return [readable(result["seconds"]["softargmax"]["median"]), ", ".join(found), limits]


def promise(ratio: float) -> str:
    """Format a promised ratio. Below 1, our time is at most a multiple of the peer's."""
    return f"{ratio:.3g}" if ratio >= 1 else f"at most {1 / ratio:.3g} times"


def bench(name: str) -> str:
    """Return the tables of one result file, and where they were measured."""
    record, avx2 = loaded(RESULTS / f"{name}.json"), avx2_record(name)
    tables = timings(record, avx2) + extra_memory(record) + extra_words(record) + extra_fits(record)
    of_avx2 = f" With AVX2 only: {where(avx2['machine'])}." if avx2 else ""
    return f"{tables}\n\n{measured_on(record)}{of_avx2}"


def contention() -> str:
    """Return a table of slowdowns beside other processes, and of the peer's time over ours."""
    record = load(RESULTS / "contention.json")
    if record is None:
        return ""
    rows = []
    for case, alone in record["seconds"]["alone"].items():
        for condition, every in record["seconds"].items():
            ours, theirs = every[case].values()
            slowdowns = (f"{now / before:.2f}" for now, before in zip((ours, theirs), alone.values(), strict=True))
            rows.append([f"{case}, {condition}", *slowdowns, three_digits(theirs / ours)])
    rounds = record["rounds per second"]
    shares = " and ".join(f"{rounds['2'][side] / rounds['1'][side]:.2f} ({side})" for side in rounds["1"])
    head = ["two threads", "slowdown of softargmax", "slowdown of the peer", "peer's time / ours"]
    missed = "\n".join(f"- {miss}" for miss in record["misses"] or ["none"])
    return (
        f"Missed limits:\n\n{missed}\n\n{table(head, rows)}\n\n{record['processes']} processes with two threads each "
        f"finish this share of the calls that they finish with one thread each: {shares}.\n\n{measured_on(record)}"
    )


def fills(page: str) -> dict[str, Callable[[], str]]:
    """Return what fills each table of docs/speed.md. The table of misses takes the reasons from the page."""
    found: dict[str, Callable[[], str]] = {name: partial(bench, name) for name in benches()}
    return found | {"below the promise": partial(below, page), "contention": contention, "memory": memory}
