"""logsumexp (the smooth maximum), signed_logsumexp and logcumsumexp."""

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
    row_dtype,
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
    r"""Return the smooth maximum: the logarithm of the sum of exponentials, in the unit of the scores.

    .. math:: \frac{1}{\beta} \log \sum_i w_i\, e^{\beta z_i}, \qquad \beta = \frac{\ln(\mathrm{base})}{T}

    This is :math:`\mathrm{lse} / \beta = \mathrm{lse} \cdot T / \ln(\mathrm{base})`, where
    :math:`\mathrm{lse} = \log \sum_i w_i\, e^{\beta z_i}` is the logarithm of softmax's denominator. The smooth maximum
    equals lse if T is 1 and base is e. For lse itself use `softmax_with_lse`.

    Parameters
    ----------
    z : array_like
        Scores, any shape, any array library. Complex scores follow SciPy's conventions for phases and infinities.
    axis : int, tuple of int, or None
        The axis or axes to sum over; None for all of them.
    temperature : float or array
        T. As T tends to 0, the result tends to the maximum from above. A negative T gives the smooth minimum. An array
        has one temperature per row, or many temperatures for the same scores, as in `softmax`.
    base : float, optional
        Base of the exponentials; defaults to e.
    weights : array, optional
        w, at least 0. The weights broadcast with z. A score with weight 0 is outside the support. float64 weights with
        float32 scores give a float64 result, if the weights are an array and not a list.
    where : array of bool, optional
        True for the entries in the support. All other entries are ignored.
    keepdims : bool
        Keep the summed axes with size 1.
    dtype : dtype, optional
        The floating dtype of the result; defaults to that of z, float32 for half-precision scores.

    Returns
    -------
    array
        One number per row.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    A row with an empty support gives -inf (for beta < 0: +inf), a row with an entry of +inf (for beta < 0: -inf) gives
    that infinity, and a row with a NaN gives NaN.

    At T = inf the result is +inf if the support has two or more scores. If the support has one score, the result is
    this score. T = -inf gives the same result as T = inf. With weights, the result at T = inf depends on the sum of the
    weights. It is +inf for a sum above 1, -inf for a sum below 1, and the weighted mean of the scores for a sum of 1.
    If the weights sum to 1 and T is large, the sum of weighted exponentials is near 1. The rounding error of its
    logarithm is then multiplied by T.

    Let l be the sum of exp(beta z_i - m), where m is the largest beta z_i. The term of the maximum is 1, so l = 1 + r.
    Only r is stored, and log l is computed as log1p(r). A result near 0 therefore keeps its digits.

    Gradient: with incoming g, the gradient with respect to z is g p, where p is the softmax. In a row with k scores of
    +inf, the gradient with respect to each of them is g/k. The gradient with respect to w_i, for w_i above 0, is
    g p_i / (beta w_i).

    See Also
    --------
    softmax_with_lse : returns lse (not divided by beta) together with the softmax.

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
    lse = operations.logsumexp.first(LogSumExp(z, weights, where, beta, axes, check.dtype_of_rows(dtype, z)))
    return squeezed(lse, axes, keepdims)


def _complex_logsumexp(
    z: Any, axis: Any, temperature: Any, base: Any, weights: Any, where: Any, keepdims: bool, dtype: Any
) -> Any:
    """Return the logsumexp of complex scores, computed by the definition. Raise an error if beta is 0 or infinite."""
    if dtype is not None:
        raise TypeError(f"dtype: expected None for complex scores (the result has their dtype), got {dtype!r}")
    if requested_name() == "native":
        raise RuntimeError("implementation 'native' was requested, but only 'reference' supports complex scores")
    axes = axes_of(axis, z.ndim)
    scale = check.scale_of(temperature, base, z, axes)
    if base == 1:
        raise ValueError("base: expected a number above 0 other than 1 for complex scores, got 1")
    limit = (scale.hi == 0.0) | (abs(scale.hi) == math.inf)
    if limit if isinstance(limit, bool) else readable(limit) and bool(limit.any()):
        expected = "1 / temperature to be finite and not 0"
        raise ValueError(f"temperature: expected {expected} for complex scores, got {temperature!r}")
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
    r"""Return the sum of exponentials with weights of either sign, as a sign and a logarithm.

    .. math:: S = \sum_i w_i\, e^{z_i} = \mathrm{sign} \cdot e^{\mathrm{log\_abs}}

    Parameters
    ----------
    z, axis, where, keepdims
        As in `logsumexp`.
    weights : array
        w. The weights broadcast with z. A score with weight 0 is outside the support.

    Returns
    -------
    SignedLog
        log_abs, which is log \|S\|, and sign, which is -1, 0 or 1 (NaN if S is NaN). Both have one number per row.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    Positive and negative terms are summed separately in float64, and the logarithms of the two sums are combined. If
    the two sums are almost equal, S is computed instead as sum exp(z_i) times the mean of w under the softmax. Only the
    digits that cancel are then lost. A row with an empty support has log_abs = -inf and sign 0, and so does a row whose
    terms cancel exactly. If both sums are infinite, the result is NaN.

    Gradient: with g the incoming gradient of log_abs, the gradient with respect to z_i is g w_i exp(z_i) / S.

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
    xp, dtype, wide = namespace(z), row_dtype(z.dtype), working_dtype(z, namespace(z))
    z, weights = xp.astype(z, wide), xp.astype(weights, wide)
    where = check.optional_mask(where, z)
    zeros = xp.zeros_like(weights)
    sides = xp.where(weights < 0.0, zeros, weights), xp.where(weights < 0.0, -weights, zeros)
    plus, minus = (_lse(LogSumExp(z, side, where, UNIT, axes, wide)) for side in sides)
    positive = plus >= minus
    large, small = xp.where(positive, plus, minus), xp.where(positive, minus, plus)
    gap = xp.where(small == -math.inf, -math.inf, small - xp.where(small == -math.inf, 0.0, large))
    log_abs = large + xp.log1p(-xp.exp(xp.where(gap > -0.5, -1.0, gap)))
    sign = xp.where(large == -math.inf, 0.0, xp.where(positive, xp.ones_like(large), -1.0))

    # If the two sums are almost equal, their logarithms have too few digits. Compute S as exp(lse) times the mean of w
    # under the softmax.
    cancels = (gap > -0.5) & (xp.abs(large) < math.inf)
    z, weights = _powers_to_scores(z, weights)
    support = weights != 0.0 if where is None else where & (weights != 0.0)
    lse = _lse(LogSumExp(z, None, support, UNIT, axes, wide))
    mean = squeezed(operations.expectation.first(Expectation(z, support, UNIT, weights, axes, wide)), axes)
    size = xp.where(cancels & (mean != 0.0), xp.abs(mean), 1.0)
    log_abs = xp.where(cancels, xp.where(mean == 0.0, -math.inf, lse + xp.log(size)), log_abs)
    sign = xp.where(cancels, _sign(mean), sign)
    kept = kept_shape(z.shape, axes) if keepdims else large.shape
    nan = xp.isnan(plus) | xp.isnan(minus) | (small == math.inf)  # inf - inf
    return SignedLog(
        *(as_number(xp.reshape(xp.astype(xp.where(nan, math.nan, x), dtype), kept)) for x in (log_abs, sign))
    )


