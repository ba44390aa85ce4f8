"""Write the tables of committed measurements into README.md and docs/, so that nobody types them.

    python -m tools.tables            write
    python -m tools.tables --check    exit with 1 if a page and its measurements differ, or contradict each other

The measurements are the JSON files in bench/results. A table is placed between `<!-- table: NAME -->` and
`<!-- end table -->`. In docs/speed.md, `<!-- lines: NAME; NAME -->` after the title of a reason lists the lines that it
explains. `*` stands for any text.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from tools import dask_tables, parallel_tables, speed_page
from tools.measurements import (
    NOT_YET,
    PEERS,
    RESULTS,
    ROOT,
    load,
    loaded,
    measured_on,
    processor_of,
    table,
)

from softargmax.measure import readable, three_digits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# --- accuracy ------------------------------------------------------------------------------------------------------


def accuracy() -> str:
    """Return a table of the largest error of each function and format over all kinds of rows, for us and the peers."""
    record = load(RESULTS / "accuracy.json")
    if record is None:
        return NOT_YET
    worst: dict[tuple[str, str], dict[str, float]] = {}
    for row in record["rows"]:
        if row["temperature"] != 1.0 or row["base"] is not None:
            continue  # peers do not have these options, so the comparison would be unfair
        for subject, ops in row["errors"].items():
            for op, found in ops.items():
                best = worst.setdefault((row["dtype"], op), {})
                best[subject] = max(best.get(subject, 0.0), found["max"])
    subjects = list(dict.fromkeys(s for errors in worst.values() for s in errors))
    rows = [[f"{op}, {dtype}", *(ulps(errors.get(s)) for s in subjects)] for (dtype, op), errors in worst.items()]
    return "\n".join(
        [
            "Largest error over all kinds of scores in [Accuracy](accuracy.md), at temperature 1. The unit is one ulp",
            "of the exact result, in the dtype of the result. For logsumexp it is one ulp of max(|result|,",
            "|largest score|). For float16 and bfloat16 scores, our logsumexp is float32, so its unit is smaller than",
            "that of the peers, which return the dtype of the scores. In the rows for float16, an error above 1e+06",
            "means that a sum overflowed.",
            "",
            table(["", *(PEERS.get(s, s) for s in subjects)], rows),
            "",
            measured_on(record),
        ]
    )


def ulps(value: float | None) -> str:
    """Format an error in ulp. Return an empty text if the peer does not have the function."""
    if value is None:
        return ""
    return "inf" if value == float("inf") else f"{value:.2f}" if value < 100 else f"{value:.2g}"


def sparse_accuracy() -> str:
    """Return a table of the largest error of the sparse maps at each order, for us and the peer."""
    record = load(RESULTS / "sparse_accuracy.json")
    if record is None:
        return NOT_YET
    sides = ("softargmax", "entmax")
    rows = [
        [
            f"{row['alpha']:g}",
            *(ulps(row[side]["ulp"]) for side in sides),
            *(str(row[side]["support"]) for side in sides),
        ]
        for row in record["rows"]
    ]
    head = ["order", *(f"{side}, ulp" for side in sides), *(f"{side}, zeros wrong" for side in sides)]
    return f"{table(head, rows)}\n\n{measured_on(record)}"


def exactness() -> str:
    """Return a table of how often shifts and permutations of a row keep all bits."""
    record = load(RESULTS / "exactness.json")
    if record is None:
        return NOT_YET
    rows = [
        [f"{name}, rows of {length}", *(f"{100 * share:.3g} %" for share in found.values())]
        for name, lengths in record["shares"].items()
        for length, found in lengths.items()
    ]
    return f"{table(['all bits are the same after', 'a shift', 'a permutation'], rows)}\n\n{measured_on(record)}"


def output_bias() -> str:
    """Return a table of the gradient bias of each sampled loss against the full softmax, by number of draws."""
    record = load(RESULTS / "output_bias.json")
    if record is None:
        return NOT_YET
    found = record["bias"]
    draws = list(next(iter(found.values())))
    rows = [[name, *(f"{row[n][0]:.3f} ({row[n][1]:.3f})" for n in draws)] for name, row in found.items()]
    return f"{table(['draws', *draws], rows)}\n\n{measured_on(record)}"


def words() -> str:
    """Return a table of the results of `softargmax train-words --layer all`.

    The last column is the time until a layer reaches the perplexity that the full layer has at the end.
    """
    record = load(RESULTS / "words.json")
    if record is None:
        return NOT_YET
    rows, end = [], next(layer["perplexity"] for layer in record["layers"] if layer["layer"] == "full")
    for layer in record["layers"]:
        there = [point["seconds"] for point in layer["curve"] if (point["perplexity"] or end + 1) <= end]
        per = f"{layer['steps_per_second']:.1f}", f"{layer['seconds_per_epoch']:,.0f}", f"{layer['peak'] / 2**20:,.0f}"
        good = "" if layer["perplexity"] is None else f"{layer['perplexity']:.4g}"
        rows.append([layer["layer"], f"{layer['steps']:,}", *per, good, f"{min(there):.0f}" if there else ""])
    head = ["layer", "steps", "steps/s", "s/epoch", "peak, MiB", "perplexity", "seconds to the full layer's last"]
    run = f"seed {record['settings']['seed']}, {record['layers'][0]['held_out_tokens']:,} held-out tokens"
    return f"{table(head, rows)}\n\n{measured_on(record)} `{record['command']}`, {run}."


def task(name: str) -> str:
    """Return a table of the memory and time of a task of docs/tasks, for plain torch and for softargmax."""
    record = load(RESULTS / "tasks.json")
    if record is None:
        return NOT_YET
    one = record["tasks"][name]
    plain, ours = one["sides"]["plain"], one["sides"]["softargmax"]
    mib = [f"{side['beyond'] / 2**20:,.0f} MiB" for side in (plain, ours)]
    head = [one["what"], "plain", "softargmax"]
    rows = [["peak memory beyond the inputs", *mib]]
    rows += [["CPU time, one thread", *(readable(side["cpu_seconds"]) for side in (plain, ours))]]
    scores = f"The scores alone are {record['scores'] / 2**20:,.0f} MiB."
    return f"{table(head, rows)}\n\n{scores} {measured_on(record, packages=False)}"


def small_layers() -> str:
    """Return a table of last layers: torch's time of a step, and the times of our functions divided by torch's time."""
    record = load(RESULTS / "tasks.json")
    if record is None:
        return NOT_YET
    rows = []
    for one in record["layers"]:
        (n, d, k), spent = one["shape"], one["cpu_seconds"]
        ratios = (f"{spent[side] / spent['plain']:.2f}" for side in ("cross_entropy", "softargmax"))
        rows.append([f"({n}, {d}, {k})", f"{n * k / 1e6:.2g}", readable(spent["plain"]), *ratios])
    ours = ("`sa.cross_entropy(h @ w.T, y)`", "`sa.linear_cross_entropy(h, w, y)`")
    head = ["(N, D, K)", "million scores", "torch", *ours]
    return f"{table(head, rows)}\n\n{measured_on(record)}"


# --- the table of README.md, and versions -----------------------------------------------------------------------------


SUMMARY = {
    "softmax, 512 x 32768": ("normalize", "softmax 512x32768"),
    "softmax, 512 x 32768, NumPy": ("normalize", "softmax 512x32768, NumPy"),
    "logsumexp, 512 x 32768": ("normalize", "logsumexp 512x32768"),
    "softmax of 7 scores, tensor": ("normalize", "softmax of 7, tensor"),
    "cross_entropy, forward and backward, 512 x 32768": ("loss", "cross_entropy and backward 512x32768"),
    "linear_cross_entropy, forward and backward, 1024 rows, width 512, 32768 classes": (
        "loss",
        "linear_cross_entropy and backward 1024x512x32768",
    ),
    "entmax of order 1.5, 512 x 32768": ("sparse", "entmax 1.5, normal 512x32768"),
    "categorical, top-p 0.9, 64 x 128256": ("sample", "top_p 0.9, temperature 0.8 64x128256"),
    "attention, causal, forward and backward, 1 x 8 x 2048 x 64": (
        "attend",
        "attention, causal, and backward 1x8x2048x64",
    ),
    "SoftmaxRegression, 20000 x 784, 10 classes": ("classify", "20000 x 784, 10 classes"),
}
"""The lines of the table in README.md: for each label, a result file and the name of a result in this file."""


def summary() -> str:
    """Return the table of README.md: a few lines per family, including one where softargmax is slower."""
    rows = []
    for label, (name, line) in SUMMARY.items():
        of_all, of_avx2 = ({one["name"]: one for one in run["results"]} for run in runs(name))
        result, limited = of_all[line], of_avx2[line]
        peer, ratio = next(iter(result["ratios"].items()))
        ours = readable(result["seconds"]["softargmax"]["median"])
        rows.append([label, ours, PEERS.get(peer, peer), three_digits(ratio), three_digits(limited["ratios"][peer])])
    record, _ = runs("normalize")
    head = ["float32, two threads", f"softargmax, {speed_page.isa_of(record)}", "peer"]
    head += ["peer's time / ours", "peer's time / ours, both with AVX2 only"]
    return f"Median times on {processor_of(record['machine'])}.\n\n{table(head, rows)}"


def runs(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the records of a result file, with all instruction sets and with AVX2 only."""
    return loaded(RESULTS / f"{name}.json"), loaded(RESULTS / "avx2" / f"{name}.json")


