"""Operations for the losses of scores: arguments, results, derivative rules and kernels.

    d loss / d x_k = (tau + 2 c lse) p_k - m_k

reference.py contains the definitions and explains the symbols. A vjp rule returns the gradient with respect to the
scores only. For all other arguments, autograd differentiates the definition. Kernels save the state (m, r, low) of each
row. The backward pass recomputes p from this state. It reads the scores once and writes the gradient once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core import _native
from softargmax.core.arrays import HALVES, dtype_name, kept_shape, namespace, row_shape, squeezed, working_dtype
from softargmax.core.operation import Operation, Together, row_sum
from softargmax.core.processes import whole_shape
from softargmax.core.record import Gradients, Result, Wanted, like
from softargmax.core.targets import refuse_class, with_right_classes
from softargmax.loss import reference, reference_divergence
from softargmax.loss.arguments import CrossEntropy, CrossEntropyVjp, Divergence, GradientOf, LossOptions
from softargmax.loss.results import Divergences, Loss, LossAndGradient, ToScores

if TYPE_CHECKING:
    from collections.abc import Callable

# --- cross_entropy: loss = -sum_k m_k log p_k + c lse^2 ---------------------------------------------------------------


def _kept(i: Any) -> tuple[int, ...]:
    return row_shape(i.z.shape, i.axes)[: i.kept]


def refuse(i: CrossEntropy, row: int) -> None:
    """Raise IndexError, after the kernel found that the class of `row` is out of range."""
    options = i.options
    refuse_class(options.target, row, whole_shape(i.z.shape, i.axes), i.axes, options.ignore_index, options.named)


def _mend(i: CrossEntropy, _written: Any, run: Callable[[CrossEntropy], Any]) -> Any:
    """Let the kernel compute the rows whose classes exist. The loss and the gradient of the other rows are NaN."""
    options, (axis,) = i.options, i.axes
    found = with_right_classes(
        options.target,
        i.z.shape[axis],
        options.ignore_index,
        lambda target: run(i._replace(options=options._replace(target=target))),
    )
    if found is None:
        return None
    results, wrong = found
    loss, gradient = (getattr(results, name, None) for name in LossAndGradient._fields)
    if loss is not None:
        loss[wrong.reshape(*loss.shape, -1).any(axis=-1)] = math.nan
    if gradient is not None:
        rows = wrong.reshape(kept_shape(i.z.shape, i.axes))
        gradient[np.broadcast_to(rows, gradient.shape)] = math.nan
    return results


def _mend_of(i: Any, written: Any, run: Callable[[Any], Any]) -> Any:
    return _mend(i.of, written, lambda of: run(i._replace(of=of)))


def _cross_entropy_vjp(i: CrossEntropy, r: Loss, g: Loss, wanted: Wanted) -> Gradients:
    if "z" not in wanted:
        return {}
    states = None if r.states is None or r.states.shape == (0,) else r.states
    return {"z": cross_entropy_vjp.first(CrossEntropyVjp(i, states, g.loss, 0.0))}


def _together(i: CrossEntropy, wanted: Wanted) -> Together | None:
    # A gradient in half precision is rounded after it is multiplied by g. Before, it could underflow (loss scaling).
    if wanted != {"z"} or i.kept or dtype_name(i.z.dtype) in HALVES:
        return None
    return Together(cross_entropy_and_gradient, GradientOf(i, None, 0.0), {"z": "gradient"})


def _cross_entropy_vjp_vjp(i: CrossEntropyVjp, _r: ToScores, g: ToScores, wanted: Wanted) -> Gradients:
    """Return the gradient with respect to g. The operation returns gz = slope g, which is linear in g.

    Where the slope is 0, the incoming gradient is ignored, even if it is NaN.
    """
    if "g" not in wanted:
        return {}
    xp = namespace(i.g)
    slope = cross_entropy_vjp.first(i._replace(g=xp.ones_like(i.g)))
    slope = xp.astype(slope, working_dtype(slope, xp))
    of_rows = squeezed(row_sum(xp.where(slope == 0.0, 0.0, slope * g.gradient), i.of.axes), i.of.axes)
    over = tuple(range(i.of.kept, of_rows.ndim))
    return {"g": xp.reshape(xp.sum(of_rows, axis=over) if over else of_rows, tuple(i.g.shape))}


cross_entropy: Operation[CrossEntropy, Loss] = Operation(
    "cross_entropy",
    CrossEntropy,
    Loss(
        Result("z", "dtype", _kept),
        Result("z", "float64", lambda i: (*row_shape(i.z.shape, i.axes), 3), spare=True),
    ),
    definition=reference.cross_entropy,
    kernels={"cpu": _native.cross_entropy, "cuda": "softargmax.loss.triton_kernels:cross_entropy"},
    vjp=_cross_entropy_vjp,
    always_by_rule=True,
    saved={*CrossEntropy._fields, *LossOptions._fields, "states"},
    constant={"target", "where", "states"},
    refuse=refuse,
    mend=_mend,
    together=_together,
    defined_over_processes=True,
)

cross_entropy_vjp: Operation[CrossEntropyVjp, ToScores] = Operation(
    "cross_entropy_vjp",
    CrossEntropyVjp,
    ToScores(like("z")),
    definition=reference.cross_entropy_vjp,
    kernels={"cpu": _native.cross_entropy_vjp, "cuda": "softargmax.loss.triton_kernels:cross_entropy_vjp"},
    vjp=_cross_entropy_vjp_vjp,
    always_by_rule=True,
    constant={"target", "where", "states"},
    mend=_mend_of,
    defined_over_processes=True,
)

cross_entropy_and_gradient: Operation[GradientOf, LossAndGradient] = Operation(
    "cross_entropy_and_gradient",
    GradientOf,
    LossAndGradient(Result("z", "dtype", lambda i: _kept(i.of)), like("z")),
    definition=reference.cross_entropy_and_gradient,
    kernels={
        "cpu": _native.cross_entropy_and_gradient,
        "cuda": "softargmax.loss.triton_kernels:cross_entropy_and_gradient",
    },
    differentiable=False,  # differentiated calls use the two operations above
    refuse=lambda i, row: refuse(i.of, row),
    mend=_mend_of,
)


# --- divergence between two softmaxes ---------------------------------------------------------------------------------


divergence: Operation[Divergence, Divergences] = Operation(
    "divergence",
    Divergence,
    Divergences(Result("student", "float64", lambda i: row_shape(i.student.shape, i.axes))),
    definition=reference_divergence.divergence,
    constant={"where"},
)
