"""The operations of the output layers agree with their definitions, for arrays and tensors, and pass opcheck."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softargmax.core.operation import Operation
from softargmax.output import operations as o
from softargmax.output.arguments import (
    CoinLosses,
    Gathered,
    LinearScores,
    NodeSums,
    Pairs,
    PairScores,
    Sums,
    Table,
    Tossed,
)

# torch's forward mode warns
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")

RNG = np.random.default_rng(0)
COUNTS = np.array([3, 0, 1, 6, 2])
STARTS = np.concatenate([[0], np.cumsum(COUNTS)])
ROWS = np.repeat(np.arange(5), COUNTS)
NODES = np.array([0, 6, 2, 3, 0, 0, 5, 1, 2, 6, 4, 0])
SIGNS = np.array([1, -1, 1, 0, 1, -1, -1, 1, -1, 1, -1, 0], np.int8)
H, W, B, F = (RNG.standard_normal(shape) for shape in ((5, 4), (7, 4), 7, 12))
PAIRS = Pairs(NODES, ROWS, STARTS)
UNSORTED = Pairs(NODES, ROWS[::-1].copy(), None)
F64 = np.dtype(np.float64)
CASES = {
    "linear_scores": (o.linear_scores, LinearScores(H, W, B)),
    "linear_scores, no bias": (o.linear_scores, LinearScores(H, W, None)),
    "gathered": (o.gathered, Gathered(W, NODES, False)),
    "gathered, numbers": (o.gathered, Gathered(B, NODES, False)),
    "pair_scores": (o.pair_scores, PairScores(H, Table(W, B, False), PAIRS)),
    "pair_scores, any order": (o.pair_scores, PairScores(H, Table(W, None, True), UNSORTED)),
    "coin_losses": (o.coin_losses, CoinLosses(H, Table(W, B, False), PAIRS, SIGNS, F, True)),
    "coin_losses, no dh": (o.coin_losses, CoinLosses(H, Table(W, None, True), PAIRS, SIGNS, None, False)),
    "sums": (o.sums, Sums(W, NODES, F, STARTS, None)),
    "sums, in order": (o.sums, Sums(W, NODES, F, STARTS, np.argsort(NODES))),
    "node_sums": (o.node_sums, NodeSums(H, ROWS, F, NODES, 7, F64)),
    "tossed": (o.tossed, Tossed(F, F[::-1].copy(), SIGNS, ROWS, 5)),
}
each = pytest.mark.parametrize("name", CASES)


def test_every_record_has_a_case() -> None:
    assert {one for one in vars(o).values() if isinstance(one, Operation)} == {one for one, _ in CASES.values()}


def same(found: Any, wanted: Any) -> None:
    for a, b in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)


@each
def test_kernels_equal_the_definition(name: str) -> None:
    operation, i = CASES[name]
    found = operation(i)
    same(found, operation.define(i))
    assert np.abs(found[0]).max() > 0.1


def is_sparse(i: Any) -> bool:
    return any(getattr(one, "sparse", False) for one in (i, *i))


def tensors(i: Any) -> Any:
    """Return the arguments of an operation with tensors in place of arrays."""
    torch = pytest.importorskip("torch")
    if isinstance(i, tuple):
        return type(i)(*map(tensors, i))
    return torch.from_numpy(i) if isinstance(i, np.ndarray) else torch.float64 if isinstance(i, np.dtype) else i


@each
def test_tensors_give_the_results_of_arrays(name: str) -> None:
    operation, i = CASES[name]
    found, wanted = operation(tensors(i)), operation(i)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=0 if operation.kernels else 1e-13)


@each
@pytest.mark.parametrize("tracked", [False, True])
def test_opcheck(name: str, tracked: bool) -> None:
    torch = pytest.importorskip("torch")
    operation, i = CASES[name]
    if not operation.kernels or (tracked and is_sparse(i)):  # traced gradients are dense, eager ones sparse
        return
    arguments = operation.torch.flatten(tensors(i))
    if tracked:
        arguments = tuple(
            x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            for x in arguments
        )
    torch.library.opcheck(operation.torch.overload, arguments)


@each
def test_derivatives(name: str) -> None:
    torch = pytest.importorskip("torch")
    operation, i = CASES[name]
    flat = operation.torch.flatten(tensors(i))
    places = [k for k, x in enumerate(flat) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    inputs = tuple(flat[k].clone().requires_grad_() for k in places)
    varying = [field not in operation.constant for field in operation.fields]

    def f(*values: Any) -> tuple[Any, ...]:
        arguments = list(flat)
        for k, value in zip(places, values, strict=True):
            arguments[k] = value
        found = operation(operation.torch.unflatten(*arguments))
        return tuple(x for x, varies in zip(found, varying, strict=True) if varies)

    if is_sparse(i):
        f(*inputs)[0].sum().backward()
        assert any(x.grad.is_sparse for x in inputs)
        return
    assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, inputs, check_fwd_over_rev=True)


@pytest.mark.parametrize("name", ["pair_scores", "coin_losses", "linear_scores", "gathered"])
def test_compiled_is_eager_to_the_bit(name: str) -> None:
    torch = pytest.importorskip("torch")
    operation, i = CASES[name]
    flat = operation.torch.flatten(tensors(i))
    compiled = torch.compile(operation.torch.overload, fullgraph=True, backend="aot_eager")
    found, wanted = compiled(*flat), operation(tensors(i))
    assert torch.equal(found[0] if isinstance(found, tuple) else found, wanted[0])
