"""Keys and values of the tokens so far, for decoding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from softargmax.core.arrays import readable

__all__ = ["KVCache"]


class KVCache(NamedTuple):
    """The keys and values that `softargmax.nn.Attention` has read so far, in memory for as many as there may be.

    Attributes
    ----------
    k, v : Tensor
        (..., G, capacity, D), written in place.
    lengths : Tensor
        (...), int64: how many of each entry of the batch are there. They may be set: to 0 to begin anew, or to the true
        lengths of prompts that were padded at their end, after which each entry goes on from its own.

    Notes
    -----
    Each call of the layer writes its keys behind those that are there, and its queries stand at the last ones. Nothing
    grows, so a compiled step is compiled once. The cache keeps no derivatives: it is for `torch.no_grad()`.

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
        """Write keys (..., G, L, D) and values behind those that are there."""
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise RuntimeError("cache: it keeps no derivatives; use it under torch.no_grad()")
        new, capacity = k.shape[-2], self.k.shape[-2]
        for own, given in ((self.k, k), (self.v, v)):
            if (*own.shape[:-2], own.shape[-1]) != (*given.shape[:-2], given.shape[-1]):
                may = (*given.shape[:-2], "capacity", given.shape[-1])
                raise ValueError(
                    f"cache: expected keys and values of shape {may} for this input, got {tuple(own.shape)}"
                )
        if readable(self.lengths) and bool((self.lengths + new > capacity).any()):
            raise ValueError(f"cache: expected at most {capacity} keys, got {int(self.lengths.max())} + {new}")
        places = self.lengths[..., None] + torch.arange(new, device=self.lengths.device)
        places = places[..., None, :, None]
        for own, given in ((self.k, k), (self.v, v)):
            own.scatter_(-2, places.expand(given.shape), given.to(own.dtype))
        self.lengths.add_(new)
        return self
