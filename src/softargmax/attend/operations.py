"""Operations of attention: results, derivative rules and kernels.

The arguments are in arguments.py, the definitions in reference.py.

Models have heads next to the batch in shapes, and next to the width in memory. The output and the gradients of tensors
keep the order in memory of q, k and v, so that no model copies them to merge its heads.

The operation `attention_vjp` computes the gradients of `attention`. The gradients of `attention_vjp`, and the
forward-mode derivatives of both operations, are computed by differentiating the definition for a few queries at a time.
This way only the scores of these queries are in memory. Queries are independent of each other, so the gradient of an
argument that they share (k, v or a sink) is a sum over all queries.
"""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING, Any, cast

from softargmax.attend import kernels, reference
from softargmax.attend.arguments import (
    OF_KEYS,
    ORDERS,
    Attention,
    AttentionGradients,
    AttentionVjp,
    Options,
    Packed,
    PackedVjp,
    Pages,
    Queries,
    QueriesVjp,
)
from softargmax.attend.reference import joined
from softargmax.attend.results import AttentionWithLse
from softargmax.core._native import KEY_BLOCK
from softargmax.core.arrays import device_of, kind_of, mapped, namespace, recorded
from softargmax.core.operation import Operation
from softargmax.core.processes import exchanges
from softargmax.core.record import Gradients, Result, Tangents, Wanted, gradient
from softargmax.core.row_chunks import piece
from softargmax.core.vmap_rows import Batched

if TYPE_CHECKING:
    from collections.abc import Iterator

SCORES = 1 << 20
"""Scores per part when the definition is differentiated: each temporary takes 8 MiB in float64."""


TO = {name: f"d{name}" for name in AttentionGradients._fields}
"""The name of the gradient with respect to each argument."""
HeadGradients = cast("type[AttentionGradients]", namedtuple("HeadGradients", TO.values()))  # noqa: PYI024
"""The gradients. The field names are the values of `TO`.

A gradient has the shape of its argument, or (0,) if the argument is not an array.
"""
CONSTANT = frozenset(("mask", "lengths", "seeds"))


def _batch(i: Any, dims: Any, size: int) -> Batched:
    """The vmap rule: move the mapped axis of every array to the front, and align the other axes."""
    return Batched(_in_front(i, dims, size, 1 + i[0].ndim - (dims[0] is not None)))


def _in_front(i: Any, dims: Any, size: int, rank: int) -> Any:
    def moved(name: str, x: Any, dim: Any) -> Any:
        if isinstance(x, tuple):
            return _in_front(x, dim, size, rank)
        if not hasattr(x, "shape"):
            return x
        front = mapped(x, dim, size)
        missing = rank - (name in ("lse", "g_lse")) - front.ndim
        return front[(slice(None), *(None,) * missing, ...)]

    return type(i)(*map(moved, i._fields, i, dims))


# --- attention: o = p v with p = softmax(S) or entmax(S) --------------------------------------------------------------


def _served_by_vjp(i: Attention, wanted: Wanted) -> bool:
    """True if `attention_vjp` computes the gradients that are wanted."""
    if i.options.is_softmax:
        return True
    on_gpu = kind_of(i.q) == "torch-cuda" and attention_vjp.has_kernel("cuda") and not recorded(i.q)
    order = isinstance(i.options.alpha, float) and i.options.alpha in ORDERS
    return "alpha" not in wanted and ((on_gpu and order) or kernels.serves_entmax(i))


def _attention_vjp(i: Attention, r: AttentionWithLse, g: AttentionWithLse, wanted: Wanted) -> Gradients:
    if not _served_by_vjp(i, wanted):
        return _by_definition(i, g, wanted)
    g_output = namespace(i.q).zeros_like(r.output) if g.output is None else g.output
    found = attention_vjp(AttentionVjp(g_output, g.lse, i, r.output, r.lse, "bias" in wanted))
    return {name: getattr(found, field) for name, field in TO.items()}


def _attention_jvp(i: Attention, r: AttentionWithLse, t: Tangents) -> AttentionWithLse:
    found = [
        some.derived(piece_of_i).transposed(
            piece_of_i, _cut(r, part), {name: _along(name, x, part) for name, x in t.items()}
        )
        for part, piece_of_i in _parts(i)
    ]
    return _results_joined(found)


attention: Operation[Attention, AttentionWithLse] = Operation(
    "attention",
    Attention,
    AttentionWithLse(
        Result("q", shape="(*q.shape[:-1], v.shape[-1])", laid="q.shape[-1] == v.shape[-1]"),
        Result("q", "float64", "tuple(q.shape[:-1])", spare=True),
    ),
    definition=reference.attention,
    kernels={"cpu": kernels.attend, "cuda": "softargmax.attend.triton_kernels:attention"},
    vjp=_attention_vjp,
    jvp=_attention_jvp,
    saved={"q", "k", "v", *Options._fields, "output", "lse"},
    constant=CONSTANT,
    batch=_batch,
    spreads=OF_KEYS,
    block=KEY_BLOCK,
)


