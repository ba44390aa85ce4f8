"""The divergence of two softmaxes: arguments, result, derivative rules and kernel.

D = <p, log p - log q>. dD = <p (log p - log q - D), dz_p> + <q - p, dz_q>.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from softargmax.core import _native
from softargmax.core.dispatch import namespace
from softargmax.core.exact import working_dtype
from softargmax.core.operation import Operation
from softargmax.core.record import Array, Axes, DType, Gradients, Tangents, Wanted, per_row
from softargmax.core.rules import only, row_sum
from softargmax.core.scale import UNIT
from softargmax.normalize import reference
from softargmax.normalize.operations import Scores, SoftmaxVjp, log_softmax, softmax, softmax_vjp


class KlDivergence(NamedTuple):
    """Scores of p and of q, of one shape and dtype."""

    z_p: Array
    z_q: Array
    where: Array | None
    axes: Axes
    dtype: DType


class Divergence(NamedTuple):
    """In nats."""

    divergence: Any


def _divergence_slopes(i: KlDivergence) -> tuple[Any, Any]:
    """The derivatives of D to both scores, in float64: where p is near q, both are small differences.

    An infinite score is constant, and so is D where it is infinite.
    """
    xp = namespace(i.z_p)
    of_p, of_q = (Scores(z, i.where, UNIT, i.axes, working_dtype(z, xp)) for z in (i.z_p, i.z_q))
    (p, lse_p), (q, lse_q) = softmax(of_p), softmax(of_q)
    log_q = log_softmax.first(of_q)
    lost = row_sum(xp.astype((p != 0) & (log_q == -math.inf), p.dtype), i.axes) > 0
    inside = (p != 0) & ~lost
    ratio = only(inside, log_softmax.first(of_p)) - only(inside, log_q)
    slope_p = only(~lost, softmax_vjp.first(SoftmaxVjp(p, lse_p, ratio, UNIT, i.axes, p.dtype)))
    return slope_p, only(~lost & (lse_q != math.inf) & (lse_p != -math.inf), q - p)


def _kl_divergence_vjp(i: KlDivergence, _r: Divergence, g: Divergence, _wanted: Wanted) -> Gradients:
    slope_p, slope_q = _divergence_slopes(i)
    return {name: only(of != 0, of * g.divergence) for name, of in (("z_p", slope_p), ("z_q", slope_q))}


def _kl_divergence_jvp(i: KlDivergence, _r: Divergence, t: Tangents) -> Divergence:
    slopes = zip(("z_p", "z_q"), _divergence_slopes(i), strict=True)
    parts = [row_sum(of * only(of != 0, t[name]), i.axes) for name, of in slopes if name in t]
    return Divergence(sum(parts[1:], parts[0]))


kl_divergence: Operation[KlDivergence, Divergence] = Operation(
    "kl_divergence",
    KlDivergence,
    Divergence(per_row("z_p", "dtype")),
    definition=reference.kl_divergence,
    kernels={"cpu": _native.kl_divergence},
    vjp=_kl_divergence_vjp,
    jvp=_kl_divergence_jvp,
    constant={"where"},
)
