"""Gradients of attention, for array libraries without automatic differentiation."""

from __future__ import annotations

from typing import Any, Unpack

from softargmax.attend import operations
from softargmax.attend.arguments import AttentionGradients, AttentionVjp
from softargmax.attend.check_options import OfSoftmax, attention_of, rate_of, takes
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
    r"""Return the gradients of :math:`\langle g, o \rangle + \langle g_{\mathrm{lse}}, \mathrm{lse} \rangle`.

    .. math::
        dS = p \odot (g v^T - \delta), \qquad \delta = \langle g, o \rangle - g_{\mathrm{lse}}, \qquad
        dq = s\,dz\,k, \qquad dk = dz^T (s q), \qquad dv = p^T g

    Here dz is dS times the derivative of the soft-cap, 1 - tanh^2. The gradient of a head's slope m is
    :math:`-\sum_{ij} dS_{ij} \lvert i - j \rvert`.

    Parameters
    ----------
    q, k, v : array_like
        Queries, keys and values, as in `attention`.
    g : array_like, shape (..., H, L, Dv)
        The incoming gradient of the output.
    g_lse : array_like, shape (..., H, L), optional
        The incoming gradient of lse; defaults to 0.
    scale, causal, window, mask, bias, slopes, softcap, sink, dropout, seed, stream, key_lengths
        As in `attention` with alpha = 1. With dropout, pass the seed of the forward call.

    Returns
    -------
    AttentionGradients
        The gradients with respect to q, k, v, scale, bias, sink and slopes. The gradients of q, k and v have the dtype
        of q. The gradient of an option that is not an array is None.

    Raises
    ------
    TypeError, ValueError
        As for `attention`. Also ValueError if g or g_lse has the wrong shape, or if dropout is not 0 and seed is None.

    Notes
    -----
    The function runs the forward pass first. The backward pass then recomputes the scores block by block, and p from
    the scores and lse. For tensors use torch's autograd, which calls the same kernels.

    See Also
    --------
    attention_with_lse : the function that is differentiated.

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
        raise ValueError("seed: expected the seed of the forward call (because dropout is not 0), got None")
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
    for name, option in options.items():
        if gradients.get(name) is not None:
            gradients[name] = _like_option(gradients[name], arrays.like(option, i.q, name), name)
    for name, x in (("q", q), ("k", k), ("v", v)):
        gradients[name] = _sum_to_shape(gradients[name], tuple(arrays.like(x, i.q, name).shape))
    return AttentionGradients(**gradients)


def _like_option(gradient: Any, option: Any, name: str) -> Any:
    """Reshape a gradient to the option's shape. For a floating scale, also convert the gradient to the scale's dtype.

    The gradients of other options already have the right dtype: the option's dtype, or float32 for half precision.
    """
    xp = namespace(gradient)
    gradient = xp.reshape(gradient, tuple(option.shape))
    use_dtype = name == "scale" and arrays.dtype_name(option.dtype) in arrays.FLOATS
    return xp.astype(gradient, option.dtype) if use_dtype else gradient


def _sum_to_shape(gradient: Any, shape: tuple[int, ...]) -> Any:
    """Sum a gradient over the axes along which an array of shape `shape` was broadcast."""
    if tuple(gradient.shape) == shape:
        return gradient
    xp, sizes = namespace(gradient), (1,) * (gradient.ndim - len(shape)) + shape
    broadcast = tuple(i for i, (size, n) in enumerate(zip(sizes, gradient.shape, strict=True)) if size != n)
    return xp.reshape(xp.sum(gradient, axis=broadcast), shape)


def _of_shape(x: Any, q: Any, shape: tuple[int, ...], name: str) -> Any:
    x = check.scores(arrays.like(x, q, name), name)
    if tuple(x.shape) != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {tuple(x.shape)}")
    return x
