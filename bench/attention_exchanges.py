"""What each process of a group does in attention of `softargmax.parallel`: the steps, as in `bench/exchanges.py`."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from bench.exchanges import HEADER, Member, Step, added, back, rearranged, transposed

from softargmax.parallel.layout import (
    Chunks,
    Layout,
    balanced,
    bounds,
    dealt,
    in_order,
    in_slices,
    in_zigzag,
    shares,
    sizes_of_chunks,
    whole_blocks,
    with_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# --- attention to keys that are spread --------------------------------------------------------------------------------

KEYS, QUERIES = 512, 96
"""The blocks of keys and of queries in the kernels of attention."""
_STATE, _AT_ONCE, _BLOCKS_PASSED = 16, 16 << 20, 8  # bytes of a state, of the states of a group; for gradients


class Heads(NamedTuple):
    """The shape of queries: heads of keys in the batch, the heads of queries of each, lengths and widths."""

    keys: int
    each: int
    queries: int
    width: int
    values: int

    @property
    def rows(self) -> int:
        """The number of queries that see the same keys."""
        return self.each * self.queries


def attention_split_kv(of: Member, heads: Heads, *, number: int = 4) -> Iterator[Step]:
    """The steps of the forward pass."""
    yield Step("to all", HEADER.each)
    query = _STATE + heads.values * number
    in_head = -(-heads.rows // QUERIES)
    starts = [head * heads.rows + part * QUERIES for head in range(heads.keys) for part in range(in_head)]
    group = max(1, _AT_ONCE // (max(of.most_blocks(KEYS), 1) * min(heads.rows, QUERIES) * query))
    cuts = {*range(0, len(starts), group)} if in_head == 1 else _cuts_in_heads(heads.keys, in_head, group)
    edges = [*(starts[cut] for cut in sorted(cuts)), heads.keys * heads.rows]
    sizes = [(stop - start) * query for start, stop in pairwise(edges)]
    for size in sizes:
        yield from added(of, size)
    yield from back(of, *sizes)


def _cuts_in_heads(heads: int, in_head: int, group: int) -> set[int]:
    """The first units of all groups, none of which has units of two heads."""
    return {head * in_head + unit for head in range(heads) for unit in range(0, in_head, group)}


def attention_split_kv_backward(of: Member, heads: Heads, *, number: int = 4, slopes: bool = False) -> Iterator[Step]:
    """The steps of the backward pass."""
    passed = []
    for _ in range(heads.keys):
        for end in range(-(-heads.rows // QUERIES), 0, -_BLOCKS_PASSED):
            first = max(end - _BLOCKS_PASSED, 0) * QUERIES
            count = min(end * QUERIES, heads.rows) - first
            sizes = [count * heads.width * number, *([count * 8] if slopes else [])]
            yield from added(of, *sizes)
            passed += sizes
    yield from back(of, *passed)
    yield Step("to all", 1)  # whether all numbers are finite


# --- attention of sequences that are spread ---------------------------------------------------------------------------


def attention(
    of: Member, heads: Heads, *, number: int = 4, causal: bool = False, zigzag: bool = False, backward: bool = False
) -> Iterator[Step]:
    """The steps for queries and keys of the same layout, without a mask and a bias."""
    have = chunks(of.sizes, zigzag=zigzag)
    if not backward:
        yield from [Step("to all", HEADER.each)] * 2
    if of.world >= 2 * heads.keys:
        yield from _by_keys(of, have, heads, number, causal=causal, backward=backward)
    else:
        yield from _by_heads(of, have, heads, number, backward=backward)


def _by_heads(of: Member, have: Chunks, heads: Heads, number: int, *, backward: bool) -> Iterator[Step]:
    dealt_out, of_output = in_order(dealt(heads.keys, of.world)), heads.each * heads.values
    vectors = [size * number for size in (heads.each * heads.width, heads.width, heads.values)]
    if backward:
        yield from transposed(of, have, dealt_out, of_output * number)
        for size in reversed(vectors):
            yield from transposed(of, dealt_out, have, size)
    else:
        for size in vectors:
            yield from transposed(of, have, dealt_out, size)
        yield from transposed(of, dealt_out, have, of_output * number)


def _by_keys(of: Member, have: Chunks, heads: Heads, number: int, *, causal: bool, backward: bool) -> Iterator[Step]:
    blocks, row, length = whole_blocks(of.sizes, KEYS), heads.keys * number, sum(of.sizes)
    if causal:  # so that all processes have about the same work
        blocks = balanced(length, of.world, KEYS, lambda first: length - first)
    spread, vectors = of._replace(sizes=blocks), (heads.width * row, heads.values * row)
    if backward:
        yield Step("to all", max(of.sizes) * heads.each * heads.values * row)
        yield from attention_split_kv_backward(spread, heads, number=number)
        for size in reversed(vectors):
            yield from rearranged(of, in_order(blocks), have, size)
    else:
        yield Step("to all", max(of.sizes) * heads.each * heads.width * row)
        for size in vectors:
            yield from rearranged(of, have, in_order(blocks), size)
        yield from list(attention_split_kv(spread, heads, number=number))[1:]  # nothing is compared again


# --- attention by parts -----------------------------------------------------------------------------------------------

_KEYS_AT_ONCE, _QUERIES_AT_ONCE = 8 * KEYS, 32 * QUERIES
"""What visits a process at a time, of each head."""


class Visit(NamedTuple):
    """Rows that visit processes: the processes that have some of them, with their number; and those that they visit."""

    pieces: list[tuple[int, int]]
    visited: set[int]


def attention_by_parts(
    of: Member, heads: Heads, *, number: int = 4, causal: bool = False, zigzag: bool = False, backward: bool = False
) -> Iterator[Step]:
    """The steps for queries and keys of the same layout, without a mask and a bias, but for the products."""
    queries, row = chunks(of.sizes, zigzag=zigzag), heads.keys * number
    keys = with_sizes(queries, whole_blocks(sizes_of_chunks(queries), KEYS))
    of_k, of_v = heads.width * row, heads.values * row
    if not backward:
        yield from [Step("to all", HEADER.each)] * 2
        yield from rearranged(of, queries, keys, of_k)
        yield from rearranged(of, queries, keys, of_v)
    yield from _visiting(of, _visits_of_keys(queries, keys, causal=causal), (of_k, of_v))
    if backward:  # queries, the gradient of the output, the output, and lse
        visits = _visits_of_queries(queries, keys, heads.each, causal=causal)
        yield from _visiting(of, visits, (of_k, of_v, of_v, heads.keys * 8))
    yield Step("to all", 1)  # whether all numbers are finite
    if backward:
        yield from rearranged(of, keys, queries, of_v)
        yield from rearranged(of, keys, queries, of_k)


def chunks(sizes: Layout, *, zigzag: bool) -> Chunks:
    """The chunks of all processes."""
    return in_zigzag(sizes) if zigzag else in_order(sizes)


def _visiting(of: Member, visits: list[Visit], arrays: tuple[int, ...]) -> Iterator[Step]:
    """Send all own rows, then wait for those of each visit, while those of the next one arrive. `arrays`: the bytes of
    a row of each array.
    """
    for pieces, visited in visits:
        own = [count for process, count in pieces if process == of.rank and count]
        others = sorted(visited - {of.rank})
        yield from (Step("send", count * row, to) for count in own for to in others for row in arrays)
    coming = [
        [Step("expect", n * row, process) for process, n in pieces if process != of.rank and n for row in arrays]
        for pieces, visited in visits
        if of.rank in visited
    ]
    for before, now in pairwise([[], *coming, []]):
        yield from (step._replace(kind="arrive") for step in before)
        yield from now


def _sees(queries: tuple[int, int], keys: tuple[int, int], *, causal: bool) -> bool:
    """True if a query sees a key, if they are those from the first number to the second."""
    (first, last), (begin, end) = queries, keys
    return first < last and begin < end and (begin < last or not causal)


def _visits_of_keys(queries: Chunks, keys: Chunks, *, causal: bool) -> list[Visit]:
    """Keys visit the process that has them, and those whose queries see them."""
    visits, rows = [], [*zip(queries, bounds(sizes_of_chunks(queries)), strict=True)]
    for of, start, stop in in_slices(sizes_of_chunks(keys), _KEYS_AT_ONCE):
        seeing = {one for (one, _), places in rows if _sees(places, (start, stop), causal=causal)}
        visits.append(Visit([(keys[of][0], stop - start)], {keys[of][0], *seeing}))
    return visits


def _visits_of_queries(queries: Chunks, keys: Chunks, each: int, *, causal: bool) -> list[Visit]:
    """Queries of the first head of `each` that share keys visit the keys that they see, then those of the next head."""
    have, visits = sizes_of_chunks(queries) * each, []
    parts, places = [*zip(keys, bounds(sizes_of_chunks(keys)), strict=True)], bounds(sizes_of_chunks(queries))
    rows = bounds(have)
    for _, begin, end in in_slices(whole_blocks(have, QUERIES), _QUERIES_AT_ONCE):
        found = [(of % len(queries), last - first) for of, first, last in shares(begin, end, rows)]
        seeing = {p for (p, _), of in parts if any(_sees(places[chunk], of, causal=causal) for chunk, _ in found)}
        visits.append(Visit([(queries[chunk][0], count) for chunk, count in found], seeing))
    return visits


class Work(NamedTuple):
    """Products of vectors that a process computes, per head: a pass ends when the last process has computed its own."""

    forward: int
    backward: int


def work_by_parts(sizes: Layout, *, zigzag: bool = False) -> list[Work]:
    """The work of each process in causal attention by parts, if its part has so many queries and keys.

    A query needs two products for each key that it sees: the score, and the value times its probability. The gradient
    of a query needs three for each key, and that of a key and its value four for each query that sees it.
    """
    length, of = sum(sizes), chunks(sizes, zigzag=zigzag)
    found = [Work(0, 0)] * len(sizes)
    for (process, _), (begin, end) in zip(of, bounds(sizes_of_chunks(of)), strict=True):
        of_queries = _triangle(end) - _triangle(begin)
        of_keys = _triangle(length - begin) - _triangle(length - end)
        forward, backward = found[process]
        found[process] = Work(forward + 2 * of_queries, backward + 3 * of_queries + 4 * of_keys)
    return found


def _triangle(n: int) -> int:
    """The number of pairs of a query and a key that it sees, for the first n queries."""
    return n * (n + 1) // 2
