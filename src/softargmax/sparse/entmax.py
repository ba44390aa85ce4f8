"""sparsemax and entmax (maps from scores to probabilities that may be 0); threshold (the tau of such a map)."""

from __future__ import annotations

from typing import Any

from softargmax.core import check
from softargmax.core.arrays import kept_shape, namespace, squeezed
from softargmax.core.out_argument import output
from softargmax.core.signature import public
from softargmax.core.types import Array, Logits, Mask, PerRow
from softargmax.normalize import softmax
from softargmax.sparse import operations
from softargmax.sparse.operations import Scores
from softargmax.sparse.results import Threshold


@public
def sparsemax(
    z: Logits,
    /,
    *,
    axis: int | tuple[int, ...] | None = -1,
    temperature: PerRow = 1.0,
    base: float | None = None,
    where: Mask | None = None,
    out: Array | None = None,
) -> Array:
    r"""Return the sparsemax: the point of the probability simplex that is nearest to the scores.

    .. math:: p = \operatorname*{argmin}_{q \in \Delta} \lVert q - \beta z \rVert^2, \qquad p_i = [\beta z_i - \tau]_+

    Parameters
    ----------
    z : array_like
        Scores, any shape, any array library. The result has the same array type, shape and dtype. float16 and bfloat16
        are computed in float32 or better. Integers and booleans become the library's default float dtype.
    axis : int, tuple of int, or None
        The axis or axes of a row of scores. None means all axes.
    temperature : float or array
        T in :math:`\beta = 1 / T`. An array has one temperature per row. T may be 0, infinite or negative, as in
        `softmax`. At T = 0 the largest scores have equal probabilities, and all other scores have probability 0. At
        infinite T all scores of the support have equal probabilities. If T is negative, smaller scores get larger
        probabilities.
    base : float, optional
        b in :math:`\beta = \ln b / T`; defaults to e.
    where : array of bool, optional
        The support. An entry outside the support has probability 0, even if its score is NaN.
    out : array, optional
        Array for the result, with z's shape and dtype. It may be z itself, or memory that z does not use.

    Returns
    -------
    array
        p, of z's shape. A row sums to 1, or is 0 if its support is empty.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    sparsemax is `entmax` of order 2. If :math:`0 < \beta < \infty`, scores that are lower than the largest by
    :math:`1/\beta` or more have probability 0, and a score that is higher than all others by :math:`1/\beta` or more
    has probability 1.

    Edge rows are those of `softmax`. -inf is outside the support. If k entries are +inf, each of them has probability
    1 / k. A NaN in the support makes its row NaN. A row with an empty support is 0.

    Gradient: with incoming g, :math:`\beta (g - \bar g)` where p > 0, and 0 elsewhere. :math:`\bar g` is the mean of g
    over the entries with p > 0.

    See Also
    --------
    entmax : the same map of any order.
    sparsemax_loss : the loss of sparsemax.

    References
    ----------
    Martins & Astudillo (2016), From softmax to sparsemax, ICML, sections 2.2 to 2.5. arXiv:1602.02068.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.sparsemax([1.0, 2.0, 2.5])
    array([0.  , 0.25, 0.75])
    >>> softargmax.sparsemax([1.0, 2.0, 8.0])
    array([0., 0., 1.])
    """
    return entmax(z, 2.0, axis=axis, temperature=temperature, base=base, where=where, out=out)


