"""sparsemax, entmax and their threshold: a row of scores to probabilities of which most may be 0."""

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
    r"""The point of the probability simplex that is nearest to the scores.

    .. math:: p = \operatorname*{argmin}_{q \in \Delta} \lVert q - \beta z \rVert^2, \qquad p_i = [\beta z_i - \tau]_+

    Parameters
    ----------
    z : array_like
        Scores, any shape, any array library; the result is of the same kind, shape and dtype. float16 and bfloat16 are
        computed in float32 or better; integers and booleans become the library's default float.
    axis : int, tuple of int, or None
        The axes along which a row of scores runs; None for all of them.
    temperature : float or array
        T in :math:`\beta = 1 / T`; an array has one per row. Its limits are those of `softmax`: at 0 the largest scores
        share the row, at inf the whole support does, below 0 small scores are favoured.
    base : float, optional
        b in :math:`\beta = \ln b / T`; e if None.
    where : array of bool, optional
        The support; an entry outside it has probability 0 whatever its score, NaN included.
    out : array, optional
        Where to put the result: of z's shape and dtype, z itself or memory apart from it.

    Returns
    -------
    array
        p, of z's shape. A row sums to 1, or is 0 if nothing is in its support.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong kind or dtype; if it has a wrong shape or value (of axis: AxisError, a ValueError).

    Notes
    -----
    It is `entmax` of order 2. Scores a distance of T or more below the largest have probability 0; one score that is
    T above all others has it all.

    The edge rows are those of `softmax`: -inf is out of the support, k entries of +inf share the row, a NaN in the
    support makes its row NaN, an empty row is 0.

    Gradient: with incoming g, :math:`\beta (g - \bar g)` where p > 0, with the mean :math:`\bar g` over these entries;
    0 elsewhere.

    See Also
    --------
    entmax : any order between softmax and beyond sparsemax.
    sparsemax_loss : the loss that belongs to it.

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
    r"""The probabilities that balance the scores with a Tsallis entropy: softmax at order 1, sparsemax at 2.

    .. math::
        p = \operatorname*{argmax}_{q \in \Delta} \langle q, \beta z\rangle + H_\alpha(q), \qquad
        H_\alpha(q) = \frac{1 - \sum_i q_i^\alpha}{\alpha(\alpha - 1)}, \qquad
        p_i = [(\alpha - 1) \beta z_i - \tau]_+^{1/(\alpha - 1)}

    Parameters
    ----------
    z, axis, temperature, base, where, out
        As in `sparsemax`.
    alpha : float or array
        The order, above 0: the higher, the sparser. 1 is `softmax`, approached continuously from both sides. An array
        has one order per row; a tensor may be learned.

    Returns
    -------
    array
        p, of z's shape. A row sums to 1, or is 0 if nothing is in its support.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong kind or dtype; if it has a wrong shape or value (of axis: AxisError, a ValueError).

    Notes
    -----
    Above order 1 scores :math:`T/(\alpha - 1)` or more below the largest have probability 0. Below it p falls as a
    power of the distance, and every score but -inf has p > 0, unless it underflows.

    The edge rows are those of `softmax`: -inf is out of the support, k entries of +inf share the row, a NaN in the
    support makes its row NaN, an empty row is 0. On devices and under tracing, where nobody looks, so does an alpha
    that is not above 0.

    Gradient: with incoming g, :math:`\beta s \odot (g - \langle s, g\rangle / \sum s)`,
    :math:`s_i = p_i^{2-\alpha}` where p > 0 and 0 elsewhere. Of p to alpha:
    :math:`-s \odot (w - \langle s, w\rangle / \sum s)`, :math:`w_i = \ell_i^2\,\varphi((\alpha - 1)\,\ell_i)`,
    :math:`\ell = \log p`, :math:`\varphi(u) = (1 - e^u + u e^u)/u^2`.

    The threshold is the root of a sum, found by Newton's method over the scores that can matter, without sorting.

    See Also
    --------
    threshold : tau, and the number of probabilities above 0.
    entmax_loss : the loss that belongs to it.

    References
    ----------
    Peters, Niculae & Martins (2019), Sparse sequence-to-sequence models, ACL, sections 2 and 3. arXiv:1905.05702.
    Correia, Niculae & Martins (2019), Adaptively sparse transformers, EMNLP, section 3 (the gradient to alpha).
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
    r"""The threshold of `entmax` and the number of probabilities above it.

    .. math:: \sum_i [(\alpha - 1) \beta z_i - \tau]_+^{1/(\alpha - 1)} = 1

    Parameters
    ----------
    z, axis, temperature, base, where
        As in `sparsemax`: tau is in the unit of :math:`\beta z`.
    alpha : float or array
        The order, as in `entmax`. At 1 it is the limit -1, whatever the scores: `logsumexp` says more there.

    Returns
    -------
    Threshold
        tau, one per row, float32 for half scores; support_size, integers.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong kind or dtype; if it has a wrong shape or value (of axis: AxisError, a ValueError).

    Notes
    -----
    A row with nothing in its support: -inf, 0. With k entries of +inf: +inf, k. With a NaN in the support: NaN, -1. At
    T = 0: infinity with the sign of :math:`(\alpha - 1) \max z`, or :math:`-k^{1 - \alpha}` if that is 0, and the
    number k of the largest scores. A probability counts as above 0 from the smallest normal float64 on (float32 where
    JAX has no other).

    Gradient of tau: :math:`(\alpha - 1)\,\beta\,s / \sum s` with s as in `entmax`.

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
    """The arguments of the functions of scores and an order."""
    z, axes, beta = check.rows(z, axis, temperature, base)
    return Scores(z, order(alpha, z, axes), check.optional_mask(where, z), beta, axes)


def order(alpha: Any, z: Any, axes: tuple[int, ...]) -> Any:
    """alpha as a number, or as an array with one per row, z's shape but for 1 where z is reduced."""
    alpha = check.order(alpha, z, axes)
    if isinstance(alpha, float):
        return alpha
    rows = kept_shape(z.shape, axes)
    return namespace(alpha).broadcast_to(alpha, rows)
