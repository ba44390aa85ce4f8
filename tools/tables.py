"""Write the tables of committed measurements into README.md and docs/, so that no figure is typed by hand.

    python tools/tables.py            write
    python tools/tables.py --check    exit with 1 if a page and its measurements differ

The measurements are the JSON files in bench/results. A table is placed between `<!-- table: NAME -->` and
`<!-- end table -->`. All of docs/speed.md is generated.
"""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
NOT_YET = "*Not measured yet.*"
PEERS = {"torch": "torch", "scipy": "SciPy", "numpy": "NumPy", "jax": "JAX", "sgemm": "products alone"}


def load(path: Path) -> dict[str, Any] | None:
    """Read one result file. Return None if it does not exist."""
    return loaded(path) if path.exists() else None


def loaded(path: Path) -> dict[str, Any]:
    """Read one result file, which must exist."""
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def avx2_results(name: str) -> list[dict[str, Any]]:
    """Return the results of the run with AVX2 only, or an empty list if there are none."""
    record = load(RESULTS / "avx2" / f"{name}.json")
    return record["results"] if record else []


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table whose columns after the first are numbers."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def measured_on(record: dict[str, Any], *, packages: bool = True) -> str:
    """Return a sentence that names the machine and, if `packages` is True, the package versions."""
    machine = record.get("machine", {})
    versions = ", ".join(f"{name} {version}" for name, version in machine.get("packages", {}).items())
    used = f" with {versions}" if packages else ""
    return f"Measured{used} on {machine.get('cpu', 'an unnamed machine')}, {machine.get('cores', '?')} cores."


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
    rows += [["CPU time, one thread", *(seconds(side["cpu_seconds"]) for side in (plain, ours))]]
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
        rows.append([f"({n}, {d}, {k})", f"{n * k / 1e6:.2g}", seconds(spent["plain"]), *ratios])
    ours = ("`sa.cross_entropy(h @ w.T, y)`", "`sa.linear_cross_entropy(h, w, y)`")
    head = ["(N, D, K)", "million scores", "torch", *ours]
    return f"{table(head, rows)}\n\n{measured_on(record)}"


# --- speed -----------------------------------------------------------------------------------------------------------


def seconds(value: float) -> str:
    """Format a time with three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:#.3g} {unit}".replace(". ", " ")
    return f"{value / 1e-9:#.3g} ns"


def benches() -> list[tuple[str, dict[str, Any]]]:
    """Return the names and records of the result files that contain timings."""
    found = [(path.stem, load(path)) for path in sorted(RESULTS.glob("*.json"))]
    return [(name, record) for name, record in found if record and "results" in record]


def memory() -> str:
    """Return a sentence on the time and memory of converting a large file, or an empty text if not measured."""
    record = load(RESULTS / "memory.json")
    if record is None:
        return ""
    found = record["conversion"]
    return (
        f"A file of {found['file_bytes'] / (1 << 30):.3g} GiB converted in {found['seconds']:.1f} s with a peak of "
        f"{found['peak_mib']:.0f} MiB (`python -m bench.memory`)."
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


def timings(record: dict[str, Any], avx2: list[dict[str, Any]]) -> str:
    """Return one table of medians and ratios, with all instruction sets and, if it was measured, with AVX2 only."""
    others = {result["name"]: result for result in avx2}
    rows = []
    for result in record["results"]:
        row = [result["name"], *median_and_ratios(result)]
        if others:
            row += median_and_ratios(others[result["name"]]) if result["name"] in others else ["", ""]
        bounds = ", ".join(f"{name} {seconds(value)}" for name, value in result.get("limits", {}).items())
        rows.append([*row, bounds])
    ratio = "peer's time / ours (promised)"
    sides = ["AVX-512", ratio, "AVX2", ratio] if others else ["softargmax", ratio]
    return table(["", *sides, "limit of the machine"], rows)


def median_and_ratios(result: dict[str, Any]) -> list[str]:
    """Return our median, and the ratio to each peer with the promised ratio. A ratio below the promise is bold."""
    found = []
    for peer, ratio in result["ratios"].items():
        promised = result.get("targets", {}).get(peer)
        number = f"{ratio:.3g}" if promised is None or ratio >= promised else f"**{ratio:.3g}**"
        found.append(f"{PEERS.get(peer, peer)} {number}" + ("" if promised is None else f" ({promised:.3g})"))
    return [seconds(result["seconds"]["softargmax"]["median"]), ", ".join(found)]


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
        result = next(one for one in loaded(RESULTS / f"{name}.json")["results"] if one["name"] == line)
        peer, ratio = next(iter(result["ratios"].items()))
        ours = seconds(result["seconds"]["softargmax"]["median"])
        limited = next((one["ratios"][peer] for one in avx2_results(name) if one["name"] == line), None)
        rows.append([label, ours, PEERS.get(peer, peer), f"{ratio:.3g}", "" if limited is None else f"{limited:.3g}"])
    head = ["float32, two threads", "softargmax", "peer"]
    head += ["peer's time / ours", "peer's time / ours, both with AVX2 only"]
    text = table(head, rows)
    machine = loaded(RESULTS / "normalize.json")["machine"]
    return f"Median times on {machine['cpu']} with AVX-512, {machine['cores']} cores.\n\n{text}"


TITLES = {
    "attend": "Attention: heads x length x width, after the batch",
    "classify": "Fits of `SoftmaxRegression`: rows x features",
    "last_layer": "Last layers of many sizes, rows x width x classes, and their matrix products",
    "loss": "Losses: rows x classes, of a last layer rows x width x classes",
    "normalize": "The softmax family: rows x scores",
    "output": "One training step with each output layer",
    "sample": "Draws: rows x classes",
    "sparse": "Sparse maps: rows x scores",
    "word2vec": "`WordVectors`: one epoch",
}
"""The titles of the tables in docs/speed.md, by result file."""

SPEED = """# Speed

