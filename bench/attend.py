"""Time attention against torch's kernels and formulas, for the shapes and targets that we promise.

    python -m bench.attend                  all cases, about 5 minutes on 2 cores; writes bench/results/attend.json
    python -m bench.attend causal backward  only the cases whose names contain these words; writes nothing

SDPA is torch's scaled_dot_product_attention. A boolean mask replaces an option that SDPA lacks. Attention with heads of
width D takes 4 D operations for each pair of a query and a visible key, and 2.5 times as many for the backward pass.
The side "sgemm" does the same number of operations, in torch's products of 1024 x 1024 matrices. The ratio of this side
is our speed divided by the speed of these products. The exit code is 1 if a target or a bound on memory
(bench/attend_memory.py) is missed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from bench.attend_memory import memory
from bench.promises import Promise, main
from entmax import entmax15
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

SIDE = 1024


def normal(*shape: int) -> Tensor:
    """Return normally distributed numbers, which are the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def memories(batch: int, heads: int, length: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values."""
    q, k, v = normal(3, batch, heads, length, width)
    return q, k, v


def products(operations: float) -> Callable[[], object]:
    """Return a call that computes matrix products with `operations` operations in all. The last one may be smaller."""
    a, b, out = normal(3, SIDE, SIDE)
    rows = round(operations / (2 * SIDE**2))
    parts = [min(SIDE, rows - start) for start in range(0, rows, SIDE)]
    return lambda: [torch.mm(a[:part], b, out=out[:part]) for part in parts]


def case(name: str, qkv: tuple[Tensor, ...], pairs: float, sides: dict[str, Attention], target: float) -> Promise:
    """Return a case whose sides use the same q, k and v.

    `pairs` is the number of pairs of a query and a visible key, over all heads.
    """
    q, k, v = qkv
    read = q.nbytes * 2 + k.nbytes + v.nbytes
    calls: dict[str, Callable[[], object]] = {side: lambda f=f: f(q, k, v) for side, f in sides.items()}
    calls["sgemm"] = products(4 * q.shape[-1] * pairs)
    peer = next(side for side in sides if side != "softargmax")
    return Promise(name, calls, {peer: target}, read)


def both(name: str, qkv: tuple[Tensor, ...], pairs: float, sides: dict[str, Attention], target: float) -> Promise:
    """Return the case of a forward and backward pass. Each side's time includes allocating and freeing gradients."""
    leaves = [x.clone().requires_grad_() for x in qkv]
    g = normal(*qkv[0].shape)
    calls: dict[str, Callable[[], object]] = {
        side: lambda f=f: torch.autograd.grad(f(*leaves), leaves, g) for side, f in sides.items()
    }
    calls["sgemm"] = products(3.5 * 4 * g.shape[-1] * pairs)
    return Promise(name, calls, {"SDPA": target}, 4 * sum(x.nbytes for x in qkv))


def plain(shape: tuple[int, int, int, int], targets: dict[str, float]) -> Iterator[Promise]:
    """Yield the cases that torch has kernels for."""
    qkv, (batch, heads, length, _) = memories(*shape), shape
    for name, target in targets.items():
        causal = "causal" in name
        sides: dict[str, Attention] = {
            "softargmax": lambda q, k, v, causal=causal: sa.attention(q, k, v, causal=causal),
            "SDPA": lambda q, k, v, causal=causal: scaled_dot_product_attention(q, k, v, is_causal=causal),
        }
        pairs = batch * heads * length * ((length + 1) / 2 if causal else length)
        forward = "backward" not in name
        promise = (case if forward else both)(f"{name} {'x'.join(map(str, shape))}", qkv, pairs, sides, target)
        promise.aims = {"sgemm": 0.8} if forward else {}
        yield promise


def windowed(length: int, window: int) -> Promise:
    """Return the case of causal queries that attend to only the last `window` keys."""
    place = torch.arange(length)
    behind = place[:, None] - place
    mask = (behind >= 0) & (behind < window)
    sides: dict[str, Attention] = {
        "softargmax": lambda q, k, v: sa.attention(q, k, v, causal=True, window=(window - 1, 0)),
        "SDPA, mask": lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask),
    }
    name = f"attention, causal, window {window} 1x8x{length}x64"
    return case(name, memories(1, 8, length, 64), 8 * float(mask.sum()), sides, 8.0)


