"""Attention whose sequences, heads or keys are spread over the processes of a group.

A head of keys, with the heads of queries that share it, needs no other head. So processes exchange parts of sequences
for whole heads, compute the heads as one process does, and exchange the results back. Derivatives go the same way.

If all processes have the same few queries, or if there are many processes, keys are not exchanged for heads: each
process computes the states of its own keys, and passes on what it has merged. For long sequences, keys visit the
processes part by part (torch_parts.py).
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from softargmax.attend import attention as whole_attention
from softargmax.attend import operations
from softargmax.core.arrays import trained
from softargmax.core.check import counts, flag, one_of
from softargmax.core.dispatch import requesting
from softargmax.core.processes import SpreadAxes
from softargmax.core.signature import takes_options_of
from softargmax.core.torch_processes import along, part, spread_text, whole
from softargmax.parallel.layout import (
    balanced,
    bounds,
    dealt,
    in_order,
    in_order_of_ranks,
    in_zigzag,
    sizes_of_chunks,
    sizes_of_processes,
    whole_blocks,
)
from softargmax.parallel.torch_agreement import Facts, facts_of
from softargmax.parallel.torch_functions import Group  # noqa: TC001 `takes_options_of` reads the types
from softargmax.parallel.torch_graphs import in_graphs
from softargmax.parallel.torch_move import rearranged, transposed
from softargmax.parallel.torch_parts import in_parts
from softargmax.parallel.torch_spread import Call

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch.distributed import ProcessGroup

    from softargmax.parallel.layout import Chunks, Layout

LENGTHS, HEADS = -2, -3
"""The axes that may be spread."""
WAYS = ("heads", "keys", "parts")
"""What processes exchange if sequences are spread."""
_OF_KEYS = ("k", "v")
_OF_QUERIES = ("q", "scale", "mask", "bias", "alpha")
"""Arguments of which each process has the part of its queries."""
_OF_HEADS = (*_OF_KEYS, *_OF_QUERIES, "sink", "slopes")
"""Arguments of which each process has the part of its heads."""


@in_graphs(whole_attention, shaping=())
@takes_options_of(whole_attention)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    *,
    group: Group = None,
    axis: int = LENGTHS,
    by: str | None = None,
    zigzag: bool = False,
    **options: Any,
) -> Tensor:
    r"""Return this process's part of the attention of sequences or heads that are spread over the processes of a group.

    .. math:: o_i = \sum_{j \text{ visible to } i} p_{ij} v_j

    Parameters
    ----------
    q, k, v : Tensor, in CPU memory
        This process's part of the queries (..., H, L, D), keys (..., G, K, D) and values (..., G, K, Dv). Along `axis`,
        the parts of all processes follow each other in the order of their ranks, unless zigzag=True. They may have any
        lengths, also 0.
    group : ProcessGroup or DeviceMesh, optional
        As in `softargmax.parallel.softmax`.
    axis : int
        What is spread: -2, the sequences (context parallelism), or -3, the heads. A process that has heads of queries
        has the heads of keys that they use.
    by : {"heads", "keys", "parts"}, optional
        What processes exchange with axis=-2. "heads": whole sequences, of some of the heads. "keys": queries; each
        process has a part of the keys. "parts": keys and values visit the processes, part by part, so that none holds a
        whole sequence. The default is "heads", or "keys" if there are many processes.
    zigzag : bool
        True if, with axis=-2, each process has two chunks of the sequence, the halves of its part: process r of W has
        the chunks r and 2 W - 1 - r, such as those of `torch.tensor_split(x, 2 * W, -2)`. In a part of odd length, the
        first half is longer. In causal attention by parts, all processes then have about the same work. The default is
        False.
    scale, causal, window, mask, bias, slopes, softcap, sink, alpha, dropout, seed, stream, key_lengths
        As in `softargmax.attention`, for the whole sequences. With axis=-2, `mask` and `bias`, and an array `scale` or
        `alpha`, are those of this process's queries: a mask has all keys along its last axis. All others are equal in
        all processes. With axis=-3, options with one number per head are those of this process's heads.

    Returns
    -------
    Tensor, shape (..., H, L, Dv)
        The output of this process's queries, with the bits of `softargmax.attention` of the whole sequences and heads.

    Raises
    ------
    NotImplementedError
        If q is on a device, for dropout with axis=-3 or by="parts", for `alpha` by="keys" or "parts", or for the
        gradient of a scale, alpha or bias that all queries share with axis=-2.
    RuntimeError, TypeError, ValueError
        As in `softargmax.attention` and `softargmax.parallel.softmax`.

    Notes
    -----
    With axis=-2, processes exchange their parts of the sequences for whole heads. There are B G heads of keys in a
    batch of B entries, and process r of W computes those from B G r // W. A process sends its part of q, k, v and of
    the result, except the heads that it computes: about (W - 1) / W of them. A mask or bias is sent for every head. The
    whole sequences of a process's heads are in its memory.

    With 2 B G processes or more, and if `alpha` is 1, each process computes all queries for its part of the keys
    instead, as `attention_split_kv` does. Its queries are sent to all others. Keys of causal attention are moved so
    that all processes have the same work. The bits are the same.

    With by="parts", keys and values visit the processes in the order of the sequence, 4096 keys at a time. A process
    adds them to the states (m, l, o) of its queries, while the next ones arrive. So it has its own parts in memory, and
    few of others. In the backward pass, queries visit the processes, too. Keys visit only the processes that see them.
    The bits are the same.

    With axis=-3, processes compare their arguments and exchange nothing else.

    Gradient: as in `softargmax.attention`. Those of q, k and v have the same bits. With axis=-2, those of sink and
    slopes are sums over all processes, in every process. By heads and by parts, they agree to rounding, and so do, by
    heads, those of a bias that heads share, and those of k and v if `alpha` is trained.

    References
    ----------
    Jacobs et al. (2023), DeepSpeed Ulysses. arXiv:2309.14509. Liu, Zaharia & Abbeel (2023), Ring attention with
    blockwise transformers. arXiv:2310.01889.

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> q, k = torch.zeros(1, 1, 2), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> softargmax.parallel.attention(q, k, k)
    tensor([[[0.5000, 0.5000]]])
    >>> dist.destroy_process_group()
    """
    if axis == HEADS:
        found: Tensor = _OfHeads(group, axis, by, zigzag).run(whole_attention, q, k, v, **options)
        return found
    i, keys = _OfKeys(group, axis, by, zigzag).run(whole_attention, q, k, v)
    all_keys = (x.new_zeros(()).expand(*x.shape[:-2], sum(keys), x.shape[-1]) for x in (i.k, i.v))
    call = _OfQueries(group, axis, by, zigzag, i.k, i.v, keys)
    return cast("Tensor", call.run(whole_attention, i.q, *all_keys, **options))


@in_graphs(whole_attention, shaping=())
@takes_options_of(whole_attention, without=("alpha",))
def attention_split_kv(q: Tensor, k: Tensor, v: Tensor, /, *, group: Group = None, **options: Any) -> Tensor:
    r"""Return attention to keys and values that are spread over the processes of a group, as in split-KV decoding.

    .. math:: o_i = \sum_{j \text{ visible to } i} p_{ij} v_j

    Parameters
    ----------
    q : Tensor, in CPU memory, shape (..., H, L, D)
        The queries, equal in all processes.
    k, v : Tensor, in CPU memory
        This process's part of the keys (..., G, K, D) and values (..., G, K, Dv). The parts of all processes follow
        each other in the order of their ranks. They may have any lengths, also 0.
    group : ProcessGroup or DeviceMesh, optional
        As in `softargmax.parallel.softmax`.
    scale, causal, window, slopes, softcap, sink, dropout, seed, stream, key_lengths
        As in `softargmax.attention`, for the keys of all processes, and equal in all of them. So the last query is at
        the position of the last process's last key.
    mask, bias
        As in `softargmax.attention`, for this process's keys.

    Returns
    -------
    Tensor, shape (..., H, L, Dv)
        The output, in all processes, with the bits of `softargmax.attention` with all keys.

    Raises
    ------
    NotImplementedError
        If q is on a device, or for the gradient of a bias that all keys share.
    RuntimeError, TypeError, ValueError
        As in `softargmax.attention` and `softargmax.parallel.softmax`.

    Notes
    -----
    Each process computes the states (m, l, o) of its blocks of 512 keys. The first process merges its states from left
    to right, and sends the result to the next one. The final state goes the same way back: Dv numbers and 16 bytes
    for each query. Keys of a block that a cut divides are moved to the process that has its first key. So no keys are
    moved if all parts but the last have a multiple of 512.

    Besides, a process needs memory for the states of all queries, and for those of its blocks: 16 MiB, or those of 96
    queries of one head if they take more. If more than 96 queries share a head of keys, it also has a copy of the keys
    and values of one head. There is no `alpha`: orders other than 1 have no state.

    If a query sees a NaN or an infinity, if a masked value is one, or if sums overflow, each process gathers the keys
    and values of all, and computes the result alone.

    Gradient: as in `softargmax.attention`, with the same bits: for q and options in all processes, and for k, v and
    bias for this process's part. Every process passes the same incoming gradient. Second derivatives gather the
    keys and values of all processes.

    See Also
    --------
    attention : for queries that are spread like the keys.

    References
    ----------
    Dao et al. (2023), Flash-Decoding for long-context inference. https://crfm.stanford.edu/2023/10/12/flashdecoding.html

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> q, k = torch.zeros(1, 1, 2), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> softargmax.parallel.attention_split_kv(q, k, k)
    tensor([[[0.5000, 0.5000]]])
    >>> dist.destroy_process_group()
    """
    found: Tensor = _SplitKeys(group, "attention").run(whole_attention, q, k, v, **options)
    return found


class _SplitKeys(Call):
    """Attention to keys that are spread over processes."""

    def serve(self, operation: Any, i: Any, first: bool, out: Any) -> Any:
        """Compute attention, unless the gradient of a number that all keys share is needed."""
        bias = i.options.bias
        if trained(bias) and bias.shape[-1:] != i.k.shape[-2:-1]:
            raise NotImplementedError(
                "bias: keys that are spread over processes have no gradient for an array that all of them share; "
                "expand it to this process's keys, and add up its gradients"
            )
        return super().serve(operation, i, first, out)


class _Call(Call):
    """A call of attention, along an axis of which each process has parts."""

    def __init__(self, group: Group, axis: Any, by: Any, zigzag: Any) -> None:
        super().__init__(group, "attention", by=by, zigzag=zigzag)
        self.axis, self.by, self.zigzag = axis, by, zigzag

    def facts(
        self, operation: Any, i: Any, parts: Collection[str], *, without: Collection[str] = ()
    ) -> tuple[Facts, Any]:
        """The facts of a record of which each process has `parts`, and the record with parts of one shape."""
        names = operation.torch.slots.names
        slots = [None if n in without else x for n, x in zip(names, self.slots(operation, i), strict=True)]
        facts = facts_of(operation, slots, dict.fromkeys(parts, self.axis), f"attention, axis={self.axis}")
        return facts, operation.torch.unflatten(*slots)


class _OfHeads(_Call):
    """Attention to this process's heads of keys."""

    def serve(self, operation: Any, i: Any, *_: Any) -> Any:
        if self.by is not None:
            raise ValueError(f"by: expected None with axis=-3, as heads need no others, got {self.by!r}")
        if flag(self.zigzag, "zigzag"):
            raise ValueError("zigzag: expected False with axis=-3, as heads have no order")
        if i.options.dropout:
            raise NotImplementedError("dropout: its noise depends on the numbers of all heads; use axis=-2")
        if i.options.lengths is not None:
            counts(i.options.lengths, i.k.shape[LENGTHS], "key_lengths")
        of_keys, _ = self.facts(operation, i, _OF_KEYS, without=(*_OF_QUERIES, "sink", "slopes"))
        of_queries, _ = self.facts(operation, i, _OF_HEADS, without=_OF_KEYS)
        self.sizes(Facts(of_queries.columns, of_queries.named + of_keys.named))
        with requesting(None):
            return operation.first(i)


