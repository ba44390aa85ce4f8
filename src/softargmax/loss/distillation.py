"""Distillation losses: divergences between the softmax of a student and the softmax of a teacher."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from softargmax.core import arrays, check
from softargmax.core.arrays import dtype_name, namespace, one_axis, working_dtype
from softargmax.core.check import one_of
from softargmax.core.dispatch import is_for_cuda
from softargmax.core.loss_reduction import equal_row_weights, reduced
from softargmax.core.signature import public
from softargmax.core.targets import REDUCTIONS, kept_of
from softargmax.core.types import Array, DType, Logits, Mask, Numbers, PerRow, Vectors
from softargmax.loss import linear_operations, operations
from softargmax.loss.arguments import Divergence, LinearDivergence
from softargmax.loss.check_options import scores_options
from softargmax.loss.linear_inputs import broadcast_rows, flat_beta, layer_of, widest_dtype
from softargmax.normalize import kl_divergence

if TYPE_CHECKING:
    from softargmax.core.scale import Scale

DIVERGENCES = ("forward", "reverse", "js")


@public
def distillation(  # noqa: PLR0913 options are keyword arguments
    z_student: Logits,
    z_teacher: Logits,
    *,
    axis: int = -1,
    temperature: PerRow = 1.0,
    divergence: str = "forward",
    scale: bool = True,
    reduction: str = "mean",
    softcap: float | None = None,
    where: Mask | None = None,
    dtype: DType | None = None,
) -> Array:
    r"""Return the divergence between a student's softmax q and a teacher's softmax p, times :math:`T^2`, in nats.

    .. math::
        \text{forward: } T^2\,\mathrm{KL}(p \,\|\, q), \quad
        \text{reverse: } T^2\,\mathrm{KL}(q \,\|\, p), \quad
        \text{js: } \tfrac{T^2}{2} \left(\mathrm{KL}(p \,\|\, m) + \mathrm{KL}(q \,\|\, m)\right), \quad
        m = \tfrac{1}{2} (p + q)

    Parameters
    ----------
    z_student, z_teacher : array_like
        Scores of q and of p. They broadcast with each other.
    axis : int
        The axis of the classes.
    temperature : float or array
        T of both softmaxes, as in `softmax`.
    divergence : {"forward", "reverse", "js"}
        The divergence to compute; see the formula.
    scale : bool
        If True, multiply the divergence by :math:`T^2`. This keeps the size of the gradients about the same for every
        T. If False, return the divergence itself.
    reduction : {"mean", "sum", "none"}
        "none" returns one number per row, "sum" the sum of these numbers, and "mean" their mean. The mean leaves out
        rows that `where` masks completely.
    softcap : float, optional
        Soft-cap of both scores, as in `cross_entropy`.
    where : array of bool, optional
        True for the entries in the support of both softmaxes, as in `softmax`.
    dtype : dtype, optional
        Floating dtype of the result; defaults to the dtype of the scores, and to float32 for half-precision scores.

    Returns
    -------
    array
        One number, or one per row if `reduction` is "none". It is at least 0.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype.
    ValueError
        If an argument has the wrong shape or value. With `scale`, T may not be 0 or infinite.

    Notes
    -----
    A class with p_k = 0 adds 0 to KL(p || q). A class with p_k > 0 and q_k = 0 makes KL(p || q) +inf. If the support of
    p is empty, KL(p || q) is 0.

    Gradient: with respect to the student's scores, without the factor :math:`T^2`, it is :math:`(q - p) / T` for
    "forward" and :math:`q_k (\log(q_k / p_k) - \mathrm{KL}) / T` for "reverse". The result also has a gradient with
    respect to the teacher's scores.

    References
    ----------
    Hinton, Vinyals & Dean (2015), Distilling the knowledge in a neural network. arXiv:1503.02531.

    Examples
    --------
    >>> import softargmax
    >>> float(softargmax.distillation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]))
    1.150420...
    >>> float(softargmax.distillation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], temperature=2.0, divergence="js"))
    0.307450...
    """
    student, teacher = check.together(check.scores(z_student, "z_student"), z_teacher, "z_teacher")
    if not student.ndim:
        raise ValueError("z_student: expected at least one axis, for the classes, got a 0-d array")
    axis, shape = one_axis(axis, student.ndim), tuple(student.shape)
    options = {"temperature": temperature, "softcap": softcap, "where": where}
    beta, cap, where = scores_options(student, shape, axis, options)
    kind = one_of(divergence, "divergence", DIVERGENCES)
    count, squared = _rows_in_mean(where, axis), _squared_temperature(beta, axis) if scale else 1.0
    dtype = check.dtype_of_rows(dtype, student)
    plain = kind != "js" and not cap and dtype_name(dtype) != "float64"
    if plain and is_for_cuda(student, "kl_divergence"):
        p, q = (student, teacher) if kind == "reverse" else (teacher, student)
        rows = kl_divergence(p, q, axis=axis, temperature=temperature, where=where)
        rows = namespace(rows).astype(rows, working_dtype(rows, namespace(rows)))  # T^2 may be beyond float32
    else:
        rows = operations.divergence.first(Divergence(student, teacher, where, beta, (axis,), kind, cap))
    return _reduced(rows * squared, count, one_of(reduction, "reduction", REDUCTIONS), dtype)


@public
def linear_distillation(  # noqa: PLR0913 options are keyword arguments
    h_student: Vectors,
    w_student: Vectors,
    h_teacher: Vectors,
    w_teacher: Vectors,
    *,
    bias_student: Numbers | None = None,
    bias_teacher: Numbers | None = None,
    temperature: PerRow = 1.0,
    divergence: str = "forward",
    scale: bool = True,
    reduction: str = "mean",
    softcap: float | None = None,
    where: Mask | None = None,
    dtype: DType | None = None,
) -> Array:
    r"""Return the distillation loss of two last layers, without storing the scores of either model.

    .. math:: z = h W^T + b, \qquad \mathrm{distillation}(z_{\text{student}}, z_{\text{teacher}})

    Parameters
    ----------
    h_student, h_teacher : array_like
        Hidden vectors (..., D). Both have the same leading shape (...). The two widths D may differ.
    w_student, w_teacher : array_like
        Output weights (K, D), with the width D of the hidden vectors of the same model.
    bias_student, bias_teacher : array, optional
        b, of shape (K,).
    temperature, divergence, scale, reduction, softcap, where, dtype
        As in `distillation`, for scores of shape (..., K).

    Returns
    -------
    array
        One number, or one per row if `reduction` is "none".

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype.
    ValueError
        If an argument has the wrong shape or value.

    Notes
    -----
    The function computes the scores of a few rows at a time. Edge rows are as in `distillation`.

    Gradient: as in `distillation`, but with respect to h, W and b of both models.

    References
    ----------
    Hinton, Vinyals & Dean (2015), Distilling the knowledge in a neural network. arXiv:1503.02531.

    Examples
    --------
    >>> import softargmax
    >>> w = [[1.0], [2.0], [3.0]]
    >>> float(softargmax.linear_distillation([[1.0]], w, [[-1.0]], w))
    1.150420...
    """
    student = layer_of(h_student, w_student, bias_student, "_student")
    teacher = layer_of(arrays.like(h_teacher, student.h, "h_teacher"), w_teacher, bias_teacher, "_teacher")
    if teacher.shape != student.shape:
        raise ValueError(
            f"h_teacher, w_teacher: expected scores of the student's shape, {student.shape}, got {teacher.shape}"
        )
    options = {"temperature": temperature, "softcap": softcap, "where": where}
    dtype = widest_dtype(dtype, student, teacher)
    shape, size, axis = student.shape, student.flat.h.shape[0], len(student.shape) - 1
    beta, softcap, where = scores_options(student.h, shape, axis, options)
    count, squared = _rows_in_mean(where, axis), _squared_temperature(beta, axis) if scale else 1.0
    i = LinearDivergence(
        *student.flat,
        *teacher.flat,
        where=None if where is None else broadcast_rows(where, shape[:-1], size),
        beta=flat_beta(beta, shape[:-1], size),
        kind=one_of(divergence, "divergence", DIVERGENCES),
        softcap=softcap,
    )
    rows = linear_operations.linear_divergence.first(i)
    rows = namespace(rows).reshape(rows, shape[:-1]) * squared
    return _reduced(rows, count, one_of(reduction, "reduction", REDUCTIONS), check.dtype_of_rows(dtype, student.h))


def _squared_temperature(beta: Scale, axis: int) -> Any:
    """Return T^2: a number, or one per row. Raise ValueError for a single T of 0 or infinity."""
    if not isinstance(beta.hi, float):
        return namespace(beta.hi).squeeze(1.0 / (beta.hi * beta.hi), axis=axis)
    if beta.hi == 0.0 or math.isinf(beta.hi):
        got = math.inf if beta.hi == 0.0 else 1.0 / beta.hi
        raise ValueError(f"temperature: expected a finite number other than 0 (because scale is True), got {got}")
    return 1.0 / (beta.hi * beta.hi)


def _rows_in_mean(where: Any, axis: int) -> Any:
    """Return a mask of the rows that a mean includes, those with at least one class unmasked. None means all rows."""
    return None if where is None else namespace(where).any(where, axis=axis)


def _reduced(rows: Any, count: Any, reduction: str, dtype: Any) -> Any:
    """Return the sum or the mean of the divergences of the rows, or the divergences themselves for "none"."""
    every = equal_row_weights(rows)
    count = every if count is None else every * namespace(rows).astype(count, rows.dtype)
    return reduced(rows, count, dtype, kept=kept_of(reduction, rows.ndim), mean=reduction == "mean")
