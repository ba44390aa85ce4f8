"""The definition of the losses in array-API Python: the oracle, and what serves every library that has no kernels.

    x = beta cap(z)        cap(z) = s tanh(z / s)        log p_k = x_k - lse        n: scores in the support
    m_k = w_k ((1 - e) t_k + e / n)        tau = sum_k m_k        loss = -sum_k m_k log p_k + c lse^2

t is the target: one at a class, or probabilities; w are class weights, e the label smoothing, c the z-loss. All sums
run over the support. What the target has outside of it makes the loss +inf and counts in tau alone.

    d loss / d x_k = tau p_k - m_k + 2 c lse p_k = p_k (tau - m_k) - m_k (1 - p_k) + 2 c lse p_k

tau - m_k and 1 - p_k are what the others have, not differences of rounded numbers, so that a confident row keeps its
small gradient. All is computed in float64 where the library has it (else in float32); rows' numbers come back so, to be
rounded once when they are reduced. No control flow depends on values, so it can be traced.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core.chunks import by_rows
from softargmax.core.dispatch import device_of, namespace
from softargmax.core.exact import row_sum, total, two_sum, working_dtype
from softargmax.loss.options import Beside
from softargmax.loss.results import CrossEntropyTerms, LossAndGradient
from softargmax.normalize import operations
from softargmax.normalize.operations import Scores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from softargmax.core.scale import Scale
    from softargmax.loss.options import Options

INF = math.inf


class Look(NamedTuple):
    """Rows of scores as the formulas need them; numbers per row have an axis of 1 in the classes' place."""

    p: Any
    log_p: Any  # 0 where p has no logarithm
    lse: Any
    inside: Any  # the support
    possible: Any  # what has a logarithm: in limits a part of the support
    mass: Any  # m; outside the support what the target has there
    skipped: Any  # rows that are ignored, or None
    wrong: Any  # rows whose class does not exist, which could not be checked everywhere, or None


def look(z: Any, beside: Beside, options: Options) -> Look:
    """Everything that the formulas need of each row."""
    xp, axis = namespace(z), options.axis
    skipped = wrong = None
    if not options.soft:
        skipped = beside.target == options.ignore_index
        wrong = ~skipped & ((beside.target < 0) | (beside.target >= options.classes))
        z = xp.where(skipped, 0.0, z)  # whatever stands there, NaN included, has no derivative
    p, log_p, lse = normalized(z, beside.scale, beside.where, axis, options.softcap)
    possible = log_p != -INF
    inside = ~_out(z, beside.scale)
    inside = inside if beside.where is None else inside & beside.where
    if options.soft:
        mass = xp.astype(beside.target, p.dtype)
    else:
        classes = xp.arange(options.classes, dtype=beside.target.dtype, device=device_of(z))
        along = tuple(n if i == axis else 1 for i, n in enumerate(z.shape))
        mass = xp.astype(xp.reshape(classes, along) == beside.target, p.dtype)
    e = options.label_smoothing
    if e:
        n = xp.sum(xp.astype(inside, p.dtype), axis=axis, keepdims=True)
        mass = (1.0 - e) * mass + xp.where(inside, e / xp.where(n == 0.0, 1.0, n), 0.0)
    if beside.weight is not None:
        mass = xp.astype(beside.weight, p.dtype) * mass
    log_p = xp.where(possible, log_p, 0.0)
    return Look(p, log_p, lse, inside, possible, mass, skipped, wrong)


def normalized(z: Any, scale: Scale, where: Any, axis: int, softcap: float | None) -> tuple[Any, Any, Any]:
    """p, log p and lse (the classes' axis kept as 1) of the rows of scores, in working precision."""
    xp = namespace(z)
    x = capped(xp.astype(z, working_dtype(z, xp)), scale, softcap)
    i = Scores(x, where, scale, (axis,), x.dtype)
    p, lse = operations.softmax(i)
    return p, operations.log_softmax.first(i), lse


def capped(z: Any, scale: Scale, softcap: float | None) -> Any:
    """s tanh(z / s), but what is out of the support stays out of it."""
    if softcap is None:
        return z
    xp, out = namespace(z), _out(z, scale)
    return xp.where(out, z, softcap * xp.tanh(xp.where(out, 0.0, z) / softcap))


def cap_slope(z: Any, scale: Scale, softcap: float | None) -> Any:
    """1 - tanh^2(z / s) = 4 q / (1 + q)^2, q = exp(-2 |z / s|): it keeps its digits where it is small."""
    if softcap is None:
        return 1.0
    xp = namespace(z)
    q = xp.exp(-2.0 * xp.abs(xp.where(_out(z, scale), 0.0, z) / softcap))
    return 4.0 * q / ((1.0 + q) * (1.0 + q))


def _out(z: Any, scale: Scale) -> Any:
    """Where beta z is -inf."""
    if isinstance(scale.hi, float):
        return z == (INF if scale.hi < 0.0 else -INF)
    return ((z == -INF) & (scale.hi >= 0.0)) | ((z == INF) & (scale.hi < 0.0))


# --- rows' numbers ---------------------------------------------------------------------------------------------------


Seed = Any  # a number, or one per row with an axis of 1 in the classes' place


def loss(z: Any, beside: Beside, options: Options) -> Any:
    """The loss of every row."""

    def rows(z: Any, *beside: Any) -> Any:
        a = look(z, Beside(*beside), options)
        return settled(_loss(a, options), a, options)

    return _by_rows(rows, options, z, *beside)


def terms(z: Any, beside: Beside, options: Options) -> CrossEntropyTerms:
    """Loss, lse, entropy and z-loss of every row."""

    def rows(z: Any, *beside: Any) -> Any:
        a = look(z, Beside(*beside), options)
        found = (_loss(a, options), a.lse, _entropy(a, options), _z_loss(a, options))
        return CrossEntropyTerms(*(settled(part, a, options) for part in found))

    found: CrossEntropyTerms = _by_rows(rows, options, z, *beside)
    return found


