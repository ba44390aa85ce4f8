"""CUDA kernels of attention, also of packed sequences and pages: what they serve, layouts and sizes of tiles.

Kernels serve the orders 1, 1.5 and 2, for bfloat16 and float16 with heads of at most 256 numbers, and for float32 with
heads of at most 128. The definition serves all other calls. triton_forward.py computes the output, triton_backward.py
the gradients, triton_entmax.py what orders above 1 need besides, and triton_mend.py rows with NaN, inf or an overflow.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from softargmax.attend import operations, reference
from softargmax.attend.arguments import Attention, AttentionGradients, AttentionVjp
from softargmax.attend.dropout import threshold
from softargmax.attend.triton_backward import prepare, to_keys, to_queries
from softargmax.attend.triton_entmax import prepare_entmax
from softargmax.attend.triton_forward import forward, merge_splits, split
from softargmax.attend.triton_mend import mend, mend_keys, mend_queries
from softargmax.attend.triton_tiles import FOLDED, LOG2E, MAPS, NUMBER, PER_QUERY, SOFTMAX
from softargmax.core.triton_launch import LONGEST, Block, cdiv, define, launch, next_power_of_2, served

if TYPE_CHECKING:
    from torch import Tensor

    from softargmax.attend.arguments import Options, Packed, PackedVjp, Pages

MENDED = 128
"""Queries per program that looks for strange rows."""
AT_ONCE = 1
"""Keys or queries at once where mended rows of gradients and of split keys are computed: more need more registers."""
PREPARED = 64
"""Queries per program that computes delta."""
FEW = 16
"""Calls with at most so many queries split the keys between programs."""
SPLIT = 512
"""Keys per program. It depends on nothing else, because it fixes the order of sums."""
WIDEST = 256
"""The largest head size of the kernels."""
_OPTION_AXES = {"scale": "bhl", "mask": "bhlk", "bias": "bhlk", "sink": "bh", "lengths": "b", "slopes": "bh",
                "seeds": "bhlk"}  # fmt: skip
"""The axes of options along which kernels have strides: batch, heads, queries (l) and keys (k; of a seed its words)."""


def attention(i: Attention, r: Any) -> None:
    """Compute the output, and lse if there is memory for it."""
    if not _served(i, r[0]):
        define(operations.attention, i, r)
        return
    _write(_named(i), *r)
    _refuse_lengths(i.options, i.k.shape[-2], *r)


def attention_varlen(i: Packed, r: Any) -> None:
    """Compute the output of packed sequences, and lse if there is memory for it."""
    if not (_served(i.whole, r[0]) and len(i.cu_q) > 1):
        define(operations.attention_varlen, i, r)
        return
    sequences, wrong = _sequences(i)
    _write(_named(i.whole) | sequences, *r)
    _refuse(wrong, *r)


def attention_paged(i: Pages, r: Any) -> None:
    """Compute the output of attention to pages, and lse if there is memory for it."""
    k, v = (x.permute(0, 2, 1, 3) for x in (i.k_pages, i.v_pages))
    of, (pages, size) = Attention(i.q, k, v, i.options), i.k_pages.shape[:2]
    if not (_served(of, r[0]) and 0 < i.page_table.shape[1] * size < LONGEST):
        define(operations.attention_paged, i, r)
        return
    lengths: Any = i.options.lengths
    used = torch.arange(i.page_table.shape[1], device=lengths.device) * size < lengths[..., 0, 0]
    wrong = (used & ((i.page_table < 0) | (i.page_table >= pages))).any(-1)
    table = i.page_table.clamp(0, pages - 1).contiguous()
    named = _named(of, table.shape[1])
    _write(named | {"table": table, "table_b": table.stride(0), "page": size, "PAGED": True}, *r)
    _refuse_lengths(i.options, named["keys"], *r)
    _refuse(wrong[:, None, None, None], *r)


def _write(named: dict[str, Any], output: Tensor, lse: Tensor | None) -> None:
    """Launch the kernels that compute the output, and lse if there is memory for it."""
    memory = Written()
    given = {"lse": named["q"] if lse is None else memory.flat(lse), "LSE": lse is not None}
    _forward(named | memory.of("output", output) | given)
    memory.finish()


def _sequences(i: Packed) -> tuple[dict[str, Any], Tensor]:
    """The arguments of kernels for packed sequences, and True if the bounds are wrong.

    Bounds on a GPU are not read before the call. Here they are clamped, so that kernels read no other memory.
    """
    named: dict[str, Any] = {"sequences": len(i.cu_q) - 1, "PACKED": True}
    wrong = []
    for name, given, total in (("cu_q", i.cu_q, i.whole.q.shape[-2]), ("cu_k", i.cu_k, i.whole.k.shape[-2])):
        offsets = given.long()  # a narrow dtype may not hold the total
        wrong.append((offsets[0] != 0) | (offsets[-1] != total) | (offsets[1:] < offsets[:-1]).any())
        named[name] = offsets.clamp(0, total).to(torch.int32).contiguous()
    return named, wrong[0] | wrong[1]


def _served(i: Attention, *results: Tensor) -> bool:
    options, widest = i.options, max(i.q.shape[-1], i.v.shape[-1])
    arrays = [x for x in options if isinstance(x, torch.Tensor)]
    fits = widest <= (WIDEST if i.q.dtype.itemsize == 2 else WIDEST // 2) and max(i.scores[-2:]) < LONGEST
    plain = isinstance(options.alpha, float) and options.alpha in MAPS and all(x.numel() for x in arrays)
    return plain and fits and served(*i[:3], *results)


def attention_vjp(i: AttentionVjp, r: Any) -> None:
    """Compute the gradients of <g, output> + <g_lse, lse>."""
    if not (_served(i.of, i.g, *r[:3]) and i.lse.numel()):
        define(operations.attention_vjp, i, r)
        return
    _write_gradients(_named(i.of), i, AttentionGradients(*r))
    _refuse_lengths(i.of.options, i.of.k.shape[-2], *r[:3])


def attention_varlen_vjp(i: PackedVjp, r: Any) -> None:
    """Compute the gradients of <g, output> + <g_lse, lse> for packed sequences."""
    of = AttentionVjp(i.g, i.g_lse, i.packed.whole, i.output, i.lse, False)
    if not (_served(of.of, i.g, *r[:3]) and i.lse.numel() and len(i.packed.cu_q) > 1):
        define(operations.attention_varlen_vjp, i, r)
        return
    sequences, wrong = _sequences(i.packed)
    _write_gradients(_named(of.of) | sequences, of, AttentionGradients(*r))
    _refuse(wrong, *r)


def _write_gradients(named: dict[str, Any], i: AttentionVjp, results: AttentionGradients) -> None:
    """Launch the kernels that compute gradients, and add up those of options."""
    of, memory = i.of, Written()
    wanted = {name: getattr(results, name) for name in ("scale", "bias", "sink", "slopes")}  # empty if not
    batch = of.q.shape[:-3]
    for name, x in (("g", i.g), ("output", i.output)):
        laid = flattened(x, batch)
        laid = laid if laid.stride(-1) == 1 else laid.contiguous()
        named |= {name: laid} | strides(name, laid)
    for name in ("q", "k", "v"):
        named |= memory.of(f"d{name}", getattr(results, name))
    rows = of.q.new_empty((3, *of.q.shape[:-1]), dtype=torch.float32)
    rows[2] = 1.0  # kernels write it for strange queries only
    per_query = (
        torch.empty_like(rows[:2]) if of.options.slopes is not None or named["SCALE"] == PER_QUERY.value else rows
    )
    scores = of.q.new_zeros(of.scores, dtype=torch.float32) if wanted["bias"].numel() else rows
    g_lse = i.g if i.g_lse is None else flattened(i.g_lse[..., None], batch)
    named |= {"g_lse": g_lse, "G_LSE": i.g_lse is not None and of.options.is_softmax} | strides("g_lse", g_lse)
    lse = i.lse.contiguous() if of.options.is_softmax else i.lse.new_empty(i.lse.shape)  # maxima of scores
    named |= {"lse": lse, "of_rows": rows, "per_query": per_query, "bias_gradient": scores}
    named |= {"TO_BIAS": scores is not rows, "VECTOR": 16 // of.q.element_size()}
    _backward(named)
    memory.finish()
    delta, found = rows[1], {"bias": scores, "scale": per_query[0, ..., None], "slopes": per_query[1, ..., None]}
    if wanted["sink"].numel():
        sink: Any = of.options.sink
        gained = torch.where(lse == -math.inf, 0.0, -_slope_of_sink(of.options, lse, rows[2]) * delta)
        found["sink"] = reference.to_heads(gained[..., None], sink)
    for name, result in wanted.items():
        if result.numel():
            result.copy_(reference.summed(found[name], getattr(of.options, name)))


def _slope_of_sink(options: Options, lse: Tensor, root: Tensor) -> Tensor:
    """p of each query's sink, or p^(2 - alpha). The gradient of the sink is the sum of -delta times this slope.

    `lse` and `root` are those of `exact_powers` in triton_exact.py.
    """
    sink: Any = options.sink
    score, infinite = sink[..., 0].double(), lse == math.inf
    if options.is_softmax:
        return torch.where(infinite, (score == math.inf) / root, torch.exp(score - lse))
    v = ((score - lse) * (options.alpha - 1.0) + root).clamp(min=0.0)
    v = torch.where(infinite, torch.where(score == math.inf, root.double(), 0.0), v)
    return v if options.alpha == 1.5 else torch.where(v > 0.0, 1.0, 0.0 * v)


def _refuse_lengths(options: Options, keys: int, *results: Tensor | None) -> None:
    """Set the results of entries of the batch to NaN whose number of keys is out of range."""
    if options.lengths is not None:
        _refuse((options.lengths < 0) | (options.lengths > keys), *results)


def _refuse(wrong: Tensor, *results: Tensor | None) -> None:
    """Set the results to NaN where `wrong`, of the output's shape with axes of size 1, or a number, is True."""
    for result in results:
        if result is not None and result.numel():
            result.masked_fill_(wrong if wrong.ndim in (0, result.ndim) else wrong[..., 0], math.nan)


