"""What each process of a group does in a call of `softargmax.parallel`: its messages and products, in their order.

The formulas stand here once. The tests compare them with what the processes send, in groups of gloo, and in worlds of
thousands of processes by torch's fake backend. docs/parallel.md shows them, and `bench/network.py` computes the time
that the steps take together.

    25 + 32 N B        a process sends 25 bytes to all others, and then 32 bytes per row and block

N is the number of rows, B the number of blocks of the process that has the most.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from softargmax.core import _native
from softargmax.core.native import BLOCK
from softargmax.parallel.layout import Layout, bounds, dealt, overlaps, whole_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator


class Step(NamedTuple):
    """What a process does next. The kinds are:

    to all     send bytes to all processes, and wait for theirs
    sum        start a sum over all processes of so many bytes; `sums` waits for all of them
    send       send bytes to `peer`, without waiting
    receive    wait for a message from `peer`
    expect     name the memory for a message from `peer`; `arrive` waits for it
    compute    so many multiplications and additions
    """

    kind: str
    amount: int = 0
    peer: int | None = None

    @property
    def is_message(self) -> bool:
        """True for the calls of torch.distributed."""
        return self.kind not in ("compute", "arrive", "sums")


class Member(NamedTuple):
    """A process of a group, and the number of scores per row, or of keys, in each process."""

    rank: int
    sizes: Layout

    @property
    def world(self) -> int:
        """The number of processes."""
        return len(self.sizes)

    @property
    def is_last(self) -> bool:
        """True for the process from which sums go back."""
        return self.rank == self.world - 1

    def most_blocks(self, block: int = BLOCK) -> int:
        """The number of blocks of the process that has the most."""
        return -(-max(self.sizes) // block)


class Gather(NamedTuple):
    """A message to all processes. All send as many bytes as the one with the most blocks."""

    each: int = 0
    per_row: int = 0
    per_block: int = 0
    """Bytes per row and block."""

    def size(self, rows: int, blocks: int) -> int:
        """The number of bytes."""
        return self.each + rows * (self.per_row + blocks * self.per_block)


HEADER = Gather(each=25)
"""The arguments of a call. If they differ, their texts follow."""


def of_blocks(*sizes: int) -> tuple[Gather, ...]:
    """Messages with so many bytes per row and block."""
    return tuple(Gather(per_block=size) for size in sizes)


class Messages(NamedTuple):
    """What a process sends to all others.

    A reduced `cross_entropy` of float32 or float64 computes its gradient with the loss.
    """

    forward: tuple[Gather, ...]
    backward: tuple[Gather, ...] = ()


_PER_ROW = Gather(per_row=8)
"""The weight of each row's class, or a sum over the row."""
_LSE = (HEADER, *of_blocks(32))
_ENTROPY = (HEADER, *of_blocks(48, 16))
_OF_TERMS = of_blocks(32, 32, 8, 32)  # the gradients of entropy and lse

OF_ROWS = {
    "softmax": Messages(_LSE, of_blocks(8)),
    "log_softmax": Messages(_LSE, of_blocks(8)),
    "logsumexp": Messages(_LSE, of_blocks(32)),
    "entropy": Messages(_ENTROPY, of_blocks(32, 32, 8)),
    "kl_divergence": Messages(_ENTROPY, (*of_blocks(32, 32, 32), _PER_ROW, *of_blocks(32, 8))),
    "cross_entropy": Messages((HEADER, *of_blocks(40))),
    "cross_entropy, label smoothing": Messages((HEADER, *of_blocks(40, 88))),
    "cross_entropy, probabilities": Messages((HEADER, *of_blocks(40, 88))),
    "cross_entropy, class weights": Messages((HEADER, _PER_ROW, *of_blocks(40))),
    "cross_entropy_terms": Messages((*_LSE, *_ENTROPY, HEADER, *of_blocks(40)), _OF_TERMS),
    "cross_entropy_terms, label smoothing": Messages(
        (*_LSE, *_ENTROPY, HEADER, *of_blocks(40, 88)), (*of_blocks(88), *_OF_TERMS)
    ),
    "cross_entropy_terms, class weights": Messages(
        (*_LSE, *_ENTROPY, HEADER, _PER_ROW, *of_blocks(40), HEADER, _PER_ROW), (_PER_ROW, *_OF_TERMS)
    ),
    "selected_log_softmax": Messages((HEADER, *of_blocks(40))),
}
"""The functions of scores. A name may be followed by an option.

Processes with parts of blocks exchange these first (`moved`).
"""