def _lse(i: LogSumExp) -> Any:
    """Return the logsumexp of each row, without the reduced axes."""
    return squeezed(operations.logsumexp.first(i), i.axes)


def _sign(x: Any) -> Any:
    """Return the sign: -1, 0, 1 or NaN. (torch's `sign` in array_api_compat does not work inside vmap.)"""
    xp = namespace(x)
    one = xp.ones_like(x)
    return xp.where(x > 0.0, one, xp.where(x < 0.0, -one, x))


def _powers_to_scores(z: Any, weights: Any) -> tuple[Any, Any]:
    """Move powers of two from huge and tiny weights to the scores, so that the softmax does not underflow.

    Weights of moderate size do not change. Their scores do not change either, and so are not rounded.
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
    r"""Return the smooth maximum of every prefix of a row, in the unit of the scores.

    .. math:: y_i = \frac{1}{\beta} \log \sum_{j \le i} e^{\beta z_j},
        \qquad \beta = \frac{\ln(\mathrm{base})}{T}

    Parameters
    ----------
    z : array_like
        Scores, any shape, any array library.
    axis : int
        The axis along which to accumulate.
    temperature : float or array
        T, in the unit of the scores: one number, or an array with one number per row. An array has the shape of z
        without `axis`, or with size 1 along `axis`. 0 is the limit T -> 0+, the running maximum (-0.0: the running
        minimum). inf is the limit T -> inf, which is +inf for prefixes with two or more scores in the support.
    base : float, optional
        Base of the exponentials; defaults to e.
    where : array of bool, optional
        True for the scores in the support. It broadcasts with z. All other scores are ignored.

    Returns
    -------
    array
        One smooth maximum per prefix, of z's shape. float32 for half-precision scores.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    A prefix with an empty support gives -inf (for beta < 0: +inf). A prefix that contains +inf (for beta < 0: -inf)
    gives that infinity, and a prefix that contains a NaN gives NaN. The last entry of the result is the `logsumexp` of
    the row.

    Gradient: with incoming g, the gradient with respect to z_j is :math:`\sum_{i \ge j} g_i e^{\beta (z_j - y_i)}`.

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
        prefixes = logcumsumexp(xp.reshape(z, (1,)), temperature=temperature, base=base, where=where)
        return xp.reshape(prefixes, prefixes.shape[:-1])
    z, axes, beta = check.rows(z, one, temperature, base)
    where = check.optional_mask(where, z)
    return prefix_operations.logcumsumexp.first(LogCumSumExp(z, where, beta, axes, row_dtype(z.dtype)))
