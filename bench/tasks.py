"""Measure the promises of docs/tasks: memory and time against plain torch, and times of last layers by size.

    python -m bench.tasks              5 minutes on one core; writes bench/results/tasks.json

Each side of a task runs in its own process, on one thread. Its memory is the peak resident memory minus the memory
before the call. The inputs exist before the call, so they are not counted. Its CPU time is the smallest of three
further runs. Both sides must give the same loss. The times of last layers are medians of CPU time, from sides that take
turns in one process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from bench.machine import machine
from bench.peak import peak_of
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import softargmax as sa
from softargmax.measure import OURS

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[[], tuple[Any, ...]]

RESULT = Path(__file__).parent / "results" / "tasks.json"
PLAIN = "plain"
TOKENS, WIDTH, CLASSES = 2048, 512, 32_768  # 256 MiB of scores, as in every task
PAIRS, HEADS, LENGTH, WINDOW = 8192, 4, 4096, 255
LAYERS = ((64, 32, 500), (256, 128, 2000), (512, 256, 8000), (1024, 512, 8000), (1024, 512, 32_768))
# Number of timed runs of a layer whose size N D K is at most the key. Layers larger than all keys are timed 7 times.
SAMPLES = {100_000_000: 41, 10_000_000_000: 15}


def layer(tokens: int = TOKENS, width: int = WIDTH, classes: int = CLASSES) -> tuple[torch.Tensor, ...]:
    """Return hidden vectors, a last layer and targets."""
    torch.manual_seed(0)
    h, w = torch.randn(tokens, width), torch.randn(classes, width) / width**0.5
    return h.requires_grad_(), w.requires_grad_(), torch.randint(classes, (tokens,))


def last_layer(side: str, small: bool) -> Run:
    """Return a training step that computes the loss and its gradients."""
    h, w, y = layer(*([4, 8, 16] if small else []))
    loss = sa.linear_cross_entropy if side == OURS else lambda h, w, y: functional.cross_entropy(h @ w.T, y)
    return lambda: with_gradients(loss(h, w, y), h, w)


def preference(side: str, small: bool) -> Run:
    """Return a step of DPO: log-probabilities of 16 answers under a policy and a reference, and the gradients."""
    h, w, y = layer(*([16, 8, 16] if small else []))
    h_ref, w_ref = (h + 0.01).detach(), w.detach()
    plain = lambda h, w: (h @ w.T).log_softmax(-1).gather(-1, y[:, None])[:, 0]  # noqa: E731
    of_tokens = (lambda h, w: sa.linear_selected_log_softmax(h, w, y)) if side == OURS else plain

    def step() -> tuple[Any, ...]:
        with torch.no_grad():
            reference = of_tokens(h_ref, w_ref).reshape(16, -1).sum(1)
        margin = of_tokens(h, w).reshape(16, -1).sum(1) - reference
        chosen, rejected = margin.chunk(2)
        return with_gradients(-functional.logsigmoid(0.1 * (chosen - rejected)).mean(), h, w)

    return step


def policy(side: str, small: bool) -> Run:
    """Return a step of GRPO with an entropy bonus.

    Our side processes 256 tokens at a time, and recomputes their scores in the backward pass.
    """
    h, w, y = layer(*([16, 8, 16] if small else []))
    old = torch.full(y.shape, -11.0)
    advantage = torch.linspace(-1, 1, y.numel())

    def of_part(h: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        terms = sa.cross_entropy_terms(h @ w.T, y, reduction="none")
        return -terms.loss, terms.entropy

    def ours() -> tuple[torch.Tensor, ...]:
        parts = zip(h.split(256), y.split(256), strict=True)
        found = [checkpoint(of_part, *part, use_reentrant=False) for part in parts]
        return tuple(map(torch.cat, zip(*found, strict=True)))

    def plain() -> tuple[torch.Tensor, ...]:
        log_p = (h @ w.T).log_softmax(-1)
        return log_p.gather(-1, y[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)

    def step() -> tuple[Any, ...]:
        log_p, entropy = (ours if side == OURS else plain)()
        ratio = (log_p - old).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        return with_gradients(-(gain + 0.01 * entropy).mean(), h, w)

    return step


def contrastive(side: str, small: bool) -> Run:
    """Return a step of CLIP in both directions, with a learned scale."""
    torch.manual_seed(0)
    one, two = (functional.normalize(torch.randn(16 if small else PAIRS, 256)).requires_grad_() for _ in range(2))
    log_scale, y = torch.tensor(2.66, requires_grad=True), torch.arange(len(one))

    def ours() -> torch.Tensor:
        scale = log_scale.exp()
        loss: torch.Tensor = sa.linear_cross_entropy(scale * one, two, y) + sa.linear_cross_entropy(scale * two, one, y)
        return loss / 2

    def plain() -> torch.Tensor:
        z = log_scale.exp() * one @ two.T
        return (functional.cross_entropy(z, y) + functional.cross_entropy(z.T, y)) / 2

    return lambda: with_gradients((ours if side == OURS else plain)(), one, two, log_scale)


def attention(side: str, small: bool) -> Run:
    """Return a step of attention with a window and a sink, and its gradients. The plain side computes all scores."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, 16 if small else LENGTH, 64, requires_grad=True) for _ in range(3))
    sink = torch.zeros(HEADS, requires_grad=True)

    def plain() -> torch.Tensor:
        length = q.shape[-2]
        seen = torch.ones(length, length, dtype=torch.bool).tril().triu(-WINDOW)
        z = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
        extra = sink[:, None, None].expand(*z.shape[:-1], 1)
        return torch.cat([z, extra], -1).softmax(-1)[..., :-1] @ v

    ours = lambda: sa.attention(q, k, v, causal=True, window=(WINDOW, 0), sink=sink)  # noqa: E731
    return lambda: with_gradients((ours if side == OURS else plain)().square().mean(), q, k, v, sink)


