"""The cases of bench.contention, and the processes that run them.

    python -m bench.contention_cases torch                      time the cases of tensors, and print JSON
    python -m bench.contention_cases numpy                      time the cases of arrays, without importing torch
    python -m bench.contention_cases torch --rounds softargmax  print how often a side calls all cases in a second

With `--rounds`, the process prints a line when its cases are ready, and begins when it reads a line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings

import numpy as np

import softargmax as sa
from softargmax.measure import OURS, Case

PEER, OF_ARRAYS, OF_FITS = "torch", "SciPy", "scikit-learn"
THREADS, CALLS, SECONDS = 2, 5, 8.0  # CALLS per side and case
LINEAR = "linear_cross_entropy 1024x512x32768"


def of_tensors() -> list[Case]:
    """Return the cases of tensors. The peer of sparsemax is the package entmax, which computes with torch."""
    import entmax
    import torch
    from bench.loss import both
    from bench.structure import by_terms
    from torch.nn import functional

    torch.manual_seed(0)
    z, out = torch.randn(512, 32_768), torch.empty(512, 32_768)
    y = torch.randint(32_768, (512,))
    h, w = torch.randn(1024, 512), torch.randn(32_768, 512) / 512**0.5
    words, leaves = torch.randint(32_768, (1024,)), (h.clone().requires_grad_(), w.clone().requires_grad_())
    logits = torch.randn(64, 128_256)
    q, one = torch.randn(1, 8, 1024, 64), torch.randn(2, 8, 1, 128)
    k, v = torch.randn(2, 8, 8192, 128), torch.randn(2, 8, 8192, 128)
    counts = np.arange(32_768, 0, -1)
    tree = sa.nn.HierarchicalSoftmax(512, sa.output.Tree.huffman(counts), sparse=True)
    few, label, full = h[:256], words[:256], leaves[1]
    a, b = torch.randn(256, 256), torch.randn(256, 256)

    return [
        Case(
            "softmax 512x32768, out=",
            {OURS: lambda: sa.softmax(z, out=out), PEER: lambda: torch.softmax(z, -1, out=out)},
        ),
        Case(
            "cross_entropy 512x32768",
            {OURS: lambda: sa.cross_entropy(z, y), PEER: lambda: functional.cross_entropy(z, y)},
        ),
        Case(
            LINEAR,
            {
                OURS: lambda: sa.linear_cross_entropy(h, w, words),
                PEER: lambda: functional.cross_entropy(h @ w.T, words),
            },
        ),
        Case(
            f"{LINEAR}, backward",
            {
                OURS: both(lambda h, w: sa.linear_cross_entropy(h, w, words), *leaves),
                PEER: both(lambda h, w: functional.cross_entropy(h @ w.T, words), *leaves),
            },
        ),
        Case(
            "attention (1, 8, 1024, 64)",
            {OURS: lambda: sa.attention(q, q, q), PEER: lambda: functional.scaled_dot_product_attention(q, q, q)},
        ),
        Case(
            "attention, decoding (2, 8, 1, 128), 8192 keys",
            {OURS: lambda: sa.attention(one, k, v), PEER: lambda: functional.scaled_dot_product_attention(one, k, v)},
        ),
        Case(
            "sparsemax 512x32768",
            {OURS: lambda: sa.sparsemax(z), PEER: lambda: entmax.sparsemax(z, -1)},
        ),
        Case(
            "categorical 64x128256",
            {OURS: lambda: sa.categorical(logits, seed=0), PEER: lambda: torch.multinomial(logits.softmax(-1), 1)},
        ),
        Case(
            "hierarchical softmax 256x512x32768, backward",
            {
                OURS: lambda: torch.autograd.grad(tree(few, label), tree.parameters()),
                PEER: lambda: torch.autograd.grad(functional.cross_entropy(few @ full.T, label), full),
            },
        ),
        Case(
            "log_matmul 256x256x256",
            {OURS: lambda: sa.log_matmul(a, b), PEER: lambda: by_terms(a, b)},
        ),
    ]


def of_arrays() -> list[Case]:
    """Return the cases of arrays, which run on threads of our own. SciPy has no sparse maps, and no draws of rows."""
    from scipy import special
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((512, 32_768), np.float32), rng.integers(32_768, size=512)
    q, rows = rng.standard_normal((1, 8, 1024, 64), np.float32), np.arange(512)
    x = rng.standard_normal((5000, 784), np.float32)
    classes, steps = np.argmax(x[:, :10] + rng.gumbel(size=(5000, 10)), axis=-1), {"max_iter": 10, "tol": 0.0}
    warnings.simplefilter("ignore", ConvergenceWarning)
    return [
        Case("softmax 512x32768, NumPy", {OURS: lambda: sa.softmax(z), OF_ARRAYS: lambda: special.softmax(z, axis=-1)}),
        Case(
            "cross_entropy 512x32768, NumPy",
            {
                OURS: lambda: sa.cross_entropy(z, y),
                OF_ARRAYS: lambda: -special.log_softmax(z, axis=-1)[rows, y].mean(),
            },
        ),
        Case(
            "attention (1, 8, 1024, 64), NumPy",
            {
                OURS: lambda: sa.attention(q, q, q),
                OF_ARRAYS: lambda: special.softmax(q @ q.swapaxes(-1, -2) / 8, axis=-1) @ q,
            },
        ),
        Case(
            "fit 5000x784, 10 classes, 10 steps",
            {
                OURS: lambda: sa.classify.SoftmaxRegression(**steps).fit(x, classes),
                OF_FITS: lambda: LogisticRegression(**steps).fit(x, classes),
            },
        ),
    ]


KINDS = {"torch": of_tensors, "numpy": of_arrays}


def timed(case: Case) -> dict[str, float]:
    """Return the median time of CALLS single calls of each side, after one that does not count.

    The sides take turns in the same order, so each call finds the caches as the other side has left them. Repeated
    calls of one side would find their data in the caches.
    """
    seconds: dict[str, list[float]] = {side: [] for side in case.sides}
    for turn in range(CALLS + 1):
        for side, call in case.sides.items():
            start = time.perf_counter()
            call()
            if turn:
                seconds[side].append(time.perf_counter() - start)
    return {side: statistics.median(found) for side, found in seconds.items()}


def rounds_per_second(cases: list[Case], side: str) -> float:
    """Call one side of all cases, round after round, for SECONDS seconds. Return the number of rounds per second."""
    calls = [case.sides[side] for case in cases]
    print("ready", flush=True)
    sys.stdin.readline()
    rounds, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        for call in calls:
            call()
        rounds += 1
    return rounds / (time.perf_counter() - start)


def main() -> int:
    """Run the cases of one kind in this process. Return the exit code, which is 1 if arrays have imported torch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--rounds", choices=[OURS, PEER], help="print the rounds per second of this side")
    parser.add_argument("--threads", type=int, default=THREADS)
    options = parser.parse_args()
    cases = KINDS[options.kind]()
    sa.set_num_threads(options.threads)
    if options.kind == "torch":
        sys.modules["torch"].set_num_threads(options.threads)
    if options.rounds:
        print(rounds_per_second(cases, options.rounds))
    else:
        print(json.dumps({case.name: timed(case) for case in cases}))
    return int(options.kind == "numpy" and "torch" in sys.modules)


if __name__ == "__main__":
    sys.exit(main())
