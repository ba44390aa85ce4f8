"""The definition of attention in float64, and bounds of the errors of kernels with products in half precision.

A kernel rounds p and dS to the inputs' dtype before it multiplies them, and rounds each result once. Everything else is
float32. So an output with terms p v has an error of at most

    (2 u + f) sum p |v|      u: the unit roundoff of the inputs' dtype      f = 2^-24 (keys + width max |q| |k| + 32)

and the gradients have the same bounds with their terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import softargmax as sa

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ROUNDOFF = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
TINY = {torch.float32: 0.0, torch.bfloat16: 0.0, torch.float16: 2.0**-24}
"""The distance of subnormals, which adds to the relative error."""


class Truth(NamedTuple):
    """Results, and the bound of the error of each."""

    results: dict[str, Tensor]
    bounds: dict[str, Tensor]


def inputs(
    entries: int, heads: int, groups: int, queries: int, keys: int, width: int, values: int, dtype: torch.dtype,
    device: Any = "cpu", seed: int = 0,
) -> list[Tensor]:  # fmt: skip
    """Random q, k, v and g."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (heads, queries, width), (groups, keys, width), (groups, keys, values), (heads, queries, values)
    return [torch.randn(entries, *shape, generator=generator).to(device=device, dtype=dtype) for shape in shapes]


def of_float32(q: Tensor, keys: int, each: int, reach: float, options: dict[str, Any]) -> float:
    """The bound f of the errors of float32."""
    f = 2.0**-24 * (keys + q.shape[-2] * each + q.shape[-1] * reach + 32)
    if options.get("slopes") is not None:
        f += 2.0**-22 * float(options["slopes"].abs().max()) * max(keys, q.shape[-2])
    if options.get("softcap") is not None:
        f += 2.0**-21 * options["softcap"]
    return f


def truth(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Any) -> Truth:
    """The output, lse and gradients of the definition, with bounds for kernels."""
    u, tiny, keys, each = ROUNDOFF[q.dtype], TINY[q.dtype], k.shape[-2], q.shape[-3] // k.shape[-3]
    wide = {name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in options.items()}
    q, k, v, g = (x.double() for x in (q, k, v, g))
    eye = torch.eye(keys, dtype=torch.float64, device=q.device).expand(*k.shape[:-1], keys)
    kept = {name: x for name, x in wide.items() if name not in ("dropout", "seed", "stream")}
    with sa.using("reference"):
        output, lse = sa.attention_with_lse(q, k, v, **wide)
        p, weights = sa.attention(q, k, eye, **kept), sa.attention(q, k, eye, **wide)
        gradients = sa.attention_vjp(q, k, v, g, **wide)
    many_k, many_v = (x.repeat_interleave(each, -3) for x in (k, v))
    scale: Any = options.get("scale", q.shape[-1] ** -0.5)
    scale = scale.double().abs()[..., None] if isinstance(scale, Tensor) else abs(scale)
    reach = float((scale * (q.abs() @ many_k.mT.abs())).max())
    f = of_float32(q, keys, each, reach, options)
    products = g.abs() @ many_v.mT.abs()
    slopes = p * (products / (1.0 - options.get("dropout", 0.0)) + (weights * products).sum(-1, keepdim=True))
    slopes = slopes * (1.0 + 2.0 * u) + tiny

    def grouped(x: Tensor) -> Tensor:
        return x.unflatten(-3, (-1, each)).sum(-3)

    error = 4.0 * u + 4.0 * f
    bounds = {
        "output": (2.1 * u + 2.0 * f) * (weights @ many_v.abs()) + tiny,
        "lse": 2.0 * f * (1.0 + lse.abs().nan_to_num(posinf=0.0)),
        "dq": error * scale * (slopes @ many_k.abs()) + tiny,
        "dk": error * grouped((slopes * scale).mT @ q.abs()) + tiny,
        "dv": (3.0 * u + 2.0 * f) * grouped((weights + tiny).mT @ g.abs()) + tiny,
    }
    results = {"output": output, "lse": lse, "dq": gradients.q, "dk": gradients.k, "dv": gradients.v}
    total = error * slopes.sum((-1, -2), keepdim=True)
    if gradients.scale is not None:
        results["dscale"] = gradients.scale
        bounds["dscale"] = error * (slopes * (q.abs() @ many_k.mT.abs())).sum(-1).expand(lse.shape).sum_to_size(
            gradients.scale.shape
        )
    if gradients.bias is not None:
        results["dbias"] = gradients.bias
        bounds["dbias"] = (error * slopes).sum_to_size(gradients.bias.shape)
    if gradients.slopes is not None:
        results["dslopes"] = gradients.slopes
        bounds["dslopes"] = (total * max(keys, q.shape[-2]))[..., 0, 0].sum_to_size(gradients.slopes.shape)
    if gradients.sink is not None:
        results["dsink"] = gradients.sink
        bounds["dsink"] = (error * products.sum((-1, -2)).clamp(min=1.0)).sum_to_size(gradients.sink.shape)
    return Truth(results, bounds)


