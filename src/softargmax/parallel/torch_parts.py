"""Attention in which the keys and values of each process visit all others, one part after the other.

A process has its queries, its keys and values, one part that visits it, and the next one, which arrives meanwhile. It
adds the parts to the states of its queries in the order of the keys, as one process does. So the output has the bits of
one process, and so has the gradient of q.

The gradients of k and v are sums over all queries. So queries visit the processes in the backward pass, in the order of
one process: all queries of a head, then those of the next head that shares the keys.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor

from softargmax.attend import operations
from softargmax.core.processes import SpreadAxes, standing_in
from softargmax.core.torch_processes import Processes, answering, is_anywhere, spread_text, total
from softargmax.parallel.layout import (
    bounds,
    in_slices,
    own_places,
    shares,
    sizes_of_chunks,
    sizes_of_processes,
    whole_blocks,
    with_sizes,
)
from softargmax.parallel.torch_move import as_numbers, rearranged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.distributed import ProcessGroup

    from softargmax.parallel.layout import Chunks, Layout

_VJP = operations.attention_vjp.arguments
ROWS = 96
"""The kernel adds up the gradients of keys over this number of queries at a time."""
KEYS, QUERIES = 8 * operations.attention.block, 32 * ROWS
"""The number of keys and of queries that visit a process at the same time, for each head."""


@dataclass(frozen=True)
class _Way:
    """The queries and keys of all processes, in the order of the sequence, and what a query sees.

    Each chunk of queries has a chunk of keys with its number, in the same process.
    """

    group: ProcessGroup
    queries: Chunks
    keys: Chunks
    left: int | None
    right: int | None
    otherwise: Callable[..., Tensor]

    @property
    def text(self) -> str:
        """The text that says how queries are spread."""
        return spread_text(self.group, sizes_of_processes(self.queries, self.group.size()))

    def own(self, chunks: Chunks) -> list[tuple[int, slice]]:
        """The numbers of this process's chunks, and their places in its part."""
        rank, places = self.group.rank(), own_places(chunks)
        return [(number, slice(*places[number])) for number, (of, _) in enumerate(chunks) if of == rank]

    @functools.cached_property
    def of_queries(self) -> list[tuple[int, int]]:
        """The places of each chunk of queries in the sequence."""
        return bounds(sizes_of_chunks(self.queries))

    @functools.cached_property
    def of_keys(self) -> list[tuple[int, int]]:
        """The places of each chunk of keys in the sequence."""
        return bounds(sizes_of_chunks(self.keys))

    @functools.cached_property
    def ahead(self) -> int:
        """The place of the first query among the keys: the last query is at the place of the last key."""
        return self.of_keys[-1][1] - self.of_queries[-1][1]

    def sees(self, chunk: int, keys: tuple[int, int]) -> bool:
        """True if a query of a chunk may see one of the keys from the first number to the second."""
        (first, last), (begin, end) = self.of_queries[chunk], keys
        near = -math.inf if self.left is None else first + self.ahead - self.left
        far = math.inf if self.right is None else last + self.ahead + self.right
        return first < last and begin < end and begin < far and near < end


