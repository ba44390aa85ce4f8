"""What one process of thousands sends, and in which order, is what the formulas of bench/exchanges.py say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from bench import attention_exchanges, exchanges
from bench.attention_exchanges import Heads
from bench.exchanges import Member, Step
from bench.network import Model, Network
from tests.parallel.messages import both_passes, fake_world, messages, of_scores

from softargmax import parallel
from softargmax.core import _native

WORLDS = (8, 64, 512, 4096)
BLOCK, KEYS = 4096, 512
ROWS, WIDTH = 30, 8


@pytest.fixture(params=[(world, rank) for world in WORLDS for rank in (0, world // 3, world - 1)], ids=str)
def world(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """The number of processes, and the one that exists."""
    with fake_world(request.param[1], request.param[0]):
        yield request.param


def member(world: tuple[int, int], size: int) -> Member:
    """The process that exists. All processes have `size` scores per row, or keys."""
    return Member(world[1], (size,) * world[0])


@pytest.mark.parametrize("name", exchanges.OF_ROWS)
def test_functions_of_scores(world: tuple[int, int], name: str) -> None:
    of = member(world, BLOCK)
    found = of_scores(name, torch.zeros(3, BLOCK), torch.tensor([0, 5, BLOCK]), None)
    assert found == tuple(messages(exchanges.of_rows(name, of, 3, backward=k)) for k in (False, True))


@pytest.mark.parametrize(
    ("option", "per_row", "per_block"), [("label smoothing", 0, 88), ("probabilities", 0, 88), ("class weights", 8, 0)]
)
def test_losses_of_half_precision(option: str, per_row: int, per_block: int) -> None:
    """Their gradient is computed in the backward pass, which has a message of its own."""
    for dtype in (torch.float16, torch.bfloat16):
        with fake_world(3, 8):
            z = torch.zeros(3, BLOCK, dtype=dtype)
            _, found = of_scores(f"cross_entropy, {option}", z, torch.tensor([0, 5, BLOCK]), None)
        assert found == [Step("to all", 3 * (per_row + per_block))]


def test_losses_that_are_not_reduced() -> None:
    """Their gradient is computed in the backward pass, too."""
    z, target = torch.zeros(3, BLOCK, requires_grad=True), torch.tensor([0, 5, BLOCK])
    with fake_world(3, 8):
        _, found = both_passes(lambda: parallel.cross_entropy(z, target, reduction="none", label_smoothing=0.1))
    assert found == [Step("to all", 3 * 88)]


def test_parts_of_blocks(world: tuple[int, int]) -> None:
    """Each block is brought to one process, and its results are sent back."""
    of, z = member(world, 1000), torch.zeros(3, 1000)
    blocks = exchanges.to_blocks(of)
    header, *rest = exchanges.of_rows("softmax", blocks, 3)
    there, and_back = exchanges.moved(of, blocks.sizes, 3 * 4), exchanges.moved(blocks, of.sizes, 3 * 4)
    found, _ = both_passes(lambda: parallel.softmax(z))
    assert found == messages([header, *there, *rest, *and_back])


@pytest.mark.parametrize("options", [{}, {"reproducible": False}, {"label_smoothing": 0.1}], ids=str)
def test_a_last_layer(world: tuple[int, int], options: dict[str, Any]) -> None:
    of, target = member(world, BLOCK), torch.arange(ROWS) * 7
    h, w = torch.zeros(ROWS, WIDTH, requires_grad=True), torch.zeros(BLOCK, WIDTH, requires_grad=True)
    expected = exchanges.linear_cross_entropy(
        of, ROWS, WIDTH, smoothing="label_smoothing" in options, reproducible=options.get("reproducible", True)
    )
    forward, backward = both_passes(lambda: parallel.linear_cross_entropy(h, w, target, **options))
    assert forward == messages(expected)
    assert not backward


@pytest.mark.parametrize("reproducible", [True, False])
def test_rows_of_a_last_layer(world: tuple[int, int], reproducible: bool) -> None:
    of, target = member(world, 512), torch.zeros(512, dtype=torch.int64)
    h, w = torch.zeros(512, WIDTH, requires_grad=True), torch.zeros(9, WIDTH, requires_grad=True)
    expected = exchanges.layer_by_rows(of, WIDTH, 9, reproducible=reproducible)
    loss = parallel.linear_cross_entropy
    forward, backward = both_passes(lambda: loss(h, w, target, by="rows", reproducible=reproducible))
    assert forward == messages(expected)
    assert not backward


def test_parts_of_rows_of_a_last_layer() -> None:
    """A process divides its rows from the first of them, as one process divides all: here 1024 at a time."""
    classes = 2048
    assert _native.bounds_of_parts(2048, WIDTH, classes, _native.PARTS) == (0, 1024, 2048)
    for rank, parts in enumerate([[512], [1024, 512]]):
        steps = exchanges.layer_by_rows(Member(rank, (512, 1536)), WIDTH, classes)
        work = [step.amount for step in steps if step.kind == "compute"]
        once = -(-classes // _native.classes_at_once(classes, WIDTH))
        assert work[:: 1 + once] == [2 * count * WIDTH * classes for count in parts]


@pytest.mark.parametrize(("rows", "least", "most"), [(512, 0.5, 0.6), (8192, 0.9, 1.0)])
def test_time_of_rows_in_order(rows: int, least: float, most: float) -> None:
    """The time of two processes, in that of one, by the model. If they compute all of their rows at once, the sum in
    order takes little of it. If they have many parts, they take nearly as long as one: docs/parallel.md says so.
    """
    width, classes, network = 512, 2048, Network(latency=1e-4, bandwidth=3e9, speed=5e10)
    one, two = (
        Model([exchanges.layer_by_rows(Member(rank, sizes), width, classes) for rank in range(len(sizes))], network)
        for sizes in ((2 * rows,), (rows, rows))
    )
    assert least < two.seconds() / one.seconds() < most


@pytest.mark.parametrize("queries", [1, 500])
def test_split_keys(world: tuple[int, int], queries: int) -> None:
    of, heads = member(world, KEYS), Heads(keys=2, each=2, queries=queries, width=WIDTH, values=5)
    q, k, v = torch.zeros(1, 4, queries, WIDTH), torch.zeros(1, 2, KEYS, WIDTH), torch.zeros(1, 2, KEYS, 5)
    forward, backward = both_passes(lambda: parallel.attention_split_kv(q.requires_grad_(), k, v))
    assert forward == messages(attention_exchanges.attention_split_kv(of, heads))
    assert backward == messages(attention_exchanges.attention_split_kv_backward(of, heads))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("by", ["keys", "parts", "zigzag"])
@pytest.mark.parametrize("world", [(8, 0), (8, 2), (8, 7), (64, 21)], indirect=True)
def test_sequences(world: tuple[int, int], by: str, causal: bool) -> None:
    """With twice as many processes as heads of keys, each has some of the keys, and all queries."""
    of, heads = member(world, KEYS), Heads(keys=2, each=2, queries=KEYS * world[0], width=1, values=1)
    q, k, v = torch.zeros(1, 4, KEYS, 1), torch.zeros(1, 2, KEYS, 1), torch.zeros(1, 2, KEYS, 1)
    of_way: Any = attention_exchanges.attention if by == "keys" else attention_exchanges.attention_by_parts
    leaves, options = [x.requires_grad_() for x in (q, k, v)], {"causal": causal}
    if by == "zigzag":
        by, options = "parts", {"causal": causal, "zigzag": True}
    found = both_passes(lambda: parallel.attention(*leaves, by=by, **options))
    assert found == tuple(messages(of_way(of, heads, **options, backward=x)) for x in (False, True))


@pytest.mark.parametrize(
    ("options", "first", "kept"),
    [({}, None, None), ({"top_k": 5, "top_p": 0.9}, "top_k", 5), ({"top_p": 0.9}, "top_p", None)],
    ids=str,
)
def test_draws(world: tuple[int, int], options: dict[str, Any], first: str | None, kept: int | None) -> None:
    of, z = member(world, BLOCK), torch.arange(float(BLOCK)).expand(3, BLOCK)
    found, _ = both_passes(lambda: parallel.categorical(z, seed=0, num_samples=2, **options))
    assert found == messages(exchanges.categorical(of, 3, 2, first=first, kept=kept))


def test_steps_are_those_of_one_process_without_messages() -> None:
    """The products of a process do not depend on the number of processes, but for its parts of the rows."""
    for size in (1, 8):
        steps = list(exchanges.linear_cross_entropy(member((size, 0), BLOCK), ROWS, WIDTH))
        assert sum(step.amount for step in steps if step.kind == "compute") == 3 * ROWS * WIDTH * BLOCK
    assert Step("to all", 25) in steps


@pytest.mark.parametrize("count", [2, 4, 16])
@pytest.mark.parametrize(("zigzag", "pairs"), [(False, 1 / 2), (True, 3 / 4)])
def test_bytes_of_causal_attention_by_parts(count: int, zigzag: bool, pairs: float) -> None:
    """A process sends a part of its keys to each process that sees it. With equal parts, these are half of the others.
    In a zigzag, all others see the first half of its keys, and half of them see the second half.
    """
    size, heads = 32 * 96, Heads(keys=2, each=3, queries=0, width=WIDTH, values=5)
    of_keys = heads.keys * 4 * (WIDTH + 5)
    of_queries = heads.keys * heads.each * (4 * (WIDTH + 2 * 5) + 8)
    for backward, row in ((False, of_keys), (True, of_keys + of_queries)):
        steps = [
            step
            for rank in range(count)
            for step in attention_exchanges.attention_by_parts(
                member((count, rank), size), heads, causal=True, zigzag=zigzag, backward=backward
            )
        ]
        sent = sum(step.amount for step in steps if step.kind == "send")
        assert sent == sum(step.amount for step in steps if step.kind == "expect")
        assert sent == pairs * count * (count - 1) * size * row


@pytest.mark.parametrize("count", [2, 4, 16, 64])
def test_work_of_causal_attention_by_parts(count: int) -> None:
    """With equal parts, a pass takes up to twice as long as it should, and a step a third longer. A zigzag has the same
    work in all processes: docs/parallel.md says so.
    """
    length = 4096 * count
    even, zigzag = (attention_exchanges.work_by_parts((4096,) * count, zigzag=one) for one in (False, True))
    visible = length * (length + 1) // 2
    for found in (even, zigzag):
        assert sum(x.forward for x in found) == 2 * visible
        assert sum(x.backward for x in found) == 7 * visible
    assert max(x.forward for x in even) < 2 * 2 * visible / count
    assert max(x.forward for x in even) + max(x.backward for x in even) < 4 / 3 * 9 * visible / count
    assert max(x.forward for x in zigzag) < 1.001 * 2 * visible / count
    assert max(x.backward for x in zigzag) < 1.001 * 7 * visible / count
