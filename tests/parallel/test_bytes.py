"""What the processes of a group send is what the formulas in bench/ say, as docs/parallel.md does."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from bench import attention_exchanges, exchanges
from bench.attention_exchanges import Heads
from bench.exchanges import OF_ROWS, Member, Step
from tests.output.layers import layer_of
from tests.parallel.cases import cuts, scores
from tests.parallel.messages import both_passes, gathers_of_tensors, messages, of_scores
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


@pytest.mark.parametrize("kind", ["blocks", "even", "ragged"])
@pytest.mark.parametrize("options", [{}, {"reproducible": False}], ids=str)
def test_a_last_layer(workers: Workers, options: dict[str, Any], kind: str) -> None:
    """The rows are computed in several parts. No message depends on the number of rows of W, but for the blocks.

    Rows of W, and of dW, are moved if a cut divides a block.
    """
    rows, width = 250, 16
    for world in (1, 2, 3):
        bounds = cuts(kind, world, 33_000)
        for rank, (forward, backward) in enumerate(workers.run(world, sent_for_layer, bounds, rows, width, options)):
            of = Member(rank, sizes_of(bounds))
            expected = messages(exchanges.linear_cross_entropy(of, rows, width, **options))
            assert forward == expected
            assert backward == messages(exchanges.linear_cross_entropy_backward(of, width))
            assert sum(step.kind == "to all" for step in expected) > 3


def sent_by_rows(group: Any, sizes: list[int], width: int, classes: int, bias: bool, options: dict[str, Any]) -> Any:
    """The messages of both passes of a last layer whose rows are spread."""
    rows = sizes[group.rank()]
    h, w = torch.ones(rows, width, requires_grad=True), torch.ones(classes, width, requires_grad=True)
    if bias:
        options = options | {"bias": torch.ones(classes, requires_grad=True)}
    target = torch.zeros(rows, dtype=torch.int64)
    loss = softargmax.parallel.linear_cross_entropy
    return both_passes(lambda: loss(h, w, target, group=group, by="rows", **options))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", ["mean", "sum", "any order", "one mask"])
def test_rows_of_a_last_layer(workers: Workers, name: str, bias: bool) -> None:
    """The rows are computed in several parts, of which no message says anything. dW is passed on in nine parts. Rows of
    h are moved if a cut divides 512 rows. A mask of all rows is not moved.
    """
    width, classes = 64, 9000
    options: dict[str, Any] = {
        "mean": {},
        "sum": {"reduction": "sum"},
        "any order": {"reproducible": False},
        "one mask": {"where": torch.arange(classes) < 8000},
    }[name]
    mean, reproducible = "reduction" not in options, options.get("reproducible", True)
    for sizes in ([700], [512, 188], [300, 400], [1024, 512, 20], [100, 500, 0]):
        found = workers.run(len(sizes), sent_by_rows, sizes, width, classes, bias, options)
        for rank, (forward, backward) in enumerate(found):
            of = Member(rank, tuple(sizes))
            formula = exchanges.layer_by_rows(of, width, classes, mean=mean, bias=bias, reproducible=reproducible)
            assert forward == messages(formula)
            assert backward == (messages(exchanges.layer_by_rows_backward(of, width)) if reproducible else [])


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
            assert forward == messages(attention_exchanges.attention_split_kv(of, heads))
            assert backward == messages(attention_exchanges.attention_split_kv_backward(of, heads, slopes=slopes))


def sent_for_attention(group: Any, heads: Heads, bounds: list[int], options: dict[str, Any]) -> Any:
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
    return both_passes(lambda: softargmax.parallel.attention(q, k, v, group=group, **options))


def both(formula: Any, *arguments: Any, **options: Any) -> tuple[list[Step], list[Step]]:
    """The messages of both passes."""
    forward, backward = (messages(formula(*arguments, **options, backward=k)) for k in (False, True))
    return forward, backward


@pytest.mark.parametrize("keys", [1, 4])
def test_attention(workers: Workers, keys: int) -> None:
    """Four heads of keys are exchanged for parts of sequences. One head is computed by keys."""
    heads = Heads(keys=keys, each=2, queries=2600, width=8, values=5)
    for causal, zigzag in ((False, False), (True, False), (True, True)):
        options = {"causal": causal, "zigzag": zigzag}
        for world in (1, 2, 3):
            bounds = cuts("even", world, heads.queries)
            for rank, found in enumerate(workers.run(world, sent_for_attention, heads, bounds, options)):
                of = Member(rank, sizes_of(bounds))
                assert found == both(attention_exchanges.attention, of, heads, **options)


@pytest.mark.parametrize("kind", ["even", "ragged", "empty"])
@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_by_parts(workers: Workers, causal: bool, zigzag: bool, kind: str) -> None:
    """Parts longer than what visits at a time, parts with cut blocks, and empty ones."""
    heads = Heads(keys=1, each=2, queries=5000, width=2, values=1)
    for world in (1, 2, 3):
        bounds = cuts(kind, world, heads.queries)
        options = {"causal": causal, "zigzag": zigzag}
        for rank, found in enumerate(workers.run(world, sent_for_attention, heads, bounds, {"by": "parts", **options})):
            of = Member(rank, sizes_of(bounds))
            assert found == both(attention_exchanges.attention_by_parts, of, heads, **options)


def test_all_parts_of_sequences_but_those_of_its_own_heads_are_sent() -> None:
    """As much in the backward pass, and less than half of it to each of two others."""
    heads = Heads(keys=4, each=2, queries=600, width=8, values=5)
    for world in (1, 2, 4):
        of = Member(0, (600 // world,) * world)
        own = of.sizes[0] * 4 * heads.keys * (2 * heads.width + heads.width + heads.values + 2 * heads.values)
        for backward in (False, True):
            steps = attention_exchanges.attention(of, heads, backward=backward)
            assert sum(step.amount for step in steps if step.kind == "send") == own * (world - 1) // world


def sent_for_classes(group: Any, bounds: list[int], count: int) -> Any:
    """The messages of both passes of log-probabilities of several classes."""
    z = scores()[:, slice(*bounds[group.rank() :][:2])].requires_grad_()
    index = TARGET.clamp(min=0)[:, None].expand(-1, count)
    return both_passes(lambda: softargmax.parallel.selected_log_softmax(z, index, group=group))


def test_several_classes(workers: Workers) -> None:
    for world in (1, 2, 3):
        bounds = cuts("blocks", world)
        for count in (1, 3):
            for rank, (forward, backward) in enumerate(workers.run(world, sent_for_classes, bounds, count)):
                of = Member(rank, sizes_of(bounds))
                assert forward == messages(exchanges.selected_log_softmax(of, 6, count))
                assert not backward


def sent_for_draws_with_logprob(group: Any, columns: list[int], dtype: str, options: dict[str, Any]) -> Any:
    z = torch.zeros(6, columns[group.rank()], dtype=getattr(torch, dtype))
    z[:, :3] = 10.0
    call = softargmax.parallel.categorical_with_logprob
    return both_passes(lambda: call(z, seed=0, group=group, num_samples=7, **options))


@pytest.mark.parametrize(("dtype", "number"), [("float32", 4), ("bfloat16", 2), ("float64", 8)])
@pytest.mark.parametrize(
    ("options", "first", "kept"),
    [({}, None, None), ({"top_k": 10, "top_p": 0.9}, "top_k", 10), ({"min_p": 0.5}, "min_p", 3)],
    ids=str,
)
def test_draws_with_logprob(
    workers: Workers, options: dict[str, Any], first: str | None, kept: int | None, dtype: str, number: int
) -> None:
    columns = [4096, 4000]
    for rank, (found, _) in enumerate(workers.run(2, sent_for_draws_with_logprob, columns, dtype, options)):
        of = Member(rank, tuple(columns))
        assert found == messages(exchanges.categorical(of, 6, 7, number=number, first=first, kept=kept, logprob=True))


# --- DTensors ---------------------------------------------------------------------------------------------------------


def sent_for_rows(group: Any, rows: list[int], options: dict[str, Any]) -> Any:
    """The messages of a mean over rows, of which each process has some. Torch's own functions send them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh, mine, total = init_device_mesh("cpu", (group.size(),)), rows[group.rank()], sum(rows)
    z = DTensor.from_local(
        torch.zeros(mine, 5), mesh, [Shard(0)], shape=torch.Size((total, 5)), stride=(5, 1)
    ).requires_grad_()
    target = DTensor.from_local(
        torch.zeros(mine, dtype=torch.int64), mesh, [Shard(0)], shape=torch.Size((total,)), stride=(1,)
    )
    with gathers_of_tensors() as found:
        loss = softargmax.cross_entropy(z, target, **options)
        forward = len(found)
        loss.backward()
    return found[:forward], found[forward:]


