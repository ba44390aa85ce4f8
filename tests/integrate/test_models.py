"""Models of many families with our attention: logits, gradients, greedy tokens, masks and traps."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.integrate.models import (  # noqa: E402 after the skip
    CACHE,
    DECODERS,
    FAMILIES,
    OLD,
    TRANSLATORS,
    inputs_of,
    model_of,
    padding,
    pair,
    shown,
    texts,
)

from softargmax import integrate  # noqa: E402
from softargmax.integrate import attention as attention_of_models  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    integrate.register()
    yield
    integrate.unregister()


def difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference, relative to the largest magnitude."""
    return float(((ours - theirs).abs().max() / theirs.abs().max()).detach())


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_are_those_of_eager_attention(family: str, side: str | None) -> None:
    ours, theirs = pair(family)
    given = inputs_of(family, side)
    rows = shown(family, given)
    a, b = (model(**given).logits[rows] for model in (ours, theirs))
    assert difference(a, b) < 1e-6
    weights = torch.randn(a.shape, generator=torch.Generator().manual_seed(5))
    for logits in (a, b):
        (logits * weights).sum().backward()
    largest = max(float(p.grad.abs().max()) for p in theirs.parameters() if p.grad is not None)
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            assert float((p.grad - q.grad).abs().max()) < 2e-6 * largest, name


# With padding on the right, a window may have no token. Then eager attention averages all keys.
WITHOUT_WINDOW = [family for family, config in FAMILIES.items() if "sliding_window" not in config]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(
    ("family", "side"),
    [
        (family, side)
        for family in (*DECODERS, *TRANSLATORS)
        for side in ("left", "right")
        if side == "left" or family in WITHOUT_WINDOW
    ],
)
def test_greedy_tokens_are_those_of_eager_attention(family: str, side: str, cache: str) -> None:
    ours, theirs = pair(family)
    given = inputs_of(family, side)
    given.pop("position_ids", None)
    given.pop("decoder_input_ids", None)
    options = {"do_sample": False, "max_new_tokens": 12, "cache_implementation": cache, "disable_compile": True}
    a, b = (model.generate(**given, **options) for model in (ours, theirs))
    assert torch.equal(a, b)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Gemma2", "Qwen2Moe"])
def test_packed_texts_do_not_see_each_other(family: str) -> None:
    ours, theirs = pair(family)
    tokens, places = texts(1, 16), torch.cat([torch.arange(7), torch.arange(9)])[None]
    packed = ours(tokens, position_ids=places, use_cache=False).logits
    assert difference(packed, theirs(tokens, position_ids=places, use_cache=False).logits) < 1e-6
    alone = [ours(part, use_cache=False).logits for part in tokens.split([7, 9], 1)]
    assert difference(packed, torch.cat(alone, 1)) < 1e-6


@pytest.mark.parametrize("family", ["Llama", "Mistral", *([] if OLD else ["T5"])])
def test_beam_search_finds_the_same_texts(family: str) -> None:
    ours, theirs = pair(family)
    given = {"input_ids": texts(2, 8), "num_beams": 3, "max_new_tokens": 8, "do_sample": False}
    assert torch.equal(ours.generate(**given), theirs.generate(**given))


@pytest.mark.parametrize("family", ["Llama", "Gemma2", "Bert", *([] if OLD else ["GptOss"])])
def test_compiled_models_take_padding(family: str) -> None:
    ours, theirs = pair(family)
    given = inputs_of(family, "right")
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    rows = shown(family, given)
    assert difference(compiled(**given).logits[rows], theirs(**given).logits[rows]) < 1e-6


COMPILED_FIRST = """
import torch
from tests.integrate.models import pair, texts
from softargmax import integrate
integrate.register()
ours, theirs = pair("Llama")
compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
torch.testing.assert_close(compiled(texts()).logits, theirs(texts()).logits)
"""


