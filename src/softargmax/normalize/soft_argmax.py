"""soft_argmax and spatial_soft_argmax: the expected position under the softmax."""

from __future__ import annotations

import math
from typing import Any

from softargmax.core import check
from softargmax.core.arrays import axes_of, device_of, kept_shape, namespace, row_dtype, row_shape, squeezed
from softargmax.core.signature import public
from softargmax.core.types import Array, Logits, Mask, Numbers, PerRow
from softargmax.normalize import operations
from softargmax.normalize.operations import Expectation


@public
def soft_argmax(
    z: Logits,
    /,
    values: Numbers | None = None,
    *,
    axis: int | tuple[int, ...] | None = -1,
    temperature: PerRow = 1.0,
    where: Mask | None = None,
    keepdims: bool = False,
) -> Array:
    r"""Return the mean of positions, or of any values, under the softmax: a differentiable arg max.

    .. math:: \hat v = \sum_i p_i\, v_i, \qquad p = \mathrm{softmax}(z / T)

    Parameters
    ----------
    z : array_like
        Scores, any shape, any array library.
    values : array, shape (K,) or (K, D), optional
        The values to average: one number or one vector for each of a row's K entries. Defaults to the positions
        0..K-1.
    axis, temperature, where
        As in `softmax`. If a row has several axes, its entries are numbered in C order. `spatial_soft_argmax` returns
        one coordinate per axis instead.
    keepdims : bool
        Keep the reduced axes with size 1.

    Returns
    -------
    array
        One mean per row, with a last axis of length D if the values are vectors. float32 for half-precision scores.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    Values outside the support are ignored, even NaN. A row with an empty support gives 0. A row whose peak is at
    position 0 may also give 0. To find rows with an empty support, use ``logsumexp(z) == -inf``. If the values are
    vectors, each of their D components takes a separate pass over the scores. For large D, ``softmax(z) @ values``
    is faster than `soft_argmax` but less accurate.

    Gradient: with incoming g, the gradient with respect to z_i is :math:`\beta\,p_i \langle g, v_i - \hat v\rangle`,
    and with respect to v_i it is p_i g. As T tends to 0, the result tends to the value at the maximum (the mean over
    the maxima if there are several), and the gradient with respect to z tends to 0.

    References
    ----------
    Chapelle & Wu (2010), Gradient descent optimization of smoothed information retrieval metrics.
    Levine, Finn, Darrell & Abbeel (2016), End-to-end training of deep visuomotor policies, JMLR 17.

    Examples
    --------
    >>> import softargmax
    >>> float(softargmax.soft_argmax([0.0, 0.0, 9.0, 0.0]))
    1.999753...
    >>> softargmax.soft_argmax([0.0, 8.0], [[1.0, 0.0], [0.0, 1.0]]).round(3)
    array([0., 1.])
    """
    z, axes, beta = check.rows(z, axis, temperature)
    xp, wide = namespace(z), row_dtype(z.dtype)
    i = Expectation(z, check.optional_mask(where, z), beta, None, axes, wide)
    if values is None:
        return squeezed(operations.expectation.first(i), axes, keepdims)
    values = check.values_of(values, z, math.prod(z.shape[i] for i in axes))
    shape = tuple(n if i in axes else 1 for i, n in enumerate(z.shape))

    def mean(column: Any) -> Any:
        return squeezed(operations.expectation.first(i._replace(values=xp.reshape(column, shape))), axes, keepdims)

    if values.ndim == 1:
        return mean(values)
    if values.shape[1] == 0:
        kept = kept_shape(z.shape, axes) if keepdims else row_shape(z.shape, axes)
        return xp.zeros((*kept, 0), dtype=wide, device=device_of(z))
    return xp.stack([mean(values[:, d]) for d in range(values.shape[1])], axis=-1)


@public
def spatial_soft_argmax(
    z: Logits, /, *, axis: int | tuple[int, ...] | None = (-2, -1), temperature: PerRow = 1.0, where: Mask | None = None
) -> Array:
    r"""Return the mean position under the softmax of an image or grid: one coordinate per axis.

    .. math:: \hat v_d = \sum_{i_1 \dots i_D} p_{i_1 \dots i_D}\, i_d, \qquad p = \mathrm{softmax}(z / T)

    Parameters
    ----------
    z : array_like
        Scores, any shape that has the axes in `axis`, any array library.
    axis : tuple of int, int or None
        The D axes of the grid; None for all of them.
    temperature, where
        As in `softmax`. Each grid is one row.

    Returns
    -------
    array, shape (..., D)
        Positions in pixels, counted from 0, in the order of `axis`. For an image this is (row, column), that is
        (y, x). float32 for half-precision scores.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    Edge rows are as in `soft_argmax`. A grid with an empty support gives 0 for every coordinate.

    Gradient: with incoming g, the gradient with respect to the score at position :math:`i = (i_1 \dots i_D)` is
    :math:`\beta\,p_i \sum_d g_d (i_d - \hat v_d)`.

    References
    ----------
    Levine, Finn, Darrell & Abbeel (2016), End-to-end training of deep visuomotor policies, JMLR 17, section 5.

    Examples
    --------
    >>> import numpy as np, softargmax
    >>> image = np.zeros((480, 640))
    >>> image[123, 456] = 40.0
    >>> softargmax.spatial_soft_argmax(image).round(3)
    array([123., 456.])
    """
    z = check.scores(z)
    ndim, grid = z.ndim, axes_of(axis, z.ndim)
    if not grid:
        raise ValueError(f"axis: expected at least one axis, got {axis} for scores of {ndim} dimensions")
    z, axes, beta = check.rows(z, grid, temperature)
    xp, wide = namespace(z), row_dtype(z.dtype)
    i = Expectation(z, check.optional_mask(where, z), beta, None, axes, wide)

    def mean(d: int) -> Any:
        positions = xp.arange(z.shape[d], dtype=wide, device=device_of(z))
        positions = xp.reshape(positions, tuple(n if k == d else 1 for k, n in enumerate(z.shape)))
        return squeezed(operations.expectation.first(i._replace(values=positions)), axes)

    order = [d % ndim for d in axis] if isinstance(axis, (tuple, list)) else grid
    return xp.stack([mean(d + z.ndim - ndim) for d in order], axis=-1)  # an array of temperatures adds leading axes
