"""log_softmax: logarithms of the probabilities, computed without the probabilities."""

from __future__ import annotations

from softargmax.core._native import axes_at_once
from softargmax.core.signature import public
from softargmax.core.types import Array, DType, Logits, Mask, PerRow
from softargmax.normalize import operations
from softargmax.normalize.softmax import checked, plain


@public
def log_softmax(
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
    r"""Return the natural logarithm of the softmax, computed without the softmax itself.

    .. math:: \log p_i = \beta z_i - \mathrm{lse}, \qquad \mathrm{lse} = \log \sum_j e^{\beta z_j}

    Parameters
    ----------
    z, axis, temperature, base, where, dtype, out
        As in `softmax`. `base` changes the distribution. The result is in nats for every base.

    Returns
    -------
    array
        log p, of z's shape. Entries are at most 0, and -inf outside the support.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    A row with an empty support is -inf everywhere. In a row with k entries of +inf, the result is -log k at these
    entries and -inf at all others.

    Let l be the sum of exp(beta z_i - m), where m is the largest beta z_i. The term of the maximum is 1, so l = 1 + r.
    Only r is stored, and log l is computed as log1p(r). Therefore the largest log p of a confident row has
    full relative precision, although it is close to 0.

    Gradient: with incoming g, it is :math:`\beta\,(g - p \sum g)`, where the sum runs over the support. It is 0 outside
    the support and in rows that contain +inf.

    References
    ----------
    Blanchard, Higham & Higham (2021), Accurately computing the log-sum-exp and softmax functions.
    IMA Journal of Numerical Analysis 41. https://doi.org/10.1093/imanum/draa038

    Examples
    --------
    >>> import softargmax
    >>> softargmax.log_softmax([1.0, 2.0, 8.0]).round(4)
    array([-7.0034, -6.0034, -0.0034])
    >>> float(softargmax.log_softmax([40.0, 0.0])[0])
    -4.248354...e-18
    """
    if where is dtype is base is out is None and type(temperature) is float and temperature == 1.0:
        axes = axes_at_once(z, axis)
        if axes:
            return operations.log_softmax.now(plain(z, axes))
    i = checked(z, axis, temperature, base, where, dtype, out)
    return operations.log_softmax.first(i) if out is None else operations.log_softmax.into(i, out)