def build_cost() -> str:
    """Return a table of the CPU time of a build from source, and of the size of the module, for each compiler."""
    record = load(RESULTS / "build_cost.json")
    if record is None:
        return NOT_YET
    rows = [
        [one["version"], f"{one['cpu_seconds']:.0f} s", f"{one['bytes'] / 1e6:.1f} MB"]
        for one in record["builds"].values()
    ]
    head = ["compiler", "CPU time of the build", "compiled module"]
    return f"{table(head, rows)}\n\n{measured_on(record, packages=False)}"


def compat() -> str:
    """Return the versions that were tested together, and the number of tests that passed."""
    found = loaded(RESULTS / "compat.json")
    names = list(dict.fromkeys(name for run in found.values() for name in run["packages"]))
    rows = [["Python", *(run["python"] for run in found.values())]]
    rows += [[name, *(run["packages"].get(name, "") for run in found.values())] for name in names]
    rows += [["tests passed", *(f"{run['passed']:,}" for run in found.values())]]
    return table(["", *found], rows)


def gpu() -> str:
    """Return a table of the times of CUDA kernels, beside torch's and the time of a copy."""
    found = loaded(RESULTS / "gpu.json")
    machine, rows = found["machine"], []
    for one in found["times"]:
        shape, peer = " x ".join(map(str, one["shape"])), one["torch us"]
        times = [readable(one["us"] / 1e6), "" if peer is None else f"{peer / one['us']:.2f}"]
        rows.append([one["call"], shape, one["dtype"], *times, f"{one['of copy']:.2f}"])
    text = table(["call", "scores", "dtype", "softargmax", "torch's time / ours", "copy's time / ours"], rows)
    few = [
        [" x ".join(map(str, one["shape"])), *(f"{one[name]:.1f} µs" for name in one if name != "shape")]
        for one in found["graphs"]
    ]
    small = table(["scores", "softmax", "torch", "logsumexp", "torch"], few)
    calls = ", ".join(f"{name} {time:.0f} µs" for name, time in found["overhead_us"].items())
    where = f"{machine['device']}, torch {machine['torch']}, Triton {machine['triton']}, {machine['date']}"
    speed = f"A copy reads and writes {machine['copy GB/s']} GB/s."
    return f"{where}. {speed}\n\n{text}\n\nFew rows, in a CUDA graph:\n\n{small}\n\nCalls on 8 x 16 scores: {calls}."


