"""The logarithm of the denominator: logsumexp (the smooth maximum), with signed weights, and of every prefix."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softargmax.core import arrays, check
from softargmax.core.arrays import (
    as_number,
    axes_of,
    kept_shape,
    namespace,
    one_axis,
    readable,
    squeezed,
    working_dtype,
)
from softargmax.core.dispatch import requested_name
from softargmax.core.scale import UNIT
from softargmax.core.signature import public
from softargmax.core.types import Array, DType, Logits, Mask, Numbers, PerRow
from softargmax.normalize import operations, prefix_operations, reference_complex
from softargmax.normalize.operations import Expectation, LogSumExp
from softargmax.normalize.prefix_operations import LogCumSumExp
from softargmax.normalize.results import SignedLog


@public
def logsumexp(
    z: Logits,
    /,
    *,
    axis: int | tuple[int, ...] | None = -1,
    temperature: PerRow = 1.0,
    base: float | None = None,
    weights: Numbers | None = None,
    where: Mask | None = None,
    keepdims: bool = False,
    dtype: DType | None = None,
) -> Array:
    r"""The smooth maximum: the logarithm of the sum of exponentials, in the unit of the scores.

    .. math:: \frac{1}{\beta} \log \sum_i w_i\, e^{\beta z_i}, \qquad \beta = \frac{\ln(\mathrm{base})}{T}

    This is :math:`\mathrm{lse} / \beta = \mathrm{lse} \cdot T / \ln(\mathrm{base})`, where
    :math:`\mathrm{lse} = \log \sum_i w_i\, e^{\beta z_i}` is the logarithm of softmax's denominator. Where T is 1 and
    base is e they are equal. For lse itself use `softmax_with_lse`.

    Parameters
    ----------
    z : array_like
        Scores, any shape, any array library; complex ones too (with SciPy's conventions for phases and infinities).
    axis : int, tuple of int, or None
        The axes that are summed over; None for all of them.
    temperature : float or array
        T. As it goes to 0 this goes to the maximum, from above; a negative T gives the smooth minimum. An array has one
        temperature per row, or many for the same scores, as in `softmax`.
    base : float, optional
        Exponentials of this base in place of e.
    weights : array, optional
        w, which broadcasts with z, at least 0; a weight of 0 takes its score out of the support. Beside float64
        weights (an array, not a list) float32 scores give a float64 result.
    where : array of bool, optional
        The support; what is outside it is not looked at.
    keepdims : bool
        Keep the summed axes, with length 1.
    dtype : dtype, optional
        The floating dtype of the result. Without it: float32 for half scores, else z's own.

    Returns
    -------
    array
        One number per row.

    Notes
    -----
    A row with nothing in its support gives -inf (for T < 0: +inf), one that holds +inf gives +inf, a NaN gives NaN. At
    T = inf (-inf is read as that) it is +inf, unless the row is a single score. With weights it is +inf, -inf or the
    weighted mean there, as their sum is above, below or equal to 1; where they sum to 1 and T is large, the logarithm
    of a number next to 1 is divided by a small beta: the error is that of 1, times T.

    The maximum's own term is taken out of the sum, l = 1 + r, and the logarithm is log1p(r): exact where the result is
    near 0.

    Gradient: with incoming g, g p, the softmax, to z; in a row with k infinities g/k there. To w_i (above 0):
    g p_i / (beta w_i).

    See Also
    --------
    softmax_with_lse : lse, without the division by beta, and the softmax.

    References
    ----------
    Blanchard, Higham & Higham (2021), Accurately computing the log-sum-exp and softmax functions.
    IMA Journal of Numerical Analysis 41. https://doi.org/10.1093/imanum/draa038

    Examples
    --------
    >>> import softargmax
    >>> float(softargmax.logsumexp([1.0, 2.0, 8.0]))
    8.003384...
    >>> smooth_maximum = softargmax.logsumexp([1.0, 2.0], temperature=2)
    >>> lse = softargmax.softmax_with_lse([1.0, 2.0], temperature=2).lse
    >>> float(smooth_maximum), float(lse)  # the first is 2 times the second
    (2.948153..., 1.474076...)
    >>> float(softargmax.logsumexp([1.0, 2.0, 8.0], temperature=-0.1))
    0.99999...
    >>> float(softargmax.logsumexp([0.0, -40.0]))
    4.248354...e-18
    >>> float(softargmax.logsumexp([0.0, 0.0], weights=[1.0, 3.0]))
    1.386294...
    """
    z = check.scores(z, complex_too=True)
    if arrays.dtype_name(z.dtype) in arrays.COMPLEX:
        return _complex_logsumexp(z, axis, temperature, base, weights, where, keepdims, dtype)
    z, axes, beta = check.rows(z, axis, temperature, base)
    z, weights = check.weighted(z, weights)
    where = check.optional_mask(where, z)
    lse = operations.logsumexp.first(LogSumExp(z, weights, where, beta, axes, check.row_dtype(dtype, z)))
    return squeezed(lse, axes, keepdims)


def _complex_logsumexp(
    z: Any, axis: Any, temperature: Any, base: Any, weights: Any, where: Any, keepdims: bool, dtype: Any
) -> Any:
    if dtype is not None:
        raise TypeError(f"dtype: expected None with complex scores, whose dtype the result has, got {dtype!r}")
    if requested_name() == "native":
        raise RuntimeError("implementation 'native' was asked for: it does not serve complex scores, 'reference' does")
    axes = axes_of(axis, z.ndim)
    scale = check.scale_of(temperature, base, z, axes)
    if base == 1:
        raise ValueError(
            "base: expected a number above 0 other than 1 with complex scores, which have no limits, got 1"
        )
    limit = (scale.hi == 0.0) | (abs(scale.hi) == math.inf)
    if limit if isinstance(limit, bool) else readable(limit) and bool(limit.any()):
        may = "any number with a finite 1 / temperature that is not 0"
        raise ValueError(f"temperature: expected {may} with complex scores, which have no limits, got {temperature!r}")
    weights = None if weights is None else check.weights_of(weights, z)
    where = None if where is None else check.mask(where, z)
    return as_number(reference_complex.logsumexp(z, axes, scale, weights, where, bool(keepdims)))


@public
@np.errstate(all="ignore")
def signed_logsumexp(
    z: Logits,
    /,
    weights: Numbers,
    *,
    axis: int | tuple[int, ...] | None = -1,
    where: Mask | None = None,
    keepdims: bool = False,
) -> SignedLog:
    r"""The sum of exponentials with weights of either sign, as a sign and a logarithm.

    .. math:: S = \sum_i w_i\, e^{z_i} = \mathrm{sign} \cdot e^{\mathrm{log\_abs}}

    Parameters
    ----------
    z, axis, where, keepdims
        As in `logsumexp`.
    weights : array
        w, which broadcasts with z; a weight of 0 takes its score out of the support.

    Returns
    -------
    SignedLog
        log_abs, log \|S\|, and sign: -1, 0 or 1 (NaN if S is NaN); one of each per row.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong kind or dtype; if it has a wrong shape or value (of axis: AxisError, a ValueError).

    Notes
    -----
    The positive and the negative terms are summed apart, in float64, and their logarithms subtracted; where most of
    the sum cancels it is taken as the mean of w under the softmax: digits are lost only as far as terms cancel. A row
    with nothing in its support, or whose terms cancel, has log_abs = -inf and sign 0; infinities of both signs: NaN.

    Gradient: with incoming g to log_abs, g w_i exp(z_i) / S to z_i.

    References
    ----------
    Blanchard, Higham & Higham (2021), Accurately computing the log-sum-exp and softmax functions.
    IMA Journal of Numerical Analysis 41. https://doi.org/10.1093/imanum/draa038

    Examples
    --------
    >>> import softargmax
    >>> log_abs, sign = softargmax.signed_logsumexp([1.0, 2.0], [1.0, -1.0])
    >>> float(log_abs), float(sign)
    (1.541324..., -1.0)
    """
    z, axes, _ = check.rows(z, axis)
    z, weights = check.weighted(z, weights, signed=True)
    xp, dtype, wide = namespace(z), check.row_dtype(None, z), working_dtype(z, namespace(z))
    z, weights = xp.astype(z, wide), xp.astype(weights, wide)
    where = check.optional_mask(where, z)
    none = xp.zeros_like(weights)
    sides = xp.where(weights < 0.0, none, weights), xp.where(weights < 0.0, -weights, none)
    plus, minus = (_lse(LogSumExp(z, side, where, UNIT, axes, wide)) for side in sides)
    ahead = plus >= minus
    large, small = xp.where(ahead, plus, minus), xp.where(ahead, minus, plus)
    gap = xp.where(small == -math.inf, -math.inf, small - xp.where(small == -math.inf, 0.0, large))
    log_abs = large + xp.log1p(-xp.exp(xp.where(gap > -0.5, -1.0, gap)))
    sign = xp.where(large == -math.inf, 0.0, xp.where(ahead, xp.ones_like(large), -1.0))

    # Where most of it cancels the logarithms have lost what is left: there it is a mean under the softmax.
    cancels = (gap > -0.5) & (xp.abs(large) < math.inf)
    z, weights = _powers_to_scores(z, weights)
    support = weights != 0.0 if where is None else where & (weights != 0.0)
    lse = _lse(LogSumExp(z, None, support, UNIT, axes, wide))
    mean = squeezed(operations.expectation.first(Expectation(z, support, UNIT, weights, axes, wide)), axes)
    found = xp.where(cancels & (mean != 0.0), xp.abs(mean), 1.0)
    log_abs = xp.where(cancels, xp.where(mean == 0.0, -math.inf, lse + xp.log(found)), log_abs)
    sign = xp.where(cancels, _sign(mean), sign)
    kept = kept_shape(z.shape, axes) if keepdims else large.shape
    nan = xp.isnan(plus) | xp.isnan(minus) | (small == math.inf)  # inf - inf
    return SignedLog(
        *(as_number(xp.reshape(xp.astype(xp.where(nan, math.nan, x), dtype), kept)) for x in (log_abs, sign))
    )


def _lse(i: LogSumExp) -> Any:
    return squeezed(operations.logsumexp.first(i), i.axes)


def _sign(x: Any) -> Any:
    """-1, 0, 1 or NaN. (array_api_compat's for torch does not work inside vmap.)"""
    xp = namespace(x)
    one = xp.ones_like(x)
    return xp.where(x > 0.0, one, xp.where(x < 0.0, -one, x))


def _powers_to_scores(z: Any, weights: Any) -> tuple[Any, Any]:
    """Move large powers of two from the weights to the scores, lest p underflow where a weight is huge.

    Weights of an ordinary size stay, and the scores beside them are not rounded.
    """
    xp = namespace(weights)
    edge, shift = (300, 600) if weights.dtype == xp.float64 else (32, 80)
    size = xp.abs(weights)
    huge, tiny = size > 2.0**edge, (size < 2.0**-edge) & (size > 0.0)
    if check.inspectable(weights) and not bool(xp.any(huge | tiny)):
        return z, weights
    one = xp.ones_like(weights)
    factor = xp.where(huge, 2.0**-shift * one, xp.where(tiny, 2.0**shift * one, one))
    power = xp.where(huge, shift * one, xp.where(tiny, -shift * one, 0.0 * one))
    return z + power * math.log(2.0), weights * factor


@public
def logcumsumexp(
    z: Logits, /, *, axis: int = -1, temperature: PerRow = 1.0, base: float | None = None, where: Mask | None = None
) -> Array:
    r"""The smooth maximum of every prefix of a row, in the unit of the scores: its logsumexp.

    .. math:: y_i = \frac{1}{\beta} \log \sum_{j \le i} e^{\beta z_j},
        \qquad \beta = \frac{\ln(\mathrm{base})}{T}

    Parameters
    ----------
    z : array_like
        Scores, any shape, any array library.
    axis : int
        The axis along which they are accumulated.
    temperature : float or array
        T, in the unit of the scores: a number, or one per row, of the rows' shape or with the axis kept as 1. 0 is the
        limit T -> 0+, the running maximum (-0.0: the running minimum); inf is the limit T -> inf: +inf from the second
        score of the support on.
    base : float, optional
        The base of the powers; without it e.
    where : array of bool, optional
        The support, which broadcasts with z: a score outside of it changes nothing.

    Returns
    -------
    array
        Of z's shape; float32 for half scores.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong kind or dtype; if it has a wrong shape or value (of axis: AxisError, a ValueError).

    Notes
    -----
    A prefix with nothing in its support is -inf (for T < 0: +inf). From the first infinite score on (+inf; for T < 0:
    -inf) every prefix is that infinity, from the first NaN on NaN. The last entry of a row is the row's `logsumexp`.

    Gradient: with incoming g, :math:`\sum_{i \ge j} g_i e^{\beta (z_j - y_i)}` to z_j.

    References
    ----------
    Blanchard, Higham & Higham (2021), Accurately computing the log-sum-exp and softmax functions.
    IMA Journal of Numerical Analysis 41. https://doi.org/10.1093/imanum/draa038

    Examples
    --------
    >>> import softargmax
    >>> softargmax.logcumsumexp([0.0, 0.0, 0.0, 0.0])
    array([0.        , 0.69314718, 1.09861229, 1.38629436])
    >>> softargmax.logcumsumexp([1.0, 3.0, 2.0], temperature=0)
    array([1., 3., 3.])
    """
    z = check.scores(z)
    one = one_axis(axis, z.ndim)
    if z.ndim == 0:
        xp = namespace(z)
        found = logcumsumexp(xp.reshape(z, (1,)), temperature=temperature, base=base, where=where)
        return xp.reshape(found, found.shape[:-1])
    z, axes, beta = check.rows(z, one, temperature, base)
    where = check.optional_mask(where, z)
    return prefix_operations.logcumsumexp.first(LogCumSumExp(z, where, beta, axes, check.row_dtype(None, z)))
