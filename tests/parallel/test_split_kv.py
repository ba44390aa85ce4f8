"""Attention to keys that are spread over processes has the bits of one process: output, and all gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.parallel.cases import same
from tests.parallel.workers import Workers

import softargmax

BATCH, HEADS, GROUPS, QUERIES, KEYS, WIDTH = 2, 4, 2, 3, 2600, 8
BLOCK = 512  # the kernel's block of keys
CUTS = ("blocks", "even", "ragged", "empty")


def arrays(dtype: str = "float32", queries: int = QUERIES, keys: int = KEYS) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes = (BATCH, HEADS, queries, WIDTH), (BATCH, GROUPS, keys, WIDTH), (BATCH, GROUPS, keys, WIDTH + 1)
    return {name: torch.randn(shape).to(getattr(torch, dtype)) for name, shape in zip("qkv", shapes, strict=True)}


def bounds(kind: str, world: int, keys: int = KEYS) -> list[int]:
    """The cuts of the keys. Ragged cuts have a block with several cuts."""
    if kind == "blocks":
        blocks = -(-keys // BLOCK)
        return [*(blocks * rank // world * BLOCK for rank in range(world)), keys]
    if kind == "ragged":
        return [0, *(min(1100 + 7 * rank, keys) for rank in range(world - 1)), keys]
    if kind == "empty":  # all but the second process, if there is one, have no keys
        return [0, *[0] * min(world - 1, 1), *[keys] * max(world - 1, 1)]
    return [keys * rank // world for rank in range(world + 1)]


AXES = {"k": -2, "v": -2, "mask": -1, "bias": -1}


def part(group: Any, name: str, x: Any, cuts: list[int]) -> Any:
    """This process's part of an argument: its keys."""
    if name not in AXES:
        return x.detach().clone() if isinstance(x, torch.Tensor) else x
    start, stop = cuts[group.rank() :][:2]
    return x.detach().narrow(AXES[name], start, stop - start).clone()


