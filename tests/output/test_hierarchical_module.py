"""HierarchicalSoftmax as a torch module: reproducible bits, memory, checkpoints, transforms, error messages."""

from __future__ import annotations

import copy
import importlib
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
hierarchical = importlib.import_module("softargmax.output.torch_hierarchical")
scored = importlib.import_module("softargmax.output.torch_class_scores")
operations = importlib.import_module("softargmax.output.operations")
descent = importlib.import_module("softargmax.output.torch_tree_search")
cases = importlib.import_module("tests.output.test_hierarchical")

from softargmax.core.dispatch import using  # noqa: E402
from softargmax.output.tree import Tree  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning"),  # torch's forward mode warns
    pytest.mark.filterwarnings("ignore:`isinstance.*is deprecated:FutureWarning"),  # torch.compile warns
]
layer_of, counted, drawn = cases.layer_of, cases.counted, cases.drawn


# --- bits and memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_row_has_the_same_bits_in_every_batch(dtype: Any) -> None:
    layer = layer_of(counted(500), 67, 0.3, dtype=dtype, reduction="none")
    hidden, y = drawn(50, 67, dtype=dtype), torch.arange(50) * 9
    hidden.requires_grad_()

    def all_of(part: Any) -> list[Any]:
        loss = layer(hidden[part], y[part])
        (dh,) = torch.autograd.grad(loss.sum(), hidden)
        stream = torch.arange(50)[part]
        return [
            loss,
            dh[part],
            layer.log_prob(hidden[part]),
            *layer.topk(hidden[part], 5),
            layer.sample(hidden[part], 3, stream=stream),
        ]

    whole = all_of(slice(None))
    threads = torch.get_num_threads()
    for part in (slice(7, 8), slice(40, None), torch.arange(49, -1, -1)):
        torch.set_num_threads(1 if part == slice(7, 8) else 2)
        try:
            found = all_of(part)
        finally:
            torch.set_num_threads(threads)
        assert all(torch.equal(ours, x[part]) for ours, x in zip(found, whole, strict=True))


def test_chunk_size_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden, y = layer_of(counted(500)), drawn(50, 5, dtype=torch.float32), torch.arange(50)
    found = layer(hidden, y), layer.log_prob_of(hidden, y)
    monkeypatch.setattr(scored, "_SIZE", 40)
    assert torch.equal(layer(hidden, y), found[0])
    assert torch.equal(layer.log_prob_of(hidden, y), found[1])


def test_loss_never_stores_all_scores() -> None:
    n, k, dim = 512, 100_003, 64
    layer = layer_of(Tree.balanced(k), dim, 0.1, sparse=True)
    hidden, y = drawn(n, dim, dtype=torch.float32).requires_grad_(), torch.arange(n) * 100
    layer(hidden, y).backward()
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        layer(hidden, y).backward()
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in profile.key_averages())
    touched = layer.weight.grad.coalesce().values().shape[0]
    assert 0 < allocated < 4 * (3 * n * 17 * dim + 60 * n * 17 + 3 * touched * dim), (
        "`allocated` counts all allocations of torch, including freed memory"
    )
    assert allocated < n * k * 4 / 10


def test_results_equal_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden, y = layer_of(counted(60), reduction="none"), drawn(9, 5, dtype=torch.float32), torch.arange(9)
    tables = hierarchical.Paths(layer.offsets, layer.path_nodes, layer.path_signs)
    pairs, _ = hierarchical.pairs_of(tables, y, torch.ones(9, dtype=torch.bool), layer.tree.depth)
    i = operations.PairScores(hidden, operations.Table(layer.weight, layer.bias, False), pairs)
    torch.testing.assert_close(operations.pair_scores.define(i), scored.pair_scores(*i))
    native = layer.log_prob(hidden)
    with monkeypatch.context() as patch:
        patch.setattr(operations.linear_scores, "define", None)
        assert torch.equal(layer.log_prob(hidden), native)
    with using("reference"):
        torch.testing.assert_close(layer.log_prob(hidden), native)


# --- transforms -------------------------------------------------------------------------------------------------------


