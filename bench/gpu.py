"""Time the CUDA kernels on the GPU of this machine, beside torch, torch.compile and Liger-Kernel, and check their bits.

    python -m bench.gpu            6 minutes; writes bench/results/gpu.json

A time is the median of many calls, with an empty cache before each. The limit of a call is its traffic divided by the
speed of a copy on the same GPU. The bits of 200 rows of each length are compared over batches of other sizes, other
strides and a second run. bench/gpu_<room>.py has the calls of the other rooms, which run inside `using("triton")`.
tools/gpu_run.sh runs the tests first.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch.nn import functional
from triton.testing import do_bench, do_bench_cudagraph

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).parent / "results" / "gpu.json"
SHAPES = ((1 << 20, 128), (131072, 1000), (131072, 1024), (32768, 4096), (16384, 8192), (8192, 16384), (4096, 32768),
          (8192, 128256))  # fmt: skip
FEW = ((64, 4096), (64, 131072), (1, 131072), (1, 1 << 22))
DTYPES = (torch.float32, torch.bfloat16)
WORKERS = 14
ROOMS = ("linear", "sparse", "sample", "attend")


def scores(rows: int, classes: int, dtype: torch.dtype) -> torch.Tensor:
    """Normal scores."""
    return torch.randn(rows, classes, device="cuda", dtype=dtype)


def microseconds(call: Callable[[], Any]) -> float:
    """The median time of a call."""
    return float(do_bench(call, warmup=5, rep=40, return_mode="median")) * 1e3


def of_graph(call: Callable[[], Any]) -> float:
    """The time of a call that is captured in a CUDA graph, without the time of Python."""
    return float(do_bench_cudagraph(call, rep=20)) * 1e3


def calls(
    z: torch.Tensor, target: torch.Tensor
) -> dict[str, tuple[float, Callable[[], Any], Callable[[], Any] | None]]:
    """The timed calls: passes over the scores, ours, and torch's."""
    ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    p, q = sa.softmax(ours), torch.softmax(theirs, -1)

    def both(loss: Callable[..., Any]) -> None:
        ours.grad = None
        loss(ours, target).backward()

    return {
        "softmax": (2, lambda: sa.softmax(z), lambda: torch.softmax(z, -1)),
        "log_softmax": (2, lambda: sa.log_softmax(z), lambda: torch.log_softmax(z, -1)),
        "logsumexp": (1, lambda: sa.logsumexp(z), lambda: torch.logsumexp(z, -1)),
        "softmax backward": (
            3,
            lambda: torch.autograd.grad(p, ours, z, retain_graph=True),
            lambda: torch.autograd.grad(q, theirs, z, retain_graph=True),
        ),
        "cross_entropy": (1, lambda: sa.cross_entropy(z, target), lambda: functional.cross_entropy(z, target)),
        "cross_entropy and backward": (2, lambda: both(sa.cross_entropy), lambda: both(functional.cross_entropy)),
        "cross_entropy_and_gradient": (2, lambda: sa.cross_entropy_and_gradient(z, target), None),
    }


def prepare(worker: int) -> None:
    """Compile the kernels of some of the shapes. Triton keeps them on disk."""
    jobs = [(classes, dtype) for _, classes in (*SHAPES, *FEW) for dtype in DTYPES]
    for classes, dtype in jobs[worker::WORKERS]:
        z, target = scores(64, classes, dtype), torch.zeros(64, dtype=torch.int64, device="cuda")
        for _, ours, _theirs in calls(z, target).values():
            ours()
    with sa.using("triton"):
        for room in ROOMS:
            importlib.import_module(f"bench.gpu_{room}").prepare(worker, WORKERS)


def of_rooms() -> dict[str, list[dict[str, Any]]]:
    """The times of the other rooms. An error of a room is kept in place of its times."""
    found: dict[str, list[dict[str, Any]]] = {}
    for room in ROOMS:
        found[room] = []
        try:
            with sa.using("triton"):
                for line in importlib.import_module(f"bench.gpu_{room}").lines():
                    print(line, flush=True)
                    found[room].append(line)
        except (RuntimeError, AssertionError) as error:
            found[room].append({"error": str(error)})
    return found


def bits() -> dict[str, int]:
    """How many of 200 rows of each length differ over batches, strides and runs."""
    different = {}
    for classes in (10, 1000, 4096, 16384, 20000, 131072):
        for dtype in DTYPES:
            z, target = scores(200, classes, dtype) * 10, torch.randint(0, classes, (200,), device="cuda")
            p, loss = sa.softmax(z), sa.cross_entropy(z, target, reduction="none")
            wrong = torch.zeros(200, dtype=torch.bool, device="cuda")
            for size in (1, 7, 64):
                parts = [slice(at, at + size) for at in range(0, 200, size)]
                wrong |= (torch.cat([sa.softmax(z[part]) for part in parts]) != p).any(1)
                losses = [sa.cross_entropy(z[part], target[part], reduction="none") for part in parts]
                wrong |= torch.cat(losses) != loss
            wrong |= (p != sa.softmax(z.T.contiguous(), axis=0).T).any(1) | (sa.softmax(z) != p).any(1)
            different[f"{classes} {dtype}".replace("torch.", "")] = int(wrong.sum())
    return different


