"""Check and time the CUDA kernels of the room `sample`: draws and filters, beside torch and FlashInfer.

`check` compares draws and kept sets with those of the CPU's kernels, which is the oracle. `lines` yields one dict per
timed line. Both take a device, so that they can be tried in Triton's interpreter with CPU tensors and small shapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from triton.testing import do_bench

import softargmax as sa

DTYPES = (torch.float32, torch.bfloat16)
DRAWS = (
    (1 << 22, 8, 1, {}),
    (1 << 19, 64, 16, {"temperature": 0.7}),
    (1 << 17, 128, 8, {}),
    (1 << 16, 1000, 4, {"temperature": 2.0}),
    (1 << 14, 1001, 1, {}),
    (1 << 14, 4096, 2, {"top_k": 50, "top_p": 0.9}),
    (1 << 12, 50257, 1, {}),
    (1 << 10, 128256, 4, {}),
    (128, 128256, 1, {"top_p": 0.9}),
    (128, 128256, 1, {"top_k": 50, "min_p": 0.02}),
    (4, 1 << 22, 3, {}),
    (1 << 12, 1000, 1, {"temperature": 0.0}),
    (1 << 10, 1000, 1, {"temperature": float("inf")}),
)
FILTERS = (
    {"top_k": 1}, {"top_k": 50}, {"top_k": 3000}, {"top_p": 0.1}, {"top_p": 0.5}, {"top_p": 0.9}, {"top_p": 0.999},
    {"top_p": 0.8, "temperature": 0.3}, {"min_p": 0.05}, {"epsilon": 3e-4}, {"eta": 2e-3},
    {"top_k": 200, "top_p": 0.9, "min_p": 0.01}, {"top_k": 200, "top_p": 0.9, "eta": 0.01, "order": "joint"},
)  # fmt: skip
SETS = ((512, 100), (256, 5000), (128, 32000), (64, 128256), (8, 1 << 20))
TIMES = ((131072, 128), (131072, 1000), (8192, 32000), (512, 128256), (4096, 128256), (64, 128256), (1, 128256))
FILTERED = ((128, 128256), (512, 131072), (1, 128256), (4096, 4096))
LOG_ERROR = 8 * 2.0**-24
"""Of a log-probability in float32: a few roundings of x and of log l, relative to the larger of 1 and |log p|."""


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


def of_cpu(function: Callable[..., Any], z: torch.Tensor, **options: Any) -> Any:
    """The result of the CPU's kernel."""
    given = {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    with sa.using("native"):
        return function(z.cpu(), **given)


def check(device: str = "cuda", most: int = 1 << 30) -> None:
    """Compare draws, sets and log-probabilities with the CPU's. `most` bounds the number of scores of a case."""
    began, total = time.perf_counter(), 0
    for whole, length, draws, options in DRAWS:
        rows, classes = sized(whole, length, most)
        for dtype in DTYPES:
            z = scores(rows, classes, dtype, device)
            given = {"seed": rows, "num_samples": draws, **options}
            found, expected = ours(sa.categorical, z, **given).cpu(), of_cpu(sa.categorical, z, **given)
            different, total = int((found != expected).sum()), total + found.numel()
            print(f"draws {rows} x {classes} x {draws} {dtype} {options}: {different} differ", flush=True)
            # A set may end at another score where its mass reaches the goal within rounding errors.
            assert different <= (1 if "top_p" in options else 0)
    print(f"{total} draws, {time.perf_counter() - began:.0f} s", flush=True)
    check_sets(device, most)
    check_rows(device, most)
    print(f"checked in {time.perf_counter() - began:.0f} s", flush=True)


def check_sets(device: str, most: int) -> None:
    """Compare the sets of all filters with those of the CPU."""
    rows_seen, rows_wrong = 0, 0
    for whole, length in SETS:
        rows, classes = sized(whole, length, most)
        for dtype in DTYPES:
            for number, options in enumerate(FILTERS):
                z = scores(rows, classes, dtype, device, (1.0, 3.0, 0.2)[number % 3])
                found = ours(sa.filter_scores, z, **options).cpu() > -torch.inf
                wrong = (found != (of_cpu(sa.filter_scores, z, **options) > -torch.inf)).sum(1)
                rows_seen, rows_wrong = rows_seen + rows, rows_wrong + int((wrong > 0).sum())
                if wrong.any():
                    print(f"sets {rows} x {classes} {dtype} {options}: {wrong.count_nonzero()} rows", flush=True)
                exact = not options.keys() & {"top_p", "epsilon", "eta"}
                assert not (exact and wrong.any())
                assert wrong.count_nonzero() <= 1 + rows // 100
    print(f"sets: {rows_wrong} of {rows_seen} rows differ", flush=True)


def check_rows(device: str, most: int) -> None:
    """Log-probabilities, special rows, and the same draws in every batch and run."""
    for whole, length in ((256, 100), (64, 128256)):
        rows, classes = sized(whole, length, most)
        for dtype in DTYPES:
            z = scores(rows, classes, dtype, device, 3.0)
            z[0, 5], z[1, 7], z[2], z[3, ::2] = torch.inf, torch.nan, -torch.inf, -torch.inf
            fine = torch.tensor([row not in (1, 2) for row in range(rows)])
            temperature = torch.rand(rows, 1, generator=torch.Generator().manual_seed(1)) + 0.5
            for options in ({}, {"top_k": 9, "temperature": temperature.to(device)}, {"min_p": 0.1}):
                given = {"seed": 7, "num_samples": 3, **options}
                found = ours(sa.categorical_with_logprob, z, **given)
                local = {name: x[fine] if isinstance(x, torch.Tensor) else x for name, x in given.items()}
                stream = torch.arange(rows)[fine]
                expected = of_cpu(sa.categorical_with_logprob, z[fine.to(device)], stream=stream, **local)
                index, logprob, size = (x.cpu() for x in found)
                assert torch.equal(index[fine], expected.index)
                assert torch.equal(size[fine], expected.support_size)
                error = (logprob[fine].double() - expected.logprob.double()).abs()
                assert (error <= LOG_ERROR * expected.logprob.abs().clamp(min=1.0)).all(), error.max()
                assert (index[~fine] == -1).all() and logprob[~fine].isnan().all() and (size[~fine] == 0).all()
                again = ours(sa.categorical_with_logprob, z, **given)
                assert torch.equal(again.index, found.index) and torch.equal(
                    again.logprob.nan_to_num(9.0), found.logprob.nan_to_num(9.0)
                )
            whole = ours(sa.categorical, z, seed=3)
            for size_of in (1, 7):
                for at in range(0, min(rows, 28), size_of):
                    part = slice(at, at + size_of)
                    stream = torch.arange(rows, device=device)[part]
                    assert torch.equal(ours(sa.categorical, z[part], seed=3, stream=stream), whole[part])


# --- times ------------------------------------------------------------------------------------------------------------


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
        import flashinfer.sampling as found
    except ImportError:
        return None
    return found


def lines(device: str = "cuda", most: int = 1 << 40) -> Iterator[dict[str, Any]]:
    """Time draws, and draws after filters."""
    for whole, length in TIMES:
        rows, classes = sized(whole, length, most)
        for dtype in DTYPES:
            z = scores(rows, classes, dtype, device)
            yield {"call": "categorical", "shape": [rows, classes], "dtype": str(dtype)[6:],
                   "us": microseconds(lambda: ours(sa.categorical, z, seed=1), device),
                   "read": microseconds(lambda: z.amax(-1), device),
                   "multinomial": microseconds(lambda: multinomial(z), device),
                   "exponential": microseconds(lambda: race(z), device)}  # fmt: skip
            greedy = {"us": microseconds(lambda: ours(sa.categorical, z, temperature=0.0, seed=1), device)}
            greedy |= {"argmax": microseconds(lambda: z.argmax(-1), device)}
            yield {"call": "categorical T=0", "shape": [rows, classes], "dtype": str(dtype)[6:], **greedy}
            with_log = microseconds(lambda: ours(sa.categorical_with_logprob, z, seed=1), device)
            yield {"call": "categorical_with_logprob", "shape": [rows, classes], "dtype": str(dtype)[6:],
                   "us": with_log}  # fmt: skip
    for whole, length in FILTERED:
        rows, classes = sized(whole, length, most)
        for dtype in DTYPES:
            for spread in (1.0, 3.0):
                z = scores(rows, classes, dtype, device, spread)
                for name, options, filtered in (
                    ("top_p 0.9", {"top_p": 0.9}, lambda z: sorted_top_p(z, 0.9)),
                    ("top_k 50", {"top_k": 50}, lambda z: top_k(z, 50)),
                    ("top_k 50, top_p 0.9", {"top_k": 50, "top_p": 0.9}, lambda z: sorted_top_p(top_k(z, 50), 0.9)),
                    ("min_p 0.05", {"min_p": 0.05}, None),
                ):
                    line: dict[str, Any] = {"call": f"{name}, spread {spread}", "shape": [rows, classes]}
                    line |= {"dtype": str(dtype)[6:]}
                    line["us"] = microseconds(lambda o=options: ours(sa.categorical, z, seed=1, **o), device)
                    line["mask"] = microseconds(lambda o=options: ours(sa.filter_scores, z, **o), device)
                    if filtered:
                        line["torch"] = microseconds(lambda f=filtered: multinomial(f(z)), device)
                    peer = flashinfer() if device == "cuda" else None
                    if peer and name == "top_p 0.9":
                        line["flashinfer"] = microseconds(
                            lambda: peer.top_p_sampling_from_probs(torch.softmax(z.float(), -1), 0.9), device
                        )
                    yield line


def prepare(worker: int, workers: int, device: str = "cuda") -> None:
    """Compile a share of the kernels. Triton keeps them on disk."""
    jobs: list[Callable[[], Any]] = []

    def add(function: Callable[..., Any], rows: int, classes: int, dtype: torch.dtype, **options: Any) -> None:
        jobs.append(lambda: ours(function, scores(rows, classes, dtype, device), **options))

    for dtype in DTYPES:
        for rows, classes, draws, options in DRAWS:
            add(sa.categorical, min(rows, 2048), classes, dtype, seed=1, num_samples=draws, **options)
        for rows, classes in TIMES:
            for options in ({}, {"temperature": 0.0}):
                add(sa.categorical, min(rows, 2048), classes, dtype, seed=1, **options)
            add(sa.categorical_with_logprob, min(rows, 2048), classes, dtype, seed=1)
        for rows, classes in SETS:
            for options in FILTERS:
                add(sa.filter_scores, min(rows, 64), classes, dtype, **options)
        for rows, classes in FILTERED:
            for options in ({"top_p": 0.9}, {"top_k": 50}, {"top_k": 50, "top_p": 0.9}, {"min_p": 0.05}):
                add(sa.categorical, min(rows, 64), classes, dtype, seed=1, **options)
                add(sa.filter_scores, min(rows, 64), classes, dtype, **options)
    for job in jobs[worker::workers]:
        job()


if __name__ == "__main__":
    check()
    for line in lines():
        print(line, flush=True)