def loss_and_gradient(z: Any, seed: Seed, beside: Beside, options: Options) -> LossAndGradient:
    """The loss of every row, and seed times its gradient."""

    def rows(z: Any, seed: Any, *beside: Any) -> Any:
        a, given = look(z, Beside(*beside), options), Beside(*beside)
        slope = seed * _loss_slope(a, options)
        return LossAndGradient(settled(_loss(a, options), a, options), _to_scores(slope, z, a, given, options))

    found: LossAndGradient = _by_rows(rows, options, z, seed, *beside)
    return found


def gradient(z: Any, seeds: Sequence[Seed | None], beside: Beside, options: Options) -> Any:
    """The gradient of <seeds, terms>."""

    def rows(z: Any, *arguments: Any) -> Any:
        seeds, given = arguments[:4], Beside(*arguments[4:])
        a = look(z, given, options)
        slope = namespace(z).zeros_like(a.p)
        for seed, slope_of in zip(seeds, (_loss_slope, _lse_slope, _entropy_slope, _z_loss_slope), strict=True):
            slope = slope if seed is None else slope + seed * slope_of(a, options)
        return _to_scores(slope, z, a, given, options)

    return _by_rows(rows, options, z, *seeds, *beside)


@np.errstate(all="ignore")
def _by_rows(rows: Callable[..., Any], options: Options, *arguments: Any) -> Any:
    return by_rows(rows, (options.axis,), *arguments)


def settled(rows: Any, a: Look, options: Options) -> Any:
    """A number per row, 0 where the row is ignored, NaN where its class does not exist; without the classes' axis."""
    xp = namespace(rows)
    if a.skipped is not None:
        rows = xp.where(a.skipped, 0.0, xp.where(a.wrong, math.nan, rows))
    return xp.squeeze(rows, axis=options.axis)


def _to_scores(slope: Any, z: Any, a: Look, beside: Beside, options: Options) -> Any:
    """From d / d x to d / d z: times beta (0 in the limit |beta| = inf) and the soft-cap's slope, in the support."""
    xp, beta = namespace(z), beside.scale.hi
    flat = math.isinf(beta) if isinstance(beta, float) else xp.abs(beta) == INF
    beta = xp.where(flat, 0.0, beta) if not isinstance(beta, float) else 0.0 if flat else beta
    if options.softcap is not None:
        slope = slope * cap_slope(xp.astype(z, a.p.dtype), beside.scale, options.softcap)
    inside = a.inside if a.skipped is None else a.inside & ~a.skipped
    slope = xp.where(inside, slope * beta, 0.0)
    if a.wrong is not None:
        slope = xp.where(a.wrong, math.nan, slope)
    return xp.astype(slope, z.dtype)


# --- each number beside its slope -------------------------------------------------------------------------------------


def _loss(a: Look, options: Options) -> Any:
    xp, axis = namespace(a.p), options.axis
    loss = _sum(xp.where(a.inside, a.mass * (0.0 - a.log_p), 0.0), options, alone=_one_class(options))
    lost = ~xp.any(a.inside, axis=axis, keepdims=True) | xp.any((a.mass > 0.0) & ~a.possible, axis=axis, keepdims=True)
    return loss + _z_loss(a, options) + xp.where(lost, xp.full_like(loss, INF), 0.0)


def _loss_slope(a: Look, options: Options) -> Any:
    rest = 0.0 - namespace(a.p).expm1(a.log_p)  # 1 - p
    slope = a.p * _others(a.mass, options) - a.mass * rest
    return _constant(slope, a) + _z_loss_slope(a, options)


def _lse_slope(a: Look, options: Options) -> Any:  # noqa: ARG001 the others need them
    return a.p


def _entropy(a: Look, options: Options) -> Any:
    return _sum(a.p * (0.0 - a.log_p), options)


def _entropy_slope(a: Look, options: Options) -> Any:
    return _constant(-a.p * (a.log_p + _entropy(a, options)), a)


def _z_loss(a: Look, options: Options) -> Any:
    return options.z_loss * a.lse * a.lse if options.z_loss else namespace(a.lse).zeros_like(a.lse)


def _z_loss_slope(a: Look, options: Options) -> Any:
    if not options.z_loss:
        return 0.0
    return _constant(2.0 * options.z_loss * a.lse * a.p, a)


def _constant(slope: Any, a: Look) -> Any:
    """0 in a row of infinities, which is constant, and in an empty one."""
    xp = namespace(slope)
    return xp.where(xp.abs(a.lse) == INF, 0.0, slope)


def _one_class(options: Options) -> bool:
    """Whether a row's target is one class: then one m is not 0, and sums of m are exact."""
    return not (options.soft or options.label_smoothing)


def _sum(values: Any, options: Options, *, alone: bool = False) -> Any:
    """The sum over the classes, `alone` where but one is not 0."""
    xp, axis = namespace(values), options.axis
    if alone:
        return xp.sum(values, axis=axis, keepdims=True)
    return xp.expand_dims(row_sum(values, (axis,)), axis=axis)


def _others(m: Any, options: Options) -> Any:
    """sum m - m_k, as exact as a sum without m_k would be."""
    xp, axis = namespace(m), options.axis
    if _one_class(options) or not options.classes:
        return _sum(m, options, alone=True) - m
    last = (*(i for i in range(m.ndim) if i != axis), axis)
    m = xp.permute_dims(m, last)
    high, low = total(m)
    s, e = two_sum(high, -m)
    return xp.permute_dims(s + (e + low), tuple(last.index(i) for i in range(m.ndim)))
