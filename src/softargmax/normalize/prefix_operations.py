"""logcumsumexp, the smooth maximum of every prefix: arguments, result, derivative rules and kernel.

The result is y_i = log sum_{j <= i} exp(beta z_j) / beta. The prefix of a score z_i is z_1 .. z_i. Let w_i be the
probability of z_i in the softmax of its prefix.

For tangents t_i of z_i, the tangent of y_i is an exponential moving average, u_i = (1 - w_i) u_{i-1} + w_i t_i. For
gradients g_i of y_i, the gradient of z_i is w_i c_i, where c_i = g_i + (1 - w_{i+1}) c_{i+1} is a recurrence from the
end of the row. The derivative dy_i/dbeta is -H_i / beta^2, where H_i, the entropy of the softmax of the prefix, follows
the recurrence H_i = (1 - w_i) H_{i-1} + h(w_i) with h(w) = -w log w - (1 - w) log(1 - w). All three recurrences are
scans of maps u -> a u + b with 0 <= a <= 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from softargmax.core import _native
from softargmax.core.arrays import back, last, namespace, working_dtype
from softargmax.core.operation import Operation, row_sum
from softargmax.core.record import Array, Axes, Beta, DType, Gradients, Tangents, Wanted, like
from softargmax.normalize import reference
from softargmax.normalize.vjp_operations import ToScores


class LogCumSumExp(NamedTuple):
    """Arguments of logcumsumexp. `axes` contains one axis."""

    z: Array
    where: Array | None
    beta: Beta
    axes: Axes
    dtype: DType


class Prefixes(NamedTuple):
    """The smooth maximum of each prefix."""

    lse: Any


class Surprisals(NamedTuple):
    """-log of the probability of each score in the softmax of its prefix."""

    surprisal: Any


prefix_surprisals: Operation[LogCumSumExp, Surprisals] = Operation(
    "prefix_surprisals",
    LogCumSumExp,
    Surprisals(like("z", "dtype")),
    definition=reference.prefix_surprisals,
    kernels={"cpu": _native.prefix_surprisals, "cuda": "softargmax.normalize.triton_prefixes:prefix_surprisals"},
    constant={"where"},
)


class _Steps(NamedTuple):
    """Coefficients of the recurrences for each score, along the last axis."""

    surprisal: Any  # -log w
    w: Any  # the probability of the score in the softmax of its prefix
    rest: Any  # 1 - w


def _steps(i: LogCumSumExp) -> _Steps:
    """Compute the coefficients from the states of the prefixes.

    The formula w_i = exp(beta (z_i - y_i)) is not used: y_i is rounded, so w_i would have a relative error of
    |beta y_i| ulp.
    """
    xp = namespace(i.z)
    surprisal = last(prefix_surprisals.first(i._replace(dtype=working_dtype(i.z, xp))), *i.axes)
    return _Steps(surprisal, xp.exp(-surprisal), -xp.expm1(-surprisal))


def _slope(i: LogCumSumExp, s: _Steps, y: Any) -> Any:
    """Return dy/dbeta = -H / beta^2, and 0 where beta is 0 or infinite or y is infinite."""
    xp, beta = namespace(y), last(i.beta.hi, *i.axes)
    inside = s.w > 0.0
    of_w = s.w * xp.where(inside, s.surprisal, 0.0)
    of_rest = -s.rest * xp.log(xp.where(s.rest > 0.0, s.rest, 1.0))
    limit = (beta == 0.0) | xp.isinf(beta) | xp.isinf(y)
    beta = xp.where((beta == 0.0) | xp.isinf(beta), 1.0, beta)
    return xp.where(limit, 0.0, -_scan(s.rest, of_w + of_rest) / beta / beta)


def _scan(a: Any, b: Any) -> Any:
    """Return u_i = a_i u_{i-1} + b_i along the last axis, in ceil(log2 n) steps.

    `core.prefix_scan` computes the same for every library, but it uses operations that torch's `is_grads_batched`
    cannot batch.
    """
    step = 1
    while step < a.shape[-1]:
        b = _concat(b[..., :step], a[..., step:] * b[..., :-step] + b[..., step:])
        a = _concat(a[..., :step], a[..., step:] * a[..., :-step])
        step *= 2
    return b


def _concat(*parts: Any) -> Any:
    """Concatenate along the last axis. (`is_grads_batched` of torch can batch `cat` but not `concat`.)"""
    xp = namespace(parts[0])
    return getattr(xp, "cat", xp.concat)(parts, axis=-1)


def _forwards(s: _Steps, t: Any) -> Any:
    """Return u_i = (1 - w_i) u_{i-1} + w_i t_i along the last axis."""
    xp = namespace(s.w)
    return _scan(s.rest, s.w * xp.where(s.w == 0.0, 0.0, xp.astype(t, s.w.dtype)))


def _backwards(s: _Steps, g: Any) -> Any:
    """Return w_i c_i with c_i = g_i + (1 - w_{i+1}) c_{i+1} along the last axis."""
    xp = namespace(s.w)
    rest = _concat(s.rest[..., :1], xp.flip(s.rest[..., 1:], axis=-1))
    c = xp.flip(_scan(rest, xp.flip(g, axis=-1)), axis=-1)
    return xp.where(s.w == 0.0, 0.0, s.w * c)


class PrefixSlopes(NamedTuple):
    """Arguments of `_backwards` if `backwards`, with the gradients g, and of `_forwards` otherwise, with tangents g."""

    of: LogCumSumExp
    g: Array
    backwards: bool


def _defined_slopes(i: PrefixSlopes) -> Any:
    (axis,) = i.of.axes
    found = (_backwards if i.backwards else _forwards)(_steps(i.of), last(i.g, axis))
    return namespace(found).astype(back(found, axis), i.of.dtype)


prefix_slopes: Operation[PrefixSlopes, ToScores] = Operation(
    "prefix_slopes",
    PrefixSlopes,
    ToScores(like("z", "dtype")),
    definition=_defined_slopes,
    kernels={"cuda": "softargmax.normalize.triton_prefixes:prefix_slopes"},
    constant={"where"},
)


def _vjp(i: LogCumSumExp, r: Prefixes, g: Prefixes, wanted: Wanted) -> Gradients:
    if "beta" not in wanted:
        return {"z": prefix_slopes.first(PrefixSlopes(i._replace(dtype=i.z.dtype), g.lse, True))}
    (axis,) = i.axes
    xp, y, s = namespace(i.z), last(r.lse, axis), _steps(i)
    g_lse = last(g.lse, axis)
    of_beta = _slope(i, s, y) * xp.where(xp.isinf(y), 0.0, g_lse)
    return {"z": back(_backwards(s, g_lse), axis), "beta": row_sum(back(of_beta, axis), i.axes)}


def _jvp(i: LogCumSumExp, r: Prefixes, t: Tangents) -> Prefixes:
    if "beta" not in t:
        return Prefixes(prefix_slopes.first(PrefixSlopes(i, t["z"], False)))
    (axis,) = i.axes
    xp, y, s = namespace(i.z), last(r.lse, axis), _steps(i)
    u = _forwards(s, last(t["z"], axis)) if "z" in t else xp.zeros_like(s.w)
    return Prefixes(xp.astype(back(u + _slope(i, s, y) * last(t["beta"], axis), axis), i.dtype))


logcumsumexp: Operation[LogCumSumExp, Prefixes] = Operation(
    "logcumsumexp",
    LogCumSumExp,
    Prefixes(like("z", "dtype")),
    definition=reference.logcumsumexp,
    kernels={"cpu": _native.logcumsumexp, "cuda": "softargmax.normalize.triton_prefixes:logcumsumexp"},
    vjp=_vjp,
    jvp=_jvp,
    saved={"z", "where", "beta", "lse"},
    constant={"where"},
)
