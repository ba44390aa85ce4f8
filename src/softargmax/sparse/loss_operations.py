"""Operations of the Fenchel-Young losses. The definitions are in reference_loss.py.

The notation is that of `support.py`, but t is the target probability of each class. u = g (p - t) is the gradient of
<g, loss> with respect to x.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core import _native
from softargmax.core.arrays import device_of, kept_shape, namespace, working_dtype
from softargmax.core.operation import Operation, finite_or_zero, row_sum
from softargmax.core.record import (
    Array,
    Axes,
    Beta,
    Dense,
    Gradients,
    Integers,
    Result,
    Rowwise,
    Tangents,
    Wanted,
    like,
    per_row,
)
from softargmax.core.targets import refuse_class, with_right_classes
from softargmax.sparse import reference_loss
from softargmax.sparse.operations import EntmaxVjp, Scores, ToScores, entmax, entmax_vjp, tangent, times_beta
from softargmax.sparse.support import Support

if TYPE_CHECKING:
    from collections.abc import Callable

# --- target classes: dloss = <p - t, dx> + (dH / dalpha) dalpha -------------------------------------------------------


class OfClasses(NamedTuple):
    """The fields of Scores, and the class of each row."""

    z: Array
    target: Integers
    alpha: Rowwise
    where: Array | None
    beta: Beta
    axes: Axes
    ignore_index: int


class Losses(NamedTuple):
    """The loss of each row in float64. A kernel also saves five numbers per row, from which the vjp recomputes p."""

    loss: Any
    roots: Any


class LossVjp(NamedTuple):
    """Arguments of the operation that returns u = g (p - t)."""

    g: Dense
    roots: Dense
    of: OfClasses


def _roots(i: OfClasses) -> tuple[int, ...]:
    """Return the shape of the numbers that the kernel saves: five per row."""
    return (*kept_shape(i.z.shape, i.axes), 5)


def _refuse(i: OfClasses, row: int) -> None:
    """Raise the error for a row in which the kernel found a class out of range."""
    refuse_class(i.target, row, i.z.shape, i.axes, i.ignore_index)


def _mend(i: OfClasses, _written: Any, run: Callable[[OfClasses], Any]) -> Any:
    """Let the kernel compute the rows whose classes exist. The loss or the gradient of the other rows is NaN."""
    classes = i.z.shape[i.axes[0]]
    found = with_right_classes(i.target, classes, i.ignore_index, lambda target: run(i._replace(target=target)))
    if found is None:
        return None
    results, wrong = found
    first, rows = results[0], wrong.reshape(kept_shape(i.z.shape, i.axes))
    first[np.broadcast_to(rows, first.shape)] = math.nan
    return results


def _support(i: OfClasses) -> tuple[Support, Any, Any]:
    """Return the `Support`, p and tau, from which second derivatives follow. Ignored rows have an empty support."""
    xp = namespace(i.z)
    ignored = i.target == i.ignore_index
    p, tau = entmax(Scores(xp.where(ignored, 0.0, i.z), i.alpha, i.where, i.beta, i.axes))
    tau = xp.where(ignored, math.inf, tau)
    return Support(p, tau, i.alpha, i.axes), p, tau


def _by_alpha(i: OfClasses) -> Any:
    """Return the derivative of the loss with respect to alpha: the derivative of H(p) at constant p.

    H = -sum p l E(a l) / alpha with l = log p and E(u) = (e^u - 1) / u. Let w be the result of `Support.by_alpha`, and
    v = p^a. Then l E(a l) = v l - a w. The derivative of l E(a l) with respect to a is l^2 E'(a l) = w.
    """
    row, _, _ = _support(i)
    p, w, alpha = row.only(row.p), row.by_alpha(), row.a + 1.0
    v = row.xp.exp(row.a * row.log)
    return row_sum(p * (v * row.log - row.a * w), row.axes) / (alpha * alpha) - row_sum(p * w, row.axes) / alpha


def _inner_product(slope: Any, t: Any, axes: tuple[int, ...]) -> Any:
    """Return <slope, t> of each row in the working dtype. Where the slope is 0, t is ignored, even if it is NaN."""
    xp = namespace(slope)
    slope = xp.astype(slope, working_dtype(slope, xp))
    return row_sum(xp.where(slope == 0, 0.0, slope * t), axes)


def _to_beta(i: OfClasses, gx: Any) -> Any:
    """Return the gradient with respect to beta, from the gradient gx with respect to x."""
    return finite_or_zero(i.beta.hi, _inner_product(gx, _relative_scores(i), i.axes))


def _relative_scores(i: OfClasses) -> Any:
    """Return the scores minus the score of the largest p in their row, so that <p - t, z> does not cancel."""
    xp = namespace(i.z)
    z = xp.astype(xp.where(xp.isinf(i.z), 0.0, i.z), working_dtype(i.z, xp))
    p, _ = entmax(Scores(i.z, i.alpha, i.where, i.beta, i.axes))
    return z - xp.max(xp.where(p == xp.max(p, axis=i.axes, keepdims=True), z, -math.inf), axis=i.axes, keepdims=True)


def _loss_vjp(i: OfClasses, r: Losses, g: Losses, wanted: Wanted) -> Gradients:
    gx = entmax_loss_vjp.first(LossVjp(g.loss, r.roots, i)) if wanted & {"z", "beta"} else None
    return {
        "z": times_beta(i.beta, gx) if "z" in wanted else None,
        "beta": _to_beta(i, gx) if "beta" in wanted else None,
        "alpha": g.loss * _by_alpha(i) if "alpha" in wanted else None,
    }


def _loss_jvp(i: OfClasses, r: Losses, t: Tangents) -> Losses:
    xp = namespace(i.z)
    one = xp.ones(r.loss.shape, dtype=r.loss.dtype, device=device_of(i.z))
    tangent_loss = one * 0.0
    if "z" in t or "beta" in t:
        tangent_loss = _inner_product(entmax_loss_vjp.first(LossVjp(one, r.roots, i)), tangent(i, t), i.axes)
    return Losses(tangent_loss + _by_alpha(i) * t["alpha"] if "alpha" in t else tangent_loss, None)


entmax_loss: Operation[OfClasses, Losses] = Operation(
    "entmax_loss",
    OfClasses,
    Losses(per_row("z", "float64"), Result("z", "float64", _roots, spare=True)),
    definition=reference_loss.entmax_loss,
    kernels={"cpu": _native.entmax_loss, "cuda": "softargmax.sparse.triton_loss:entmax_loss"},
    vjp=_loss_vjp,
    jvp=_loss_jvp,
    saved={"z", "target", "alpha", "where", "beta", "roots"},
    constant={"roots"},
    refuse=_refuse,
    mend=_mend,
)


def _loss_vjp_vjp(i: LossVjp, _r: ToScores, h: ToScores, wanted: Wanted) -> Gradients:
    """Return the gradients of <h, u> with u = g (p - t). They follow from du = (p - t) dg + g dp."""
    slope = entmax_loss_vjp.first(i._replace(g=namespace(i.g).ones_like(i.g)))
    row, p, tau = _support(i.of)
    gh = i.g * h.gz
    gx = entmax_vjp.first(EntmaxVjp(p, tau, i.of.alpha, row.xp.astype(gh, p.dtype), row.axes))
    return {
        "g": _inner_product(slope, h.gz, row.axes),
        "z": times_beta(i.of.beta, gx),
        "beta": row.to_beta(gh, i.of) if "beta" in wanted else None,
        "alpha": row_sum(row.to_alpha() * row.centred(gh), row.axes) if "alpha" in wanted else None,
    }


def _loss_vjp_jvp(i: LossVjp, _r: ToScores, t: Tangents) -> ToScores:
    xp = namespace(i.g)
    u = entmax_loss_vjp.first(i._replace(g=t["g"] if "g" in t else xp.zeros_like(i.g)))
    if not t.keys() & {"z", "alpha", "beta"}:
        return ToScores(u)
    row, p, tau = _support(i.of)
    if "z" in t or "beta" in t:
        dx = tangent(i.of, t)
        u = u + xp.astype(i.g * entmax_vjp.first(EntmaxVjp(p, tau, i.of.alpha, dx, row.axes)), u.dtype)
    if "alpha" in t:
        u = u + xp.astype(i.g * row.to_alpha() * t["alpha"], u.dtype)
    return ToScores(u)


entmax_loss_vjp: Operation[LossVjp, ToScores] = Operation(
    "entmax_loss_vjp",
    LossVjp,
    ToScores(like("z")),
    definition=reference_loss.entmax_loss_vjp,
    kernels={"cpu": _native.entmax_loss_vjp, "cuda": "softargmax.sparse.triton_loss:entmax_loss_vjp"},
    vjp=_loss_vjp_vjp,
    jvp=_loss_vjp_jvp,
    constant={"roots"},
    refuse=lambda i, row: _refuse(i.of, row),
    mend=lambda i, written, run: _mend(i.of, written, lambda of: run(i._replace(of=of))),
)


# --- classes or probabilities: no kernel; the array library differentiates the definition -----------------------------


class OfMasses(NamedTuple):
    """The fields of OfClasses, and the label smoothing. The target of a row is a class or probabilities."""

    z: Array
    target: Array
    alpha: Rowwise
    where: Array | None
    beta: Beta
    axes: Axes
    ignore_index: int
    label_smoothing: float


class Loss(NamedTuple):
    """The loss of each row, in working precision."""

    loss: Any


loss_of_masses: Operation[OfMasses, Loss] = Operation(
    "entmax_loss_of_masses", OfMasses, Loss(per_row("z", "float64")), definition=reference_loss.loss_of_masses
)
