"""`GrowingCache`: the bits of transformers' `DynamicCache`, without its copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.integrate.models import CACHE, DECODERS, OLD, TRANSLATORS, model_of, padding, texts  # noqa: E402 after the skip

from softargmax.integrate import GrowingCache, register, unregister  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    register()
    yield
    unregister()


def token(model: Any, cache: Any, number: int) -> torch.Tensor:
    """Return the logits of one more token of each text."""
    with torch.no_grad():
        return model(torch.full((3, 1), number), **{CACHE: cache}).logits


def filled(model: Any, cache: Any) -> Any:
    """Return the cache with the keys of the texts."""
    with torch.no_grad():
        model(texts(), **{CACHE: cache})
    return cache


@pytest.mark.parametrize("implementation", ["softargmax", "eager", "sdpa"])
@pytest.mark.parametrize("options", [{"do_sample": False}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("family", DECODERS)
def test_texts_are_those_of_the_cache_of_transformers(
    family: str, options: dict[str, Any], implementation: str
) -> None:
    if implementation == "sdpa" and family in ("Gemma2", "GptOss"):
        pytest.skip("transformers has no such attention")
    model = model_of(family, implementation)
    given = {"attention_mask": padding("left"), "max_new_tokens": 9, **options}
    tokens = texts() * given["attention_mask"]
    found = [
        model.generate(tokens, **given, past_key_values=kind(config=model.config))
        for kind in (GrowingCache, transformers.DynamicCache)
    ]
    assert torch.equal(*found)


@pytest.mark.skipif(OLD, reason="layers with a window take no tokens back")
@pytest.mark.parametrize("drafted", [True, False], ids=["draft_model", "prompt_lookup"])
@pytest.mark.parametrize("family", ["Llama", "Mistral", "GptOss"])
def test_drafted_tokens_that_are_rejected_are_taken_back(family: str, drafted: bool) -> None:
    model = model_of(family)
    draft = {"assistant_model": model_of(family, num_hidden_layers=1)} if drafted else {"prompt_lookup_num_tokens": 3}
    given = {"attention_mask": torch.ones(1, 8, dtype=torch.long), "max_new_tokens": 14, "do_sample": False}
    wanted = model.generate(texts(1, 8), **given)
    assert torch.equal(
        model.generate(texts(1, 8), **given, **draft, past_key_values=GrowingCache(model.config)), wanted
    )


@pytest.mark.parametrize("known", [True, False])
def test_tokens_are_appended_in_place(known: bool) -> None:
    model = model_of("Gemma2", "eager")
    config = model.config if known else None  # with the configuration, some layers keep the keys of their window only
    ours, theirs = (filled(model, kind(config=config)) for kind in (GrowingCache, transformers.DynamicCache))
    layer = next(x for x in ours.layers if not x.is_sliding)
    first = layer.keys.data_ptr(), layer.values.data_ptr()
    for number in range(5):
        assert torch.equal(token(model, ours, number), token(model, theirs, number))
        assert (layer.keys.data_ptr(), layer.values.data_ptr()) == first
    assert layer.get_seq_length() == 22


def test_a_full_room_is_replaced() -> None:
    layer = filled(model_of("Llama", "eager"), GrowingCache()).layers[0]
    before, first = layer.keys.clone(), layer.keys.data_ptr()
    many = torch.randn(3, 2, 300, layer.keys.shape[-1])
    with torch.no_grad():
        keys, values = layer.update(many, -many)
    assert keys.data_ptr() != first
    assert torch.equal(keys, torch.cat([before, many], -2))
    assert torch.equal(values[..., 17:, :], -many)


def test_tokens_can_be_taken_back() -> None:
    model = model_of("Llama", "eager")
    cache = filled(model, GrowingCache())
    first = token(model, cache, 5)
    cache.crop(-1)
    token(model, cache, 6)
    cache.crop(-1)
    assert torch.equal(token(model, cache, 5), first)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_copies_have_rooms_of_their_own(copied: Any) -> None:
    model = model_of("Llama", "eager")
    cache = filled(model, GrowingCache())
    other = copied(cache)
    assert other.layers[0].keys.untyped_storage().nbytes() == other.layers[0].keys.nbytes
    token(model, cache, 5)
    token(model, other, 6)
    theirs = filled(model, transformers.DynamicCache())
    token(model, theirs, 5)
    assert torch.equal(token(model, cache, 7), token(model, theirs, 7))


def test_copies_of_a_layer_share_no_room() -> None:
    layer = filled(model_of("Llama", "eager"), GrowingCache()).layers[0]
    other, new = copy.copy(layer), torch.randn(3, 2, 1, layer.keys.shape[-1])
    with torch.no_grad():
        keys = layer.update(new, new)[0]
        other.update(-new, -new)
    assert torch.equal(keys[..., -1:, :], new)


def test_a_selection_of_texts_has_a_room_of_its_own() -> None:
    model = model_of("Llama", "eager")
    cache = filled(model, GrowingCache())
    first = token(model, copy.deepcopy(cache), 5)
    cache.batch_select_indices(torch.tensor([2, 1, 0]))
    torch.testing.assert_close(token(model, cache, 5), first.flip(0))


def test_other_tokens_are_never_cast_or_repeated() -> None:
    layer = filled(model_of("Llama", "eager"), GrowingCache()).layers[0]
    new = torch.randn(3, 2, 1, layer.keys.shape[-1], dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(layer.update(new, new)[0][..., -1:, :], new)
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            layer.update(new[:1], new[:1])


@pytest.mark.parametrize("family", TRANSLATORS)
def test_translators_take_one(family: str) -> None:
    model = model_of(family)
    cache = transformers.EncoderDecoderCache(GrowingCache(), GrowingCache())
    found = [model.generate(texts(), max_new_tokens=9, **more) for more in ({}, {"past_key_values": cache})]
    assert torch.equal(*found)


def test_a_wrong_configuration_is_named() -> None:
    with pytest.raises(TypeError, match=r"^config: expected a configuration of transformers, got int$"):
        GrowingCache(3)  # type: ignore[arg-type]


def test_gradients_are_those_of_the_cache_of_transformers() -> None:
    found = []
    for kind in (GrowingCache, transformers.DynamicCache):
        model, cache = model_of("Llama", "eager"), kind()
        loss = sum(model(part, **{CACHE: cache}).logits.square().mean() for part in texts().split(6, 1))
        loss.backward()
        found.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *found))


def test_a_cache_of_inference_mode_can_grow_outside_of_it() -> None:
    model, cache = model_of("Llama", "eager"), GrowingCache()
    with torch.inference_mode():
        model(texts(), **{CACHE: cache})
    theirs = filled(model, transformers.DynamicCache())
    assert torch.equal(token(model, cache, 3), token(model, theirs, 3))
