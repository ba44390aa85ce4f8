"""`Sampler`: the same tokens and log-probabilities for a request at any place in any batch."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.integrate.models import FAMILIES, model_of, texts  # noqa: E402 after the skip

import softargmax  # noqa: E402
from softargmax.integrate import Sampler  # noqa: E402

FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 7, "order": "joint", "min_p": 0.02},
    {"typical_p": 0.8},
    {"epsilon": 0.005},
    {"eta": 0.01},
]
AS_PROCESSOR = {"do_sample": True, "top_k": 0}


@pytest.mark.parametrize("filters", FILTERS, ids=lambda x: "_".join(x) or "none")
def test_rows_have_the_same_bits_in_any_batch(filters: dict[str, Any]) -> None:
    scores = 3 * torch.randn(6, 500, generator=torch.Generator().manual_seed(1))
    seeds, tokens = [5, 0, 2**43 - 1, 7, 7, 123456789], torch.zeros(6, 4, dtype=torch.long)
    together = Sampler(seeds, **filters)
    drawn = [together(tokens, scores).argmax(-1), together(torch.zeros(6, 5, dtype=torch.long), scores).argmax(-1)]
    for r in range(6):
        alone = Sampler(seeds[r], **filters)
        for step in range(2):
            got = alone(torch.zeros(1, 9 + step, dtype=torch.long), scores[r : r + 1])
            assert got.argmax(-1) == drawn[step][r]
            assert got.isinf().sum() == 499
        assert torch.equal(alone.logprobs[0], together.logprobs[r])
    mixed = Sampler(seeds[::-1], **filters)
    assert torch.equal(mixed(tokens, scores.flip(0)).argmax(-1), drawn[0].flip(0))


PER_REQUEST = {"temperature": torch.tensor([0.7, 1.3]), "top_p": torch.tensor([0.5, 0.9])}


@pytest.mark.parametrize("filters", [*FILTERS, PER_REQUEST], ids=lambda x: "_".join(x) or "none")
def test_draws_are_those_of_categorical(filters: dict[str, Any]) -> None:
    scores = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    sampler = Sampler([3, 4], **filters)
    sampler(torch.zeros(2, 4, dtype=torch.long), scores)
    got = sampler(torch.zeros(2, 5, dtype=torch.long), scores).argmax(-1)
    stream = torch.tensor([3, 4]) * 2**20 + 1
    wanted = softargmax.categorical_with_logprob(scores, seed=0, stream=stream, **filters)
    assert torch.equal(got, wanted.index)
    assert torch.equal(sampler.logprobs[:, 1], wanted.logprob)


@pytest.mark.parametrize("family", [name for name in ("Llama", "Gemma2", "T5") if name in FAMILIES])
def test_a_request_has_the_same_tokens_alone_and_in_a_padded_batch(family: str) -> None:
    model = model_of(family, "eager")
    prompts = [texts(1, n)[0] for n in (5, 9, 12)]
    width = max(map(len, prompts))
    batch = torch.stack([torch.nn.functional.pad(p, (width - len(p), 0)) for p in prompts])
    seen = torch.stack([torch.arange(width) >= width - len(p) for p in prompts]).long()
    options = {"max_new_tokens": 10, "min_new_tokens": 10}
    sampler = Sampler([1, 2, 3], top_p=0.95)
    together = model.generate(batch, attention_mask=seen, custom_generate=sampler.generate, **options)[:, -10:]
    for r, prompt in enumerate(prompts):
        alone = Sampler(r + 1, top_p=0.95)
        mask = torch.ones(1, len(prompt), dtype=torch.long)
        tokens = model.generate(prompt[None], attention_mask=mask, logits_processor=[alone], **AS_PROCESSOR, **options)[
            :, -10:
        ]
        assert torch.equal(tokens[0], together[r])
        torch.testing.assert_close(alone.logprobs[0], sampler.logprobs[r], rtol=1e-4, atol=1e-5)


def test_a_draft_model_changes_no_token() -> None:
    model, draft = model_of("Llama", "eager"), model_of("Llama", "eager", num_hidden_layers=1)
    calls = []
    draft.register_forward_hook(lambda *_: calls.append(1))
    options = AS_PROCESSOR | {"max_new_tokens": 20, "attention_mask": torch.ones(1, 8, dtype=torch.long)}
    plain, drafted = Sampler(9, temperature=0.8), Sampler(9, temperature=0.8)
    a = model.generate(texts(1, 8), logits_processor=[plain], **options)
    b = model.generate(texts(1, 8), logits_processor=[drafted], assistant_model=draft, **options)
    assert calls
    assert torch.equal(a, b)
    torch.testing.assert_close(plain.logprobs, drafted.logprobs[:, :20], rtol=1e-4, atol=1e-5)


def test_a_sampler_may_be_used_again_and_seeds_may_be_arrays() -> None:
    model = model_of("Llama", "eager")
    given = {"attention_mask": torch.ones(2, 8, dtype=torch.long), "min_new_tokens": 6}
    sampler = Sampler(np.array([1, 2]))
    assert Sampler(torch.tensor(5)).seeds == [5]
    first = model.generate(texts(2, 8), custom_generate=sampler.generate, max_new_tokens=12, **given)
    model.generate(texts(2, 9)[:, 1:], custom_generate=sampler.generate, max_new_tokens=9, **given)
    again = model.generate(texts(2, 8), custom_generate=sampler.generate, max_new_tokens=6, **given)
    assert torch.equal(first[:, :14], again)
    assert sampler.logprobs.shape == (2, 6)


def test_custom_generate_needs_no_other_options_and_keeps_processors() -> None:
    model = model_of("Llama", "eager")
    given = {"attention_mask": torch.ones(2, 8, dtype=torch.long), "max_new_tokens": 12}
    a = model.generate(texts(2, 8), custom_generate=Sampler([1, 2]).generate, **given)
    b = model.generate(texts(2, 8), custom_generate=Sampler([1, 2]).generate, do_sample=True, top_k=1, **given)
    assert torch.equal(a, b)
    banned = [[int(a[0, 8])], [int(a[1, 8])]]
    c = model.generate(texts(2, 8), custom_generate=Sampler([1, 2]).generate, bad_words_ids=banned, **given)
    assert not torch.isin(c[:, 8:], torch.tensor(banned)).any()


@pytest.mark.parametrize(
    ("seeds", "filters", "message"),
    [
        ([1.5], {}, "seeds: expected integers, got float"),
        ([True], {}, "seeds: expected integers, got bool"),
        (None, {}, "seeds: expected integers, got NoneType"),
        (np.array([1.5]), {}, "seeds: expected integers, got float"),
        (torch.tensor([True]), {}, "seeds: expected integers, got bool"),
        (np.ones((1, 1), int), {}, "seeds: expected integers, got list"),
        ("12", {}, "seeds: expected integers, got str"),
        ([-1], {}, "seeds: expected integers from 0 to 2^43 - 1, got -1"),
        (2**43, {}, f"seeds: expected integers from 0 to 2^43 - 1, got {2**43}"),
        ([1], {"topp": 0.9}, "Sampler() got an unknown argument 'topp'; it takes seeds, epsilon, eta, min_p, order, "),
    ],
)
def test_wrong_arguments_are_refused(seeds: Any, filters: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message)}"):
        Sampler(seeds, **filters)


def test_wrong_calls_are_refused() -> None:
    tokens, scores = torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 5)
    with pytest.raises(ValueError, match=r"^seeds: expected 2 seeds, one per request, got 1$"):
        Sampler(1)(tokens, scores)
    sampler = Sampler([1, 2])
    sampler(tokens, scores)
    for other, step in ((tokens[:, 1:], -1), (torch.zeros(2, 6, dtype=torch.long), 2)):
        with pytest.raises(
            ValueError, match=rf"^Sampler: expected one call of generate, got step {step} after 1 steps; make a"
        ):
            sampler(other, scores)
    with pytest.raises(ValueError, match=r"^logprobs: expected a call of generate with this sampler before$"):
        _ = Sampler(1).logprobs
