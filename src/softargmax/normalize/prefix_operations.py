"""The smooth maximum of every prefix: arguments, result, derivative rules and kernel.

y_i = log sum_{j <= i} exp(beta z_j) / beta. With w_i = exp(beta (z_i - y_i)), the weight of the newest score in its
prefix, the tangent is an exponential moving average, u_i = (1 - w_i) u_{i-1} + w_i t_i, and the gradient is the same
recurrence run backwards, c_i = g_i + (1 - w_{i+1}) c_{i+1}, gz_i = w_i c_i. The entropy of the prefix' softmax, too,
is H_i = (1 - w_i) H_{i-1} + h(w_i), h being that of two outcomes, and dy_i/dbeta = -H_i / beta^2. All are scans of
maps u -> a u + b with 0 <= a <= 1.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from softargmax.core import _native
from softargmax.core.arrays import back, device_of, last, namespace
from softargmax.core.operation import Operation
from softargmax.core.record import Array, Axes, Beta, DType, Gradients, Tangents, Wanted, like
from softargmax.core.rules import is_number, row_sum
from softargmax.normalize import reference


class LogCumSumExp(NamedTuple):
    """Scores along the one axis in `axes`."""

    z: Array
    where: Array | None
    beta: Beta
    axes: Axes
    dtype: DType


class Prefixes(NamedTuple):
    """The smooth maximum of everything up to each score."""

    lse: Any


class _Steps(NamedTuple):
    """What each score does to its prefix, along the last axis."""

    w: Any  # its weight in the prefix
    rest: Any  # 1 - w
    inside: Any  # whether it is in the support
    empty: Any  # whether nothing of the prefix is
    size: Any  # |beta|
    limit: Any  # whether beta is 0 or infinite


def _steps(i: LogCumSumExp, y: Any) -> _Steps:
    """Where a prefix is its largest scores alone (infinities, any scores at beta = 0) the kth of them weighs 1/k."""
    xp, (axis,) = namespace(i.z), i.axes
    number = is_number(i.beta)
    hi = xp.full((), i.beta.hi, dtype=y.dtype, device=device_of(y)) if number else last(i.beta.hi, axis)
    sign, size = xp.where(hi < 0.0, xp.full_like(hi, -1.0), 1.0), xp.abs(hi)
    z, y = sign * last(xp.astype(i.z, y.dtype, copy=False), axis), sign * last(y, axis)
    z = z if i.where is None else xp.where(last(xp.broadcast_to(i.where, i.z.shape), axis), z, -math.inf)
    inside, infinite = z != -math.inf, z == math.inf
    infinities = xp.cumulative_sum(xp.astype(infinite, y.dtype), axis=-1)
    limit = (size == 0.0) | (size == math.inf)
    if number and 0.0 < abs(i.beta.hi) < math.inf:
        largest, count = infinite, infinities
    else:
        infinitely = infinities > 0.0
        largest = xp.where(infinitely, infinite, inside & ((size == 0.0) | (z == y)))
        level = xp.where(size == 0.0, xp.astype(infinitely, y.dtype), y)
        same = xp.astype(level[..., 1:] == level[..., :-1], y.dtype)
        count = _scan(_joined(same[..., :1], same), xp.astype(largest, y.dtype))
    few = (limit | (y == math.inf)) & ~xp.isnan(y)
    counts, share = inside & (largest | ~few), 1 / xp.clip(count, 1.0, None)
    plain = counts & ~few
    d = size * xp.where(plain, z - xp.where(plain, y, 0.0), 0.0)
    w = xp.where(counts, xp.where(few, share, xp.exp(d)), 0.0)
    rest = xp.where(counts, xp.where(few, 1 - share, -xp.expm1(d)), 1.0)
    return _Steps(w, rest, inside, y == -math.inf, size, limit)


def _slope(s: _Steps, y: Any) -> Any:
    """dy/dbeta = -H / beta^2, and 0 in a limit."""
    xp = namespace(y)
    light = s.w < 0.5  # the logarithm of 1 - w from w itself
    log_w = xp.log(xp.where(s.w > 0.0, s.w, 1.0))
    log_rest = xp.where(
        light, xp.log1p(-xp.where(light, s.w, 0.0)), xp.log(xp.where(light | (s.rest == 0.0), 1.0, s.rest))
    )
    size = xp.where(s.limit, 1.0, s.size)
    return xp.where(s.limit | xp.isinf(y), 0.0, _scan(s.rest, s.w * log_w + s.rest * log_rest) / size / size)


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


def _vjp(i: LogCumSumExp, r: Prefixes, g: Prefixes, wanted: Wanted) -> Gradients:
    (axis,) = i.axes
    xp, s = namespace(i.z), _steps(i, r.lse)
    g_lse = xp.where(s.empty, 0.0, last(g.lse, axis))  # an empty prefix depends on nothing
    backwards = _joined(s.rest[..., :1], xp.flip(s.rest[..., 1:], axis=-1))
    c = xp.flip(_scan(backwards, xp.flip(g_lse, axis=-1)), axis=-1)
    found = {"z": back(xp.where(s.inside, s.w * c, 0.0), axis)}
    if "beta" in wanted:
        found["beta"] = row_sum(back(g_lse * _slope(s, last(r.lse, axis)), axis), i.axes)
    return found


def _jvp(i: LogCumSumExp, r: Prefixes, t: Tangents) -> Prefixes:
    (axis,) = i.axes
    xp, y, s = namespace(i.z), last(r.lse, axis), _steps(i, r.lse)
    u = xp.zeros_like(y)
    if "z" in t:
        u = _scan(s.rest, s.w * xp.where(s.inside, xp.astype(last(t["z"], axis), y.dtype), 0.0))
    return Prefixes(back(u + _slope(s, y) * last(t["beta"], axis) if "beta" in t else u, axis))


logcumsumexp: Operation[LogCumSumExp, Prefixes] = Operation(
    "logcumsumexp",
    LogCumSumExp,
    Prefixes(like("z", "dtype")),
    definition=reference.logcumsumexp,
    kernels={"cpu": _native.logcumsumexp},
    vjp=_vjp,
    jvp=_jvp,
    saved={"z", "where", "beta", "lse"},
    constant={"where"},
)
