"""The text of docs/speed.md, from the committed measurements. tools/tables.py writes it."""

from __future__ import annotations

from typing import Any

from tools.measurements import NOT_YET, PEERS, RESULTS, avx2_results, load, measured_on, table

from softargmax.measure import readable


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
    text = """
Both sides stop if no derivative is above $10^{-4}$. On the sparse rows scikit-learn's fit ends at a fifth of that.
There ours stops at $5 \\times 10^{-5}$, so that it reaches scikit-learn's objective."""
    return f"\n\n{table(head, rows)}\n\n{text.strip()}" if rows else ""


def timings(record: dict[str, Any], avx2: list[dict[str, Any]]) -> str:
    """Return one table of medians and ratios, with all instruction sets and, if it was measured, with AVX2 only."""
    others = {result["name"]: result for result in avx2}
    rows = [
        [result["name"], *cells(result), *(cells(others.get(result["name"])) if others else [])]
        for result in record["results"]
    ]
    isas = [ISAS.get(record.get("isa", ""), "softargmax"), *(["AVX2"] if others else [])]
    more = "peer's time / ours (promised)", "limit of the machine"
    return table(["", *(head for isa in isas for head in (isa, *more))], rows)


def cells(result: dict[str, Any] | None) -> list[str]:
    """Return our median, the ratios to the peers, and the limits. A ratio below the promise is bold."""
    if result is None:
        return ["", "", ""]
    found = []
    for peer, ratio in result["ratios"].items():
        promised, aim = (result.get(kind, {}).get(peer) for kind in ("targets", "aims"))
        number = f"{ratio:.3g}" if promised is None or ratio >= promised else f"**{ratio:.3g}**"
        wanted = (
            [] if promised is None else [f"{promised:.3g}", *([f"aim {aim:.3g}"] if aim and aim > promised else [])]
        )
        found.append(f"{PEERS.get(peer, peer)} {number}" + (f" ({', '.join(wanted)})" if wanted else ""))
    limits = ", ".join(f"{name} {readable(value)}" for name, value in result.get("limits", {}).items())
    return [readable(result["seconds"]["softargmax"]["median"]), ", ".join(found), limits]


ISAS = {"x86-64-v4": "AVX-512", "x86-64-v3": "AVX2"}

TITLES = {
    "attend": "Attention: heads x length x width, after the batch",
    "classify": "Fits of `SoftmaxRegression`, rows x features, and of `ConditionalLogit`",
    "integrate": "Models of transformers, 2 layers of width 512",
    "jax_programs": "Compiled programs of JAX",
    "last_layer": "Last layers of many sizes, rows x width x classes, and their matrix products",
    "loss": "Losses: rows x classes, of a last layer rows x width x classes",
    "normalize": "The softmax family: rows x scores",
    "output": "One training step with each output layer",
    "sample": "Draws: rows x classes",
    "sparse": "Sparse maps: rows x scores",
    "structure": "Products in the log semiring, and linear chains",
    "word2vec": "`WordVectors`: one epoch",
}
"""The titles of the tables in docs/speed.md, by result file."""

