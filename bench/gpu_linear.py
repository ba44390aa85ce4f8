"""The loss of a last layer on a GPU: times and memory of forward and backward together.

Used by bench/gpu.py. The largest shape is that of Llama 3 with 8,192 tokens. Peers: torch's two calls, compiled too,
Liger-Kernel and Cut Cross-Entropy, if they can be imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from triton.testing import do_bench

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHAPES = ((8192, 4096, 128256), (8192, 2048, 128256), (8192, 2304, 256000), (4096, 4096, 32000), (1000, 768, 50257))
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def layer(n: int, width: int, classes: int, dtype: torch.dtype, device: str = "cuda") -> tuple[Any, Any, Any]:
    """h, W and targets. The scores are as large as those of a trained model."""
    g = torch.Generator(device).manual_seed(0)
    h = torch.randn(n, width, device=device, dtype=dtype, generator=g)
    w = torch.randn(classes, width, device=device, dtype=dtype, generator=g) * (3 / width**0.5)
    return h, w, torch.randint(0, classes, (n,), device=device, generator=g)


def both(loss: Callable[..., Any], h: Any, w: Any, target: Any) -> tuple[Any, Any, Any]:
    """The loss, and its gradients with respect to h and W."""
    h, w = h.detach().requires_grad_(), w.detach().requires_grad_()
    found = loss(h, w, target)
    return found.detach(), *torch.autograd.grad(found, (h, w))


def eager(h: Any, w: Any, target: Any) -> Any:
    """torch's two calls."""
    return functional.cross_entropy((h @ w.t()).float(), target)


def prepare(worker: int, workers: int) -> None:
    """Compile the kernels of some of the shapes."""
    jobs = [(shape, dtype) for shape in SHAPES for dtype in DTYPES]
    for (n, width, classes), dtype in jobs[worker::workers]:
        h, w, target = layer(min(n, 1024), width, classes, dtype)
        both(sa.linear_cross_entropy, h, w, target)
        sa.linear_cross_entropy(h, w, target)
        sa.linear_cross_entropy(h, w, target, bias=w[:, 0], reduction="none", label_smoothing=0.1)


def peers() -> dict[str, Callable[..., Any]]:
    """The peers that can be imported."""
    found: dict[str, Callable[..., Any]] = {"torch": eager, "torch.compile": torch.compile(eager)}
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Liger

        found["Liger-Kernel"] = lambda h, w, target: Liger.apply(h, w, target)[0]
    except ImportError:
        pass
    try:
        from cut_cross_entropy import linear_cross_entropy

        found["Cut Cross-Entropy"] = linear_cross_entropy
    except ImportError:
        pass
    return found


def milliseconds(call: Callable[[], Any]) -> float:
    """The median time of a call."""
    return float(do_bench(call, warmup=20, rep=120, return_mode="median"))


def measured(call: Callable[..., Any], h: Any, w: Any, target: Any) -> tuple[float | str, int | None]:
    """The time of forward and backward in microseconds, or an error, and the memory beyond inputs in MiB."""
    try:
        both(call, h, w, target)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        both(call, h, w, target)
        memory = (torch.cuda.max_memory_allocated() - before) >> 20
        return round(milliseconds(lambda: both(call, h, w, target)) * 1e3, 1), memory
    except (RuntimeError, AttributeError, TypeError, ImportError) as error:
        return f"{type(error).__name__}: {error}"[:80], None


def lines() -> Iterator[dict[str, Any]]:
    """Times of forward and backward, and the memory beyond inputs, which includes the gradients."""
    for n, width, classes in SHAPES:
        h, w, target = layer(n, width, classes, torch.bfloat16)
        line: dict[str, Any] = {"call": "linear_cross_entropy and backward", "shape": [n, width, classes]}
        line |= {"dtype": "bfloat16", "products us": round(_products(h, w) * 1e3, 1)}
        for name, call in {"softargmax": sa.linear_cross_entropy, **peers()}.items():
            line[f"{name} us"], line[f"{name} MiB"] = measured(call, h, w, target)
        for name, call in {"softargmax": sa.linear_cross_entropy, "torch": eager}.items():
            line[f"forward of {name} us"] = _forward(call, h, w, target)
        yield line


def _forward(call: Callable[..., Any], h: Any, w: Any, target: Any) -> float:
    """The time of the loss without gradients, in microseconds."""
    with torch.no_grad():
        return round(milliseconds(lambda: call(h, w, target)) * 1e3, 1)


def _products(h: Any, w: Any) -> float:
    """The time of the three products alone, of all rows at once: a limit for every implementation, in ms."""
    z = h @ w.t()
    return milliseconds(lambda: (torch.mm(h, w.t(), out=z), z @ w, z.t() @ h))
