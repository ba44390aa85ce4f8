"""Functions of `jax.nn` and `optax` with their own signatures, computed by softargmax. Requires the extra `jax`.

Import this module in a process that calls an exported program (`jax.export`) before the program is called.

All functions work under `jit`, `grad`, `vmap` and other transformations, like those of softargmax itself.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from softargmax.core.extras import install

try:
    from jax import numpy as jnp
except ModuleNotFoundError as missing:
    raise ImportError(f"softargmax.jax needs JAX: {install('jax')}") from missing

from softargmax.attend import attention as _attention
from softargmax.core import check as _check
from softargmax.core import jax_call as _jax_call  # registers the custom call with XLA
from softargmax.loss import cross_entropy as _cross_entropy
from softargmax.normalize import log_softmax as _log_softmax
from softargmax.normalize import logsumexp as _logsumexp
from softargmax.normalize import signed_logsumexp as _signed_logsumexp
from softargmax.normalize import softmax as _softmax

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@contextmanager
def _named(**names: str) -> Iterator[None]:
    """Let errors name the arguments of this module's functions: `names` maps the names of softargmax to them."""
    try:
        yield
    except (TypeError, ValueError) as error:
        name, _, rest = str(error).partition(": ")
        if name not in names:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{names[name]}: {rest}") from None


@_named(z="x")
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
    p: Array = _softmax(_array(x, "x"), axis=axis, where=_mask(where))
    return p


@_named(z="x")
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
    log_p: Array = _log_softmax(_array(x, "x"), axis=axis, where=_mask(where))
    return log_p


@_named(z="a", weights="b")
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
    x = _array(a, "a")
    if b is None and not return_sign:
        lse: Array = _logsumexp(x, axis=axis, keepdims=keepdims, where=_mask(where))
        return lse
    x, weights = _check.together(_check.scores(x, "a"), jnp.ones(()) if b is None else _array(b, "b"), "b")
    found = _signed_logsumexp(x, weights, axis=axis, where=_mask(where), keepdims=keepdims)
    if return_sign:
        return found.log_abs, found.sign
    return jnp.where(found.sign < 0, jnp.nan, found.log_abs)


@_named(z="logits", target="labels")
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
    z, y = _array(logits, "logits"), _array(labels, "labels")
    loss: Array = _cross_entropy(z, y, axis=axis, where=_mask(where), reduction="none")
    return loss


@_named(z="logits", target="labels")
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
    z, t = _array(logits, "logits"), _array(labels, "labels")
    z, t = _check.together(_check.scores(z, "logits"), t, "labels")
    loss: Array = _cross_entropy(z, t, axis=axis, where=_mask(where), reduction="none")
    return loss


@_named(q="query", k="key", v="value", key_lengths="key_value_seq_lengths", window="local_window_size")
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
    vectors = {"query": query, "key": key, "value": value}
    q, k, v = (jnp.swapaxes(x, -3, -2) for x in _of_heads({name: _array(x, name) for name, x in vectors.items()}))
    queries, keys = q.shape[-2], k.shape[-2]
    before, after = _window(local_window_size)
    if _check.flag(is_causal, "is_causal"):
        after = 0
    options: dict[str, Any] = {"window": (before, after), "mask": mask}
    if (queries != keys or key_value_seq_lengths is not None) and (before, after) != (None, None):
        distance = jnp.arange(keys) - jnp.arange(queries)[:, None]
        seen = (distance >= (-queries if before is None else -before)) & (
            distance <= (keys if after is None else after)
        )
        scores = (*q.shape[:-1], keys)
        options = {"mask": seen if mask is None else seen & _check.mask(mask, q, scores, name="mask")}
    found = _attention(q, k, v, bias=bias, scale=scale, key_lengths=key_value_seq_lengths, **options)
    found = jnp.swapaxes(found, -3, -2)
    if query_seq_lengths is None:
        return found
    lengths, batch = _array(query_seq_lengths, "query_seq_lengths"), found.shape[:-3]
    if not jnp.issubdtype(lengths.dtype, jnp.integer) or not _check.broadcasts(lengths.shape, batch):
        raise ValueError(
            f"query_seq_lengths: expected integers of shape {batch}, got dtype {lengths.dtype}, shape {lengths.shape}"
        )
    inside = jnp.arange(queries) < lengths[..., None]
    return jnp.where(inside[..., None, None], found, 0.0)


def _of_heads(vectors: dict[str, Array]) -> tuple[Array, Array, Array]:
    """Check the shapes of queries, keys and values, whose heads are the axis before the last."""
    for name, x in vectors.items():
        if x.ndim < 3:
            raise ValueError(f"{name}: expected shape (..., length, heads, width), got {x.shape}")
    query, key, value = vectors.values()
    heads, width = query.shape[-2:]
    if key.shape[-1] != width or heads % max(key.shape[-2], 1):
        allowed = f"(..., keys, heads, {width}) with {heads} heads, as in query, or a divisor of {heads}"
        raise ValueError(f"key: expected shape {allowed}, got {key.shape}")
    if value.shape[-3:-1] != key.shape[-3:-1]:
        raise ValueError(f"value: expected shape (..., {key.shape[-3]}, {key.shape[-2]}, width), got {value.shape}")
    return query, key, value


def _window(size: Any) -> tuple[int | None, int | None]:
    """Return the number of keys that a query sees before and after its position; None means no limit."""
    sides = size if isinstance(size, (tuple, list)) else (size, size)
    if len(sides) != 2:
        raise ValueError(f"local_window_size: expected an integer or two, got {size}")
    before, after = (None if one is None else _check.integer(one, "local_window_size") for one in sides)
    if min(before or 0, after or 0) < 0:
        raise ValueError(f"local_window_size: expected 0 or above, got {size}")
    return before, after


def _array(x: ArrayLike, name: str) -> Array:
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: expected an array, got {x!r:.60}, which JAX cannot convert: {error}") from None


def _mask(where: ArrayLike | None) -> Array | None:
    return None if where is None else _array(where, "where").astype(bool)
