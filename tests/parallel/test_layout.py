"""Layouts are whole numbers: every score goes to one process, and blocks are not cut."""

from __future__ import annotations

from itertools import product

import torch
from hypothesis import given
from hypothesis import strategies as st

from softargmax.parallel.layout import (
    balanced,
    bounds,
    dealt,
    in_order,
    in_zigzag,
    own_places,
    sends,
    shares,
    sizes_of_chunks,
    sizes_of_processes,
    whole_blocks,
    with_sizes,
)

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=6).map(tuple)


@given(SIZES, st.integers(1, 16))
def test_blocks_are_whole(sizes: tuple[int, ...], block: int) -> None:
    found = whole_blocks(sizes, block)
    assert sum(found) == sum(sizes)
    assert min(found) >= 0
    starts = [start for start, stop in bounds(found) if start < stop]
    assert all(start % block == 0 for start in starts)


@given(SIZES, st.integers(1, 16))
def test_a_block_goes_to_the_process_that_has_its_first_score(sizes: tuple[int, ...], block: int) -> None:
    owners = bounds(whole_blocks(sizes, block))
    for first in range(0, sum(sizes), block):
        holds = [start <= first < stop for start, stop in bounds(sizes)]
        owns = [start <= first < stop for start, stop in owners]
        assert holds == owns


@given(SIZES, st.integers(1, 16))
def test_every_score_moves_once_and_back(sizes: tuple[int, ...], block: int) -> None:
    want = whole_blocks(sizes, block)
    row = list(range(sum(sizes)))
    parts = [row[start:stop] for start, stop in bounds(sizes)]
    for have, to in ((sizes, want), (want, sizes)):
        received: list[list[int]] = [[] for _ in sizes]
        for process in range(len(sizes)):
            for other, start, stop in sends(in_order(have), in_order(to), process):
                received[other] += parts[process][start:stop]
        parts = [sorted(one) for one in received]
        assert parts == [row[start:stop] for start, stop in bounds(to)]


@given(SIZES, st.integers(0, 250), st.integers(0, 250))
def test_shares(sizes: tuple[int, ...], start: int, stop: int) -> None:
    parts = bounds(sizes)
    found = [(part, place) for part, first, last in shares(start, stop, parts) for place in range(first, last)]
    of_parts = [(part, place) for part, (first, last) in enumerate(parts) for place in range(first, last)]
    assert found == [(part, place) for part, place in of_parts if start <= place < stop]


@given(st.integers(0, 300), st.integers(1, 6), st.integers(1, 16), st.integers(0, 9))
def test_balanced_work(length: int, processes: int, block: int, slope: int) -> None:
    works = {first: 1 + slope * (length - first) for first in range(0, length, block)}
    found = balanced(length, processes, block, works.__getitem__)
    assert sum(found) == length
    assert len(found) == processes
    shares = [[works[first] for first in works if start <= first < stop] for start, stop in bounds(found)]
    assert sum(map(sum, shares)) == sum(works.values())
    fair, most = sum(works.values()) / processes, max(works.values(), default=0)
    assert all(sum(one) <= fair + most + 1 for one in shares)
    assert all(start % block == 0 for start, stop in bounds(found) if start < stop)


def test_no_exchange_if_cuts_are_between_blocks() -> None:
    assert whole_blocks((8192, 0, 4096, 77)) == (8192, 0, 4096, 77)


@given(st.integers(0, 40), st.integers(1, 6))
def test_whole_rows_are_dealt_out_evenly(count: int, processes: int) -> None:
    found = dealt(count, processes)
    assert (len(found), sum(found)) == (processes, count)
    assert max(found) - min(found) <= 1


@given(st.integers(0, 200), st.integers(1, 9))
def test_chunks_of_tensor_split_are_a_zigzag(length: int, processes: int) -> None:
    """Process r of W has the chunks r and 2 W - 1 - r. The halves of its part are these chunks."""
    cut = [len(x) for x in torch.zeros(length).tensor_split(2 * processes)]
    parts = tuple(cut[rank] + cut[-1 - rank] for rank in range(processes))
    assert sizes_of_chunks(in_zigzag(parts)) == tuple(cut)


@given(SIZES, st.integers(1, 16))
def test_every_score_of_a_zigzag_moves_once_and_back(sizes: tuple[int, ...], block: int) -> None:
    row, processes = list(range(sum(sizes))), len(sizes)
    chunks = in_zigzag(sizes)
    assert sizes_of_processes(chunks, processes) == sizes
    assert [process for process, _ in chunks] == [*range(processes), *reversed(range(processes))]

    def parts_of(layout: tuple[tuple[int, int], ...]) -> list[list[int]]:
        parts: list[list[int]] = [[] for _ in sizes]
        for (process, _), (start, stop) in zip(layout, bounds(sizes_of_chunks(layout)), strict=True):
            parts[process] += row[start:stop]
        return parts

    of_blocks = with_sizes(chunks, whole_blocks(sizes_of_chunks(chunks), block))
    for have, want in ((chunks, of_blocks), (chunks, in_order(sizes)), (of_blocks, chunks)):
        parts, of_want, received = parts_of(have), parts_of(want), [list[int]() for _ in sizes]
        for process in range(processes):
            for other, start, stop in sends(have, want, process):
                received[other] += parts[process][start:stop]
        assert [sorted(one) for one in received] == of_want
        for process, other in product(range(processes), repeat=2):  # one expects what the other sends, in its order
            sent = [parts[process][first:last] for to, first, last in sends(have, want, process) if to == other]
            expected = [of_want[other][first:last] for to, first, last in sends(want, have, other) if to == process]
            assert sent == expected
        for (process, _), (start, stop), (first, last) in zip(
            have, own_places(have), bounds(sizes_of_chunks(have)), strict=True
        ):
            assert parts[process][start:stop] == row[first:last]
