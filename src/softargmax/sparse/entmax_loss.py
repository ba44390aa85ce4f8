"""The Fenchel-Young losses of the sparse maps: a map, its entropy, and the loss whose gradient is p - target."""

from __future__ import annotations

from typing import Any

from softargmax.core import check
from softargmax.core.arrays import namespace, one_axis
from softargmax.core.check import between, integer, one_of
from softargmax.core.dispatch import is_native
from softargmax.core.loss_reduction import counts, each_counts, reduced
from softargmax.core.signature import public
from softargmax.core.targets import IGNORE, REDUCTIONS, class_weights, kept_of, target_of
from softargmax.core.types import Array, DType, Logits, Mask, Numbers, PerRow, Target
from softargmax.sparse import loss_operations
from softargmax.sparse.entmax import order
from softargmax.sparse.loss_operations import OfClasses, OfMasses


@public
def sparsemax_loss(  # noqa: PLR0913 each is asked for by its name
    z: Logits,
    /,
    target: Target,
    *,
    axis: int = -1,
    reduction: str = "mean",
    ignore_index: int = IGNORE,
    weight: Numbers | None = None,
    label_smoothing: float = 0.0,
    temperature: PerRow = 1.0,
    where: Mask | None = None,
    dtype: DType | None = None,
) -> Array:
    r"""The loss that belongs to sparsemax: 0 as soon as the target's score is 1 above all others.

    .. math::
        \ell = \tfrac12 \lVert t - x\rVert^2 - \tfrac12 \lVert p - x\rVert^2, \qquad
        p = \mathrm{sparsemax}(x), \quad x = z / T

    Parameters
    ----------
    z, target, axis, reduction, ignore_index, weight, label_smoothing, temperature, where, dtype
        As in `entmax_loss`.

    Returns
    -------
    array
        One number, or one per row.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `entmax_loss`.

    Notes
    -----
    It is `entmax_loss` of order 2, for two classes the modified Huber loss. Gradient: (p - t) / T.

    References
    ----------
    Martins & Astudillo (2016), From softmax to sparsemax, ICML, section 3. arXiv:1602.02068.

    Examples
    --------
    >>> import softargmax
    >>> float(softargmax.sparsemax_loss([1.0, 2.0, 2.5], 1))
    0.5625
    >>> float(softargmax.sparsemax_loss([1.0, 2.0, 8.0], 2))
    0.0
    """
    return entmax_loss(
        z,
        target,
        2.0,
        axis=axis,
        reduction=reduction,
        ignore_index=ignore_index,
        weight=weight,
        label_smoothing=label_smoothing,
        temperature=temperature,
        where=where,
        dtype=dtype,
    )