@pytest.mark.slow
def test_a_model_may_be_compiled_before_its_first_call() -> None:
    """In a process of its own, because any call of attention registers it with the compiler."""
    subprocess.run([sys.executable, "-c", COMPILED_FIRST], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("side", [None, "right"])
@pytest.mark.parametrize("family", ["Llama", "Gemma2", "Bert", *([] if OLD else ["GptOss"])])
def test_exported_models_take_texts_of_any_length(family: str, side: str | None) -> None:
    ours, theirs = pair(family)
    given = inputs_of(family, side) | ({"use_cache": False} if family in DECODERS else {})
    length = torch.export.Dim("length", min=2, max=60)
    shapes = {name: {1: length} if torch.is_tensor(x) else None for name, x in given.items()}
    exported = torch.export.export(ours, (), given, dynamic_shapes=shapes).module()
    for stop in (17, 11):
        given = {name: x[:, :stop] if torch.is_tensor(x) else x for name, x in given.items()}
        rows = shown(family, given)
        assert difference(exported(**given).logits[rows], theirs(**given).logits[rows]) < 1e-6


@pytest.mark.parametrize("text", ["softargmax", "eager"])
@pytest.mark.parametrize("vision", ["softargmax", "eager"])
def test_parts_of_a_model_of_images_have_their_own_attention(text: str, vision: str) -> None:
    images = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8
    )
    config = transformers.LlavaConfig(
        vision_config=images, text_config=model_of("Llama").config, image_token_id=100, vision_feature_layer=-1
    )
    torch.manual_seed(0)
    chosen = {"text_config": text, "vision_config": vision}
    model = transformers.LlavaForConditionalGeneration._from_config(config, attn_implementation=chosen).eval()
    tokens = texts(2, 12).clamp(max=99)
    tokens[:, 2:6] = 100  # one image of 2 x 2 patches
    given = {"input_ids": tokens, "pixel_values": torch.randn(2, 3, 16, 16)}
    ours = model(**given).logits
    assert (model.config.text_config._attn_implementation, model.config.vision_config._attn_implementation) == (
        text, vision,
    )  # fmt: skip
    model.set_attn_implementation("eager")
    theirs = model(**given).logits
    assert difference(ours, theirs) < 1e-6
    model.set_attn_implementation(chosen)
    assert torch.equal(model(**given).logits, ours)


def test_half_precision_is_as_exact_as_eager_attention() -> None:
    ours, theirs = pair("Llama")
    exact = theirs.double()(texts()).logits
    errors = []
    for model in (ours, pair("Llama")[1]):
        with torch.autocast("cpu", torch.bfloat16):
            errors.append(difference(model.float()(texts()).logits.double(), exact))
    assert errors[0] < 1.5 * errors[1]


def test_checkpointing_keeps_the_gradients() -> None:
    ours, theirs = pair("Gemma2")
    getattr(ours, "activation_checkpointing_enable", ours.gradient_checkpointing_enable)()  # the new and the old name
    for model in (ours.train(), theirs.train()):
        model(texts(), labels=texts()).loss.backward()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=2e-6)


def test_dropout_is_that_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    factors, attention = [], attention_of_models.attention
    monkeypatch.setattr(
        attention_of_models, "attention", lambda *qkv, **o: (factors.append(o["dropout"]), attention(*qkv, **o))[1]
    )
    model = model_of("Llama", attention_dropout=0.5).train()
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(model(texts()).logits)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert {*factors} == {0.5}
    factors.clear()
    model.eval()(texts())
    assert {*factors} == {0.0}


def test_windows_of_models_without_a_source_become_masks() -> None:
    """The class of configurations is from a notebook, whose module has no file."""
    config = type("Config", (transformers.MistralConfig,), {"__module__": "__main__"})
    made = config(**FAMILIES["Mistral"], attn_implementation="softargmax")
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(made).eval()
    assert not attention_of_models.passes_window(config)
    ours = model(texts()).logits
    model.set_attn_implementation("eager")
    assert difference(ours, model(texts()).logits) < 1e-6


@pytest.mark.skipif(OLD, reason="its position embeddings do not run without memory")
def test_attention_of_tensors_without_memory_has_shapes() -> None:
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(model_of("Llama").config)
        model.set_attn_implementation("softargmax")
        assert model(torch.zeros(2, 7, dtype=torch.long)).logits.shape == (2, 7, 101)


def test_a_mask_of_the_user_replaces_causality() -> None:
    ours, theirs = pair("Llama")
    bias = torch.randn(3, 1, 17, 17, generator=torch.Generator().manual_seed(2))
    seen = torch.rand(3, 1, 17, 17, generator=torch.Generator().manual_seed(4)) < 0.7
    seen |= torch.eye(17, dtype=torch.bool)
    for mask in (bias, torch.where(seen, 0.0, -torch.inf)):
        a, b = (model(texts(), attention_mask=mask).logits for model in (ours, theirs))
        assert difference(a, b) < 1e-6
    theirs.set_attn_implementation("sdpa")
    assert difference(*(model(texts(), attention_mask=seen).logits for model in (ours, theirs))) < 1e-6


@pytest.mark.skipif(OLD, reason="T5 takes no other attention")
def test_a_mask_of_the_user_is_added_to_position_biases() -> None:
    ours, theirs = pair("T5")
    bias = torch.randn(3, 1, 17, 17, generator=torch.Generator().manual_seed(2))
    a, b = (model.encoder(texts(), attention_mask=bias).last_hidden_state for model in (ours, theirs))
    assert difference(a, b) < 1e-6


