"""Attention in which keys visit the processes, part by part, has the bits of one process, and so have gradients."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from tests.parallel.cases import same
from tests.parallel.workers import Workers

import softargmax

BATCH, HEADS, GROUPS, QUERIES, KEYS, WIDTH = 2, 4, 2, 150, 1300, 8
SHARED = ("sink", "slopes", "key_lengths")
"""Options that are equal in all processes."""


def bounds(kind: str, world: int, count: int) -> list[int]:
    """The cuts of queries or keys. Ragged cuts are inside the blocks of the kernel: 512 keys, and 96 queries."""
    if kind == "ragged":
        return [0, *(min(count // 3 + 7 * rank, count) for rank in range(world - 1)), count]
    if kind == "empty":  # all but the second process, if there is one, have nothing
        return [0, *[0] * min(world - 1, 1), *[count] * max(world - 1, 1)]
    return [count * rank // world for rank in range(world + 1)]


def part(group: Any, name: str, x: Any, kind: str) -> Any:
    if not isinstance(x, torch.Tensor) or name in SHARED:
        return x.clone() if isinstance(x, torch.Tensor) else x
    axis = -1 if name in ("scale", "alpha") else -2
    return x.index_select(axis, torch.tensor(places(kind, group, x.shape[axis]), dtype=torch.int64))


def places(kind: str, group: Any, count: int) -> list[int]:
    """The numbers of this process's queries or keys. In a zigzag it has the chunks r and 2 W - 1 - r."""
    world, rank = group.size(), group.rank()
    cuts = bounds(kind.removeprefix("zigzag "), world, count)
    if not kind.startswith("zigzag "):
        return [*range(*cuts[rank : rank + 2])]
    sizes = [stop - start for start, stop in pairwise(cuts)]
    edges = [0, *accumulate([n - n // 2 for n in sizes] + [n // 2 for n in reversed(sizes)])]
    return [place for chunk in (rank, 2 * world - 1 - rank) for place in range(*edges[chunk : chunk + 2])]


def arrays(dtype: str = "float32", queries: int = QUERIES, keys: int = KEYS) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes = (BATCH, HEADS, queries, WIDTH), (BATCH, GROUPS, keys, WIDTH), (BATCH, GROUPS, keys, WIDTH + 1)
    return {name: torch.randn(shape).to(getattr(torch, dtype)) for name, shape in zip("qkv", shapes, strict=True)}


def compare(
    group: Any,
    arguments: dict[str, Any],
    rounded: tuple[str, ...] = (),
    kinds: tuple[str, ...] = ("even", "ragged", "empty"),
    by: str = "parts",
) -> None:
    """Compare attention of parts with that of whole sequences. Gradients of `rounded` agree to rounding only."""
    torch.manual_seed(1)
    g = torch.randn(*arguments["q"].shape[:-1], WIDTH + 1).to(arguments["q"].dtype)
    for kind in kinds:
        found = []
        for parts in (False, True):
            mine = {
                name: part(group, name, x, kind) if parts else x.clone() if isinstance(x, torch.Tensor) else x
                for name, x in arguments.items()
            }
            leaves = {name: x for name, x in mine.items() if isinstance(x, torch.Tensor) and x.is_floating_point()}
            for x in leaves.values():
                x.requires_grad_()
            function, of = softargmax.attention, {}
            if parts:
                of = {"group": group, "by": by, "zigzag": kind.startswith("zigzag ")}
                function = softargmax.parallel.attention
            o = function(*[mine.pop(name) for name in "qkv"], **of, **mine)
            o.backward(part(group, "q", g, kind) if parts else g)
            found.append({"q": o, **{f"d{name}": x.grad for name, x in leaves.items()}})
        for name, x in found[0].items():
            other, expected = found[1][name], part(group, name.removeprefix("d"), x, kind)
            if name.removeprefix("d") in rounded:
                torch.testing.assert_close(other, expected)
            else:
                same(other, expected)


SINK, SLOPES = torch.tensor([0.0, 1.0, -1.0, 2.0]), torch.tensor([0.5, 0.25, 0.125, 0.0625])
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (40, 7)},
    "causal window": {"causal": True, "window": (300, None), "softcap": 5.0},
    "scale, sink": {"scale": torch.rand(BATCH, HEADS, QUERIES), "sink": SINK},
    "slopes": {"slopes": SLOPES},
    "sink, slopes": {"sink": SINK, "slopes": SLOPES},
    "lengths": {"causal": True, "window": (900, None), "key_lengths": torch.tensor([1300, 611])},
    "mask": {"mask": torch.rand(BATCH, 1, QUERIES, KEYS) < 0.5},
    "bias": {"bias": torch.randn(1, HEADS, QUERIES, KEYS)},
}
ROUNDED = {"scale, sink": ("sink",), "slopes": ("slopes",), "sink, slopes": ("sink", "slopes")}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(workers: Workers, name: str) -> None:
    for world in (1, 2, 3, 4):
        workers.run(world, compare, arrays() | OPTIONS[name], ROUNDED.get(name, ()))


ZIGZAG = ("zigzag even", "zigzag ragged", "zigzag empty")


@pytest.mark.parametrize("name", OPTIONS)
def test_zigzag(workers: Workers, name: str) -> None:
    """Each process has two chunks of the sequence."""
    for world in (1, 2, 3, 4):
        workers.run(world, compare, arrays() | OPTIONS[name], ROUNDED.get(name, ()), ZIGZAG)


@pytest.mark.parametrize("name", OPTIONS)
def test_zigzag_by_heads(workers: Workers, name: str) -> None:
    """Sums over processes, and over the heads and entries that share a bias, are in another order."""
    for world in (1, 2, 3, 4):
        rounded = ("sink", "slopes", "bias")
        workers.run(world, compare, arrays() | OPTIONS[name], rounded, ZIGZAG, "heads")


@pytest.mark.parametrize("name", OPTIONS)
def test_zigzag_by_keys(workers: Workers, name: str) -> None:
    """All gradients have the bits of one process."""
    for world in (1, 2, 3, 4):
        workers.run(world, compare, arrays() | OPTIONS[name], (), ZIGZAG, "keys")


def test_trained_orders_of_a_zigzag(workers: Workers) -> None:
    """The definition is differentiated: the bits of dk and dv depend on the number of entries of the batch."""
    torch.manual_seed(2)
    found = arrays() | {"alpha": 1.1 + torch.rand(BATCH, HEADS, QUERIES)}
    workers.run(3, compare, found, ("k", "v"), ZIGZAG, "heads")


@pytest.mark.parametrize("by", ["heads", "keys"])
def test_dropout_of_a_zigzag(workers: Workers, by: str) -> None:
    workers.run(3, compare, arrays() | {"dropout": 0.3, "seed": 5}, (), ZIGZAG, by)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(workers: Workers, dtype: str) -> None:
    workers.run(3, compare, arrays(dtype) | {"causal": True}, (), ("even", "ragged", "empty", *ZIGZAG))


@pytest.mark.parametrize(("queries", "keys"), [(1, 1300), (1500, 1300), (3, 2), (700, 0), (0, 700)])
def test_sizes(workers: Workers, queries: int, keys: int) -> None:
    for world in (1, 4):
        found = arrays(queries=queries, keys=keys) | {"causal": True}
        workers.run(world, compare, found, (), ("even", "ragged", "empty", *ZIGZAG))


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_numbers_that_are_not_finite(workers: Workers, name: str) -> None:
    for value in (float("nan"), float("inf")):
        found = arrays()
        found[name][1, 0, 70, 1] = value
        workers.run(3, compare, found | {"causal": True})
        workers.run(3, compare, found | {"causal": True}, (), ZIGZAG)


def with_threads(group: Any, arguments: dict[str, Any]) -> None:
    """Each process has another number of threads. They share the keys of a few queries, or the queries."""
    softargmax.set_num_threads(1 + 2 * group.rank())
    try:
        compare(group, arguments, (), ("even", "zigzag even", "zigzag ragged"))
    finally:
        softargmax.set_num_threads(0)


@pytest.mark.parametrize("queries", [4, 600])
def test_threads(workers: Workers, queries: int) -> None:
    workers.run(2, with_threads, arrays(queries=queries, keys=2600) | {"causal": True})


def in_slices(group: Any, arguments: dict[str, Any], *more: Any) -> None:
    """Parts that are longer than what visits at a time."""
    from softargmax.parallel import torch_parts

    before = torch_parts.KEYS, torch_parts.QUERIES
    torch_parts.KEYS, torch_parts.QUERIES = 512, 96
    try:
        compare(group, arguments, *more)
    finally:
        torch_parts.KEYS, torch_parts.QUERIES = before


def test_slices(workers: Workers) -> None:
    for options in ({"causal": True}, {"bias": torch.randn(1, HEADS, QUERIES, 2600)}):
        workers.run(2, in_slices, arrays(keys=2600) | options)
        workers.run(2, in_slices, arrays(keys=2600) | options, (), ZIGZAG)


def second_derivatives(group: Any, kind: str) -> None:
    found = []
    for parts in (False, True):
        torch.manual_seed(0)
        leaves = [torch.randn(1, 2, 7, 3, dtype=torch.float64) for _ in range(3)]
        if parts:
            leaves = [part(group, "q", x, kind) for x in leaves]
        for x in leaves:
            x.requires_grad_()
        function, of = softargmax.attention, {}
        if parts:
            function = softargmax.parallel.attention
            of = {"group": group, "by": "parts", "zigzag": kind.startswith("zigzag ")}
        o = function(*leaves, causal=True, **of)
        of_q, of_v = torch.autograd.grad(o.square().sum(), [leaves[0], leaves[2]], create_graph=True)
        found.append(torch.autograd.grad(of_q.square().sum() + of_v.sin().sum(), leaves))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, part(group, "q", one, kind))