`python tools/tables.py` writes this page from `bench/results/`. Do not edit it. softargmax and its peers took turns in
one run. A ratio is the median time of the peer, divided by the median time of softargmax. If it is above 1, softargmax
is faster. Absolute times of a shared machine drift by a factor of two, ratios much less.

Numbers in brackets are the ratios that we promise. A ratio below the promise is bold. Columns "AVX2" come from a run on
the same machine in which softargmax and its peers used AVX2 only (`make bench-avx2`), as on processors without AVX-512.
The other columns come from a run with all instruction sets.

"Limit of the machine" is a lower bound of the time, measured in the same run. "Memory" is the time to read the inputs
and write the outputs once, at the speed of a large copy. "Arithmetic" is the time of the multiplications (16 floats
each, with or without an addition) in a loop on registers. The other instructions of our kernels (comparisons,
additions, shifts, stores) take additional time. A loop with all instructions takes 1.4 times as long as a loop with
only the multiplications. "Products alone" is not a peer. It is the time of the same number of operations in torch's
products of 1024 x 1024 matrices.

`softargmax bench` measures the speed on your machine. `make bench` also measures every peer.

## Ratios below the promise

The promises were set on a Zen 5. On the machine of these tables, with an Intel processor and 2 cores, some ratios are
below them. What we know of the reasons:

- **Products and large last layers.** torch's matrix product runs at 0.8 of the multiplication peak with AVX-512, and at
  0.9 with AVX2. Ours does, too, so a ratio of 1.3 would need more than the peak. What was tried: other block sizes (no
  gain), panels of two chunks (depth 768 with AVX2: 0.85 to 0.88), and a prefetch of the result (1024 x 32768 with
  AVX-512: 0.94 to 1.01).
- **Small last layers.** A step of 13 x 152 x 978 alone, with AVX-512 and one thread, takes 449 µs: products 158, the
  rest of the kernel 76, Python and autograd 215. torch's takes 334 µs: products 131, all the rest 203. A step of
  2 x 374 x 256 takes 214 µs, of which Python and autograd take 149. torch's takes 177. After larger products the same
  Python takes up to 1.5 times as long, because they evict it from the caches. What was tried: a packed copy of W (dz W
  takes 66 µs with the copy, and 57 without), twice as many rows of W per step of dz W (51 µs, but 12 % slower for
  matrices larger than the caches), and memory that is never returned to the operating system (no gain).
