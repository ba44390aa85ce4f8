"""Time the CUDA kernels of attention beside torch's flash and cuDNN attention.

    python -m bench.gpu_attend            2 minutes

Single kernels are also timed with other sizes of tiles. tests/triton/test_device_attend.py checks the results.
"""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Any

import torch
from tests.triton.attend_truth import cases, found
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from triton.testing import do_bench

import softargmax as sa
from softargmax.attend import triton_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

BF16 = torch.bfloat16
PEERS = {"torch flash": SDPBackend.FLASH_ATTENTION, "torch cuDNN": SDPBackend.CUDNN_ATTENTION}
LENGTHS = (1024, 4096, 8192)
WIDTHS = (64, 128)
FORWARD = {
    64: ((128, 128, 8, 3), (128, 128, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3), (64, 128, 4, 3)),
    128: ((128, 64, 8, 3), (128, 128, 8, 2), (128, 64, 8, 4), (64, 64, 4, 3), (128, 64, 8, 2)),
}
"""Candidates for (queries per tile, keys per tile, warps, stages)."""
BACKWARD = {
    64: (((128, 64, 8, 3), (64, 128, 8, 2)), ((128, 128, 8, 2), (64, 64, 4, 2)), ((128, 64, 8, 2), (64, 128, 8, 3)),
         ((128, 64, 4, 3), (128, 64, 8, 2))),
    128: (((128, 64, 8, 2), (32, 128, 8, 2)), ((64, 64, 4, 2), (64, 128, 8, 2)), ((128, 32, 8, 3), (32, 128, 8, 3)),
          ((128, 64, 8, 3), (64, 64, 8, 2)), ((128, 128, 8, 1), (64, 64, 4, 2))),
}  # fmt: skip
SPLIT = (
    (16, 64, 4, 3),
    (16, 64, 4, 2),
    (16, 64, 2, 3),
    (16, 32, 2, 3),
    (16, 32, 1, 3),
    (16, 128, 4, 2),
    (16, 32, 4, 4),
)
DECODE = ((16, 8192), (64, 8192), (16, 32768), (64, 32768))


def microseconds(call: Callable[[], Any]) -> float | None:
    """The median time of a call, or None if it fails."""
    try:
        return round(float(do_bench(call, warmup=10, rep=30, return_mode="median")) * 1e3, 1)
    except Exception as error:  # noqa: BLE001 a peer may refuse the shape, or a tile may not fit
        print(f"    failed: {str(error)[:150]}", flush=True)
        return None


def _shaped(width: int, length: int, device: Any) -> list[Tensor]:
    return inputs_on(
        device, (4, 16, length, width), (4, 4, length, width), (4, 4, length, width), (4, 16, length, width)
    )