def in_parts(group: ProcessGroup, i: Any, queries: Chunks, keys: Chunks, otherwise: Callable[..., Tensor]) -> Tensor:
    """Return the attention of this process's queries.

    `otherwise(i, keys=chunks)` computes it in another way: for numbers that are not finite, and for second derivatives.
    """
    blocks = with_sizes(keys, whole_blocks(sizes_of_chunks(keys), operations.attention.block))
    k, v = (rearranged(x, -2, group, keys, blocks) for x in (i.k, i.v))
    left = None if i.options.lengths is not None else i.options.left  # places count from the end of the keys
    way = _Way(group, queries, blocks, left, i.options.right, otherwise)
    slots = operations.attention.torch.flatten(i._replace(k=k, v=v))
    return cast("Tensor", _InParts.apply(way, *slots))  # type: ignore[no-untyped-call]


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, way: _Way, *slots: Any) -> Tensor:
        i = operations.attention.torch.unflatten(*slots)
        output, lse, flagged = _of_queries(way, i)
        ctx.flagged = is_anywhere(flagged, way.text)
        if ctx.flagged:
            output = way.otherwise(i, keys=way.keys)
        ctx.way, ctx.others = way, [None if isinstance(x, Tensor) else x for x in slots]
        ctx.save_for_backward(*(x for x in slots if isinstance(x, Tensor)), output, lse)
        ctx.places = [place for place, x in enumerate(slots) if isinstance(x, Tensor)]
        return output

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        *tensors, output, lse = ctx.saved_tensors
        slots, needed = list(ctx.others), ctx.needs_input_grad[1:]
        for place, x in zip(ctx.places, tensors, strict=True):
            slots[place] = x
        found = None
        if not ctx.flagged and not torch.is_grad_enabled():
            found = _vjp(ctx.way, slots, needed, g[0], output, lse)
        return None, *(_derived(ctx.way, slots, needed, g[0]) if found is None else found)


def _derived(way: _Way, slots: list[Any], needed: Sequence[bool], g: Tensor) -> list[Tensor | None]:
    """The gradients of attention that is computed in another way. They can be differentiated again."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        if not again:
            slots = [x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in slots]
        found = way.otherwise(operations.attention.torch.unflatten(*slots), keys=way.keys)
        wanted = [x for x, one in zip(slots, needed, strict=True) if one]
        each = iter(torch.autograd.grad(found, wanted, g, create_graph=again, allow_unused=True))
    return [next(each) if one else None for one in needed]


# --- what stands in for the process whose keys visit this one ---------------------------------------------------------


class _Visit(Processes):
    """For the kernel, the process that has the visiting keys. What it passes on to the next one stays here."""

    sums: Tensor
    """The sums for the gradients of this process's keys, if queries visit them."""

    def __init__(self, way: _Way, keys: Layout, first_row: int) -> None:
        super().__init__(way.group, keys)
        self.first_row, self.all_queries = first_row, way.of_queries[-1][1]
        self.starts, self.flagged = True, False
        self._passed: deque[bytes] = deque()

    def note(self) -> bool:
        """Note that a number is not finite. All processes deal with it after the last part."""
        self.flagged = True
        return True

    def gather(self, mine: bytes, lengths: Sequence[int]) -> bytes:  # noqa: ARG002
        """Return what this process sends. No other process takes part."""
        return mine

    def from_previous(self, part: memoryview) -> None:
        """Continue with what the part before has passed on."""
        part.cast("B")[:] = self._passed.popleft()

    def to_next(self, part: memoryview) -> None:
        """Keep a copy for the next part."""
        self._passed.append(part.tobytes())

    def all_back(self) -> None:
        """Do nothing: no other process waits."""
        self.starts = False


class _Chunk(NamedTuple):
    """A chunk of this process's queries or keys, and what stands in for the process of those that visit it."""

    number: int
    places: slice
    visit: _Visit

    def of(self, x: Any) -> Any:
        """The rows of an array, or a number for all of them."""
        return x[..., self.places, :] if isinstance(x, Tensor) else x

    def attending(self, i: Any, part: int, k: Tensor, v: Tensor, spread: str) -> Any:
        """The arguments of attention of these queries to the keys of a part."""
        self.visit.rank = part
        keys = slice(*bounds(self.visit.sizes)[part])
        masks = {name: _columns(self.of(getattr(i.options, name)), keys) for name in ("mask", "bias")}
        options = i.options._replace(scale=self.of(i.options.scale), **masks, spread=spread)
        return i._replace(q=self.of(i.q), k=k, v=v, options=options)


def _columns(x: Any, *keys: slice) -> Any:
    """The columns of an array that belong to some keys, or its one column for all keys. None if there is no array."""
    return x if x is None or x.shape[-1] == 1 else _joined((x[..., one] for one in keys), -1)


# --- the queries of this process --------------------------------------------------------------------------------------