class Written:
    """The memory of results. A result with another layout than a kernel needs is copied into its own memory at last."""

    def __init__(self) -> None:
        self._copied: list[tuple[Tensor, Tensor]] = []

    def flat(self, x: Tensor) -> Tensor:
        """The memory of a contiguous result."""
        own = x if x.is_contiguous() else torch.empty_like(x, memory_format=torch.contiguous_format)
        if own is not x:
            self._copied.append((x, own))
        return own

    def of(self, name: str, x: Tensor) -> dict[str, Any]:
        """A result (..., heads, length, width) as arguments of a kernel."""
        laid = flattened(x, x.shape[:-3])
        if laid.data_ptr() != x.data_ptr() or laid.stride(-1) != 1:
            own = torch.empty_like(x, memory_format=torch.contiguous_format)
            self._copied.append((x, own))
            laid = flattened(own, x.shape[:-3])
        return {name: laid} | strides(name, laid)

    def finish(self) -> None:
        """Copy results to their own memory."""
        for result, own in self._copied:
            result.copy_(own)


def flattened(x: Tensor, batch: Any) -> Tensor:
    """An array (..., heads, length, width) with one batch axis. It broadcasts along the batch."""
    x = x.expand(*batch, *x.shape[-3:])
    return x if len(batch) == 1 else x.reshape(math.prod(batch), *x.shape[-3:])


