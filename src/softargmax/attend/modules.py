"""Multi-head attention as a torch module."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, fx, nn

from softargmax.attend import attention, entropy_invariant_scale, qk_norm
from softargmax.attend.check_options import rate_of, window_of
from softargmax.attend.torch_cache import KVCache
from softargmax.core import check
from softargmax.core.check import integer, one_of
from softargmax.core.signature import public
from softargmax.core.torch_compile import compile_whole
from softargmax.core.torch_modules import keep, known, shown

if TYPE_CHECKING:
    from torch.types import Device


__all__ = ["Attention"]
compile_whole("softargmax.attend")  # at import, because a model may be compiled before its first call


class Attention(nn.Module):
    r"""Multi-head attention with projections of queries, keys, values and the output.

    .. math::
        \mathrm{Attention}(x, c) = W_o\,\mathrm{concat}_h\,\mathrm{attention}(W_{q,h}\,x,\; W_{k,h}\,c,\; W_{v,h}\,c)

    Parameters
    ----------
    dim : int
        The width of x and of the result.
    heads : int
        H, the number of query heads.
    groups : int, optional
        G, the number of heads of keys and values, a divisor of H. Defaults to H.
    head_dim : int, optional
        D, the width of a head. Defaults to dim / H, which must then be an integer.
    context_dim : int, optional
        The width of the context c. Defaults to dim.
    bias : bool
        If True, the projections have a bias.
    causal, window, softcap
        As in `softargmax.attention`.
    sink : bool
        If True, each head has a learned sink, initially 0.
    alpha : float, Tensor or Parameter
        The order of entmax, as in `softargmax.attention`; 1 is softmax. A Parameter is learned. Any other tensor
        is a buffer.
    dropout : float
        The probability that an entry of p is dropped in training. The seed comes from torch's default generator.
    scale : {"root", "log"}
        "root" is 1 / sqrt(D). "log" is kappa log(n) / D for a query that sees n keys, with one learned kappa per head.
        The initial kappa gives the scale 1 / sqrt(D) for n = 512.
    norm : bool
        If True, queries and keys are normalized by `softargmax.qk_norm`, with a learned gain.
    device
        Device of the parameters; defaults to torch's default device.
    dtype
        dtype of the parameters; defaults to torch's default dtype.

    Notes
    -----
    Call the module with x (..., L, dim). Optional arguments are the context c (..., K, context_dim), `mask`,
    `scores_bias` and `key_lengths`. The context defaults to x. `mask` and `scores_bias` broadcast with (..., H, L, K).
    With scale "log", n counts the keys that causal, window and key_lengths leave visible. `mask` does not change n.

    With `cache`, a `KVCache` from `new_cache`, the module appends the keys and values of c to the cache. The queries
    attend to all keys in the cache, and the last query is at the position of the last key. So a causal layer decodes
    token by token. With a cache, K in the shapes of `mask` and `scores_bias` is the capacity. If the context is empty,
    (..., 0, context_dim), nothing is appended and the queries attend to the cache.

    See Also
    --------
    softargmax.attention : attention as a function.
    KVCache : cached keys and values.
    torch.nn.MultiheadAttention : torch's module, without most of these options.

    Examples
    --------
    >>> import torch, softargmax
    >>> layer = softargmax.nn.Attention(64, 8, groups=2, causal=True, scale="log")
    >>> layer(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    alpha: float | Tensor

    @public
    def __init__(  # noqa: PLR0913 options are keyword arguments
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
            raise ValueError(
                f"head_dim: expected a number (because dim, {dim}, is not a multiple of heads, {heads}), got None"
            )
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
                raise ValueError("key_lengths: expected None (because the cache has its own lengths), got lengths")
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
        """Return an empty cache for this layer.

        Parameters
        ----------
        batch : int or tuple of int
            The sizes of the batch axes of x, which precede the axis of tokens. () if x has no batch axis.
        capacity : int
            The largest number of keys per entry of the batch.
        device, dtype
            Device and dtype of the cache; default to those of the parameters.

        Returns
        -------
        KVCache
            k and v of shape (*batch, G, capacity, D), and lengths, all 0.
        """
        rows = batch if isinstance(batch, tuple) else (batch,)
        k, v = self.k_proj.weight.new_zeros(
            (2, *rows, self.groups, _positive(capacity, "capacity"), self.head_dim), device=device, dtype=dtype
        )
        return KVCache(k, v, torch.zeros(rows, dtype=torch.int64, device=k.device))

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, **options: Any) -> Attention:
        """Return a layer with copies of the weights of a torch module. Layer and module compute the same results.

        Parameters
        ----------
        module : torch.nn.MultiheadAttention
            A module without `bias_k`. Its `kdim` and `vdim` must be equal, because here keys and values are projections
            of one context. `add_zero_attn` becomes a sink of 0 that is not trained.
        **options
            Options that the torch module does not have: causal, window, softcap and others.

        Returns
        -------
        Attention
            A layer with the module's dropout. It is in training mode if the module is.

        Raises
        ------
        TypeError
            If `module` is not a torch.nn.MultiheadAttention.
        ValueError
            If `module` has a feature that this layer does not have.

        Notes
        -----
        x has shape (..., L, dim) for either value of the module's `batch_first`. torch's masks are True for keys that
        are hidden. So ``module(x, c, c, attn_mask=m, key_padding_mask=p)[0]`` equals
        ``layer(x, c, mask=~m & ~p[:, None, None, :])``. A floating `attn_mask` becomes `scores_bias`. For a query that
        sees no key, the input of `out_proj` is 0 here, but NaN in torch.

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
            raise ValueError("module: expected a module without bias_k and bias_v, got a module with them")
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
        source = module.state_dict()
        joint = "in_proj_weight" in source  # True if queries, keys and values have the same width
        weights = source["in_proj_weight"].chunk(3) if joint else [source[f"{x}_proj_weight"] for x in "qkv"]
        state = layer.state_dict() | {name: x for name, x in source.items() if name.startswith("out_proj")}
        state |= {f"{x}_proj.weight": weight for x, weight in zip("qkv", weights, strict=True)}
        if "in_proj_bias" in source:
            biases = source["in_proj_bias"].chunk(3)
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
        visible = _visible_keys(q, k, lengths, *window_of(self.causal, self.window))
        scale: Tensor = entropy_invariant_scale(visible, self.head_dim, self.kappa)
        return scale

    def extra_repr(self) -> str:
        options = {"causal": self.causal, "window": self.window, "softcap": self.softcap, "dropout": self.dropout}
        shown_options = "".join(f", {name}={value}" for name, value in options.items() if value)
        plain = isinstance(self.alpha, float) and self.alpha == 1.0
        return (
            f"{self.dim}, {self.heads}, groups={self.groups}, head_dim={self.head_dim}, scale={self.scale!r}"
            + shown_options
            + ("" if plain else f", alpha={shown(self.alpha)}")
        )


@fx.wrap
def _visible_keys(q: Tensor, k: Tensor, lengths: Tensor | None, left: int | None, right: int | None) -> Tensor:
    """Return the number of keys that each query sees."""
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