def test_vmap_and_functional_derivatives() -> None:
    layer, hidden, y = layer_of(counted(30), dtype=torch.float64), drawn(6, 5), torch.arange(6)
    y[4] = -100
    layer.reduction = "none"
    mapped = torch.func.vmap(layer)(hidden, y)
    torch.testing.assert_close(mapped, layer(hidden, y))
    torch.testing.assert_close(torch.func.vmap(layer.log_prob)(hidden), layer.log_prob(hidden))
    h = hidden.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(layer(h, y).sum(), h, create_graph=True)
    torch.testing.assert_close(torch.func.grad(lambda h: layer(h, y).sum())(hidden), wanted)
    per_row = torch.func.vmap(torch.func.grad(layer))(hidden, y)
    torch.testing.assert_close(per_row, wanted)
    hessian = torch.func.hessian(lambda h: layer(h, y).sum())(hidden)
    (again,) = torch.autograd.grad(wanted[0, 0], h)
    torch.testing.assert_close(hessian[0, 0], again)
    wrong = torch.func.vmap(layer)(hidden, torch.tensor([0, 30, -1, 29, -100, 99]))
    assert wrong.isnan().tolist() == [False, True, True, False, False, True], "NaN for targets out of range"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forward", "log_prob", "log_prob_of"])
def test_compiles_without_graph_breaks(method: str) -> None:
    layer, hidden = layer_of(counted(30)), drawn(6, 5, dtype=torch.float32)
    arguments = (hidden,) if method == "log_prob" else (hidden, torch.arange(6))
    compiled = torch.compile(getattr(layer, method), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arguments), getattr(layer, method)(*arguments))


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_checkpoint_restores_the_tree() -> None:
    layer, hidden, y = layer_of(counted(40)), drawn(6, 5, dtype=torch.float32), torch.arange(6)
    assert list(layer.state_dict()) == ["weight", "bias", "tree_children"]
    for twin in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert torch.equal(twin(hidden, y), layer(hidden, y))
        assert twin.tree == layer.tree
    other = torch.nn.Sequential(hierarchical.HierarchicalSoftmax(5, Tree.balanced(40), device="meta"))
    assert all(x.is_meta for x in other.state_dict().values())
    other.to_empty(device="cpu").load_state_dict({f"0.{name}": x for name, x in layer.state_dict().items()})
    twin = other[0]
    assert twin.tree == layer.tree
    assert torch.equal(twin(hidden, y), layer(hidden, y))
    assert torch.equal(twin.log_prob(hidden), layer.log_prob(hidden))
    assert torch.equal(twin.sample(hidden, 1), layer.sample(hidden, 1))
    for dim, k in ((5, 41), (6, 40)):
        with pytest.raises(RuntimeError, match="size mismatch for weight"):
            hierarchical.HierarchicalSoftmax(dim, Tree.balanced(k)).load_state_dict(layer.state_dict())
    broken = {**layer.state_dict(), "tree_children": torch.zeros(39, 2, dtype=torch.int64)}
    with pytest.raises(RuntimeError, match="tree_children: children: expected each node from 1 to 38"):
        twin.load_state_dict(broken)
    assert twin.tree == layer.tree


def test_repr_parameters_and_reset() -> None:
    tree = Tree.balanced(4)
    layer = hierarchical.HierarchicalSoftmax(3, tree, bias=False, sparse=True, reduction="sum")
    assert repr(layer) == "HierarchicalSoftmax(3, Tree(classes=4, depth=2), bias=False, sparse=True, reduction='sum')"
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    x = drawn(2, 3, dtype=torch.float32)
    torch.testing.assert_close(layer.log_prob(x).exp(), torch.full((2, 4), 0.25))
    with torch.no_grad():
        layer.weight.fill_(1.0)
    layer.reset_parameters()
    assert not layer.weight.any()
    assert layer.double().log_prob(x).dtype == torch.float64
    assert hierarchical.HierarchicalSoftmax(3, tree, dtype=torch.float16).bias.dtype == torch.float16


# --- errors -----------------------------------------------------------------------------------------------------------

