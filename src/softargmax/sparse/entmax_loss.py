"""sparsemax_loss and entmax_loss: the Fenchel-Young losses of the sparse maps. Their gradient is p - target."""

from __future__ import annotations

from typing import Any

from softargmax.core import check
from softargmax.core.arrays import namespace, one_axis
from softargmax.core.check import between, integer, one_of
from softargmax.core.dispatch import is_native
from softargmax.core.loss_reduction import equal_row_weights, reduced, row_weights
from softargmax.core.signature import public
from softargmax.core.targets import IGNORE, REDUCTIONS, class_weights, kept_of, target_of
from softargmax.core.types import Array, DType, Logits, Mask, Numbers, PerRow, Target
from softargmax.sparse import loss_operations
from softargmax.sparse.entmax import order
from softargmax.sparse.loss_operations import OfClasses, OfMasses


@public
def sparsemax_loss(  # noqa: PLR0913 the options are keyword-only
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
    r"""Return the loss of sparsemax. The loss is 0 if the target's score is higher than all others by T or more.

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
        A single number for the reductions "mean" and "sum", one number per row for "none".

    Raises
    ------
    IndexError, TypeError, ValueError
        As in `entmax_loss`.

    Notes
    -----
    This is `entmax_loss` of order 2. For two classes it is the modified Huber loss.

    Gradient: (p - t) / T.

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
def entmax_loss(  # noqa: PLR0913 the options are keyword-only
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
    r"""Return the Fenchel-Young loss of entmax: convex in the scores, and 0 where p equals the target.

    .. math::
        \ell = w_y \left(\langle p - t, x\rangle + H_\alpha(p) - H_\alpha(t)\right), \quad
        p = \mathrm{entmax}_\alpha(x), \quad x = z / T, \quad
        H_\alpha(q) = \frac{1 - \sum_k q_k^\alpha}{\alpha(\alpha - 1)}

    Parameters
    ----------
    z : array_like
        Scores, any shape except 0-d, any array library. The K classes run along `axis`.
    target : array_like
        Class indices (one integer per row), or probabilities t (floats of z's shape). Probabilities are not checked. If
        they are invalid, the loss is still the value of the formula and may be negative.
    alpha : float or array
        The order, above 0, as in `entmax`. Order 1 is the cross-entropy minus the entropy of the target (0 for a class
        without smoothing). Order 2 is `sparsemax_loss`.
    axis : int
        The axis of the classes.
    reduction : {"mean", "sum", "none"}
        How to combine the losses of the rows. "mean" divides their sum by the sum of :math:`w_y` over the rows, or by
        the number of rows if the targets are probabilities.
    ignore_index : int
        The class of rows that are ignored. If all rows are ignored, the mean and its gradient are 0.
    weight : array, optional
        w, the class weights, at least 0. Only for targets that are classes. The loss of a row, with or without
        smoothing, is multiplied by the weight of its class.
    label_smoothing : float
        From 0 to 1: the share of the target that is distributed evenly over the support.
    temperature : float or array
        T, as in `sparsemax`.
    where : array of bool, optional
        The support, as in `softmax`.
    dtype : dtype, optional
        The floating dtype of the result. Defaults to z's dtype, or float32 for half-precision scores.

    Returns
    -------
    array
        A single number for the reductions "mean" and "sum", one number per row for "none".

    Raises
    ------
    IndexError
        If a class is out of range. The message names the first such class and its position. On a device or under
        tracing, classes are not checked, and a row with a class out of range has the loss NaN.
    TypeError
        If the target is neither integers nor probabilities of z's shape, or an option has a wrong type.
    ValueError
        If an option is out of range, or shapes do not match.

    Notes
    -----
    The loss is not negative, up to rounding.

    Edge rows: a row with an empty support has the loss +inf for every target, and gradient 0. A target outside the
    support has the loss +inf and gradient p. If k scores are +inf, each of them has p = 1 / k, and the gradient is 0.
    Then a target among these scores has the loss :math:`H_\alpha` of the uniform distribution over k classes. Any other
    target has the loss +inf. A NaN in the support gives NaN. The loss of an ignored row is 0, even if the row contains
    NaN.

    Above order 1 the loss has a margin: it is 0 if the target's score is higher than all others by
    :math:`T/(\alpha - 1)` or more. If the target is a class, no term of the computed sum is negative, so a small loss
    keeps its digits.

    Gradient: :math:`w_y (p - t) / T`. At the target's class, p - t is computed from the p of the other classes. With
    respect to alpha: :math:`\partial_\alpha (H_\alpha(p) - H_\alpha(t))` at constant p.

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
        raise ValueError("z: expected at least one axis, for the classes, got a 0-d array")
    axis, shape = one_axis(axis, z.ndim), tuple(z.shape)
    ignore_index = integer(ignore_index, "ignore_index")
    smoothing = between(label_smoothing, "label_smoothing", 1.0)
    look = bool(smoothing) or not is_native(z)  # otherwise the kernel checks the classes
    target, soft = target_of(target, z, shape, axis, ignore_index, "target", look=look)
    if soft and weight is not None:
        raise ValueError("weight: expected None (because the targets are probabilities), got an array")
    weight, where = class_weights(weight, z, shape, axis), check.optional_mask(where, z)
    kept = target if soft else namespace(target).expand_dims(target, axis=axis)
    beta = check.scale_of(temperature, None, z, (axis,))
    i = OfClasses(z, kept, order(alpha, z, (axis,)), where, beta, (axis,), ignore_index)
    reduction = one_of(reduction, "reduction", REDUCTIONS)
    dtype = check.dtype_of_rows(dtype, z)
    if soft or smoothing:
        rows = loss_operations.loss_of_masses.first(OfMasses(*i, smoothing))
    else:
        rows = loss_operations.entmax_loss.first(i)
    rows = namespace(rows).squeeze(rows, axis=axis)
    count = equal_row_weights(rows) if soft else row_weights(target, ignore_index, weight, (axis,))
    rows = rows if weight is None else _weighted(rows, count)
    return reduced(rows, count, dtype, kept=kept_of(reduction, rows.ndim), mean=reduction == "mean")


def _weighted(rows: Any, count: Any) -> Any:
    """Multiply the loss of each row by its weight. A weight of 0 gives 0, even if the loss is inf or NaN."""
    xp = namespace(rows)
    return xp.where(count == 0.0, 0.0, rows * count)
