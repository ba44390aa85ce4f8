"""The log-sum-exp of every prefix: arguments, result, derivative rules and kernel.

y_i = log sum_{j <= i} exp z_j. With w_i = exp(z_i - y_i), the weight of the newest score in its prefix, the tangent is
an exponential moving average, u_i = (1 - w_i) u_{i-1} + w_i t_i, and the gradient is the same recurrence run
backwards, c_i = g_i + (1 - w_{i+1}) c_{i+1}, gz_i = w_i c_i. Both are scans of maps u -> a u + b with 0 <= a <= 1.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from softargmax.core import _native
from softargmax.core.arrays import back, last, namespace
from softargmax.core.operation import Operation
from softargmax.core.record import Array, Axes, DType, Gradients, Tangents, Wanted, like
from softargmax.core.rules import row_dtype
from softargmax.normalize import reference


class LogCumSumExp(NamedTuple):
    """Scores along the one axis in `axes`."""

    z: Array
    axes: Axes
    dtype: DType


class Prefixes(NamedTuple):
    """The lse of everything up to each score."""

    lse: Any


def _weights(z: Any, y: Any) -> tuple[Any, Any]:
    """w_i = exp(z_i - y_i) and 1 - w_i, right for infinities: those of a prefix share it, the kth gets 1/k."""
    xp = namespace(z)
    z = xp.astype(z, row_dtype(z.dtype, xp), copy=False)
    infinite, out = z == math.inf, (z == -math.inf) | ((y == math.inf) & (z != math.inf))
    d = xp.where(infinite | out, 0.0, z - xp.where(infinite | out, 0.0, y))
    share = 1 / xp.astype(xp.clip(xp.cumulative_sum(infinite, axis=-1), 1, None), d.dtype)
    w = xp.where(out, 0.0, xp.where(infinite, share, xp.exp(d)))
    return w, xp.where(out, 1.0, xp.where(infinite, 1 - share, -xp.expm1(d)))


def _scan(a: Any, b: Any) -> Any:
    """u_i = a_i u_{i-1} + b_i along the last axis, in ceil(log2 n) steps.

    (core.scan does the same for every library; what it is made of cannot be batched by `is_grads_batched`.)
    """
    step = 1
    while step < a.shape[-1]:
        b = _joined(b[..., :step], a[..., step:] * b[..., :-step] + b[..., step:])
        a = _joined(a[..., :step], a[..., step:] * a[..., :-step])
        step *= 2
    return b


def _joined(*parts: Any) -> Any:
    """Parts one behind the other. (torch cannot batch its `concat`, but its `cat`.)"""
    xp = namespace(parts[0])
    return getattr(xp, "cat", xp.concat)(parts, -1)


def _vjp(i: LogCumSumExp, r: Prefixes, g: Prefixes, _wanted: Wanted) -> Gradients:
    (axis,) = i.axes
    xp, z, y = namespace(i.z), last(i.z, axis), last(r.lse, axis)
    w, rest = _weights(z, y)
    c = xp.where(y == -math.inf, 0.0, last(g.lse, axis))  # an empty prefix depends on nothing
    backwards = _joined(rest[..., :1], xp.flip(rest[..., 1:], axis=-1))
    c = xp.flip(_scan(backwards, xp.flip(c, axis=-1)), axis=-1)
    return {"z": back(xp.where(z == -math.inf, 0.0, w * c), axis)}


def _jvp(i: LogCumSumExp, r: Prefixes, t: Tangents) -> Prefixes:
    (axis,) = i.axes
    xp, z, y = namespace(i.z), last(i.z, axis), last(r.lse, axis)
    w, rest = _weights(z, y)
    u = xp.where(z == -math.inf, 0.0, xp.astype(last(t["z"], axis), y.dtype))
    return Prefixes(back(_scan(rest, w * u), axis))


logcumsumexp: Operation[LogCumSumExp, Prefixes] = Operation(
    "logcumsumexp",
    LogCumSumExp,
    Prefixes(like("z", "dtype")),
    definition=reference.logcumsumexp,
    kernels={"cpu": _native.logcumsumexp},
    vjp=_vjp,
    jvp=_jvp,
    saved={"z", "lse"},
)
