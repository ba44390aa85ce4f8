"""Distillation: how far a student's softmax is from its teacher's."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from softargmax.core import arrays, check
from softargmax.core.dispatch import namespace
from softargmax.core.reduce import reduced
from softargmax.core.targets import REDUCTIONS, one_of
from softargmax.loss.implement import implementation
from softargmax.loss.layer import flattened, layer_of, wide_of
from softargmax.loss.options import Beside, Divergence, scores_options

if TYPE_CHECKING:
    from softargmax.core.scale import Scale

DIVERGENCES = ("forward", "reverse", "js")


def distillation(  # noqa: PLR0913 each is asked for by its name
    z_student: Any,
    z_teacher: Any,
    /,
    *,
    axis: int = -1,
    temperature: Any = 1.0,
    divergence: str = "forward",
    scale: bool = True,
    reduction: str = "mean",
    softcap: float | None = None,
    where: Any = None,
    dtype: Any = None,
) -> Any:
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
    axis, shape = check.one_axis(axis, student.ndim), tuple(student.shape)
    given = {"axis": axis, "temperature": temperature, "softcap": softcap, "where": where, "reduction": reduction}
    beta, where, options = _checked(student, shape, given, divergence, dtype)
    squared = _squared(beta) if scale else None
    rows = implementation(student).divergence(student, teacher, beta, where, options)
    return _reduced(rows, squared, where, options)


def linear_distillation(  # noqa: PLR0913 each is asked for by its name
    h_student: Any,
    w_student: Any,
    h_teacher: Any,
    w_teacher: Any,
    /,
    *,
    bias_student: Any = None,
    bias_teacher: Any = None,
    temperature: Any = 1.0,
    divergence: str = "forward",
    scale: bool = True,
    reduction: str = "mean",
    softcap: float | None = None,
    where: Any = None,
    dtype: Any = None,
) -> Any:
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
    given = {"axis": -1, "temperature": temperature, "softcap": softcap, "where": where, "reduction": reduction}
    dtype = wide_of(dtype, student, teacher)
    beta, where, options = _checked(student.h, student.shape, given, divergence, dtype)
    squared = _squared(beta) if scale else None
    flat = flattened(Beside(None, None, beta, where), student.shape)
    run = implementation(student.h)
    rows = run.linear_divergence(student.flat, teacher.flat, flat.scale, flat.where, replace(options, axis=1))
    return _reduced(namespace(rows).reshape(rows, student.shape[:-1]), squared, where, options)


def _checked(
    z: Any, shape: tuple[int, ...], given: dict[str, Any], kind: Any, dtype: Any
) -> tuple[Scale, Any, Divergence]:
    axis = check.one_axis(given["axis"], len(shape))
    if not shape:
        raise ValueError("z_student: 0-d; a divergence needs an axis of classes")
    scale, softcap, where = scores_options(z, shape, axis, given)
    reduction, kind = one_of(given["reduction"], "reduction", REDUCTIONS), one_of(kind, "divergence", DIVERGENCES)
    return scale, where, Divergence(axis, kind, reduction, softcap, check.row_dtype(dtype, z))


def _squared(scale: Scale) -> Any:
    """T^2, of numbers that are neither 0 nor infinite."""
    if isinstance(scale.hi, float) and (scale.hi == 0.0 or math.isinf(scale.hi)):
        raise ValueError("temperature: 0 or infinite; beside scale=True it may be any other number")
    return 1.0 / (scale.hi * scale.hi)


def _reduced(rows: Any, squared: Any, where: Any, options: Divergence) -> Any:
    """The rows' divergences times T^2, as asked for; what is masked wholly counts nothing."""
    xp, axis = namespace(rows), options.axis
    count = xp.ones_like(rows)
    if where is not None:
        count = count * xp.astype(xp.any(where, axis=axis), rows.dtype)
    if squared is not None:
        rows = rows * (squared if isinstance(squared, float) else xp.squeeze(squared, axis=axis))
    return reduced(rows, count, options)