def _queries(way: _Way) -> list[_Chunk]:
    """The chunks of this process's queries."""
    keys = tuple(stop - start for _, start, stop in in_slices(sizes_of_chunks(way.keys), KEYS))
    own = way.own(way.queries)
    return [_Chunk(number, places, _Visit(way, keys, way.of_queries[number][0])) for number, places in own]


def _of_queries(way: _Way, i: Any) -> tuple[Tensor, Tensor, bool]:
    """The output and lse of this process's queries. True if a number is not finite."""
    found: dict[int, Any] = {}  # keys of its number visit a chunk at least
    mine = _queries(way)
    for part, seeing, k, v in _keys_visiting(way, i):
        for one in mine:
            if one.number in seeing:
                with standing_in(one.visit) as spread:
                    found[one.number] = operations.attention(one.attending(i, part, k, v, spread))
    results = [found[one.number] for one in mine]
    output, lse = _joined((x.output for x in results), -2), _joined((x.lse for x in results), -1)
    return output, lse, any(one.visit.flagged for one in mine)


def _vjp(
    way: _Way, slots: list[Any], needed: Sequence[bool], g: Tensor, output: Tensor, lse: Tensor
) -> list[Tensor | None] | None:
    """The gradients, or None if a number in a process is not finite."""
    of, i = operations.attention.torch.slots, operations.attention.torch.unflatten(*slots)
    wanted = {name for name, one in zip(of.names, needed, strict=True) if one}
    found: dict[int, Any] = {}
    of_bias: dict[int, list[tuple[int, Tensor]]] = {}
    mine = _queries(way)
    for part, seeing, k, v in _keys_visiting(way, i):
        for one in mine:
            if one.number not in seeing:
                continue
            with standing_in(one.visit) as spread:
                record = _VJP(
                    g=one.of(g),
                    g_lse=None,
                    of=one.attending(i, part, k, v, spread),
                    output=one.of(output),
                    lse=lse[..., one.places],
                    to_bias="bias" in wanted,
                )
                found[one.number] = operations.attention_vjp(record)
            of_bias.setdefault(one.number, []).append((part, found[one.number].dbias))
    flagged, gradients = any(one.visit.flagged for one in mine), {}
    for name in of.names:  # in the same order in all processes: the totals of two arrays are two exchanges
        if name not in wanted or name in ("k", "v"):
            continue
        of_chunks = [getattr(found[one.number], operations.TO[name]) for one in mine]
        if name == "bias":
            of_chunks = [_of_all_keys(one.visit.sizes, one.of(i.options.bias), of_bias[one.number]) for one in mine]
        if name in ("sink", "slopes"):
            gradients[name] = total(functools.reduce(torch.add, of_chunks), SpreadAxes((), way.text))
        else:
            gradients[name] = _joined(of_chunks, -2)
    if wanted & {"k", "v"}:
        gradients["k"], gradients["v"], also = _of_keys(way, i, g, output, lse)
        flagged |= also
    if is_anywhere(flagged, way.text):
        return None
    each = zip(of.names, needed, slots, strict=True)
    return [gradients[name].to(x.dtype) if one else None for name, one, x in each]


def _of_all_keys(keys: Layout, bias: Tensor, found: Sequence[tuple[int, Tensor]]) -> Tensor:
    """The gradient of a bias, from that of each part of the keys."""
    whole = torch.zeros_like(bias, dtype=found[0][1].dtype)
    for part, gradient in found:
        _columns(whole, slice(*bounds(keys)[part])).add_(gradient)
    return whole


def _keys_visiting(way: _Way, i: Any) -> Iterator[tuple[int, set[int], Tensor, Tensor]]:
    """Yield the number of each part that visits this process, the chunks that see it, and its keys and values."""
    own = [_rows_first(x) for x in (i.k, i.v)]
    visits = _visits_of_keys(way)
    for part, arrays in _visiting(way, visits, lambda _: own):
        k, v = (x.movedim(0, -2) for x in arrays)
        yield part, visits[part].seeing, k, v


def _rows_first(x: Tensor) -> Tensor:
    return x.movedim(-2, 0).contiguous()


