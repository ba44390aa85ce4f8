"""What the processes of a group send is what the formulas of bench/exchanges.py say, as docs/parallel.md does."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from bench import exchanges
from bench.exchanges import OF_ROWS, Heads, Member
from tests.parallel.cases import cuts, scores
from tests.parallel.messages import both_passes, messages, of_scores
from tests.parallel.workers import Workers

import softargmax

TARGET = torch.tensor([17, 4096, 8191, 0, 9000, -100])


def sizes_of(bounds: list[int]) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in itertools.pairwise(bounds))


def sent(group: Any, name: str, bounds: list[int]) -> Any:
    """The messages of both passes of a function in the table."""
    return of_scores(name, scores()[:, slice(*bounds[group.rank() :][:2])], TARGET, group)


@pytest.mark.parametrize("name", OF_ROWS)
def test_functions_of_scores(workers: Workers, name: str) -> None:
    for world in (1, 2, 3):
        bounds = cuts("blocks", world)
        for rank, found in enumerate(workers.run(world, sent, name, bounds)):
            of = Member(rank, sizes_of(bounds))
            assert found == tuple(messages(exchanges.of_rows(name, of, 6, backward=k)) for k in (False, True))


def sent_for_layer(group: Any, bounds: list[int], rows: int, width: int, options: dict[str, Any]) -> Any:
    """The messages of both passes of a last layer."""
    start, stop = bounds[group.rank() :][:2]
    h, w = torch.ones(rows, width, requires_grad=True), torch.ones(stop - start, width, requires_grad=True)
    target = torch.arange(rows)
    return both_passes(lambda: softargmax.parallel.linear_cross_entropy(h, w, target, group=group, **options))


@pytest.mark.parametrize("options", [{}, {"reproducible": False}], ids=str)
def test_a_last_layer(workers: Workers, options: dict[str, Any]) -> None:
    """The rows are computed in several parts. No message depends on the number of rows of W, but for the blocks."""
    rows, width = 250, 16
    for world in (1, 2, 3):
        bounds = cuts("blocks", world, 33_000)
        for rank, (forward, backward) in enumerate(workers.run(world, sent_for_layer, bounds, rows, width, options)):
            of = Member(rank, sizes_of(bounds))
            expected = messages(exchanges.linear_cross_entropy(of, rows, width, **options))
            assert forward == expected
            assert not backward
            assert sum(step.kind == "to all" for step in expected) > 3


def sent_for_draws(group: Any, columns: list[int], options: dict[str, Any]) -> Any:
    """The messages of a call with 6 rows and 7 draws. Each process has 3 high scores in every row."""
    z = torch.zeros(6, columns[group.rank()])
    z[:, :3] = 10.0
    return both_passes(lambda: softargmax.parallel.categorical(z, seed=0, group=group, num_samples=7, **options))


@pytest.mark.parametrize(
    ("options", "first", "kept"),
    [
        ({}, None, None),
        ({"top_k": -1, "top_p": 1.0}, None, None),
        ({"top_k": 10, "top_p": 0.9}, "top_k", 10),
        ({"min_p": 0.5, "eta": 0.1}, "min_p", 3),
        ({"top_k": 5000}, "top_k", 4096),
        ({"top_k": 10, "top_p": 0.9, "order": "joint"}, "joint", None),
        ({"top_p": 0.9, "min_p": 0.5}, "top_p", None),
        ({"replace": False}, "replace", None),
    ],
    ids=str,
)
def test_draws(workers: Workers, options: dict[str, Any], first: str | None, kept: int | None) -> None:
    columns = [4096, 4000]
    for rank, (found, _) in enumerate(workers.run(2, sent_for_draws, columns, options)):
        of = Member(rank, tuple(columns))
        assert found == messages(exchanges.categorical(of, 6, 7, first=first, kept=kept))


def sent_for_split_keys(group: Any, slopes: bool) -> Any:
    """The messages of both passes of attention."""
    q, k, v = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 1024, 8), torch.zeros(2, 2, 1024, 5)
    options = {"slopes": torch.ones(4, requires_grad=True)} if slopes else {}
    return both_passes(lambda: softargmax.parallel.attention_split_kv(q.requires_grad_(), k, v, group=group, **options))


@pytest.mark.parametrize("slopes", [False, True])
def test_split_keys(workers: Workers, slopes: bool) -> None:
    """No byte depends on the number of keys. One process sends nothing but its arguments."""
    heads = Heads(keys=4, each=2, queries=3, width=8, values=5)
    for world in (1, 2, 3):
        for rank, (forward, backward) in enumerate(workers.run(world, sent_for_split_keys, slopes)):
            of = Member(rank, (1024,) * world)
            assert forward == messages(exchanges.attention_split_kv(of, heads))
            assert backward == messages(exchanges.attention_split_kv_backward(of, heads, slopes=slopes))


def sent_for_attention(group: Any, heads: Heads, bounds: list[int]) -> Any:
    """The messages of both passes of attention to sequences of the same length."""
    start, stop = bounds[group.rank() :][:2]
    q, k, v = (
        torch.zeros(1, count, stop - start, width, requires_grad=True)
        for count, width in (
            (heads.keys * heads.each, heads.width),
            (heads.keys, heads.width),
            (heads.keys, heads.values),
        )
    )
    return both_passes(lambda: softargmax.parallel.attention(q, k, v, group=group))


@pytest.mark.parametrize("keys", [1, 4])
def test_attention(workers: Workers, keys: int) -> None:
    """Four heads of keys are exchanged for parts of sequences. One head is computed by keys."""
    heads = Heads(keys=keys, each=2, queries=600, width=8, values=5)
    for world in (1, 2, 3):
        bounds = cuts("even", world, 600)
        for rank, found in enumerate(workers.run(world, sent_for_attention, heads, bounds)):
            of = Member(rank, sizes_of(bounds))
            assert found == tuple(messages(exchanges.attention(of, heads, backward=k)) for k in (False, True))


def test_all_parts_of_sequences_but_those_of_its_own_heads_are_sent() -> None:
    """As much in the backward pass, and less than half of it to each of two others."""
    heads = Heads(keys=4, each=2, queries=600, width=8, values=5)
    for world in (1, 2, 4):
        of = Member(0, (600 // world,) * world)
        own = of.sizes[0] * 4 * heads.keys * (2 * heads.width + heads.width + heads.values + 2 * heads.values)
        for backward in (False, True):
            steps = exchanges.attention(of, heads, backward=backward)
            assert sum(step.amount for step in steps if step.kind == "send") == own * (world - 1) // world
