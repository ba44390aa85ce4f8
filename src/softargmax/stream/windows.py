"""Cut an array into windows, each of which is read as one piece.

This module computes indices and reads no data.

The dimensions of an array, in *storage order* (slowest-varying first), are merged into three: (outer, length, inner).
Rows run along the middle dimension. Each of the `outer` slabs contains `inner` rows, whose elements are interleaved. In
a C-order matrix, rows along axis 1 have the form (rows, length, 1), and rows along axis 0 have the form (1, length,
rows).
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Number of bytes of a memory page. Reading fewer bytes takes as long as reading a whole page.
PAGE = 4096

Box = tuple[slice, ...]


class Form(NamedTuple):
    """An array viewed as `outer` slabs of `length` x `inner` elements. Rows run along the middle dimension."""

    outer: int
    length: int
    inner: int


def form_of(shape: Sequence[int], order: Sequence[int], axes: Sequence[int]) -> Form | None:
    """Return the `Form` in which an array can be viewed without a copy, or None if that is impossible.

    Arguments
    ---------
    shape : sequence of int
        The array's shape.
    order : sequence of int
        The array's dimensions, slowest-varying first.
    axes : sequence of int
        The reduced dimensions, in ascending order. Flattening them in this order gives the elements of a row.
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
    """Return the largest window of a form with at most `elements` elements, but at least one block of one row.

    If whole rows fit, the window has whole rows, which are read once. Interleaved rows (`inner` > 1) are read whole
    only if all rows of a slab fit, or at least as many rows as a memory page has elements. Otherwise the window has as
    many rows as fit with one block each, and then as many blocks as fit. Rows are then read once to fold their states,
    and (except for logsumexp) once more to apply the states. The length of such a window is a multiple of `block`, so
    that pieces are cut at the boundaries of blocks.
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
    """Cut range(size) into slices of length `step`. The last slice may be shorter.

    >>> list(parts(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, size, max(1, step)):
        yield slice(start, min(start + step, size))


def boxes_of(sizes: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, Box]]:
    """Cut the flat range [start, stop) of a C-order array of shape `sizes` into boxes. Yield (offset, box) for each.

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


class Span(NamedTuple):
    """A contiguous range of a C-order array: its start, its length, and the part of a box that it contains.

    The indices of `part` are relative to the box.
    """

    start: int
    length: int
    part: Box


def strides_of(sizes: Sequence[int]) -> list[int]:
    """Return the C-order strides of an array, in elements.

    >>> strides_of((2, 3, 4))
    [12, 4, 1]
    """
    return [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]


def spans_of(sizes: Sequence[int], box: Box, limit: int, near: int) -> Iterator[Span]:
    """Cut a box into contiguous ranges. Each range is read or written by one call.

    A range is one contiguous run of the box, of any length, or several runs together with the elements between them.
    Runs are joined if they are less than `near` elements apart and the joined range has at most `limit` elements.

    >>> [(span.start, span.length) for span in spans_of((4, 4), (slice(0, 4), slice(0, 2)), 10, 3)]
    [(0, 10), (12, 2)]
    """
    strides = strides_of(sizes)
    counts = [part.stop - part.start for part in box]
    if not all(counts):
        return
    first = sum(part.start * stride for part, stride in zip(box, strides, strict=True))
    # Loop invariant: one contiguous range of `length` elements covers the dimensions of the box from `whole` on.
    whole, length = len(sizes), 1
    while whole:
        count, stride = counts[whole - 1], strides[whole - 1]
        extent = length + (count - 1) * stride
        if stride != length and count > 1 and (stride - length >= near or extent > limit):
            break
        whole, length = whole - 1, extent
    inside = tuple(slice(0, count) for count in counts[whole:])
    if not whole:
        yield Span(first, length, inside)
        return
    stride = strides[whole - 1]
    step = max(1, (limit - length) // stride + 1) if stride - length < near else 1
    for outer in product(*(range(count) for count in counts[: whole - 1])):
        start = first + sum(index * stride for index, stride in zip(outer, strides, strict=False))
        place = tuple(slice(index, index + 1) for index in outer)
        for part in parts(counts[whole - 1], step):
            extent = length + (part.stop - part.start - 1) * stride
            yield Span(start + part.start * stride, extent, (*place, part, *inside))
