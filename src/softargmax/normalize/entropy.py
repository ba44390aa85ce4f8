"""entropy and renyi_entropy: the entropies of a softmax."""

from __future__ import annotations

from softargmax.core import check
from softargmax.core.arrays import row_dtype, squeezed
from softargmax.core.signature import public
from softargmax.core.types import Array, DType, Logits, Mask, PerRow
from softargmax.normalize import entropy_operations, operations
from softargmax.normalize.entropy_operations import RenyiEntropy
from softargmax.normalize.operations import Scores


@public
def entropy(
    z: Logits,
    /,
    *,
    axis: int | tuple[int, ...] | None = -1,
    temperature: PerRow = 1.0,
    base: float | None = None,
    where: Mask | None = None,
    keepdims: bool = False,
) -> Array:
    r"""Return the Shannon entropy of the softmax, in nats.

    .. math:: H = -\sum_i p_i \log p_i = \mathrm{lse} - \beta \langle p, z \rangle

    Parameters
    ----------
    z, axis, temperature, base, where
        As in `softmax`. `base` changes the distribution. The result is in nats for every base.
    keepdims : bool
        Keep the reduced axes with size 1.

    Returns
    -------
    array
        One number per row, from 0 to log K. float32 for half-precision scores.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    The entropy is computed from accurate values of p and log p, and none of its terms is negative. The small entropy of
    a confident row is therefore accurate. A row with an empty support gives 0, a row with k entries of +inf gives log
    k, and a row with a NaN gives NaN.

    Gradient: with incoming g, the gradient with respect to z_i is :math:`-g\,\beta\,p_i (\log p_i + H)`.

    References
    ----------
    Cover & Thomas (2006), Elements of Information Theory, section 2.1.

    Examples
    --------
    >>> import softargmax
    >>> float(softargmax.entropy([1.0, 1.0, 1.0, 1.0]))  # log 4
    1.386294...
    >>> float(softargmax.entropy([40.0, 0.0]))
    1.74182...e-16
    """
    z, axes, beta = check.rows(z, axis, temperature, base)
    i = Scores(z, check.optional_mask(where, z), beta, axes, row_dtype(z.dtype))
    return squeezed(operations.entropy.first(i), axes, keepdims)


@public
def renyi_entropy(
    z: Logits,
    /,
    order: PerRow,
    *,
    axis: int | tuple[int, ...] | None = -1,
    temperature: PerRow = 1.0,
    base: float | None = None,
    where: Mask | None = None,
    keepdims: bool = False,
    dtype: DType | None = None,
) -> Array:
    r"""Return the Rényi entropy of the softmax, in nats: a measure of how many classes have a notable probability.

    .. math::
        H_a = \frac{1}{1 - a} \log \sum_i p_i^a, \qquad
        H_1 = -\sum_i p_i \log p_i, \qquad H_\infty = -\log \max_i p_i

    Parameters
    ----------
    z, axis, temperature, base, where
        As in `softmax`. `base` changes the distribution. The result is in nats for every base.
    order : float or array
        The order a: at least 0, infinity included. A larger order gives more weight to likely classes. An array has one
        order per row. The result has a gradient with respect to the order.
    keepdims : bool
        Keep the reduced axes with size 1.
    dtype : dtype, optional
        dtype of the result; defaults to that of z, float32 for half-precision scores.

    Returns
    -------
    array
        One number per row, from 0 to log K. A larger order never gives a larger result.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    Order 0 gives the logarithm of the size of the support (Hartley entropy). Order 1 gives the Shannon entropy, order 2
    the collision entropy, and order infinity the min-entropy. The result is accurate for orders near 1 and for the
    small entropy of a confident row.

    A row with an empty support gives 0, a row with k entries of +inf gives log k, and a row with a NaN gives NaN. On a
    device or under tracing the order is not checked. An order below 0 then gives NaN.

    Gradient: let g be the incoming gradient and :math:`q_i = p_i^a / \sum_j p_j^a`. The gradient with respect to z_i is
    :math:`g\,\beta\,a\,(q_i - p_i) / (1 - a)`. The gradient with respect to the order is
    :math:`-g\,\mathrm{KL}(q \,\|\, p) / (1 - a)^2`. At order 1 the gradients are the limits of these formulas.

    See Also
    --------
    entropy : order 1.

    References
    ----------
    Rényi (1961), On measures of entropy and information. Proceedings of the fourth Berkeley symposium on mathematical
    statistics and probability, volume 1.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.renyi_entropy([[0.0, 1.0, 3.0]] * 3, [0.0, 1.0, 2.0]).round(4)
    array([1.0986, 0.5243, 0.3191])
    >>> float(softargmax.renyi_entropy([20.0, 0.0], 1.0))
    4.3284...e-08
    """
    z, axes, beta = check.rows(z, axis, temperature, base)
    order = check.within(order, z, axes, "order", lambda a: a >= 0.0, "0 or above, infinity included")
    i = RenyiEntropy(z, check.optional_mask(where, z), beta, order, axes, check.dtype_of_rows(dtype, z))
    return squeezed(entropy_operations.renyi_entropy.first(i), axes, keepdims)