class _OfKeys(_Call):
    """The checked q, k and v, and the number of keys of each process."""

    def serve(self, operation: Any, i: Any, *_: Any) -> Any:
        if self.axis != LENGTHS:
            raise ValueError(f"axis: expected -2 (sequences) or -3 (heads), got {self.axis!r}")
        if self.by is not None:
            one_of(self.by, "by", WAYS)
        flag(self.zigzag, "zigzag")
        return i, self.sizes(self.facts(operation, i, _OF_KEYS, without=("q",))[0])


class _OfQueries(_Call):
    """Attention of this process's queries to the keys of all processes, of which this process has k and v."""

    def __init__(self, group: Group, axis: Any, by: Any, zigzag: Any, k: Tensor, v: Tensor, keys: Layout) -> None:
        super().__init__(group, axis, by, zigzag)
        self.k, self.v, self.keys = k, v, keys

    def serve(self, operation: Any, i: Any, *_: Any) -> Any:
        _refuse_shared(i)
        by = self.by or self._chosen(i)
        if by != "heads" and not i.options.is_softmax:
            raise NotImplementedError(f"alpha: orders other than 1 have no states; use by='heads', got {by!r}")
        if by == "parts" and i.options.dropout:
            raise NotImplementedError("dropout: keys that visit other processes have no noise; use by='heads'")
        facts, found = self.facts(operation, i, _OF_QUERIES, without=_OF_KEYS)
        queries, keys = map(in_zigzag if self.zigzag else in_order, (self.sizes(facts), self.keys))
        if i.options.lengths is not None:
            counts(i.options.lengths, sum(self.keys), "key_lengths")
        found = found._replace(k=self.k, v=self.v)
        with requesting(None):
            if by == "keys":
                return _by_keys(self.group, found, queries, keys)
            by_heads = functools.partial(_by_heads, self.group, queries=queries)
            return in_parts(self.group, found, queries, keys, by_heads) if by == "parts" else by_heads(found, keys=keys)

    def _chosen(self, i: Any) -> str:
        return "keys" if self.group.size() >= 2 * math.prod(i.k.shape[:-2]) and i.options.is_softmax else "heads"