def speed_of_copy() -> float:
    """The bytes that a copy of 2 GiB reads and writes, in GB/s."""
    large = torch.empty(1 << 29, device="cuda")
    copied = torch.empty_like(large)
    return 2 * large.nbytes / microseconds(lambda: copied.copy_(large)) / 1e3


def overhead() -> dict[str, float]:
    """The time of a call on 8 x 16 scores, which is that of Python and the launch, in microseconds."""
    z, target = scores(8, 16, torch.float32), torch.zeros(8, dtype=torch.int64, device="cuda")
    found = {}
    for name, call in {
        "softmax": lambda: sa.softmax(z),
        "softmax of torch": lambda: torch.softmax(z, -1),
        "cross_entropy": lambda: sa.cross_entropy(z, target),
        "cross_entropy of torch": lambda: functional.cross_entropy(z, target),
    }.items():
        for _ in range(50):
            call()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(500):
            call()
        torch.cuda.synchronize()
        found[name] = (time.perf_counter() - began) / 500 * 1e6
    return found


def peers() -> list[dict[str, Any]]:
    """torch.compile and Liger-Kernel for the largest shape, in bfloat16."""
    z, target = scores(8192, 128256, torch.bfloat16), torch.randint(0, 128256, (8192,), device="cuda")
    found = []
    try:
        from liger_kernel.transformers import LigerCrossEntropyLoss

        logits, loss = z.clone().requires_grad_(), LigerCrossEntropyLoss()
        us = microseconds(lambda: loss(logits * 1, target).backward())
        found.append({"call": "cross_entropy and backward, after a product with 1", "peer": "Liger-Kernel", "us": us})
    except ImportError:
        pass
    for name, call in {
        "softmax": lambda z, _: torch.softmax(z, -1),
        "cross_entropy": functional.cross_entropy,
    }.items():
        compiled = torch.compile(call)
        us = microseconds(lambda compiled=compiled: compiled(z, target))
        found.append({"call": name, "peer": "torch.compile", "us": us})
    return found


def main() -> None:
    """Run everything, and write the results after each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.prepare is not None:
        prepare(options.prepare)
        return
    command = [sys.executable, "-m", "bench.gpu", "--prepare"]
    workers = [subprocess.Popen([*command, str(worker)], env=os.environ) for worker in range(WORKERS)]
    if sum(worker.wait() for worker in workers):
        raise SystemExit("bench.gpu: a kernel could not be compiled")
    speed = speed_of_copy()
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    facts |= {"python": platform.python_version(), "softargmax": sa.__version__, "copy GB/s": round(speed)}
    facts["date"] = time.strftime("%Y-%m-%d")
    results: dict[str, Any] = {"machine": facts, "times": [], "graphs": []}

    def save(**more: Any) -> None:
        results.update(more)
        options.out.write_text(json.dumps(results, indent=1) + "\n")

    save(overhead_us=overhead())
    for rows, classes in SHAPES:
        for dtype in DTYPES:
            z, target = scores(rows, classes, dtype), torch.randint(0, classes, (rows,), device="cuda")
            for name, (passes, ours, theirs) in calls(z, target).items():
                limit, us = passes * z.nbytes / speed / 1e3, microseconds(ours)
                peer = microseconds(theirs) if theirs else None
                line = {"call": name, "shape": [rows, classes], "dtype": str(dtype)[6:], "us": round(us, 1)}
                line |= {"torch us": peer and round(peer, 1), "of copy": round(limit / us, 3)}
                results["times"].append(line)
                print(line, flush=True)
            save()
            del z, ours, theirs
            torch.cuda.empty_cache()
    for rows, classes in FEW:
        z = scores(rows, classes, torch.float32)
        line = {"shape": [rows, classes], "softmax us": of_graph(lambda z=z: sa.softmax(z))}
        line |= {"torch softmax us": of_graph(lambda z=z: torch.softmax(z, -1))}
        line |= {"logsumexp us": of_graph(lambda z=z: sa.logsumexp(z))}
        line |= {"torch logsumexp us": of_graph(lambda z=z: torch.logsumexp(z, -1))}
        results["graphs"].append(line)
        save()
        print(line, flush=True)
    save(rows_of_200_with_other_bits=bits())
    save(rooms=of_rooms())
    save(peers=peers())
    print(json.dumps({key: results[key] for key in ("machine", "overhead_us", "rows_of_200_with_other_bits", "peers")}))


if __name__ == "__main__":
    main()