# --- the gradients of attention ---------------------------------------------------------------------------------------
#
# `attention_vjp` is not differentiated with respect to its arguments output and lse. Both depend on q, k and others,
# and the gradients with respect to q, k and others include this dependence.


def _attention_vjp_vjp(i: AttentionVjp, r: AttentionGradients, h: AttentionGradients, wanted: Wanted) -> Gradients:
    if i.of.options.spread is not None:
        return _from_all_keys(i, r, h, wanted)
    found = []
    for part, of in _parts(i.of):
        h_part = HeadGradients(*(_along(name, x, part) for name, x in zip(TO, h, strict=True)))
        piece = _some_vjp_of(i, part, of)
        found.append(some_vjp.derived(piece).defined_vjp(piece, None, h_part, wanted))
    return {name: _joined(name, [one[name] for one in found], i.of) for name in wanted}


def _from_all_keys(i: AttentionVjp, r: AttentionGradients, h: AttentionGradients, wanted: Wanted) -> Gradients:
    """If keys are spread over processes, compute the gradients of all of them, and return this process's part."""
    spread, whole, part = i.of.options.spread, exchanges().whole, exchanges().part
    axes = kernels.gradients_of_keys(i)
    mine = {TO[name]: (getattr(h, TO[name]), axis) for name, axis in axes.items()}
    of_all = {to: x if x is None else whole(x, axis, spread) for to, (x, axis) in mine.items()}
    found = _attention_vjp_vjp(i._replace(of=kernels.with_all_keys(i.of)), r, h._replace(**of_all), wanted)
    return {name: part(x, OF_KEYS[name], spread) if name in OF_KEYS else x for name, x in found.items()}


def _attention_vjp_jvp(i: AttentionVjp, _r: AttentionGradients, t: Tangents) -> AttentionGradients:
    found = []
    for part, of in _parts(i.of):
        t_part = {name: _along(name, x, part) for name, x in t.items()}
        likes = HeadGradients(*_differentiated(of.of, i.to_bias).values())
        piece = _some_vjp_of(i, part, of)
        found.append(some_vjp.derived(piece).transposed(piece, likes, t_part))
    return HeadGradients(*(_joined(name, [getattr(one, to) for one in found], i.of) for name, to in TO.items()))


attention_vjp: Operation[AttentionVjp, AttentionGradients] = Operation(
    "attention_vjp",
    AttentionVjp,
    HeadGradients(*(gradient(name, "to_bias" if name == "bias" else "True")._replace(laid="True") for name in TO)),
    definition=reference.vjp,
    kernels={"cpu": kernels.attend_vjp, "cuda": "softargmax.attend.triton_kernels:attention_vjp"},
    vjp=_attention_vjp_vjp,
    jvp=_attention_vjp_jvp,
    constant=CONSTANT | {"output", "lse"},
    batch=_batch,
)


# --- a few queries at a time ------------------------------------------------------------------------------------------


def _parts(i: Attention) -> Iterator[tuple[slice, Queries]]:
    length = i.q.shape[-2]
    for part in reference.parts(i, SCORES):
        yield part, Queries(i.part(part), part.start, length)


def _along(name: str, x: Any, part: slice) -> Any:
    """Return the part of an argument, result or gradient for the queries in `part`."""
    if x is None or name in ("k", "v"):
        return x
    return x[..., part] if name in ("lse", "g_lse") else piece(x, -2, part.start, part.stop)


def _cut(r: AttentionWithLse, part: slice) -> AttentionWithLse:
    return AttentionWithLse(*(_along(name, x, part) for name, x in zip(r._fields, r, strict=True)))


def _joined(name: str, pieces: list[Any], of: Attention) -> Any:
    """Concatenate or add the gradients of all parts with respect to one argument."""
    xp = namespace(of.q)
    if name in ("q", "g"):
        return xp.concat(pieces, axis=-2)
    if name == "g_lse":
        return xp.concat(pieces, axis=-1)
    return joined(tuple(pieces), getattr(of.options, name, None), of.q.shape[-2])


def _results_joined(found: list[AttentionWithLse]) -> AttentionWithLse:
    xp = namespace(found[0].output)
    return AttentionWithLse(
        xp.concat([one.output for one in found], axis=-2), xp.concat([one.lse for one in found], axis=-1)
    )


def _by_definition(i: Attention, g: AttentionWithLse, wanted: Wanted) -> Gradients:
    found = [some.derived(of).defined_vjp(of, None, _cut(g, part), wanted) for part, of in _parts(i)]
    return {name: _joined(name, [one[name] for one in found], i) for name in wanted}


def _some_vjp_of(i: AttentionVjp, part: slice, of: Queries) -> QueriesVjp:
    g_lse = namespace(i.lse).zeros_like(i.lse) if i.g_lse is None else i.g_lse
    return QueriesVjp(i.g[..., part, :], g_lse[..., part], of, i.to_bias)


