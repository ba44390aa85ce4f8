"""Attention of sequences or heads that are spread over processes has the bits of one process."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from tests.parallel.cases import CUTS, cuts, same
from tests.parallel.workers import Workers

import softargmax

BATCH, HEADS, GROUPS, QUERIES, KEYS, WIDTH = 2, 4, 2, 150, 700, 8


def arrays(dtype: str, queries: int = QUERIES, keys: int = KEYS) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = (BATCH, HEADS, queries, WIDTH), (BATCH, GROUPS, keys, WIDTH), (BATCH, GROUPS, keys, WIDTH + 1)
    return [torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes]


def edges(kind: str, world: int, count: int) -> list[int]:
    """Cuts of a sequence or of heads. No length here reaches a block of 4096."""
    return cuts("even" if kind == "blocks" or count == 1 else kind, world, count)


def part(group: Any, x: torch.Tensor, kind: str, axis: int) -> torch.Tensor:
    start, stop = edges(kind, group.size(), x.shape[axis])[group.rank() :][:2]
    return x.narrow(axis, start, stop - start)


def compare(
    group: Any, options: dict[str, Any], of_queries: dict[str, Any], dtype: str = "float32", queries: int = QUERIES
) -> None:
    """Sequences in parts: the result and the gradients of q, k and v."""
    for kind in CUTS:
        whole = [x.requires_grad_() for x in arrays(dtype, queries)]
        expected = softargmax.attention(*whole, **options, **of_queries)
        mine = [part(group, x.detach(), kind, -2).clone().requires_grad_() for x in whole]
        axes = {name: -1 if x.ndim < 4 else -2 for name, x in of_queries.items()}
        parts = {name: part(group, x, kind, axes[name]) for name, x in of_queries.items()}
        found = softargmax.parallel.attention(*mine, group=group, **options, **parts)
        same(found, part(group, expected, kind, -2))
        g = torch.randn(expected.shape).to(expected.dtype)
        expected.backward(g)
        found.backward(part(group, g, kind, -2))
        for x, of_whole in zip(mine, whole, strict=True):
            assert x.grad is not None
            assert of_whole.grad is not None
            same(x.grad, part(group, of_whole.grad, kind, -2))


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (40, 7)},
    "causal window": {"causal": True, "window": (40, None), "softcap": 5.0},
    "scale, sink": {"scale": 0.3, "sink": torch.tensor([0.0, 1.0, -1.0, 2.0])},
    "slopes": {"slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
    "lengths": {"causal": True, "key_lengths": torch.tensor([700, 611])},
    "dropout": {"dropout": 0.3, "seed": 5},
    "sparsemax": {"alpha": 2.0, "causal": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_sequences(workers: Workers, options: dict[str, Any]) -> None:
    for world in (1, 2, 3, 4):
        workers.run(world, compare, options, {})


OF_QUERIES: dict[str, dict[str, Any]] = {
    "mask": {"mask": torch.rand(1, 1, QUERIES, KEYS) < 0.5},
    "bias": {"bias": torch.randn(1, HEADS, QUERIES, KEYS)},
    "scale": {"scale": torch.rand(1, HEADS, QUERIES)},
}


def of_one_head(group: Any, shared: dict[str, Any], of_queries: dict[str, Any]) -> None:
    """The output and all gradients with one head of keys for several processes, which then divide its keys."""
    if "key_lengths" in shared:
        shared = {**shared, "key_lengths": torch.tensor([611])}
    torch.manual_seed(0)
    q, k = torch.randn(1, HEADS, QUERIES, WIDTH), torch.randn(1, 1, KEYS, WIDTH)
    v, g = torch.randn(1, 1, KEYS, 5), torch.randn(1, HEADS, QUERIES, 5)
    for kind in CUTS:
        found = []
        for parts in (False, True):
            mine = [part(group, x, kind, -2) if parts else x for x in (q, k, v, g)]
            axes = {option: -1 if x.ndim < 4 else -2 for option, x in of_queries.items()}
            more = {option: part(group, x, kind, axes[option]) if parts else x for option, x in of_queries.items()}
            arguments = dict(zip("qkv", mine, strict=False)) | shared | more
            arguments = {n: x.detach().clone() if isinstance(x, torch.Tensor) else x for n, x in arguments.items()}
            trained = {n: x for n, x in arguments.items() if isinstance(x, torch.Tensor) and x.is_floating_point()}
            for x in trained.values():
                x.requires_grad_()
            function, of = (softargmax.parallel.attention, {"group": group}) if parts else (softargmax.attention, {})
            o = function(*[arguments.pop(n) for n in "qkv"], **of, **arguments)
            o.backward(mine[-1])
            found.append({"o": o, **{n: x.grad for n, x in trained.items()}})
        for n, x in found[0].items():
            axis = -1 if n == "scale" else -2
            same(found[1][n], x if n in shared else part(group, x, kind, axis))


@pytest.mark.parametrize("name", [*(name for name in OPTIONS if name != "sparsemax"), *OF_QUERIES])
def test_more_processes_than_heads(workers: Workers, name: str) -> None:
    for world in (2, 4):
        workers.run(world, of_one_head, OPTIONS.get(name, {}), OF_QUERIES.get(name, {}))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(workers: Workers, dtype: str) -> None:
    workers.run(3, compare, {"causal": True}, {}, dtype)


@pytest.mark.parametrize("queries", [1, 3, 750])
def test_lengths(workers: Workers, queries: int) -> None:
    """One query, as in decoding; fewer queries than processes; more queries than keys."""
    workers.run(4, compare, {"causal": True}, {}, "float32", queries)


def test_options_of_queries(workers: Workers) -> None:
    torch.manual_seed(1)
    workers.run(3, compare, {}, {"mask": torch.rand(BATCH, 1, QUERIES, KEYS) < 0.5})
    workers.run(3, compare, {}, {"bias": torch.randn(1, HEADS, QUERIES, KEYS)})
    workers.run(2, compare, {"causal": True}, {"scale": torch.rand(BATCH, HEADS, QUERIES)})


def sink_gradient(group: Any) -> None:
    whole, mine = (torch.zeros(HEADS, requires_grad=True) for _ in range(2))
    q, k, v = arrays("float64")
    softargmax.attention(q, k, v, sink=whole).sum().backward()
    parts = [part(group, x, "ragged", -2) for x in (q, k, v)]
    softargmax.parallel.attention(*parts, sink=mine, group=group).sum().backward()
    assert mine.grad is not None
    assert whole.grad is not None
    torch.testing.assert_close(mine.grad, whole.grad)


def test_the_gradient_of_a_sink_is_that_of_all_processes(workers: Workers) -> None:
    workers.run(3, sink_gradient)


def second_derivatives(group: Any) -> None:
    found = []
    for parts in (False, True):
        torch.manual_seed(0)
        whole = [torch.randn(1, 2, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        mine = [part(group, x, "ragged", -2) for x in whole] if parts else whole
        function, more = (softargmax.parallel.attention, {"group": group}) if parts else (softargmax.attention, {})
        o = function(*mine, causal=True, **more)
        of_q, of_v = torch.autograd.grad(o.square().sum(), [mine[0], mine[2]], create_graph=True)
        found.append(torch.autograd.grad(of_q.square().sum() + of_v.sin().sum(), whole))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(part(group, other, "ragged", -2), part(group, one, "ragged", -2))


def test_second_derivatives(workers: Workers) -> None:
    """Three processes exchange the two heads of keys, and four divide their keys."""
    for world in (3, 4):
        workers.run(world, second_derivatives)


def by_heads(group: Any, options: dict[str, Any]) -> None:
    """Heads in parts: two heads of queries go with each head of keys."""
    whole = [x.requires_grad_() for x in arrays("float32")]
    expected = softargmax.attention(*whole, **options)
    g = torch.randn(expected.shape)
    expected.backward(g)
    first, last = edges("even", group.size(), GROUPS)[group.rank() :][:2]
    each = HEADS // GROUPS

    def own(x: torch.Tensor, axis: int = 1) -> torch.Tensor:
        count = x.shape[axis] // GROUPS
        return x.detach().narrow(axis, first * count, (last - first) * count)

    mine = [own(x).clone().requires_grad_() for x in whole]
    of_heads = {name: own(x, 0) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    found = softargmax.parallel.attention(*mine, group=group, axis=-3, **of_heads)
    assert found.shape[1] == each * (last - first)
    same(found, own(expected))
    found.backward(own(g))
    for x, of_whole in zip(mine, whole, strict=True):
        assert x.grad is not None
        assert of_whole.grad is not None
        same(x.grad, own(of_whole.grad))


@pytest.mark.parametrize("name", ["plain", "causal window", "scale, sink", "slopes"])
def test_heads(workers: Workers, name: str) -> None:
    for world in (1, 2, 3):
        workers.run(world, by_heads, OPTIONS[name])


def call(group: Any, options: list[dict[str, Any]], shapes: list[tuple[int, ...]]) -> Any:
    q = torch.zeros(1, 2, 3, 4)
    return softargmax.parallel.attention(q, q, torch.zeros(shapes[group.rank()]), group=group, **options[group.rank()])


SHAPE = (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("first", "second", "shape", "message"),
    [
        ({"causal": True}, {}, SHAPE, "right: expected the same in all processes, got 0, None in"),
        ({}, {"axis": -3}, SHAPE, "function: expected the same in all processes, got attention, axis=-2, attention, "),
        ({}, {"softcap": -1.0}, SHAPE, "process 1: softcap: expected "),
        ({}, {}, (1, 2, 5, 4), "process 1: v: expected shape (..., heads, 3, width)"),
        ({}, {}, (1, 2, 3, 5), "v: expected the same in all processes, got float32 (1, 2, *, 4), float32 (1, 2, *, 5)"),
        ({"axis": 1}, {"axis": 1}, SHAPE, "process 0: axis: expected -2 (sequences) or -3 (heads), got 1"),
        (
            {"axis": -3, "dropout": 0.1, "seed": 1},
            {"axis": -3, "dropout": 0.1, "seed": 1},
            SHAPE,
            "process 0: dropout: its noise depends on the numbers of all heads; use axis=-2",
        ),
        (
            {"dropout": 0.1, "seed": 1},
            {"dropout": 0.1, "seed": 2},
            SHAPE,
            "seeds: expected the same in all processes, got int64",
        ),
        (
            {"axis": -3, "alpha": 2.0, "key_lengths": torch.tensor([2])},
            {"axis": -3, "alpha": 2.0, "key_lengths": torch.tensor([5])},
            SHAPE,
            "process 1: key_lengths: expected numbers from 0 to 3, got a number out of range",
        ),
        ({"mask": None}, {"mask": torch.ones(3, 3, dtype=torch.bool)}, SHAPE, "process 1: mask: expected a shape that"),
    ],
)
def test_one_error(workers: Workers, first: Any, second: Any, shape: Any, message: str) -> None:
    found = workers.errors(2, call, [first, second], [SHAPE, shape])
    assert len(set(found)) == 1
    assert found[0][1].startswith(message)


def on_mesh(group: Any, shape: tuple[int, ...], placements: tuple[Any, ...], options: dict[str, Any]) -> None:
    """DTensors: the output and gradients, which are placed like q, have the bits of whole tensors."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", shape)
    places = [Replicate() if one is None else Shard(one) for one in placements]
    whole = [x.requires_grad_() for x in arrays("float32")]
    spread = [distribute_tensor(x.detach(), mesh, places).requires_grad_() for x in whole]
    expected, found = softargmax.attention(*whole, **options), softargmax.attention(*spread, **options)
    assert isinstance(found, DTensor)
    assert found.placements == tuple(places)
    same(found.full_tensor(), expected)
    g = torch.randn(expected.shape)
    expected.backward(g)
    found.backward(distribute_tensor(g, mesh, places))
    for x, of_whole in zip(spread, whole, strict=True):
        assert isinstance(x.grad, DTensor)
        assert of_whole.grad is not None
        same(x.grad.full_tensor(), of_whole.grad)


