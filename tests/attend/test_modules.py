"""softargmax.nn.Attention: torch's module with the same weights, its own options, its parameters."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
s = importlib.import_module("softargmax")


def test_it_is_torchs_with_the_same_weights() -> None:
    torch.manual_seed(0)
    theirs, x = torch.nn.MultiheadAttention(24, 4, batch_first=True), torch.randn(2, 7, 24)
    ours = s.nn.Attention(24, 4, causal=True)
    with torch.no_grad():
        projections = zip((ours.q_proj, ours.k_proj, ours.v_proj), theirs.in_proj_weight.chunk(3), strict=True)
        for projection, weight in projections:
            projection.weight.copy_(weight)
            projection.bias.zero_()
        ours.out_proj.load_state_dict(theirs.out_proj.state_dict())
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    wanted = theirs(x, x, x, attn_mask=future, need_weights=False)[0]
    torch.testing.assert_close(ours(x), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"groups": 2, "causal": True},
        {"head_dim": 5, "context_dim": 9, "bias": False},
        {"window": (2, 1), "softcap": 3.0, "sink": True, "norm": True},
        {"alpha": 1.5, "scale": "log", "causal": True},
        {"scale": "log", "window": (2, None)},
        {"scale": "log", "window": (None, 2), "dropout": 0.5},
    ],
    ids=str,
)
def test_every_parameter_learns(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    layer = s.nn.Attention(12, 4, dtype=torch.float64, **options)
    x = torch.randn(2, 6, 12, dtype=torch.float64)
    context = torch.randn(2, 7, 9, dtype=torch.float64) if "context_dim" in options else None
    given = {"key_lengths": torch.tensor([3, 6])} if context is None else {}
    layer(x, context, **given).square().sum().backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for name, p in layer.named_parameters() if name != "k_proj.bias"
    )
    twin = s.nn.Attention(12, 4, dtype=torch.float64, **options)
    twin.load_state_dict(layer.state_dict())
    layer.eval(), twin.eval()
    assert torch.equal(layer(x, context, **given), twin(x, context, **given))
    assert "Attention(12, 4" in repr(layer).replace("\n  ", "")


def test_the_scale_counts_the_keys_that_are_seen() -> None:
    layer = s.nn.Attention(8, 2, causal=True, window=(2, 5), scale="log")
    start = math.sqrt(4) / math.log(512) / 4
    wanted = [start * math.log(max(n, 1)) for n in (1, 2, 3, 3, 3)]
    q, k = torch.empty(2, 5, 4), torch.empty(2, 2, 9, 4)
    torch.testing.assert_close(layer._scale(q, q, None)[0], torch.tensor(wanted))
    padded = layer._scale(q, k, torch.tensor([5, 9]))
    assert padded.shape == (2, 2, 5)
    torch.testing.assert_close(padded[0, 0], torch.tensor(wanted))
    assert (padded[1] == start * math.log(3)).all()


def test_dropout_is_for_training() -> None:
    layer, x = s.nn.Attention(8, 2, dropout=0.5), torch.randn(1, 5, 8)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_a_learned_order() -> None:
    alpha = torch.nn.Parameter(torch.full((2, 1), 1.4))
    layer = s.nn.Attention(8, 2, alpha=alpha)
    layer(torch.randn(3, 5, 8)).sum().backward()
    assert alpha.grad.abs().sum() > 0
    assert "alpha=<2, 1>" in repr(layer)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": 3}, "^groups: 3; .* 4"),
        ({"heads": 5}, "^head_dim: None"),
        ({"heads": 0}, "^heads: 0"),
        ({"dropout": 1.0}, "^dropout: 1"),
        ({"scale": "sqrt"}, "^scale: 'sqrt'"),
        ({"window": (-1, 0)}, "^window: "),
        ({"softcap": -1.0}, "^softcap: "),
    ],
)
def test_errors(options: dict[str, Any], words: str) -> None:
    heads = options.pop("heads", 4)
    with pytest.raises(ValueError, match=words):
        s.nn.Attention(12, heads, **options)


@pytest.mark.slow
def test_it_compiles() -> None:
    torch.manual_seed(2)
    layer, x = s.nn.Attention(8, 2, causal=True, sink=True, scale="log"), torch.randn(2, 5, 8)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), layer(x))