@contextmanager
def kernels_only() -> Iterator[None]:
    """No call is left to the definition."""
    from softargmax.attend import operations, triton_kernels

    def refuse(*_: Any) -> None:
        raise AssertionError("expected a kernel, got the definition")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_kernels, "define", refuse)
        patch.setattr(operations, "_by_definition", refuse)
        yield


def found(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Any) -> dict[str, Tensor]:
    """The output, lse and gradients by the kernels."""
    with sa.using("triton"), kernels_only():
        output, lse = sa.attention_with_lse(q, k, v, **options)
        gradients = sa.attention_vjp(q, k, v, g, **options)
    learned = {f"d{name}": x for name, x in gradients._asdict().items() if x is not None}
    return {"output": output, "lse": lse} | learned


def compare(ours: dict[str, Tensor], theirs: Truth) -> None:
    """Raise AssertionError if a result is farther from the truth than its bound."""
    for name, x in theirs.results.items():
        wrong = ~((ours[name].double() - x).abs() <= theirs.bounds[name]) & (ours[name] != x)
        if bool(wrong.any()):
            far = float(((ours[name].double() - x).abs() / theirs.bounds[name])[wrong].max())
            raise AssertionError(f"{name}: {int(wrong.sum())} of {x.numel()} numbers are off, by {far:.3g} bounds")