def inputs_on(device: Any, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Random tensors in bfloat16."""
    return [torch.randn(shape, device=device, dtype=BF16) for shape in shapes]


def _calls(q: Tensor, k: Tensor, v: Tensor, g: Tensor, causal: bool) -> dict[str, dict[str, Callable[[], Any]]]:
    """Forward, backward, and both, each by us and by peers."""
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]

    def peer(backend: Any, *given: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(*given, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    def both(call: Callable[..., Tensor]) -> Any:
        return torch.autograd.grad(call(*leaves), leaves, g)

    def ours(*given: Tensor) -> Tensor:
        return sa.attention(*given, causal=causal)

    calls = {"us": ours} | {name: (lambda *x, backend=backend: peer(backend, *x)) for name, backend in PEERS.items()}
    found: dict[str, dict[str, Callable[[], Any]]] = {"forward": {}, "backward": {}, "forward and backward": {}}
    for name, call in calls.items():
        found["forward"][name] = lambda call=call: call(q, k, v)
        found["forward and backward"][name] = lambda call=call: both(call)
        with contextlib.suppress(Exception):
            out = call(*leaves)
            found["backward"][name] = lambda out=out: torch.autograd.grad(out, leaves, g, retain_graph=True)
    return found


def tflops(width: int, length: int, causal: bool, name: str) -> float:
    """The operations of a call, in units of 10^12. A backward pass counts as 5 products, as is usual."""
    products = {"forward": 2, "backward": 5, "forward and backward": 7}[name]
    return products * 2.0 * 4 * 16 * length * length * width / (2 if causal else 1) / 1e12


def lines(device: Any = "cuda", lengths: tuple[int, ...] = LENGTHS) -> Iterator[dict[str, Any]]:
    """One dict per timed call."""
    for width in WIDTHS:
        for length in lengths:
            for causal in (False, True):
                for name, calls in _calls(*_shaped(width, length, device), causal).items():
                    times = {by: microseconds(call) for by, call in calls.items()}
                    line = {
                        "call": f"attention {name}",
                        "shape": [4, 16, 4, length, width],
                        "causal": causal,
                        "dtype": "bfloat16",
                    }
                    line |= {"us": times.pop("us", None), "peers": times}
                    if line["us"]:
                        line["TFLOP/s"] = round(tflops(width, length, causal, name) / line["us"] * 1e6)
                    yield line
                gc.collect()
    yield from decoding(device)
    yield from tiles(device, lengths[-2] if len(lengths) > 1 else lengths[0])


def decoding(device: Any, sizes: tuple[tuple[int, int], ...] = DECODE) -> Iterator[dict[str, Any]]:
    """One query, 64 heads, 8 heads of keys. `of copy` is the speed of reading keys divided by that of a copy."""
    large = torch.empty((1 << 28) if torch.device(device).type == "cuda" else 1 << 10, device=device)
    copied = torch.empty_like(large)
    speed = 2 * large.nbytes / (microseconds(lambda: copied.copy_(large)) or 1.0)
    for width in (128, 64):
        for entries, keys in sizes:
            given = inputs_on(device, (entries, 64, 1, width), (entries, 8, keys, width), (entries, 8, keys, width))
            times = {"us": microseconds(lambda given=given: sa.attention(*given))}

            def peer(backend: Any, given: list[Tensor] = given) -> Tensor:
                with sdpa_kernel(backend):
                    return scaled_dot_product_attention(*given, enable_gqa=True)

            times |= {name: microseconds(lambda b=backend: peer(b)) for name, backend in PEERS.items()}
            us, read = times.pop("us"), given[1].nbytes + given[2].nbytes
            yield {"call": "decoding", "shape": [entries, 64, 8, keys, width], "dtype": "bfloat16", "us": us,
                   "peers": times, "of copy": round(read / us / speed, 3) if us else None}  # fmt: skip
    for tile in SPLIT:
        given = inputs_on(device, (16, 64, 1, 128), (16, 8, sizes[-1][1], 128), (16, 8, sizes[-1][1], 128))
        with _replaced("split_tile", _tile(tile)):
            us = microseconds(lambda given=given: sa.attention(*given))
        read = given[1].nbytes + given[2].nbytes
        yield {"call": f"decoding with tiles {tile}", "us": us, "of copy": round(read / us / speed, 3) if us else None}


@contextlib.contextmanager
def _replaced(name: str, function: Any) -> Iterator[None]:
    kept = getattr(triton_kernels, name)
    setattr(triton_kernels, name, function)
    try:
        yield
    finally:
        setattr(triton_kernels, name, kept)


def _tile(size: tuple[int, int, int, int]) -> Callable[[Any], Any]:
    m, n, warps, stages = size
    return lambda _named: (m, warps, {"M": m, "N": n, "STAGES": stages})


def _tiles(sizes: Any) -> Callable[[Any], Any]:
    return lambda _named: [
        (n if of_keys else m, warps, {"M": m, "N": n, "STAGES": stages})
        for of_keys, (m, n, warps, stages) in enumerate(sizes)
    ]


def _candidates(device: Any, length: int) -> Iterator[tuple[str, Any, Callable[[], Any], Any]]:
    """Each candidate's name, what is replaced, the call, and the launch to time (None: all)."""
    for width in WIDTHS:
        q, k, v, g = _shaped(width, length, device)
        for causal in (False, True):
            for size in FORWARD[width]:
                yield f"forward {width} causal={causal} {size}", ("forward_tile", _tile(size)), (
                    lambda q=q, k=k, v=v, causal=causal: sa.attention(q, k, v, causal=causal)
                ), None  # fmt: skip
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            out = sa.attention(*leaves, causal=causal)
            for sizes in BACKWARD[width]:
                for kernel in ("to_queries", "to_keys"):
                    yield f"{kernel} {width} causal={causal} {sizes[kernel == 'to_keys']}", (
                        "backward_tiles", _tiles(sizes)
                    ), (
                        lambda out=out, leaves=leaves, g=g: torch.autograd.grad(out, leaves, g, retain_graph=True)
                    ), kernel  # fmt: skip


def tiles(device: Any, length: int) -> Iterator[dict[str, Any]]:
    """Times of single kernels with other sizes of tiles."""
    launch = triton_kernels.launch
    for name, replaced, call, kernel in _candidates(device, length):

        def only(function: Any, *arguments: Any, kernel: Any = kernel, **named: Any) -> None:
            if kernel is None or function.fn.__name__ == kernel:
                launch(function, *arguments, **named)

        with _replaced(*replaced), _replaced("launch", only):
            yield {"call": name, "us": microseconds(call)}


def prepare(worker: int, workers: int, device: Any = "cuda", small: bool = False) -> None:
    """Compile a share of the kernels."""
    jobs: list[Callable[[], Any]] = [
        lambda given=given, options=options: found(*given, **options) for _, given, options in cases(device, True)
    ]
    for width in WIDTHS:
        for causal in (False, True):
            given = _shaped(width, 128, device)
            jobs += [lambda given=given, causal=causal: found(*given, causal=causal)]
        one = inputs_on(device, (2, 16, 1, width), (2, 2, 1024, width), (2, 2, 1024, width))
        jobs += [lambda one=one: sa.attention(*one)]
    one = inputs_on(device, (2, 16, 1, 128), (2, 2, 1024, 128), (2, 2, 1024, 128))

    def replaced(name: str, function: Any, call: Callable[[], Any]) -> None:
        with _replaced(name, function):
            call()

    jobs += [lambda tile=tile: replaced("split_tile", _tile(tile), lambda: sa.attention(*one)) for tile in SPLIT]
    jobs += [lambda r=r, call=call: replaced(*r, call) for _, r, call, _ in _candidates(device, 128)]
    for job in jobs[:: len(jobs) // 2] if small else jobs[worker::workers]:
        try:
            job()
        except Exception as error:  # noqa: BLE001 a tile may not fit
            print(f"prepare: {str(error)[:150]}", flush=True)


def main() -> None:
    """Print the times."""
    for line in lines():
        print(line, flush=True)


if __name__ == "__main__":
    main()
