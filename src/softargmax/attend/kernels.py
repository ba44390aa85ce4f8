"""What serves CPU memory: the native kernels and what stands around them, the same for NumPy's arrays and for tensors.

A query whose numbers are not finite in the native kernel is made anew by the definition; others keep their bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softargmax.attend import native_sparse, reference
from softargmax.attend.arguments import Attention, AttentionGradients, AttentionVjp, Pages
from softargmax.attend.results import AttentionWithLse
from softargmax.core import _native
from softargmax.core.arrays import frozen, namespace, readable, recorded
from softargmax.core.memory import Memory, memory_of
from softargmax.core.native_call import Native
from softargmax.core.record import parameters

_attend = Native(_native.attend, Attention, AttentionWithLse._fields)
_attend_paged = Native(_native.attend_paged, Pages, AttentionWithLse._fields)
_NATIVE = {name: f"d{name}" for name in AttentionGradients._fields if f"d{name}" in parameters(_native.attend_vjp)}
"""What the kernel calls the gradients that it has."""
_OF_QUERIES = {name: to for name, to in _NATIVE.items() if name not in ("q", "k", "v", "bias")}
"""Those that have a number for each query."""
_NONE: dict[str, Any] = dict.fromkeys((*_NATIVE.values(), "delta"))
_attend_vjp = Native(_native.attend_vjp, AttentionVjp, tuple(_NONE))


def attend(i: Attention, output: Any, lse: Any) -> None:
    """Output, and lse in float64 (of other orders than 1: NaN)."""
    if i.options.is_softmax:
        strange = _attend(i, output=output, lse=lse)
        if strange is not None:
            _mend(i, output, lse, strange.reshape(lse.shape))
        return
    lse[...] = np.nan
    if not native_sparse.attend(_in_numpy(i), memory_of(output).numpy(output)):
        output[...] = reference.attention(*_frozen(i)).output


def attend_paged(i: Pages, output: Any, lse: Any) -> None:
    """The same for keys in pages."""
    if not i.options.is_softmax or _attend_paged(i, output=output, lse=lse) is not None:
        attend(reference.side_by_side(*i), output, lse)


def attend_vjp(i: AttentionVjp, r: tuple[Any, ...]) -> None:
    """The gradients of <g, output> + <g_lse, lse>."""
    found = _softmax_vjp(i, AttentionGradients(*r)) if i.of.options.is_softmax else _entmax_vjp(i)
    if found is None:
        found = reference.vjp(_frozen(i.of), frozen(i.g), None if i.g_lse is None else frozen(i.g_lse))
    for to, x in zip(r, found, strict=True):
        if x is not to and to.shape != (0,):
            to[...] = x


def _softmax_vjp(i: AttentionVjp, r: AttentionGradients) -> AttentionGradients | None:
    """dq, dk, dv, and dbias if it can be, are written; None where numbers that are not finite want the definition."""
    memory, options = memory_of(r.q), i.of.options
    double, single = memory.dtypes["float64"], memory.dtypes["float32"]
    delta = memory.empty(r.q, i.lse.shape, double)
    given: dict[str, Any] = {**_NONE, "dq": r.q, "dk": r.k, "dv": r.v, "delta": delta}
    found: dict[str, Any] = {}
    if i.to_bias and options.bias is not None:
        kind = double if r.q.dtype == double else single
        found["bias"] = given["dbias"] = r.bias if r.bias.dtype == kind else memory.empty(r.q, options.bias.shape, kind)
        found["bias"][...] = 0.0
    for name, to in _OF_QUERIES.items():
        if hasattr(getattr(options, name), "shape"):
            found[name] = given[to] = memory.empty(r.q, i.lse.shape, double)
            found[name][...] = 0.0
    if 0 in i.lse.shape:
        r.k[...], r.v[...] = 0.0, 0.0
    if _attend_vjp(i, **given) is not None:
        return None
    for name in found.keys() & _OF_QUERIES.keys():
        found[name] = reference.summed(found[name][..., None], getattr(options, name))
    if options.sink is not None:
        found["sink"] = _to_sink(i, memory, delta)
    return r._replace(**found) if found else r


def _entmax_vjp(i: AttentionVjp) -> AttentionGradients | None:
    memory = memory_of(i.g)
    found = native_sparse.attend_vjp(_in_numpy(i.of), memory.numpy(i.g))
    if found is None:
        return None
    return AttentionGradients(
        *(
            reference.summed(x if x is None else memory.array(x), like)
            for x, like in zip(found, i.of.learned, strict=True)
        )
    )


def _to_sink(i: AttentionVjp, memory: Memory, delta: Any) -> Any:
    """-e^(sink - lse) delta, of all queries."""
    sink, lse, delta = (memory.numpy(x) for x in (i.of.options.sink, i.lse, delta))
    with np.errstate(invalid="ignore"):
        p = np.exp(np.where(lse == -np.inf, -np.inf, sink[..., 0].astype(np.float64) - lse))
    to_heads = reference.to_heads(-(p * delta)[..., None], sink)
    return reference.summed(memory.array(to_heads), i.of.options.sink)


def _mend(i: Attention, output: Any, lse: Any, strange: np.ndarray[Any, Any]) -> None:
    """Write the definition's results where `strange` (..., H, L) says so."""
    groups, length = i.k.shape[-3], i.q.shape[-2]
    each = i.q.shape[-3] // groups
    wrong = strange.reshape(*strange.shape[:-2], groups, each * length).any(-1)
    rows_of = memory_of(output).array(strange != 0)
    for *entry, group in np.argwhere(wrong).tolist():
        at: Any = (*entry, slice(group * each, (group + 1) * each))
        right = reference.attention(*_head(_frozen(i), (*entry, slice(group, group + 1)), at))
        rows = rows_of[at]
        output[at][rows] = right.output[rows]
        lse[at][rows] = namespace(lse).astype(right.lse, lse.dtype)[rows]


def _head(i: Attention, of_keys: tuple[Any, ...], at: Any) -> Attention:
    """One head of keys and the heads that read it."""
    xp, heads = namespace(i.q), tuple(i.q.shape[:-2])

    def there(x: Any) -> Any:
        last = (1, 1, *x.shape)[-2:]
        return xp.broadcast_to(x, (*heads, *last))[at]

    return Attention(i.q[at], i.k[of_keys], i.v[of_keys], i.options.each(there))


def _in_numpy(i: Attention) -> Attention:
    """The same memory as NumPy's arrays."""
    return i.each(memory_of(i.q).numpy)


def _frozen(i: Attention) -> Attention:
    """The same as constants."""
    return i.each(frozen)


def serves_entmax(i: Attention, g: Any) -> bool:
    """Whether the gradients of another order are `attend_vjp`'s: of finite numbers, to be taken once."""
    return readable(i.q) and not recorded(i.q) and native_sparse.serves(_in_numpy(i), memory_of(g).numpy(g))
