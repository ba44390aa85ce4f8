"""Calls of the compiled kernels for NumPy arrays and tensors, with the Python code around them.

The native kernel flags each query for which it finds a NaN, an infinity or an overflow. The definition then recomputes
the output and the gradients of the flagged queries. The results of other queries keep their bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.attend import native_entmax, reference
from softargmax.attend.arguments import OF_KEYS, Attention, AttentionGradients, AttentionVjp, Pages
from softargmax.attend.results import AttentionWithLse
from softargmax.core import _native
from softargmax.core.arrays import frozen, namespace, readable, recorded
from softargmax.core.memory import memory_of
from softargmax.core.operation import Native
from softargmax.core.processes import exchanges, processes_of, refuse_spread
from softargmax.core.record import parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from softargmax.core.memory import Memory

_attend = Native(_native.attend, Attention, AttentionWithLse._fields)
_attend_paged = Native(_native.attend_paged, Pages, AttentionWithLse._fields)
_NATIVE = {name: f"d{name}" for name in AttentionGradients._fields if f"d{name}" in parameters(_native.attend_vjp)}
"""Fields of AttentionGradients that the kernel computes. Each maps to the kernel's argument for this gradient."""
_OF_QUERIES = {name: to for name, to in _NATIVE.items() if name not in ("q", "k", "v", "bias")}
"""The items of `_NATIVE` for gradients that the kernel writes as one number per query."""
_NONE: dict[str, Any] = dict.fromkeys((*_NATIVE.values(), "delta"))
_attend_vjp = Native(_native.attend_vjp, AttentionVjp, tuple(_NONE))


def attend(i: Attention, output: Any, lse: Any) -> None:
    """Write the output. Unless `lse` is None, write lse in float64 (NaN for orders other than 1)."""
    if i.options.is_softmax:
        nonfinite = _attend(i, output, lse)
        if nonfinite is not None and i.options.spread is not None:
            if not processes_of(i.options.spread).note():  # all processes have the same flags
                attend(with_all_keys(i), output, lse)
        elif nonfinite is not None:
            _recompute(i, output, lse, nonfinite.reshape(output.shape[:-1]))
        return
    refuse_spread(i.options.spread)
    if lse is not None:
        lse[...] = np.nan
    with np.errstate(all="ignore"):
        found = native_entmax.attend(_in_numpy(i), memory_of(output).numpy(output))
    if found is None:
        output[...] = reference.attention(*_frozen(i)).output
    else:
        _recompute(i, output, lse, found)


def attend_paged(i: Pages, output: Any, lse: Any) -> None:
    """Write output and lse for keys in pages."""
    if not i.options.is_softmax or _attend_paged(i, output, lse) is not None:
        attend(reference.keys_of_pages(*i), output, lse)


def attend_vjp(i: AttentionVjp, r: tuple[Any, ...]) -> None:
    """Write the gradients of <g, output> + <g_lse, lse> to the arrays of r."""
    found = _softmax_vjp(i, AttentionGradients(*r)) if i.of.options.is_softmax else _entmax_vjp(i)
    if found is None and i.of.options.spread is not None:
        noted = processes_of(i.of.options.spread).note()
        found = AttentionGradients(*r) if noted else _vjp_with_all_keys(i, AttentionGradients(*r))
    if found is None:
        found = reference.vjp(_frozen(i.of), frozen(i.g), None if i.g_lse is None else frozen(i.g_lse))
    for to, x in zip(r, found, strict=True):
        if x is not to and to.shape != (0,):
            to[...] = x


@np.errstate(all="ignore")
def _softmax_vjp(i: AttentionVjp, r: AttentionGradients) -> AttentionGradients | None:
    """Return all gradients. Write dq, dk and dv to the arrays of r, and also dbias if r.bias has the kernel's dtype.
    Return None if keys are spread over processes, and a number in one of them is not finite.

    Some gradients are sums over queries. The kernel leaves out queries whose numbers are not finite. The definition
    adds the gradients of these queries afterwards. Gradients that do not depend on these queries keep their bits.
    """
    memory, options = memory_of(r.q), i.of.options
    double, single = memory.dtypes["float64"], memory.dtypes["float32"]
    delta = memory.empty(r.q, i.lse.shape, double)
    outputs: dict[str, Any] = {**_NONE, "dq": r.q, "dk": r.k, "dv": r.v, "delta": delta}
    found: dict[str, Any] = {}
    if i.to_bias and options.bias is not None:
        bias: Any = r.bias
        kind = double if r.q.dtype == double else single
        found["bias"] = outputs["dbias"] = bias if bias.dtype == kind else memory.empty(r.q, options.bias.shape, kind)
    for name, to in _OF_QUERIES.items():
        if hasattr(getattr(options, name), "shape"):
            found[name] = outputs[to] = memory.empty(r.q, i.lse.shape, double)
    if 0 in i.lse.shape:
        r.k[...], r.v[...] = 0.0, 0.0
    flags = _without_nonfinite(i, outputs, found)
    if flags is None:
        return None
    left_out, overflown = flags
    if options.sink is not None:
        found["sink"] = memory.array(_to_sinks(i, memory, delta, left_out))
    if left_out is not None:
        per_query = {name: found[name][..., None] for name in found if name != "bias"}
        _add_left_out(i, r._replace(**found)._replace(**per_query), left_out)
        _put_overflown(i, r, overflown)
    for name in found.keys() & {*_OF_QUERIES, "sink"}:
        gradient = found[name][..., None]
        if name == "sink":
            gradient = memory.array(reference.to_heads(memory.numpy(gradient), options.sink))
        found[name] = reference.summed(gradient, getattr(options, name))
    return r._replace(**found) if found else r


