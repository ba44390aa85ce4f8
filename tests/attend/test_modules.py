"""softargmax.nn.Attention: agreement with torch's module, options, parameters, decoding."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
s = importlib.import_module("softargmax")


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"kdim": 9, "vdim": 9}, {"add_zero_attn": True}, {"batch_first": False, "dropout": 0.5}],
    ids=str,
)
def test_agrees_with_torch_for_the_same_weights(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(24, 4, **{"batch_first": True} | options).eval()
    if theirs.in_proj_bias is not None:
        torch.nn.init.normal_(theirs.in_proj_bias)
        torch.nn.init.normal_(theirs.out_proj.bias)
    x, c = torch.randn(2, 7, 24), torch.randn(2, 6, theirs.kdim)
    mask, padding = torch.rand(7, 6) > 0.8, torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    ours = s.nn.Attention.from_torch(theirs)
    assert ours.dropout == theirs.dropout
    assert not ours.training
    given = (x, c, c) if theirs.batch_first else (part.transpose(0, 1) for part in (x, c, c))
    wanted = theirs(*given, attn_mask=mask, key_padding_mask=padding)[0]
    wanted = wanted if theirs.batch_first else wanted.transpose(0, 1)
    torch.testing.assert_close(ours(x, c, mask=~mask & ~padding[:, None, None, :]), wanted, rtol=1e-5, atol=1e-6)


def test_options_and_errors_of_from_torch() -> None:
    theirs, x = torch.nn.MultiheadAttention(24, 4, batch_first=True), torch.randn(2, 7, 24)
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    wanted = theirs(x, x, x, attn_mask=future, need_weights=False)[0]
    ours = s.nn.Attention.from_torch(theirs, causal=True)
    torch.testing.assert_close(ours(x), wanted, rtol=1e-5, atol=1e-6)
    assert ours.training
    assert ours.q_proj.weight.data_ptr() != theirs.in_proj_weight.data_ptr()
    for options, says in (
        ({"kdim": 3}, "module: expected kdim equal to vdim, got 3 and 8"),
        ({"add_bias_kv": True}, "bias_k"),
    ):
        with pytest.raises(ValueError, match=says):
            s.nn.Attention.from_torch(torch.nn.MultiheadAttention(8, 2, **options))
    with pytest.raises(TypeError, match=r"module: expected a torch.nn.MultiheadAttention, got Linear"):
        s.nn.Attention.from_torch(torch.nn.Linear(3, 3))


# --- decoding ---------------------------------------------------------------------------------------------------------

DECODERS = {
    "plain": {},
    "all": {"groups": 2, "window": (4, 0), "scale": "log", "norm": True, "sink": True, "softcap": 5.0},
    "entmax": {"alpha": 1.5},
}


def decoder(**options: Any) -> Any:
    torch.manual_seed(2)
    return s.nn.Attention(24, 4, causal=True, **options).requires_grad_(False)


@pytest.mark.parametrize("name", DECODERS)
def test_decoding_token_by_token_equals_one_call(name: str) -> None:
    layer, x = decoder(**DECODERS[name]), torch.randn(2, 9, 24)
    cache = layer.new_cache(2, 12)
    found = [layer(part, cache=cache) for part in x.split([4, 1, 2, 1, 1], 1)]
    torch.testing.assert_close(torch.cat(found, 1), layer(x), rtol=1e-5, atol=1e-6)
    assert cache.lengths.tolist() == [9, 9]
    cache.lengths.zero_()
    torch.testing.assert_close(layer(x[:, :3], cache=cache), found[0][:, :3], rtol=1e-5, atol=1e-6)


def test_padded_prompts_continue_from_their_ends() -> None:
    layer, x, lengths = decoder(scale="log"), torch.randn(2, 5, 24), torch.tensor([3, 5])
    more = torch.randn(2, 2, 24)
    cache = layer.new_cache(2, 7)
    layer(x, cache=cache)
    cache.lengths.copy_(lengths)
    found = torch.cat([layer(part, cache=cache) for part in more.split(1, 1)], 1)
    for i, n in enumerate(lengths):
        whole = layer(torch.cat([x[i, :n], more[i]]))
        torch.testing.assert_close(found[i], whole[n:], rtol=1e-5, atol=1e-6)


def test_a_decoding_step_is_compiled_once() -> None:
    layer, x = decoder(groups=2), torch.randn(2, 6, 24)
    cache, count = layer.new_cache(2, 6), 0

    def counting(graph: Any, _: Any) -> Any:
        nonlocal count
        count += 1
        return graph

    step = torch.compile(lambda part: layer(part, cache=cache), fullgraph=True, backend=counting)
    found = torch.cat([step(part) for part in x.split(1, 1)], 1)
    torch.testing.assert_close(found, layer(x), rtol=1e-5, atol=1e-6)
    assert count == 1


def test_a_context_without_keys_reads_the_cache() -> None:
    layer, x, c = s.nn.Attention(8, 2, context_dim=3).requires_grad_(False), torch.randn(4, 8), torch.randn(5, 3)
    cache = layer.new_cache((), 5)
    wanted = layer(x, c, cache=cache)
    torch.testing.assert_close(layer(x, c[:0], cache=cache), wanted)
    torch.testing.assert_close(layer(x, c), wanted)


def test_cache_errors() -> None:
    layer, x = decoder(), torch.randn(2, 3, 24)
    cache = layer.new_cache(2, 4, dtype=torch.float32)
    layer(x, cache=cache)
    with pytest.raises(ValueError, match="cache: expected at most 4 keys, got 3 in the cache and 3 new ones"):
        layer(x, cache=cache)
    with pytest.raises(
        ValueError, match=r"cache: expected keys and values of shape \(1, 4, 'capacity', .*got \(2, 4, 4, 6\)"
    ):
        layer(x[:1], cache=cache)
    with pytest.raises(
        ValueError, match="key_lengths: expected None \\(because the cache has its own lengths\\), got lengths"
    ):
        layer(x[:, :1], cache=cache, key_lengths=torch.tensor([1, 1]))
    with pytest.raises(RuntimeError, match="cache: expected no gradients to be recorded"):
        layer.requires_grad_(True)(x[:, :1], cache=cache)
    with pytest.raises(ValueError, match="capacity: expected an integer, 1 or above, got 0"):
        layer.new_cache(2, 0)


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
def test_every_parameter_has_a_gradient(options: dict[str, Any]) -> None:
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


def test_the_scale_counts_visible_keys() -> None:
    layer = s.nn.Attention(8, 2, causal=True, window=(2, 5), scale="log")
    start = math.sqrt(4) / math.log(512) / 4
    wanted = [start * math.log(max(n, 1)) for n in (1, 2, 3, 3, 3)]
    q, k = torch.empty(2, 5, 4), torch.empty(2, 2, 9, 4)
    torch.testing.assert_close(layer._scale(q, q, None)[0], torch.tensor(wanted))
    padded = layer._scale(q, k, torch.tensor([5, 9]))
    assert padded.shape == (2, 2, 5)
    torch.testing.assert_close(padded[0, 0], torch.tensor(wanted))
    assert (padded[1] == start * math.log(3)).all()


def test_dropout_only_in_training() -> None:
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
        ({"groups": 3}, "^groups: expected a divisor of heads, 4, got 3"),
        ({"heads": 5}, r"^head_dim: expected a number \(because dim, 12, is not a multiple of heads, 5\), got None"),
        ({"heads": 0}, "^heads: expected an integer, 1 or above, got 0"),
        ({"dropout": 1.0}, "^dropout: expected a number of at least 0 and below 1, got 1.0"),
        ({"scale": "sqrt"}, "^scale: expected one of 'root', 'log', got 'sqrt'"),
        ({"window": (-1, 0)}, "^window: "),
        ({"softcap": -1.0}, "^softcap: "),
    ],
)
def test_errors(options: dict[str, Any], words: str) -> None:
    heads = options.pop("heads", 4)
    with pytest.raises(ValueError, match=words):
        s.nn.Attention(12, heads, **options)


@pytest.mark.slow
def test_the_module_compiles() -> None:
    torch.manual_seed(2)
    layer, x = s.nn.Attention(8, 2, causal=True, sink=True, scale="log"), torch.randn(2, 5, 8)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), layer(x))
