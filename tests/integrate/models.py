"""Small models of many families, built from their configurations, with random weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers
from packaging.version import Version

SIZES = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
GROUPS = {"num_key_value_heads": 2}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
WINDOW = {"sliding_window": 5}
ENCODER_DECODER = {
    "vocab_size": 101,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}

DECODERS: dict[str, dict[str, Any]] = {
    "Llama": {**SIZES, **GROUPS},
    "Mistral": {**SIZES, **GROUPS, **WINDOW},
    "Qwen2": {**SIZES, **GROUPS, **WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    "Qwen2Moe": {
        **SIZES,
        **GROUPS,
        **EXPERTS,
        **WINDOW,
        "use_sliding_window": True,
        "max_window_layers": 1,
        "shared_expert_intermediate_size": 32,
    },
    "Qwen3": {**SIZES, **GROUPS, "head_dim": 16},
    "Gemma2": {**SIZES, **GROUPS, **WINDOW, "head_dim": 16, "attn_logit_softcapping": 5.0},
    "Gemma3": {
        **SIZES,
        **GROUPS,
        **WINDOW,
        "head_dim": 16,
        "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
    },
    "GptOss": {**SIZES, **GROUPS, **EXPERTS, **WINDOW, "head_dim": 16},
    "Mixtral": {**SIZES, **GROUPS, **EXPERTS},
    "Phi3": {**SIZES, **GROUPS, **WINDOW},
    "GPT2": {"vocab_size": 101, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64},
    "Cohere": {**SIZES, **GROUPS},
}
"""Causal language models: the start of the name of each class, and the configuration."""

ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": SIZES,
    "ModernBert": {**SIZES, "local_attention": 6, "global_attn_every_n_layers": 2},
}
"""Masked language models."""
TRANSLATORS: dict[str, dict[str, Any]] = {
    "T5": {"vocab_size": 101, "d_model": 48, "d_kv": 12, "d_ff": 64, "num_layers": 2, "num_heads": 4},
    "Bart": ENCODER_DECODER,
}
"""Models with an encoder and a decoder."""
OLD = Version(transformers.__version__) < Version("5.4")
"""True if ModernBERT and T5 take no other attention, and the compiler takes no experts in float32."""
CACHE = "cache" if Version(transformers.__version__) >= Version("5.24") else "past_key_values"
"""The name of a model's argument for its cache."""
if OLD:
    del ENCODERS["ModernBert"], TRANSLATORS["T5"]

KINDS = {
    **dict.fromkeys(DECODERS, "ForCausalLM"),
    "GPT2": "LMHeadModel",
    **dict.fromkeys(ENCODERS, "ForMaskedLM"),
    **dict.fromkeys(TRANSLATORS, "ForConditionalGeneration"),
}
FAMILIES = {**DECODERS, **ENCODERS, **TRANSLATORS}
NO_PADDING = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
NO_DROPOUT = ("attention_dropout", "dropout", "dropout_rate", "attention_probs_dropout_prob", "hidden_dropout_prob")


def config_of(family: str, **changes: Any) -> Any:
    """Return the configuration of a small model, without dropout and without a token that ends a text."""
    kind = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, kind)(**{**FAMILIES[family], **NO_PADDING, **changes})
    for name in (*NO_DROPOUT, "attn_pdrop", "resid_pdrop", "embd_pdrop"):
        if hasattr(config, name) and name not in changes:
            setattr(config, name, 0.0)
    config.decoder_start_token_id = 0
    return config


def model_of(family: str, implementation: str = "softargmax", **changes: Any) -> Any:
    """Return a small model with random weights. Biases and sinks are random, too, so that an error in them shows."""
    torch.manual_seed(7)
    made = getattr(transformers, family + KINDS[family])._from_config(
        config_of(family, **changes), attn_implementation=implementation
    )
    for name, weight in made.named_parameters():
        if name.endswith(("sinks", "bias")) and weight.ndim:
            torch.nn.init.normal_(weight, std=0.7 if name.endswith("sinks") else 0.1)
    return made.eval()


def pair(family: str, **changes: Any) -> tuple[Any, Any]:
    """Return a model with our attention, and a copy with eager attention."""
    ours = model_of(family, **changes)
    theirs = copy.deepcopy(ours)
    theirs.set_attn_implementation("eager")
    return ours, theirs


def texts(batch: int = 3, length: int = 17) -> torch.Tensor:
    """Return random tokens, none of which is the token for padding."""
    return torch.randint(2, 101, (batch, length), generator=torch.Generator().manual_seed(3))


def padding(side: str, batch: int = 3, length: int = 17) -> torch.Tensor:
    """Return the mask of a batch whose entries have 0, 3, 6, ... tokens of padding on one side."""
    places, missing = torch.arange(length), 3 * torch.arange(batch)[:, None]
    return (places >= missing if side == "left" else places < length - missing).long()


def inputs_of(family: str, side: str | None) -> dict[str, torch.Tensor]:
    """Return the arguments of a model's call: tokens, a mask, and what else the family needs."""
    given = {"input_ids": texts()}
    if side:
        given["attention_mask"] = padding(side)
        given["input_ids"] = torch.where(given["attention_mask"] > 0, given["input_ids"], 0)
    if family in TRANSLATORS:
        given["decoder_input_ids"] = texts(3, 9).flip(0)
    elif side == "left" and family in DECODERS:
        given["position_ids"] = (given["attention_mask"].cumsum(-1) - 1).clamp_min(0)
    return given


def shown(family: str, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mask of the positions whose logits count: those of tokens."""
    rows = given.get("decoder_input_ids", given["input_ids"])
    if family in TRANSLATORS or "attention_mask" not in given:
        return torch.ones_like(rows, dtype=torch.bool)
    return given["attention_mask"].bool()
