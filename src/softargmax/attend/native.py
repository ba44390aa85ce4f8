"""Attention on NumPy arrays, by the compiled core; what it does not serve is the definition's (reference.py)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax import _native
from softargmax.attend import native_sparse, reference
from softargmax.attend.mending import mend
from softargmax.attend.reference_vjp import summed
from softargmax.attend.results import AttentionGradients, AttentionWithLse
from softargmax.core.native import TYPES, fresh, view

if TYPE_CHECKING:
    from softargmax.attend.options import Beside, Heads, Options, Pages

Array = np.ndarray[Any, Any]


def attention(heads: Heads, beside: Beside, options: Options) -> AttentionWithLse:
    """The output, in q's dtype, and lse in float64 (of other orders than 1: NaN)."""
    if not served(beside):
        sparse = native_sparse.formed(heads, beside, options)
        return reference.attention(heads, beside, options) if sparse is None else sparse
    found, strange = formed(heads, beside, options)
    if strange is not None:
        mend(found, strange, heads, beside, options)
    return found


def served(beside: Beside) -> bool:
    """Whether it is of order 1, which is one pass over keys and values."""
    return isinstance(beside.alpha, float) and beside.alpha == 1.0


def vjp(heads: Heads, beside: Beside, options: Options, g: Any, g_lse: Any) -> AttentionGradients:
    """The gradients of <g, output> + <g_lse, lse>."""
    found, strange = formed(heads, beside, options)
    if strange is None:
        gradients = pulled(heads, beside, options, found, g, g_lse, to_bias=beside.bias is not None)
        if gradients is not None:
            return gradients._replace(
                scale=summed(gradients.scale, beside.scale),
                sink=summed(gradients.sink, beside.sink),
            )
    return reference.vjp(heads, beside, options, g, g_lse)


def formed(heads: Heads, beside: Beside, options: Options) -> tuple[AttentionWithLse, Array | None]:
    """Attention by the core, and which queries (..., H, L) have no result, as numbers were not finite; None: no one.

    bfloat16 may be its bits.
    """
    q, k, v = heads
    output, lse = fresh((*q.shape[:-1], v.shape[-1]), q.dtype), np.empty(q.shape[:-1])
    strange = np.empty(lse.size, np.uint8)
    beside_it = _spread(q, k.shape[-2], beside, options)
    whole = _native.attend(view(q), view(k), view(v), view(output), lse, strange, **beside_it)
    return AttentionWithLse(output, lse), None if whole else strange.reshape(lse.shape)


def paged(q: Array, pages: Pages, beside: Beside, options: Options) -> Any:
    """The output for keys in pages."""
    found = formed_of_pages(q, pages, beside, options) if served(beside) else None
    return attention(reference.side_by_side(q, pages, beside), beside, options).output if found is None else found


def formed_of_pages(q: Array, pages: Pages, beside: Beside, options: Options) -> Array | None:
    """The same by the core; None where numbers that are not finite want the definition."""
    output, lse = fresh((*q.shape[:-1], pages.v.shape[-1]), q.dtype), np.empty(q.shape[:-1])
    beside_it = _spread(q, pages.keys, beside, options)
    table = np.ascontiguousarray(pages.table, np.int64)
    strange = np.empty(lse.size, np.uint8)
    whole = _native.attend(view(q), view(pages.k), view(pages.v), view(output), lse, strange, table=table, **beside_it)
    return output if whole else None


def pulled(
    heads: Heads,
    beside: Beside,
    options: Options,
    found: AttentionWithLse,
    seed: Array,
    to_lse: Array | None,
    *,
    to_bias: bool = False,
) -> AttentionGradients | None:
    """The gradients of <seed, output> + <to_lse, lse>; None where numbers that are not finite want the definition."""
    dq, dk, dv = (fresh(x.shape, x.dtype) for x in heads)
    if not found.lse.size:
        dq, dk, dv = (np.zeros_like(x) for x in heads)
    delta, dscale = np.empty(found.lse.shape), np.empty(found.lse.shape)
    strange = np.empty(math.prod(heads.k.shape[:-2]), np.uint8)
    if to_lse is not None:
        to_lse = np.ascontiguousarray(to_lse, np.float64)
    beside_it = _spread(heads.q, heads.k.shape[-2], beside, options)
    sink = beside_it.pop("sink")
    arrays = (*heads, found.output, np.ascontiguousarray(found.lse), seed, to_lse, dq, dk, dv)
    views = [x if x is None else view(x) for x in arrays]
    gradient: Any = _native.attend_gradient
    dbias = spread = None
    if to_bias:
        dbias = np.zeros(beside.bias.shape, np.float64 if heads.q.dtype == np.float64 else np.float32)
        whole = np.broadcast_to(dbias, heads.scores)
        spread = (
            dbias.ctypes.data,
            TYPES[dbias.dtype.name],
            whole.shape,
            tuple(stride // dbias.itemsize for stride in whole.strides),
        )
    if not gradient(*views, delta=delta, dscale=dscale, dbias=spread, strange=strange, **beside_it):
        return None
    dsink = None
    if sink is not None:
        with np.errstate(invalid="ignore"):
            p = np.exp(np.where(found.lse == -np.inf, -np.inf, sink[:, None] - found.lse))
        dsink = -(p * delta).sum(axis=(*range(delta.ndim - 2), -1))
    return AttentionGradients(dq, dk, dv, dscale[..., None], dbias, dsink)


def _spread(q: Array, keys: int, beside: Beside, options: Options) -> dict[str, Any]:
    """What stands beside q, k and v as the core takes it: of full shape, with strides of 0."""
    batch, scores = q.shape[:-3], (*q.shape[:-1], keys)
    sink, lengths = beside.sink, beside.lengths
    if sink is not None:
        sink = np.ascontiguousarray(np.broadcast_to(sink, q.shape[-3:-2]), np.float64)
    if lengths is not None:
        lengths = np.ascontiguousarray(np.broadcast_to(lengths[..., 0, 0, 0], batch), np.int64).reshape(-1)
    seeds = None
    if beside.seeds is not None:
        words = np.broadcast_to(beside.seeds, (*q.shape[:-2], 1, 2)).astype(np.uint64).reshape(-1, 2)
        seeds = words[:, 0] | words[:, 1] << np.uint64(32)
    return {
        "scale": np.broadcast_to(np.asarray(beside.scale, np.float64), (*scores[:-1], 1)),
        "mask": None if beside.mask is None else np.broadcast_to(beside.mask, scores),
        "bias": None if beside.bias is None else view(np.broadcast_to(beside.bias, scores)),
        "sink": sink,
        "lengths": lengths,
        "seeds": seeds,
        "left": -1 if options.left is None else options.left,
        "right": -1 if options.right is None else options.right,
        "softcap": options.softcap or 0.0,
        "dropout": options.dropout,
    }