def capped(length: int, cap: float) -> Promise:
    """Return the case of attention with both a soft-cap and a bias for every head."""
    bias = normal(8, length, length)
    sides: dict[str, Attention] = {
        "softargmax": lambda q, k, v: sa.attention(q, k, v, softcap=cap, bias=bias),
        "eager": lambda q, k, v: torch.softmax(torch.tanh(q @ k.mT / (cap * 8)) * cap + bias, -1) @ v,
    }
    name = f"attention, soft-cap and bias 1x8x{length}x64"
    promise = case(name, memories(1, 8, length, 64), 8 * length**2, sides, 3.0)
    promise.bytes += bias.nbytes
    return promise


def sparse(length: int) -> Promise:
    """Return the case of attention with 1.5-entmax instead of softmax."""
    sides: dict[str, Attention] = {
        "softargmax": lambda q, k, v: sa.attention(q, k, v, alpha=1.5),
        "entmax": lambda q, k, v: entmax15(q @ k.mT / 8, -1) @ v,
    }
    return case(f"attention, entmax 1.5 1x8x{length}x64", memories(1, 8, length, 64), 8 * length**2, sides, 10.0)


def decoding(batch: int, heads: int, kv_heads: int, keys: int, width: int) -> Promise:
    """Return the case of one new query per sequence, which reads all cached keys and values."""
    q, k, v = normal(batch, heads, 1, width), *normal(2, batch, kv_heads, keys, width)
    grouped = batch, kv_heads, heads // kv_heads, width
    sides: dict[str, Attention] = {
        "softargmax": sa.attention,
        "SDPA": lambda q, k, v: scaled_dot_product_attention(q, k, v, enable_gqa=True),
        # The heads that share keys as queries of one head: the same result, and torch reads each key once.
        "SDPA, heads as queries": lambda q, k, v: scaled_dot_product_attention(q.view(grouped), k, v).view(q.shape),
    }
    assert torch.allclose(*(sides[side](q, k, v) for side in list(sides)[1:]), atol=1e-5)  # noqa: S101
    name = f"attention, decoding {batch}x{heads}/{kv_heads}x1x{keys}x{width}"
    promise = case(name, (q, k, v), batch * heads * keys, sides, 2.0)
    promise.targets["SDPA, heads as queries"] = 2.0
    return promise


def packed(count: int, least: int, most: int) -> Promise:
    """Return the case of concatenated sequences of many lengths. The peer pads the sequences to the longest length."""
    lengths = torch.linspace(least, most, count).long()
    cu = pad(lengths.cumsum(0), (1, 0)).int()
    total = int(cu[-1])
    q, k, v = normal(3, total, 8, 64)
    used = torch.arange(most) < lengths[:, None]
    padded = [x.new_zeros(count, most, 8, 64) for x in (q, k, v)]
    for to, x in zip(padded, (q, k, v), strict=True):
        to[used] = x
    q_, k_, v_ = (x.transpose(1, 2).contiguous() for x in padded)
    sides: dict[str, Any] = {
        "softargmax": lambda *_: sa.attention_varlen(q, k, v, cu, cu),
        "SDPA, padded": lambda *_: scaled_dot_product_attention(q_, k_, v_, attn_mask=used[:, None, None]),
    }
    pairs = 8 * float((lengths**2).sum())
    return case(f"attention, {count} of lengths {least} to {most}, 8 heads, D 64", (q, k, v), pairs, sides, 2.0)


def promises() -> Iterator[Promise]:
    """Yield every case. The arrays of a case are freed before those of the next case are allocated."""
    forward = {"attention": 1.0, "attention, causal": 1.3, "attention, causal, and backward": 1.3}
    yield from plain((1, 8, 2048, 64), forward)
    short = {
        "attention": 1.0,
        "attention, causal": 1.4,
        "attention, and backward": 1.0,
        "attention, causal, and backward": 1.3,
    }
    yield from plain((4, 8, 512, 64), short)
    yield from plain((1, 4, 16, 32), {"attention": 0.5})  # mostly the overhead of a call
    yield windowed(4096, 256)
    yield capped(2048, 20.0)
    yield decoding(8, 32, 8, 8192, 128)
    yield sparse(2048)
    yield packed(8, 16, 2048)


if __name__ == "__main__":
    sys.exit(main(__doc__, promises(), "attend", memory))