@public
def entmax_loss(  # noqa: PLR0913 each is asked for by its name
    z: Logits,
    /,
    target: Target,
    alpha: PerRow = 1.5,
    *,
    axis: int = -1,
    reduction: str = "mean",
    ignore_index: int = IGNORE,
    weight: Numbers | None = None,
    label_smoothing: float = 0.0,
    temperature: PerRow = 1.0,
    where: Mask | None = None,
    dtype: DType | None = None,
) -> Array:
    r"""The Fenchel-Young loss of entmax: convex in the scores; but for rounding not negative, 0 where p is the target.

    .. math::
        \ell = w_y \left(\langle p - t, x\rangle + H_\alpha(p) - H_\alpha(t)\right), \quad
        p = \mathrm{entmax}_\alpha(x), \quad x = z / T, \quad
        H_\alpha(q) = \frac{1 - \sum_k q_k^\alpha}{\alpha(\alpha - 1)}

    Parameters
    ----------
    z : array_like
        Scores, any shape but 0-d, any array library; the K classes run along `axis`.
    target : array_like
        Classes, integers of the rows' shape; or probabilities t, floats of z's shape. Their values are not checked: the
        loss is what the formula gives, and may be negative where they are none.
    alpha : float or array
        The order, above 0, as in `entmax`: 1 is the cross-entropy less the target's own entropy (0 for a class
        without smoothing), 2 `sparsemax_loss`.
    axis : int
        The axis of the classes.
    reduction : {"mean", "sum", "none"}
        What becomes of the rows' losses. The mean is divided by the sum of the rows' :math:`w_y`, of probabilities by
        the number of rows.
    ignore_index : int
        The class of rows that count nothing. If nothing counts, the mean and its gradient are 0.
    weight : array, optional
        w, one per class, at least 0; with classes as targets. A row counts by that of its class, smoothed or not.
    label_smoothing : float
        From 0 to 1: that much of the target is spread over the scores in the support.
    temperature : float or array
        T, as in `sparsemax`.
    where : array of bool, optional
        The support as in `softmax`.
    dtype : dtype, optional
        The floating dtype of the result; if None that of z, and float32 for half scores.

    Returns
    -------
    array
        One number, or one per row.

    Raises
    ------
    IndexError
        If a class is out of range: the first such one is named, with its place. (On devices and under tracing, where
        nobody looks, its row is NaN.)
    TypeError
        If targets are neither integers nor probabilities of z's shape, or an option is of a wrong kind.
    ValueError
        If an option is out of its range, or a shape does not fit.

    Notes
    -----
    A row with nothing in its support: +inf whatever its target, gradient 0. A target outside the support: +inf,
    gradient p. k scores of +inf share the row: :math:`H_\alpha` of 1/k at one of them, +inf at another; gradient 0. NaN
    in the support: NaN. An ignored row is 0 whatever its scores.

    Above order 1 the loss is 0 where the target's score is :math:`T/(\alpha - 1)` above all others: the margin of the
    loss. A class as target is served by a sum in which no term is negative, so that a small loss keeps its digits.

    Gradient: :math:`w_y (p - t) / T`, at the target's class formed from what the others have. To alpha:
    :math:`\partial_\alpha (H_\alpha(p) - H_\alpha(t))` at constant p.

    References
    ----------
    Blondel, Martins & Niculae (2020), Learning with Fenchel-Young losses. JMLR 21, sections 3 and 4.
    Peters, Niculae & Martins (2019), Sparse sequence-to-sequence models, ACL, section 3. arXiv:1905.05702.

    Examples
    --------
    >>> import softargmax
    >>> float(softargmax.entmax_loss([1.0, 2.0, 2.5], 1))
    0.684601...
    >>> float(softargmax.entmax_loss([1.0, 2.0, 2.5], 1, 1.0)), float(softargmax.cross_entropy([1.0, 2.0, 2.5], 1))
    (1.104131..., 1.104131...)
    >>> softargmax.entmax_loss([[0.0, 3.0], [0.0, 1.0]], [1, 1], reduction="none").round(4)
    array([0.    , 0.0617])
    """
    z = check.scores(z)
    if not z.ndim:
        raise ValueError("z: 0-d; a loss needs an axis of classes")
    axis, shape = one_axis(axis, z.ndim), tuple(z.shape)
    ignore_index = integer(ignore_index, "ignore_index")
    smoothing = between(label_smoothing, "label_smoothing", 1.0)
    looks = bool(smoothing) or not is_native(z)  # else the kernel looks at the classes
    target, soft = target_of(target, z, shape, axis, ignore_index, "target", look=looks)
    if soft and weight is not None:
        raise ValueError("weight: expected None, as the targets are probabilities, got an array")
    weight, where = class_weights(weight, z, shape, axis), check.optional_mask(where, z)
    beside = target if soft else namespace(target).expand_dims(target, axis=axis)
    beta = check.scale_of(temperature, None, z, (axis,))
    i = OfClasses(z, beside, order(alpha, z, (axis,)), where, beta, (axis,), ignore_index)
    reduction = one_of(reduction, "reduction", REDUCTIONS)
    dtype = check.row_dtype(dtype, z)
    if soft or smoothing:
        rows = loss_operations.loss_of_masses.first(OfMasses(*i, smoothing))
    else:
        rows = loss_operations.entmax_loss.first(i)
    rows = namespace(rows).squeeze(rows, axis=axis)
    count = each_counts(rows) if soft else counts(target, ignore_index, weight, axis)
    rows = rows if weight is None else _weighed(rows, count)
    return reduced(rows, count, dtype, kept=kept_of(reduction, rows.ndim), mean=reduction == "mean")


def _weighed(rows: Any, count: Any) -> Any:
    """The rows' losses times what they count; 0 where that is 0, whatever the loss."""
    xp = namespace(rows)
    return xp.where(count == 0.0, 0.0, rows * count)
