"""Attention as a torch module: projections around softargmax.attention."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from softargmax.attend import attention, entropy_invariant_scale, qk_norm
from softargmax.attend.options import rate_of, window_of
from softargmax.core import check
from softargmax.core.check import integer, one_of
from softargmax.core.signature import public
from softargmax.core.torch_compile import compile_whole
from softargmax.core.torch_modules import keep, known, shown

__all__ = ["Attention"]
compile_whole("softargmax.attend")  # so that a model may be compiled before its first call


class Attention(nn.Module):
    r"""Multi-head attention with its projections, as a module.

    .. math::
        \mathrm{Attention}(x, c) = W_o\,\mathrm{concat}_h\,\mathrm{attention}(W_{q,h}\,x,\; W_{k,h}\,c,\; W_{v,h}\,c)

    Parameters
    ----------
    dim : int
        The width of x and of the result.
    heads : int
        H, the heads of queries.
    groups : int, optional
        G, the heads of keys and values, a divisor of H; H without it.
    head_dim : int, optional
        D; dim / H without it, which then has to be whole.
    context_dim : int, optional
        The width of c; dim without it.
    bias : bool
        Whether the projections have one.
    causal, window, softcap
        As in `softargmax.attention`.
    sink : bool
        Whether each head has a learned score without a value, 0 at first.
    alpha : float, Tensor or Parameter
        The order of p, 1 is softmax; a Parameter is learned, another tensor is a buffer.
    dropout : float
        The share of p that is dropped in training, from torch's default generator.
    scale : {"root", "log"}
        1 / sqrt(D); or kappa log(n) / D for a query that sees n of the keys, where kappa is learned, one per head, and
        1 / sqrt(D) at first for n = 512.
    norm : bool
        Whether queries and keys have their root mean square divided out, with a learned gain.
    device, dtype
        Of the parameters.

    Notes
    -----
    The module is called with x (..., L, dim) and optionally the context c (..., K, context_dim), x itself without it,
    `mask` and `scores_bias` that broadcast with (..., H, L, K), and `key_lengths`. With "log" n counts causal and
    windowed keys and key_lengths, not what a mask leaves out.

    See Also
    --------
    softargmax.attention : the function.
    torch.nn.MultiheadAttention : torch's, without most of these.

    Examples
    --------
    >>> import torch, softargmax
    >>> layer = softargmax.nn.Attention(64, 8, groups=2, causal=True, scale="log")
    >>> layer(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    alpha: float | Tensor

    @public
    def __init__(  # noqa: PLR0913 each is asked for by its name
        self,
        dim: int,
        heads: int,
        *,
        groups: int | None = None,
        head_dim: int | None = None,
        context_dim: int | None = None,
        bias: bool = True,
        causal: bool = False,
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        sink: bool = False,
        alpha: float | Tensor = 1.0,
        dropout: float = 0.0,
        scale: Literal["root", "log"] = "root",
        norm: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.heads = _positive(dim, "dim"), _positive(heads, "heads")
        self.groups = heads if groups is None else _positive(groups, "groups")
        if heads % self.groups:
            raise ValueError(f"groups: {groups}; it may be a divisor of heads, {heads}")
        if head_dim is None and dim % heads:
            raise ValueError(f"head_dim: None; dim, {dim}, is no multiple of heads, {heads}")
        self.head_dim = dim // heads if head_dim is None else _positive(head_dim, "head_dim")
        self.scale = one_of(scale, "scale", ("root", "log"))
        window_of(causal, window)
        if softcap is not None:
            check.positive(softcap, "softcap")
        self.causal, self.window, self.softcap, self.dropout = causal, window, softcap, rate_of(dropout)
        check.order(known(alpha, "alpha"), torch.empty(1), (0,))
        keep(self, "alpha", alpha)
        new: dict[str, Any] = {"device": device, "dtype": dtype}
        context = dim if context_dim is None else _positive(context_dim, "context_dim")
        inner, shared = heads * self.head_dim, self.groups * self.head_dim
        self.q_proj = nn.Linear(dim, inner, bias, **new)
        self.k_proj, self.v_proj = nn.Linear(context, shared, bias, **new), nn.Linear(context, shared, bias, **new)
        self.out_proj = nn.Linear(inner, dim, bias, **new)
        self.sink = nn.Parameter(torch.zeros(heads, **new)) if sink else None
        self.gain = nn.Parameter(torch.ones(self.head_dim, **new)) if norm else None
        start = math.sqrt(self.head_dim) / math.log(512)
        self.kappa = nn.Parameter(torch.full((heads, 1), start, **new)) if self.scale == "log" else None

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        scores_bias: Tensor | None = None,
        key_lengths: Tensor | None = None,
    ) -> Tensor:
        context = x if context is None else context
        q = self._split(self.q_proj(x), self.heads)
        k, v = (self._split(f(context), self.groups) for f in (self.k_proj, self.v_proj))
        if self.gain is not None:
            q, k = qk_norm(q, k, gain=self.gain)
        found: Tensor = attention(
            q,
            k,
            v,
            scale=self._scale(q, k, key_lengths),
            causal=self.causal,
            window=self.window,
            mask=mask,
            bias=scores_bias,
            softcap=self.softcap,
            sink=self.sink,
            alpha=self.alpha,
            dropout=self.dropout if self.training else 0.0,
            key_lengths=key_lengths,
        )
        joined = found.transpose(-2, -3).flatten(-2)
        result: Tensor = self.out_proj(joined)
        return result

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return torch.unflatten(x, -1, (heads, self.head_dim)).transpose(-2, -3)

    def _scale(self, q: Tensor, k: Tensor, lengths: Tensor | None) -> Tensor | None:
        if self.kappa is None:
            return None
        seen = _seen(q, k, lengths, *window_of(self.causal, self.window))
        scale: Tensor = entropy_invariant_scale(seen, self.head_dim, self.kappa)
        return scale

    def extra_repr(self) -> str:
        own = {"causal": self.causal, "window": self.window, "softcap": self.softcap, "dropout": self.dropout}
        given = "".join(f", {name}={value}" for name, value in own.items() if value)
        plain = isinstance(self.alpha, float) and self.alpha == 1.0
        return (
            f"{self.dim}, {self.heads}, groups={self.groups}, head_dim={self.head_dim}, scale={self.scale!r}{given}"
            + ("" if plain else f", alpha={shown(self.alpha)}")
        )


@fx.wrap
def _seen(q: Tensor, k: Tensor, lengths: Tensor | None, left: int | None, right: int | None) -> Tensor:
    """How many keys each query sees."""
    queries, keys = q.shape[-2], k.shape[-2]
    count = torch.as_tensor(keys, device=q.device) if lengths is None else lengths.to(q.device)[..., None, None]
    place = torch.arange(queries, device=q.device) + (count - queries)
    first = torch.zeros_like(place) if left is None else (place - left).clamp(min=0)
    last = count - 1 if right is None else place + right
    return (torch.minimum(last, count - 1) - first + 1).clamp(min=0)


def _positive(value: Any, name: str) -> int:
    number = integer(value, name)
    if number < 1:
        raise ValueError(f"{name}: {number}; it may be an integer, 1 or above")
    return number
