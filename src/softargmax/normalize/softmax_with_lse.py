"""softmax_with_lse: the probabilities and the logarithm of their denominator."""

from __future__ import annotations

from softargmax.core.arrays import squeezed
from softargmax.core.signature import public
from softargmax.core.types import DType, Logits, Mask, PerRow
from softargmax.normalize import operations
from softargmax.normalize.results import SoftmaxWithLse
from softargmax.normalize.softmax import checked


@public
def softmax_with_lse(
    z: Logits,
    /,
    *,
    axis: int | tuple[int, ...] | None = -1,
    temperature: PerRow = 1.0,
    base: float | None = None,
    where: Mask | None = None,
    dtype: DType | None = None,
) -> SoftmaxWithLse:
    r"""Return the softmax and the logarithm of its denominator, computed in one pass.

    .. math:: \mathrm{lse} = \log \sum_j e^{\beta z_j}, \qquad p_i = e^{\beta z_i - \mathrm{lse}}

    Parameters
    ----------
    z, axis, temperature, base, where, dtype
        As in `softmax`.

    Returns
    -------
    SoftmaxWithLse
        p, of z's shape, and lse, one number per row. lse is float32 for half-precision scores.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    lse is computed from the scaled scores beta z, and has no unit. The smooth maximum,
    :math:`\mathrm{lse} / \beta = \mathrm{lse} \cdot T / \ln(\mathrm{base})`, has the unit of z. `logsumexp` returns it
    for the same options. lse and the smooth maximum are equal if T is 1 and base is e.

    A row with an empty support has lse = -inf. A row that contains a scaled score of +inf has lse = +inf. All other
    edge rows are as in `softmax`.

    Gradient: that of `softmax`, plus :math:`\beta\,p\,g`, where g is the incoming gradient of lse.

    See Also
    --------
    logsumexp : the smooth maximum, lse / beta.

    References
    ----------
    Blanchard, Higham & Higham (2021), Accurately computing the log-sum-exp and softmax functions.
    IMA Journal of Numerical Analysis 41. https://doi.org/10.1093/imanum/draa038

    Examples
    --------
    >>> import softargmax
    >>> p, lse = softargmax.softmax_with_lse([1.0, 2.0, 8.0])
    >>> p.round(3), float(lse)
    (array([0.001, 0.002, 0.997]), 8.003384...)
    >>> lse = softargmax.softmax_with_lse([1.0, 2.0], temperature=2).lse
    >>> smooth_maximum = softargmax.logsumexp([1.0, 2.0], temperature=2)
    >>> float(lse), float(smooth_maximum)  # the second is 2 times the first
    (1.474076..., 2.948153...)
    """
    i = checked(z, axis, temperature, base, where, dtype, None)
    p, lse = operations.softmax(i)
    return SoftmaxWithLse(p, squeezed(lse, i.axes))
