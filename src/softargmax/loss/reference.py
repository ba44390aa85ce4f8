"""Definitions of the losses in array-API Python. They are the test oracle and serve libraries without kernels.

    x = beta cap(z)        cap(z) = s tanh(z / s)        log p_k = x_k - lse        n: number of scores in the support
    m_k = w_k ((1 - e) t_k + e / n)        tau = sum_k m_k        loss = -sum_k m_k log p_k + c lse^2

t is the target: one-hot, or probabilities. w are the class weights, e is the label smoothing, and c is the factor of
the z-loss. All sums run over the support, except that tau also includes m_k outside the support. Any positive m_k
outside the support makes the loss +inf.

    d loss / d x_k = tau p_k - m_k + 2 c lse p_k = p_k (tau - m_k) - m_k (1 - p_k) + 2 c lse p_k

tau - m_k and 1 - p_k are computed as accurately as sums over the other classes, not as differences of rounded numbers.
The small gradient of a confident row is therefore accurate. The working precision is float64 if the library has it,
otherwise float32. All numbers are computed in working precision and rounded once. Control flow does not depend on
values, so the functions can be traced.

If rows are spread over processes, sums over classes are sums over all processes, and a number per row is wrapped in
`along` where it meets scores (core/operation.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core import error_free
from softargmax.core.arrays import device_of, kept_shape, namespace, row_shape, working_dtype
from softargmax.core.error_free import total, two_sum
from softargmax.core.loss_reduction import equal_row_weights, reduced, row_weights, total_weight
from softargmax.core.operation import along, first_place, row_max, row_sum, sum_along
from softargmax.core.processes import SpreadAxes, whole_shape
from softargmax.core.row_chunks import by_rows
from softargmax.loss.results import CrossEntropyTerms, LossAndGradient
from softargmax.normalize import operations
from softargmax.normalize.operations import Scores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from softargmax.core.scale import Scale
    from softargmax.loss.arguments import CrossEntropy, Factor, LossOptions

INF = math.inf


# --- definitions ------------------------------------------------------------------------------------------------------


def cross_entropy(
    z: Any, options: LossOptions, axes: tuple[int, ...], kept: int, mean: bool, dtype: Any
) -> tuple[Any, Any]:
    """Return the loss, and an empty array in place of the states, which only kernels save."""
    rows = losses(z, options, axes)
    return reduced_losses(rows, options, axes, kept, mean, dtype), no_array(rows)


def cross_entropy_vjp(of: CrossEntropy, g: Any) -> Any:
    """Return g times the gradient of the loss."""
    return gradient(of.z, (seed_of(of, g), None, None, None), of.options, of.axes)


def cross_entropy_and_gradient(of: CrossEntropy, g: Any) -> tuple[Any, Any]:
    """Return the loss and g times its gradient.

    If the loss is not reduced, each row of the gradient is the gradient of the loss of that row.
    """
    xp, options, axes = namespace(of.z), of.options, of.axes
    if g is None:
        g = xp.ones(row_shape(of.z.shape, axes)[: of.kept], dtype=of.dtype, device=device_of(of.z))

    def both(z: Any, a: RowValues, i: LossOptions, seed: Any) -> LossAndGradient:
        return LossAndGradient(finished(_loss(a, i), a), _gradient(z, a, i, (seed, None, None, None)))

    rows, slopes = _by_rows(both, of.z, options, axes, seed_of(of, g))
    return reduced_losses(rows, options, axes, of.kept, of.mean, of.dtype), slopes


def no_array(like: Any) -> Any:
    """Return an array of shape (0,), which marks a result that was not computed."""
    return namespace(like).zeros((0,), dtype=like.dtype, device=device_of(like))


def reduced_losses(rows: Any, options: LossOptions, axes: tuple[int, ...], kept: int, mean: bool, dtype: Any) -> Any:
    """Reduce the losses of the rows."""
    return reduced(rows, weights_of_rows(rows, options, axes), dtype, kept=kept, mean=mean)


def weights_of_rows(rows: Any, options: LossOptions, axes: tuple[int, ...]) -> Any:
    """Return the weight of each row in a mean, in the shape of `rows`."""
    if options.target is None:
        return equal_row_weights(rows)
    target = namespace(rows).reshape(options.target, tuple(rows.shape))
    return row_weights(target, options.ignore_index, options.weight, axes)


def seed_of(of: CrossEntropy, g: Any) -> Factor:
    """Return the factor of the gradient of each row: g, or for a mean, g divided by the total weight of the rows."""
    z, (axis,), kept = of.z, of.axes, of.kept
    xp, kind = namespace(z), working_dtype(z, namespace(z))
    rows = row_shape(z.shape, (axis,))
    groups = (*rows[:kept], *(1,) * (len(rows) - kept))
    g = xp.reshape(xp.astype(g, kind), groups)
    if of.mean:
        count = weights_of_rows(xp.zeros(rows, dtype=kind, device=device_of(z)), of.options, of.axes)
        g = g / xp.reshape(total_weight(count, kind, kept), groups)
    return xp.expand_dims(g, axis=axis)


# --- rows of scores ---------------------------------------------------------------------------------------------------


class RowValues(NamedTuple):
    """The values that the formulas need for each row. In arrays with one number per row, the class axis has size 1."""

    p: Any
    log_p: Any  # log p; 0 in place of -inf
    lse: Any
    inside: Any  # True in the support
    possible: Any  # True where log p is not -inf; if beta or lse is infinite, only a part of the support
    mass: Any  # m_k; outside the support it does not include the term e / n
    skipped: Any  # True for ignored rows, or None
    wrong: Any  # True for rows whose class is out of range, or None
    axes: tuple[int, ...]


def row_values(z: Any, options: LossOptions, axes: tuple[int, ...]) -> RowValues:
    """Compute the values that the formulas need for each row."""
    xp, target, (axis,) = namespace(z), options.target, axes
    classes = whole_shape(z.shape, axes)[axis]
    skipped = wrong = None
    if target is not None:
        skipped = target == options.ignore_index
        wrong = ~skipped & ((target < 0) | (target >= classes))
        z = xp.where(skipped, 0.0, z)  # scores of ignored rows, even NaN, have a derivative of 0
    p, log_p, lse = normalized(z, options.beta, options.where, axes, options.softcap)
    possible = log_p != -INF
    inside = ~_out(z, options.beta)
    inside = inside if options.where is None else inside & options.where
    if target is None:
        mass = xp.astype(options.probabilities, p.dtype)
    else:
        shape = tuple(n if i == axis else 1 for i, n in enumerate(z.shape))
        every = xp.arange(z.shape[axis], dtype=target.dtype, device=device_of(z)) + first_place(axes)
        mass = xp.astype(xp.reshape(every, shape) == target, p.dtype)
    e = options.label_smoothing
    if e:
        n = row_sum(xp.astype(inside, p.dtype), axes)
        mass = (1.0 - e) * mass + xp.where(inside, e / xp.where(n == 0.0, 1.0, n), 0.0)
    if options.weight is not None:
        mass = xp.astype(options.weight, p.dtype) * mass
    log_p = xp.where(possible, log_p, 0.0)
    return RowValues(p, log_p, lse, inside, possible, mass, skipped, wrong, axes)


def normalized(z: Any, scale: Scale, where: Any, axes: tuple[int, ...], softcap: float) -> tuple[Any, Any, Any]:
    """Return p, log p and lse of rows of scores, in working precision. The class axis of lse has size 1."""
    xp = namespace(z)
    x = capped(xp.astype(z, working_dtype(z, xp)), scale, softcap)
    return operations.softmax_and_log(Scores(x, where, scale, axes, x.dtype))


def capped(z: Any, scale: Scale, softcap: float) -> Any:
    """Return s tanh(z / s). Outside the support, return z."""
    if not softcap:
        return z
    xp, out = namespace(z), _out(z, scale)
    return xp.where(out, z, softcap * xp.tanh(xp.where(out, 0.0, z) / softcap))


def cap_slope(z: Any, scale: Scale, softcap: float) -> Any:
    """Return 1 - tanh^2(z / s).

    It is computed as 4 q / (1 + q)^2 with q = exp(-2 |z / s|), so that small slopes are accurate.
    """
    if not softcap:
        return 1.0
    xp = namespace(z)
    q = xp.exp(-2.0 * xp.abs(xp.where(_out(z, scale), 0.0, z) / softcap))
    return 4.0 * q / ((1.0 + q) * (1.0 + q))


def _out(z: Any, scale: Scale) -> Any:
    """True where z is -inf, or +inf for beta < 0: outside the support."""
    if isinstance(scale.hi, float):
        return z == (INF if scale.hi < 0.0 else -INF)
    return ((z == -INF) & (scale.hi >= 0.0)) | ((z == INF) & (scale.hi < 0.0))


# --- numbers per row --------------------------------------------------------------------------------------------------


def losses(z: Any, options: LossOptions, axes: tuple[int, ...]) -> Any:
    """Return the loss of every row, in working precision."""
    return _by_rows(lambda _z, a, i: finished(_loss(a, i), a), z, options, axes)


def terms(z: Any, options: LossOptions, axes: tuple[int, ...]) -> CrossEntropyTerms:
    """Return loss, lse, entropy and z-loss of every row, in working precision."""

    def rows(_z: Any, a: RowValues, i: LossOptions) -> CrossEntropyTerms:
        return CrossEntropyTerms(*(finished(part, a) for part in (_loss(a, i), a.lse, _entropy(a, i), _z_loss(a, i))))

    found: CrossEntropyTerms = _by_rows(rows, z, options, axes)
    return found


def gradient(z: Any, seeds: Sequence[Factor | None], options: LossOptions, axes: tuple[int, ...]) -> Any:
    """Return the gradient of seeds[0] loss + seeds[1] lse + seeds[2] entropy + seeds[3] z-loss with respect to z.

    A seed of None counts as 0.
    """
    return _by_rows(lambda z, a, i, *seeds: _gradient(z, a, i, seeds), z, options, axes, *seeds)


def _gradient(z: Any, a: RowValues, options: LossOptions, seeds: Sequence[Any]) -> Any:
    """Return the gradient of the terms of rows of scores. `seeds` are as in `gradient`."""
    slope = namespace(z).zeros_like(a.p)
    for seed, slope_of in zip(seeds, (_loss_slope, _lse_slope, _entropy_slope, _z_loss_slope), strict=True):
        slope = slope if seed is None else slope + along(seed, a.axes) * slope_of(a, options)
    return _to_scores(slope, z, a, options)


@np.errstate(all="ignore")
def _by_rows(compute: Callable[..., Any], z: Any, options: LossOptions, axes: tuple[int, ...], *extra: Any) -> Any:
    """Call compute(z, row_values, options, *extra) for a few rows at a time."""
    arrays = {name: getattr(options, name) for name in ("target", "probabilities", "weight", "where", "beta")}
    if options.target is not None:
        shape = kept_shape(z.shape, axes)
        arrays["target"] = namespace(options.target).reshape(options.target, shape)

    def rows(z: Any, *operands: Any) -> Any:
        i = options._replace(**dict(zip(arrays, operands, strict=False)))
        return compute(z, row_values(z, i, axes), i, *operands[len(arrays) :])

    return by_rows(rows, axes, z, *arrays.values(), *extra)


def finished(rows: Any, a: RowValues) -> Any:
    """Remove the class axis. Set ignored rows to 0, and rows whose class is out of range to NaN."""
    xp = namespace(rows)
    if a.skipped is not None:
        rows = xp.where(a.skipped, 0.0, xp.where(a.wrong, math.nan, rows))
    return xp.squeeze(rows, axis=a.axes)


def _to_scores(slope: Any, z: Any, a: RowValues, options: LossOptions) -> Any:
    """Return the gradient with respect to z. `slope` is the gradient with respect to x = beta cap(z).

    `slope` is multiplied by beta (or 0 if |beta| = inf) and by the derivative of the soft-cap. The result is 0 outside
    the support.
    """
    xp, beta = namespace(z), options.beta.hi
    flat = math.isinf(beta) if isinstance(beta, float) else xp.abs(beta) == INF
    beta = along(xp.where(flat, 0.0, beta), a.axes) if not isinstance(beta, float) else 0.0 if flat else beta
    if options.softcap:
        slope = slope * cap_slope(xp.astype(z, a.p.dtype), options.beta, options.softcap)
    inside = a.inside if a.skipped is None else a.inside & ~a.skipped
    slope = xp.where(inside, slope * beta, 0.0)
    if a.wrong is not None:
        slope = xp.where(a.wrong, math.nan, slope)
    return xp.astype(slope, z.dtype)


# --- the terms and their slopes ---------------------------------------------------------------------------------------


def _loss(a: RowValues, options: LossOptions) -> Any:
    xp, axes = namespace(a.p), a.axes
    of_each = xp.where(a.inside, a.mass * (0.0 - a.log_p), 0.0)
    loss = row_sum(of_each, axes) if options.one_class else _sum(of_each, axes)
    # 0 outside the support, 1 in the support, 2 where p = 0 has mass
    kind = xp.where((a.mass > 0.0) & ~a.possible, 2.0, xp.astype(a.inside, a.p.dtype))
    return loss + _z_loss(a, options) + xp.where(row_max(kind, axes) != 1.0, xp.full_like(loss, INF), 0.0)


def _loss_slope(a: RowValues, options: LossOptions) -> Any:
    rest = 0.0 - namespace(a.p).expm1(a.log_p)  # 1 - p
    slope = a.p * _mass_of_others(a, options) - a.mass * rest
    return _constant(slope, a) + _z_loss_slope(a, options)


def _lse_slope(a: RowValues, options: LossOptions) -> Any:  # noqa: ARG001 same signature as the other slopes
    return a.p


def _entropy(a: RowValues, options: LossOptions) -> Any:  # noqa: ARG001
    return _sum(a.p * (0.0 - a.log_p), a.axes)


def _entropy_slope(a: RowValues, options: LossOptions) -> Any:
    return _constant(-a.p * (a.log_p + along(_entropy(a, options), a.axes)), a)


def _z_loss(a: RowValues, options: LossOptions) -> Any:
    return options.z_loss * a.lse * a.lse if options.z_loss else namespace(a.lse).zeros_like(a.lse)


def _z_loss_slope(a: RowValues, options: LossOptions) -> Any:
    if not options.z_loss:
        return 0.0
    return _constant(2.0 * options.z_loss * along(a.lse, a.axes) * a.p, a)


def _constant(slope: Any, a: RowValues) -> Any:
    """Set the slope to 0 in rows with an infinite lse, because the loss of such a row is constant."""
    xp = namespace(slope)
    return xp.where(xp.abs(a.lse) == INF, 0.0, slope)


def _sum(values: Any, axes: tuple[int, ...]) -> Any:
    """Return the sum over the classes. In one process it is accurate to the last bit."""
    if isinstance(axes, SpreadAxes):
        return row_sum(values, axes)
    return namespace(values).expand_dims(error_free.row_sum(values, axes), axis=axes[0])


def _mass_of_others(a: RowValues, options: LossOptions) -> Any:
    """Return, for each class k, the sum of m over all other classes, as accurate as a separate sum for each k."""
    m, (axis,) = a.mass, a.axes
    xp = namespace(m)
    if options.one_class or not m.shape[axis] or isinstance(a.axes, SpreadAxes):
        return sum_along(m, a.axes) - m
    last = (*(i for i in range(m.ndim) if i != axis), axis)
    m = xp.permute_dims(m, last)
    high, low = total(m)
    s, e = two_sum(high, -m)
    return xp.permute_dims(s + (e + low), tuple(last.index(i) for i in range(m.ndim)))
