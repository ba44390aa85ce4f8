"""Compile the CUDA kernels for GPUs that are not there, and check the instructions.

    python -m tests.triton.compile_check [--capabilities 80 90 100 120]      4 minutes; prints a table

No kernel may use more shared memory than a block has, add floats with atomics, flush subnormals
outside of 2^x, or contain products and sums that the compiler may fuse. On the GPU for which the sizes of blocks were
chosen, no kernel may spill registers; spills on others are listed. The exit code is 1 if a kernel breaks a rule.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
import triton
from tests.triton.compiled import Launch, Report, recorded, report

from softargmax.attend import triton_kernels as attend_kernels
from softargmax.attend.arguments import Attention, AttentionVjp, Options
from softargmax.core.scale import UNIT, Scale
from softargmax.loss import triton_kernels as loss_kernels
from softargmax.loss.arguments import CrossEntropy, LossOptions
from softargmax.normalize import operations, triton_kernels

SHAPES = ((4096, 100), (4096, 1000), (4096, 4096), (4096, 16384), (64, 131072))


def launches() -> list[Launch]:
    """The launches of every kernel, with each option at least once."""
    with recorded(triton_kernels, loss_kernels, attend_kernels) as found:
        for shape in SHAPES:
            for dtype in (torch.float32, torch.bfloat16):
                z = torch.empty(shape, dtype=dtype, device="meta")
                for more in _calls_of(z):
                    more()
        for dtype, width in ((torch.bfloat16, 64), (torch.bfloat16, 128), (torch.bfloat16, 256), (torch.float32, 128)):
            _attend(dtype, width)
    return found


def _attend(dtype: torch.dtype, width: int) -> None:
    """Launch the kernels of attention: causal, and with all options."""

    def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    for queries in (1, 4096):
        q, k = empty(4, 16, queries, width), empty(4, 4, 4096, width)
        lse, none = empty(4, 16, queries, dtype=torch.float64), empty(0)
        plain = Options(0.1, None, None, None, 1.0, None, None, None, 0, None, 0.0)
        scale, head = empty(4, 16, queries, 1), empty(16, 1, 1, dtype=torch.float32)
        mask, bias = empty(queries, 4096, dtype=torch.bool), empty(4, 16, queries, 4096)
        lengths = empty(4, 1, 1, 1, dtype=torch.int64)
        every = Options(scale, mask, bias, head, 1.0, lengths, None, 100, 0, 30.0, 0.0, head)
        for options in (plain, every):
            i = Attention(q, k, k, options)
            attend_kernels.attention(i, (empty(*q.shape), lse))
            more = (none,) * 4 if options is plain else (empty(*scale.shape), none, none, none)
            if queries > 1:
                results = (empty(*q.shape), empty(*k.shape), empty(*k.shape), *more)
                attend_kernels.attention_vjp(AttentionVjp(q, None, i, q, lse, False), results)


def _calls_of(z: torch.Tensor) -> Iterator[Any]:
    out, lse = torch.empty_like(z), z.new_empty((len(z), 1), dtype=torch.float32)
    mask = torch.empty_like(z, dtype=torch.bool)
    per_row = Scale(z.new_empty((len(z), 1), dtype=torch.float64), z.new_empty((len(z), 1), dtype=torch.float64))
    plain = operations.Scores(z, None, UNIT, (1,), z.dtype)
    for i in (plain, plain._replace(beta=Scale(0.3, 1e-9)), plain._replace(where=mask, beta=per_row)):
        yield lambda i=i: triton_kernels.softmax(i, (out, lse))
        yield lambda i=i: triton_kernels.softmax(i, (out, None))
        yield lambda i=i: triton_kernels.log_softmax(i, (out, None))
        reduced = operations.LogSumExp(z, None, i.where, i.beta, (1,), torch.float32)
        yield lambda reduced=reduced: triton_kernels.logsumexp(reduced, (lse,))
    yield lambda: triton_kernels.softmax_vjp(operations.SoftmaxVjp(out, lse, z, UNIT, (1,), z.dtype), (out,))
    yield lambda: triton_kernels.log_softmax_vjp(operations.LogSoftmaxVjp(out, lse, z, UNIT, (1,), z.dtype), (out,))
    target, weight = z.new_empty(len(z), dtype=torch.int64), z.new_empty((1, z.shape[1]), dtype=torch.float32)
    seed = z.new_empty((len(z), 1), dtype=torch.float64)
    options = LossOptions(target, None, None, None, UNIT, -100, 0.0, 0.0, 0.0)
    scaled = options._replace(where=mask, beta=Scale(0.3, 1e-9), z_loss=1e-4)
    for chosen in (options, scaled, options._replace(weight=weight, label_smoothing=0.1)):
        i = CrossEntropy(z, chosen, (1,), 1, False, torch.float32)
        yield lambda i=i: loss_kernels.run(i)
        yield lambda i=i: loss_kernels.run(i, seed, out, losses=False)
        yield lambda i=i: loss_kernels.run(i, seed, out)


def _report(job: tuple[int, int]) -> Report:
    return report(launches()[job[0]], job[1])


def main() -> int:
    """Compile everything, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capabilities", type=int, nargs="+", default=[80, 90, 100, 120])
    parser.add_argument("--every", type=int, default=1, help="compile one launch in this many")
    options = parser.parse_args()
    chosen = range(0, len(launches()), options.every)
    jobs = [(at, capability) for capability in options.capabilities for at in chosen]
    print(f"Triton {triton.__version__}: {len(jobs)} kernels")
    broken = 0
    with ProcessPoolExecutor(2) as pool:
        for (_, capability), found in zip(jobs, pool.map(_report, jobs, chunksize=8), strict=True):
            if found.broken or found.spills:
                rules = ", ".join(found.broken) or "no rule"
                print(f"sm_{capability} {found.name}: {found.spills} spills; breaks: {rules}")
            broken += bool(found.broken)
    print(f"{broken} of them break a rule")
    return int(broken > 0)


if __name__ == "__main__":
    raise SystemExit(main())
