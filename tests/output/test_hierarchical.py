"""Tests of HierarchicalSoftmax: distribution, search, draws and derivatives."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
hierarchical = importlib.import_module("softargmax.output.torch_hierarchical")
rows = importlib.import_module("softargmax.output.torch_class_scores")
descent = importlib.import_module("softargmax.output.torch_tree_search")
layers = importlib.import_module("softargmax.output.torch_base")

from tests.sample.truth import p_value  # noqa: E402

from softargmax.output.tree import Tree  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.*is deprecated:DeprecationWarning"
)  # torch's forward mode warns
F64 = torch.float64


def counted(k: int) -> Tree:
    return Tree.huffman(np.random.default_rng(0).integers(0, 50, k) ** 3)


def layer_of(tree: Tree, dim: int = 5, scale: float = 1.0, **options: Any) -> Any:
    layer = hierarchical.HierarchicalSoftmax(dim, tree, **options)
    generator = torch.Generator().manual_seed(tree.classes)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, scale, generator=generator)
    return layer


def drawn(*shape: int, dtype: Any = F64) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(9), dtype=F64).to(dtype)


def by_products(layer: Any, hidden: Any) -> Any:
    """Return the probabilities of all classes, computed by the definition one class at a time."""
    p, tables = [], layer.tree.paths
    for k in range(layer.tree.classes):
        part = slice(tables.offsets[k], tables.offsets[k + 1])
        nodes, signs = torch.tensor(tables.nodes[part]).long(), torch.tensor(tables.signs[part])
        x = hidden @ layer.weight[nodes].mT + (0 if layer.bias is None else layer.bias[nodes])
        p.append(torch.sigmoid(x * signs).prod(-1))
    return torch.stack(p, -1)


# --- the distribution -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("k", [1, 2, 3, 7, 300])
def test_p_is_the_product_along_the_path(k: int, bias: bool) -> None:
    hidden = drawn(4, 5)
    for tree in (Tree.balanced(k), counted(k)):
        layer = layer_of(tree, dtype=F64, bias=bias)
        truth, log_p = by_products(layer, hidden), layer.log_prob(hidden)
        torch.testing.assert_close(log_p.exp(), truth, rtol=1e-12, atol=1e-300)
        for y in range(0, k, max(1, k // 40)):
            found = layer.log_prob_of(hidden, torch.full((4,), y))
            torch.testing.assert_close(found, log_p[:, y], rtol=1e-12, atol=1e-12)
            losses = -torch.log(truth[:, y])
            for reduction, wanted in (("none", losses), ("sum", losses.sum()), ("mean", losses.mean())):
                layer.reduction = reduction
                torch.testing.assert_close(layer(hidden, torch.full((4,), y)), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 7, 1000, 100_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_probabilities_sum_to_1(k: int, dtype: Any) -> None:
    hidden = drawn(3, 4, dtype=dtype)
    for tree in (Tree.balanced(k), Tree.huffman(1e6 // np.arange(1, k + 1))):
        layer = layer_of(tree, 4, 2.0, dtype=dtype)
        log_p = layer.log_prob(hidden)
        assert log_p.shape == (3, k)
        assert log_p.dtype == dtype
        assert (log_p.double().exp().sum(1) - 1).abs().max() < (1e-5 if dtype == torch.float32 else 1e-12)
        y = torch.tensor([0, k // 2, k - 1])
        torch.testing.assert_close(layer.log_prob_of(hidden, y), log_p.gather(1, y[:, None])[:, 0])


def test_large_scores_stay_accurate() -> None:
    layer = hierarchical.HierarchicalSoftmax(1, Tree.balanced(2), bias=False)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    found = layer.log_prob(torch.tensor([[20.0], [-20.0], [500.0]]))
    tail = torch.tensor([-2.0611536e-09, -20.0])
    torch.testing.assert_close(found[:2], torch.stack([tail, tail.flip(0)]), rtol=1e-6, atol=0)
    assert found[2].tolist() == [0.0, -500.0]
    torch.testing.assert_close(
        layer.log_prob_of(torch.tensor([[20.0]]), torch.tensor([0])), tail[:1], rtol=1e-6, atol=0
    )


def test_shapes_and_half_precision() -> None:
    tree = counted(20)
    layer, hidden, y = layer_of(tree), drawn(2, 3, 5, dtype=torch.float32), torch.arange(6).reshape(2, 3)
    layer.reduction = "none"
    assert torch.equal(layer(hidden, y).flatten(), layer(hidden.flatten(0, 1), y.flatten()))
    assert layer.log_prob(hidden).shape == (2, 3, 20)
    assert layer.topk(hidden, 4).index.shape == layer.topk(hidden, 4).values.shape == (2, 3, 4)
    assert layer.sample(hidden, 0).shape == (2, 3)
    assert layer(hidden[0, 0], y[0, 0]).shape == layer.sample(hidden[0, 0], 0).shape == ()
    for dtype in (torch.float16, torch.bfloat16):
        half, rounded = layer_of(tree, dtype=dtype, reduction="none"), hidden.to(dtype)
        wide = copy.deepcopy(half).float()
        for x in (rounded, rounded.float()):
            assert half(x, y).dtype == half.log_prob(x).dtype == half.topk(x, 2).values.dtype == torch.float32
            assert torch.equal(half(x, y), wide(rounded.float(), y))
            torch.testing.assert_close(half.log_prob(x), wide.log_prob(rounded.float()))
        half(rounded, y).sum().backward()
        wide(rounded.float(), y).sum().backward()
        assert torch.equal(half.weight.grad, wide.weight.grad.to(dtype)), "gradients are rounded once"
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(wide(rounded.float(), y), half(rounded, y))
            assert wide.log_prob(rounded.float()).dtype == torch.float32


# --- derivatives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 7])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients(k: int, bias: bool) -> None:
    layer = layer_of(counted(k), 3, dtype=F64, bias=bias, reduction="none")
    hidden, y = drawn(4, 3).requires_grad_(), torch.tensor([0, k - 1, -100, k // 2])
    names = [name for name, _ in layer.named_parameters()]

    def of(method: str, *arguments: Any) -> Any:
        class Of(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = layer

            def forward(self, hidden: Any) -> Any:
                return getattr(self.layer, method)(hidden, *arguments)

        parameter_names = {f"layer.{name}" for name in names}
        return lambda h, *p: torch.func.functional_call(Of(), dict(zip(sorted(parameter_names), p, strict=True)), (h,))

    inputs = (hidden, *(dict(layer.named_parameters())[name] for name in sorted(names)))
    for f in (of("forward", y), of("log_prob")):
        assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(f, inputs, check_fwd_over_rev=True)
    assert torch.autograd.gradcheck(of("log_prob_of", y), inputs)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sparse_gradients_equal_dense_gradients(dtype: Any, reduction: str) -> None:
    dense = layer_of(counted(200), dtype=dtype, reduction=reduction)
    sparse = layer_of(counted(200), dtype=dtype, reduction=reduction, sparse=True)
    hidden, y = drawn(9, 5, dtype=dtype), torch.arange(9) % 4
    for layer in (dense, sparse):
        layer(hidden, y).backward()
    visited = np.unique(
        np.concatenate([dense.tree.paths.nodes[slice(*dense.tree.paths.offsets[i : i + 2])] for i in range(4)])
    )
    for name in ("weight", "bias"):
        ours = getattr(sparse, name).grad
        assert ours.layout == torch.sparse_coo
        assert ours.coalesce().indices()[0].tolist() == visited.tolist()
        assert torch.equal(ours.to_dense(), getattr(dense, name).grad)
        assert getattr(dense, name).grad.layout == torch.strided


def test_training_with_sparse_adam_reduces_the_loss() -> None:
    layer = layer_of(counted(50), 8, sparse=True)
    optimizer = torch.optim.SparseAdam(layer.parameters(), lr=0.1)
    hidden, y = drawn(20, 8, dtype=torch.float32), torch.arange(20)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = layer(hidden, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_ignored_rows_and_empty_batches() -> None:
    hidden = drawn(4, 5, dtype=torch.float32)
    hidden[1] = torch.nan
    for k in (1, 40):
        layer = layer_of(Tree.balanced(k), ignore_index=-1)
        y = torch.tensor([0, -1, -1, k - 1])
        some = layer(hidden, y)
        some.backward()
        gradient = layer.weight.grad.clone()
        layer.zero_grad()
        fewer = layer(hidden[[0, 3]], y[[0, 3]])
        fewer.backward()
        assert torch.equal(some, fewer)
        assert torch.equal(gradient, layer.weight.grad)
        assert layer.log_prob_of(hidden, y)[1:3].tolist() == [0.0, 0.0]
        assert not torch.signbit(layer.log_prob_of(hidden, y)[1])
        for sparse in (False, True):
            layer.sparse = sparse
            for given, none in ((hidden, torch.full((4,), -1)), (hidden[:0], y[:0])):
                h = given.clone().requires_grad_()
                for reduction in ("mean", "sum"):
                    layer.reduction = reduction
                    loss = layer(h, none)
                    loss.backward()
                    assert loss == 0
                    assert not h.grad.any()
            layer.zero_grad()
        layer.reduction = "none"
        assert layer(hidden[:0], y[:0]).shape == layer.sample(hidden[:0], 0).shape == (0,)
        assert layer.log_prob(hidden[:0]).shape == (0, k)
        assert layer.topk(hidden[:0], 1).index.shape == (0, 1)


# --- search and draws -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 7, 400])
@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0])
def test_topk_equals_sorted_log_prob(k: int, scale: float) -> None:
    hidden = drawn(30, 5)
    for tree in (Tree.balanced(k), counted(k)):
        layer = layer_of(tree, 5, scale, dtype=F64)  # scale 0: classes of equal depth are equally probable
        values, index = torch.sort(layer.log_prob(hidden), dim=1, descending=True, stable=True)
        for n in sorted({1, min(3, k), min(50, k), k}):
            found = layer.topk(hidden, n)
            assert torch.equal(found.index, index[:, :n])
            torch.testing.assert_close(found.values, values[:, :n], rtol=1e-12, atol=1e-12)
            assert torch.equal(layer.topk(hidden[7:8], n).values, found.values[7:8]), "other rows have no effect"


def test_topk_visits_few_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    node_counts: list[int] = []

    def dots(*arguments: Any) -> Any:
        node_counts.append(len(arguments[-1]))
        return rows.dots(*arguments)

    layer = layer_of(Tree.balanced(4096), 5, 2.0, dtype=F64)
    hidden = drawn(8, 5)
    wanted = layer.log_prob(hidden).topk(3)
    monkeypatch.setattr(descent, "dots", dots)
    assert torch.equal(layer.topk(hidden, 3).index, wanted.indices)
    assert sum(node_counts) < 8 * 4095 / 10
    monkeypatch.setattr(layers, "_SIZE", 5000)
    assert torch.equal(layer.topk(hidden, 3).index, wanted.indices), "blocks of one row give the same result"


def test_nan_rows() -> None:
    layer, hidden = layer_of(Tree.balanced(9)), drawn(3, 5, dtype=torch.float32)
    hidden[1, 2] = torch.nan
    found = layer.topk(hidden, 2)
    assert found.index[1].tolist() == [-1, -1]
    assert found.values[1].isnan().all()
    assert torch.equal(found.index[2], layer.topk(hidden[2:], 2).index[0])
    assert layer.log_prob(hidden).isnan().all(1).tolist() == [False, True, False]
    with pytest.raises(ValueError, match="got NaN in row 1"):
        layer.sample(hidden, 0)


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_draws_follow_the_distribution(seed: int) -> None:
    layer = layer_of(counted(12), 3, dtype=F64)
    hidden = drawn(1, 3)
    p = layer.log_prob(hidden)[0].exp().detach().numpy()
    draws = layer.sample(hidden.expand(200_000, 3), seed).numpy()
    assert p_value(draws, p) > 1e-4
    first, second = np.argsort(-p)[:2]
    p[[first, second]] += np.array([-0.1, 0.1]) * p[second]
    assert p_value(draws, p) < 1e-9, "a wrong distribution fails the test"
    sure = layer_of(Tree.balanced(8), 3, 1e4)
    x = drawn(1, 3, dtype=torch.float32)
    assert (sure.sample(x.expand(5000, 3), seed) == sure.topk(x, 1).index[0]).all()


def test_draws_depend_only_on_seed_and_stream() -> None:
    layer, hidden = layer_of(counted(300)), drawn(40, 5, dtype=torch.float32)
    found = layer.sample(hidden, 5)
    assert torch.equal(found, layer.sample(hidden, seed=5))
    assert not torch.equal(found, layer.sample(hidden, 6))
    some = torch.tensor([30, 3, 17])
    assert torch.equal(layer.sample(hidden[some], 5, stream=some), found[some])
    draws = [layer.sample(hidden, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(layer.sample(hidden), layer.sample(hidden))
    kept = layers._SIZE
    try:
        layers._SIZE = 900
        assert torch.equal(found, layer.sample(hidden, 5)), "the block size has no effect"
    finally:
        layers._SIZE = kept
