"""Operations: softmax, log_softmax, logsumexp, entropy and expectation. Their definitions are in reference.py.

The derivative rules use only the scores with p != 0 (the rules of log_softmax: with log p != -inf). The softmax of a
row with scores of +inf (lse = inf) is constant, so its derivative is 0. The derivative is also 0 at |beta| = inf
(T -> 0), where the softmax is piecewise constant.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from softargmax.core import _native
from softargmax.core.arrays import device_of, namespace, row_dtype, working_dtype
from softargmax.core.operation import Operation, along, finite_or_zero, is_number, only, row_sum, slope, sum_along
from softargmax.core.processes import SpreadAxes
from softargmax.core.record import Array, Axes, Beta, DType, Gradients, Tangents, Wanted, like, per_row
from softargmax.core.scale import UNIT
from softargmax.normalize import reference
from softargmax.normalize.vjp_operations import (
    LogSoftmaxVjp,
    LogSumExpVjp,
    SoftmaxVjp,
    ToScores,
    log_softmax_vjp,
    logsumexp_vjp,
    probability,
    softmax_vjp,
    takes_part,
)

# --- softmax: p = exp(x - lse), x = beta z. dp = p (dx - <p, dx>), dlse = <p, dx>, dx = beta dz + z dbeta -------------


class Scores(NamedTuple):
    """Arguments of softmax and log_softmax. Rows run along `axes`. `dtype` is the dtype of the result."""

    z: Array
    where: Array | None
    beta: Beta
    axes: Axes
    dtype: DType


class Probabilities(NamedTuple):
    """Result of softmax: p, and lse in nats."""

    p: Any
    lse: Any


def _saved(i: Any) -> Wanted:
    """Return the fields that the derivative rules read. The rules need z and beta only if beta is an array."""
    results = {"p", "log_p", "lse"}
    return results if is_number(i.beta) else results | {"z", "beta"}


def _tangent(i: Any, inside: Any, t: Tangents) -> Any:
    """Return dx = beta dz + z dbeta."""
    dx = only(inside, t["z"]) * slope(i.beta) if "z" in t else namespace(i.z).zeros_like(only(inside, i.z))
    return dx + only(inside & ~_infinite(i.z), i.z) * t["beta"] if "beta" in t else dx


def _infinite(z: Any) -> Any:
    return namespace(z).isinf(z)


def _softmax_vjp(i: Scores, r: Probabilities, g: Probabilities, wanted: Wanted) -> Gradients:
    number, gx = is_number(i.beta), None
    if g.p is not None:
        beta, dtype = (i.beta, i.z.dtype) if number else (UNIT, row_dtype(i.z.dtype))
        gx = softmax_vjp.first(SoftmaxVjp(r.p, r.lse, g.p, beta, i.axes, dtype))
    if g.lse is not None:
        of_lse = only(r.p != 0, r.p * along(g.lse, i.axes)) * (slope(i.beta) if number else 1.0)
        gx = of_lse if gx is None else gx + of_lse
    if number:
        return {"z": gx}
    gradients = {"z": gx * along(slope(i.beta), i.axes)}
    if "beta" in wanted:
        # Compute the covariance of z and g without cancellation: <z, p (g - <p, g>)> = <z - <p, z>, p (g - <p, g>)>.
        inside = (r.p != 0) & ~_infinite(i.z)
        mean = row_sum(only(inside, r.p) * only(inside, i.z), i.axes)
        of_beta = row_sum(gx * only(inside, i.z - along(mean, i.axes)), i.axes) + (0 if g.lse is None else mean * g.lse)
        gradients["beta"] = finite_or_zero(i.beta.hi, of_beta)
    return gradients


def _softmax_jvp(i: Scores, r: Probabilities, t: Tangents) -> Probabilities:
    dx = _tangent(i, r.p != 0, t)
    dp = softmax_vjp.first(SoftmaxVjp(r.p, r.lse, dx, UNIT, i.axes, r.p.dtype))
    return Probabilities(dp, row_sum(only(r.p != 0, r.p) * dx, i.axes))


softmax: Operation[Scores, Probabilities] = Operation(
    "softmax",
    Scores,
    Probabilities(like("z", "dtype"), per_row("z", "dtype", wide=True, spare=True)),
    definition=reference.softmax,
    kernels={"cpu": _native.softmax, "cuda": "softargmax.normalize.triton_kernels:softmax"},
    vjp=_softmax_vjp,
    jvp=_softmax_jvp,
    saved=_saved,
    constant={"where"},
)


# --- log_softmax: log p = x - lse. dlog p = dx - <p, dx> ------------------------------------------------------------


class LogProbabilities(NamedTuple):
    """The log-softmax, and lse in nats.

    Derivatives use lse only to find rows with lse = inf, in which every derivative is 0.
    """

    log_p: Any
    lse: Any


def _log_softmax_vjp(i: Scores, r: LogProbabilities, g: LogProbabilities, wanted: Wanted) -> Gradients:
    if is_number(i.beta):
        return {"z": log_softmax_vjp.first(LogSoftmaxVjp(r.log_p, r.lse, g.log_p, i.beta, i.axes, i.z.dtype))}
    dtype = row_dtype(i.z.dtype)
    gx = log_softmax_vjp.first(LogSoftmaxVjp(r.log_p, r.lse, g.log_p, UNIT, i.axes, dtype))
    gradients = {"z": gx * along(slope(i.beta), i.axes)}
    if "beta" in wanted:
        inside = takes_part(r.log_p, r.lse)
        mean = row_sum(probability(inside, r.log_p) * only(inside, i.z), i.axes)
        of_beta = row_sum(only(inside, g.log_p) * only(inside, i.z - along(mean, i.axes)), i.axes)
        gradients["beta"] = finite_or_zero(i.beta.hi, of_beta)
    return gradients


def _log_softmax_jvp(i: Scores, r: LogProbabilities, t: Tangents) -> LogProbabilities:
    inside = takes_part(r.log_p, r.lse)
    dx = _tangent(i, inside, t)
    return LogProbabilities(only(inside, dx - sum_along(probability(inside, r.log_p) * dx, i.axes)), None)


log_softmax: Operation[Scores, LogProbabilities] = Operation(
    "log_softmax",
    Scores,
    LogProbabilities(like("z", "dtype"), per_row("z", "dtype", wide=True, spare=True)),
    definition=reference.log_softmax,
    kernels={"cpu": _native.log_softmax, "cuda": "softargmax.normalize.triton_kernels:log_softmax"},
    vjp=_log_softmax_vjp,
    jvp=_log_softmax_jvp,
    saved=_saved,
    constant={"where", "lse"},
)


def softmax_and_log(i: Scores) -> tuple[Any, Any, Any]:
    """Return p, log p and lse. The definition computes them at once, and kernels one after the other."""
    if softmax.is_defined(i):
        return reference.softmax_and_log(**i._asdict())
    p, lse = softmax(i)
    return p, log_softmax.first(i), lse


# --- logsumexp: L = log <w, exp x> / beta. dL = <p, dz> + <q, dw> / (beta <w, q>) + <p, z - L> dbeta / beta -----------
# with x = beta z, q = softmax(x) and p = w q / <w, q>. (If the weights span more than the exponent range of their
# dtype, q underflows where w is huge. L is then still right, but the gradient is wrong.)


class LogSumExp(NamedTuple):
    """Arguments of logsumexp: the fields of Scores, and weights."""

    z: Array
    weights: Array | None
    where: Array | None
    beta: Beta
    axes: Axes
    dtype: DType


class SmoothMaximum(NamedTuple):
    """The smooth maximum lse / beta of each row."""

    lse: Any


def _logsumexp_slopes(i: LogSumExp, lse: Any, wanted: Wanted) -> tuple[Any, Any, Any]:
    """Return dL/dz, dL/dbeta and dL/dw; the last two are None if not wanted. Each can be differentiated again."""
    xp, support = namespace(i.z), i.where
    if i.weights is not None:
        support = i.weights != 0 if i.where is None else (i.weights != 0) & i.where
    dtype = row_dtype(xp.result_type(i.z.dtype, lse.dtype))
    p = softmax(Scores(i.z, support, i.beta, i.axes, dtype)).p
    of_beta = of_weights = None
    if i.weights is not None:
        total = row_sum(i.weights * p, i.axes)
        share = p / along(xp.where(total == 0, 1.0, total), i.axes)
        p, of_weights = i.weights * share, share / i.beta.hi if "weights" in wanted else None
    if "beta" in wanted:
        constant = xp.isinf(lse) | xp.isinf(i.beta.hi)
        distance = only((p != 0) & ~constant & ~xp.isinf(i.z), i.z - along(xp.where(constant, 0.0, lse), i.axes))
        of_beta = row_sum(p * distance, i.axes) / xp.where(xp.isinf(i.beta.hi), 1.0, i.beta.hi)
        of_beta = finite_or_zero(of_beta, of_beta)
    return p, of_beta, of_weights


def _logsumexp_vjp(i: LogSumExp, r: SmoothMaximum, g: SmoothMaximum, wanted: Wanted) -> Gradients:
    p, of_beta, of_weights = _logsumexp_slopes(i, r.lse, wanted)
    return {
        "z": logsumexp_vjp.first(LogSumExpVjp(p, g.lse, i.axes, i.z.dtype)),
        "beta": None if of_beta is None else of_beta * g.lse,
        "weights": None if of_weights is None else only(of_weights != 0, of_weights * g.lse),
    }


def _logsumexp_jvp(i: LogSumExp, r: SmoothMaximum, t: Tangents) -> SmoothMaximum:
    p, of_beta, of_weights = _logsumexp_slopes(i, r.lse, t.keys())
    xp = namespace(p)
    tangent = row_sum(only(p != 0, p * t["z"]), i.axes) if "z" in t else xp.zeros_like(r.lse)
    if "weights" in t:
        tangent = tangent + row_sum(only(of_weights != 0, of_weights * t["weights"]), i.axes)
    return SmoothMaximum(tangent + of_beta * t["beta"] if "beta" in t else tangent)


logsumexp: Operation[LogSumExp, SmoothMaximum] = Operation(
    "logsumexp",
    LogSumExp,
    SmoothMaximum(per_row("z", "dtype")),
    definition=reference.logsumexp,
    kernels={"cpu": _native.logsumexp, "cuda": "softargmax.normalize.triton_kernels:logsumexp"},
    vjp=_logsumexp_vjp,
    jvp=_logsumexp_jvp,
    saved={"z", "weights", "where", "beta", "lse"},
    constant={"where"},
)


# --- entropy <p, -log p> and expectation E = <p, v> -------------------------------------------------------------------
# With x = beta z, dE = <p (v - E), dx> + <p, dv>. softmax_vjp computes p (v - E). The rules recompute p and log p from
# the scores.


class Expectation(NamedTuple):
    """Arguments of the mean <p, v>: the fields of Scores, and v. If `values` is None, v is the positions 0..K-1."""

    z: Array
    where: Array | None
    beta: Beta
    values: Array | None
    axes: Axes
    dtype: DType


class EntropyOf(NamedTuple):
    """The entropy of each row, in nats."""

    entropy: Any


class Mean(NamedTuple):
    """The mean <p, v> of each row."""

    mean: Any


def _scores_of(i: Any) -> Scores:
    """Return the arguments of softmax, from arguments `i` with all fields of Scores. `dtype` is float32 or wider."""
    return Scores(i.z, i.where, i.beta, i.axes, row_dtype(i.z.dtype))


def _entropy_slope(i: Any) -> tuple[Any, Any]:
    """Return p, and the derivative of the entropy with respect to x = beta z.

    The change of log p adds nothing to the derivative, because <p, d log p> = 0.
    """
    of = _scores_of(i)
    result = softmax(of)
    log_p = log_softmax.first(of)
    return result.p, softmax_vjp.first(SoftmaxVjp(result.p, result.lse, -log_p, UNIT, i.axes, result.p.dtype))


def _mean_slope(i: Expectation) -> tuple[Any, Any]:
    """Return p, and the derivative of the mean with respect to x = beta z."""
    result = softmax(_scores_of(i))
    values = _positions(i.z, i.axes) if i.values is None else i.values
    return result.p, softmax_vjp.first(SoftmaxVjp(result.p, result.lse, values, UNIT, i.axes, result.p.dtype))


def _positions(z: Any, axes: tuple[int, ...]) -> Any:
    """Return the positions 0..K-1 along the axes of a row, in C order."""
    xp, sizes = namespace(z), [n if axis in axes else 1 for axis, n in enumerate(z.shape)]
    positions = xp.arange(math.prod(sizes), dtype=working_dtype(z, xp), device=device_of(z))
    return xp.broadcast_to(xp.reshape(positions, tuple(sizes)), z.shape)


def sum_to_scores(i: Any, p: Any, of_x: Any, g: Any, wanted: Wanted) -> dict[str, Any]:
    """Return the gradients of a number per row, such as the entropy, with respect to z and beta.

    `of_x` is the derivative of the number with respect to x = beta z. `g` is its incoming gradient.
    """
    gx = only(p != 0, of_x * along(g, i.axes))
    gradients = {"z": gx * along(slope(i.beta), i.axes)}
    if "beta" in wanted:  # <z, gx>, computed as <z - <p, z>, gx>, which does not cancel
        inside = (p != 0) & ~_infinite(i.z)
        mean = row_sum(only(inside, p) * only(inside, i.z), i.axes)
        gradients["beta"] = finite_or_zero(i.beta.hi, row_sum(gx * only(inside, i.z - along(mean, i.axes)), i.axes))
    return gradients


def _tangent_of_sum(i: Any, p: Any, of_x: Any, t: Tangents) -> Any:
    """Return the tangent of a number per row, such as the entropy, from `of_x`, its derivative in x = beta z."""
    return row_sum(of_x * _tangent(i, (p != 0) & ~_infinite(i.z), t), i.axes)


class MeanVjp(NamedTuple):
    """Arguments of `mean_vjp`: gz = g beta p (v - <p, v>). v is -log p for an entropy, and that of `of` otherwise."""

    of: Expectation
    g: Array
    of_entropy: bool


def _defined_mean_vjp(i: MeanVjp) -> Any:
    slopes = _entropy_slope(i.of) if i.of_entropy else _mean_slope(i.of)
    return namespace(i.g).astype(sum_to_scores(i.of, *slopes, i.g, frozenset())["z"], i.of.z.dtype)


mean_vjp: Operation[MeanVjp, ToScores] = Operation(
    "mean_vjp",
    MeanVjp,
    ToScores(like("z")),
    definition=_defined_mean_vjp,
    kernels={"cuda": "softargmax.normalize.triton_sums:mean_vjp"},
    constant={"where"},
)


def _entropy_vjp(i: Scores, _r: EntropyOf, g: EntropyOf, wanted: Wanted) -> Gradients:
    if "beta" in wanted or isinstance(i.axes, SpreadAxes):
        return sum_to_scores(i, *_entropy_slope(i), g.entropy, wanted)
    return {"z": mean_vjp.first(MeanVjp(Expectation(*i[:3], None, *i[3:]), g.entropy, True))}


def _entropy_jvp(i: Scores, _r: EntropyOf, t: Tangents) -> EntropyOf:
    return EntropyOf(_tangent_of_sum(i, *_entropy_slope(i), t))


entropy: Operation[Scores, EntropyOf] = Operation(
    "entropy",
    Scores,
    EntropyOf(per_row("z", "dtype")),
    definition=reference.entropy,
    kernels={"cpu": _native.entropy, "cuda": "softargmax.normalize.triton_sums:entropy"},
    vjp=_entropy_vjp,
    jvp=_entropy_jvp,
    constant={"where"},
)


def _expectation_vjp(i: Expectation, _r: Mean, g: Mean, wanted: Wanted) -> Gradients:
    if wanted == {"z"}:
        return {"z": mean_vjp.first(MeanVjp(i, g.mean, False))}
    p, of_x = _mean_slope(i)
    gradients = sum_to_scores(i, p, of_x, g.mean, wanted)
    if "values" in wanted:
        gradients["values"] = only(p != 0, p * g.mean)
    return gradients


def _expectation_jvp(i: Expectation, _r: Mean, t: Tangents) -> Mean:
    p, of_x = _mean_slope(i)
    tangent = _tangent_of_sum(i, p, of_x, t)
    return Mean(tangent + row_sum(only(p != 0, p * t["values"]), i.axes) if "values" in t else tangent)


expectation: Operation[Expectation, Mean] = Operation(
    "expectation",
    Expectation,
    Mean(per_row("z", "dtype")),
    definition=reference.expectation,
    kernels={"cpu": _native.expectation, "cuda": "softargmax.normalize.triton_sums:expectation"},
    vjp=_expectation_vjp,
    jvp=_expectation_jvp,
    constant={"where"},
)
