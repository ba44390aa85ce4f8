"""Time a last layer whose classes are spread over processes, and the exchange of the gradient of h.

    python -m bench.parallel              2 minutes; writes bench/results/parallel.json

A step is the forward and backward pass of `linear_cross_entropy`, with one thread per process. With W processes, each
has 1 / W of the classes. Its time is compared with a step of one process that has as many classes, and runs alone. The
two take turns. With two processes, the step should take at most STEP times as long. The same steps of all processes at
once, without exchanges, show what the memory and caches that they share cost. A step of one process with all classes is
timed, too. If there are more processes than cores, processes share cores.

Then 8 MB are summed over two processes: by the chain of ordered sums that computes the gradient of h, and by gloo's
all-reduce. The chain should take at most CHAIN times as long.

At last, the memory of a step with a million classes is measured in each process: its peak beyond inputs and gradients.
It should be at most one eighth of the scores of the process's classes, as in one process.

The exit code is 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from bench.machine import Run
from bench.peak import peak_of

import softargmax as sa
from softargmax.core import _native
from softargmax.core.torch_processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable

    Times = dict[str, float]  # median seconds by what was timed
    T = TypeVar("T")

RESULT = Path(__file__).parent / "results" / "parallel.json"
STEP, CHAIN = 1.15, 1.6
ROWS, WIDTH, CLASSES = 1024, 512, 32_768
SUM = 2_000_000  # float32 numbers: 8 MB
PARTS = _native.PARTS  # a last layer computes its rows in so many parts, and so sums the gradient of h
WORLDS = (1, 2, 4)
TURNS = 7
LARGE = 256, 64, 1 << 20  # rows, width and classes of the layer whose memory is measured; no cut divides a block
SHARE = 1 / 8


def in_turns(group: dist.ProcessGroup, sides: dict[str, tuple[bool, Callable[[], object]]]) -> Times:
    """Time calls in turns, all processes from the same moment. (False, call) is made by the first process only.

    A call has ended when it has ended in all processes.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(TURNS + 1):
        for name, (everywhere, call) in sides.items():
            dist.barrier(group)
            start = time.perf_counter()
            if everywhere or group.rank() == 0:
                call()
            took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
            dist.all_reduce(took, dist.ReduceOp.MAX, group)
            if turn:
                seconds[name].append(float(took))
    return {name: statistics.median(found) for name, found in seconds.items()}


def steps(group: dist.ProcessGroup) -> Times:
    """Time a step with spread classes, one with this process's classes only, alone and at once, and one with all."""
    torch.manual_seed(0)
    h, w = torch.randn(ROWS, WIDTH), torch.randn(CLASSES, WIDTH) / WIDTH**0.5
    y = torch.randint(CLASSES, (ROWS,))
    part = w[: CLASSES // group.size()].clone()
    inside = y % part.shape[0]

    def step(loss: Callable[..., Any], w: torch.Tensor) -> Callable[[], object]:
        inputs = (h.clone().requires_grad_(), w.requires_grad_())
        return lambda: torch.autograd.grad(loss(*inputs), inputs)

    spread = step(lambda h, w: sa.parallel.linear_cross_entropy(h, w, y, group=group), part.clone())
    alone = step(lambda h, w: sa.linear_cross_entropy(h, w, inside), part)
    whole = step(lambda h, w: sa.linear_cross_entropy(h, w, y), w)
    sides = {"spread": (True, spread), "part alone": (False, alone), "parts at once": (True, alone)}
    return in_turns(group, {**sides, "whole alone": (False, whole)})


def sums(group: dist.ProcessGroup) -> Times:
    """Time the sum of 8 MB by the chain and by gloo's all-reduce."""
    mine = torch.ones(SUM)

    def chain() -> None:
        processes, totals = Processes(group, (1,) * group.size()), torch.empty_like(mine).chunk(PARTS)
        for total in totals if group.rank() else ():
            processes.expect(memoryview(total.numpy()))
        for total, here in zip(totals, mine.chunk(PARTS), strict=True):
            part = memoryview(total.numpy())
            if group.rank() == 0:
                total.copy_(here)
            else:
                processes.from_previous(part)
                total.add_(here)
            processes.to_next(part)
        processes.all_back()

    return in_turns(
        group, {"chain": (True, chain), "all_reduce": (True, lambda: dist.all_reduce(mine.clone(), group=group))}
    )


def memory(group: dist.ProcessGroup) -> dict[str, int]:
    """The bytes of this process's scores, and the peak of a step beyond inputs and gradients."""
    rows, width, classes = LARGE
    torch.manual_seed(0)
    h = torch.randn(rows, width).requires_grad_()
    w = (torch.randn(classes // group.size(), width) / width**0.5).requires_grad_()
    y = torch.randint(classes, (rows,))

    def step() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(sa.parallel.linear_cross_entropy(h, w, y, group=group), (h, w))

    before, peak, gradients = peak_of(step)
    return {"scores": 4 * rows * w.shape[0], "beyond": peak - before - sum(x.nbytes for x in gradients)}


def times_and_memory(group: dist.ProcessGroup) -> tuple[Times, dict[str, int]]:
    """Return the times of all processes, and the memory of the one that takes most."""
    times = steps(group) | sums(group)
    found: list[Any] = [None] * group.size()
    dist.all_gather_object(found, memory(group), group=group)
    return times, max(found, key=lambda one: one["beyond"])


def serve(rank: int, world: int, store: str, work: Callable[[dist.ProcessGroup], object], results: Any) -> None:
    """Work in one process of a group. Return the result of the first."""
    torch.set_num_threads(1)
    sa.set_num_threads(1)
    wait = dt.timedelta(minutes=2)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world, timeout=wait)
    found = work(dist.new_group())
    if rank == 0:
        results.put(found)
    dist.destroy_process_group()


def in_processes(world: int, work: Callable[[dist.ProcessGroup], T]) -> T:
    """Call `work(group)` in `world` processes of one thread each. Return the result of the first."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (world, str(Path(folder) / "store"), work, results)
        processes = [context.Process(target=serve, args=(rank, *arguments)) for rank in range(world)]
        for process in processes:
            process.start()
        found: T = results.get()
        for process in processes:
            process.join()
    return found


def main() -> int:
    """Measure all numbers of processes, print the ratios, and return the exit code."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    watched = Run()
    found = {world: in_processes(world, times_and_memory) for world in WORLDS}
    ratios = {}
    for world, (times, taken) in found.items():
        step, chain = times["spread"] / times["part alone"], times["chain"] / times["all_reduce"]
        at_once = times["spread"] / times["parts at once"]
        share = taken["beyond"] / taken["scores"]
        speedup = times["whole alone"] / times["spread"]
        ratios[world] = {"step": step, "at once": at_once, "chain": chain, "speedup": speedup, "memory / scores": share}
        print(f"{world} processes: " + ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in times.items()))
        print(f"    spread / part alone {step:.2f}, / parts at once {at_once:.2f}, chain / all_reduce {chain:.2f}")
        print(f"    memory / scores {share:.3f}")
    missed = ratios[2]["step"] > STEP or ratios[2]["chain"] > CHAIN
    missed = missed or any(one["memory / scores"] > SHARE for one in ratios.values())
    record = {
        "machine": watched.machine(),
        "seconds": {world: times for world, (times, _) in found.items()},
        "memory": {world: taken for world, (_, taken) in found.items()},
        "ratios": ratios,
        "limits": {"step": STEP, "chain": CHAIN, "memory / scores": SHARE},
    }
    RESULT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("wrote", RESULT, "MISSED" if missed else "")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