X, Y = drawn(2, 5, dtype=torch.float32), torch.tensor([0, 6])


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda s: s(X, torch.tensor([0, 7])),
            IndexError,
            r"target: expected 0 to 6, or -100 \(ignored\), got 7 at \(1,\)",
        ),
        (
            lambda s: s(X[None], torch.tensor([[-1, 0]])),
            IndexError,
            r"target: expected 0 to 6, or -100 \(ignored\), got -1 at \(0, 0\)",
        ),
        (
            lambda s: s(X[0], torch.tensor(9)),
            IndexError,
            r"target: expected 0 to 6, or -100 \(ignored\), got 9 at \(\)",
        ),
        (
            lambda s: s.log_prob_of(X, torch.tensor([0, 7])),
            IndexError,
            r"target: expected 0 to 6, or -100 \(ignored\), got 7 at \(1,\)",
        ),
        (lambda s: s(X, Y.float()), TypeError, "target: expected integers, one per row, got dtype torch.float32"),
        (lambda s: s(X, Y > 0), TypeError, "target: expected integers, one per row, got dtype torch.bool"),
        (lambda s: s(X, Y[:1]), ValueError, r"target: expected the rows' shape, \(2,\), got \(1,\)"),
        (lambda s: s(X, "no"), TypeError, "target: expected an array, got str, which cannot be converted"),
        (lambda s: s([[1.0]], Y), TypeError, "hidden: expected a tensor, got list"),
        (lambda s: s(X[:, :4], Y), ValueError, r"hidden: expected shape \(..., 5\), got \(2, 4\)"),
        (lambda s: s(torch.tensor(1.0), Y), ValueError, r"hidden: expected shape \(..., 5\), got \(\)"),
        (
            lambda s: s(X + 1j, Y),
            TypeError,
            "hidden: expected dtype float16, bfloat16, float32, float64, .*got torch.complex64",
        ),
        (lambda s: s(X.to("meta"), Y), ValueError, "hidden: expected a tensor on cpu, got one on meta"),
        (lambda s: s(X, Y.to("meta")), ValueError, "target: expected an array on cpu, got one on meta"),
        (lambda s: s.log_prob(X[:, :2]), ValueError, r"hidden: expected shape \(..., 5\), got \(2, 2\)"),
        (lambda s: s.topk(X, 0), ValueError, "k: expected 1 to 7, got 0"),
        (lambda s: s.topk(X, 8), ValueError, "k: expected 1 to 7, got 8"),
        (lambda s: s.topk(X, 2.0), TypeError, "k: expected an integer, got 2.0"),
        (
            lambda s: s.sample(X, -1),
            ValueError,
            r"seed: expected an integer from 0 to 2\^64 - 1, got a negative number",
        ),
        (lambda s: s.sample(X, 1, stream=[0]), ValueError, r"stream: expected the rows' shape, \(2,\), got \(1,\)"),
        (
            lambda s: s.sample(X, 1, generator=torch.Generator()),
            ValueError,
            "seed, generator: expected one of them, got both",
        ),
        (lambda s: type(s)(0, s.tree), ValueError, "dim: expected 1 or more, got 0"),
        (lambda s: type(s)(1.5, s.tree), TypeError, "dim: expected an integer, got 1.5"),
        (lambda s: type(s)(5, 7), TypeError, "tree: expected a Tree, got int"),
        (
            lambda s: type(s)(5, s.tree, reduction="max"),
            ValueError,
            "reduction: expected one of 'none', 'mean', 'sum', got 'max'",
        ),
        (lambda s: type(s)(5, s.tree, ignore_index=0.5), TypeError, "ignore_index: expected an integer, got 0.5"),
        (
            lambda s: type(s)(5, s.tree, dtype=torch.int64),
            TypeError,
            "dtype: expected float16, bfloat16, float32 or float64, got torch.int64",
        ),
    ],
)
def test_errors(call: Callable[[Any], Any], error: type[Exception], match: str) -> None:
    layer = hierarchical.HierarchicalSoftmax(5, Tree.balanced(7))
    with pytest.raises(error, match=match):
        call(layer)


def test_targets_of_any_integer_dtype() -> None:
    layer = layer_of(Tree.balanced(7))
    wanted = layer(X, Y)
    assert all(torch.equal(layer(X, Y.to(kind)), wanted) for kind in (torch.uint8, torch.int16, torch.int32))
    assert torch.equal(layer(X, [0, 6]), wanted)
    assert torch.equal(layer_of(Tree.balanced(7), ignore_index=6)(X, Y), layer(X[:1], Y[:1]))


def test_create_graph_gives_dense_gradients() -> None:
    layer, hidden = layer_of(counted(30), sparse=True), drawn(6, 5, dtype=torch.float32)
    loss = layer(hidden, torch.arange(6))
    (again,) = torch.autograd.grad(loss, layer.weight, create_graph=True)
    assert again.layout == torch.strided
    (once,) = torch.autograd.grad(layer(hidden, torch.arange(6)), layer.weight)
    assert once.layout == torch.sparse_coo
    torch.testing.assert_close(once.to_dense(), again.detach())
    again.square().sum().backward()
    assert layer.weight.grad.any()