@pytest.mark.parametrize("kind", ["ragged", "zigzag ragged"])
def test_second_derivatives(workers: Workers, kind: str) -> None:
    workers.run(3, second_derivatives, kind)


def sent(group: Any, options: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes that a process sends to others in the forward and in the backward pass."""
    import torch.distributed as dist

    total, isend = 0, dist.isend

    def counting(x: torch.Tensor, **options: Any) -> Any:
        nonlocal total
        total += x.nbytes
        return isend(x, **options)

    whole = torch.randn(2, 1, 4, 512 * group.size(), WIDTH)
    q, k = (part(group, "q", x, "even").requires_grad_() for x in whole)
    dist.isend = counting
    try:
        o = softargmax.parallel.attention(q, k, k, by="parts", group=group, **options)
        forward = total
        o.sum().backward()
    finally:
        dist.isend = isend
    return forward, total - forward


def test_bytes(workers: Workers) -> None:
    """A part goes to the processes that see it, and queries go to the processes whose keys they see."""
    keys, queries = 2 * 4 * 512 * WIDTH * 4, 4 * 512 * (3 * WIDTH * 4 + 8)
    for world in (1, 2, 4):
        for rank, found in enumerate(workers.run(world, sent, {})):
            assert found == ((world - 1) * keys, (world - 1) * (keys + queries)), rank
        for rank, found in enumerate(workers.run(world, sent, {"causal": True})):
            later, earlier = world - 1 - rank, rank
            # Queries are cut at multiples of 96: the rest of a block of queries goes along with the process before.
            assert found[0] == later * keys
            assert later * keys + earlier * queries <= found[1] <= later * keys + (earlier + 1) * queries


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"by": "rings"}, "ValueError", "by: expected "),
        ({"zigzag": 1}, "TypeError", "zigzag: expected True or False, got 1"),
        ({"zigzag": 0, "axis": -3}, "TypeError", "zigzag: expected True or False, got 0"),
        ({"zigzag": True, "axis": -3}, "ValueError", "zigzag: expected False with axis=-3, as heads have no order"),
        ({"by": "heads", "axis": -3}, "ValueError", "by: expected None with axis=-3, as heads need no others, got 'he"),
        (
            {"by": "parts", "alpha": 1.5},
            "NotImplementedError",
            "alpha: orders other than 1 have no states; use by='heads'",
        ),
        ({"by": "parts", "dropout": 0.5, "seed": 1}, "NotImplementedError", "dropout: keys that visit other processes"),
    ],
)
def test_what_is_refused(workers: Workers, options: dict[str, Any], kind: str, message: str) -> None:
    for found, text in workers.errors(2, refused, options):
        assert found == kind
        assert text.startswith(f"process 0: {message}")


def test_processes_that_differ(workers: Workers) -> None:
    for found in workers.errors(2, differing):
        expected = "zigzag: expected the same in all processes, got False, True in processes 0 to 1"
        assert found == ("ValueError", expected)


def differing(group: Any) -> Any:
    return refused(group, {"by": "parts", "zigzag": group.rank() == 1})


def refused(group: Any, options: dict[str, Any]) -> Any:
    q = torch.zeros(1, 2, 3, 4)
    return softargmax.parallel.attention(q, q, q, group=group, **options)
