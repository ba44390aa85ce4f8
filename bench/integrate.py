"""Time models of Hugging Face transformers with our attention, against eager attention and torch's (SDPA).

    python -m bench.integrate               all cases, about 9 minutes on 2 cores; writes bench/results/integrate.json
    python -m bench.integrate Llama step    only the cases whose names contain these words; writes nothing

The models have random weights, 2 layers of width 512, and heads of width 64: 8 of queries and 2 of keys. The windows of
Gemma-2 and gpt-oss have 128 tokens, and every second layer has one. transformers has no SDPA for soft-caps (Gemma-2)
and sinks (gpt-oss). A prompt computes the logits of its last token. A decoded token sees all keys of the cache. It is a
`GrowingCache` with our attention, and transformers' `DynamicCache` with theirs. A training step computes the loss of
all tokens and all gradients. The exit code is 1 if a promise is missed.
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
STEP = {"Llama": {"sdpa": 1.0}, "Gemma2": {"eager": 3.5}, "GptOss": {"eager": 3.5}}
PROMISED = 2048
"""The number of tokens for which prompts and training steps have promises."""


def models(family: str) -> dict[str, Any]:
    """Return a model for each implementation of attention, with the same weights."""
    found = {}
    for implementation in (OURS, *PEERS[family]):
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**SHAPE, **FAMILIES[family])
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


def decode(model: Any, texts: int, keys: int, cache: Any) -> Callable[[], object]:
    """Return a call that decodes one token of each text, after `keys` others that the first call puts in the cache."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"  # before 5.24
    tokens = torch.randint(3, 1000, (texts, keys))
    model.eval()

    def call() -> object:
        with torch.no_grad():
            for part in () if cache.get_seq_length() else tokens.split(2048, 1):
                model(part, **{name: cache}, logits_to_keep=1)
            logits = model(tokens[:, :1], **{name: cache}).logits
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
            tokens = torch.randint(3, 1000, (1, length))
            sides = {name: prompt(model, tokens) for name, model in made.items()}
            kept = PROMPT[family] if length == PROMISED else {}
            yield Promise(f"{family}, prompt of {length}", sides, kept, rounds=9 if length < 8192 else 3)
        for texts, keys in ((1, 512), (1, 8192), (4, 8192)):
            # Without the configuration, no layer of a cache forgets keys outside its window.
            sides = {name: decode(model, texts, keys, CACHES[name]()) for name, model in made.items()}
            if "sdpa" in made:
                sides["sdpa with GrowingCache"] = decode(made["sdpa"], texts, keys, integrate.GrowingCache())
            kept = {"sdpa": 1.3} if family == "Llama" and keys == 8192 else {}
            name = "a token" if texts == 1 else f"a token of {texts} texts"
            yield Promise(f"{family}, {name} after {keys}", sides, kept)
        for length in (512, 2048):
            tokens = torch.randint(3, 1000, (1, length))
            sides = {name: step(model, tokens) for name, model in made.items()}
            yield Promise(
                f"{family}, training step of {length}", sides, STEP[family] if length == PROMISED else {}, rounds=5
            )


MEASURE = """
import json, sys, torch
from bench.integrate import models, step
from bench.peak import peak_of
from softargmax import integrate
family, implementation, length = sys.argv[1:]
integrate.register("softargmax")
model = models(family)[implementation]
call = step(model, torch.randint(3, 1000, (1, int(length))))
step(model, torch.randint(3, 1000, (1, 16)))()
before, peak, _ = peak_of(call)
print(json.dumps({"peak": peak, "beyond": peak - before}))
"""


def memory() -> tuple[dict[str, Any], bool]:
    """Measure the memory of a training step in a process of its own, for each implementation.

    Eager attention stores the scores of each layer. Ours needs less than eager's memory by at least one layer's scores.
    """
    found, kept = [], True
    scores = 4 * SHAPE["num_attention_heads"] * PROMISED**2
    for family in FAMILIES:
        beyond = {}
        for implementation in (OURS, *PEERS[family]):
            record = measured(MEASURE, family, implementation, PROMISED)
            beyond[implementation] = record["beyond"]
            name = f"{family}, training step of {PROMISED}, {implementation}"
            print(f"{name}: {record['beyond'] >> 20} MiB")
            found.append({"name": name, "scores": scores * SHAPE["num_hidden_layers"], **record})
        kept = kept and beyond[OURS] <= beyond["eager"] - scores
    return {"memory": found}, kept


if __name__ == "__main__":
    sys.exit(main(__doc__, promises(), "integrate", memory))