def _differentiated(of: Attention, to_bias: bool) -> dict[str, Any]:
    """Return the arguments that may have a gradient, by name. Arguments without one become empty arrays."""
    there = of.learned if to_bias else of.learned._replace(bias=None)
    none = namespace(of.q).zeros((0,), dtype=of.q.dtype, device=device_of(of.q))
    return {name: x if hasattr(x, "shape") else none for name, x in there._asdict().items()}


def _gradients_of_some(g: Any, g_lse: Any, some_: Queries, to_bias: bool) -> AttentionGradients:
    """Return the definition's gradients for a part of the queries. They can be differentiated again."""
    there = _differentiated(some_.of, to_bias)
    wanted = {name for name, x in there.items() if x.shape != (0,)}
    found = some.derived(some_).defined_vjp(some_, None, AttentionWithLse(g, g_lse), wanted)
    return HeadGradients(*(found.get(name, x) for name, x in there.items()))


some: Operation[Queries, AttentionWithLse] = Operation(
    "attention_of_some",
    Queries,
    AttentionWithLse(*attention.results),
    definition=reference.some_queries,
    constant=CONSTANT,
)
some_vjp: Operation[QueriesVjp, AttentionGradients] = Operation(
    "attention_of_some_vjp",
    QueriesVjp,
    attention_vjp.results,
    definition=_gradients_of_some,
    constant=CONSTANT,
)


# --- attention for packed sequences; the definition calls `attention` for each of them --------------------------------


def _packed(i: Packed) -> AttentionWithLse:
    """Return the results of all sequences. The output has the heads next to the width in memory."""
    whole, xp = i.whole, namespace(i.whole.q)
    found = [attention(of) for _, _, of in i.sequences()]
    if not found:
        return attention(whole)
    turned = xp.concat([xp.permute_dims(one.output, (1, 0, 2)) for one in found], axis=0)
    return AttentionWithLse(xp.permute_dims(turned, (1, 0, 2)), xp.concat([one.lse for one in found], axis=-1))


def _packed_vjp(i: Packed, r: AttentionWithLse, g: AttentionWithLse, wanted: Wanted) -> Gradients:
    if not _served_by_vjp(i.whole, wanted):
        return {}
    g_output = namespace(i.whole.q).zeros_like(r.output) if g.output is None else g.output
    found = attention_varlen_vjp(PackedVjp(g_output, g.lse, i, r.output, r.lse))
    return {name: getattr(found, field) for name, field in TO.items()}


def _gradients_of_packed(i: PackedVjp) -> AttentionGradients:
    """Return the gradients of all sequences: joined along queries or keys, or added for arguments that they share."""
    xp, learned = namespace(i.g), _differentiated(i.packed.whole, False)
    found = [
        attention_vjp(
            AttentionVjp(
                i.g[:, queries, :],
                None if i.g_lse is None else i.g_lse[:, queries],
                of,
                i.output[:, queries, :],
                i.lse[:, queries],
                False,
            )
        )
        for queries, _, of in i.packed.sequences()
    ]
    pieces = zip(*found, strict=True) if found else ((xp.zeros_like(x),) for x in learned.values())
    return HeadGradients(
        *(
            xp.concat(each, axis=-2)
            if name in ("q", "k", "v") or (like.shape != (0,) and like.shape[-2] != 1)
            else sum(each[1:], each[0])
            for each, (name, like) in zip(pieces, learned.items(), strict=True)
        )
    )


attention_varlen: Operation[Packed, AttentionWithLse] = Operation(
    "attention_varlen",
    Packed,
    AttentionWithLse(*attention.results),
    definition=_packed,
    kernels={"cuda": "softargmax.attend.triton_kernels:attention_varlen"},
    vjp=_packed_vjp,
    saved={"q", "k", "v", *Options._fields, "cu_q", "cu_k", "output", "lse"},
    constant=CONSTANT | {"cu_q", "cu_k"},
)
attention_varlen_vjp: Operation[PackedVjp, AttentionGradients] = Operation(
    "attention_varlen_vjp",
    PackedVjp,
    HeadGradients(*(gradient(name)._replace(laid="True") for name in TO)),
    definition=_gradients_of_packed,
    kernels={"cuda": "softargmax.attend.triton_kernels:attention_varlen_vjp"},
    constant=CONSTANT | {"cu_q", "cu_k", "output", "lse"},
)


# --- attention to pages; derivatives first copy the keys and values into one array ------------------------------------


def _paged(q: Any, k_pages: Any, v_pages: Any, page_table: Any, options: Any) -> AttentionWithLse:
    return attention(reference.keys_of_pages(q, k_pages, v_pages, page_table, options))


attention_paged: Operation[Pages, AttentionWithLse] = Operation(
    "attention_paged",
    Pages,
    AttentionWithLse(
        Result("q", shape="(*q.shape[:-1], v_pages.shape[-1])"),
        Result("q", "float64", "tuple(q.shape[:-1])", spare=True),
    ),
    definition=_paged,
    kernels={"cpu": kernels.attend_paged, "cuda": "softargmax.attend.triton_kernels:attention_paged"},
    constant=CONSTANT | {"page_table"},
)
