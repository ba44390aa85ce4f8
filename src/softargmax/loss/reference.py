"""The definition of the losses in array-API Python: the oracle, and what serves every library that has no kernels.

    x = beta cap(z)        cap(z) = s tanh(z / s)        log p_k = x_k - lse        n: scores in the support
    m_k = w_k ((1 - e) t_k + e / n)        tau = sum_k m_k        loss = -sum_k m_k log p_k + c lse^2

t is the target: one at a class, or probabilities; w are class weights, e the label smoothing, c the z-loss. All sums
run over the support. What the target has outside of it makes the loss +inf and counts in tau alone.

    d loss / d x_k = tau p_k - m_k + 2 c lse p_k = p_k (tau - m_k) - m_k (1 - p_k) + 2 c lse p_k

tau - m_k and 1 - p_k are what the others have, not differences of rounded numbers, so that a confident row keeps its
small gradient. All is computed in float64 where the library has it (else in float32), and rounded
once. No control flow depends on values, so it can be traced.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core.arrays import device_of, kept_shape, namespace, row_shape, working_dtype
from softargmax.core.chunks import by_rows
from softargmax.core.error_free import row_sum, total, two_sum
from softargmax.core.loss_reduction import counts, each_counts, reduced, together
from softargmax.loss.results import CrossEntropyTerms
from softargmax.normalize import operations
from softargmax.normalize.operations import Scores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from softargmax.core.scale import Scale
    from softargmax.loss.arguments import CrossEntropy, Factor, LossOptions

INF = math.inf


# --- definitions ------------------------------------------------------------------------------------------------------


def cross_entropy(
    z: Any, asked: LossOptions, axes: tuple[int, ...], kept: int, mean: bool, dtype: Any
) -> tuple[Any, Any]:
    """The loss, and no states: the definition has none."""
    rows = losses(z, asked, axes)
    return reduced_losses(rows, asked, axes, kept, mean, dtype), no_array(rows)


def cross_entropy_vjp(of: CrossEntropy, g: Any) -> Any:
    """g times the gradient of the loss."""
    return gradient(of.z, (seed_of(of, g), None, None, None), of.asked, of.axes)


def cross_entropy_and_gradient(of: CrossEntropy, g: Any) -> tuple[Any, Any]:
    """The loss and g times its gradient; where all rows are kept, of each its own."""
    loss, _ = cross_entropy(of.z, of.asked, of.axes, of.kept, of.mean, of.dtype)
    return loss, cross_entropy_vjp(of, namespace(loss).ones_like(loss) if g is None else g)


def no_array(like: Any) -> Any:
    """In the place of a result that there is not."""
    return namespace(like).zeros((0,), dtype=like.dtype, device=device_of(like))


def reduced_losses(rows: Any, asked: LossOptions, axes: tuple[int, ...], kept: int, mean: bool, dtype: Any) -> Any:
    """The rows' losses as asked for."""
    return reduced(rows, weights_of_rows(rows, asked, axes), dtype, kept=kept, mean=mean)


def weights_of_rows(rows: Any, asked: LossOptions, axes: tuple[int, ...]) -> Any:
    """The weight of each row in a mean, of the shape of rows."""
    if asked.target is None:
        return each_counts(rows)
    target = namespace(rows).reshape(asked.target, tuple(rows.shape))
    return counts(target, asked.ignore_index, asked.weight, *axes)


def seed_of(of: CrossEntropy, g: Any) -> Factor:
    """What the gradient of each row's own loss is multiplied by."""
    z, (axis,), kept = of.z, of.axes, of.kept
    xp, kind = namespace(z), working_dtype(z, namespace(z))
    rows = row_shape(z.shape, (axis,))
    groups = (*rows[:kept], *(1,) * (len(rows) - kept))
    g = xp.reshape(xp.astype(g, kind), groups)
    if of.mean:
        count = weights_of_rows(xp.zeros(rows, dtype=kind, device=device_of(z)), of.asked, of.axes)
        g = g / xp.reshape(together(count, kind, kept), groups)
    return xp.expand_dims(g, axis=axis)


# --- rows of scores ---------------------------------------------------------------------------------------------------


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
    axis: int


