"""Attention on NumPy arrays, by the compiled core; what it does not serve is the definition's (reference.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax import _native
from softargmax.attend import reference
from softargmax.attend.results import AttentionWithLse
from softargmax.core.native import TYPES, fresh, view

if TYPE_CHECKING:
    from softargmax.attend.options import Beside, Heads, Options

Array = np.ndarray[Any, Any]


class Pulled(NamedTuple):
    """Gradients to q, k and v, to the scale of every query, to the bias if wanted, and to the sink of every head."""

    q: Array
    k: Array
    v: Array
    scale: Array
    bias: Array | None
    sink: Array | None


def attention(heads: Heads, beside: Beside, options: Options) -> AttentionWithLse:
    """The output, in q's dtype, and lse in float64 (of other orders than 1: NaN)."""
    found = formed(heads, beside, options) if served(beside) else None
    return reference.attention(heads, beside, options) if found is None else found


def served(beside: Beside) -> bool:
    """Whether the core knows what is asked for: orders other than 1 it does not."""
    return isinstance(beside.alpha, float) and beside.alpha == 1.0


def formed(heads: Heads, beside: Beside, options: Options) -> AttentionWithLse | None:
    """Attention by the core; None where numbers that are not finite want the definition. bfloat16 may be its bits."""
    q, k, v = heads
    output, lse = fresh((*q.shape[:-1], v.shape[-1]), q.dtype), np.empty(q.shape[:-1])
    whole = _native.attend(view(q), view(k), view(v), view(output), lse, **_spread(heads, beside, options))
    return AttentionWithLse(output, lse) if whole else None


def pulled(
    heads: Heads,
    beside: Beside,
    options: Options,
    found: AttentionWithLse,
    seed: Array,
    to_lse: Array | None,
    *,
    to_bias: bool = False,
) -> Pulled | None:
    """The gradients of <seed, output> + <to_lse, lse>; None where numbers that are not finite want the definition."""
    dq, dk, dv = (fresh(x.shape, x.dtype) for x in heads)
    delta, dscale = np.empty(found.lse.shape), np.empty(found.lse.shape)
    if to_lse is not None:
        to_lse = np.ascontiguousarray(to_lse, np.float64)
    beside_it = _spread(heads, beside, options)
    sink = beside_it.pop("sink")
    arrays = (*heads, found.output, found.lse, seed, to_lse, dq, dk, dv)
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
    if not gradient(*views, delta=delta, dscale=dscale, dbias=spread, **beside_it):
        return None
    dsink = None
    if sink is not None:
        with np.errstate(invalid="ignore"):
            p = np.exp(np.where(found.lse == -np.inf, -np.inf, sink[:, None] - found.lse))
        dsink = -(p * delta).sum(axis=(*range(delta.ndim - 2), -1))
    return Pulled(dq, dk, dv, dscale, dbias, dsink)


def _spread(heads: Heads, beside: Beside, options: Options) -> dict[str, Any]:
    """What stands beside q, k and v as the core takes it: of full shape, with strides of 0."""
    batch, scores = heads.q.shape[:-3], heads.scores
    sink, lengths = beside.sink, beside.lengths
    if sink is not None:
        sink = np.ascontiguousarray(np.broadcast_to(sink, heads.q.shape[-3:-2]), np.float64)
    if lengths is not None:
        lengths = np.ascontiguousarray(np.broadcast_to(lengths[..., 0, 0, 0], batch), np.int64).reshape(-1)
    return {
        "scale": np.broadcast_to(np.asarray(beside.scale, np.float64), (*scores[:-1], 1)),
        "mask": None if beside.mask is None else np.broadcast_to(beside.mask, scores),
        "bias": None if beside.bias is None else view(np.broadcast_to(beside.bias, scores)),
        "sink": sink,
        "lengths": lengths,
        "left": -1 if options.left is None else options.left,
        "right": -1 if options.right is None else options.right,
        "softcap": options.softcap or 0.0,
    }