SPEED = """# Speed

`python -m tools.tables` writes this page from `bench/results/`. Do not edit it. softargmax and its peers took turns in
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

The promises were set on a Zen 5. On the machine of these tables, a Zen 4 with 2 cores, some ratios are below them. On
an Intel Xeon (family 6, model 167) with 2 cores, others were. What we know of the reasons:

- **Softmax at the speed of memory.** A softmax of 512 x 32768 with `out=` takes 5.7 ms on the Zen 4. A copy of these
  bytes takes 4.2 ms, and the same arithmetic on rows in the caches 3.9 ms. torch's takes 6.3 ms, the time to read the
  scores and to write results that are first read (192 MiB), so the promise of 1.2 needs 5.2 ms. What was tried: stores
  past the caches (5.7 ms in place of 7.5, adopted), no prefetch of the next row during the sums (6.3 ms), and none
  during the writes (5.5 to 6.8 ms). 4096 x 1024 takes as long as a copy.
- **Products.** On the Zen 4, a product of 512 x 512 x 512 runs at 0.89 of the multiplication peak, and torch's at 0.80,
  so a ratio of 1.3 would need 1.04 of the peak. On the Xeon, with one thread and depth 512, torch's runs at 0.75 of the
  peak with AVX-512, and at 0.87 with AVX2. Ours does, too. With depth 768, torch's runs at 0.81 and 0.86 there, and
  ours at 0.73 and 0.77. The loop of a tile alone reaches 0.89. Packing takes 8 % of the time, and writing the result
  4 %. What was tried: rows that are packed once for all columns (3 to 10 % faster, adopted), panels of one tile with
  AVX2 (3 to 5 %, adopted), fewer and larger pieces (12 % for depth 32768 on two threads, adopted), rows packed by all
  threads together (no gain), panels of two chunks (depth 768: 2 %, but 5 % slower for gradients), results that stay in
  the second-level cache between two chunks (no gain), and huge pages (2 %, but more memory). A last layer takes three
  products, and its ratios follow theirs.
- **Small last layers.** On the Xeon, a step of 2 x 374 x 256 alone takes 129 µs, and torch's takes 82. Without
  gradients, our call takes 29 µs, of which the kernel takes a third. To record the call for autograd takes 57 µs more,
  with the gradients, and the backward pass 43 µs. After larger products the same Python takes up to 1.5 times as long,
  because they evict it from the caches. The same holds for 64 x 32 x 500 and 13 x 152 x 978. What was tried: a packed
  copy of W (dz W takes 66 µs with the copy, and 57 without), twice as many rows of W per step of dz W (51 µs, but 12 %
  slower for matrices larger than the caches), and memory that is never returned to the operating system (no gain).
- **Causal attention with AVX2.** Its products run at the speed of torch's sgemm and take 0.8 of the time. Most of the
  rest is exponentials (a tenth) and 0.15 µs per query. What was tried: maxima of all rows of a tile before their
  exponentials (2 to 3 % faster, adopted), gradients of keys that skip the queries before them (3 % of the backward
  pass, adopted), and longer sums (no gain).
- **Decoding in a model of transformers.** On the Zen 4, a token of one text takes 4.4 ms after 8192 others, and 3.3 ms
  after 512. Both sides share 3 ms of it: products with 20 MB of weights (1.8 ms), and the Python of transformers. Our
  attention takes 0.6 ms per layer, torch's 0.8, and to read the keys and values as fast as a sum does would take 0.3.
  What was tried: a cache that appends in place (0.5 ms per layer, adopted: `GrowingCache`), keys and values that are
  fetched 4 or 8 times as far ahead (up to 1.3 times as long), no prefetch of values, and prefetches of fewer keys at a
  time (no gain). With 4 texts, attention takes most of the time, and the ratio is above the promise.
- **A last layer with trained scores.** Panels of zeros in the gradient are skipped, but the model of this line has
  none: at a loss of 5.0 no probability is 0. So the products take as long as those of random scores. What was tried, by
  counting: with 0 in place of probabilities below $2^{-24}$, 44 % of the entries would be 0, but no panel of 12 rows
  and 512 classes, no panel of 12 rows and 8 classes, and 3 % of the single rows of 64 classes.
- **bfloat16.** On the Xeon, with AVX2 and one thread, the first pass of a softmax takes 39 % of the time, the second
  pass 15 %, reading for both passes 15 %, rounding and writing 22 %, and the rest (maxima, Python) 9 %. What was tried:
  rounding in 32 bits (8 % faster, adopted), writing in pieces of 2 KiB between parts of the second pass (no gain with
  AVX2, 7 % slower with AVX-512), and one test for ties and for far scores per 64 scores, in place of one per score
  (10 % faster with AVX2, adopted). In a loss, the first pass takes 70 % of the time, the conversion to float32 16 %,
  and the maxima 9 %. The exponentials take as long as those of float32 scores: 12 floating-point operations per
  register, of which the processor executes two per cycle.
- **Rows in caches, and passes that only read.** These are limited by instructions. The fold has 12 floating-point
  operations per register of scores, and about 4 others, and the second pass of a softmax 4 to 13. The processor
  executes two of them per cycle, and the fold takes 1.1 times as long as its operations would. For 4096 x 1024 were
  adopted: a prefetch of the result, storing the expensive part of each exponential, and the test per 64 scores (10 %
  faster).
- **Segments.** Limited by instructions: 560 for a segment of 20 scores, in place of 670 before. What was tried: lanes
  of similar lengths (28 padded scores became 22), sums that stay in registers, and one pass in place of two for
  confident rows. All were adopted, and the segments take 0.82 of their time.
- **Sparse maps of equal scores.** The whole row is in the support, so every step sums all of its scores, at the end in
  float64. Sparsemax takes 1.8 times as long as with normal scores with AVX-512, and 2.8 times with AVX2. Order 1.7,
  whose p takes a logarithm and an exponential, takes 12 times as long. For sparsemax and entmax 1.5 the peer sorts, and
  sorting equal scores takes 0.4 of the time of sorting normal ones. For other orders it bisects, which takes the same
  time for all scores.
- **top-p of level scores with AVX2.** 66,000 of the 128,256 classes are in the nucleus, in place of 26 in the line
  without "level". Its smallest score is found by histograms of masses in float64. AVX2 has half as many float64 numbers
  per instruction as AVX-512.
- **Lines near their promise.** Losses of bfloat16 scores, causal attention with AVX2, the adaptive layer with AVX2 and
  the training step of gpt-oss are within 15 % of their promise, and fall on either side of it from run to run. So do
  logsumexp and softmax of bfloat16 with AVX2 and the fit of 20000 x 784 on the Xeon.
- **Draws beside busy processes.** Our calls use both cores all the time, so on one core they take about twice as long.
  Torch's draws run on one thread for the most part, so they lose less: on one core they take as long as before. Beside
  busy processes, a call of a few milliseconds often runs on one core, because the second thread gets the core of a busy
  process only at the next tick of the kernel, which comes every 4 ms. So the slowdown of our draws is 1.5 to 2.1 times
  torch's, although they stay 19 times faster. What was tried: threads that spin for 2 ms, four times as many pieces,
  threads of our own only, threads of OpenMP that never spin (`GOMP_SPINCOUNT=0`), and shorter time slices
  (`sched_setattr`); no gain. Softmax with `out=`, attention and decoding had another cause, and no longer miss: calls
  left OpenMP's threads, which spin after torch's calls, to the cores on which our own threads then ran. Now calls leave
  OpenMP only if they wait longer for its threads than they work. Beside one busy process per core, torch's time divided
  by ours rose from 0.95, 0.97 and 0.80 to 1.09, 1.44 and 1.15.

## Memory of results

Page faults of new memory cost more than a softmax: 64 MiB take 20 ms in pages of 4 KiB. Therefore results of 12 MiB and
more use huge pages. Up to 256 MiB of freed results are kept for later results of the same size, which then have no page
faults. The operating system may reclaim the kept memory at any time (`MADV_FREE`). Until then it counts as resident.
The environment variable `SOFTARGMAX_POOL_MIB` sets another limit than 256. With the limit 0, no memory is kept. Results
of 12 MiB and more cannot grow in place (`resize`, `resize_`).

## Threads

Large calls use several threads. Small calls stay on the calling thread. The default number of threads is
`OMP_NUM_THREADS` if set, and otherwise the number of processors that this process may run on (`os.sched_getaffinity`).
In a process that has imported torch, it is torch's number, `torch.get_num_threads()`: also `OMP_NUM_THREADS` if set,
and otherwise the number of physical cores, or what `torch.set_num_threads` has set. The CPU quota of a container lowers
it. For example, at most 2 threads run with a quota of 1.5 processors. torch does not read quotas. `OMP_NUM_THREADS` and
`softargmax.set_num_threads` override the quota.

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
    rows, sides = [], ("softargmax", "torch")
    for case, alone in record["seconds"]["alone"].items():
        for condition, every in record["seconds"].items():
            times = every[case]
            ours, theirs = (times[side] / alone[side] for side in sides)
            name = f"{case}, {condition}"
            rows.append([name, f"{ours:.2f}", f"{theirs:.2f}", f"{times['torch'] / times['softargmax']:.3g}"])
    rounds = record["rounds per second"]
    shares = " and ".join(f"{rounds['2'][side] / rounds['1'][side]:.2f} ({side})" for side in sides)
    head = ["two threads", "slowdown of softargmax", "slowdown of torch", "torch's time / ours"]
    return (
        "A slowdown is the time beside other processes, divided by the time alone. We aim at slowdowns of at most\n"
        f"{record['excess']} times torch's. Misses:\n\n" + "\n".join(f"- {miss}" for miss in record["misses"]) + "\n\n"
        f"{table(head, rows)}\n\n"
        "Eight processes with two threads each, on two cores, finish this share of the calls that they finish with one "
        f"thread each: {shares}.\n\n{measured_on(record)}"
    )


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