def _refuse_shared(i: Any) -> None:
    """Raise for a trained array that all queries share: the gradient would be that of this process's queries only."""
    for name in ("scale", "alpha", "bias"):
        x = getattr(i.options, name)
        if i.q.shape[LENGTHS] == 1 or not trained(x):
            continue
        if x.ndim < -LENGTHS or x.shape[LENGTHS] == 1:
            raise NotImplementedError(
                f"{name}: queries that are spread over processes have no gradient for an array that all of them share; "
                "expand it to this process's queries, and add up its gradients"
            )


def _by_keys(group: ProcessGroup, i: Any, queries: Chunks, keys: Chunks) -> Tensor:
    """Compute all queries for this process's keys. Return the results of this process's queries.

    So no process is idle with twice as many processes as heads of keys. The bits are those of `_by_heads`. That sends
    less, and takes less time with fewer processes.
    """
    block, of_queries = operations.attention.block, spread_text(group, sizes_of_processes(queries, group.size()))
    right, length = i.options.right, sum(sizes_of_chunks(keys))
    layout = whole_blocks(sizes_of_processes(keys, group.size()), block)
    if right is not None and i.options.left is None:  # causal: more queries see the first keys than the last
        count = sum(sizes_of_chunks(queries))
        layout = balanced(length, group.size(), block, lambda first: min(count, length - first + right))
    blocks, ranked = in_order(layout), in_order_of_ranks(queries)
    in_row = sorted(range(len(ranked)), key=ranked.__getitem__)

    def all_queries(x: Tensor) -> Tensor:
        return _reordered(whole(x, LENGTHS, of_queries), [queries[number][1] for number in ranked], in_row)

    def moved_option(name: str, x: Any) -> Any:
        if name in operations.attention.spreads and x is not None:
            rows = torch.broadcast_to(x, (*x.shape[:-1], length))
            return transposed(rows, -2, -1, group, queries, blocks)
        return all_queries(x) if name in _OF_QUERIES and isinstance(x, Tensor) else x

    options = {name: moved_option(name, x) for name, x in i.options._asdict().items()}
    found = operations.attention.first(
        i._replace(
            q=all_queries(i.q),
            k=rearranged(i.k, LENGTHS, group, keys, blocks),
            v=rearranged(i.v, LENGTHS, group, keys, blocks),
            options=i.options._replace(**options)._replace(spread=spread_text(group, layout)),
        )
    )
    return part(_reordered(found, sizes_of_chunks(queries), ranked), LENGTHS, of_queries)