# --- the keys of this process: queries visit them ---------------------------------------------------------------------


def _of_keys(way: _Way, i: Any, g: Tensor, output: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, bool]:
    """The gradients of this process's keys and values. True if a number is not finite.

    The heads that share keys are rows of one head, in the order in which one process adds them up.
    """
    *batch, heads, length, width = i.q.shape
    groups, keys = i.k.shape[-3:-1]
    entries, each = math.prod(batch) * groups, heads // max(groups, 1)

    def rows(x: Tensor) -> Tensor:
        whole = torch.broadcast_to(x, (*batch, heads, length, x.shape[-1]))
        return _rows_first(whole.reshape(entries, each * length, x.shape[-1]))

    own = {"q": rows(i.q), "g": rows(g), "output": rows(output), "lse": rows(lse[..., None])}
    options = {name: x for name in ("scale", "slopes") if isinstance(x := getattr(i.options, name), Tensor)}
    own |= {name: rows(x) for name, x in options.items()}
    masks = {name: x for name in ("mask", "bias") if (x := getattr(i.options, name)) is not None}

    def sent(to: int) -> list[Tensor]:
        its = [slice(*places) for (process, _), places in zip(way.keys, way.of_keys, strict=True) if process == to]
        return [*own.values(), *(rows(_columns(x, *its)) for x in masks.values())]

    k, v = (x.reshape(entries, 1, keys, x.shape[-1]) for x in (i.k, i.v))
    wide = torch.float64 if i.q.dtype is torch.float64 else torch.float32
    lengths = i.options.lengths
    if lengths is not None:
        lengths = torch.broadcast_to(lengths, (*batch, groups, 1, 1)).reshape(entries, 1, 1, 1)
    shared = i.options._replace(lengths=lengths, sink=None)
    mine = _keys(way, entries, width + v.shape[-1], wide)
    visits, names = _visits_of_rows(way, each), (*own, *masks)
    for number, arrays in _visiting(way, visits, sent):
        x = dict(zip(names, (one.movedim(0, -2)[:, None] for one in arrays), strict=True))
        for chunk in mine:
            if chunk.number not in visits[number].seeing:
                continue
            chunk.visit.first_row = visits[number].first
            of_mine = {name: x[name] for name in options} | {name: _columns(x[name], chunk.places) for name in masks}
            with standing_in(chunk.visit) as spread:
                here = shared._replace(**of_mine, spread=spread)
                record = i._replace(q=x["q"], k=chunk.of(k), v=chunk.of(v), options=here)
                operations.attention_vjp(
                    _VJP(g=x["g"], g_lse=None, of=record, output=x["output"], lse=x["lse"][..., 0], to_bias=False)
                )
    whole = _joined((chunk.visit.sums for chunk in mine), 1)
    dk, dv = (one.reshape(*batch, groups, keys, one.shape[-1]) for one in torch.split(whole, [width, v.shape[-1]], -1))
    return dk, dv, any(chunk.visit.flagged for chunk in mine)


def _keys(way: _Way, entries: int, width: int, dtype: torch.dtype) -> list[_Chunk]:
    """The chunks of this process's keys. A key has sums of `width` numbers in each of the entries."""
    found = []
    for number, places in way.own(way.keys):
        visit = _Visit(way, sizes_of_chunks(way.keys), 0)
        visit.rank, visit.sums = number, torch.zeros(entries, places.stop - places.start, width, dtype=dtype)
        visit.key_sums = visit.sums.data_ptr()
        found.append(_Chunk(number, places, visit))
    return found


# --- visits -----------------------------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """Some rows of a process's arrays."""

    process: int
    start: int
    stop: int


class _Rows(NamedTuple):
    """Rows that visit processes, and the number of the first among all."""

    pieces: list[_Piece]
    first: int
    seeing: set[int]
    """The chunks that the rows visit: of queries that see these keys, or of keys that these queries see."""
    receivers: set[int]
    """The processes of these chunks."""