# --- pages -----------------------------------------------------------------------------------------------------------


def insert(page: str, name: str, text: str) -> str:
    """Replace the text between the markers of a table."""
    pattern = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end table -->)", re.DOTALL)
    if not pattern.search(page):
        raise SystemExit(f"table {name!r}: expected its markers in the page, got none")
    return pattern.sub(lambda found: f"{found[1]}{text}\n{found[2]}", page)


TASK_PAGES = {
    "last-layer": ["last layer"],
    "preference": ["DPO", "GRPO"],
    "contrastive": ["CLIP"],
    "sinks-windows": ["attention"],
    "large-file": ["file"],
}
"""The tables of each page under docs/tasks."""


def pages() -> dict[Path, str]:
    """Return the pages with all tables filled in."""
    readme = ROOT / "README.md"
    made = {readme: insert(readme.read_text(encoding="utf-8"), "summary", summary())}
    speed = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    filled = [
        ("design", "accuracy", accuracy),
        ("numerics", "exactness", exactness),
        ("sparse", "sparse accuracy", sparse_accuracy),
        ("output", "output bias", output_bias),
        ("words", "words", words),
        ("losses", "small layers", small_layers),
        ("installation", "build cost", build_cost),
        ("installation", "compat", compat),
        ("gpu", "gpu", gpu),
        ("jax", "jax programs", partial(speed_page.bench, "jax_programs")),
        ("parallel", "messages", parallel_tables.messages),
        ("parallel", "scaling", parallel_tables.scaling),
        ("parallel", "modelled", parallel_tables.modelled),
        ("dask", "dask measured", dask_tables.measured),
    ]
    filled += [("speed", name, fill) for name, fill in speed_page.fills(speed).items()]
    filled += [(f"tasks/{page}", name, partial(task, name)) for page, names in TASK_PAGES.items() for name in names]
    for page, name, fill in filled:
        path = ROOT / "docs" / f"{page}.md"
        made[path] = insert(made.get(path) or path.read_text(encoding="utf-8"), name, fill())
    return made


def problems() -> Iterator[str]:
    """Yield a sentence for each claim of the pages that the measurements contradict."""
    yield from speed_page.problems((ROOT / "docs" / "speed.md").read_text(encoding="utf-8"))
    if len({processor_of(runs(name)[0]["machine"]) for name, _ in SUMMARY.values()}) > 1:
        yield "README.md: the lines of its table are from several processors"


def main() -> int:
    """Write the pages that differ, or only name them if --check is given. Return the exit code."""
    check, found = "--check" in sys.argv[1:], list(problems())
    wrong = {p: text for p, text in pages().items() if p.read_text(encoding="utf-8") != text}
    for path, text in wrong.items():
        if check:
            found.append(f"{path.relative_to(ROOT)} differs from bench/results: run python -m tools.tables")
        else:
            path.write_text(text, encoding="utf-8")
            print("wrote", path.relative_to(ROOT))
    print(*found, sep="\n", end="\n" * bool(found), file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