def of_rows(name: str, of: Member, rows: int, *, backward: bool = False) -> Iterator[Step]:
    """The steps of a function of scores. All processes have whole blocks, and the gradient is that of the scores."""
    for gather in OF_ROWS[name].backward if backward else OF_ROWS[name].forward:
        yield Step("to all", gather.size(rows, of.most_blocks()))


# --- sums in the order of the processes -------------------------------------------------------------------------------


def added(of: Member, *sizes: int, work: Step | None = None) -> Iterator[Step]:
    """The steps by which a process adds its work to parts of sums (`Processes` in core/torch_processes.py)."""
    if of.rank:
        yield from (Step("receive", size, of.rank - 1) for size in sizes)
    if work:
        yield work
    for size in sizes if of.world > 1 else ():
        if of.is_last:
            yield Step("send", size, of.rank - 1)
        else:
            yield Step("send", size, of.rank + 1)
            yield Step("expect", size, of.rank + 1)


def back(of: Member, *sizes: int) -> Iterator[Step]:
    """The steps by which all parts of the sums go back."""
    for size in sizes if not of.is_last else ():
        yield Step("arrive", size, of.rank + 1)
        if of.rank:
            yield Step("send", size, of.rank - 1)


# --- a last layer -----------------------------------------------------------------------------------------------------


def linear_cross_entropy(
    of: Member, rows: int, width: int, *, number: int = 4, smoothing: bool = False, reproducible: bool = True
) -> Iterator[Step]:
    """The steps of a loss with the gradients of h and W. `number`: bytes of a number. The backward pass has none."""
    once = _native.rows_at_once(rows, width, sum(of.sizes), _native.PARTS)
    parts = [min(once, rows - start) for start in range(0, rows, once)]
    blocks = of.most_blocks()
    header, *of_blocks = OF_ROWS["cross_entropy, label smoothing" if smoothing else "cross_entropy"].forward
    yield Step("to all", header.each)
    for count in parts:
        size, product = count * width * number, Step("compute", count * width * of.sizes[of.rank])
        yield product  # the scores
        yield from (Step("to all", gather.size(count, blocks)) for gather in of_blocks)
        if of.rank:
            yield product  # dW, while the first process computes dh
        if reproducible:
            yield from added(of, size, work=product)
        else:
            yield product
            yield from [Step("sum", size)] * (of.world > 1)
        if not of.rank:
            yield product
    if reproducible:
        yield from back(of, *(count * width * number for count in parts))
    else:
        yield Step("sums")


# --- arrays that are moved --------------------------------------------------------------------------------------------


def moved(of: Member, want: Layout, column: int) -> Iterator[Step]:
    """The steps from the layout of `of` to another. `column`: bytes per number along the axis that is spread."""
    yield from _exchanged(
        of,
        *(
            {to: (stop - start) * column for to, start, stop in overlaps(a, b, of.rank)}
            for a, b in ((of.sizes, want), (want, of.sizes))
        ),
    )


def to_blocks(of: Member) -> Member:
    """The process after blocks have been brought together."""
    return of._replace(sizes=whole_blocks(of.sizes))


def transposed(of: Member, want: Layout, number: int) -> Iterator[Step]:
    """The steps by which whole entries of another axis, in the layout `want`, replace parts of this one. `number`:
    bytes of a number of both axes.
    """
    yield from _exchanged(
        of,
        {to: of.sizes[of.rank] * size * number for to, size in enumerate(want)},
        {to: size * want[of.rank] * number for to, size in enumerate(of.sizes)},
    )