def look(z: Any, asked: LossOptions, axis: int) -> Look:
    """Everything that the formulas need of each row."""
    xp, target, classes = namespace(z), asked.target, z.shape[axis]
    skipped = wrong = None
    if target is not None:
        skipped = target == asked.ignore_index
        wrong = ~skipped & ((target < 0) | (target >= classes))
        z = xp.where(skipped, 0.0, z)  # whatever stands there, NaN included, has no derivative
    p, log_p, lse = normalized(z, asked.beta, asked.where, axis, asked.softcap)
    possible = log_p != -INF
    inside = ~_out(z, asked.beta)
    inside = inside if asked.where is None else inside & asked.where
    if target is None:
        mass = xp.astype(asked.probabilities, p.dtype)
    else:
        along = tuple(n if i == axis else 1 for i, n in enumerate(z.shape))
        every = xp.arange(classes, dtype=target.dtype, device=device_of(z))
        mass = xp.astype(xp.reshape(every, along) == target, p.dtype)
    e = asked.label_smoothing
    if e:
        n = xp.sum(xp.astype(inside, p.dtype), axis=axis, keepdims=True)
        mass = (1.0 - e) * mass + xp.where(inside, e / xp.where(n == 0.0, 1.0, n), 0.0)
    if asked.weight is not None:
        mass = xp.astype(asked.weight, p.dtype) * mass
    log_p = xp.where(possible, log_p, 0.0)
    return Look(p, log_p, lse, inside, possible, mass, skipped, wrong, axis)


def normalized(z: Any, scale: Scale, where: Any, axis: int, softcap: float) -> tuple[Any, Any, Any]:
    """p, log p and lse (the classes' axis kept as 1) of the rows of scores, in working precision."""
    xp = namespace(z)
    x = capped(xp.astype(z, working_dtype(z, xp)), scale, softcap)
    i = Scores(x, where, scale, (axis,), x.dtype)
    p, lse = operations.softmax(i)
    return p, operations.log_softmax.first(i), lse


def capped(z: Any, scale: Scale, softcap: float) -> Any:
    """s tanh(z / s), but what is out of the support stays out of it."""
    if not softcap:
        return z
    xp, out = namespace(z), _out(z, scale)
    return xp.where(out, z, softcap * xp.tanh(xp.where(out, 0.0, z) / softcap))


def cap_slope(z: Any, scale: Scale, softcap: float) -> Any:
    """1 - tanh^2(z / s) = 4 q / (1 + q)^2, q = exp(-2 |z / s|): it keeps its digits where it is small."""
    if not softcap:
        return 1.0
    xp = namespace(z)
    q = xp.exp(-2.0 * xp.abs(xp.where(_out(z, scale), 0.0, z) / softcap))
    return 4.0 * q / ((1.0 + q) * (1.0 + q))


def _out(z: Any, scale: Scale) -> Any:
    """Where beta z is -inf."""
    if isinstance(scale.hi, float):
        return z == (INF if scale.hi < 0.0 else -INF)
    return ((z == -INF) & (scale.hi >= 0.0)) | ((z == INF) & (scale.hi < 0.0))


# --- rows' numbers ----------------------------------------------------------------------------------------------------


def losses(z: Any, asked: LossOptions, axes: tuple[int, ...]) -> Any:
    """The loss of every row, in working precision."""
    return _by_rows(lambda _z, a, i: settled(_loss(a, i), a), z, asked, axes)


def terms(z: Any, asked: LossOptions, axes: tuple[int, ...]) -> CrossEntropyTerms:
    """Loss, lse, entropy and z-loss of every row, in working precision."""

    def rows(_z: Any, a: Look, i: LossOptions) -> CrossEntropyTerms:
        return CrossEntropyTerms(*(settled(part, a) for part in (_loss(a, i), a.lse, _entropy(a, i), _z_loss(a, i))))

    found: CrossEntropyTerms = _by_rows(rows, z, asked, axes)
    return found


def gradient(z: Any, seeds: Sequence[Factor | None], asked: LossOptions, axes: tuple[int, ...]) -> Any:
    """The gradient of <seeds, terms>."""

    def rows(z: Any, a: Look, i: LossOptions, *seeds: Any) -> Any:
        slope = namespace(z).zeros_like(a.p)
        for seed, slope_of in zip(seeds, (_loss_slope, _lse_slope, _entropy_slope, _z_loss_slope), strict=True):
            slope = slope if seed is None else slope + seed * slope_of(a, i)
        return _to_scores(slope, z, a, i)

    return _by_rows(rows, z, asked, axes, *seeds)