def file(side: str, small: bool) -> Run:
    """Return a step that writes the softmax of a file to another file."""
    from scipy import special

    folder = tempfile.TemporaryDirectory()  # removed at the end of the process
    source, target = (Path(folder.name) / f"{name}.npy" for name in ("scores", "probabilities"))
    shape = (16, 16) if small else (TOKENS, CLASSES)
    scores = np.lib.format.open_memmap(source, mode="w+", dtype=np.float32, shape=shape)
    for row in range(len(scores)):
        scores[row] = np.random.default_rng(row).standard_normal(shape[1], np.float32)
    scores.flush()
    del scores

    def step() -> tuple[Any, ...]:
        if side == OURS:
            sa.stream.softmax(source, target, memory=16 << 20)
        else:
            np.save(target, special.softmax(np.load(source), axis=-1))
        return (float(np.load(target, mmap_mode="r")[-1].max()), folder)

    return step


STEP = "2048 tokens, width 512, 32768 classes"
TASKS = {
    "last layer": (last_layer, f"loss and gradients, {STEP}"),
    "DPO": (preference, f"DPO, {STEP}"),
    "GRPO": (policy, f"GRPO with entropy, {STEP}"),
    "CLIP": (contrastive, "CLIP and gradients, 8192 pairs, width 256"),
    "attention": (attention, "attention and gradients, 4 heads, 4096 tokens, width 64, window 256"),
    "file": (file, "softmax of a file, 2048 rows of 32768"),
}


def with_gradients(loss: torch.Tensor, *inputs: torch.Tensor) -> tuple[Any, ...]:
    """Return the loss as a number, and its gradients."""
    return (loss.item(), *torch.autograd.grad(loss, inputs))


def one_side(task: str, side: str) -> dict[str, float]:
    """Measure one side of a task in this process, after small calls that load modules."""
    torch.set_num_threads(1)
    sa.set_num_threads(1)
    make, _ = TASKS[task]
    make(side, small=True)()
    step = make(side, small=False)
    before, peak, found = peak_of(step)
    value = found[0]
    del found
    return {"beyond": peak - before, "cpu_seconds": min(cpu_time(step) for _ in range(3)), "value": value}


def cpu_time(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def tasks() -> dict[str, dict[str, Any]]:
    """Measure both sides of every task."""
    found = {}
    for task, (_, what) in TASKS.items():
        sides = {}
        for side in (PLAIN, OURS):
            command = [sys.executable, "-m", "bench.tasks", task, side]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            one = sides[side] = json.loads(printed)
            print(f"{task}, {side}: {one['beyond'] / 2**20:.0f} MiB, {one['cpu_seconds']:.2f} s", flush=True)
        plain, ours = (side["value"] for side in sides.values())
        if abs(plain - ours) > 1e-5 * abs(plain):
            raise SystemExit(f"{task}: expected equal results, got {plain} and {ours}")
        found[task] = {"what": what, "sides": sides}
    return found


def layers() -> list[dict[str, Any]]:
    """Time a training step of last layers of several sizes. The three sides take turns. Return the results."""
    torch.set_num_threads(1)
    sa.set_num_threads(1)
    found = []
    for shape in LAYERS:
        h, w, y = layer(*shape)
        sides = {
            PLAIN: lambda h=h, w=w, y=y: with_gradients(functional.cross_entropy(functional.linear(h, w), y), h, w),
            "cross_entropy": lambda h=h, w=w, y=y: with_gradients(sa.cross_entropy(functional.linear(h, w), y), h, w),
            OURS: lambda h=h, w=w, y=y: with_gradients(sa.linear_cross_entropy(h, w, y), h, w),
        }
        size = shape[0] * shape[1] * shape[2]
        count = next((count for most, count in SAMPLES.items() if size <= most), 7)
        repeats = max(1, 30_000_000 // size)
        samples: dict[str, list[float]] = {side: [] for side in sides}
        for turn in range(count + 1):
            for side in sorted(sides, reverse=bool(turn % 2)):
                step = sides[side]
                spent = cpu_time(lambda step=step, n=repeats: [step() for _ in range(n)]) / repeats
                samples[side] += [spent] if turn else []  # the first turn is a warm-up
        medians = {side: statistics.median(times) for side, times in samples.items()}
        print(f"{'x'.join(map(str, shape))}:", *(f"{side} {1e3 * median:.2f} ms" for side, median in medians.items()))
        found.append({"shape": shape, "cpu_seconds": medians, "samples": count})
    return found


def main() -> int:
    """Measure everything, or one side of a task if the command line names it. Return the exit code."""
    if sys.argv[1:]:
        print(json.dumps(one_side(*sys.argv[1:])))
        return 0
    record = {"machine": machine(), "scores": 4 * TOKENS * CLASSES, "tasks": tasks(), "layers": layers()}
    RESULT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("wrote", RESULT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
