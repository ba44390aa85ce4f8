"""Functions of `jax.nn` and `optax` with their own signatures, computed by softargmax. Requires the extra `jax`.

Import this module in a process that calls an exported program (`jax.export`) before the program is called.

All functions work under `jit`, `grad`, `vmap` and other transformations, like those of softargmax itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softargmax.core.extras import install

try:
    from jax import numpy as jnp
except ModuleNotFoundError as missing:
    raise ImportError(f"softargmax.jax needs JAX: {install('jax')}") from missing

from softargmax.attend import attention as _attention
from softargmax.core import jax_call as _jax_call  # registers the custom call with XLA
from softargmax.loss import cross_entropy as _cross_entropy
from softargmax.normalize import log_softmax as _log_softmax
from softargmax.normalize import logsumexp as _logsumexp
from softargmax.normalize import signed_logsumexp as _signed_logsumexp
from softargmax.normalize import softmax as _softmax

if TYPE_CHECKING:
    from jax import Array
    from jax.typing import ArrayLike

__all__ = [
    "dot_product_attention",
    "log_softmax",
    "logsumexp",
    "softmax",
    "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels",
]
TARGET = _jax_call.TARGET
"""The name of the custom call. `jax.export` needs it: `disabled_checks=[DisabledSafetyCheck.custom_call(TARGET)]`."""


def softmax(x: ArrayLike, axis: int | tuple[int, ...] | None = -1, where: ArrayLike | None = None) -> Array:
    r"""Return the softmax, :math:`e^{x_i} / \sum_j e^{x_j}`, as `jax.nn.softmax`.

    Parameters
    ----------
    x : array_like
        Scores, any shape.
    axis : int, tuple of int or None
        The axis or axes of a row. None means all.
    where : array of bool, optional
        True for the scores that belong to the row. The others have probability 0. If there are none, all are 0
        (`jax.nn.softmax` returns NaN).

    Returns
    -------
    jax.Array
        The probabilities, in the shape and dtype of x.

    Raises
    ------
    TypeError, ValueError
        As for `softargmax.softmax`.

    Examples
    --------
    >>> from jax import numpy as jnp
    >>> import softargmax.jax
    >>> softargmax.jax.softmax(jnp.array([0.0, 0.0, 5.0]), where=jnp.array([True, True, False]))
    Array([0.5, 0.5, 0. ], dtype=float32)
    """
    p: Array = _softmax(jnp.asarray(x), axis=axis, where=_mask(where))
    return p


def log_softmax(x: ArrayLike, axis: int | tuple[int, ...] | None = -1, where: ArrayLike | None = None) -> Array:
    r"""Return the logarithm of the softmax, :math:`x_i - \log \sum_j e^{x_j}`, as `jax.nn.log_softmax`.

    Parameters
    ----------
    x, axis, where
        As in `softmax`. Scores outside `where` have -inf.

    Returns
    -------
    jax.Array
        The log-probabilities, in the shape and dtype of x.

    Raises
    ------
    TypeError, ValueError
        As for `softargmax.log_softmax`.

    Examples
    --------
    >>> from jax import numpy as jnp
    >>> import softargmax.jax
    >>> softargmax.jax.log_softmax(jnp.array([0.0, 0.0]))
    Array([-0.6931472, -0.6931472], dtype=float32)
    """
    log_p: Array = _log_softmax(jnp.asarray(x), axis=axis, where=_mask(where))
    return log_p


def logsumexp(
    a: ArrayLike,
    axis: int | tuple[int, ...] | None = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> Array | tuple[Array, Array]:
    r"""Return :math:`\log \sum_i b_i e^{a_i}`, as `jax.nn.logsumexp`.

    Parameters
    ----------
    a : array_like
        Scores, any shape.
    axis : int, tuple of int or None
        The axis or axes to sum over. None means all.
    b : array_like, optional
        Weights of any sign, which broadcast with a.
    keepdims : bool
        If True, the reduced axes are kept with length 1.
    return_sign : bool
        If True, return the logarithm of the sum's absolute value, and the sum's sign. If False, the result of a
        negative sum is NaN.
    where : array of bool, optional
        True for the scores that are summed.

    Returns
    -------
    jax.Array, or two of them
        The logarithm, and the sign if `return_sign`.

    Raises
    ------
    TypeError, ValueError
        As for `softargmax.logsumexp`.

    Examples
    --------
    >>> from jax import numpy as jnp
    >>> import softargmax.jax
    >>> softargmax.jax.logsumexp(jnp.array([1.0, 1.0]), b=jnp.array([1.0, -3.0]), return_sign=True)
    (Array(1.6931472, dtype=float32), Array(-1., dtype=float32))
    """
    x = jnp.asarray(a)
    if b is None and not return_sign:
        lse: Array = _logsumexp(x, axis=axis, keepdims=keepdims, where=_mask(where))
        return lse
    weights = jnp.ones(()) if b is None else jnp.asarray(b)
    dtype = jnp.result_type(x.dtype, weights.dtype, jnp.float16)  # integers become floats
    shape = jnp.broadcast_shapes(x.shape, weights.shape, () if where is None else jnp.shape(where))
    x, weights = jnp.broadcast_to(x.astype(dtype), shape), weights.astype(dtype)
    found = _signed_logsumexp(x, weights, axis=axis, where=_mask(where), keepdims=keepdims)
    if return_sign:
        return found.log_abs, found.sign
    return jnp.where(found.sign < 0, jnp.nan, found.log_abs)


def softmax_cross_entropy_with_integer_labels(
    logits: ArrayLike, labels: ArrayLike, axis: int = -1, where: ArrayLike | None = None
) -> Array:
    r"""Return the cross-entropy of each row, :math:`\log \sum_j e^{z_j} - z_y`, as optax's function of this name.

    Parameters
    ----------
    logits : array_like
        Scores z. The classes run along `axis`.
    labels : array_like of int
        The class y of each row. A class out of range gives NaN, also a negative one.
    axis : int
        The axis of the classes.
    where : array of bool, optional
        True for the classes that belong to the softmax.

    Returns
    -------
    jax.Array
        One loss per row.

    Raises
    ------
    TypeError, ValueError
        As for `softargmax.cross_entropy`.

    Examples
    --------
    >>> from jax import numpy as jnp
    >>> import softargmax.jax
    >>> softargmax.jax.softmax_cross_entropy_with_integer_labels(jnp.array([[0.0, 0.0]]), jnp.array([1]))
    Array([0.6931472], dtype=float32)
    """
    z, y = jnp.asarray(logits), jnp.asarray(labels)
    loss: Array = _cross_entropy(z, y, axis=axis, where=_mask(where), reduction="none")
    return loss


def softmax_cross_entropy(
    logits: ArrayLike, labels: ArrayLike, axis: int = -1, where: ArrayLike | None = None
) -> Array:
    r"""Return the cross-entropy with probabilities, :math:`-\sum_k t_k \log p_k`, as `optax.softmax_cross_entropy`.

    Parameters
    ----------
    logits : array_like
        Scores z with p = softmax(z). The classes run along `axis`.
    labels : array_like
        The probabilities t, in the shape of the scores.
    axis : int
        The axis of the classes.
    where : array of bool, optional
        True for the classes that belong to the softmax.

    Returns
    -------
    jax.Array
        One loss per row.

    Raises
    ------
    TypeError, ValueError
        As for `softargmax.cross_entropy`.

    Examples
    --------
    >>> from jax import numpy as jnp
    >>> import softargmax.jax
    >>> softargmax.jax.softmax_cross_entropy(jnp.array([[0.0, 0.0]]), jnp.array([[0.5, 0.5]]))
    Array([0.6931472], dtype=float32)
    """
    z, t = jnp.asarray(logits), jnp.asarray(labels)
    dtype, shape = jnp.result_type(z.dtype, t.dtype, jnp.float16), jnp.broadcast_shapes(z.shape, t.shape)
    z, t = (jnp.broadcast_to(x.astype(dtype), shape) for x in (z, t))
    loss: Array = _cross_entropy(z, t, axis=axis, where=_mask(where), reduction="none")
    return loss


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
) -> Array:
    r"""Return attention, :math:`\mathrm{softmax}(s\, q k^\top + b)\, v`, as `jax.nn.dot_product_attention`.

    Parameters
    ----------
    query : array_like, shape (..., T, N, H)
        N heads of T vectors.
    key, value : array_like, shape (..., S, K, H)
        K heads of S vectors. K divides N.
    bias : array_like, optional
        b, added to the scores. Broadcasts with (..., N, T, S).
    mask : array of bool, optional
        True where a query may see a key. Broadcasts with (..., N, T, S).
    scale : float, optional
        s. Defaults to 1 / sqrt(H).
    is_causal : bool
        If True, query t sees keys 0 to t only. (`softargmax.attention` aligns the last query with the last key.)
    query_seq_lengths, key_value_seq_lengths : array of int, shape (...), optional
        The numbers of queries and keys of each entry of the batch. The output of later queries is 0.
    local_window_size : int or (int, int), optional
        The number of keys that query t sees before and after key t.

    Returns
    -------
    jax.Array, shape (..., T, N, H)
        The output, in the query's dtype. It is 0 for a query that sees no key.

    Raises
    ------
    TypeError, ValueError
        As for `softargmax.attention`.

    Examples
    --------
    >>> from jax import numpy as jnp
    >>> import softargmax.jax
    >>> x = jnp.array([[[1.0]], [[2.0]]])  # two positions, one head
    >>> softargmax.jax.dot_product_attention(x, x, x, is_causal=True)[:, 0, 0]
    Array([1.      , 1.880797], dtype=float32)
    """
    q, k, v = (jnp.swapaxes(jnp.asarray(x), -3, -2) for x in (query, key, value))
    queries, keys = q.shape[-2], k.shape[-2]
    width = local_window_size
    before, after = width if isinstance(width, tuple) else (width, width)
    if is_causal:
        after = 0
    options: dict[str, Any] = {"window": (before, after), "mask": mask}
    if (queries != keys or key_value_seq_lengths is not None) and (before, after) != (None, None):
        distance = jnp.arange(keys) - jnp.arange(queries)[:, None]
        seen = (distance >= (-queries if before is None else -before)) & (
            distance <= (keys if after is None else after)
        )
        options = {"mask": seen if mask is None else seen & jnp.asarray(mask)}
    found = _attention(q, k, v, bias=bias, scale=scale, key_lengths=key_value_seq_lengths, **options)
    found = jnp.swapaxes(found, -3, -2)
    if query_seq_lengths is None:
        return found
    inside = jnp.arange(queries) < jnp.asarray(query_seq_lengths)[..., None]
    return jnp.where(inside[..., None, None], found, 0.0)


def _mask(where: ArrayLike | None) -> Array | None:
    return None if where is None else jnp.asarray(where, bool)
