"""A last layer whose rows are spread over processes: the loss, dh, dW and db have the bits of one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.parallel.cases import same
from tests.parallel.workers import Workers

import softargmax
from softargmax import parallel
from softargmax.core import _native

WIDTH, ROWS = 6, 1300
LAYERS = {
    "all rows at once": (700, WIDTH),
    "parts of 512 rows": (4000, WIDTH),
    "smaller parts": (9001, WIDTH),
    "parts of dW": (2000, 128),
    "parts of rows and of dW": (9001, 70),
}
"""Classes, and the width."""
RNG = np.random.default_rng(6)


def target_of(classes: int) -> torch.Tensor:
    target = torch.from_numpy(np.random.default_rng(2).integers(0, classes, ROWS))
    target[::7] = -100
    return target


def with_weight(value: float) -> torch.Tensor:
    """Weights of classes, one of which is not finite. Few rows have this class."""
    weight = torch.ones(700)
    weight[int(target_of(700)[1])] = value
    return weight


OPTIONS: dict[str, dict[str, Any]] = {
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "exact": {"exact": True},
    "smooth, weight": {"label_smoothing": 0.1, "weight": torch.rand(700) + 0.5},
    "weight": {"weight": torch.rand(700) + 0.5},
    "a weight of NaN": {"weight": with_weight(torch.nan)},
    "a weight of inf": {"weight": with_weight(torch.inf)},
    "weights of 0": {"weight": torch.zeros(700)},
    "z-loss, soft-cap": {"z_loss": 0.01, "softcap": 5.0},
    "temperature of rows": {"temperature": torch.rand(ROWS, 1) + 0.5},
    "where of rows": {"where": torch.from_numpy(RNG.random((ROWS, 700)) < 0.8)},
    "where": {"where": torch.from_numpy(RNG.random(700) < 0.8)},
    "where of one row": {"where": torch.from_numpy(RNG.random((1, 700)) < 0.8)},
}
CUTS = {
    2: [(512, 788), (1024, 276), (700, 600), (1300, 0), (0, 1300), (3, 1297)],
    3: [(512, 512, 276), (0, 1024, 276), (100, 200, 1000), (1300, 0, 0)],
    4: [(325, 325, 325, 325), (512, 0, 512, 276)],
}
"""Rows of each process."""


def layer(dtype: str, classes: int, width: int = WIDTH) -> list[torch.Tensor]:
    rng = np.random.default_rng(1)
    arrays = (rng.standard_normal(shape) for shape in ((ROWS, width), (classes, width), classes))
    return [torch.from_numpy(x).to(getattr(torch, dtype)).requires_grad_() for x in arrays]


def own(group: Any, x: Any, sizes: Sequence[int]) -> Any:
    """This process's rows of an array. Other arguments are returned whole."""
    if not isinstance(x, torch.Tensor) or x.ndim == 0 or len(x) != ROWS:
        return x
    return x[sum(sizes[: group.rank()]) :][: sizes[group.rank()]]


def compare(
    group: Any,
    classes: int,
    dtype: str,
    options: dict[str, Any],
    cuts: Sequence[Sequence[int]],
    *,
    soft: bool = False,
    width: int = WIDTH,
) -> None:
    h, w, b = layer(dtype, classes, width)
    target = target_of(classes)
    if soft:
        target = torch.from_numpy(np.random.default_rng(3).dirichlet(np.full(classes, 0.1), ROWS).astype(np.float32))
    whole = softargmax.linear_cross_entropy(h, w, target, bias=b, **options)
    g = torch.linspace(0.5, 2.0, whole.numel(), dtype=whole.dtype).reshape(whole.shape)
    expected = torch.autograd.grad(whole, (h, w, b), g)
    for sizes in cuts:
        h_, w_, b_ = (x.detach().clone().requires_grad_() for x in (own(group, h, sizes), w, b))
        mine = {name: own(group, x, sizes) for name, x in options.items()}
        found = parallel.linear_cross_entropy(
            h_, w_, own(group, target, sizes), bias=b_, group=group, by="rows", **mine
        )
        same(found, own(group, whole, sizes))
        got = torch.autograd.grad(found, (h_, w_, b_), own(group, g, sizes))
        for one, other in zip(got, (own(group, expected[0], sizes), *expected[1:]), strict=True):
            same(one, other)


