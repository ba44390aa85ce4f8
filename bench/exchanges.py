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
from softargmax.parallel.layout import Chunks, Layout, dealt, in_order, sends, whole_blocks

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


def selected_log_softmax(of: Member, rows: int, classes: int) -> Iterator[Step]:
    """The steps for several classes of each row, one after the other. The backward pass has none."""
    for _ in range(classes):
        yield from of_rows("selected_log_softmax", of, rows)


# --- sums in the order of the processes -------------------------------------------------------------------------------


def expected(of: Member, *sizes: int) -> Iterator[Step]:
    """The steps by which a process starts to receive parts of sums, to which it adds its work later."""
    yield from (Step("expect", size, of.rank - 1) for size in sizes if of.rank)


def added(
    of: Member,
    *sizes: int,
    work: Step | None = None,
    receive: str = "receive",
    of_part: tuple[bool, bool] = (True, True),
) -> Iterator[Step]:
    """The steps by which a process adds its work to parts of sums (`Processes` in core/torch_processes.py). `receive`:
    "arrive" for parts that are `expected`. `of_part`: True if the work is the first, and if it is the last for them.
    """
    starts, ends = of_part
    if of.rank and starts:
        yield from (Step(receive, size, of.rank - 1) for size in sizes)
    if work:
        yield work
    for size in sizes if of.world > 1 and ends else ():
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
    """The steps of a loss with the gradients of h and W. `number`: bytes of a number. Rows of W in blocks that a cut
    divides are moved first.
    """
    have, of = of, to_blocks(of)
    edges = _native.bounds_of_parts(rows, width, sum(of.sizes), _native.PARTS)
    parts = [stop - start for start, stop in pairwise(edges)]
    blocks = of.most_blocks()
    header, *of_blocks = OF_ROWS["cross_entropy, label smoothing" if smoothing else "cross_entropy"].forward
    yield Step("to all", header.each)
    yield from moved(have, of.sizes, width * number)
    sizes = [count * width * number for count in parts]
    if reproducible:
        yield from expected(of, *sizes)
    for count, size in zip(parts, sizes, strict=True):
        product = Step("compute", count * width * of.sizes[of.rank])
        yield product  # the scores
        yield from (Step("to all", gather.size(count, blocks)) for gather in of_blocks)
        if of.rank:
            yield product  # dW, while the first process computes dh
        if reproducible:
            yield from added(of, size, work=product, receive="arrive")
        else:
            yield product
            yield from [Step("sum", size)] * (of.world > 1)
        if not of.rank:
            yield product
    if reproducible:
        yield from back(of, *sizes)
    else:
        yield Step("sums")


def linear_cross_entropy_backward(of: Member, width: int, *, number: int = 4) -> Iterator[Step]:
    """The steps of the backward pass: the gradients of rows of W that were moved go back."""
    yield from moved(to_blocks(of), of.sizes, width * number)


def layer_by_rows(
    of: Member,
    width: int,
    classes: int,
    *,
    number: int = 4,
    mean: bool = True,
    bias: bool = False,
    reproducible: bool = True,
) -> Iterator[Step]:
    """The steps of a loss with the gradients of h and W, and of the bias if there is one. `of.sizes`: the rows of each
    process. Rows of h and their targets are moved first, so that each process has multiples of DEPTH rows.
    """
    have, of = of, to_blocks(of, _native.DEPTH) if reproducible else of
    yield Step("to all", HEADER.each)
    for column in (width * number, 8):
        yield from moved(have, of.sizes, column)
    of_each_row = Step("to all", 8 * max(of.sizes))
    if mean:
        yield of_each_row  # its weight
    once = _native.classes_at_once(classes, width) if of.world > 1 else classes
    parts_of_w = [min(once, classes - first) for first in range(0, classes, once)]
    sums = [count * width * number for count in parts_of_w] + [classes * number] * bias
    if reproducible:
        yield from expected(of, *sums)
    rows = of.sizes[of.rank]
    of_all = _native.bounds_of_parts(sum(of.sizes), width, classes, _native.PARTS)
    # Each process divides its rows, from the first of them, as one process divides all.
    for first, last in pairwise([0, *(edge for edge in of_all if 0 < edge < rows), rows]):
        yield Step("compute", 2 * (last - first) * width * classes)  # the scores and dh
        for place, size in enumerate(sums):
            work = Step("compute", (last - first) * width * (parts_of_w[place] if place < len(parts_of_w) else 0))
            if reproducible:
                yield from added(of, size, work=work, receive="arrive", of_part=(first == 0, last == rows))
            else:
                yield work
                yield from [Step("sum", size)] * (last == rows and of.world > 1)
    if reproducible:
        yield from back(of, *sums)
    else:
        yield Step("sums")
    yield of_each_row  # its loss


