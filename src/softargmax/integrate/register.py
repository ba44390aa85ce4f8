"""Register and unregister attention implementations."""

from __future__ import annotations

import functools
import math
import re
from numbers import Real
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from softargmax.integrate.attention import attend, mask_of

if TYPE_CHECKING:
    from softargmax.integrate.attention import Order

_REGISTERED: set[str] = set()
_RESERVED = ("eager", "sdpa", "flash", "flex", "paged")
"""transformers looks for these words in the names of implementations."""


def register(name: str = "softargmax", /, *, alpha: Order = 1.0, scale: Order | None = None) -> None:
    r"""Make `attn_implementation=name` compute a model's attention with `softargmax.attention`.

    .. math::
        o_i = \sum_{j \text{ visible to } i} p_{ij} v_j, \qquad
        p_i = \mathrm{entmax}_\alpha\big(s \langle q_i, k_j \rangle + b_{ij}\big)_j

    The mask function is registered, too. It passes padding as a mask of shape (B, 1, 1, K), and causality and windows
    as numbers, so no mask of shape (B, 1, L, K) is made unless the model needs one.

    Parameters
    ----------
    name : str
        The name of the implementation: a letter, then letters, digits and underscores.
    alpha : float, Tensor or function
        The order of the entmax that maps scores to probabilities. 1 is softmax, 2 is sparsemax. A tensor broadcasts
        with (B, H, L) and may be learned. A function receives the attention layer, its queries (B, H, L, D) and its
        keys (B, G, K, D), and returns a number or a tensor. So each layer can learn its own order.
    scale : float, Tensor or function, optional
        s, as for `alpha`. If None, the model's own scale is used.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If the name is registered already, if transformers uses it, or if alpha or scale is out of range.

    Notes
    -----
    Models keep their dropout, soft-cap, sinks, position biases and groups of heads. Index and block-sparse attention,
    sinks per query, and paged caches raise ValueError at the model's first call.

    A model that does not support other implementations of attention raises ValueError at its first call.

    A mask of four axes that the user passes replaces causality: True where a query sees a key, or numbers that are
    added to the scores.

    See Also
    --------
    softargmax.attention : the function that computes it.
    unregister : removes the name.

    References
    ----------
    Vaswani et al. (2017), Attention is all you need, section 3.2.1. arXiv:1706.03762.
    Correia, Niculae & Martins (2019), Adaptively sparse transformers, section 3 (alpha). arXiv:1909.00015.

    Examples
    --------
    >>> import torch
    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> from softargmax.integrate import register, unregister
    >>> register()
    >>> config = LlamaConfig(
    ...     vocab_size=99,
    ...     hidden_size=32,
    ...     intermediate_size=64,
    ...     num_hidden_layers=2,
    ...     num_attention_heads=4,
    ...     num_key_value_heads=2,
    ... )
    >>> model = AutoModelForCausalLM.from_config(config, attn_implementation="softargmax").eval()
    >>> tokens = torch.arange(10)[None]
    >>> ours = model(tokens).logits
    >>> model.set_attn_implementation("eager")
    >>> bool((model(tokens).logits - ours).abs().max() < 1e-6)
    True
    >>> unregister()
    """
    _check_name(name)
    if name in AttentionInterface._global_mapping or name in AttentionMaskInterface._global_mapping:
        mine = f"; call unregister({name!r}) first" if name in _REGISTERED else ", which transformers uses"
        raise ValueError(f"name: expected a name that is not registered, got {name!r}{mine}")
    _check_option("alpha", alpha, above=0)
    if scale is not None:
        _check_option("scale", scale)
    AttentionInterface.register(name, functools.partial(attend, alpha=alpha, scale=scale))
    AttentionMaskInterface.register(name, mask_of)
    _REGISTERED.add(name)


def unregister(name: str = "softargmax", /) -> None:
    """Remove a name that `register` has added.

    Models that use the name raise KeyError at their next call, until `model.set_attn_implementation` gives them another
    one.

    Parameters
    ----------
    name : str
        The name of the implementation.

    Raises
    ------
    ValueError
        If `register` has not added the name.

    Examples
    --------
    >>> from softargmax.integrate import register, unregister
    >>> register("sparse", alpha=1.5)
    >>> unregister("sparse")
    """
    if name not in _REGISTERED:
        known = ", ".join(map(repr, sorted(_REGISTERED))) or "none"
        raise ValueError(f"name: expected a name that register() has added ({known}), got {name!r}")
    _REGISTERED.remove(name)
    for interface in (AttentionInterface, AttentionMaskInterface):
        del interface._global_mapping[name]  # transformers has no public way to remove a name


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name: expected a string, got {type(name).__name__}")
    reserved = next((word for word in _RESERVED if word in name), None)
    if reserved:
        raise ValueError(f"name: expected a name without {reserved!r}, a word of transformers, got {name!r}")
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise ValueError(f"name: expected a letter, then letters, digits and underscores, got {name!r}")


def _check_option(name: str, value: Any, above: float = -math.inf) -> None:
    if isinstance(value, bool) or not (isinstance(value, Real | Tensor) or callable(value)):
        raise TypeError(f"{name}: expected a number, a tensor or a function, got {type(value).__name__}")
    if isinstance(value, Real) and not above < float(value) < math.inf:
        raise ValueError(f"{name}: expected a finite number{f' above {above}' if above == 0 else ''}, got {value}")
