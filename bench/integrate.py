"""Time models of Hugging Face transformers with our attention, against eager attention and torch's (SDPA).

    python -m bench.integrate               all cases, about 11 minutes on 2 cores; writes bench/results/integrate.json
    python -m bench.integrate Llama step    only the cases whose names contain these words; writes nothing

The models have random weights, 2 layers of width 512, and heads of width 64: 8 of queries and 2 of keys. The windows of
Gemma-2 and gpt-oss have 128 tokens, and every second layer has one. transformers has no SDPA for soft-caps (Gemma-2)
and sinks (gpt-oss). A prompt computes the logits of its last token. A decoded token sees all keys of the cache, which
are random numbers. It is a `GrowingCache` with our attention, and transformers' `DynamicCache` with theirs. A training
step computes the loss of all tokens and all gradients. For 8192 tokens, the models have 2 heads of queries and 1 of
keys, since eager attention stores several matrices of scores per layer, of 2 GiB each with 8 heads. The exit code is 1
if a promise is missed.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import torch
import transformers
from bench.peak import measured
from bench.promises import Promise, main

from softargmax import integrate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHAPE = {
    "vocab_size": 1000,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 16_384,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = {
    "Llama": {},
    "Gemma2": {"sliding_window": 128, "attn_logit_softcapping": 50.0},
    "GptOss": {"sliding_window": 128, "num_local_experts": 2, "num_experts_per_tok": 1},
}
OURS = "softargmax"
PEERS = {"Llama": ("eager", "sdpa"), "Gemma2": ("eager",), "GptOss": ("eager",)}
CACHES = {OURS: integrate.GrowingCache, "eager": transformers.DynamicCache, "sdpa": transformers.DynamicCache}
PROMPT = {"Llama": {"sdpa": 1.0}, "Gemma2": {"eager": 5.0}, "GptOss": {"eager": 5.0}}
FEW_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
"""The heads of a training step of 8192 tokens."""
STEP = {"Llama": {"sdpa": 1.0}, "Gemma2": {"eager": 3.5}, "GptOss": {"eager": 3.5}}
PROMISED = 2048
"""The number of tokens for which prompts and training steps have promises."""


def tokens_of(length: int) -> torch.Tensor:
    """Return a text of random tokens, none of which is a special one."""
    return torch.randint(3, SHAPE["vocab_size"], (1, length))


def models(family: str, **changes: int) -> dict[str, Any]:
    """Return a model for each implementation of attention, with the same weights. `changes` are those of the shape."""
    found = {}
    for implementation in (OURS, *PEERS[family]):
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**{**SHAPE, **FAMILIES[family], **changes})
        found[implementation] = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=implementation
        )
    return found


def prompt(model: Any, tokens: torch.Tensor) -> Callable[[], object]:
    """Return a call that computes the logits of the last token."""
    model.eval()

    def call() -> object:
        with torch.no_grad():
            return model(tokens, logits_to_keep=1, use_cache=False).logits

    return call


def decode(model: Any, texts: int, keys: int, cache: transformers.DynamicCache) -> Callable[[], object]:
    """Return a call that decodes one token of each text, after `keys` others, with random keys and values."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"  # before 5.24
    model.eval()
    shape = texts, model.config.num_key_value_heads, keys, model.config.head_dim
    with torch.no_grad():
        for layer in range(model.config.num_hidden_layers):
            cache.update(torch.randn(shape), torch.randn(shape), layer)
    tokens = torch.randint(3, 1000, (texts, 1))

    def call() -> object:
        with torch.no_grad():
            logits = model(tokens, **{name: cache}).logits
        cache.crop(-1)  # forgets the token
        return logits

    return call


def step(model: Any, tokens: torch.Tensor) -> Callable[[], object]:
    """Return a call that computes the loss and all gradients."""
    model.train()

    def call() -> object:
        model.zero_grad()
        return model(tokens, labels=tokens, use_cache=False).loss.backward()

    return call


def promises() -> Iterator[Promise]:
    """Yield every case."""
    integrate.register(OURS)
    torch.manual_seed(0)
    for family in FAMILIES:
        made = models(family)
        for length in (512, 2048, 8192):
            tokens = tokens_of(length)
            sides = {name: prompt(model, tokens) for name, model in made.items()}
            kept = PROMPT[family] if length == PROMISED else {}
            yield Promise(f"{family}, prompt of {length}", sides, kept, rounds=9 if length < 8192 else 3)
        for texts, keys in ((1, 512), (1, 2048), (1, 8192), (4, 8192)):
            # Without the configuration, no layer of a cache forgets keys outside its window.
            sides = {name: decode(model, texts, keys, CACHES[name]()) for name, model in made.items()}
            if "sdpa" in made:
                sides["sdpa with GrowingCache"] = decode(made["sdpa"], texts, keys, integrate.GrowingCache())
            kept = {"sdpa": 1.3} if family == "Llama" and keys == 8192 else {}
            name = "a token" if texts == 1 else f"a token of {texts} texts"
            yield Promise(f"{family}, {name} after {keys}", sides, kept)
        for length in (512, 2048, 8192):
            tokens = tokens_of(length)
            trained = made if length < 8192 else models(family, **FEW_HEADS)
            sides = {name: step(model, tokens) for name, model in trained.items()}
            kept = STEP[family] if length == PROMISED else {}
            yield Promise(f"{family}, training step of {length}", sides, kept, rounds=5 if length < 8192 else 3)


MEASURE = """
import json, sys
from bench.integrate import MEMORY, models
from bench.peak import peak_of
from softargmax import integrate
family, implementation, case = sys.argv[1:]
integrate.register("softargmax")
model = models(family)[implementation]
MEMORY[case](model, implementation, small=True)()
before, peak, _ = peak_of(MEMORY[case](model, implementation, small=False))
print(json.dumps({"peak": peak, "beyond": peak - before}))
"""


MEMORY: dict[str, Callable[..., Callable[[], object]]] = {
    f"prompt of {PROMISED}": lambda model, _, small: prompt(model, tokens_of(16 if small else PROMISED)),
    "a token of 4 texts after 8192": lambda model, implementation, small: decode(
        model, 4, 16 if small else 8192, CACHES[implementation]()
    ),
    f"training step of {PROMISED}": lambda model, _, small: step(model, tokens_of(16 if small else PROMISED)),
}
"""Calls whose memory is measured. A small one comes first, for what only a first call allocates."""


def memory() -> tuple[dict[str, Any], bool]:
    """Measure the memory of MEMORY, each call in a process of its own, for each implementation.

    Eager attention stores the scores of each layer. Ours needs less than eager's memory by at least one layer's scores.
    """
    found, kept = [], True
    for family in FAMILIES:
        for case in MEMORY:
            rows = 4 * 8192 if "token" in case else PROMISED**2
            scores, beyond = 4 * SHAPE["num_attention_heads"] * rows, {}
            for implementation in (OURS, *PEERS[family]):
                record = measured(MEASURE, family, implementation, case)
                beyond[implementation] = record["beyond"]
                name = f"{family}, {case}, {implementation}"
                print(f"{name}: {record['beyond'] >> 20} MiB", flush=True)
                found.append({"name": name, "scores": scores * SHAPE["num_hidden_layers"], **record})
            kept = kept and beyond[OURS] <= beyond["eager"] - scores
    return {"memory": found}, kept


if __name__ == "__main__":
    sys.exit(main(__doc__, promises(), "integrate", memory))
