"""A cache of keys and values with room for the next tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer
from transformers.utils.import_utils import is_tracing

if TYPE_CHECKING:
    from torch import Tensor

LEAST_ROOM = 256
"""The smallest number of tokens for which room is added."""


class GrowingCache(DynamicCache):
    """A `DynamicCache` that appends new keys and values in place.

    A `DynamicCache` copies all of its keys and values to append those of one token: after 8192 tokens of 2 heads of 64
    numbers, 0.5 ms per layer (Zen 4). This cache copies them only when its room is full, which is for a quarter more
    tokens than it had, and for 256 at least. The model computes the same bits.

    Parameters
    ----------
    config : PreTrainedConfig, optional
        The configuration of the model. Layers with a sliding window then keep the keys of their window only, in
        transformers' own way.

    Raises
    ------
    TypeError
        If `config` is no configuration of transformers.

    Notes
    -----
    While torch records gradients or compiles, and after tokens of another dtype, all keys are copied as in a
    `DynamicCache`. Beams and selections of the batch copy them, too. Copies and files of a cache have no empty places.

    Examples
    --------
    >>> import torch
    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> from softargmax.integrate import GrowingCache
    >>> config = LlamaConfig(
    ...     vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    ... )
    >>> model = AutoModelForCausalLM.from_config(config).eval()
    >>> prompt = torch.arange(10)[None]
    >>> given = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    >>> ours = model.generate(prompt, past_key_values=GrowingCache(config), **given)
    >>> bool((ours == model.generate(prompt, **given)).all())
    True
    """

    def __init__(self, config: PreTrainedConfig | None = None) -> None:
        if not isinstance(config, PreTrainedConfig | None):
            raise TypeError(f"config: expected a configuration of transformers, got {type(config).__name__}")
        super().__init__(config=config)
        self.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in self.layers]
        if self.layer_class_to_replicate is DynamicLayer:
            self.layer_class_to_replicate = GrowingLayer


class GrowingLayer(DynamicLayer):
    """The keys and values of one layer. They are views of the start of larger tensors, their rooms."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rooms: dict[str, Tensor] = {}

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_options: Any) -> tuple[Tensor, Tensor]:
        """Append keys (B, G, K, D) and values (B, G, K, Dv). Return those of all tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self._appended("keys", self.keys, key_states)
        self.values = self._appended("values", self.values, value_states)
        return self.keys, self.values

    def reset(self) -> None:
        """Forget all tokens."""
        super().reset()
        self._rooms.clear()

    def __getstate__(self) -> dict[str, Any]:
        """The tokens without their rooms, for copies and files."""
        tokens = {name: None if x is None else x.clone() for name, x in (("keys", self.keys), ("values", self.values))}
        return {**vars(self), **tokens, "_rooms": {}}

    def _appended(self, name: str, old: Any, new: Tensor) -> Tensor:
        room = self._rooms.pop(name, None)
        if torch.is_grad_enabled() or is_tracing(new) or not _fits(new, old):
            return torch.cat([old, new], dim=-2)
        start = old.shape[-2] if old.numel() else 0
        stop = start + new.shape[-2]
        if room is None or stop > room.shape[-2] or not _begins(room, old):
            room = new.new_empty((*new.shape[:-2], stop + max(stop // 4, LEAST_ROOM), new.shape[-1]))
            if start:
                room[..., :start, :] = old
        room[..., start:stop, :] = new
        self._rooms[name] = room
        return room[..., :stop, :]


def _fits(new: Tensor, old: Tensor) -> bool:
    """True if new tokens are like the old ones but for their number, or if there are no old ones."""
    kinds = [(x.dtype, x.device, x.shape[:-2], x.shape[-1]) for x in (new, old)]
    return not old.numel() or kinds[0] == kinds[1]


def _begins(room: Tensor, old: Tensor) -> bool:
    """True if the tokens are still the first ones of their room, which may be written now.

    They are not after their selection or repetition along the batch, which copies them. They are after `crop`.
    """
    writable = torch.is_inference_mode_enabled() or not room.is_inference()
    laid = room.stride() == old.stride() and room.shape[:-2] == old.shape[:-2]
    return writable and laid and room.data_ptr() == old.data_ptr()
