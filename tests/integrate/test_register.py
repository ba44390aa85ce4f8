"""`register` and `unregister`: names, options, errors."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.integrate.models import CACHE, model_of, texts  # noqa: E402 after the skip

import softargmax  # noqa: E402
from softargmax import integrate  # noqa: E402


def names() -> set[str]:
    return {*transformers.AttentionInterface().valid_keys()} | {*transformers.AttentionMaskInterface().valid_keys()}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (3, {}, "name: expected a string, got int"),
        ("sdpa", {}, "name: expected a name without 'sdpa', a word of transformers, got 'sdpa'"),
        ("my_flash", {}, "name: expected a name without 'flash', a word of transformers, got 'my_flash'"),
        ("a/b", {}, "name: expected a letter, then letters, digits and underscores, got 'a/b'"),
        ("_a", {}, "name: expected a letter, then letters, digits and underscores, got '_a'"),
        ("", {}, "name: expected a letter, then letters, digits and underscores, got ''"),
        ("x", {"alpha": 0}, "alpha: expected a finite number above 0, got 0"),
        ("x", {"alpha": float("nan")}, "alpha: expected a finite number above 0, got nan"),
        ("x", {"alpha": True}, "alpha: expected a number, a tensor or a function, got bool"),
        ("x", {"alpha": None}, "alpha: expected a number, a tensor or a function, got NoneType"),
        ("x", {"scale": float("inf")}, "scale: expected a finite number, got inf"),
        ("x", {"scale": "1"}, "scale: expected a number, a tensor or a function, got str"),
    ],
)
def test_a_wrong_argument_changes_nothing(name: Any, options: dict[str, Any], message: str) -> None:
    before = names()
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message)}$"):
        integrate.register(name, **options)
    assert names() == before


def test_a_name_is_registered_once() -> None:
    before = names()
    integrate.register("once")
    with pytest.raises(ValueError, match=r"^name: expected a name that is not registered, got 'once'; call unregister"):
        integrate.register("once", alpha=2.0)
    integrate.unregister("once")
    assert names() == before
    with pytest.raises(ValueError, match=r"^name: expected a name that register\(\) has added \(none\), got 'once'$"):
        integrate.unregister("once")
    with pytest.raises(ValueError, match="got 'eager'"):
        integrate.unregister("eager")


def test_a_model_whose_name_is_gone_says_so() -> None:
    integrate.register("gone")
    model = model_of("Llama", "gone")
    integrate.unregister("gone")
    with pytest.raises(KeyError, match="gone"):
        model(texts())
    with pytest.raises(ValueError, match="gone"):
        model_of("Llama", "gone")


def test_each_layer_learns_its_own_order() -> None:
    """The gradients of alpha are those of a difference quotient."""
    raw = torch.zeros(3, 4, 1, requires_grad=True)  # layers, heads
    integrate.register("learned", alpha=lambda layer, *_: 1 + torch.sigmoid(raw[layer.layer_idx]))
    try:
        model = model_of("Llama", "learned")
        with torch.no_grad():
            for layer in model.model.layers:
                layer.self_attn.q_proj.weight *= 30  # so that the order matters

        def value() -> Any:
            return model(texts()).logits.square().sum()

        (gradient,) = torch.autograd.grad(value(), raw)
        assert bool((gradient != 0).all())
        step = 1e-2 * gradient / gradient.norm()
        with torch.no_grad():
            raw += step
            above = value()
            raw -= 2 * step
            below = value()
        torch.testing.assert_close((above - below) / 2, (gradient * step).sum(), rtol=2e-3, atol=0)
    finally:
        integrate.unregister("learned")


def test_a_scale_replaces_the_scale_of_the_model() -> None:
    def scale(layer: Any, q: Any, k: Any) -> Any:
        seen = torch.arange(k.shape[-2] - q.shape[-2], k.shape[-2]) + 1
        return softargmax.entropy_invariant_scale(seen, q.shape[-1])

    integrate.register("invariant", scale=scale)
    integrate.register("plain", scale=0.3)
    try:
        model = model_of("Llama", "invariant")
        logits = model(texts()).logits[:, -1]
        model.set_attn_implementation("eager")
        width = model.config.hidden_size // model.config.num_attention_heads
        invariant = torch.arange(1, 18).log() / width
        for layer in model.model.layers:
            layer.self_attn.scaling = invariant[:, None]
        torch.testing.assert_close(logits, model(texts()).logits[:, -1], rtol=0, atol=1e-6)
        model.set_attn_implementation("invariant")
        cache = transformers.DynamicCache()
        model(texts()[:, :-1], **{CACHE: cache})
        decoded = model(texts()[:, -1:], **{CACHE: cache}).logits[:, 0]
        torch.testing.assert_close(decoded, logits, rtol=0, atol=1e-6)
        model.set_attn_implementation("eager")
        for layer in model.model.layers:
            layer.self_attn.scaling = 0.3
        theirs = model(texts()).logits
        model.set_attn_implementation("plain")
        torch.testing.assert_close(model(texts()).logits, theirs, rtol=0, atol=1e-6)
    finally:
        integrate.unregister("invariant")
        integrate.unregister("plain")