@pytest.mark.parametrize("family", ["Mistral", "Gemma2", "GptOss"])
def test_windows_hold_beside_padding_in_a_cache_of_all_keys(family: str) -> None:
    ours, theirs = pair(family)
    found = []
    for model in (ours, theirs):
        # Without the configuration, no layer of the cache forgets keys outside its window.
        given = {CACHE: transformers.DynamicCache()}
        seen = torch.ones(3, 18, dtype=torch.long)
        seen[:, :17] = padding("left")
        prompt = model(texts(), attention_mask=seen[:, :17], **given).logits[padding("left").bool()]
        token = model(texts()[:, :1], attention_mask=seen, **given).logits[:, 0]
        found.append(torch.cat([prompt, token]))
    assert difference(*found) < 1e-6


def test_chunks_are_no_windows() -> None:
    """A configuration with a window and chunks of the same size: the mask of a chunk has a row per query."""
    from transformers.masking_utils import chunked_causal_mask_function, sdpa_mask

    from softargmax.integrate.attention import mask_of

    config = transformers.MistralConfig(sliding_window=4, attention_chunk_size=4)
    model_of("Mistral")  # its source is loaded
    given = {"mask_function": chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.long)), "local_size": 4}
    given |= {"batch_size": 1, "kv_length": 9}
    given |= (
        {"q_length": 9}
        if "q_length" in inspect.signature(sdpa_mask).parameters
        else {"cache_position": torch.arange(9)}
    )
    assert torch.equal(mask_of(config=config, **given), sdpa_mask(allow_is_causal_skip=False, **given))


@pytest.mark.skipif(OLD, reason="Bloom makes its mask on its own")
def test_models_without_support_are_refused() -> None:
    config = transformers.BloomConfig(vocab_size=101, hidden_size=16, n_layer=1, n_head=2)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="softargmax")
    with pytest.raises(
        ValueError, match=r"^attn_implementation: the models of bloom do not support other impl.*eager\"$"
    ):
        model(texts())


def test_a_mask_of_bool_without_queries_says_all() -> None:
    ours, theirs = pair("Llama")
    theirs.set_attn_implementation("sdpa")
    seen = padding("right").bool()[:, None, None, :]
    assert difference(*(model(texts(), attention_mask=seen).logits for model in (ours, theirs))) < 1e-6


def test_padding_of_a_decoder_keeps_causality_beside_is_causal_of_the_call() -> None:
    """Moonshine passes is_causal=False beside a mask."""
    config = transformers.MoonshineConfig(
        vocab_size=101, hidden_size=32, intermediate_size=48, encoder_num_hidden_layers=1, decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4, decoder_num_attention_heads=4, pad_token_id=0, decoder_start_token_id=1,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.MoonshineForConditionalGeneration._from_config(config, attn_implementation="softargmax").eval()
    given = {"input_values": torch.randn(3, 4000), "decoder_input_ids": texts()}
    given["decoder_attention_mask"] = padding("right")
    ours = model(**given).logits
    model.set_attn_implementation("eager")
    rows = padding("right").bool()
    assert difference(ours[rows], model(**given).logits[rows]) < 1e-6


def test_a_decoder_may_be_bidirectional() -> None:
    ours, theirs = pair("Llama", is_causal=False)
    for mask in (None, padding("left")):
        a, b = (model(texts(), attention_mask=mask).logits[-1, 6:] for model in (ours, theirs))
        assert difference(a, b) < 1e-6


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Gemma2", "GptOss"])
def test_no_mask_has_a_row_per_query(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def watched(**options: Any) -> Any:
        mask = attention_of_models.mask_of(**options)
        made.append(None if mask is None else tuple(mask.shape))
        return mask

    integrate.register("watched")
    try:
        with monkeypatch.context() as patch:
            patch.setitem(transformers.AttentionMaskInterface._global_mapping, "watched", watched)
            model = model_of(family, "watched")
            model(texts())
            assert {*made} == {None}
            made.clear()
            model(texts(), attention_mask=padding("right"))
            assert {*made} == {(3, 1, 1, 17)}
    finally:
        integrate.unregister("watched")


@pytest.mark.parametrize("name", ["cache", "indices", "block_indices", "sinks"])
def test_what_attention_cannot_express_is_refused(name: str) -> None:
    from softargmax.integrate.attention import attend

    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match=rf'^{name}: Module needs .*; use attn_implementation="eager"$'):
        attend(torch.nn.Module(), q, q, q, None, **{name: torch.ones(1)})


def test_probabilities_are_refused() -> None:
    model = model_of("Llama")
    with pytest.raises(ValueError, match=r"^output_attentions: probabilities are never stored"):
        model(texts(), output_attentions=True)
    with pytest.raises(ValueError, match="output_attentions"):
        model.config.output_attentions = True
