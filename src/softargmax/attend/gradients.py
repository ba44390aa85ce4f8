"""The gradients of attention, for those whose library does not differentiate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softargmax.attend import operations
from softargmax.attend.arguments import AttentionVjp
from softargmax.attend.dropout import rate_of
from softargmax.attend.options import OfSoftmax, attention_of, takes
from softargmax.attend.results import AttentionGradients
from softargmax.core import arrays, check
from softargmax.core.dispatch import namespace

if TYPE_CHECKING:
    from typing import Unpack


@takes(OfSoftmax)
def attention_vjp(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    /,
    *,
    g_lse: Any = None,
    **options: Unpack[OfSoftmax],
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
    if options.get("seed") is None and rate_of(options.get("dropout", 0.0)):
        raise ValueError("seed: None; with dropout it has to be the one that the output was made with")
    i = attention_of(q, k, v, options)
    rows, its = tuple(i.q.shape[:-1]), i.options
    g = _of_shape(g, i.q, (*rows, i.v.shape[-1]), "g")
    g_lse = None if g_lse is None else _of_shape(g_lse, i.q, rows, "g_lse")
    output, lse = operations.attention(i)
    found = operations.attention_vjp(AttentionVjp(g, g_lse, i, output, lse, to_bias=its.bias is not None))
    likes = (*i[:3], its.scale, its.bias, its.sink)
    gradients = AttentionGradients(
        *(namespace(x).astype(x, like.dtype, copy=False) if hasattr(like, "shape") else None
          for x, like in zip(found, likes, strict=True))
    )  # fmt: skip
    if gradients.sink is not None:  # of a half sink in float32: it is one number for many queries
        shape = tuple(arrays.like(options["sink"], i.q, "sink").shape)
        gradients = gradients._replace(sink=namespace(gradients.sink).reshape(gradients.sink, shape))
    if gradients.scale is None:
        return gradients
    return gradients._replace(scale=_like_own(gradients.scale, arrays.like(options["scale"], i.q, "scale")))


def _like_own(gradient: Any, own: Any) -> Any:
    """In the shape and the floating dtype of what was given."""
    xp = namespace(gradient)
    gradient = xp.reshape(gradient, tuple(own.shape))
    return xp.astype(gradient, own.dtype) if arrays.dtype_name(own.dtype) in arrays.FLOATS else gradient


def _of_shape(x: Any, q: Any, shape: tuple[int, ...], name: str) -> Any:
    x = check.scores(arrays.like(x, q, name), name)
    if tuple(x.shape) != shape:
        raise ValueError(f"{name}: shape {tuple(x.shape)}; it may be {shape}")
    return x
