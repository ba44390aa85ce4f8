"""The gradients of attention, for those whose library does not differentiate."""

from __future__ import annotations

from typing import Any, Unpack

from softargmax.attend import operations
from softargmax.attend.arguments import AttentionGradients, AttentionVjp
from softargmax.attend.options import OfSoftmax, attention_of, rate_of, takes
from softargmax.core import arrays, check
from softargmax.core.arrays import namespace
from softargmax.core.types import Numbers, Vectors


@takes(OfSoftmax)
def attention_vjp(
    q: Vectors,
    k: Vectors,
    v: Vectors,
    g: Vectors,
    *,
    g_lse: Numbers | None = None,
    **options: Unpack[OfSoftmax],
) -> AttentionGradients:
    r"""The gradients of :math:`\langle g, o \rangle + \langle g_{\mathrm{lse}}, \mathrm{lse} \rangle`.

    .. math::
        dS = p \odot (g v^T - \delta), \qquad \delta = \langle g, o \rangle - g_{\mathrm{lse}}, \qquad
        dq = s\,dz\,k, \qquad dk = dz^T (s q), \qquad dv = p^T g

    Here dz is dS times the slope of the soft-cap, 1 - tanh^2. The gradient to a head's slope is minus the sum of dS,
    each times the distance of query and key.

    Parameters
    ----------
    q, k, v : array_like
        Queries, keys and values as in `attention`.
    g : array_like, shape (..., H, L, Dv)
        The gradient that comes in for the output.
    g_lse : array_like, shape (..., H, L), optional
        The same for lse; 0 without it.
    scale, causal, window, mask, bias, slopes, softcap, sink, dropout, seed, stream, key_lengths
        As in `attention`, of order 1; with dropout the seed has to be the forward's.

    Returns
    -------
    AttentionGradients
        To q, k and v, in their dtype; to scale, bias, sink and slopes where these are arrays, else None.

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
    if options.get("seed") is None and rate_of(options.get("dropout", 0.0)):
        raise ValueError("seed: expected that of the output, as there is dropout, got None")
    i = attention_of(q, k, v, options)
    rows = tuple(i.q.shape[:-1])
    g = _of_shape(g, i.q, (*rows, i.v.shape[-1]), "g")
    g_lse = None if g_lse is None else _of_shape(g_lse, i.q, rows, "g_lse")
    output, lse = operations.attention(i)
    found = operations.attention_vjp(AttentionVjp(g, g_lse, i, output, lse, to_bias=i.options.bias is not None))
    gradients = {
        name: namespace(x).astype(x, like.dtype, copy=False) if hasattr(like, "shape") else None
        for (name, like), x in zip(i.learned._asdict().items(), found, strict=True)
    }
    for name, given in options.items():
        if gradients.get(name) is not None:
            gradients[name] = _like_own(gradients[name], arrays.like(given, i.q, name), name)
    for name, given in (("q", q), ("k", k), ("v", v)):
        gradients[name] = _summed(gradients[name], tuple(arrays.like(given, i.q, name).shape))
    return AttentionGradients(**gradients)


def _like_own(gradient: Any, own: Any, name: str) -> Any:
    """In the shape of what was given, and a scale's in its floating dtype; others have theirs, halves float32."""
    xp = namespace(gradient)
    gradient = xp.reshape(gradient, tuple(own.shape))
    in_own = name == "scale" and arrays.dtype_name(own.dtype) in arrays.FLOATS
    return xp.astype(gradient, own.dtype) if in_own else gradient


def _summed(gradient: Any, own: tuple[int, ...]) -> Any:
    """In the shape of the array that was given, which may have been broadcast."""
    if tuple(gradient.shape) == own:
        return gradient
    xp, sizes = namespace(gradient), (1,) * (gradient.ndim - len(own)) + own
    spread = tuple(i for i, (size, n) in enumerate(zip(sizes, gradient.shape, strict=True)) if size != n)
    return xp.reshape(xp.sum(gradient, axis=spread), own)


def _of_shape(x: Any, q: Any, shape: tuple[int, ...], name: str) -> Any:
    x = check.scores(arrays.like(x, q, name), name)
    if tuple(x.shape) != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {tuple(x.shape)}")
    return x
