"""Check and time the CUDA kernels of normalize and of the loss on the GPU of this machine.

`check` compares results with the definition in float64, and bits over batches, strides and runs. `lines` times calls
beside torch. `prepare` compiles a share of the kernels, so that several processes compile all of them.
"""

from __future__ import annotations

import itertools
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
CHECKED = (3, 100, 128, 500, 1000, 4096, 8192, 9000, 16384, 20000, 131072)
"""Lengths of the checked rows."""
FEW, MANY = 7, 2 * triton_launch.AT_ONCE
"""Numbers of rows: for programs that take turns, and for programs that have a row each."""


def scores(rows: int, classes: int, dtype: torch.dtype, device: str, seed: int = 0) -> torch.Tensor:
    """Normal scores, with a spread that differs from row to row. Some rows are confident."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, classes, generator=generator) * torch.logspace(-1, 1.5, rows)[:, None]
    z[::5, classes // 2] += 30.0
    return z.to(dtype).to(device)


def ulps(found: torch.Tensor, expected: torch.Tensor, at: torch.Tensor | None = None) -> float:
    """The largest error in units of the last place of the found dtype."""
    expected = expected.double()
    info = torch.finfo(found.dtype)
    place = expected.abs() if at is None else at
    unit = torch.exp2(torch.floor(torch.log2(place.clamp(min=info.tiny)))) * info.eps
    return float(((found.double() - expected).abs() / unit).max())


def _all(z: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    ours = z.clone().requires_grad_()
    p, log_p = sa.softmax(ours), sa.log_softmax(ours)
    pair = sa.cross_entropy_and_gradient(z, target, reduction="none")
    seed = torch.linspace(-1, 1, z.shape[1], device=z.device).to(z.dtype).expand(z.shape)
    (of_p,) = torch.autograd.grad(p, ours, seed, retain_graph=True)
    (of_log_p,) = torch.autograd.grad(log_p, ours, seed)
    return {
        "softmax": p.detach(), "log_softmax": log_p.detach(), "logsumexp": sa.logsumexp(z), "loss": pair.loss,
        "gradient": pair.gradient, "softmax backward": of_p, "log_softmax backward": of_log_p,
    }  # fmt: skip


def check(device: str = "cuda", lengths: tuple[int, ...] = CHECKED, many: int = MANY) -> None:
    """Raise an AssertionError that lists all wrong results."""
    wrong = []
    with sa.using("triton"):
        for classes, dtype in itertools.product(lengths, DTYPES):
            for one in (_check_values, _check_bits, _check_edges):
                try:
                    one(classes, dtype, device, many)
                except AssertionError as error:
                    wrong.append(f"{one.__name__} {classes} {dtype}: {error}")
    assert not wrong, "\n".join(wrong)


def _check_values(classes: int, dtype: torch.dtype, device: str, many: int) -> None:
    rows = FEW if classes > 1 << 16 else many
    z, target = scores(rows, classes, dtype, device), torch.arange(rows, device=device) % classes
    found = _all(z, target)
    with sa.using("reference"):
        expected = _all(z.double(), target)
    half = dtype is not torch.float32
    for name in ("softmax", "log_softmax"):
        error = ulps(found[name], expected[name])
        assert error <= (0.51 if half else 3.0), f"{name} {classes} {dtype}: {error} ulp"
    largest = z.double().abs().amax(1).maximum(expected["logsumexp"].abs())
    error = ulps(found["logsumexp"], expected["logsumexp"], largest)
    assert error <= 4.0, f"logsumexp {classes} {dtype}: {error} ulp"
    error = (found["loss"].double() - expected["loss"]).abs() / (expected["loss"] + 2.0**-126)
    span = z.double().amax(1) - z.double().amin(1)  # the fast exponential adds 2^-24 for each unit
    allowed = 2.0**-20 + 2.0**-23 * span if half else torch.full_like(span, 3 * 2.0**-23)
    assert bool((error <= allowed).all()), (
        f"loss {classes} {dtype}: {float((error / allowed).max())} of what is allowed"
    )
    unit = 2.0**-8 if half else 4 * 2.0**-23
    for name in ("gradient", "softmax backward", "log_softmax backward"):
        size = expected[name].abs().amax(1, keepdim=True) + 2.0**-126
        if name == "softmax backward":
            size = size + expected["softmax"].amax(1, keepdim=True)
        error = float(((found[name].double() - expected[name]).abs() / size).max())
        assert error <= (4 if half and "backward" in name else 1) * unit, f"{name} {classes} {dtype}: {error}"


def _check_bits(classes: int, dtype: torch.dtype, device: str, many: int) -> None:
    z, target = scores(many, classes, dtype, device, 1), torch.arange(many, device=device) % classes
    whole, again = _all(z, target), _all(z, target)
    few = _all(z[:FEW].contiguous(), target[:FEW])
    one = _all(z[FEW - 1 : FEW].contiguous(), target[FEW - 1 : FEW])
    for name, x in whole.items():
        assert torch.equal(x, again[name]), f"{name} {classes} {dtype}: other bits in a second run"
        assert torch.equal(x[:FEW], few[name]), f"{name} {classes} {dtype}: other bits in a small batch"
        assert torch.equal(x[FEW - 1 : FEW], one[name]), f"{name} {classes} {dtype}: other bits alone"
    down = sa.softmax(z[:64].T.contiguous(), axis=0).T
    assert torch.equal(down, whole["softmax"][:64]), f"{classes} {dtype}: other bits with strides"
    spaced = torch.stack([z[:64], z[:64]], 1)[:, 0]
    assert torch.equal(sa.log_softmax(spaced), whole["log_softmax"][:64]), f"{classes} {dtype}: other bits in a view"
    same = z.clone()
    assert torch.equal(sa.softmax(same, out=same), whole["softmax"]), f"{classes} {dtype}: other bits in place"


def _check_edges(classes: int, dtype: torch.dtype, device: str, _many: int) -> None:
    z = scores(8, classes, dtype, device)
    inf, nan = float("inf"), float("nan")
    z[0, 0], z[1, -1], z[2], z[3, 0], z[4, 1] = inf, nan, -inf, -inf, inf
    z[4, 0] = inf
    where = torch.rand(8, classes, generator=torch.Generator().manual_seed(2)).to(device) > 0.3
    for options in ({}, {"where": where}, {"temperature": 0.0}, {"temperature": -2.0}):
        for function in (sa.softmax, sa.log_softmax, sa.logsumexp):
            found = function(z, **options)
            with sa.using("reference"):
                expected = function(z.double(), **options)
            torch.testing.assert_close(
                found.double(), expected.to(found.dtype).double(), rtol=1e-5 if dtype == torch.float32 else 1e-2,
                atol=1e-37, equal_nan=True,
            )  # fmt: skip
    target = torch.tensor([0, 1, 0, 1, 2, -100, 1, classes], device=device)
    found = sa.cross_entropy_and_gradient(z, target, reduction="none")
    with sa.using("reference"):
        expected = sa.cross_entropy_and_gradient(z.double()[:7], target[:7], reduction="none")
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one[:7].double(), other.to(one.dtype).double(), rtol=1e-2, atol=1e-7, equal_nan=True)
        assert bool(one[7].isnan().all()), "a class out of range: expected NaN"


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
        z, target = scores(few, classes, dtype, device), torch.zeros(few, dtype=torch.int64, device=device)
        for _, ours, _theirs in calls(z, target).values():
            ours()
        if classes > 1 << 14:
            for name in VARIANTS:
                with variant(name):
                    for _, ours, _theirs in calls(z, target).values():
                        ours()
    for classes, dtype in list(itertools.product(CHECKED, DTYPES))[worker::workers]:
        _check_bits(classes, dtype, device, MANY if classes > triton_launch.PART else 64)
        _check_edges(classes, dtype, device, 0)


def lines(device: str = "cuda", shapes: Any = SHAPES) -> Iterator[dict[str, Any]]:
    """Time the calls, in microseconds, and as a fraction of the speed of a copy."""
    from triton.testing import do_bench

    def microseconds(call: Callable[[], Any]) -> float:
        return float(do_bench(call, warmup=5, rep=30, return_mode="median")) * 1e3

    large = torch.empty(1 << 29, device=device)
    copied = torch.empty_like(large)
    speed = 2 * large.nbytes / microseconds(lambda: copied.copy_(large)) / 1e3
    yield {"call": "copy", "GB/s": round(speed)}
    del large, copied
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
