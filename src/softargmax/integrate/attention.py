"""The attention function and the mask function that transformers calls, and what each model passes to them.

Causality and windows travel as numbers, and padding as a mask of shape (B, 1, 1, K). Only what these cannot express
becomes a mask of shape (B, 1, L, K): packed sequences, chunks, windows of encoders, static caches.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.masking_utils import causal_mask_function, sdpa_mask
from transformers.utils.import_utils import is_tracing

from softargmax.attend import attention
from softargmax.core.torch_compile import compile_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    Order = float | Tensor | Callable[[torch.nn.Module, Tensor, Tensor], float | Tensor]
    """A number, a tensor, or a function of an attention layer, its queries and its keys that returns one of them."""

compile_whole("softargmax.attend")  # at import, because a model may be compiled before its first call
CAUSAL = torch.uint8
"""The dtype of a mask that only has the padding, in addition to causality and a window. A mask of bool says all."""
REFUSED = {
    "cache": "continuous batching with a paged cache",
    "indices": "attention to a list of keys per query",
    "block_indices": "attention to a list of blocks of keys per query",
    "sinks": "a sink per query",
}
"""Arguments of some models that change the result and that `softargmax.attention` cannot express."""
WITH_WHOLE_MASKS = ("deepseek_v4", "doge")
"""Models that compute with their masks: DeepSeek-V4 appends its compressed keys, and Doge chooses keys."""


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    alpha: Order = 1.0,
    scale: Order | None = None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return the attention of one layer, of shape (B, L, H, Dv), and None in place of the probabilities.

    `alpha` and `scale` are the options of `register`. The other arguments are those that models pass: (B, H, L, D)
    queries, (B, G, K, D) keys, a mask of `mask_of` or of the user, and options under the names of transformers.
    `others` may contain arguments for other implementations, which have no effect here.
    """
    refuse(others, module)
    refuse_without_support(type(module).__module__)
    query, key, value = common_dtype(query, key, value)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    visible, bias = None, position_bias
    if attention_mask is not None:
        causal = attention_mask.dtype == CAUSAL  # every other mask says all
        if attention_mask.dtype in (torch.bool, CAUSAL):
            visible = attention_mask.bool()
        else:  # a mask of the user, to be added to the scores
            bias = attention_mask if bias is None else bias + attention_mask
    out = attention(
        query,
        key,
        value,
        scale=scaling if scale is None else chosen(scale, module, query, key),
        causal=causal,
        window=(sliding_window - 1, 0) if causal and sliding_window else None,
        mask=visible,
        bias=bias,
        softcap=softcap,
        sink=s_aux,
        alpha=chosen(alpha, module, query, key),
        dropout=dropout,
    )
    return out.transpose(-2, -3).contiguous(), None


def refuse(others: dict[str, Any], module: torch.nn.Module) -> None:
    """Raise ValueError if a model passes an argument of REFUSED, or asks for the probabilities."""
    if others.get("output_attentions"):
        raise ValueError(
            'output_attentions: probabilities are never stored; use attn_implementation="eager" to have them returned'
        )
    for name, what in REFUSED.items():
        if others.get(name) is not None:
            raise ValueError(
                f"{name}: {type(module).__name__} needs {what}, which the implementation of softargmax does not have; "
                'use attn_implementation="eager"'
            )


def refuse_without_support(module: str) -> None:
    """Raise ValueError if the models of this module do not pass their attention to other implementations."""
    if not supports(module):
        name = module.rpartition(".")[2].removeprefix("modeling_")
        raise ValueError(
            f"attn_implementation: the models of {name} do not support other implementations of attention; "
            'use attn_implementation="eager"'
        )


