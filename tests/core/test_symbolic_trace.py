"""`torch.fx.symbolic_trace` traces every module and function. The graph gives the results of the eager model."""

from __future__ import annotations

import importlib
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
layers = importlib.import_module("tests.output.layers")
from torch.fx import symbolic_trace  # noqa: E402 torch may be missing

import softargmax as sa  # noqa: E402
from softargmax import nn  # noqa: E402

learned = torch.nn.Parameter
X, Y = layers.drawn(6, 8, dtype=torch.float32), torch.arange(6)

MODULES = {
    "softmax": nn.Softmax,
    "softmax, learned": lambda: nn.Softmax(temperature=learned(torch.tensor(2.0)), base=2.0),
    "softmax, buffer": lambda: nn.Softmax(temperature=torch.arange(1.0, 7.0)),
    "log_softmax": lambda: nn.LogSoftmax(1),
    "sparsemax": nn.Sparsemax,
    "entmax": lambda: nn.Entmax(learned(torch.tensor(1.3))),
    "gumbel": lambda: nn.GumbelSoftmax(temperature=0.5),
    "attention": lambda: nn.Attention(8, 2),
    "attention, all": lambda: nn.Attention(
        8, 4, groups=2, causal=True, window=(3, 0), scale="log", norm=True, sink=True, alpha=1.5
    ),
}
LOSSES = {
    "cross_entropy": lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
    "entmax_loss": lambda: nn.EntmaxLoss(learned(torch.tensor(1.3))),
    "sparsemax_loss": nn.SparsemaxLoss,
    **{name: lambda name=name: layers.layer_of(name, 8) for name in layers.LAYERS},
}


class Model(torch.nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.first, self.inner = torch.nn.Linear(8, 8), inner

    def forward(self, x: Any) -> Any:
        return self.inner(self.first(x))


class Trained(Model):
    def forward(self, x: Any, target: Any) -> Any:
        return self.inner(self.first(x), target)


def check(model: Any, *inputs: Any) -> Any:
    """Check that the traced graph, and a trace of this graph, give the bits and gradients of the model."""
    torch.manual_seed(0)
    wanted = model.eval()(*inputs)
    parameters = [p for p in model.parameters() if p.requires_grad]
    g = torch.linspace(-1, 1, wanted.numel()).reshape(wanted.shape)
    slopes = torch.autograd.grad(wanted, parameters, g, allow_unused=True)
    traced = symbolic_trace(model)
    for graph in (traced, symbolic_trace(traced)):
        torch.manual_seed(0)
        found = graph(*inputs)
        assert torch.equal(found, wanted)
        own = [dict(graph.named_parameters())[name] for name, p in model.named_parameters() if p.requires_grad]
        for a, b in zip(torch.autograd.grad(found, own, g, allow_unused=True), slopes, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b)
    return traced


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    module = MODULES[name]()
    graph = check(Model(module), X)
    assert any("softargmax" in getattr(node.target, "__module__", "") for node in graph.graph.nodes)


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    graph = check(Trained(LOSSES[name]()), X, Y)
    if name in layers.LAYERS:
        assert [node.target for node in graph.graph.nodes if node.op == "call_module"] == ["first", "inner"]


def test_the_class_axis_is_chosen_when_the_graph_runs() -> None:
    graph = symbolic_trace(nn.CrossEntropyLoss())
    for z, y in ((torch.randn(4, 5, 5), torch.zeros(4, 5, dtype=torch.int64)), (torch.randn(5), torch.tensor(2))):
        torch.testing.assert_close(graph(z, y), torch.nn.functional.cross_entropy(z, y))


def test_functions() -> None:
    """A trace records one node per call, whichever argument is traced. Fields of results keep their names."""

    def f(z: Any, where: Any, t: Any) -> Any:
        both = sa.softmax_with_lse(z, where=where)
        return both.p * sa.softmin(z, temperature=t) + sa.entropy(torch.ones(3), where=where)

    inputs = torch.randn(2, 3), torch.tensor([True, True, False]), torch.tensor([2.0, 3.0])
    graph = symbolic_trace(f)
    assert torch.equal(graph(*inputs), f(*inputs))
    called = [node.target for node in graph.graph.nodes if getattr(node.target, "__module__", "").startswith("softarg")]
    assert called == [sa.softmax_with_lse, sa.softmin, sa.entropy]


def test_graphs_are_pickled_and_compiled() -> None:
    graph = symbolic_trace(torch.nn.Sequential(nn.Sparsemax(), nn.Softmax()))
    again = pickle.loads(pickle.dumps(graph))
    assert torch.equal(again(X), graph(X))
    assert torch.equal(torch.compile(again, fullgraph=True, backend="aot_eager")(X), graph(X))


def test_errors_are_those_of_the_library() -> None:
    with pytest.raises(TypeError, match="has no argument dim; use axis"):
        symbolic_trace(lambda z: sa.softmax(z, dim=1))
