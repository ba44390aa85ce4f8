"""The losses of scores as operations: arguments, results, derivative rules and kernels (definitions: reference.py).

    d loss / d x_k = (tau + 2 c lse) p_k - m_k

A vjp answers for the scores; what stands beside them is differentiated by the definition. Kernels keep the states
(m, r, low) of rows, from which the backward makes p again: scores are read once more, the gradient is written once.
"""

from __future__ import annotations

from typing import Any

from softargmax.core import _native
from softargmax.core.arrays import namespace, row_shape
from softargmax.core.operation import Operation
from softargmax.core.record import Gradients, Result, Wanted, like
from softargmax.core.targets import refuse_class
from softargmax.loss import reference, reference_divergence
from softargmax.loss.arguments import CrossEntropy, CrossEntropyVjp, Divergence, GradientOf, LossOptions
from softargmax.loss.results import Divergences, Loss, LossAndGradient, ToScores

# --- cross_entropy: loss = -sum_k m_k log p_k + c lse^2 ---------------------------------------------------------------


def _kept(i: Any) -> tuple[int, ...]:
    return row_shape(i.z.shape, i.axes)[: i.kept]


def refuse(i: CrossEntropy, row: int) -> None:
    """Refuse the class of a row, which the kernel has found not to exist."""
    refuse_class(i.asked.target, row, i.z.shape, i.axes, i.asked.ignore_index)


def _cross_entropy_vjp(i: CrossEntropy, r: Loss, g: Loss, wanted: Wanted) -> Gradients:
    if "z" not in wanted:
        return {}
    states = None if r.states.shape == (0,) else r.states
    return {"z": cross_entropy_vjp.first(CrossEntropyVjp(i, states, g.loss, 0.0))}


def _cross_entropy_vjp_vjp(i: CrossEntropyVjp, _r: ToScores, g: ToScores, wanted: Wanted) -> Gradients:
    """gz is linear in g: where its slope is 0, what comes in is not looked at."""
    if "g" not in wanted:
        return {}
    xp = namespace(i.g)
    slope = xp.astype(cross_entropy_vjp.first(i._replace(g=xp.ones_like(i.g))), xp.float64)
    along = xp.sum(xp.where(slope == 0.0, 0.0, slope * g.gradient), axis=i.of.axes[0])
    over = tuple(range(i.of.kept, along.ndim))
    return {"g": xp.reshape(xp.sum(along, axis=over) if over else along, tuple(i.g.shape))}


cross_entropy: Operation[CrossEntropy, Loss] = Operation(
    "cross_entropy",
    CrossEntropy,
    Loss(
        Result("z", "dtype", _kept),
        Result("z", "float64", lambda i: (*row_shape(i.z.shape, i.axes), 3), spare=True),
    ),
    definition=reference.cross_entropy,
    kernels={"cpu": _native.cross_entropy},
    vjp=_cross_entropy_vjp,
    always_by_rule=True,
    saved={*CrossEntropy._fields, *LossOptions._fields, "states"},
    constant={"target", "where", "states"},
    refuse=refuse,
)

cross_entropy_vjp: Operation[CrossEntropyVjp, ToScores] = Operation(
    "cross_entropy_vjp",
    CrossEntropyVjp,
    ToScores(like("z")),
    definition=reference.cross_entropy_vjp,
    kernels={"cpu": _native.cross_entropy_vjp},
    vjp=_cross_entropy_vjp_vjp,
    always_by_rule=True,
    constant={"target", "where", "states"},
)

cross_entropy_and_gradient: Operation[GradientOf, LossAndGradient] = Operation(
    "cross_entropy_and_gradient",
    GradientOf,
    LossAndGradient(Result("z", "dtype", lambda i: _kept(i.of)), like("z")),
    definition=reference.cross_entropy_and_gradient,
    kernels={"cpu": _native.cross_entropy_and_gradient},
    differentiable=False,  # what is to be differentiated calls the two above
    refuse=lambda i, row: refuse(i.of, row),
)


# --- divergence between the softmaxes of two scores -------------------------------------------------------------------


divergence: Operation[Divergence, Divergences] = Operation(
    "divergence",
    Divergence,
    Divergences(Result("student", "float64", lambda i: row_shape(i.student.shape, i.axes))),
    definition=reference_divergence.divergence,
    constant={"where"},
)
