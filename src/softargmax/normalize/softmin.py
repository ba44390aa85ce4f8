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
    r"""Return the softmin: the softmax at the negated temperature, which favours small scores.

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
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    The softmin is the softmax of -z: an entry of +inf is outside the support, and entries of -inf share all of the
    probability. This is also true at beta = 0 (an infinite temperature or base = 1), because the softmin there is the
    limit beta -> 0 from above. temperature=0 gives an arg min. All other edge rows are as in `softmax`.

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
    """Return scores and scale whose softmax is the softmin: z and -beta. If beta is 0, the scores are -z."""
    flipped = negated(scale)
    if isinstance(flipped.hi, float):
        return (-z if flipped.hi == 0.0 else z), flipped
    flat = flipped.hi == 0.0
    if readable(flat) and not bool(flat.any()):
        return z, flipped
    return namespace(z).where(flat, -z, z), flipped
