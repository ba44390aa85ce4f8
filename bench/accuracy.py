"""Measure the error of softmax, log_softmax, logsumexp and cross_entropy in ulp, for softargmax, SciPy and torch.

    python -m bench.accuracy            10^7 values in every row of the table, about 6 minutes on 2 cores
    python -m bench.accuracy --quick    10^5 values in every row; writes nothing

The true values come from tests/oracle, whose tests compare it with mpmath. The oracle computes in float64 for float32
and narrower formats, and in pairs of float64 for float64. The results are written to bench/results/accuracy.json, and
the table to docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from bench.machine import machine
from bench.scores import HALVES, LENGTHS, Case, cases
from numpy.typing import NDArray
from tests.oracle.truth import Family, Truth, family_truth, ulp_error
from tools.measurements import measured_on

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "bench" / "results" / "accuracy.json"
PAGE = ROOT / "docs" / "accuracy.md"
OPS = ("softmax", "log_softmax", "logsumexp", "cross_entropy")
DTYPES = ("float32", "float64", "float16", "bfloat16")
PIECE = 200_000  # scores per call
BOUND = {"float32": 3.0, "float64": 4.0, "float16": 0.51, "bfloat16": 0.51}

Answer = tuple[NDArray[Any], str]  # values, and the name of their format (a float32 array may contain bfloat16 values)
Subject = Callable[[str, NDArray[Any], Case], Answer | None]


def pieces(case: Case, values: int) -> Iterator[NDArray[Any]]:
    """Yield matrices with rows of several lengths, with at least `values` scores in all.

    The lengths are those in LENGTHS that are at most `values` / len(LENGTHS). The scores of bfloat16 cases are in
    float32 arrays.
    """
    lengths = [n for n in LENGTHS if n <= values // len(LENGTHS)]
    share = -(-values // len(lengths))
    for n in lengths:
        rng = np.random.default_rng([n, *case.name.encode()])
        rows = -(-share // n)
        while rows > 0:
            now = min(rows, max(1, PIECE // n))
            yield rounded(case.scores(rng, (now, n), case.dtype), case.dtype)
            rows -= now


def rounded(z: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    """Round scores to the format `dtype`, and clip them to its finite range."""
    with np.errstate(over="ignore", under="ignore"):
        if dtype != "bfloat16":
            return np.clip(z, -np.finfo(dtype).max, np.finfo(dtype).max).astype(dtype)
        bits = z.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def operations_of(case: Case) -> tuple[str, ...]:
    """Return the operations that have the parameters of a case. cross_entropy has no base."""
    return OPS if case.base is None else OPS[:-1]


def classes_of(z: NDArray[Any]) -> NDArray[np.int64]:
    """Draw a class for each row, always the same for the same scores. In half of the rows it has the largest score."""
    rng = np.random.default_rng(list(z[0, :4].tobytes()))
    return np.where(rng.random(len(z)) < 0.5, z.argmax(-1), rng.integers(z.shape[1], size=len(z)))


# --- the subjects ------------------------------------------------------------------------------------------------


def as_torch(z: NDArray[Any], dtype: str) -> Any:
    """Return the scores as a tensor of the format `dtype`."""
    import torch

    return torch.from_numpy(z).to(torch.bfloat16) if dtype == "bfloat16" else torch.from_numpy(z)


def as_numpy(tensor: Any) -> Answer:
    """Return the values of a tensor as an array, and the name of the tensor's format."""
    import torch

    values = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return values.numpy(), str(tensor.dtype).removeprefix("torch.")


def softargmax_side(op: str, z: NDArray[Any], case: Case) -> Answer:
    """Return the result of softargmax, which gets NumPy arrays, or tensors for bfloat16."""
    import softargmax

    losses = op == "cross_entropy"
    options = {"target": classes_of(z), "reduction": "none"} if losses else {"base": case.base}
    function = partial(getattr(softargmax, op), temperature=case.temperature, **options)
    if case.dtype == "bfloat16":
        return as_numpy(function(as_torch(z, case.dtype)))
    found = np.asarray(function(z))
    return found, found.dtype.name


