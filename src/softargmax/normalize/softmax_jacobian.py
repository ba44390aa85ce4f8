"""softmax_jacobian: the derivative of the softmax as a matrix."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softargmax.core import check
from softargmax.core.arrays import device_of, namespace, one_axis, row_dtype
from softargmax.core.signature import public
from softargmax.core.types import Array, Logits, PerRow
from softargmax.normalize import operations
from softargmax.normalize.operations import Scores


@public
@np.errstate(all="ignore")
def softmax_jacobian(z: Logits, /, *, axis: int = -1, temperature: PerRow = 1.0, base: float | None = None) -> Array:
    r"""Return the Jacobian matrix of the softmax.

    .. math:: J_{ij} = \frac{\partial p_i}{\partial z_j} = \beta\,(\delta_{ij}\, p_i - p_i\, p_j)

    Parameters
    ----------
    z : array_like
        Scores, any shape, any array library.
    axis : int
        The axis of a row of K scores.
    temperature, base
        As in `softmax`.

    Returns
    -------
    array
        Jacobians, with z's dtype. The shape is that of z with `axis` replaced by two axes of length K, for i and j.
        Each matrix is symmetric, its rows sum to 0, and it is positive semidefinite for beta > 0.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    Entries outside the support are 0. The matrix is 0 if a scaled score of the row is +inf. At T = 0 all matrices are
    0, because the softmax is piecewise constant. A row with a NaN has a matrix of NaN.

    The factor 1 - p_i of the diagonal is computed from log p_i, without cancellation. J is also the Hessian of the
    smooth maximum.

    References
    ----------
    Goodfellow, Bengio & Courville (2016), Deep Learning, section 6.2.2.3.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.softmax_jacobian([1.0, 2.0, 3.0]).round(4)
    array([[ 0.0819, -0.022 , -0.0599],
           [-0.022 ,  0.1848, -0.1628],
           [-0.0599, -0.1628,  0.2227]])
    """
    z = check.scores(z)
    one = one_axis(axis, z.ndim)
    xp = namespace(z)
    if z.ndim == 0:
        return softmax_jacobian(xp.reshape(z, (1,)), temperature=temperature, base=base)
    z, axes, scale = check.rows(z, one, temperature, base)
    (one,) = axes
    wide = row_dtype(z.dtype)
    last = (*(i for i in range(z.ndim) if i != one), one)
    p = xp.permute_dims(operations.softmax.first(Scores(z, None, scale, axes, wide)), last)
    log_p = xp.permute_dims(operations.log_softmax.first(Scores(z, None, scale, axes, wide)), last)
    rest = -xp.expm1(log_p)  # 1 - p
    diagonal = xp.eye(z.shape[one], dtype=xp.bool, device=device_of(z))
    slope = xp.where(diagonal, (p * rest)[..., None, :], -p[..., :, None] * p[..., None, :])

    beta = scale.hi
    if not isinstance(beta, float):
        beta = xp.permute_dims(xp.astype(beta, wide), last)
    zero = (slope == 0.0) | _constant(xp.permute_dims(z, last), beta, xp)[..., None, None]
    beta = beta if isinstance(beta, float) else beta[..., None]
    jacobian = xp.where(zero, 0.0, beta * xp.where(zero, 1.0, slope))
    back = (*range(one), z.ndim - 1, z.ndim, *range(one, z.ndim - 1))
    return xp.astype(xp.permute_dims(jacobian, back), z.dtype)


def _constant(rows: Any, beta: Any, xp: Any) -> Any:
    """True for rows without NaN in which T is 0 or a scaled score is +inf. Their softmax is locally constant."""
    constant = abs(beta) == math.inf
    constant = constant | (xp.abs(rows) == math.inf) & ((rows > 0.0) == (beta >= 0.0))
    return xp.any(constant, axis=-1) & ~xp.any(xp.isnan(rows), axis=-1)
