"""Distillation: how far a student's softmax is from its teacher's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from softargmax.core import arrays, check
from softargmax.core.arrays import namespace, one_axis
from softargmax.core.check import one_of
from softargmax.core.loss_reduction import each_counts, reduced
from softargmax.core.signature import public
from softargmax.core.targets import REDUCTIONS, kept_of
from softargmax.core.types import Array, DType, Logits, Mask, Numbers, PerRow, Vectors
from softargmax.loss import linear_operations, operations
from softargmax.loss.arguments import Divergence, LinearDivergence
from softargmax.loss.linear_inputs import flat_beta, layer_of, spread, wide_of
from softargmax.loss.options import scores_options

if TYPE_CHECKING:
    from softargmax.core.scale import Scale

DIVERGENCES = ("forward", "reverse", "js")


@public
def distillation(  # noqa: PLR0913 each is asked for by its name
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
    r"""The divergence of a student's softmax q from its teacher's p, times :math:`T^2`, in nats.

    .. math::
        \text{forward: } T^2\,\mathrm{KL}(p \,\|\, q), \quad
        \text{reverse: } T^2\,\mathrm{KL}(q \,\|\, p), \quad
        \text{js: } \tfrac{T^2}{2} \left(\mathrm{KL}(p \,\|\, m) + \mathrm{KL}(q \,\|\, m)\right), \quad
        m = \tfrac{1}{2} (p + q)

    Parameters
    ----------
    z_student, z_teacher : array_like
        Scores of q and of p, which broadcast with each other.
    axis : int
        The axis of the classes.
    temperature : float or array
        T of both softmaxes, as in `softmax`.
    divergence : {"forward", "reverse", "js"}
        Which one.
    scale : bool
        Whether to multiply by :math:`T^2`, which keeps gradients of one size whatever T. False: the bare divergence.
    reduction : {"mean", "sum", "none"}
        What becomes of the rows' numbers. A row wholly outside of `where` counts nothing in the mean.
    softcap : float, optional
        As in `cross_entropy`, of both scores.
    where : array of bool, optional
        The support of both, as in `softmax`.
    dtype : dtype, optional
        The floating dtype of the result; if None that of the scores, and float32 for half scores.

    Returns
    -------
    array
        One number, or one per row, at least 0.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong kind or dtype; if it has a wrong shape or value.

    Notes
    -----
    Terms with p_k = 0 add 0 to KL(p || q); p_k > 0 = q_k gives +inf. A row with nothing in p's support gives 0. With
    `scale` T may not be 0 or infinite.

    Gradient of "forward" to the student, without the factor: :math:`(q - p) / T`; of "reverse":
    :math:`q_k (\log(q_k / p_k) - \mathrm{KL}) / T`. The teacher has one too.

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
        raise ValueError("z_student: 0-d; a divergence needs an axis of classes")
    axis, shape = one_axis(axis, student.ndim), tuple(student.shape)
    given = {"temperature": temperature, "softcap": softcap, "where": where}
    beta, softcap, where = scores_options(student, shape, axis, given)
    i = Divergence(student, teacher, where, beta, (axis,), one_of(divergence, "divergence", DIVERGENCES), softcap)
    count, squared = _counts(where, axis), _squared(beta, axis) if scale else 1.0
    dtype = check.row_dtype(dtype, student)
    return _reduced(operations.divergence.first(i) * squared, count, one_of(reduction, "reduction", REDUCTIONS), dtype)


@public
def linear_distillation(  # noqa: PLR0913 each is asked for by its name
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
    r"""The distillation of scores that are made of hidden vectors, without holding either model's scores.

    .. math:: z = h W^T + b, \qquad \mathrm{distillation}(z_{\text{student}}, z_{\text{teacher}})

    Parameters
    ----------
    h_student, h_teacher : array_like
        Hidden vectors (..., D) with as many rows each; D may differ.
    w_student, w_teacher : array_like
        Output weights (K, D).
    bias_student, bias_teacher : array, optional
        b, one per class.
    temperature, divergence, scale, reduction, softcap, where, dtype
        As in `distillation`, beside scores of shape (..., K).

    Returns
    -------
    array
        One number, or one per row.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong kind or dtype; if it has a wrong shape or value.

    Notes
    -----
    Scores exist for a few rows at a time. Edge rows are those of `distillation`.

    Gradient: that of `distillation`, to both models' h, W and b.

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
        raise ValueError(f"h_teacher, w_teacher: scores of shape {teacher.shape}; the student's are {student.shape}")
    given = {"temperature": temperature, "softcap": softcap, "where": where}
    dtype = wide_of(dtype, student, teacher)
    shape, size, axis = student.shape, student.flat.h.shape[0], len(student.shape) - 1
    beta, softcap, where = scores_options(student.h, shape, axis, given)
    count, squared = _counts(where, axis), _squared(beta, axis) if scale else 1.0
    i = LinearDivergence(
        *student.flat,
        *teacher.flat,
        where=None if where is None else spread(where, shape[:-1], size),
        beta=flat_beta(beta, shape[:-1], size),
        kind=one_of(divergence, "divergence", DIVERGENCES),
        softcap=softcap,
    )
    rows = linear_operations.linear_divergence.first(i)
    rows = namespace(rows).reshape(rows, shape[:-1]) * squared
    return _reduced(rows, count, one_of(reduction, "reduction", REDUCTIONS), check.row_dtype(dtype, student.h))


def _squared(beta: Scale, axis: int) -> Any:
    """T^2, of numbers that are neither 0 nor infinite; a number, or one per row."""
    if not isinstance(beta.hi, float):
        return namespace(beta.hi).squeeze(1.0 / (beta.hi * beta.hi), axis=axis)
    if beta.hi == 0.0 or math.isinf(beta.hi):
        raise ValueError("temperature: expected a finite number that is not 0, as scale is True")
    return 1.0 / (beta.hi * beta.hi)


def _counts(where: Any, axis: int) -> Any:
    """Which rows count in a mean: those that are not masked wholly; None for all."""
    return None if where is None else namespace(where).any(where, axis=axis)


def _reduced(rows: Any, count: Any, reduction: str, dtype: Any) -> Any:
    """The rows' divergences as asked for."""
    every = each_counts(rows)
    count = every if count is None else every * namespace(rows).astype(count, rows.dtype)
    return reduced(rows, count, dtype, kept=kept_of(reduction, rows.ndim), mean=reduction == "mean")