@np.errstate(all="ignore")
def _by_rows(compute: Callable[..., Any], z: Any, asked: LossOptions, axes: tuple[int, ...], *more: Any) -> Any:
    """compute(z, look, asked, *more) a few rows at a time."""
    arrays = {name: getattr(asked, name) for name in ("target", "probabilities", "weight", "where", "beta")}
    if asked.target is not None:
        shape = kept_shape(z.shape, axes)
        arrays["target"] = namespace(asked.target).reshape(asked.target, shape)

    def rows(z: Any, *given: Any) -> Any:
        i = asked._replace(**dict(zip(arrays, given, strict=False)))
        return compute(z, look(z, i, axes[0]), i, *given[len(arrays) :])

    return by_rows(rows, axes, z, *arrays.values(), *more)


def settled(rows: Any, a: Look) -> Any:
    """A number per row, 0 where the row is ignored, NaN where its class does not exist; without the classes' axis."""
    xp = namespace(rows)
    if a.skipped is not None:
        rows = xp.where(a.skipped, 0.0, xp.where(a.wrong, math.nan, rows))
    return xp.squeeze(rows, axis=a.axis)


def _to_scores(slope: Any, z: Any, a: Look, asked: LossOptions) -> Any:
    """From d / d x to d / d z: times beta (0 in the limit |beta| = inf) and the soft-cap's slope, in the support."""
    xp, beta = namespace(z), asked.beta.hi
    flat = math.isinf(beta) if isinstance(beta, float) else xp.abs(beta) == INF
    beta = xp.where(flat, 0.0, beta) if not isinstance(beta, float) else 0.0 if flat else beta
    if asked.softcap:
        slope = slope * cap_slope(xp.astype(z, a.p.dtype), asked.beta, asked.softcap)
    inside = a.inside if a.skipped is None else a.inside & ~a.skipped
    slope = xp.where(inside, slope * beta, 0.0)
    if a.wrong is not None:
        slope = xp.where(a.wrong, math.nan, slope)
    return xp.astype(slope, z.dtype)


# --- each number beside its slope -------------------------------------------------------------------------------------


def _loss(a: Look, asked: LossOptions) -> Any:
    xp, axis = namespace(a.p), a.axis
    of_each = xp.where(a.inside, a.mass * (0.0 - a.log_p), 0.0)
    loss = xp.sum(of_each, axis=axis, keepdims=True) if asked.one_class else _sum(of_each, axis)
    lost = ~xp.any(a.inside, axis=axis, keepdims=True) | xp.any((a.mass > 0.0) & ~a.possible, axis=axis, keepdims=True)
    return loss + _z_loss(a, asked) + xp.where(lost, xp.full_like(loss, INF), 0.0)


def _loss_slope(a: Look, asked: LossOptions) -> Any:
    rest = 0.0 - namespace(a.p).expm1(a.log_p)  # 1 - p
    slope = a.p * _others(a, asked) - a.mass * rest
    return _constant(slope, a) + _z_loss_slope(a, asked)


def _lse_slope(a: Look, asked: LossOptions) -> Any:  # noqa: ARG001 the others need them
    return a.p


def _entropy(a: Look, asked: LossOptions) -> Any:  # noqa: ARG001
    return _sum(a.p * (0.0 - a.log_p), a.axis)


def _entropy_slope(a: Look, asked: LossOptions) -> Any:
    return _constant(-a.p * (a.log_p + _entropy(a, asked)), a)


def _z_loss(a: Look, asked: LossOptions) -> Any:
    return asked.z_loss * a.lse * a.lse if asked.z_loss else namespace(a.lse).zeros_like(a.lse)


def _z_loss_slope(a: Look, asked: LossOptions) -> Any:
    if not asked.z_loss:
        return 0.0
    return _constant(2.0 * asked.z_loss * a.lse * a.p, a)


def _constant(slope: Any, a: Look) -> Any:
    """0 in a row of infinities, which is constant, and in an empty one."""
    xp = namespace(slope)
    return xp.where(xp.abs(a.lse) == INF, 0.0, slope)


def _sum(values: Any, axis: int) -> Any:
    """The sum over the classes."""
    return namespace(values).expand_dims(row_sum(values, (axis,)), axis=axis)


def _others(a: Look, asked: LossOptions) -> Any:
    """sum m - m_k, as exact as a sum without m_k would be."""
    m, axis = a.mass, a.axis
    xp = namespace(m)
    if asked.one_class or not m.shape[axis]:
        return xp.sum(m, axis=axis, keepdims=True) - m
    last = (*(i for i in range(m.ndim) if i != axis), axis)
    m = xp.permute_dims(m, last)
    high, low = total(m)
    s, e = two_sum(high, -m)
    return xp.permute_dims(s + (e + low), tuple(last.index(i) for i in range(m.ndim)))