def _without_nonfinite(i: AttentionVjp, outputs: dict[str, Any], found: dict[str, Any]) -> tuple[Any, Any] | None:
    """Compute the gradients over all queries whose numbers are finite.

    Return flags of the queries that were left out, and flags of the keys whose sums overflowed. Both are None if no
    flag is set. Return None if keys are spread over processes, and one of them has set a flag.
    """
    numpy, lse, spread = memory_of(i.lse).numpy, i.lse, i.of.options.spread
    while True:
        for x in found.values():
            x[...] = 0.0
        flags = _attend_vjp(i._replace(lse=lse), *outputs.values())
        if spread is not None and exchanges().is_anywhere(flags is not None, spread):
            return None
        if flags is None:
            return None, None
        queries, keys = np.split(flags, [numpy(lse).size])
        queries = queries.reshape(lse.shape)
        if (queries < 2).all():
            return queries != 0, keys.reshape(i.of.k.shape[:-1]) != 0
        # Flag 2: the query has nonfinite numbers, but was already added to dk and dv. Start again, and leave out every
        # flagged query.
        lse = memory_of(i.lse).array(np.where(queries, np.nan, numpy(lse)))


@np.errstate(all="ignore")
def _add_left_out(i: AttentionVjp, totals: AttentionGradients, left_out: Any) -> None:
    """Use the definition to compute the gradients of the queries in `left_out`, and add them to `totals`."""
    of, g, length = _frozen(i.of), frozen(i.g), i.of.q.shape[-2]
    each = of.q.shape[-3] // max(of.k.shape[-3], 1)
    for *entry, head in np.argwhere(left_out.any(-1)).tolist():
        queries, keys = (*entry, slice(head, head + 1)), (*entry, slice(head // each, head // each + 1))
        of_head = _head(of, keys, queries)
        for part in _runs(left_out[(*entry, head)], reference.cached_parts(of_head)):
            at = (*queries, part)
            g_lse = None if i.g_lse is None else frozen(i.g_lse)[at]
            more = reference.some_queries_vjp(of_head.part(part), part.start, length, g[at], g_lse)
            for name, x in more._asdict().items():
                total = getattr(totals, name)
                if name in ("k", "v"):
                    _add(total, keys, x)
                elif x is not None and total is not None and total.shape != (0,):
                    _add_to(total, (*entry, head, slice(part.start, part.start + x.shape[-2]), slice(None)), x[0])


@np.errstate(all="ignore")
def _put_overflown(i: AttentionVjp, r: AttentionGradients, overflown: Any) -> None:
    """Write the definition's dk and dv of the keys whose sums overflowed in the kernel."""
    of, g = _frozen(i.of), frozen(i.g)
    each = of.q.shape[-3] // of.k.shape[-3]
    for *entry, group in np.argwhere(overflown.any(-1)).tolist():
        keys = (*entry, slice(group, group + 1))
        at = (*entry, slice(group * each, (group + 1) * each))
        defined = reference.vjp(_head(of, keys, at), g[at], None if i.g_lse is None else frozen(i.g_lse)[at])
        rows = memory_of(g).array(overflown[keys])
        for to, x in ((r.k, defined.k), (r.v, defined.v)):
            to[keys][rows] = namespace(x).astype(x, to.dtype)[rows]


def _runs(flags: np.ndarray[Any, Any], parts: list[slice]) -> Iterator[slice]:
    """Yield slices of consecutive flagged queries, each within one of the parts."""
    edges = np.flatnonzero(np.diff(flags, prepend=False, append=False)).tolist()
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        for part in parts:
            if max(start, part.start) < min(stop, part.stop):
                yield slice(max(start, part.start), min(stop, part.stop))


def _add(total: Any, at: tuple[Any, ...], x: Any) -> None:
    """Add x to total[at]. Where x is 0 (for keys that no flagged query sees), the total keeps its bits."""
    xp = namespace(x)
    sums = xp.astype(total[at], x.dtype) + x
    total[at] = xp.where(x != 0.0, xp.astype(sums, total.dtype), total[at])


def _add_to(total: Any, at: tuple[Any, ...], x: Any) -> None:
    """Add x at index `at` to `total`, the gradient of q or of an option.

    Along an axis on which `total` has size 1, x is added to the only element.
    """
    aligned = total.reshape((1,) * (len(at) - total.ndim) + tuple(total.shape))
    broadcast = (slice(None) if isinstance(i, slice) else 0 for i in at)
    index = tuple(i if n > 1 else all_ for i, all_, n in zip(at, broadcast, aligned.shape, strict=True))
    xp = namespace(x)
    aligned[index] = xp.astype(xp.astype(aligned[index], x.dtype) + x, total.dtype)


def _entmax_vjp(i: AttentionVjp) -> AttentionGradients | None:
    memory = memory_of(i.g)
    with np.errstate(all="ignore"):
        found = native_entmax.attend_vjp(_in_numpy(i.of), memory.numpy(i.g))
    if found is None:
        return None
    totals = AttentionGradients(*(x if x is None else memory.array(x) for x in found[0]))
    _add_left_out(i, totals, found[1])
    return AttentionGradients(*(reference.summed(x, like) for x, like in zip(totals, i.of.learned, strict=True)))


def with_all_keys(i: Attention) -> Attention:
    """Return the arguments with the keys of all processes."""
    spread, options = i.options.spread, i.options
    k, v, mask, bias = (
        x if x is None else exchanges().whole(x, OF_KEYS[name], spread)
        for name, x in (("k", i.k), ("v", i.v), ("mask", options.mask), ("bias", options.bias))
    )
    return Attention(i.q, k, v, options._replace(mask=mask, bias=bias, spread=None))


def _vjp_with_all_keys(i: AttentionVjp, r: AttentionGradients) -> AttentionGradients:
    """Return the gradients of this process's keys. Every process computes those of all keys."""
    of, memory, axes = with_all_keys(i.of), memory_of(r.q), gradients_of_keys(i)
    of_all = {name: memory.like(x, x.dtype) for name, x in of.learned._asdict().items() if name in axes}
    attend_vjp(i._replace(of=of), r._replace(**of_all))
    mine = {name: exchanges().part(x, axes[name], i.of.options.spread) for name, x in of_all.items()}
    return r._replace(**mine)


def gradients_of_keys(i: AttentionVjp) -> dict[str, int]:
    """Return the gradients that have numbers for each key, and the axis of the keys."""
    to_bias = i.to_bias and i.of.options.bias is not None
    return {name: OF_KEYS[name] for name in ("k", "v", "bias")[: 2 + to_bias]}


def _to_sinks(i: AttentionVjp, memory: Memory, delta: Any, left_out: Any) -> np.ndarray[Any, Any]:
    """Return -e^(sink - lse) delta of every query, and 0 for the queries that were left out."""
    sink, lse, delta = (memory.numpy(x) for x in (i.of.options.sink, i.lse, delta))
    with np.errstate(all="ignore"):
        p = np.exp(np.where(lse == -np.inf, -np.inf, sink[..., 0].astype(np.float64) - lse))
        return np.where(False if left_out is None else left_out, 0.0, -(p * delta))


def _recompute(i: Attention, output: Any, lse: Any, nonfinite: np.ndarray[Any, Any]) -> None:
    """Write the definition's results for the queries flagged in `nonfinite`, (..., H, L)."""
    groups, length = i.k.shape[-3], i.q.shape[-2]
    each = i.q.shape[-3] // groups
    flagged = nonfinite.reshape(*nonfinite.shape[:-2], groups, each * length).any(-1)
    rows_of = memory_of(output).array(nonfinite != 0)
    for *entry, group in np.argwhere(flagged).tolist():
        at: Any = (*entry, slice(group * each, (group + 1) * each))
        defined = reference.attention(*_head(_frozen(i), (*entry, slice(group, group + 1)), at))
        rows = rows_of[at]
        output[at][rows] = defined.output[rows]
        if lse is not None:
            lse[at][rows] = namespace(lse).astype(defined.lse, lse.dtype)[rows]


def _head(i: Attention, of_keys: tuple[Any, ...], at: Any) -> Attention:
    """Return the arguments for one head of keys and the query heads that share it."""
    xp, heads = namespace(i.q), tuple(i.q.shape[:-2])

    def of_head(x: Any) -> Any:
        last = (1, 1, *x.shape)[-2:]
        return xp.broadcast_to(x, (*heads, *last))[at]

    return Attention(i.q[at], i.k[of_keys], i.v[of_keys], i.options.each(of_head))


def _in_numpy(i: Attention) -> Attention:
    """Return the arguments as NumPy arrays, without copying memory."""
    return i.each(memory_of(i.q).numpy)


def _frozen(i: Attention) -> Attention:
    """Return the arguments as constants, which have no derivative."""
    return i.each(frozen)


def serves_entmax(i: Attention) -> bool:
    """True if `attend_vjp` can compute the gradients for orders other than 1.

    The arrays must be in CPU memory, and torch must not record derivatives of the gradients.
    """
    return readable(i.q) and not recorded(i.q) and native_entmax.serves(i)