def _visits_of_keys(way: _Way) -> list[_Rows]:
    """Keys visit the queries of their number, and those that see them."""
    visits, places = [], own_places(way.keys)
    for of, start, stop in in_slices(sizes_of_chunks(way.keys), KEYS):
        own = places[of][0] - way.of_keys[of][0]
        seeing = {chunk for chunk in range(len(way.queries)) if chunk == of or way.sees(chunk, (start, stop))}
        piece = _Piece(way.keys[of][0], own + start, own + stop)
        visits.append(_Rows([piece], 0, seeing, {way.queries[chunk][0] for chunk in seeing}))
    return visits


def _visits_of_rows(way: _Way, each: int) -> list[_Rows]:
    """The queries of all processes, for the first head of `each` that share keys, then for the next one. They are cut
    where one process cuts them.
    """
    have = sizes_of_chunks(way.queries) * each
    totals, places = sizes_of_processes(way.queries, way.group.size()), own_places(way.queries)
    rows, visits = bounds(have), []
    for _, begin, end in in_slices(whole_blocks(have, ROWS), QUERIES):
        pieces, chunks = [], set()
        for of, first, last in shares(begin, end, rows):
            head, chunk = divmod(of, len(way.queries))
            process = way.queries[chunk][0]
            own = head * totals[process] + places[chunk][0] - rows[of][0]
            pieces.append(_Piece(process, own + first, own + last))
            chunks.add(chunk)
        seeing = {one for one, keys in enumerate(way.of_keys) if any(way.sees(chunk, keys) for chunk in chunks)}
        visits.append(_Rows(pieces, begin, seeing, {way.keys[chunk][0] for chunk in seeing}))
    return visits


def _visiting(
    way: _Way, visits: Sequence[_Rows], arrays_for: Callable[[int], list[Tensor]]
) -> Iterator[tuple[int, list[Tensor]]]:
    """Yield the number of each visit to this process, and the visiting rows. The next ones arrive meanwhile.

    `arrays_for(process)` returns what this process has for another one. Rows are along the first axis.
    """
    group, rank = way.group, way.group.rank()
    own = [
        (piece, to)
        for visit in visits
        for piece in visit.pieces
        if piece.process == rank and piece.start < piece.stop
        for to in sorted(visit.receivers - {rank})
    ]
    mine, arrays_of = arrays_for(rank), {to: arrays_for(to) for to in {to for _, to in own}}
    with answering(group):
        sent = [
            dist.isend(as_numbers(x[piece.start : piece.stop]), group=group, group_dst=to)
            for piece, to in own
            for x in arrays_of[to]
            if x.numel()
        ]

    def coming(visit: _Rows) -> tuple[list[Tensor], list[Any]]:
        if [piece.process for piece in visit.pieces] == [rank]:
            (piece,) = visit.pieces
            return [x[piece.start : piece.stop] for x in mine], []
        arrays = [x.new_empty(sum(piece.stop - piece.start for piece in visit.pieces), *x.shape[1:]) for x in mine]
        requests, place = [], 0
        for process, start, stop in visit.pieces:
            for x, to in zip(mine, arrays, strict=True):
                its = to[place : place + stop - start]
                if process == rank:
                    its.copy_(x[start:stop])
                elif its.numel():
                    requests.append(dist.irecv(as_numbers(its), group=group, group_src=process))
            place += stop - start
        return arrays, requests

    here = [number for number, visit in enumerate(visits) if rank in visit.receivers and visit.pieces]
    following = coming(visits[here[0]]) if here else ([], [])
    for number, after in zip(here, [*here[1:], None], strict=False):
        arrays, requests = following
        with answering(group):
            for request in requests:
                request.wait()
            if after is not None:
                following = coming(visits[after])
        yield number, arrays
    with answering(group):
        for request in sent:
            if request is not None:  # it is None in a process outside of the group
                request.wait()


def _joined(parts: Iterable[Tensor], axis: int) -> Tensor:
    """The parts one after the other."""
    first, *others = parts
    return torch.cat([first, *others], axis) if others else first