def _scaled(z: Any, case: Case) -> tuple[Any, float]:
    """Return the scores multiplied by beta, and beta itself. beta is ln(base) / temperature.

    Users of the peers scale their scores in this way, because the peers have no temperature and no base.
    """
    beta = float((1.0 if case.base is None else np.log(case.base)) / case.temperature)
    return (z, 1.0) if beta == 1.0 else (z * beta, beta)


def torch_side(op: str, z: NDArray[Any], case: Case) -> Answer:
    """Return the result of torch."""
    import torch

    tensor, beta = _scaled(as_torch(z, case.dtype), case)
    if op == "logsumexp":
        return as_numpy(torch.logsumexp(tensor, -1) / beta)
    if op == "cross_entropy":
        return as_numpy(torch.nn.functional.cross_entropy(tensor, torch.from_numpy(classes_of(z)), reduction="none"))
    return as_numpy(getattr(torch, op)(tensor, -1))


def scipy_side(op: str, z: NDArray[Any], case: Case) -> Answer | None:
    """Return the result of SciPy, or None for bfloat16 and cross_entropy, which SciPy does not have."""
    import scipy.special

    if case.dtype == "bfloat16" or op == "cross_entropy":
        return None
    scaled, beta = _scaled(z, case)
    found = getattr(scipy.special, op)(scaled.astype(z.dtype), axis=-1)
    found = np.asarray(found / z.dtype.type(beta) if op == "logsumexp" else found)
    return found, found.dtype.name


SUBJECTS: dict[str, Subject] = {"softargmax": softargmax_side, "torch": torch_side, "scipy": scipy_side}


# --- measuring -----------------------------------------------------------------------------------------------------


def errors(op: str, answer: Answer, truth: Family, z: NDArray[Any]) -> NDArray[np.float64]:
    """Return the errors in ulp of the result's format. For logsumexp, take the ulp of max(|largest score|, |lse|)."""
    at = truth.largest if op == "logsumexp" else None
    true = losses(truth.log_softmax, classes_of(z)) if op == "cross_entropy" else getattr(truth, op)
    return ulp_error(answer[0], *true, dtype=answer[1], at=at)


def losses(log_softmax: Truth, y: NDArray[np.int64]) -> Truth:
    """Return the true losses of the classes y."""
    rows = np.arange(len(y))
    hi, lo, lift = (None if x is None else np.broadcast_to(x, log_softmax.hi.shape)[rows, y] for x in log_softmax)
    return Truth(-hi, None if lo is None else -lo, lift)


def measure(case: Case, values: int) -> dict[str, Any]:
    """Measure one row of the table, for softargmax and for each peer."""
    tally: dict[str, dict[str, list[float]]] = {s: {op: [0.0, 0.0, 0.0] for op in OPS} for s in SUBJECTS}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers warn of overflow on hard rows
        for z in pieces(case, values):
            truth = family_truth(z, case.temperature, case.base)
            for subject, compute in SUBJECTS.items():
                for op in operations_of(case):
                    answer = compute(op, z, case)
                    if answer is None:
                        continue
                    error = errors(op, answer, truth, z)
                    row = tally[subject][op]
                    row[:] = [max(row[0], float(error.max())), row[1] + float(error.sum()), row[2] + error.size]
    return {
        "dtype": case.dtype,
        "name": case.name,
        "temperature": case.temperature,
        "base": case.base,
        "errors": {
            subject: {op: {"max": top, "mean": total / n, "values": int(n)} for op, (top, total, n) in ops.items() if n}
            for subject, ops in tally.items()
        },
    }


def run(dtypes: list[str], values: int, workers: int) -> list[dict[str, Any]]:
    """Measure every row of the table in `workers` processes."""
    rows = [case for dtype in dtypes for case in cases(dtype)]
    jobs = [(case.dtype, index) for dtype in dtypes for index, case in enumerate(cases(dtype))]
    results = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        for case, result in zip(rows, pool.map(_job, jobs, [values] * len(jobs)), strict=True):
            ours = result["errors"]["softargmax"]
            print(
                f"{case.dtype:9} {case.name:28}",
                *(f"{op} {number(found['max'])}" for op, found in ours.items()),
                flush=True,
            )
            results.append(result)
    return results