def _exchanged(of: Member, sent: dict[int, int], received: dict[int, int]) -> Iterator[Step]:
    for kind, sizes in (("expect", received), ("send", sent), ("arrive", received)):
        yield from (Step(kind, size, peer) for peer, size in sizes.items() if size and peer != of.rank)


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


def attention(of: Member, heads: Heads, *, number: int = 4, backward: bool = False) -> Iterator[Step]:
    """The steps for queries and keys of the same layout, without a mask and a bias."""
    if not backward:
        yield from [Step("to all", HEADER.each)] * 2
    by_keys = of.world >= 2 * heads.keys
    yield from (_by_keys if by_keys else _by_heads)(of, heads, number, backward=backward)


def _by_heads(of: Member, heads: Heads, number: int, *, backward: bool) -> Iterator[Step]:
    layout = dealt(heads.keys, of.world)
    mine, of_q, of_output = of._replace(sizes=layout), heads.each * heads.width, heads.each * heads.values
    vectors = [size * number for size in (of_q, heads.width, heads.values)]
    if backward:
        yield from transposed(of, layout, of_output * number)
        for size in reversed(vectors):
            yield from transposed(mine, of.sizes, size)
    else:
        for size in vectors:
            yield from transposed(of, layout, size)
        yield from transposed(mine, of.sizes, of_output * number)


def _by_keys(of: Member, heads: Heads, number: int, *, backward: bool) -> Iterator[Step]:
    blocks, row = whole_blocks(of.sizes, KEYS), heads.keys * number
    spread = of._replace(sizes=blocks)
    if backward:
        yield Step("to all", max(of.sizes) * heads.each * heads.values * row)
        yield from attention_split_kv_backward(spread, heads, number=number)
        yield from moved(spread, of.sizes, heads.values * row)
        yield from moved(spread, of.sizes, heads.width * row)
    else:
        yield Step("to all", max(of.sizes) * heads.each * heads.width * row)
        yield from moved(of, blocks, heads.width * row)
        yield from moved(of, blocks, heads.values * row)
        yield from list(attention_split_kv(spread, heads, number=number))[1:]  # nothing is compared again


# --- draws ------------------------------------------------------------------------------------------------------------

_DRAW, _PAIR = 32, 16  # bytes of a draw from a part of a row; of a score with the number of its class


def categorical(
    of: Member, rows: int, draws: int, *, number: int = 4, first: str | None = None, kept: int | None = None
) -> Iterator[Step]:
    """The steps of draws. `first`: the first filter. `kept`: the scores that top_k or min_p keep of a row."""
    yield from [Step("to all", HEADER.each)] * 2
    if first is None:
        yield Step("to all", rows * draws * _DRAW)
        return
    if first == "min_p":
        yield Step("to all", rows * number)  # the largest score of each row
    layout = dealt(rows, of.world)
    if kept is not None:
        yield Step("to all", 8)
    if kept is not None and kept * of.world * _PAIR < sum(of.sizes) * number:
        yield from transposed(of._replace(sizes=(kept,) * of.world), layout, _PAIR)
    else:
        yield from transposed(of, layout, number)
    yield Step("to all", max(layout) * (1 + 8 * draws))


# --- causal attention by parts ----------------------------------------------------------------------------------------


class Work(NamedTuple):
    """Products of vectors that a process computes, per head: a pass ends when the last process has computed its own."""

    forward: int
    backward: int


def work_by_parts(sizes: Layout) -> list[Work]:
    """The work of each process in causal attention by parts, if its part has so many queries and keys.

    A query needs two products for each key that it sees: the score, and the value times its probability. The gradient
    of a query needs three for each key, and that of a key and its value four for each query that sees it.
    """
    length = sum(sizes)
    found = []
    for begin, end in bounds(sizes):
        of_queries = _triangle(end) - _triangle(begin)
        of_keys = _triangle(length - begin) - _triangle(length - end)
        found.append(Work(2 * of_queries, 3 * of_queries + 4 * of_keys))
    return found


def _triangle(n: int) -> int:
    """The number of pairs of a query and a key that it sees, for the first n queries."""
    return n * (n + 1) // 2
