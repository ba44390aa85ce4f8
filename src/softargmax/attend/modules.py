"""Attention as a torch module: projections around softargmax.attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, fx, nn

from softargmax.attend import attention, entropy_invariant_scale, qk_norm
from softargmax.attend.options import rate_of, window_of
from softargmax.attend.torch_cache import KVCache
from softargmax.core import check
from softargmax.core.check import integer, one_of
from softargmax.core.signature import public
from softargmax.core.torch_compile import compile_whole
from softargmax.core.torch_modules import keep, known, shown

if TYPE_CHECKING:
    from torch.types import Device


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

    With `cache`, a `KVCache` that `new_cache` has made, the keys and values of c are put behind those in it, and the
    queries, which stand at the last of them, read all. A causal layer decodes so, token by token. K is then the cache's
    capacity, and of a context without keys, (..., 0, context_dim), what is there already is read.

    See Also
    --------
    softargmax.attention : the function.
    KVCache : the keys and values so far.
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
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.heads = _positive(dim, "dim"), _positive(heads, "heads")
        self.groups = heads if groups is None else _positive(groups, "groups")
        if heads % self.groups:
            raise ValueError(f"groups: expected a divisor of heads, {heads}, got {groups}")
        if head_dim is None and dim % heads:
            raise ValueError(f"head_dim: expected a number, as dim, {dim}, is no multiple of heads, {heads}, got None")
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
        cache: KVCache | None = None,
    ) -> Tensor:
        context = x if context is None else context
        q = self._split(self.q_proj(x), self.heads)
        k, v = (self._split(f(context), self.groups) for f in (self.k_proj, self.v_proj))
        if self.gain is not None:
            q, k = qk_norm(q, k, gain=self.gain)
        if cache is not None:
            if key_lengths is not None:
                raise ValueError("key_lengths: expected None, as the cache knows them, got lengths")
            k, v, key_lengths = cache.append(k, v)
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

    if TYPE_CHECKING:

        def __call__(
            self,
            x: Tensor,
            context: Tensor | None = None,
            *,
            mask: Tensor | None = None,
            scores_bias: Tensor | None = None,
            key_lengths: Tensor | None = None,
            cache: KVCache | None = None,
        ) -> Tensor: ...

    def new_cache(
        self, batch: int | tuple[int, ...], capacity: int, *, device: Device = None, dtype: torch.dtype | None = None
    ) -> KVCache:
        """An empty cache.

        Parameters
        ----------
        batch : int or tuple of int
            The axes of x in front of its tokens; () where there are none.
        capacity : int
            How many keys there may be.
        device, dtype
            Those of the parameters if None.

        Returns
        -------
        KVCache
            k and v (*batch, G, capacity, D), and lengths of 0.
        """
        rows = batch if isinstance(batch, tuple) else (batch,)
        k, v = self.k_proj.weight.new_zeros(
            (2, *rows, self.groups, _positive(capacity, "capacity"), self.head_dim), device=device, dtype=dtype
        )
        return KVCache(k, v, torch.zeros(rows, dtype=torch.int64, device=k.device))

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, **options: Any) -> Attention:
        """A layer with copies of the weights of torch's own, that gives the same numbers.

        Parameters
        ----------
        module : torch.nn.MultiheadAttention
            Its `kdim` and `vdim` have to be the same, as keys and values are made of one context, and it may have no
            `bias_k`. `add_zero_attn` becomes a sink of 0, which does not learn.
        **options
            Options of this layer that torch's does not have: causal, window, softcap, ..

        Returns
        -------
        Attention
            In training mode if the module is, with its dropout.

        Raises
        ------
        TypeError, ValueError
            If it is no such module; if it has what this layer does not.

        Notes
        -----
        x is (..., L, dim) whatever `batch_first` is. torch's masks say what is left out, so that
        ``module(x, c, c, attn_mask=m, key_padding_mask=p)[0]`` is
        ``layer(x, c, mask=~m & ~p[:, None, None, :])``; an `attn_mask` of floats is `scores_bias`. A query that sees
        nothing has 0 before `out_proj` (torch: NaN).

        Examples
        --------
        >>> import torch, softargmax
        >>> module = torch.nn.MultiheadAttention(16, 4, batch_first=True)
        >>> layer = softargmax.nn.Attention.from_torch(module)
        >>> x = torch.randn(2, 5, 16)
        >>> bool(layer(x).allclose(module(x, x, x)[0], atol=1e-6))
        True
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise TypeError(f"module: expected a torch.nn.MultiheadAttention, got {type(module).__name__}")
        if module.kdim != module.vdim:
            raise ValueError(f"module: expected kdim equal to vdim, got {module.kdim} and {module.vdim}")
        if module.bias_k is not None:
            raise ValueError("module: expected one without bias_k and bias_v")
        layer = cls(
            module.embed_dim,
            module.num_heads,
            context_dim=module.kdim,
            bias=module.in_proj_bias is not None,
            dropout=module.dropout,
            **{"sink": module.add_zero_attn} | options,
            device=module.out_proj.weight.device,
            dtype=module.out_proj.weight.dtype,
        )
        given = module.state_dict()
        one = "in_proj_weight" in given  # of queries, keys and values of one width
        weights = given["in_proj_weight"].chunk(3) if one else [given[f"{x}_proj_weight"] for x in "qkv"]
        state = layer.state_dict() | {name: x for name, x in given.items() if name.startswith("out_proj")}
        state |= {f"{x}_proj.weight": weight for x, weight in zip("qkv", weights, strict=True)}
        if "in_proj_bias" in given:
            biases = given["in_proj_bias"].chunk(3)
            state |= {f"{x}_proj.bias": bias for x, bias in zip("qkv", biases, strict=True)}
        layer.load_state_dict(state)
        if module.add_zero_attn and layer.sink is not None:
            layer.sink.requires_grad_(False)
        return layer.train(module.training)

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
        raise ValueError(f"{name}: expected an integer, 1 or above, got {number}")
    return number