def wide(group: Any, classes: int, width: int, cuts: Sequence[Sequence[int]]) -> None:
    compare(group, classes, "float32", {}, cuts, width=width)


@pytest.mark.parametrize("name", LAYERS)
def test_cuts(workers: Workers, name: str) -> None:
    """A process computes all rows at once, or in parts, and passes dW on at once, or in parts. Cuts may be anywhere."""
    classes, width = LAYERS[name]
    bounds = _native.bounds_of_parts(ROWS, width, classes, _native.PARTS)
    assert (bounds == (0, ROWS)) == (classes == 700)
    assert (bounds[1] < 512) == ("smaller" in name or "parts of rows" in name)
    assert (_native.classes_at_once(classes, width) < classes) == (width > WIDTH)
    assert -(-classes // _native.classes_at_once(classes, width)) <= 11
    for world, cuts in {1: [(ROWS,)], **CUTS}.items():
        workers.run(world, wide, classes, width, cuts)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options(workers: Workers, options: dict[str, Any]) -> None:
    for world in (2, 4):
        workers.run(world, compare, 700, "float32", options, CUTS[world])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(workers: Workers, dtype: str) -> None:
    workers.run(3, compare, 4000, dtype, {}, CUTS[3])


def soft(group: Any, options: dict[str, Any], cuts: Sequence[Sequence[int]]) -> None:
    compare(group, 700, "float32", options, cuts, soft=True)


@pytest.mark.parametrize("name", ["sum", "none", "smooth, weight", "weight"])
def test_probabilities(workers: Workers, name: str) -> None:
    workers.run(3, soft, OPTIONS[name], CUTS[3])


def without_rows(group: Any) -> None:
    """There are no rows, or all of them are ignored: the mean is 0, as in one process."""
    w = torch.ones(5, WIDTH, requires_grad=True)
    for rows in (0, 600):
        h, target = torch.ones(rows, WIDTH, requires_grad=True), torch.full((rows,), -100)
        found = parallel.linear_cross_entropy(h, w, target, group=group, by="rows")
        same(found, torch.tensor(0.0))
        for x in torch.autograd.grad(found, (h, w)):
            assert not x.any()


def test_no_rows(workers: Workers) -> None:
    workers.run(3, without_rows)


def in_any_order(group: Any) -> None:
    """The losses and dh have the bits of one process. dW agrees to the rounding of sums over all rows."""
    sizes, rounding = (300, 1000), torch.finfo(torch.float32).eps / 2
    h, w, b = layer("float32", 700)
    target = target_of(700)
    whole = softargmax.linear_cross_entropy(h, w, target, bias=b)
    expected = torch.autograd.grad(whole, (h, w, b))
    h_, w_, b_ = (x.detach().clone().requires_grad_() for x in (own(group, h, sizes), w, b))
    found = parallel.linear_cross_entropy(
        h_, w_, own(group, target, sizes), bias=b_, group=group, by="rows", reproducible=False
    )
    same(found, whole)
    got = torch.autograd.grad(found, (h_, w_, b_))
    same(got[0], own(group, expected[0], sizes))
    z = (h @ w.T + b).double().detach().requires_grad_()
    (dz,) = torch.autograd.grad(softargmax.cross_entropy(z, target), z)
    for one, other, factor in zip(got[1:], expected[1:], (h.detach().double().abs(), torch.ones(ROWS)), strict=True):
        bound = 2 * (512 + ROWS // 512 + 2) * rounding * (dz.abs().T @ factor.double())
        assert torch.all((one.double() - other.double()).abs() <= bound)
        assert not torch.equal(one, other)
        parts = [torch.empty_like(one) for _ in sizes]
        torch.distributed.all_gather(parts, one, group=group)
        same(*parts)


def test_sums_in_any_order(workers: Workers) -> None:
    workers.run(2, in_any_order)


def changed(change: str, rank: int) -> dict[str, Any]:
    """The arguments of a process that differ from those of most calls."""
    of_all: dict[str, dict[str, Any]] = {
        "bias": {"bias": torch.full((5,), float(rank))},
        "mask": {"where": torch.arange(5) > rank},
        "name": {"by": "row"},
        "temperature": {"temperature": torch.ones((), requires_grad=True)},
        "second": {"h": torch.ones(4, WIDTH, requires_grad=True)},
        "masks": {"where": torch.ones(5, dtype=torch.bool)},
    }
    of_last: dict[str, dict[str, Any]] = {
        "class": {"target": torch.tensor([0, 1, 5, 3])},
        "classes": {"w": torch.ones(6, WIDTH)},
        "weights": {"w": torch.full((5, WIDTH), 2.0)},
        "masks": {"where": torch.ones(4, 5, dtype=torch.bool)},
        "by": {"by": "classes"},
        "a name": {"by": "row"},
        "order": {"reproducible": 1},
    }
    return (of_all | of_last if rank else of_all).get(change, {})


def wrong(group: Any, change: str) -> None:
    """One process passes something else than the others, or all ask for what there is not."""
    given = {"h": torch.ones(4, WIDTH), "w": torch.ones(5, WIDTH), "target": torch.arange(4), "by": "rows"}
    given |= changed(change, group.rank())
    loss = parallel.linear_cross_entropy(**given, group=group)
    if change == "second":
        (g,) = torch.autograd.grad(loss, given["h"], create_graph=True)
        g.sum().backward()
    loss.backward()


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ("class", "IndexError", "process 1: target: expected 0 to 4, or -100 (ignored), got 5 at (2,)"),
        ("classes", "ValueError", "w: expected the same in all processes, got float32 (5, 6) with checksum "),
        ("weights", "ValueError", "w: expected the same in all processes, got float32 (5, 6) with checksum "),
        ("bias", "ValueError", "bias: expected the same in all processes, got float32 (5) with checksum "),
        ("mask", "ValueError", "where: expected the same in all processes, got bool (1, 5) with checksum "),
        ("masks", "ValueError", "where: expected the same in all processes, got bool (1, 5) with checksum "),
        ("by", "ValueError", "h: expected the same in all processes, got float32 (*, 6), float32 (4, 6) with checks"),
        ("name", "ValueError", "process 0: by: expected one of 'classes', 'rows', got 'row'"),
        ("a name", "ValueError", "process 1: by: expected one of 'classes', 'rows', got 'row'"),
        ("order", "TypeError", "process 1: reproducible: expected True or False, got 1"),
        ("temperature", "NotImplementedError", "rows that are spread over processes: only the native kernels"),
        ("second", "NotImplementedError", "rows that are spread over processes: only the native kernels"),
    ],
)
def test_what_is_refused(workers: Workers, change: str, kind: str, text: str) -> None:
    for found in workers.errors(2, wrong, change):
        assert found[0] == kind
        assert found[1].startswith(text)


def compiled(group: Any) -> None:
    sizes = (700, 600)
    h, w, b = layer("float32", 700)
    target = target_of(700)
    mine = own(group, target, sizes)

    def loss(h: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return parallel.linear_cross_entropy(h, w, mine, bias=b, group=group, by="rows")

    expected = torch.autograd.grad(softargmax.linear_cross_entropy(h, w, target, bias=b), (h, w, b))
    leaves = [x.detach().clone().requires_grad_() for x in (own(group, h, sizes), w, b)]
    got = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(*leaves), leaves)
    for one, other in zip(got, (own(group, expected[0], sizes), *expected[1:]), strict=True):
        same(one, other)


def test_in_a_compiled_graph(workers: Workers) -> None:
    workers.run(2, compiled)