@pytest.mark.parametrize(
    ("shape", "placements"),
    [((4,), (0,)), ((4,), (2,)), ((4,), (None,)), ((2, 2), (0, 1)), ((2, 2), (1, 2)), ((2, 2), (2, None))],
)
def test_dtensors(workers: Workers, shape: Any, placements: Any) -> None:
    workers.run(4, on_mesh, shape, placements, {"causal": True, "window": (300, None)})


@pytest.mark.parametrize(
    ("placements", "options", "message"),
    [
        ((1,), {}, "k: expected numbers of heads that 4 divides, got 4, 2, 2"),
        ((2,), {"sink": torch.zeros(HEADS)}, "sink: not supported with DTensors; call softargmax.parallel.attention"),
        ((2,), {"dropout": 0.5}, "dropout: not supported with DTensors; call softargmax.parallel.attention"),
    ],
)
def test_dtensors_that_are_refused(workers: Workers, placements: Any, options: Any, message: str) -> None:
    for _, text in workers.errors(4, on_mesh, (4,), placements, options):
        assert text.startswith(message)


def shared_alpha(group: Any) -> Any:
    q, k, v = (part(group, x, "even", -2) for x in arrays("float32"))
    return softargmax.parallel.attention(q, k, v, alpha=torch.tensor(1.5, requires_grad=True), group=group)


def without_gradients(group: Any) -> None:
    with torch.no_grad():
        shared_alpha(group)


def test_a_shared_array_needs_no_gradient(workers: Workers) -> None:
    workers.run(2, without_gradients)


def test_a_shared_array_has_no_gradient_of_some_of_its_queries(workers: Workers) -> None:
    for kind, text in workers.errors(2, shared_alpha):
        assert kind == "NotImplementedError"
        assert "alpha: queries that are spread over processes have no gradient for an array" in text


@pytest.mark.parametrize(("name", "without"), [("attention", set[str]()), ("attention_split_kv", {"alpha"})])
def test_the_signature_shows_the_options(name: str, without: set[str]) -> None:
    whole = inspect.signature(softargmax.attention).parameters.values()
    shown = inspect.signature(getattr(softargmax.parallel, name)).parameters
    options = [x for x in whole if x.kind is x.KEYWORD_ONLY and x.name not in without]
    assert list(shown.values())[-len(options) :] == options
    with pytest.raises(TypeError, match=rf"{name}\(\) has no argument is_causal; use causal"):
        getattr(softargmax.parallel, name)(*arrays("float32"), is_causal=True)
