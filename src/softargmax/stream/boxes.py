"""Which windows of an array are read, in which order: integers only, no data.

An array's dimensions in *storage order* (slowest first) are seen as a form of three, (outer, length, inner): the rows
run along the middle one, `inner` rows lie side by side, `outer` such slabs follow one another. A C-order file along
its last axis is (rows, length, 1), along axis 0 it is (1, length, rows).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A read of fewer bytes than this costs more than what it brings: one page.
PAGE = 4096

Box = tuple[slice, ...]


class Form(NamedTuple):
    """An array seen as `outer` slabs of `length` x `inner` elements, the rows along the middle."""

    outer: int
    length: int
    inner: int


def form_of(shape: Sequence[int], order: Sequence[int], axes: Sequence[int]) -> Form | None:
    """See an array as a `Form` without moving an element, or say None where that cannot be.

    Arguments
    ---------
    shape : sequence of int
        The array's shape.
    order : sequence of int
        Its dimensions, slowest first.
    axes : sequence of int
        The reduced dimensions, ascending: the order in which a row's elements follow one another.
    """
    dims = [dim for dim in order if shape[dim] != 1]
    reduced = [axis for axis in axes if shape[axis] != 1]
    first = dims.index(reduced[0]) if reduced else 0
    if dims[first : first + len(reduced)] != reduced:
        return None
    sizes = [shape[dim] for dim in dims]
    last = first + len(reduced)
    if not reduced:
        return Form(math.prod(sizes), 1, 1)
    return Form(math.prod(sizes[:first]), math.prod(sizes[first:last]), math.prod(sizes[last:]))


def window_of(form: Form, elements: int, block: int, itemsize: int) -> Form:
    """Choose the largest window of a form that has at most `elements` elements (never less than one block of one row).

    Whole rows where they fit: those are read once. Otherwise as many blocks of a row as fit, read once to fold the
    state and once to apply it; a window's length is then a multiple of `block`: pieces are cut where blocks are.
    """
    outer, length, inner = form
    if length * inner <= elements:
        return Form(max(1, min(outer, elements // max(1, length * inner))), length, inner)
    widest = min(inner, math.ceil(PAGE / itemsize))
    if length * widest <= elements:
        return Form(1, length, elements // length)
    shortest = min(length, block)
    columns = max(1, min(inner, elements // shortest))
    blocks = max(1, elements // columns // block)
    return Form(1, min(length, blocks * block), columns)


def parts(size: int, step: int) -> Iterator[slice]:
    """Cut range(size) into slices of `step`, the last one shorter.

    >>> list(parts(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, size, max(1, step)):
        yield slice(start, min(start + step, size))


def boxes_of(sizes: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, Box]]:
    """Cut the flat range [start, stop) of an array of shape `sizes` (C order) into boxes, with each one's place in it.

    >>> list(boxes_of((3, 4), 2, 9))
    [(0, (slice(0, 1, None), slice(2, 4, None))), (2, (slice(1, 2, None), slice(0, 4, None))),
     (6, (slice(2, 3, None), slice(0, 1, None)))]
    """
    if start >= stop:
        return
    if not sizes:
        yield 0, ()
        return
    inner = math.prod(sizes[1:])
    first, last = start // inner, (stop - 1) // inner
    head, tail = start - first * inner, stop - last * inner
    if first == last:
        for place, box in boxes_of(sizes[1:], head, tail):
            yield place, (slice(first, first + 1), *box)
        return
    if head:
        for place, box in boxes_of(sizes[1:], head, inner):
            yield place, (slice(first, first + 1), *box)
        first += 1
    end = last + 1 if tail == inner else last
    if first < end:
        yield first * inner - start, (slice(first, end), *(slice(0, size) for size in sizes[1:]))
    if tail != inner:
        for place, box in boxes_of(sizes[1:], 0, tail):
            yield last * inner - start + place, (slice(last, last + 1), *box)


def runs_of(shape: Sequence[int], box: Box) -> tuple[list[int], int]:
    """Give where the contiguous runs of a box start in an array stored in C order, and how long each run is.

    >>> runs_of((3, 4), (slice(0, 2), slice(1, 3)))
    ([1, 5], 2)
    """
    run, stride, offsets = 1, 1, [0]
    whole = True
    for size, part in zip(reversed(shape), reversed(box), strict=True):
        count = part.stop - part.start
        if whole:
            offsets = [part.start * stride + offset for offset in offsets]
            run *= count
        else:
            offsets = [index * stride + offset for index in range(part.start, part.stop) for offset in offsets]
        whole = whole and count == size
        stride *= size
    return (offsets, run) if run and stride else ([], 0)
