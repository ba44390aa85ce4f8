"""Gumbel noise, and relaxed draws that can be differentiated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softargmax.core import check
from softargmax.core.arrays import as_array, as_number, device_of, frozen, namespace, one_axis, row_dtype
from softargmax.core.seeds import seed_of
from softargmax.core.signature import public
from softargmax.core.types import Array, Generator, Integers, Like, Logits, Mask, PerRow
from softargmax.normalize import softmax
from softargmax.sample import operations
from softargmax.sample.operations import Noise
from softargmax.sample.options import parameter, rows_of, source_of

INF = math.inf


@public
def gumbel(
    shape: int | tuple[int, ...],
    *,
    like: Like | None = None,
    seed: int | None = None,
    generator: Generator | None = None,
) -> Array:
    r"""Standard Gumbel noise.

    .. math:: g = -\log(-\log(1 - V)), \qquad V = (w + 1/2)\,2^{-64}

    Parameters
    ----------
    shape : int or tuple of int
        The shape; the last axis has columns, the others are rows, each with a stream of its own: its index.
    like : array, optional
        An array whose library, device and dtype (if floating) the noise takes; without it NumPy and float64.
    seed, generator
        As in `categorical`.

    Returns
    -------
    array
        g, computed in float64 where the library has it.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape, or a value out of range.

    Notes
    -----
    w is 64 bits of Philox4x32-10 for (seed, row, column), so -3.82 < g < 45.1 and both tails have all their digits.
    ``z + gumbel(z.shape, seed=s)`` has its largest entry where ``categorical(z, seed=s)`` is.

    No gradient: it depends on nothing.

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
        raise TypeError(f"shape: expected an integer or a tuple of integers, got {shape!r}") from None
    if min(sizes, default=0) < 0 or math.prod(sizes) >= 1 << 60:
        raise ValueError(
            "shape: expected sizes of 0 or more with a product up to 2^60, got a negative size or a larger product"
        )
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
    seed: int | None = None,
    stream: Integers | None = None,
    generator: Generator | None = None,
) -> Array:
    r"""Draw from the softmax, relaxed to a point near a corner of the simplex, through which gradients flow.

    .. math:: y = \mathrm{softmax}\!\left(\frac{z + g}{T}\right), \qquad g \text{ Gumbel noise}

    Parameters
    ----------
    z : array_like
        Scores, any shape but 0-d, any array library.
    temperature : float or array
        T, at least 0: the lower, the nearer to one-hot. An array has one per row.
    hard : bool
        The one-hot of the largest entry in place of y, with the gradient of y (straight through).
    axis : int
        The axis of the classes.
    where : array of bool, optional
        The support as in `softmax`.
    seed, stream, generator
        As in `categorical`; rows are those along the other axes, in C order.

    Returns
    -------
    array
        Of z's shape and dtype; halves are computed in float32.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape, or a value out of range.

    Notes
    -----
    The largest entry of y is distributed as softmax(z), whatever T is, and is that of ``categorical(z, seed=seed)``.
    The edge rows are those of `softmax`, but k entries of +inf are drawn from with equal chances: they are equal
    scores, and the others are out. A row with nothing in its support is 0, hard or not; one with a NaN is NaN, as is
    one whose temperature is negative where nobody looks (on devices, under tracing). `vmap`: as in `categorical`.

    Gradient: that of `softmax` at the noisy scores, the noise being constant; with `hard` the same.

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
    if not (isinstance(temperature, float) and temperature < _LARGE):
        scores, noise, temperature = 0.5 * scores, 0.5 * noise, 0.5 * temperature
    noisy = _noisy(scores, noise, axis, where)
    y = softmax(noisy, axis=axis, temperature=temperature, where=where)
    if hard:
        y = _one_hot(noisy, y, axis, where) + (y - frozen(y))
    return xp.astype(y, z.dtype, copy=False)


# Above this the difference of two scores may overflow, so halves of the scores are used. Doing so always would take
# 1.4 times as long (torch, 256 x 32768).
_LARGE = 1e30


@np.errstate(over="ignore")  # with a tiny T the quotient overflows; p is 0 there
def _noisy(z: Any, noise: Any, axis: int, where: Any) -> Any:
    """Return z - max z + g; in a row with +inf, the noise of its infinities and -inf elsewhere.

    Without the difference, large scores would round their noise away, and with it the chances of near ones.
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
    """Return 1 at the largest entry, if there is one."""
    xp = namespace(y)
    if y.shape[axis] == 0:
        return y
    noisy = noisy if where is None else xp.where(where, noisy, -INF)
    noisy = xp.where(y > 0, noisy, -INF)
    first = xp.argmax(noisy, axis=axis, keepdims=True)
    place = xp.arange(y.shape[axis], dtype=first.dtype, device=device_of(y))
    place = xp.reshape(place, tuple(-1 if i == axis else 1 for i in range(y.ndim)))
    return xp.astype((place == first) & (y > 0), y.dtype)
