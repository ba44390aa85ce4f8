"""Gradients of softmax, log_softmax and logsumexp as operations: arguments, derivative rules and kernels."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from softargmax.core import _native
from softargmax.core.arrays import namespace
from softargmax.core.operation import Operation, only, row_sum, slope, sum_along
from softargmax.core.record import Array, Axes, Beta, DType, Gradients, Tangents, Wanted, like
from softargmax.normalize import reference


class ToScores(NamedTuple):
    """The gradient with respect to the scores."""

    gz: Any


# --- softmax: gz = beta p (g - <p, g>) --------------------------------------------------------------------------------


class SoftmaxVjp(NamedTuple):
    """Arguments of `softmax_vjp`: gz = beta p (g - <p, g>). `dtype` is the dtype of gz."""

    p: Array
    lse: Array
    g: Array
    beta: Beta
    axes: Axes
    dtype: DType


def _softmax_vjp_vjp(i: SoftmaxVjp, _r: ToScores, g: ToScores, _wanted: Wanted) -> Gradients:
    """Differentiate gz = beta p (g - <p, g>).

    d gz = beta (p (dg - <p, dg>) + dp (g - <p, g>) - p <dp, g>). The map from g to gz has a symmetric matrix, so the
    gradient with respect to g is this map applied to the incoming gradient.
    """
    inside = (i.p != 0) & (i.lse != math.inf)
    p, g_, h = only(inside, i.p), only(inside, i.g), only(inside, g.gz)
    gp = h * (g_ - sum_along(p * g_, i.axes)) - g_ * sum_along(p * h, i.axes)
    gg = softmax_vjp.first(i._replace(g=g.gz, dtype=i.g.dtype))
    return {"p": gp * slope(i.beta), "g": gg}


def _softmax_vjp_jvp(i: SoftmaxVjp, _r: ToScores, t: Tangents) -> ToScores:
    xp = namespace(i.g)
    u = softmax_vjp.first(i._replace(g=t.get("g", xp.zeros_like(i.g))))
    if "p" not in t:
        return ToScores(u)
    inside = (i.p != 0) & (i.lse != math.inf)
    p, g, dp = only(inside, i.p), only(inside, i.g), only(inside, t["p"])
    du = dp * (g - sum_along(p * g, i.axes)) - p * sum_along(dp * g, i.axes)
    return ToScores(u + xp.astype(du * slope(i.beta), i.dtype))


softmax_vjp: Operation[SoftmaxVjp, ToScores] = Operation(
    "softmax_vjp",
    SoftmaxVjp,
    ToScores(like("p", "dtype")),
    definition=reference.softmax_vjp,
    kernels={"cpu": _native.softmax_vjp, "cuda": "softargmax.normalize.triton_kernels:softmax_vjp"},
    vjp=_softmax_vjp_vjp,
    jvp=_softmax_vjp_jvp,
    constant={"lse", "beta"},  # beta is a number, and lse only marks rows with lse = inf
)


# --- log_softmax: gz = beta (g - p <1, g>) ----------------------------------------------------------------------------


class LogSoftmaxVjp(NamedTuple):
    """Arguments of `log_softmax_vjp`: gz = beta (g - p <1, g>). `dtype` is the dtype of gz."""

    log_p: Array
    lse: Array
    g: Array
    beta: Beta
    axes: Axes
    dtype: DType


def takes_part(log_p: Any, lse: Any) -> Any:
    """True for the scores that take part in a derivative."""
    return (log_p != -math.inf) & (lse != math.inf)


def probability(inside: Any, log_p: Any) -> Any:
    """Compute p from log p. Where `inside` is False, p is 0."""
    return only(inside, namespace(log_p).exp(only(inside, log_p)))


def _log_softmax_vjp_vjp(i: LogSoftmaxVjp, _r: ToScores, g: ToScores, _wanted: Wanted) -> Gradients:
    """Return the gradients with respect to log p and g, from d gz = beta (dg - p <1, dg> - p dlog p <1, g>)."""
    inside = takes_part(i.log_p, i.lse)
    h = only(inside, g.gz) * slope(i.beta)
    ph = probability(inside, i.log_p) * h
    return {
        "log_p": -ph * sum_along(only(inside, i.g), i.axes),
        "g": only(inside, h - sum_along(ph, i.axes)),
    }


def _log_softmax_vjp_jvp(i: LogSoftmaxVjp, _r: ToScores, t: Tangents) -> ToScores:
    xp = namespace(i.g)
    u = log_softmax_vjp.first(i._replace(g=t.get("g", xp.zeros_like(i.g))))
    if "log_p" not in t:
        return ToScores(u)
    inside = takes_part(i.log_p, i.lse)
    du = probability(inside, i.log_p) * only(inside, t["log_p"]) * sum_along(only(inside, i.g), i.axes)
    return ToScores(u - xp.astype(du * slope(i.beta), i.dtype))


log_softmax_vjp: Operation[LogSoftmaxVjp, ToScores] = Operation(
    "log_softmax_vjp",
    LogSoftmaxVjp,
    ToScores(like("log_p", "dtype")),
    definition=reference.log_softmax_vjp,
    kernels={"cpu": _native.log_softmax_vjp, "cuda": "softargmax.normalize.triton_kernels:log_softmax_vjp"},
    vjp=_log_softmax_vjp_vjp,
    jvp=_log_softmax_vjp_jvp,
    constant={"lse", "beta"},  # beta is a number, and lse only marks rows with lse = inf
)


# --- logsumexp: gz = p g ----------------------------------------------------------------------------------------------


class LogSumExpVjp(NamedTuple):
    """Arguments of `logsumexp_vjp`: gz = p g, and 0 where p = 0. g has one number per row. `dtype` is that of gz."""

    p: Array
    g: Array
    axes: Axes
    dtype: DType


def _logsumexp_vjp_vjp(i: LogSumExpVjp, _r: ToScores, g: ToScores, _wanted: Wanted) -> Gradients:
    inside = i.p != 0
    return {"p": only(inside, g.gz * i.g), "g": row_sum(only(inside, i.p * g.gz), i.axes)}


def _logsumexp_vjp_jvp(i: LogSumExpVjp, _r: ToScores, t: Tangents) -> ToScores:
    inside = i.p != 0
    u = only(inside, t["p"] * i.g) if "p" in t else namespace(i.p).zeros_like(i.p)
    return ToScores(u + only(inside, i.p * t["g"]) if "g" in t else u)


logsumexp_vjp: Operation[LogSumExpVjp, ToScores] = Operation(
    "logsumexp_vjp",
    LogSumExpVjp,
    ToScores(like("p", "dtype")),
    definition=reference.logsumexp_vjp,
    kernels={"cpu": _native.logsumexp_vjp, "cuda": "softargmax.normalize.triton_kernels:logsumexp_vjp"},
    vjp=_logsumexp_vjp_vjp,
    jvp=_logsumexp_vjp_jvp,
)