def _one_thread() -> None:
    """Limit torch to one thread in each worker process. The results do not depend on the number of threads."""
    import torch

    torch.set_num_threads(1)


def _job(job: tuple[str, int], values: int) -> dict[str, Any]:
    return measure(cases(job[0])[job[1]], values)


# --- the page --------------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Format an error with two decimals if it is below 100, and otherwise with three digits."""
    if not np.isfinite(value):
        return "inf"
    return f"{value:.2f}" if value < 100 else f"{value:.3g}"


def table(results: list[dict[str, Any]], dtype: str, op: str) -> str:
    """Return one Markdown table. A cell has the largest error in ulp, and the mean error in parentheses."""
    lines = ["| scores | values | softargmax | torch | SciPy |", "|---|---:|---:|---:|---:|"]
    for row in results:
        if row["dtype"] != dtype or op not in row["errors"]["softargmax"]:
            continue
        cells = []
        for subject in SUBJECTS:
            found = row["errors"][subject].get(op)
            cells.append("" if found is None else f"{number(found['max'])} ({number(found['mean'])})")
        values = row["errors"]["softargmax"][op]["values"]
        lines.append(f"| {row['name']} | {values / 1e6:.2g} M | " + " | ".join(cells) + " |")
    return "\n".join(lines)


INTRO = """# Accuracy

`python -m bench.accuracy` (`make accuracy`) writes this page. Do not edit it. Each cell shows the largest error, and
the mean error in brackets. The unit is the last place (ulp) of the result's format at the true value, or the smallest
subnormal below the normal range. An infinite error means that either the result or the true value is an infinity or
NaN, but not both. cross_entropy has a class per row: in half of the rows that of the largest score, in the others any.

True values are float64 for scores of float32 and narrower formats, and pairs of float64 for float64 scores.
`tests/oracle/test_truth.py` compares both with mpmath. Every row of the table combines rows of 7, 64, 1,000, 4,097,
65,536 and 1,000,000 scores. The error of logsumexp is relative to max(|m|, |lse|), where m is the largest score. For
logsumexp and cross_entropy, the column "values" counts rows. For float16 and bfloat16, a single rounding of softmax and
log_softmax has an error of up to 0.5. For these formats softargmax returns logsumexp and cross_entropy in float32,
unlike the peers. The peers have no temperature and no base. Their scores are first multiplied by ln(base) /
temperature, as their users do. "spread s" are normal scores of standard deviation s. `bench/scores.py` explains the
other names.
"""


def page(record: dict[str, Any]) -> str:
    """Return docs/accuracy.md."""
    parts = [INTRO, f"{measured_on(record)}\n"]
    for dtype in DTYPES:
        parts += [f"## {dtype}: {op}\n\n{table(record['rows'], dtype, op)}\n" for op in OPS]
    return "\n".join(parts)


def main() -> int:
    """Run the measurements that the command line selects. Return the exit code, which is 1 if a bound is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10^5 values in every row; write nothing")
    parser.add_argument("--dtype", nargs="*", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    rows = run(options.dtype, 100_000 if options.quick else 10_000_000, options.workers)
    if not options.quick and set(options.dtype) == set(DTYPES):
        record = {"machine": machine(), "bound": BOUND, "rows": rows}
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(record, indent=1) + "\n")
        PAGE.write_text(page(record))
        print("wrote", RESULT.relative_to(ROOT), "and", PAGE.relative_to(ROOT))
    broken = [
        f"{row['dtype']} {row['name']} {op}: {found['max']:.3g} ulp"
        for row in rows
        for op, found in row["errors"]["softargmax"].items()
        # logsumexp and cross_entropy of half precision are float32
        if not found["max"] <= BOUND["float32" if row["dtype"] in HALVES and op in OPS[2:] else row["dtype"]]
    ]
    print(*broken, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