def test_means_of_rows(workers: Workers) -> None:
    for options in ({}, {"reduction": "sum"}):
        for rows in ([2, 2, 2, 2], [2, 2, 1, 0]):
            of = Member(0, tuple(rows))
            expected = messages(exchanges.mean_of_rows(of, classes=not options))
            assert workers.run(4, sent_for_rows, rows, options) == [(expected, [])] * 4


def sent_for_candidates(group: Any, name: str) -> Any:
    """The messages of a layer, the rows of its weight and bias that it needs, and how many it has."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    from softargmax.parallel import torch_layers

    mesh, style = init_device_mesh("cpu", (group.size(),)), softargmax.parallel.VocabularyParallel()
    layer: Any = parallelize_module(layer_of(name, dtype=torch.float32), mesh, style)
    needed: list[torch.Tensor] = []
    function = torch_layers.rows_of_parts

    def noted(mine: torch.Tensor, index: torch.Tensor, *, group: Any) -> torch.Tensor:
        needed.append(index)
        return function(mine, index, group=group)

    torch_layers.rows_of_parts = noted
    h, target = torch.ones(3, 5, requires_grad=True), torch.tensor([0, 39, -100])
    try:
        return both_passes(lambda: layer(h, target)), needed, len(layer.weight)
    finally:
        torch_layers.rows_of_parts = function


@pytest.mark.parametrize("name", ["sampled", "nce", "negative", "hierarchical"])
def test_candidates(workers: Workers, name: str) -> None:
    """Each process sends the vectors of the candidates that it has, and their biases. The gradients are not sent."""
    for (forward, backward), needed, count in workers.run(4, sent_for_candidates, name):
        assert not backward
        expected: list[Step] = []
        for index, numbers in zip(needed, (5, 1), strict=False):
            owned = torch.bincount(index // -(-count // 4), minlength=4)
            of = Member(0, tuple(owned.tolist()))
            expected += messages(exchanges.rows_of_parts(of, 4 * numbers))
        assert forward == expected