def layer_by_rows_backward(of: Member, width: int, *, number: int = 4) -> Iterator[Step]:
    """The steps of the backward pass: the gradients of rows that were moved go back."""
    yield from moved(to_blocks(of, _native.DEPTH), of.sizes, width * number)


# --- arrays that are moved --------------------------------------------------------------------------------------------


def moved(of: Member, want: Layout, column: int) -> Iterator[Step]:
    """The steps from the layout of `of` to another. `column`: bytes per number along the axis that is spread."""
    yield from rearranged(of, in_order(of.sizes), in_order(want), column)


def rearranged(of: Member, have: Chunks, want: Chunks, column: int) -> Iterator[Step]:
    """The steps from some chunks to others, of which a process may have several."""
    sent, received = (
        [(peer, (stop - start) * column) for peer, start, stop in sends(*layouts, of.rank)]
        for layouts in ((have, want), (want, have))
    )
    yield from _exchanged(of, sent, received)


def to_blocks(of: Member, block: int = BLOCK) -> Member:
    """The process after blocks have been brought together."""
    return of._replace(sizes=whole_blocks(of.sizes, block))


def transposed(of: Member, have: Chunks, want: Chunks, number: int) -> Iterator[Step]:
    """The steps by which whole entries of another axis, in the chunks of `want`, replace the chunks of this one.
    `number`: bytes of a number of both axes.
    """
    of_have, of_want = ([size for process, size in layout if process == of.rank] for layout in (have, want))
    yield from _exchanged(
        of,
        [(to, count * size * number) for to, size in want for count in of_have],
        [(process, count * size * number) for size in of_want for process, count in have],
    )


def _exchanged(of: Member, sent: list[tuple[int, int]], received: list[tuple[int, int]]) -> Iterator[Step]:
    for kind, sizes in (("expect", received), ("send", sent), ("arrive", received)):
        yield from (Step(kind, size, peer) for peer, size in sizes if size and peer != of.rank)


# --- draws ------------------------------------------------------------------------------------------------------------

_DRAW, _PAIR = 32, 16  # bytes of a draw from a part of a row; of a score with the number of its class


def categorical(
    of: Member,
    rows: int,
    draws: int,
    *,
    number: int = 4,
    first: str | None = None,
    kept: int | None = None,
    logprob: bool = False,
) -> Iterator[Step]:
    """The steps of draws. `first`: the first filter. `kept`: the scores that top_k or min_p keep of a row. `logprob`:
    True for `categorical_with_logprob`.
    """
    yield from [Step("to all", HEADER.each)] * 2
    if first is None and not logprob:
        yield Step("to all", rows * draws * _DRAW)
        return
    if first == "min_p":
        yield Step("to all", rows * number)  # the largest score of each row
    layout = dealt(rows, of.world)
    if kept is not None:
        yield Step("to all", 8)
    if kept is not None and kept * of.world * _PAIR < sum(of.sizes) * number:
        yield from transposed(of, in_order((kept,) * of.world), in_order(layout), _PAIR)
    else:
        yield from transposed(of, in_order(of.sizes), in_order(layout), number)
    of_logprob = 8 + max(number, 4) * draws if logprob else 0
    yield Step("to all", max(layout) * (1 + 8 * draws + of_logprob))


# --- rows of weights, and means ---------------------------------------------------------------------------------------


def rows_of_parts(of: Member, row: int) -> Iterator[Step]:
    """The steps by which all processes get rows of a table, as layers that sample do with the candidates and targets.
    Each of them has `of.sizes` of these rows. `row`: the bytes of a row. The backward pass has none.
    """
    yield Step("to all", HEADER.each)
    yield Step("to all", max(of.sizes) * row)


def mean_of_rows(of: Member, *, classes: bool = True) -> Iterator[Step]:
    """The steps of a sum or mean of losses, in which processes have `of.sizes` rows: losses, and classes of targets."""
    yield from [Step("to all", 8 * max(of.sizes))] * (1 + classes)
