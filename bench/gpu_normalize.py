"""Time the CUDA kernels of normalize and of the loss on the GPU of this machine.

`lines` times calls beside torch. `prepare` compiles a share of the kernels, so that several processes compile all.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

import softargmax as sa
from softargmax.core import triton_launch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHAPES = ((1 << 20, 128), (131072, 1000), (131072, 1024), (32768, 4096), (16384, 8192), (8192, 16384), (4096, 32768),
          (8192, 128256))  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16)
MANY = 2 * triton_launch.AT_ONCE
"""Rows for which each program has a row of its own."""


def calls(z: torch.Tensor, target: torch.Tensor) -> dict[str, tuple[float, Callable[[], Any], Any]]:
    """The timed calls: passes over the scores, ours, and torch's."""
    ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    p, q = sa.softmax(ours), torch.softmax(theirs, -1)

    def both(loss: Callable[..., Any], of: torch.Tensor) -> None:
        of.grad = None
        loss(of, target).backward()

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
        "cross_entropy and backward": (
            2,
            lambda: both(sa.cross_entropy, ours),
            lambda: both(functional.cross_entropy, theirs),
        ),
        "cross_entropy_and_gradient": (2, lambda: sa.cross_entropy_and_gradient(z, target), None),
    }


VARIANTS = {
    "2 stages": {"STAGES": 2}, "4 stages": {"STAGES": 4}, "16 warps": {"LONG_WARPS": 16},
    "16 warps, 2 stages": {"LONG_WARPS": 16, "STAGES": 2}, "by turns": {"MANY": 1 << 30},
}  # fmt: skip
"""Other settings for long rows."""


@contextmanager
def variant(name: str) -> Iterator[None]:
    """Use other settings for long rows."""
    kept = {one: getattr(triton_launch, one) for one in VARIANTS[name]}
    for one, value in VARIANTS[name].items():
        setattr(triton_launch, one, value)
    try:
        yield
    finally:
        for one, value in kept.items():
            setattr(triton_launch, one, value)


def jobs(shapes: Any) -> list[tuple[int, int, torch.dtype]]:
    return [(rows, classes, dtype) for rows, classes in shapes for dtype in DTYPES]


def prepare(worker: int, workers: int, device: str = "cuda", shapes: Any = SHAPES) -> None:
    """Compile the kernels of some of the shapes. Triton keeps them on disk."""
    for rows, classes, dtype in jobs(shapes)[worker::workers]:
        few = min(rows, MANY if classes > triton_launch.PART else 64)
        z, target = (
            torch.randn(few, classes, device=device, dtype=dtype),
            torch.zeros(few, dtype=torch.int64, device=device),
        )
        for _, ours, _theirs in calls(z, target).values():
            ours()
        if classes > 1 << 14:
            for name in VARIANTS:
                with variant(name):
                    for _, ours, _theirs in calls(z, target).values():
                        ours()


def lines(device: str = "cuda", shapes: Any = SHAPES) -> Iterator[dict[str, Any]]:
    """Time the calls, in microseconds, and as a fraction of the speed of a copy."""
    from triton.testing import do_bench

    def microseconds(call: Callable[[], Any]) -> float:
        return float(do_bench(call, warmup=5, rep=30, return_mode="median")) * 1e3

    large = torch.empty(1 << 29, device=device)
    speed = 2 * large.nbytes / microseconds(large.clone) / 1e3
    yield {"call": "copy", "GB/s": round(speed)}
    for rows, classes, dtype in jobs(shapes):
        z = torch.randn(rows, classes, device=device, dtype=dtype)
        target = torch.randint(0, classes, (rows,), device=device)
        for name, (passes, ours, theirs) in calls(z, target).items():
            us = microseconds(ours)
            line = {"call": name, "shape": [rows, classes], "dtype": str(dtype)[6:], "us": round(us, 1)}
            line["of copy"] = round(passes * z.nbytes / speed / 1e3 / us, 3)
            if theirs is not None:
                line["torch"] = round(microseconds(theirs), 1)
            yield line
            if classes > 1 << 14:
                for other in VARIANTS:
                    with variant(other):
                        us = microseconds(ours)
                    yield {**line, "variant": other, "us": round(us, 1), "of copy": line["us"] * line["of copy"] / us}
        del z, ours, theirs
        torch.cuda.empty_cache()