def constant(function: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Compute each result once. The compiler takes it as a constant.

    Without the cache, `passes_window` would search the source of the model at every call of the model: 0.05 ms for
    Mistral.
    """
    cached = functools.cache(function)

    @functools.wraps(function)
    def call(argument: Any) -> bool:
        return cached(argument)

    found: Callable[[Any], bool] = torch.compiler.assume_constant_result(call)  # type: ignore[no-untyped-call]
    return found


@constant
def supports(module: str) -> bool:
    """True unless the module has models of transformers and none declares support.

    transformers accepts the name of an implementation for every model. A model without support would receive a mask of
    ours, and use it in its own code.
    """
    found = [x for x in vars(sys.modules[module]).values() if isinstance(x, type)] if module in sys.modules else []
    models = [x for x in found if issubclass(x, PreTrainedModel) and x.__module__ == module]
    return not models or any(x._supports_sdpa or x._supports_attention_backend for x in models)


def modeling_file(config: type) -> str:
    """Return the module of the models that have this class of configurations."""
    return config.__module__.replace("configuration_", "modeling_")


def chosen(option: Order, module: torch.nn.Module, query: Tensor, key: Tensor) -> float | Tensor:
    """Return the value of an option of `register` for this layer."""
    return option(module, query, key) if callable(option) else option


def common_dtype(*vectors: Tensor) -> list[Tensor]:
    """Cast to the dtype of autocast if it is on, and otherwise to the first tensor's dtype, which may be float64."""
    device, dtype = vectors[0].device.type, vectors[0].dtype
    if dtype != torch.float64 and has_autocast(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    return [x if x.dtype == dtype else x.to(dtype) for x in vectors]


@constant
def has_autocast(device: str) -> bool:
    """True if tensors of this kind of device can be cast automatically. To ask torch takes 20 us."""
    return torch.amp.is_autocast_available(device)


def mask_of(
    *,
    batch_size: int,
    kv_length: int,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **others: Any,
) -> Tensor | None:
    """Return the mask for `attend`: None, the padding as (B, 1, 1, K), or all of the mask as (B, 1, L, K).

    None means that causality and window say all. The arguments are those of transformers' mask functions. `kv_offset`
    is the position of the first key. `attention_mask` is (B, K) with True at tokens and False at padding. `local_size`
    is the size of a window or of a chunk.
    """
    config = others.get("config")
    if config is not None:
        refuse_without_support(modeling_file(type(config)))
    length, offset = queries_of(others)
    if allow_is_causal_skip:
        # `attention` places the last query at the last key. In a static cache there may be empty places after it.
        last = not isinstance(offset, Tensor) and offset + length == kv_offset + kv_length
        brief = last and (local_size is None or is_window(local_size, config))
    else:
        brief = allow_is_bidirectional_skip and local_size is None
    if brief and getattr(config, "model_type", None) not in WITH_WHOLE_MASKS:
        padding = padding_of(attention_mask, kv_offset, kv_length)
        if padding is None:
            return None
        mask = padding[:, None, None, :]
        return mask.to(CAUSAL) if allow_is_causal_skip else mask
    return sdpa_mask(
        batch_size=batch_size,
        kv_length=kv_length,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        **others,
    )


def queries_of(given: dict[str, Any]) -> tuple[int, int | Tensor]:
    """Return the number of queries and the position of the first.

    With a static cache, and for tensors without memory, the position may be a tensor.
    """
    positions = given.get("cache_position")  # before transformers 5.4
    if positions is None:
        return given["q_length"], given.get("q_offset", 0)
    return positions.shape[0], positions[0] if is_tracing(positions) or positions.is_meta else int(positions[0])


def padding_of(attention_mask: Tensor | None, kv_offset: int, kv_length: int) -> Tensor | None:
    """Return the (B, K) mask of the keys, or None if there is no padding."""
    if attention_mask is None:
        return None
    missing = kv_offset + kv_length - attention_mask.shape[-1]
    if missing > 0:
        attention_mask = torch.nn.functional.pad(attention_mask, (0, missing))
    padding = attention_mask[:, kv_offset : kv_offset + kv_length].bool()
    # The compiler cannot branch on values, and a trace would make the branch constant.
    return padding if is_tracing(padding) or not bool(padding.all()) else None


def is_window(local_size: int, config: Any) -> bool:
    """True if `local_size` is a window that the model also passes to `attend` as a number."""
    chunks = getattr(config, "attention_chunk_size", None) is not None
    return local_size == getattr(config, "sliding_window", None) and not chunks and passes_window(type(config))


CALL = re.compile(r"attention_interface\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")


@constant
def passes_window(config: type) -> bool:
    """True if every attention layer of the model with this class of configurations passes its window to `attend`.

    Some models make a mask with a window and do not pass the window to the attention function (Qwen2-MoE, PhiMoE).
    Nothing in the arguments tells them apart, so this function looks into the source of the model. Without a source, as
    for classes of a notebook, the answer is no, and the mask says all.
    """
    try:
        source = inspect.getsource(sys.modules[modeling_file(config)])
    except (KeyError, OSError, TypeError):
        return False
    calls = CALL.findall(source)
    found_all = 0 < len(calls) == source.count("attention_interface(")
    return found_all and all("sliding_window=" in call for call in calls)