def cases(
    device: Any, small: bool, widths: tuple[int, ...] = (64, 32)
) -> Iterator[tuple[str, list[Tensor], dict[str, Any]]]:
    """Inputs and options for which results are compared."""
    queries, keys, heads, groups = (18, 35, 2, 1) if small else (333, 520, 4, 2)

    def options(width: int, few: bool = False) -> dict[str, dict[str, Any]]:
        rows, generator = 3 if few else queries, torch.Generator().manual_seed(7)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(device)

        return {
            "plain": {}, "causal": {"causal": True}, "window": {"causal": True, "window": (keys // 4, None)},
            "both sides": {"window": (17, 5)}, "softcap": {"softcap": 2.0}, "sink": {"sink": draw(heads)},
            "slopes": {"slopes": draw(heads).abs(), "causal": True}, "mask": {"mask": draw(2, 1, rows, keys) > 0.0},
            "bias": {"bias": draw(heads, rows, keys)}, "scale": {"scale": draw(heads, rows)},
            "negative": {"scale": -0.1}, "dropout": {"dropout": 0.25, "seed": 3, "causal": True},
            "lengths": {"key_lengths": torch.tensor([keys // 3, keys], device=device), "causal": True},
            "all": {"causal": True, "softcap": 3.0, "sink": draw(heads), "slopes": draw(heads).abs(),
                    "bias": draw(rows, keys), "scale": draw(heads, rows), "mask": draw(rows, keys) > -1.0,
                    "dropout": 0.5, "seed": 1 << 63, "stream": [5, 2]},
        }  # fmt: skip

    for dtype, width in zip((BF16, F32)[: len(widths)], widths, strict=True):
        for name, more in options(width).items():
            yield f"{name} {dtype} {width}", inputs(2, heads, groups, queries, keys, width, width, dtype, device), more
        for name, more in options(width, few=True).items():
            yield f"{name} {dtype} {width} few", inputs(2, heads, groups, 3, keys, width, width, dtype, device), more
    for dtype, width, values in ((BF16, 16, 16), (F16, 64, 64), (BF16, 80, 48), (BF16, 128, 128), (BF16, 7, 5),
                                 (F16, 128, 128), (BF16, 256, 256), (F32, 64, 64), (F32, 128, 128)):  # fmt: skip
        for rows in (queries, 3) if not small or width == 7 else ():
            name = f"causal {dtype} {width} {values} {rows}"
            yield name, inputs(2, heads, groups, rows, keys, width, values, dtype, device), {"causal": True}


def entmax_truth(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Any) -> Truth:
    """The output and gradients of the definition with entmax, with bounds for kernels.

    A kernel's v = (d + t)_+ has an absolute error of f, and p^(2 - alpha) is v for alpha = 1.5, and 1 for alpha = 2. So
    p has an error of 2 p^(2 - alpha) f, and at most f outside the support.
    """
    u, keys, each, alpha = ROUNDOFF[q.dtype], k.shape[-2], q.shape[-3] // k.shape[-3], options["alpha"]
    wide = {name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in options.items()}
    q, k, v, g = (x.double() for x in (q, k, v, g))
    eye = torch.eye(keys, dtype=torch.float64, device=q.device).expand(*k.shape[:-1], keys)
    kept = {name: x for name, x in wide.items() if name not in ("dropout", "seed", "stream")}
    with sa.using("reference"):
        output = sa.attention(q, k, v, **wide)
        p, weights = sa.attention(q, k, eye, **kept), sa.attention(q, k, eye, **wide)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        learned = {name: x.clone().requires_grad_() for name, x in wide.items() if name in ("scale", "sink", "slopes")}
        again = sa.attention(*leaves, **wide | learned)
        found = torch.autograd.grad(again, (*leaves, *learned.values()), g)
    many_k, many_v = (x.repeat_interleave(each, -3) for x in (k, v))
    scale: Any = options.get("scale", q.shape[-1] ** -0.5)
    scale = scale.double().abs()[..., None] if isinstance(scale, Tensor) else abs(scale)
    reach = float((scale * (q.abs() @ many_k.mT.abs())).max())
    f = of_float32(q, keys, each, reach, options)
    gain = 1.0 / (1.0 - options.get("dropout", 0.0))
    inside = p > 0.0
    slope = torch.where(inside, p ** (2.0 - alpha), 0.0)
    mass = slope.sum(-1, keepdim=True).clamp(min=1.0)
    products = gain * (g.abs() @ many_v.mT.abs())
    reached = products + (slope * products).sum(-1, keepdim=True) / mass
    error = (4.0 * u + 4.0 * f) * slope * reached
    if alpha != 2.0:
        error = error + f * inside * reached + 2.0 * f * slope * (inside * reached).sum(-1, keepdim=True) / mass

    def grouped(x: Tensor) -> Tensor:
        return x.unflatten(-3, (-1, each)).sum(-3)

    of_p = 2.0 * gain * f * slope + f * f
    outside = gain * f * float(alpha == 2.0)
    bounds = {
        "output": (2.1 * u * weights + 2.0 * of_p) @ many_v.abs() + outside * many_v.abs().amax(-2, True),
        "dq": scale * (error @ many_k.abs()),
        "dk": grouped((error * scale).mT @ q.abs()),
        "dv": grouped((3.0 * u * weights + 2.0 * of_p).mT @ g.abs()) + outside * g.abs().amax(),
    }
    results = {"output": output} | dict(zip(("dq", "dk", "dv", *(f"d{name}" for name in learned)), found, strict=True))
    place = keys - q.shape[-2] + torch.arange(q.shape[-2], device=q.device)[:, None]
    distance = (place - torch.arange(keys, device=q.device)).abs()
    of_delta = (slope * products).sum(-1) / mass[..., 0]  # |delta| at most
    error_of_delta = (4.0 * u + 4.0 * f) * of_delta
    of_sink = torch.where(1.0 - p.sum(-1) > 1e-12, (1.0 - p.sum(-1)).clamp(min=0.0) ** (2.0 - alpha), 0.0)
    error_of_sink = torch.zeros_like(of_sink)
    if alpha != 2.0:
        moved = (inside * products).sum(-1) + 2.0 * of_delta * inside.sum(-1)
        error_of_delta, error_of_sink = error_of_delta + f * moved / mass[..., 0], error_of_sink + f
    each_query = {
        "scale": (error * (q.abs() @ many_k.mT.abs())).sum(-1),
        "slopes": (error * distance).sum(-1),
        "sink": of_sink * error_of_delta + 4.0 * error_of_sink * of_delta,
    }
    for name, x in learned.items():
        like = x if name == "scale" else x[..., None]  # one number per query, or per head
        bounds[f"d{name}"] = each_query[name].sum_to_size(like.shape).reshape(x.shape)
    return Truth(results, bounds)


def entmax_found(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Any) -> dict[str, Tensor]:
    """The output and gradients by the kernels."""
    names = [name for name in ("scale", "sink", "slopes") if isinstance(options.get(name), Tensor)]
    with sa.using("triton"), kernels_only():
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v, *(options[name] for name in names))]
        output = sa.attention(*leaves[:3], **options | dict(zip(names, leaves[3:], strict=True)))
        found = torch.autograd.grad(output, leaves, g)
    return {"output": output.detach()} | dict(zip((f"d{name}" for name in ("q", "k", "v", *names)), found, strict=True))
