"""After decomposition, exported programs contain only torch's operators. They give the results of the eager model."""

from __future__ import annotations

import importlib
import io
from typing import Any

import pytest

torch = pytest.importorskip("torch")
layers = importlib.import_module("tests.output.layers")

import softargmax as sa  # noqa: E402
from softargmax import nn  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.*is deprecated:FutureWarning")  # from torch.export
Z, Y = layers.drawn(4, 8, dtype=torch.float32), torch.tensor([3, 0, -100, 7])


class Call(torch.nn.Module):
    def __init__(self, f: Any) -> None:
        super().__init__()
        self.f = f

    def forward(self, *inputs: Any) -> Any:
        return self.f(*inputs)


ALL = {"groups": 2, "causal": True, "window": (2, 0), "scale": "log", "norm": True, "sink": True, "softcap": 5.0}
QUICK = {
    "softmax": lambda: (Call(lambda z, y: sa.softmax(z, where=y[:, None] >= 0, temperature=3.0)), Z, Y),
    "cross_entropy": lambda: (nn.CrossEntropyLoss(label_smoothing=0.1), Z, Y),
    "attention": lambda: (nn.Attention(8, 4, **ALL), Z[None]),
}
SLOW = {
    "softmax, half": lambda: (nn.Softmax(), Z.half()),
    "log_softmax": lambda: (nn.LogSoftmax(temperature=torch.ones(4)), Z),
    "logsumexp": lambda: (Call(sa.logsumexp), Z),
    "entropy": lambda: (Call(sa.entropy), Z),
    "renyi_entropy": lambda: (Call(lambda z: sa.renyi_entropy(z, 2.0)), Z),
    "topk_softmax": lambda: (Call(lambda z: sa.topk_softmax(z, 3)), Z),
    "entmax": lambda: (nn.Entmax(1.5), Z),
    "entmax_loss": lambda: (nn.EntmaxLoss(2.0), Z, Y),
    "gumbel_softmax": lambda: (Call(lambda z: sa.gumbel_softmax(z, seed=3)), Z),
    "categorical": lambda: (Call(lambda z: sa.categorical(z, seed=3, top_p=0.9)), Z),
    "linear_cross_entropy": lambda: (nn.FullSoftmax(8, 20), Z, Y),
    "log_prob of a tree": lambda: (Call(layers.layer_of("hierarchical", 8).log_prob), Z),
    "log_prob of clusters": lambda: (Call(layers.layer_of("adaptive", 8).log_prob), Z),
}


def decomposed(model: Any, *inputs: Any) -> Any:
    program = torch.export.export(model.eval(), inputs).run_decompositions(nn.decompositions())
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not {name for name in called if not name.startswith("aten.") and "getitem" not in name}
    return program


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_decomposed_programs(name: str) -> None:
    model, *inputs = (QUICK | SLOW)[name]()
    found = decomposed(model, *inputs).module()(*inputs)
    torch.testing.assert_close(found, model(*inputs))


def test_edge_rows() -> None:
    inf, nan = float("inf"), float("nan")
    z = torch.tensor([[-inf, -inf], [inf, 0.0], [nan, 0.0], [1e38, -1e38]])
    softmax = decomposed(nn.Softmax(), z).module()(z)
    assert torch.equal(softmax[[0, 1, 3]], torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]))
    assert softmax[2].isnan().all()


def test_undecomposed_programs_keep_our_operators_and_bits() -> None:
    program = torch.export.export(nn.Softmax(), (Z,)).run_decompositions()
    assert any("softargmax" in str(node.target) for node in program.graph.nodes)
    assert torch.equal(program.module()(Z), sa.softmax(Z))


@pytest.mark.slow
def test_onnx() -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    model = Call(lambda z: sa.log_softmax(z, temperature=3.0))
    saved = io.BytesIO()
    torch.onnx.export(decomposed(model, Z)).save(saved)
    session = onnxruntime.InferenceSession(saved.getvalue())
    (found,) = session.run(None, {session.get_inputs()[0].name: Z.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(Z))