def strides(name: str, x: Tensor, axes: str = "bhl") -> dict[str, int]:
    """The strides of an array (batch, heads, length, width) as arguments of a kernel, 0 for axes of size 1."""
    return {f"{name}_{axis}": 0 if n == 1 else step for axis, n, step in zip(axes, x.shape, x.stride(), strict=False)}


def _named(i: Attention, pages: int = 0) -> dict[str, Any]:
    """The arguments that all kernels share. If there are pages, k and v have one in place of each entry of the batch.

    `pages` is the number of pages of an entry, or 0.
    """
    options, (heads, queries, width), (groups, keys) = i.options, i.q.shape[-3:], i.k.shape[-3:-1]
    batch, keys = i.q.shape[:-3], keys * (pages or 1)
    named: dict[str, Any] = {}
    for name, x in zip("qkv", i[:3], strict=True):
        laid = x if pages and name != "q" else flattened(x, batch)
        laid = laid if laid.stride(-1) == 1 else laid.contiguous()
        named |= {name: laid} | strides(name, laid)
    for name, axes in _OPTION_AXES.items():
        option = getattr(options, name)
        given = isinstance(option, torch.Tensor)
        if isinstance(option, torch.Tensor):
            # `_refuse_lengths` finishes entries whose number of keys is out of range.
            known = option.clamp(0, keys) if name == "lengths" else option.detach()
            laid = flattened(known.reshape((1,) * (len(batch) + 3 - known.ndim) + tuple(known.shape)), batch)
            named |= {name: laid} | strides(name, laid, axes)
        else:
            named |= {name: named["q"]} | {f"{name}_{axis}": 0 for axis in axes}
        if name != "scale":
            named[name.upper()] = given
    cap, scale = options.softcap, options.scale
    number = 1.0 if isinstance(scale, torch.Tensor) else scale * LOG2E.value / (cap or 1.0)
    plain = 1e-6 < number < 1e6 and cap is None and not (named["BIAS"] or named["SLOPES"]) and options.is_softmax
    far = queries + keys
    named |= {
        "heads": heads, "group": heads // groups, "queries": queries, "keys": keys, "number": number,
        "softcap": float(cap or 0.0), "SOFTCAP": cap is not None, "left": min(options.left or 0, far),
        "right": min(options.right or 0, far), "LEFT": options.left is not None, "RIGHT": options.right is not None,
        "SCALE": (PER_QUERY if isinstance(scale, torch.Tensor) else FOLDED if plain else NUMBER).value,
        "MAP": MAPS[options.alpha], "drop_below": threshold(options.dropout), "gain": 1.0 / (1.0 - options.dropout),
        "D": width, "DV": i.v.shape[-1],
        "PAD": max(16, next_power_of_2(width)), "PADV": max(16, next_power_of_2(i.v.shape[-1])),
        "cu_q": named["q"], "cu_k": named["q"], "sequences": 0, "PACKED": False,
        "table": named["q"], "table_b": 0, "page": 1, "PAGED": False,
    }  # fmt: skip
    return named


