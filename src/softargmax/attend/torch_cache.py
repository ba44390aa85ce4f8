"""Cache of keys and values for decoding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from softargmax.core.arrays import readable

__all__ = ["KVCache"]


class KVCache(NamedTuple):
    """Cache of the keys and values that `softargmax.nn.Attention` has computed so far, with a fixed capacity.

    Attributes
    ----------
    k, v : Tensor
        Keys and values, of shape (..., G, capacity, D). The layer writes them in place.
    lengths : Tensor
        The number of keys of each entry of the batch, int64 of shape (...). The next keys of an entry are written
        after this many keys. You may change `lengths` in place: to 0 to start again, or to the true lengths of prompts
        that were padded at their end.

    Notes
    -----
    Each call of the layer appends keys and values, and the last query of the call is at the position of the last key.
    Tensors keep their shapes, so a compiled decoding step is compiled once. Autograd does not record the cache: use it
    under `torch.no_grad()`.

    Examples
    --------
    >>> import torch, softargmax
    >>> layer = softargmax.nn.Attention(64, 8, groups=2, causal=True)
    >>> x = torch.randn(1, 10, 64)
    >>> cache = layer.new_cache(1, capacity=10)
    >>> with torch.no_grad():
    ...     parts = [layer(part, cache=cache) for part in (x[:, :8], x[:, 8:9], x[:, 9:])]
    ...     print(torch.cat(parts, 1).allclose(layer(x), atol=1e-6))
    True
    >>> cache.lengths
    tensor([10])
    """

    k: Tensor
    v: Tensor
    lengths: Tensor

    def append(self, k: Tensor, v: Tensor) -> KVCache:
        """Append keys and values, (..., G, L, D), in place."""
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise RuntimeError("cache: expected no gradients to be recorded; use the cache under torch.no_grad()")
        new, capacity = k.shape[-2], self.k.shape[-2]
        for cached, added in ((self.k, k), (self.v, v)):
            if (*cached.shape[:-2], cached.shape[-1]) != (*added.shape[:-2], added.shape[-1]):
                may = (*added.shape[:-2], "capacity", added.shape[-1])
                raise ValueError(
                    f"cache: expected keys and values of shape {may} for this input, got {tuple(cached.shape)}"
                )
        if readable(self.lengths) and bool((self.lengths + new > capacity).any()):
            most = int(self.lengths.max())
            raise ValueError(f"cache: expected at most {capacity} keys, got {most} in the cache and {new} new ones")
        places = self.lengths[..., None] + torch.arange(new, device=self.lengths.device)
        places = places[..., None, :, None]
        for cached, added in ((self.k, k), (self.v, v)):
            cached.scatter_(-2, places.expand(added.shape), added.to(cached.dtype))
        self.lengths.add_(new)
        return self
