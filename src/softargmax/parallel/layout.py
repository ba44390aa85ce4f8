"""Who has which scores of a row: whole numbers, without arrays and without communication.

A layout is the number of scores that each process has of every row, in the order of the processes. Kernels need a
layout of whole blocks. So each block is brought to the process that has its first score. If a process has several parts
of a row, chunks say which ones.

>>> whole_blocks((5000, 5000, 0, 6000), block=4096)
(8192, 4096, 0, 3712)
>>> have, want = in_order((5000, 5000, 0, 6000)), in_order((8192, 4096, 0, 3712))
>>> sends(have, want, 1)  # process 1 sends 3192 scores to process 0
[(0, 0, 3192), (1, 3192, 5000)]
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from softargmax.core import native

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Layout = tuple[int, ...]
"""The number of scores that each process has of every row: one chunk of each process, in the order of the ranks."""
Chunks = tuple[tuple[int, int], ...]
"""Parts of a row, in its order: the process that has the part, and the number of its scores."""


def bounds(sizes: Layout) -> list[tuple[int, int]]:
    """The places [start, stop) of each process's scores in the row."""
    return list(pairwise(accumulate(sizes, initial=0)))


def whole_blocks(sizes: Layout, block: int = native.BLOCK) -> Layout:
    """The layout in which every block belongs to the process that has its first score."""
    length = sum(sizes)
    starts = [min(-(-start // block) * block, length) for start, _ in bounds(sizes)]
    return tuple(stop - start for start, stop in pairwise([*starts, length]))


def dealt(count: int, processes: int) -> Layout:
    """The layout of whole rows, or of heads, that are dealt out evenly."""
    edges = [count * process // processes for process in range(processes + 1)]
    return tuple(stop - start for start, stop in pairwise(edges))


def balanced(length: int, processes: int, block: int, work: Callable[[int], int]) -> Layout:
    """The layout of whole blocks in which all processes have about the same work. `work` is that of the block that
    starts at a place.
    """
    done = [*accumulate(map(work, range(0, length, block)), initial=0)]  # before each block
    fair = [done[-1] * process // processes for process in range(1, processes)]
    cuts = [min((abs(before - to), blocks) for blocks, before in enumerate(done))[1] * block for to in fair]
    return tuple(stop - start for start, stop in pairwise([0, *(min(cut, length) for cut in cuts), length]))


def shares(start: int, stop: int, parts: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """What parts of a row, in its order, have of the places [start, stop): (part, first, last)."""
    found = []
    for part in range(bisect_right(parts, start, key=itemgetter(1)), len(parts)):
        first, last = max(start, parts[part][0]), min(stop, parts[part][1])
        if first < last:
            found.append((part, first, last))
        elif stop <= first:
            break
    return found


def in_slices(sizes: Layout, most: int) -> list[tuple[int, int, int]]:
    """The parts of a layout in slices of at most `most`: (part, start, stop). An empty part is one slice."""
    return [
        (part, first, min(first + most, stop))
        for part, (start, stop) in enumerate(bounds(sizes))
        for first in range(start, max(stop, start + 1), most)
    ]


# --- processes with several parts of a row ----------------------------------------------------------------------------


def in_order(sizes: Layout) -> Chunks:
    """One chunk of each process, in the order of the ranks."""
    return tuple(enumerate(sizes))


def in_zigzag(sizes: Layout) -> Chunks:
    """Two chunks of each process, the halves of its part: process r of W has the chunks r and 2 W - 1 - r.

    >>> in_zigzag((4, 5))
    ((0, 2), (1, 3), (1, 2), (0, 2))
    """
    first = [(process, size - size // 2) for process, size in enumerate(sizes)]
    return (*first, *((process, size // 2) for process, size in reversed([*enumerate(sizes)])))


def sizes_of_chunks(chunks: Chunks) -> Layout:
    """The number of scores of each chunk."""
    return tuple(size for _, size in chunks)


def with_sizes(chunks: Chunks, sizes: Layout) -> Chunks:
    """Chunks of the same processes with other numbers of scores."""
    return tuple((process, size) for (process, _), size in zip(chunks, sizes, strict=True))


def sizes_of_processes(chunks: Chunks, processes: int) -> Layout:
    """The number of scores that each process has in all of its chunks."""
    return tuple(sum(size for process, size in chunks if process == rank) for rank in range(processes))


def own_places(chunks: Chunks) -> list[tuple[int, int]]:
    """The places [start, stop) of each chunk in the part of its process."""
    found, used = [], dict.fromkeys((process for process, _ in chunks), 0)
    for process, size in chunks:
        found.append((used[process], used[process] + size))
        used[process] += size
    return found


def places_in_row(chunks: Chunks) -> list[tuple[int, int, int]]:
    """Each chunk in the order of the row: (process, start, stop), with places in the row."""
    return [(of, *places) for (of, _), places in zip(chunks, bounds(sizes_of_chunks(chunks)), strict=True)]


def places_of(chunks: Chunks, process: int) -> list[tuple[int, int]]:
    """The places [start, stop) of each chunk of a process in its part."""
    return [places for (of, _), places in zip(chunks, own_places(chunks), strict=True) if of == process]


def in_order_of_ranks(chunks: Chunks) -> list[int]:
    """The numbers of the chunks as they lie in the parts of all processes, one part after the other."""
    return sorted(range(len(chunks)), key=lambda number: chunks[number][0])


def sends(have: Chunks, want: Chunks, process: int) -> list[tuple[int, int, int]]:
    """What a process of `have` sends for `want`, in the order of the row: (process, start, stop), with places in its
    own part.
    """
    parts = bounds(sizes_of_chunks(want))
    return [
        (want[number][0], own + first - start, own + last - start)
        for (of, start, stop), (own, _) in zip(places_in_row(have), own_places(have), strict=True)
        if of == process
        for number, first, last in shares(start, stop, parts)
    ]