# --- the output -------------------------------------------------------------------------------------------------------


def _tiles(named: dict[str, Any], axis: str, size: int) -> int:
    """The number of tiles of `size` queries or keys. Packed sequences have at most one more for each sequence."""
    count = named[axis]
    return count // size + named["sequences"] if named["PACKED"] else cdiv(count, size)


def _forward(named: dict[str, Any]) -> None:
    total, queries = named["q"].shape[0] * named["heads"], named["queries"]
    if queries <= FEW and not named["PACKED"] and named["MAP"] == SOFTMAX.value:
        _split(named, total)
        return
    size, warps, constants = forward_tile(named)
    tiles = _tiles(named, "queries", size)
    flags = named["q"].new_empty(total * queries, dtype=torch.int8)
    launch(forward, Block((tiles * total,), warps, constants), **named, tiles=tiles, flags=flags)
    tiles = _tiles(named, "queries", MENDED)
    warps = 16 if named["q"].dtype is torch.float32 else 4 if max(named["PAD"], named["PADV"]) <= 128 else 8
    launch(mend, Block((tiles * total,), warps, {"M": MENDED, "N": 16}), **named, tiles=tiles, flags=flags)


def _split(named: dict[str, Any], total: int) -> None:
    group, queries = named["group"], named["queries"]
    size, warps, constants = split_tile(named)
    parts, tiles = max(1, cdiv(named["keys"], SPLIT)), cdiv(group * queries, size)
    states = total * queries * parts
    memory = named["q"].new_empty(states * (named["DV"] + 2), dtype=torch.float32)
    sizes = states * named["DV"], states, states
    named |= dict(zip(("o_parts", "m_parts", "l_parts"), memory.split(sizes), strict=True)) | {"parts": parts}
    constants["LENGTH"] = SPLIT
    launch(split, Block((total // group * tiles * parts,), warps, constants), **named, tiles=tiles)
    launch(merge_splits, Block((total * queries,), 2, {"N": AT_ONCE}), **named)


def split_tile(named: dict[str, Any]) -> tuple[int, int, dict[str, Any]]:
    """Queries per tile, warps, and the constants of `split`."""
    wide = max(named["PAD"], named["PADV"])
    if named["q"].dtype == torch.float32:
        m, n, warps, stages = 16, 16 if special(named) and wide > 64 else 32, 8, 2
    elif wide <= 128:
        m, n, warps, stages = 16, 64, 8 if special(named) and wide > 64 else 4, 3
    else:
        m, n, warps, stages = 16, 32, 8, 3
    return m, warps, {"M": m, "N": n, "STAGES": stages}


def special(named: dict[str, Any]) -> bool:
    """True for options that need registers, so tiles are smaller."""
    return named["MASK"] or named["SEEDS"] or named["SCALE"] != FOLDED.value


def forward_tile(named: dict[str, Any]) -> tuple[int, int, dict[str, Any]]:
    """Queries per tile, warps, and the constants of `forward`."""
    wide = max(named["PAD"], named["PADV"])
    if named["q"].dtype == torch.float32:
        m, n, warps, stages = 16 if special(named) else 32, 32, 8, 2
    elif special(named) or wide > 128:  # 128 queries of 256 numbers would need more than 99 KiB of shared memory
        m, n, warps, stages = 64, 32, 8, 2
    elif wide <= 64:
        m, n, warps, stages = 128, 128, 8, 3
    else:
        m, n, warps, stages = 128, 64, 8, 3
    return m, warps, {"M": m, "N": n, "STAGES": stages}


# --- the gradients ----------------------------------------------------------------------------------------------------


def _backward(named: dict[str, Any]) -> None:
    entries, heads, queries = named["q"].shape[0], named["heads"], named["queries"]
    of_queries, of_keys = backward_tiles(named)
    size, warps, constants = of_queries
    tiles = _tiles(named, "queries", size)
    if named["MAP"] == SOFTMAX.value:
        prepared = cdiv(queries, PREPARED)
        launch(prepare, Block((prepared * entries * heads,), 4, {"M": PREPARED}), **named, tiles=prepared)
    else:
        launch(prepare_entmax, Block((tiles * entries * heads,), warps, constants), **named, tiles=tiles)
    flags = named["q"].new_empty(entries * heads * max(queries, named["keys"]), dtype=torch.int8)
    mended = {"M": MENDED, "N": AT_ONCE}
    wide = named["q"].dtype is torch.float32  # these numbers of warps spill nothing with two versions of Triton
    launch(to_queries, Block((tiles * entries * heads,), warps, constants), **named, tiles=tiles, flags=flags)
    tiles = _tiles(named, "queries", MENDED)
    launch(mend_queries, Block((tiles * entries * heads,), 2 if wide else 4, mended), **named, tiles=tiles, flags=flags)
    size, warps, constants = of_keys
    tiles = _tiles(named, "keys", size)
    total = entries * heads // named["group"]
    launch(to_keys, Block((tiles * total,), warps, constants), **named, tiles=tiles, flags=flags)
    tiles = _tiles(named, "keys", MENDED)
    launch(mend_keys, Block((tiles * total,), 16 if wide else 4, mended), **named, tiles=tiles, flags=flags)


def backward_tiles(named: dict[str, Any]) -> list[tuple[int, int, dict[str, Any]]]:
    """Rows per tile, warps, and the constants of `to_queries` and `to_keys`."""
    wide = max(named["PAD"], named["PADV"])
    if named["q"].dtype == torch.float32:
        small = 16 if wide > 64 else 32
        sizes = ((small if special(named) else 32, 32, 8, 2), (small, 32, 8, 2))
    elif special(named):
        sizes = ((64 if wide <= 128 else 32, 32, 8, 2), (64 if wide <= 128 else 32, 32, 8, 2))
    elif wide <= 64:
        sizes = ((128, 64, 8, 3), (32, 128, 8, 3))
    elif wide <= 128:
        sizes = ((128, 64, 8, 2), (32, 128, 8, 2))
    else:
        sizes = ((64, 32, 8, 2), (32, 32, 8, 2))
    return [
        (n if of_keys else m, warps, {"M": m, "N": n, "STAGES": stages})
        for of_keys, (m, n, warps, stages) in enumerate(sizes)
    ]