@public
def entmax(
    z: Logits,
    /,
    alpha: PerRow = 1.5,
    *,
    axis: int | tuple[int, ...] | None = -1,
    temperature: PerRow = 1.0,
    base: float | None = None,
    where: Mask | None = None,
    out: Array | None = None,
) -> Array:
    r"""Return the entmax: sparse probabilities that interpolate softmax (order 1) and sparsemax (order 2).

    .. math::
        p = \operatorname*{argmax}_{q \in \Delta} \langle q, \beta z\rangle + H_\alpha(q), \qquad
        H_\alpha(q) = \frac{1 - \sum_i q_i^\alpha}{\alpha(\alpha - 1)}, \qquad
        p_i = [(\alpha - 1) \beta z_i - \tau]_+^{1/(\alpha - 1)}

    Parameters
    ----------
    z, axis, temperature, base, where, out
        As in `sparsemax`.
    alpha : float or array
        The order, above 0. A higher order gives a sparser result. Order 1 is `softmax`, and p is continuous in alpha at
        1. An array has one order per row. The order may be learned.

    Returns
    -------
    array
        p, of z's shape. A row sums to 1, or is 0 if its support is empty.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    If the order is above 1 and :math:`0 < \beta < \infty`, scores that are lower than the largest by
    :math:`1/((\alpha - 1)\,\beta)` or more have probability 0. Below order 1, p decreases like a power of the distance
    to the largest score, and every score except -inf has p > 0 unless p underflows.

    Edge rows are those of `softmax`. -inf is outside the support. If k entries are +inf, each of them has probability
    1 / k. A NaN in the support makes its row NaN. A row with an empty support is 0. On a device or under tracing, alpha
    is not checked. There an alpha that is not a finite number above 0 makes its row NaN.

    Gradient: with incoming g, :math:`\beta s \odot (g - \langle s, g\rangle / \sum s)`,
    with :math:`s_i = p_i^{2-\alpha}` where p > 0 and 0 elsewhere. The derivative of p with respect to alpha is
    :math:`-s \odot (w - \langle s, w\rangle / \sum s)` with :math:`w_i = \ell_i^2\,\varphi((\alpha - 1)\,\ell_i)`,
    :math:`\ell = \log p` and :math:`\varphi(u) = (1 - e^u + u e^u)/u^2`.

    The threshold is the tau at which p sums to 1. Newton's method finds tau without sorting. Each step only uses the
    scores that may have p > 0.

    See Also
    --------
    threshold : tau, and the number of probabilities above 0.
    entmax_loss : the loss of entmax.

    References
    ----------
    Peters, Niculae & Martins (2019), Sparse sequence-to-sequence models, ACL, sections 2 and 3. arXiv:1905.05702.
    Correia, Niculae & Martins (2019), Adaptively sparse transformers, EMNLP, section 3 (the derivative with
    respect to alpha).
    arXiv:1909.00015.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.entmax([1.0, 2.0, 2.5]).round(4)
    array([0.0048, 0.324 , 0.6712])
    >>> softargmax.entmax([[1.0, 2.0, 2.5]] * 3, [1.0, 1.5, 2.0]).round(4)
    array([[0.122 , 0.3315, 0.5465],
           [0.0048, 0.324 , 0.6712],
           [0.    , 0.25  , 0.75  ]])
    """
    i = _checked(z, alpha, axis, temperature, base, where)
    if isinstance(i.alpha, float) and i.alpha == 1.0:
        return softmax(i.z, axis=i.axes, temperature=temperature, base=base, where=i.where, out=out)
    if out is None:
        return operations.entmax.first(i)
    output(out, i.z, i.z.dtype, i.where, (i.alpha,))
    return operations.entmax.into(i, out)


@public
def threshold(
    z: Logits,
    /,
    alpha: PerRow = 1.5,
    *,
    axis: int | tuple[int, ...] | None = -1,
    temperature: PerRow = 1.0,
    base: float | None = None,
    where: Mask | None = None,
) -> Threshold:
    r"""Return the threshold of `entmax` and the number of positive probabilities.

    .. math:: \sum_i [(\alpha - 1) \beta z_i - \tau]_+^{1/(\alpha - 1)} = 1

    Parameters
    ----------
    z, axis, temperature, base, where
        As in `sparsemax`. tau refers to the scaled scores :math:`\beta z`, not to z.
    alpha : float or array
        The order, as in `entmax`. At order 1, tau is always the limit -1, and `logsumexp` is more useful.

    Returns
    -------
    Threshold
        tau and support_size, each with one number per row. tau is float32 for half-precision scores. support_size has
        an integer dtype.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    Edge rows, as (tau, support_size): a row with an empty support gives (-inf, 0). A row with k entries of +inf gives
    (+inf, k). A row with a NaN in its support gives (NaN, -1). At T = 0, support_size is the number k of scores
    that equal the largest. Then tau is infinite with the sign of :math:`(\alpha - 1) \max z`. If this product is 0,
    tau is :math:`-k^{1 - \alpha}`.

    A probability counts as positive if it is at least the smallest normal number of float64 (of float32 in JAX without
    float64).

    Gradient of tau: :math:`(\alpha - 1)\,\beta\,s / \sum s`, with s as in `entmax`.

    References
    ----------
    Peters, Niculae & Martins (2019), Sparse sequence-to-sequence models, ACL, section 3. arXiv:1905.05702.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.threshold([[1.0, 2.0, 2.5], [0.0, 9.0, 0.0]], 2.0)
    Threshold(tau=array([1.75, 8.  ]), support_size=array([2, 1]))
    """
    i = _checked(z, alpha, axis, temperature, base, where)
    return Threshold(*(squeezed(row, i.axes) for row in operations.threshold(i)))


def _checked(z: Any, alpha: Any, axis: Any, temperature: Any, base: Any, where: Any) -> Scores:
    """Check the arguments of `entmax` or `threshold`, and return them as `Scores`."""
    z, axes, beta = check.rows(z, axis, temperature, base)
    return Scores(z, order(alpha, z, axes), check.optional_mask(where, z), beta, axes)


def order(alpha: Any, z: Any, axes: tuple[int, ...]) -> Any:
    """Return alpha as a number, or as an array with one order per row, in which the reduced axes have size 1."""
    alpha = check.order(alpha, z, axes)
    if isinstance(alpha, float):
        return alpha
    rows = kept_shape(z.shape, axes)
    return namespace(alpha).broadcast_to(alpha, rows)
