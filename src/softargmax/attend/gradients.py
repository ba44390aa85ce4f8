"""The gradients of attention, for those whose library does not differentiate."""

from __future__ import annotations

from typing import Any

from softargmax.attend.dropout import rate_of
from softargmax.attend.options import asked_of
from softargmax.attend.results import AttentionGradients
from softargmax.core import arrays, check
from softargmax.core.dispatch import implementation, namespace


def attention_vjp(  # noqa: PLR0913 each is asked for by its name
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    /,
    *,
    g_lse: Any = None,
    scale: Any = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    mask: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    sink: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    stream: Any = None,
    key_lengths: Any = None,
) -> AttentionGradients:
    r"""The gradients of :math:`\langle g, o \rangle + \langle g_{\mathrm{lse}}, \mathrm{lse} \rangle`.

    .. math::
        dS = p \odot (g v^T - \delta), \qquad \delta = \langle g, o \rangle - g_{\mathrm{lse}}, \qquad
        dq = s\,dz\,k, \qquad dk = dz^T (s q), \qquad dv = p^T g

    Here dz is dS times the slope of the soft-cap, 1 - tanh^2.

    Parameters
    ----------
    q, k, v : array_like
        Queries, keys and values as in `attention`.
    g : array_like, shape (..., H, L, Dv)
        The gradient that comes in for the output.
    g_lse : array_like, shape (..., H, L), optional
        The same for lse; 0 without it.
    scale, causal, window, mask, bias, softcap, sink, dropout, seed, stream, key_lengths
        As in `attention`, of order 1; with dropout the seed has to be the forward's.

    Returns
    -------
    AttentionGradients
        To q, k and v, in their dtype; to scale, bias and sink where these are arrays, else None.

    Raises
    ------
    TypeError, ValueError
        As `attention`; if g or g_lse has another shape.

    Notes
    -----
    Scores are made anew from lse, block by block. torch's autograd calls the same kernels by itself.

    See Also
    --------
    attention_with_lse : what is differentiated.

    References
    ----------
    Dao et al. (2022), FlashAttention, appendix B.2. arXiv:2205.14135.

    Examples
    --------
    >>> import numpy as np, softargmax
    >>> q, k, v = np.zeros((1, 1, 2)), np.array([[[1.0, 0.0], [0.0, 1.0]]]), np.array([[[10.0], [20.0]]])
    >>> softargmax.attention_vjp(q, k, v, np.ones((1, 1, 1)), scale=1.0).q
    array([[[-2.5,  2.5]]])
    """
    if seed is None and rate_of(dropout):
        raise ValueError("seed: None; with dropout it has to be the one that the output was made with")
    heads, beside, options = asked_of(
        q,
        k,
        v,
        causal=causal,
        window=window,
        softcap=softcap,
        scale=scale,
        mask=mask,
        bias=bias,
        key_lengths=key_lengths,
        sink=sink,
        dropout=dropout,
        seed=seed,
        stream=stream,
    )
    rows = tuple(heads.q.shape[:-1])
    g = _of_shape(g, heads.q, (*rows, heads.v.shape[-1]), "g")
    g_lse = None if g_lse is None else _of_shape(g_lse, heads.q, rows, "g_lse")
    found = implementation("attend", heads.q).vjp(heads, beside, options, g, g_lse)
    like = (*heads, beside.scale, beside.bias, beside.sink)
    cast = (x if x is None else namespace(x).astype(x, y.dtype, copy=False) for x, y in zip(found, like, strict=True))
    gradients = AttentionGradients(*cast)
    if gradients.scale is None:
        return gradients
    own = arrays.like(scale, heads.q, "scale")
    xp = namespace(own)
    dtype = own.dtype if arrays.dtype_name(own.dtype) in arrays.FLOATS else gradients.scale.dtype
    return gradients._replace(scale=xp.astype(xp.reshape(gradients.scale, tuple(own.shape)), dtype))


def _of_shape(x: Any, q: Any, shape: tuple[int, ...], name: str) -> Any:
    x = check.scores(arrays.like(x, q, name), name)
    if tuple(x.shape) != shape:
        raise ValueError(f"{name}: shape {tuple(x.shape)}; it may be {shape}")
    return x
