"""Time the CUDA kernels of the room `sample`, draws and filters, beside torch and FlashInfer.

`lines` yields one dict per timed line. It takes a device, so that it can be tried in Triton's interpreter with CPU
tensors and small shapes. tests/triton/test_device_sample.py compares the results with those of the CPU.
"""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

import torch
from triton.testing import do_bench

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DTYPES = (torch.float32, torch.bfloat16)
TIMES = ((131072, 128), (131072, 1000), (8192, 32000), (512, 128256), (4096, 128256), (64, 128256), (1, 128256))
CALLS: dict[str, dict[str, Any]] = {
    "top_p 0.9": {"top_p": 0.9},
    "top_k 50": {"top_k": 50},
    "top_k 50, top_p 0.9": {"top_k": 50, "top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
}
FILTERED = ((128, 128256), (512, 131072), (1, 128256), (4096, 4096))


def scores(rows: int, classes: int, dtype: torch.dtype, device: str, spread: float = 1.0) -> torch.Tensor:
    """Normal scores, the same on all devices."""
    made = torch.randn(rows, classes, generator=torch.Generator(device).manual_seed(rows + classes), device=device)
    return (made * spread).to(dtype)


def sized(rows: int, classes: int, most: int) -> tuple[int, int]:
    """A shape of at most that many scores. It has at least 8 rows, if there were as many."""
    classes = min(classes, max(most // min(rows, 8), 1))
    return min(rows, most // classes), classes


def ours(function: Callable[..., Any], z: torch.Tensor, **options: Any) -> Any:
    """The result of the CUDA kernel, or of the interpreter for a tensor in CPU memory."""
    with sa.using("triton"):
        return function(z, **options)


def microseconds(call: Callable[[], Any], device: str) -> float:
    """The median time of a call."""
    if device == "cuda":
        return round(float(do_bench(call, warmup=5, rep=30, return_mode="median")) * 1e3, 1)
    began = time.perf_counter()
    call()
    return round((time.perf_counter() - began) * 1e6, 1)


def multinomial(z: torch.Tensor) -> torch.Tensor:
    """A draw by torch.multinomial."""
    return torch.multinomial(torch.softmax(z.float(), -1), 1)


def race(z: torch.Tensor) -> torch.Tensor:
    """A draw by exponential noise, as vLLM does it."""
    p = torch.softmax(z, -1, dtype=torch.float32)
    return p.div_(torch.empty_like(p).exponential_(1.0)).argmax(-1)


def sorted_top_p(z: torch.Tensor, p: float) -> torch.Tensor:
    """Top-p as in Hugging Face transformers: a sort of each row."""
    ordered, order = torch.sort(z, descending=False)
    remove = ordered.float().softmax(-1).cumsum(-1) <= 1.0 - p
    remove[..., -1:] = False
    return z.masked_fill(remove.scatter(1, order, remove), -torch.inf)


def top_k(z: torch.Tensor, k: int) -> torch.Tensor:
    """Top-k as in Hugging Face transformers."""
    return z.masked_fill(z < torch.topk(z, k)[0][..., -1:], -torch.inf)


def flashinfer() -> Any:
    """FlashInfer's functions, if it can be imported."""
    try:
        return importlib.import_module("flashinfer.sampling")
    except ImportError:
        return None


def lines(device: str = "cuda", most: int = 1 << 40) -> Iterator[dict[str, Any]]:
    """Time draws, and draws after filters."""
    for shape in TIMES:
        for dtype in DTYPES:
            yield from draws_of(scores(*sized(*shape, most), dtype, device), device)
    for shape in FILTERED:
        for dtype in DTYPES:
            for spread in (1.0, 3.0):
                z = scores(*sized(*shape, most), dtype, device, spread)
                for line in filtered_draws_of(z, device):
                    yield line | {"spread": spread}


def named(call: str, z: torch.Tensor) -> dict[str, Any]:
    """The first entries of a line."""
    return {"call": call, "shape": list(z.shape), "dtype": str(z.dtype)[6:]}


def draws_of(z: torch.Tensor, device: str) -> Iterator[dict[str, Any]]:
    """Time draws from scores. `read` is a reduction that reads the scores once."""

    def us(call: Callable[[], Any]) -> float:
        return microseconds(call, device)

    yield named("categorical", z) | {
        "us": us(lambda: ours(sa.categorical, z, seed=1)),
        "read": us(lambda: z.amax(-1)),
        "multinomial": us(lambda: multinomial(z)),
        "exponential": us(lambda: race(z)),
    }
    greedy = us(lambda: ours(sa.categorical, z, temperature=0.0, seed=1))
    yield named("categorical T=0", z) | {"us": greedy, "argmax": us(lambda: z.argmax(-1))}
    yield named("categorical_with_logprob", z) | {"us": us(lambda: ours(sa.categorical_with_logprob, z, seed=1))}


def filtered_draws_of(z: torch.Tensor, device: str) -> Iterator[dict[str, Any]]:
    """Time draws after filters, and the filters alone (`mask`)."""
    peer = flashinfer() if device == "cuda" else None
    peers: dict[str, Callable[[], Any]] = {
        "top_p 0.9": lambda: sorted_top_p(z, 0.9),
        "top_k 50": lambda: top_k(z, 50),
        "top_k 50, top_p 0.9": lambda: sorted_top_p(top_k(z, 50), 0.9),
    }
    for name, options in CALLS.items():

        def draw(options: dict[str, Any] = options) -> Any:
            return ours(sa.categorical, z, seed=1, **options)

        def mask(options: dict[str, Any] = options) -> Any:
            return ours(sa.filter_scores, z, **options)

        line = named(name, z) | {"us": microseconds(draw, device), "mask": microseconds(mask, device)}
        if name in peers:
            filtered = peers[name]
            line["torch"] = microseconds(lambda filtered=filtered: multinomial(filtered()), device)  # type: ignore[misc]
        if peer and name == "top_p 0.9":
            line["flashinfer"] = microseconds(
                lambda: peer.top_p_sampling_from_probs(torch.softmax(z.float(), -1), 0.9), device
            )
        yield line


def prepare(worker: int, workers: int, device: str = "cuda") -> None:
    """Compile a share of the kernels. Triton keeps them on disk."""
    jobs: list[tuple[Callable[..., Any], tuple[int, int], torch.dtype, dict[str, Any]]] = []
    for dtype in DTYPES:
        for rows, classes in TIMES:
            shape = min(rows, 2048), classes
            jobs += [(sa.categorical, shape, dtype, {"seed": 1, "temperature": t}) for t in (1.0, 0.0)]
            jobs.append((sa.categorical_with_logprob, shape, dtype, {"seed": 1}))
        for rows, classes in FILTERED:
            for options in CALLS.values():
                jobs.append((sa.categorical, (min(rows, 512), classes), dtype, {"seed": 1, **options}))
                jobs.append((sa.filter_scores, (min(rows, 512), classes), dtype, options))
    for function, shape, dtype, options in jobs[worker::workers]:
        ours(function, scores(*shape, dtype, device), **options)


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