def _reordered(x: Tensor, sizes: Sequence[int], order: Sequence[int]) -> Tensor:
    """Chunks of queries of these sizes in another order, which is given by their numbers."""
    if [*order] == sorted(order):
        return x
    chunks = x.split_with_sizes([*sizes], LENGTHS)
    return torch.cat([chunks[number] for number in order], LENGTHS)


def _by_heads(group: ProcessGroup, i: Any, queries: Chunks, keys: Chunks) -> Tensor:
    """Compute some of the heads for all queries. Return all heads for this process's queries."""
    *batch, groups, _, _ = i.k.shape
    heads, units = i.q.shape[-3], math.prod(batch) * groups
    layout = dealt(units, group.size())
    first, last = bounds(layout)[group.rank()]
    each = heads // max(groups, 1)
    axes = SpreadAxes((), spread_text(group, layout))

    def of_units(x: Tensor, count: int) -> Tensor:
        """x with one entry of the batch for each head of keys."""
        heads_of_all = torch.broadcast_to(x, (*batch, groups * count, *x.shape[-2:]))
        return heads_of_all.reshape(units, count, *x.shape[-2:])

    def of_mine(name: str, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if name in _OF_KEYS:
            return transposed(of_units(x, 1), 2, 0, group, keys, in_order(layout))
        if name in _OF_QUERIES:
            return transposed(of_units(x, each), 2, 0, group, queries, in_order(layout))
        if name == "lengths":
            return of_units(torch.broadcast_to(x, (*batch, groups, 1, 1)), 1)[first:last]
        return of_units(along(x, axes), each)[first:last]

    options = i.options._replace(**{name: of_mine(name, x) for name, x in i.options._asdict().items()})
    vectors = {name: of_mine(name, getattr(i, name)) for name in ("q", "k", "v")}
    found = operations.attention.first(i._replace(**vectors, options=options))
    return transposed(found, 0, 2, group, in_order(layout), queries).reshape(*i.q.shape[:-1], i.v.shape[-1])
