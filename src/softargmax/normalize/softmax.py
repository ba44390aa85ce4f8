"""softmax: map a row of scores to a row of probabilities."""

from __future__ import annotations

from typing import Any

from softargmax.core import check
from softargmax.core._native import axes_at_once, plain_axes
from softargmax.core.out_argument import fits, output
from softargmax.core.scale import UNIT
from softargmax.core.signature import public
from softargmax.core.types import Array, DType, Logits, Mask, PerRow
from softargmax.normalize import operations
from softargmax.normalize.operations import Scores

_new = tuple.__new__


@public
def softmax(
    z: Logits,
    /,
    *,
    axis: int | tuple[int, ...] | None = -1,
    temperature: PerRow = 1.0,
    base: float | None = None,
    where: Mask | None = None,
    dtype: DType | None = None,
    out: Array | None = None,
) -> Array:
    r"""Return the softmax: probabilities proportional to the exponentials of the scores.

    .. math:: p_i = \frac{e^{\beta z_i}}{\sum_j e^{\beta z_j}}, \qquad \beta = \frac{\ln(\mathrm{base})}{T}

    Parameters
    ----------
    z : array_like
        Scores, any shape, any array library. The result has the same array type, shape and dtype. For float16 and
        bfloat16 scores the computation is in float32 or better. Integers and booleans become the library's default
        float dtype.
    axis : int, tuple of int, or None
        The axis or axes of a row of scores; None for all of them.
    temperature : float or array
        T. A higher temperature gives a more uniform result. 0 gives the limit T -> 0+, in which tied maxima share the
        probability (-0.0: tied minima). Infinity gives the uniform distribution over the support. Negative temperatures
        favour small scores. An array has one temperature per row. To apply many temperatures to the same scores, pass
        an array with more axes than z, of size 1 along `axis`. The extra axes come first in the result. A list of M
        temperatures for a single row of K scores gives a result of shape (M, K).
    base : float, optional
        Base of the exponentials; defaults to e. A base above 1 favours large scores and a base below 1 small scores. A
        base of 1 gives the uniform distribution over the support.
    where : array of bool, optional
        True for the entries in the support. All other entries have probability 0, even if their score is NaN.
    dtype : dtype, optional
        The floating dtype of the result; defaults to that of z.
    out : array, optional
        Array for the result, with z's shape and the result's dtype. It may be z itself, or an array that shares no
        memory with z.

    Returns
    -------
    array
        p, of z's shape. Entries are non-negative. A row sums to 1, or is 0 if its support is empty.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    A score of -inf is outside the support: its probability is 0. A row with an empty support, or of length 0, is 0
    everywhere. If k entries are +inf, each of them has probability 1/k. For beta < 0, -inf and +inf change roles. If a
    score in the support is NaN, all probabilities in the support of its row are NaN. Other rows do not change.

    Gradient: with incoming g, it is :math:`\beta\,p \odot (g - \langle p, g\rangle)`. It is 0 outside the support and
    in rows that contain +inf.

    Adding the same number to all scores of a row does not change the result. Multiplying them by a number does. The
    ratio p_i / p_j depends only on z_i - z_j (Luce's choice axiom).

    References
    ----------
    Bridle (1990), Probabilistic interpretation of feedforward classification network outputs. Neurocomputing, 227-236.
    Goodfellow, Bengio & Courville (2016), Deep Learning, section 6.2.2.3.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.softmax([1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0])
    array([0.02364054, 0.06426166, 0.1746813 , 0.474833  , 0.02364054, 0.06426166, 0.1746813 ])
    >>> softargmax.softmax([1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0], temperature=10).round(3)
    array([0.125, 0.138, 0.153, 0.169, 0.125, 0.138, 0.153])
    >>> softargmax.softmax([1.0, 5.0, 5.0], temperature=0)
    array([0. , 0.5, 0.5])
    >>> softargmax.softmax([1.0, float("nan"), 1.0], where=[True, False, True])
    array([0.5, 0. , 0.5])
    """
    if where is dtype is base is out is None and type(temperature) is float and temperature == 1.0:
        axes = axes_at_once(z, axis)
        if axes:
            return operations.softmax.now(plain(z, axes))
    i = checked(z, axis, temperature, base, where, dtype, out)
    return operations.softmax.first(i) if out is None else operations.softmax.into(i, out)


def plain(z: Any, axes: tuple[int, ...]) -> Scores:
    """Return the operation's arguments for a call without options."""
    return _new(Scores, (z, None, UNIT, axes, z.dtype))  # a call of Scores(..) would add 0.1 us to the 3 us of softmax


def checked(z: Any, axis: Any, temperature: Any, base: Any, where: Any, dtype: Any, out: Any) -> Scores:
    """Check the arguments of a function whose result has z's shape."""
    no_option = where is dtype is base is None and type(temperature) is float and temperature == 1.0
    if no_option and (axes := plain_axes(z, axis)) and (out is None or fits(out, z)):
        return plain(z, axes)
    z, axes, beta = check.rows(z, axis, temperature, base)
    where = check.optional_mask(where, z)
    dtype = z.dtype if dtype is None else check.float_dtype(dtype, z)
    if out is not None:
        output(out, z, dtype, where, beta)
    return Scores(z, where, beta, axes, dtype)
