"""softmin: the softmax that favours small scores."""

from __future__ import annotations

from typing import Any

from softargmax.core.arrays import namespace, readable
from softargmax.core.scale import Scale, negated
from softargmax.core.signature import public
from softargmax.core.types import Array, DType, Logits, Mask, PerRow
from softargmax.normalize import operations
from softargmax.normalize.softmax import checked


@public
def softmin(
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
    r"""The softmax that favours small scores: that of the negative temperature.

    .. math:: p_i = \frac{e^{-\beta z_i}}{\sum_j e^{-\beta z_j}}

    Parameters
    ----------
    z, axis, temperature, base, where, dtype, out
        As in `softmax`.

    Returns
    -------
    array
        p, of z's shape.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong kind or dtype; if it has a wrong shape or value (of axis: AxisError, a ValueError).

    Notes
    -----
    It is the softmax of -z: an entry of +inf is out of the support, entries of -inf share the row. So it is at beta = 0
    too, however that is written (an infinite temperature or base = 1): the limit from the side where small scores are
    favoured. temperature 0 is arg min. The rest as in `softmax`.

    Gradient: with incoming g, :math:`-\beta\,p \odot (g - \langle p, g\rangle)`.

    References
    ----------
    Goodfellow, Bengio & Courville (2016), Deep Learning, section 6.2.2.3.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.softmin([1.0, 2.0, 8.0]).round(3)
    array([0.731, 0.269, 0.001])
    """
    i = checked(z, axis, temperature, base, where, dtype, out)
    z, beta = falling(i.z, i.beta)
    i = i._replace(z=z, beta=beta)
    return operations.softmax.first(i) if out is None else operations.softmax.into(i, out)


def falling(z: Any, scale: Scale) -> tuple[Any, Scale]:
    """The scores and the scale whose softmax is the softmin: -beta, and -z where beta = 0 has no sign to turn."""
    turned = negated(scale)
    if isinstance(turned.hi, float):
        return (-z if turned.hi == 0.0 else z), turned
    level = turned.hi == 0.0
    if readable(level) and not bool(level.any()):
        return z, turned
    return namespace(z).where(level, -z, z), turned
