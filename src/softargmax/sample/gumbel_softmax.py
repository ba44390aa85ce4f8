"""Gumbel noise, and relaxed draws that can be differentiated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softargmax.core import check
from softargmax.core.arrays import as_array, as_number, device_of, frozen, namespace, one_axis, row_dtype, shown
from softargmax.core.seeds import seed_of
from softargmax.core.signature import public
from softargmax.core.types import Array, Generator, Integers, Like, Logits, Mask, PerRow, Seed
from softargmax.normalize import softmax
from softargmax.sample import operations
from softargmax.sample.check_options import parameter, rows_of, source_of
from softargmax.sample.operations import Noise

INF = math.inf


@public
def gumbel(
    shape: int | tuple[int, ...],
    *,
    like: Like | None = None,
    seed: Seed | None = None,
    generator: Generator | None = None,
) -> Array:
    r"""Return standard Gumbel noise.

    .. math:: g = -\log(-\log(1 - V)), \qquad V = (w + 1/2)\,2^{-64}

    Parameters
    ----------
    shape : int or tuple of int
        The shape of the noise. Rows run along the last axis. The stream of a row is the index of the row.
    like : array, optional
        The noise has the library and the device of this array, and also its dtype if the array is floating. By default
        the noise is a NumPy array of float64.
    seed, generator
        As in `categorical`.

    Returns
    -------
    array
        g, computed in float64 if the library has float64.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype.
    ValueError
        If an argument has the wrong shape, or a value is out of range.

    Notes
    -----
    w consists of 64 random bits of Philox4x32-10 for the seed, row and column. V is at least 2^-65 and at most
    1 - 2^-65, so that -3.82 < g < 45.1. Both tails are accurate to all digits. The arg max of
    ``z + gumbel(z.shape, seed=s)`` is ``categorical(z, seed=s)``.

    There is no gradient, because the noise depends on no array.

    References
    ----------
    Gumbel (1954), Statistical theory of extreme values. Salmon, Moraes, Dror & Shaw (2011), Parallel random numbers:
    as easy as 1, 2, 3.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.gumbel((2, 3), seed=0).round(3)
    array([[ 0.675, -0.754, -0.286],
           [ 0.319, -1.032,  2.8  ]])
    """
    like = check.scores(0.0 if like is None else as_array(like, "like"), "like")
    shape = _shape(shape)
    z = namespace(like).empty(shape, dtype=like.dtype, device=device_of(like))  # only its shape and dtype are used
    axes = (len(shape) - 1,) if shape else ()
    return as_number(operations.gumbel.first(Noise(z, seed_of(like, seed, generator), None, axes, like.dtype)))


def _shape(shape: Any) -> tuple[int, ...]:
    sizes = (shape,) if hasattr(shape, "__index__") else shape
    try:
        sizes = tuple(int(n.__index__()) for n in sizes)
    except (TypeError, AttributeError):
        raise TypeError(f"shape: expected an integer or a tuple of integers, got {shown(shape)}") from None
    if min(sizes, default=0) < 0 or math.prod(sizes) >= 1 << 60:
        raise ValueError(f"shape: expected sizes of 0 or above with a product below 2^60, got {sizes}")
    return sizes


@public
def gumbel_softmax(
    z: Logits,
    /,
    *,
    temperature: PerRow = 1.0,
    hard: bool = False,
    axis: int = -1,
    where: Mask | None = None,
    seed: Seed | None = None,
    stream: Integers | None = None,
    generator: Generator | None = None,
) -> Array:
    r"""Return a relaxed draw from the softmax: a point of the simplex that gradients can flow through.

    .. math:: y = \mathrm{softmax}\!\left(\frac{z + g}{T}\right), \qquad g \text{ Gumbel noise}

    Parameters
    ----------
    z : array_like
        Scores, any shape but 0-d, any array library.
    temperature : float or array
        T, at least 0. The lower T is, the nearer y is to one-hot. An array has one T per row.
    hard : bool
        If True, return the one-hot vector of the largest entry, with the gradient of y (straight-through).
    axis : int
        The axis of the classes.
    where : array of bool, optional
        True for the classes in the support, as in `softmax`.
    seed, stream, generator
        As in `categorical`. Rows are counted along the other axes in C order.

    Returns
    -------
    array
        y, with z's shape and dtype. Half-precision scores are computed in float32.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype.
    ValueError
        If an argument has the wrong shape, or a value is out of range.

    Notes
    -----
    For every T, the arg max of y is distributed as softmax(z). It equals ``categorical(z, seed=seed)``.

    Edge rows are as in `softmax`, with one difference: k entries of +inf count as equal scores, and the noise decides
    between them. All other entries of such a row are 0. A row with an empty support is 0, with or without `hard`. A row
    with NaN is NaN. On a device or under tracing, the temperature is not checked. A negative T then makes its row NaN.

    `vmap` works as in `categorical`.

    Gradient: the gradient of `softmax` at the noisy scores, with the noise as a constant. `hard` does not change the
    gradient.

    References
    ----------
    Jang, Gu & Poole (2017), Categorical reparameterization with Gumbel-softmax. arXiv:1611.01144. Maddison, Mnih & Teh
    (2017), The concrete distribution. arXiv:1611.00712.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.gumbel_softmax([1.0, 2.0, 8.0], temperature=0.5, hard=True, seed=0)
    array([0., 0., 1.])
    """
    z = rows_of(z)
    axis = one_axis(axis, z.ndim)
    where = None if where is None else check.mask(where, z)
    temperature = parameter(temperature, z, "temperature", axis)
    xp = namespace(z)
    dtype = row_dtype(z.dtype)
    noise = operations.gumbel.first(Noise(z, *source_of(z, axis, seed, stream, generator), (axis,), dtype))
    scores = xp.astype(z, dtype, copy=False)
    if not (isinstance(temperature, float) and temperature < _LARGE_TEMPERATURE):
        scores, noise, temperature = 0.5 * scores, 0.5 * noise, 0.5 * temperature
    noisy = _noisy(scores, noise, axis, where)
    y = softmax(noisy, axis=axis, temperature=temperature, where=where)
    if hard:
        y = _one_hot(noisy, y, axis, where) + (y - frozen(y))
    return xp.astype(y, z.dtype, copy=False)


# The difference of two scores may overflow to -inf. At small T the probability is then 0, which is right. If T is an
# array, or a number of at least `_LARGE_TEMPERATURE`, scores, noise and T are halved before the difference. Halving
# them always would take 1.4 times as long (torch, 256 x 32768).
_LARGE_TEMPERATURE = 1e30


@np.errstate(over="ignore")  # z - max z may overflow to -inf; p is then 0
def _noisy(z: Any, noise: Any, axis: int, where: Any) -> Any:
    """Return z - max z + g. In a row with +inf, return g for the infinities and -inf for the other entries.

    Without the subtraction of max z, large scores would absorb the noise. The probabilities of close scores would then
    be wrong.
    """
    xp = namespace(z)
    if z.shape[axis] == 0:
        return z
    top = xp.max(frozen(z if where is None else xp.where(where, z, -INF)), axis=axis, keepdims=True)
    z = z - xp.where(xp.abs(top) < INF, top, 0.0)
    infinite = z == INF if where is None else (z == INF) & where
    limit = xp.any(infinite, axis=axis, keepdims=True) & ~xp.isnan(z)
    return xp.where(limit, xp.where(infinite, noise, -INF), z + noise)


def _one_hot(noisy: Any, y: Any, axis: int, where: Any) -> Any:
    """Return 1 at the largest entry and 0 elsewhere. A row without a positive y is 0."""
    xp = namespace(y)
    if y.shape[axis] == 0:
        return y
    noisy = noisy if where is None else xp.where(where, noisy, -INF)
    noisy = xp.where(y > 0, noisy, -INF)
    first = xp.argmax(noisy, axis=axis, keepdims=True)
    place = xp.arange(y.shape[axis], dtype=first.dtype, device=device_of(y))
    place = xp.reshape(place, tuple(-1 if i == axis else 1 for i in range(y.ndim)))
    return xp.astype((place == first) & (y > 0), y.dtype)