def trained(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that have a gradient. All of them are leaves."""
    found = {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor) and x.is_floating_point()}
    for x in found.values():
        x.requires_grad_()
    return found


def compare(group: Any, arguments: dict[str, Any], kinds: tuple[str, ...] = CUTS) -> None:
    for kind in kinds:
        cuts = bounds(kind, group.size(), arguments["k"].shape[-2])
        whole = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}
        mine = {name: part(group, name, x, cuts) for name, x in arguments.items()}
        of_whole, of_mine = trained(whole), trained(mine)
        expected = softargmax.attention(*[whole.pop(name) for name in "qkv"], **whole)
        found = softargmax.parallel.attention_split_kv(*[mine.pop(name) for name in "qkv"], group=group, **mine)
        same(found, expected)
        torch.manual_seed(1)
        g = torch.randn(expected.shape).to(expected.dtype)
        expected.backward(g)
        found.backward(g)
        for name, x in of_mine.items():
            assert x.grad is not None
            same(x.grad, part(group, name, of_whole[name].grad, cuts))


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (900, 7)},
    "causal window": {"causal": True, "window": (300, None), "softcap": 5.0},
    "scale, sink": {"scale": torch.rand(HEADS, QUERIES), "sink": torch.tensor([0.0, 1.0, -1.0, 2.0])},
    "slopes": {"slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625]), "causal": True},
    "lengths": {"causal": True, "key_lengths": torch.tensor([2600, 611])},
    "no keys": {"causal": True, "key_lengths": torch.tensor([0, 2]), "sink": torch.zeros(HEADS)},
    "dropout": {"dropout": 0.3, "seed": 5},
    "mask": {"mask": torch.rand(BATCH, 1, QUERIES, KEYS) < 0.5},
    "mask of nothing": {"mask": torch.arange(KEYS) > torch.tensor([[KEYS], [1200], [3]])},
    "bias": {"bias": torch.randn(1, HEADS, QUERIES, KEYS)},
    "shared bias": {"bias": torch.randn(KEYS), "softcap": 3.0},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_options(workers: Workers, options: dict[str, Any]) -> None:
    for world in (1, 2, 3, 4):
        workers.run(world, compare, arrays() | options)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(workers: Workers, dtype: str) -> None:
    workers.run(3, compare, arrays(dtype) | {"causal": True})


@pytest.mark.parametrize(("queries", "keys"), [(1, 2600), (200, 1500), (3, 2), (3, 0), (0, 700)])
def test_sizes(workers: Workers, queries: int, keys: int) -> None:
    """One query, as in decoding; several units of queries; fewer keys than queries, or none of one of them."""
    workers.run(4, compare, arrays(queries=queries, keys=keys) | {"causal": True})


def with_threads(group: Any, arguments: dict[str, Any], kinds: tuple[str, ...]) -> None:
    """Each process has another number of threads."""
    softargmax.set_num_threads(1 + 2 * group.rank())
    try:
        compare(group, arguments, kinds)
    finally:
        softargmax.set_num_threads(0)


def test_many_groups_of_units(workers: Workers) -> None:
    """The states of the blocks of all queries take more memory than one group of units may."""
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 8, 1500, 4), torch.randn(1, 4, 2600, 4), torch.randn(1, 4, 2600, 100)
    workers.run(2, with_threads, {"q": q, "k": k, "v": v, "causal": True}, ("blocks", "even"))


def nonfinite(name: str, place: int, value: float, more: dict[str, Any]) -> dict[str, Any]:
    found = arrays() | more
    found[name][1, 0, place, 1] = value
    return found


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e38])
@pytest.mark.parametrize("name", ["k", "v"])
def test_numbers_that_are_not_finite(workers: Workers, name: str, value: float) -> None:
    workers.run(3, compare, nonfinite(name, 2000, value, {"causal": True}))


def test_hidden_numbers_that_are_not_finite(workers: Workers) -> None:
    hidden = {"mask": torch.arange(KEYS) < 1900, "bias": torch.randn(HEADS, 1, KEYS)}
    workers.run(3, compare, nonfinite("v", 2000, float("nan"), hidden))
    workers.run(3, compare, nonfinite("v", 2599, float("nan"), {"key_lengths": torch.tensor([100, 2599])}))


def two_layers(group: Any) -> None:
    """Each backward pass must use the keys of its own forward pass. A ring that keeps the last keys uses others."""
    found = []
    for parts in (False, True):
        torch.manual_seed(0)
        q = torch.randn(1, 2, 2, 4, requires_grad=True)
        leaves, x = [q], q
        for _ in range(3):
            k, v = torch.randn(2, 1, 2, 1300, 4)
            if parts:
                k, v = (part(group, "k", one, bounds("even", group.size(), 1300)) for one in (k, v))
            leaves += [k.requires_grad_(), v.requires_grad_()]
            function, more = (
                (softargmax.parallel.attention_split_kv, {"group": group}) if parts else (softargmax.attention, {})
            )
            x = x + function(x, k, v, causal=True, **more)
        x.square().sum().backward()
        found.append([one.grad for one in leaves])
    for name, one, other in zip("qkkkkkk", *found, strict=True):
        assert one is not None
        assert other is not None
        same(other, part(group, name, one, bounds("even", group.size(), 1300)))


def test_several_layers(workers: Workers) -> None:
    workers.run(3, two_layers)


def changed_cache(group: Any) -> None:
    q, k = torch.randn(1, 2, 1, 4, requires_grad=True), torch.randn(1, 2, 1024, 4)
    found = softargmax.parallel.attention_split_kv(q, k, k, group=group)
    k[..., -1, :] = 0.0
    found.sum().backward()


def test_a_cache_that_changes_before_the_backward_pass_is_an_error(workers: Workers) -> None:
    for kind, text in workers.errors(1, changed_cache):
        assert kind == "RuntimeError"
        assert "modified by an inplace operation" in text


def on_mesh(group: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh, whole = init_device_mesh("cpu", (2, 2)), [x.requires_grad_() for x in arrays().values()]
    places = [[Shard(0), Replicate()], [Shard(0), Shard(2)], [Shard(0), Shard(2)]]
    spread = [distribute_tensor(x.detach(), mesh, of).requires_grad_() for x, of in zip(whole, places, strict=True)]
    expected, found = (softargmax.attention(*of, causal=True) for of in (whole, spread))
    assert list(found.placements) == places[0]
    same(found.full_tensor(), expected)
    torch.manual_seed(1)
    g = torch.randn(expected.shape)
    expected.backward(g)
    found.backward(distribute_tensor(g, mesh, places[0]))
    for x, of_whole, of in zip(spread, whole, places, strict=True):
        assert x.grad is not None
        assert of_whole.grad is not None
        assert list(x.grad.placements) == of
        same(x.grad.full_tensor(), of_whole.grad)


def test_dtensors(workers: Workers) -> None:
    workers.run(4, on_mesh)


ONE = [[[0.0] * 4]] * 2
"""Two heads with one vector of width 4."""


def call(group: Any, options: list[dict[str, Any]]) -> Any:
    mine = {"q": torch.zeros(1, 2, 3, 4), "k": torch.zeros(1, 2, 5, 4), **options[group.rank()]}
    return softargmax.parallel.attention_split_kv(mine.pop("q"), mine["k"], mine.pop("k"), group=group, **mine)


@pytest.mark.parametrize(
    ("first", "second", "kind", "message"),
    [
        ({"q": torch.ones(1, 2, 3, 4)}, {}, "ValueError", "q: expected the same in all processes, got float32 (1, 2, "),
        ({"causal": True}, {}, "ValueError", "right: expected the same in all processes, got 0, None in"),
        ({}, {"softcap": -1.0}, "ValueError", "process 1: softcap: expected "),
        ({"q": ONE, "k": ONE}, {}, "TypeError", "process 0: q: expected a torch tensor in CPU memory, got ndarray"),
        ({}, {"k": torch.zeros(1, 2, 5, 3)}, "ValueError", "process 1: k: expected shape (..., heads, keys, 4)"),
        ({}, {"mask": torch.ones(3, 3, dtype=torch.bool)}, "ValueError", "process 1: mask: expected a shape that"),
        (
            {"bias": torch.zeros(3, 1, requires_grad=True)},
            {"bias": torch.zeros(3, 1, requires_grad=True)},
            "NotImplementedError",
            "process 0: bias: keys that are spread over processes have no gradient for an array that all of them share",
        ),
        *(
            (
                {"key_lengths": torch.tensor([n])},
                {"key_lengths": torch.tensor([n])},
                "ValueError",
                "key_lengths: expected numbers from 0 to the number of keys, got a number out of range",
            )
            for n in (-1, 11)
        ),
    ],
)
def test_one_error(workers: Workers, first: Any, second: Any, kind: str, message: str) -> None:
    found = workers.errors(2, call, [first, second])
    assert len(set(found)) == 1
    assert found[0][0] == kind
    assert found[0][1].startswith(message)
    workers.run(2, call, [{"key_lengths": torch.tensor([10])}] * 2)


def second_derivatives(group: Any) -> None:
    found = []
    for parts in (False, True):
        torch.manual_seed(0)
        q, k, v, bias = torch.randn(2, 3, 4), torch.randn(1, 700, 4), torch.randn(1, 700, 5), torch.randn(700)
        arguments = {"q": q, "k": k, "v": v, "bias": bias}
        cuts = bounds("even", group.size(), 700)
        if parts:
            arguments = {name: part(group, name, x, cuts) for name, x in arguments.items()}
        leaves = trained({name: x.double() for name, x in arguments.items()})
        q, k, v, bias = leaves.values()
        function, more = (
            (softargmax.parallel.attention_split_kv, {"group": group}) if parts else (softargmax.attention, {})
        )
        o = function(q, k, v, bias=bias, causal=True, **more)
        of_q, of_k, of_bias = torch.autograd.grad(o.square().sum(), [q, k, bias], create_graph=True)
        first = of_q.sin().sum()  # the same in all processes
        mine = of_k.square().sum() + of_bias.sin().sum()  # of this process's keys
        found.append(torch.autograd.grad(first + mine, list(leaves.values())))
    for name, one, other in zip(leaves, *found, strict=True):
        torch.testing.assert_close(other, part(group, name, one, cuts))


def test_second_derivatives(workers: Workers) -> None:
    workers.run(3, second_derivatives)


def test_alpha_is_refused() -> None:
    with pytest.raises(TypeError, match=r"attention_split_kv\(\) has no argument alpha; it takes q, k, v, group, "):
        softargmax.parallel.attention_split_kv(*arrays().values(), alpha=2.0)