- **Three rows and many classes.** Our step alone takes 3.8 ms for 3 x 137 x 38552, and torch's alone 4.7 ms. When the
  two take turns, ours is slower, because the memory of its gradient is no longer in the caches.
- **Causal attention with AVX2.** Its products run at the speed of torch's sgemm and take 0.8 of the time. Most of the
  rest is exponentials (a tenth) and 0.15 µs per query. What was tried: maxima of all rows of a tile before their
  exponentials (2 to 3 % faster, adopted), gradients of keys that skip the queries before them (3 % of the backward
  pass, adopted), and longer sums (no gain).
- **A last layer with trained scores.** Panels of zeros in the gradient are skipped, but the model of this line has
  none: at a loss of 5.0 no probability is 0. With 0 in place of probabilities below $2^{-24}$, 44 % of the entries
  would be 0, but no panel. So the products take as long as those of random scores.
- **bfloat16.** With AVX2 and one thread, the first pass of a softmax takes 42 % of the time, the second pass 14 %,
  reading for both passes 14 %, rounding and writing 21 %, and the rest (maxima, Python) 9 %. What was tried: rounding
  in 32 bits (8 % faster, adopted), and writing in pieces of 2 KiB between parts of the second pass (no gain with AVX2,
  7 % slower with AVX-512). In a loss, the first pass takes three quarters of the time. Its exponentials take as long as
  those of float32 scores.
- **Rows in caches, and passes that only read.** These are limited by instructions. With AVX-512, the fold has about 15
  arithmetic instructions for 16 scores, and the second pass of a softmax 4 to 13. The processor executes two of them
  per cycle. For 4096 x 1024 a prefetch of the result and storing the expensive part of each exponential were adopted;
  stores past the caches take 1.4 ms in place of 1.0. With AVX-512 this softmax takes 1.5 times as long as a copy.
- **Segments with AVX2.** Limited by instructions: 560 for a segment of 20 scores, in place of 670 before. What was
  tried: lanes of similar lengths (28 padded scores became 22), sums that stay in registers, and one pass in place of
  two for confident rows. All were adopted, and the segments take 0.82 of their time.
- **Sparse maps of equal scores.** The whole row is in the support, so every step sums all of its scores, at the end in
  float64. Sparsemax takes 1.5 times as long as with normal scores with AVX-512, and 2.1 times with AVX2. Other orders
  take up to 8 times as long. For sparsemax and entmax 1.5 the peer sorts, and sorting equal scores takes 0.4 of the
  time of sorting normal ones. For other orders it bisects, which takes the same time for all scores.
- **top-p of level scores with AVX2.** 66,000 of the 128,256 classes are in the nucleus, in place of 26 in the line
  without "level". Its smallest score is found by histograms of masses in float64. AVX2 has half as many float64 numbers
  per instruction as AVX-512.

## Memory of results

Page faults of new memory cost more than a softmax: 64 MiB take 20 ms in pages of 4 KiB. Therefore results of 12 MiB and
more use huge pages. Up to 256 MiB of freed results are kept for later results of the same size, which then have no page
faults. The operating system may reclaim the kept memory at any time (`MADV_FREE`). Until then it counts as resident.
The environment variable `SOFTARGMAX_POOL_MIB` sets another limit than 256. With the limit 0, no memory is kept. Results
of 12 MiB and more cannot grow in place (`resize`, `resize_`).

## Threads

Large calls use several threads. Small calls stay on the calling thread. The default number of threads is
`OMP_NUM_THREADS` if set, and otherwise the number of processors that this process may run on (`os.sched_getaffinity`).
`torch.set_num_threads` changes it. The CPU quota of a container lowers it. For example, at most 2 threads run with a
quota of 1.5 processors. torch does not read quotas. `OMP_NUM_THREADS` and `softargmax.set_num_threads` override the
quota.

