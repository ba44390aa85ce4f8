"""Binary logistic losses and scores of pairs: the native kernels agree with definitions in torch."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

import softargmax  # noqa: E402
from softargmax.output import Tree, Unigram  # noqa: E402
from softargmax.output.arguments import Pairs, Table  # noqa: E402

scored = importlib.import_module("softargmax.output.torch_class_scores")
NAMES = ("h", "weight", "bias", "shift")
HALVES = (torch.float16, torch.bfloat16)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def problem(
    dtype: torch.dtype = torch.float64,
    weights: torch.dtype | None = None,
    width: int = 5,
    wanted: tuple[str, ...] = NAMES,
) -> tuple[dict[str, Tensor], Any, Tensor]:
    """Return random h, weight, bias and shift, then pairs and signs. The tensors in `wanted` require gradients."""
    counts = torch.tensor([3, 0, 1, 6, 2])
    n = int(counts.sum())
    nodes = torch.tensor([0, 6, 2, 3, 0, 0, 5, 1, 2, 6, 4, 0])
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    pairs = Pairs(nodes, torch.arange(5).repeat_interleave(counts), starts)
    shapes = {"h": (5, width), "weight": (7, width), "bias": (7,), "shift": (n,)}
    numbers = {
        name: drawn(*shape, seed=i, dtype=(weights or dtype) if name in ("weight", "bias") else dtype)
        for i, (name, shape) in enumerate(shapes.items())
    }
    for name in wanted:
        numbers[name].requires_grad_()
    return numbers, pairs, torch.tensor([1, -1, 1, 0, 1, -1, -1, 1, -1, 1, -1, 0], dtype=torch.int8)


def losses(numbers: dict[str, Tensor | None], pairs: Any, signs: Tensor, *, sparse: bool = False) -> Tensor:
    h, weight, bias, shift = (numbers[name] for name in NAMES)
    return scored.coin_losses(h, Table(weight, bias, sparse), pairs, signs, shift)


def gradients(numbers: dict[str, Tensor], loss: Tensor) -> list[Tensor | None]:
    for x in numbers.values():
        x.grad = None
    (loss * drawn(*loss.shape, seed=9, dtype=loss.dtype)).sum().backward()
    return [None if x.grad is None else x.grad.to_dense() for x in numbers.values()]


@pytest.mark.parametrize("width", [1, 5, 100])
@pytest.mark.parametrize(
    ("dtype", "weights"),
    [(torch.float64, None), (torch.float32, None), *((torch.float32, half) for half in HALVES)],
    ids=str,
)
def test_losses_and_gradients_equal_the_definition(dtype: torch.dtype, weights: torch.dtype | None, width: int) -> None:
    numbers, pairs, signs = problem(dtype, weights, width)
    native = losses(numbers, pairs, signs)
    of_native = gradients(numbers, native)
    with softargmax.using("reference"):
        defined = losses(numbers, pairs, signs)
        of_defined = gradients(numbers, defined)
    assert native.dtype == defined.dtype == dtype
    torch.testing.assert_close(native, defined)
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if weights in HALVES else {}
    for found, expected in zip(of_native, of_defined, strict=True):
        torch.testing.assert_close(found, expected, **tolerance)


@pytest.mark.parametrize("wanted", [w for n in range(5) for w in itertools.combinations(NAMES, n)], ids="+".join)
def test_only_inputs_that_require_it_get_a_gradient(wanted: tuple[str, ...]) -> None:
    whole, pairs, signs = problem()
    expected = gradients(whole, losses(whole, pairs, signs))
    numbers, _, _ = problem(wanted=wanted)
    loss = losses(numbers, pairs, signs)
    assert loss.requires_grad == bool(wanted)
    if wanted:
        for name, found, right in zip(NAMES, gradients(numbers, loss), expected, strict=True):
            torch.testing.assert_close(found, right if name in wanted else None)


@pytest.mark.parametrize("absent", ["bias", "shift"])
def test_without_bias_or_shift(absent: str) -> None:
    numbers, pairs, signs = problem()
    zero = {**numbers, absent: torch.zeros_like(numbers[absent])}
    torch.testing.assert_close(losses({**numbers, absent: None}, pairs, signs), losses(zero, pairs, signs))


def test_strided_inputs_and_expanded_gradients() -> None:
    """Strided inputs give the results of contiguous inputs. The incoming gradients are expanded tensors."""
    numbers, pairs, signs = problem()
    wide = {name: x.detach() for name, x in numbers.items()}
    apart = {
        "h": wide["h"].mT.contiguous().mT,
        "weight": wide["weight"].repeat_interleave(2, 1)[:, ::2],
        "bias": wide["bias"].repeat_interleave(3)[::3],
        "shift": wide["shift"].repeat_interleave(2)[::2],
    }
    for x in apart.values():
        x.requires_grad_()
    leaves = [[x[name] for name in NAMES[:3]] for x in (numbers, apart)]
    for both in (
        [losses(x, pairs, signs) for x in (numbers, apart)],
        [scored.pair_scores(of[0], Table(*of[1:], False), pairs) for of in leaves],
    ):
        assert torch.equal(*both)
        found = [torch.autograd.grad(y.sum(), of) for y, of in zip(both, leaves, strict=True)]
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)


def test_sparse_gradients_contain_only_visited_rows() -> None:
    numbers, pairs, signs = problem()
    dense = gradients(numbers, losses(numbers, pairs, signs))
    sparse = gradients(numbers, losses(numbers, pairs, signs, sparse=True))
    for name, a, b in zip(NAMES, sparse, dense, strict=True):
        grad = numbers[name].grad
        assert grad.is_sparse == (name in ("weight", "bias"))
        if grad.is_sparse:
            assert grad._indices()[0].tolist() == sorted(set(pairs.nodes.tolist()))
        torch.testing.assert_close(a, b)


def test_derivatives() -> None:
    numbers, pairs, signs = problem(width=2)

    def function(*values: Tensor) -> Tensor:
        return losses(dict(zip(NAMES, values, strict=True)), pairs, signs)

    assert torch.autograd.gradcheck(function, tuple(numbers.values()))
    assert torch.autograd.gradgradcheck(function, tuple(numbers.values()))


def test_transforms_equal_the_definition() -> None:
    numbers, pairs, signs = problem()
    h, rest = numbers["h"].detach(), {name: x.detach() for name, x in numbers.items() if name != "h"}
    total = lambda x: losses({"h": x, **rest}, pairs, signs).sum()  # noqa: E731
    one = torch.func.grad(total)(h)
    torch.testing.assert_close(one, torch.func.jacrev(total)(h))
    torch.testing.assert_close(torch.func.vmap(total)(h.expand(3, *h.shape)), total(h).expand(3))
    numbers["weight"].grad = None
    leaf = h.clone().requires_grad_()
    total(leaf).backward()
    torch.testing.assert_close(leaf.grad, one)


def test_no_rows_and_no_pairs() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    h, weight = drawn(0, 4).requires_grad_(), drawn(3, 4).requires_grad_()
    pairs = Pairs(none, none, torch.zeros(1, dtype=torch.int64))
    loss = scored.coin_losses(h, Table(weight, None, True), pairs, none.to(torch.int8))
    loss.sum().backward()
    assert loss.shape == (0,)
    assert weight.grad._nnz() == 0
    h = drawn(2, 4).requires_grad_()
    pairs = pairs._replace(starts=torch.zeros(3, dtype=torch.int64))
    loss = scored.coin_losses(h, Table(weight, None, False), pairs, none)
    loss.sum().backward()
    assert loss.tolist() == [0, 0]
    assert not h.grad.any()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_training_steps_equal_the_definition(dtype: torch.dtype, sparse: bool) -> None:
    """The layers have the same loss and gradients with the native kernels and with the definitions."""
    counts = 1.0 / torch.arange(1, 41)
    hidden, target = drawn(30, 16, dtype=torch.float32), torch.arange(30)
    layers = [
        softargmax.nn.HierarchicalSoftmax(16, Tree.huffman(counts), sparse=sparse, dtype=dtype),
        softargmax.nn.NegativeSampling(16, Unigram(counts), samples=6, sparse=sparse, dtype=dtype),
        softargmax.nn.NCE(16, Unigram(counts), samples=6, log_z="context", shared=False, sparse=sparse, dtype=dtype),
        softargmax.nn.SampledSoftmax(16, Unigram(counts), samples=6, sparse=sparse, dtype=dtype),
    ]
    for layer in layers:
        layer.eval()
        with torch.no_grad():
            layer.weight.copy_(drawn(*layer.weight.shape, seed=3) * 0.3)
        found = []
        for name in ("native", "reference"):
            layer.zero_grad()
            h = hidden.clone().requires_grad_()
            with softargmax.using(name):
                loss = layer(h, target)
                loss.backward()
            found.append([loss.detach(), h.grad, *(p.grad.to_dense().float() for p in layer.parameters())])
        tolerance = {"rtol": 1e-2, "atol": 1e-3} if dtype == torch.bfloat16 else {}
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, **tolerance)
