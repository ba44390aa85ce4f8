"""Who has which scores of a row: whole numbers, without arrays and without communication.

A layout is the number of scores that each process has of every row, in the order of the processes. Kernels need a
layout of whole blocks. So each block is brought to the process that has its first score.

>>> whole_blocks((5000, 5000, 0, 6000), block=4096)
(8192, 4096, 0, 3712)
>>> overlaps((5000, 5000, 0, 6000), (8192, 4096, 0, 3712), 1)  # process 1 lends 3192 scores to process 0
[(0, 0, 3192), (1, 3192, 5000)]
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from softargmax.core import native

if TYPE_CHECKING:
    from collections.abc import Callable

Layout = tuple[int, ...]
"""The number of scores that each process has of every row."""


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


def overlaps(have: Layout, want: Layout, process: int) -> list[tuple[int, int, int]]:
    """What a process of the layout `have` sends for the layout `want`: (process, start, stop), with places from its own
    first score.
    """
    start, stop = bounds(have)[process]
    shared = [(to, max(start, first), min(stop, last)) for to, (first, last) in enumerate(bounds(want))]
    return [(to, first - start, last - start) for to, first, last in shared if first < last]