The threads take small pieces of the work whenever they are free, and the result has the same bits for any number of
threads. In a process that uses torch, they are the threads of torch's OpenMP. These spin for some milliseconds after a
call, so threads of our own would compete with them for the cores. OpenMP waits for every thread, even for one that
cannot start because another process occupies its core. When this happens, the next calls run on a pool of threads of
our own. The pool waits only for threads that have started. Processes without torch always use this pool, and so do
forked children.
"""


def contention() -> str:
    """Return a table of slowdowns beside other processes, and of torch's time over ours."""
    record = load(RESULTS / "contention.json")
    if record is None:
        return ""
    rows, excess, sides = [], {}, ("softargmax", "torch")
    for case, alone in record["seconds"]["alone"].items():
        for condition, every in record["seconds"].items():
            times = every[case]
            ours, torchs = (times[side] / alone[side] for side in sides)
            name = f"{case}, {condition}"
            rows.append([name, f"{ours:.2f}", f"{torchs:.2f}", f"{times['torch'] / times['softargmax']:.3g}"])
            excess[name] = ours / torchs
    rounds = record["rounds per second"]
    shares = " and ".join(f"{rounds['2'][side] / rounds['1'][side]:.2f} ({side})" for side in sides)
    worst = max(excess, key=lambda name: excess[name])
    head = ["two threads", "slowdown of softargmax", "slowdown of torch", "torch's time / ours"]
    return (
        "A slowdown is the time beside other processes, divided by the time alone. We aim at slowdowns of at most 1.3\n"
        f"times torch's. The largest is {excess[worst]:.2f} times torch's ({worst}).\n\n"
        f"{table(head, rows)}\n\n"
        "Beside busy processes, a call of a few milliseconds takes about as long as with one thread: the second\n"
        "thread gets the core of a busy process only at the next tick of the kernel, which comes every 4 ms here.\n"
        "With one thread, cross_entropy takes 2.0 times as long as with two. torch's takes about 1.5 times as long,\n"
        "because a part of its work runs on one thread. So our slowdown is larger, although we stay ahead. Three\n"
        "changes made no difference: only threads of our own, threads of OpenMP that never spin (GOMP_SPINCOUNT=0),\n"
        "and shorter time slices (sched_setattr).\n\n"
        "Eight processes with two threads each, on two cores, finish this share of the calls that they finish with one "
        f"thread each: {shares}.\n\n{measured_on(record)}"
    )


def compat() -> str:
    """Return the versions that were tested together, and the number of tests that passed."""
    found = loaded(RESULTS / "compat.json")
    names = list(dict.fromkeys(name for run in found.values() for name in run["packages"]))
    rows = [["Python", *(run["python"] for run in found.values())]]
    rows += [[name, *(run["packages"].get(name, "") for run in found.values())] for name in names]
    rows += [["tests passed", *(f"{run['passed']:,}" for run in found.values())]]
    return table(["", *found], rows)


def speed_page() -> str:
    """Return docs/speed.md."""
    parts = [SPEED]
    for name, record in benches():
        tables = timings(record, avx2_results(name)) + extra_memory(record) + extra_words(record) + extra_fits(record)
        parts.append(f"## {TITLES[name]}\n\n{tables}\n\n{measured_on(record)}\n")
    if len(parts) == 1:
        parts.append(NOT_YET + "\n")
    if text := contention():
        parts.append(f"## Beside other processes\n\n{text}\n")
    if text := memory():
        parts.append(f"## Memory\n\n{text}\n")
    return "\n".join(parts)


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
    made[ROOT / "docs" / "speed.md"] = speed_page()
    filled = [
        ("design", "accuracy", accuracy),
        ("sparse", "sparse accuracy", sparse_accuracy),
        ("output", "output bias", output_bias),
        ("words", "words", words),
        ("losses", "small layers", small_layers),
        ("installation", "compat", compat),
    ]
    filled += [(f"tasks/{page}", name, partial(task, name)) for page, names in TASK_PAGES.items() for name in names]
    for page, name, fill in filled:
        path = ROOT / "docs" / f"{page}.md"
        made[path] = insert(made.get(path) or path.read_text(encoding="utf-8"), name, fill())
    return made


def main() -> int:
    """Write the pages that differ, or only name them if --check is given. Return the exit code."""
    wrong = [p for p, text in pages().items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    for path in wrong:
        if "--check" in sys.argv[1:]:
            print(f"{path.relative_to(ROOT)} differs from bench/results: run python tools/tables.py", file=sys.stderr)
        else:
            path.write_text(pages()[path], encoding="utf-8")
            print("wrote", path.relative_to(ROOT))
    return int(bool(wrong) and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
