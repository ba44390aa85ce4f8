"""Kullback-Leibler divergence and Renyi entropy: arguments, results, derivative rules and kernels."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from softargmax.core import _native
from softargmax.core.arrays import device_of, namespace, row_dtype, working_dtype
from softargmax.core.operation import Operation, along, finite_or_zero, only, row_max, row_sum, slope
from softargmax.core.processes import SpreadAxes
from softargmax.core.record import (
    Array,
    Axes,
    Beta,
    DType,
    Gradients,
    Rowwise,
    Tangents,
    Wanted,
    gradient,
    like,
    per_row,
)
from softargmax.core.scale import UNIT
from softargmax.normalize import reference
from softargmax.normalize.operations import EntropyOf, Scores, log_softmax, softmax, sum_to_scores
from softargmax.normalize.vjp_operations import SoftmaxVjp, ToScores, softmax_vjp

# --- D = <p, log p - log q>. dD = <p (log p - log q - D), dx_p> + <q - p, dx_q> with x_p = beta z_p, x_q = beta z_q ---


class KlDivergence(NamedTuple):
    """Scores of p and of q, with the same shape and dtype."""

    z_p: Array
    z_q: Array
    where: Array | None
    beta: Beta
    axes: Axes
    dtype: DType


class Divergence(NamedTuple):
    """The divergence of each row, in nats."""

    divergence: Any


def _divergence_slopes(i: KlDivergence) -> tuple[Any, Any]:
    """Return the derivatives of D with respect to x_p = beta z_p and x_q = beta z_q.

    The computation uses float64 if the library has it: if p is near q, the derivatives are small differences of larger
    numbers. The derivative with respect to an infinite score is 0. In a row with an infinite D, all derivatives are 0.
    """
    xp = namespace(i.z_p)
    of_p, of_q = (Scores(z, i.where, i.beta, i.axes, working_dtype(z, xp)) for z in (i.z_p, i.z_q))
    (p, lse_p), (q, lse_q) = softmax(of_p), softmax(of_q)
    log_q = log_softmax.first(of_q)
    lost = row_sum(xp.astype((p != 0) & (log_q == -math.inf), p.dtype), i.axes) > 0
    inside = (p != 0) & ~lost
    ratio = only(inside, log_softmax.first(of_p)) - only(inside, log_q)
    slope_p = only(~lost, softmax_vjp.first(SoftmaxVjp(p, lse_p, ratio, UNIT, i.axes, p.dtype)))
    return slope_p, only(~lost & (lse_q != math.inf) & (lse_p != -math.inf), q - p)


def _to_beta(i: KlDivergence, slopes: tuple[Any, Any]) -> Any:
    """Return the derivative with respect to beta, <of_p, z_p> + <of_q, z_q>, where of_p and of_q are the `slopes`.

    Each slope sums to 0 over a row, so subtracting one number from all scores of a row does not change the result. The
    code subtracts the largest score of the row, which reduces the rounding error.
    """
    xp, total = namespace(i.z_p), 0.0
    for of, z in zip(slopes, (i.z_p, i.z_q), strict=True):
        inside = (of != 0) & ~xp.isinf(z)
        top = row_max(xp.where(inside, z, -math.inf), i.axes)
        total = total + row_sum(of * only(inside, z - along(top, i.axes)), i.axes)
    return finite_or_zero(i.beta.hi, total)


def _to_scores(i: KlDivergence, slopes: tuple[Any, Any], g: Any) -> list[Any]:
    """Return the gradients with respect to the scores of p and of q."""
    g, scale = along(g, i.axes), along(slope(i.beta), i.axes)
    return [only(of != 0, of * g) * scale for of in slopes]


class KlDivergenceVjp(NamedTuple):
    """Arguments of `kl_divergence_vjp`: g beta p (log p - log q - D) if `to_p`, and g beta (q - p) if `to_q`."""

    of: KlDivergence
    g: Array
    to_p: bool
    to_q: bool


class KlGradients(NamedTuple):
    """The gradients with respect to the scores of p and of q."""

    gz_p: Any
    gz_q: Any


def _defined_kl_divergence_vjp(i: KlDivergenceVjp) -> tuple[Any, ...]:
    xp, z = namespace(i.g), i.of.z_p
    found = zip(_to_scores(i.of, _divergence_slopes(i.of), i.g), (i.to_p, i.to_q), strict=True)
    none = xp.zeros((0,), dtype=z.dtype, device=device_of(z))
    return tuple(xp.astype(of, z.dtype) if wanted else none for of, wanted in found)


kl_divergence_vjp: Operation[KlDivergenceVjp, KlGradients] = Operation(
    "kl_divergence_vjp",
    KlDivergenceVjp,
    KlGradients(gradient("z_p", "to_p"), gradient("z_q", "to_q")),
    definition=_defined_kl_divergence_vjp,
    kernels={"cuda": "softargmax.normalize.triton_sums:kl_divergence_vjp"},
    constant={"where"},
)


def _kl_divergence_vjp(i: KlDivergence, _r: Divergence, g: Divergence, wanted: Wanted) -> Gradients:
    if "beta" not in wanted and not isinstance(i.axes, SpreadAxes):
        found = kl_divergence_vjp(KlDivergenceVjp(i, g.divergence, "z_p" in wanted, "z_q" in wanted))
        return {"z_p": found.gz_p, "z_q": found.gz_q}
    slopes = _divergence_slopes(i)
    gradients = dict(zip(("z_p", "z_q"), _to_scores(i, slopes, g.divergence), strict=True))
    return gradients | {"beta": _to_beta(i, slopes) * g.divergence if "beta" in wanted else None}


def _kl_divergence_jvp(i: KlDivergence, _r: Divergence, t: Tangents) -> Divergence:
    slopes, scale = _divergence_slopes(i), slope(i.beta)
    named = zip(("z_p", "z_q"), slopes, strict=True)
    parts = [row_sum(of * only(of != 0, t[name]), i.axes) * scale for name, of in named if name in t]
    if "beta" in t:
        parts.append(_to_beta(i, slopes) * t["beta"])
    return Divergence(sum(parts[1:], parts[0]))


kl_divergence: Operation[KlDivergence, Divergence] = Operation(
    "kl_divergence",
    KlDivergence,
    Divergence(per_row("z_p", "dtype")),
    definition=reference.kl_divergence,
    kernels={"cpu": _native.kl_divergence, "cuda": "softargmax.normalize.triton_sums:kl_divergence"},
    vjp=_kl_divergence_vjp,
    jvp=_kl_divergence_jvp,
    constant={"where"},
)


# --- H = log <1, p^a> / (1 - a). dH = a <q - p, dx> / (1 - a) - <q, log q - log p> da / (1 - a)^2, q = p^a / <1, p^a>
# with x = beta z. Let u = (a - 1) (log p + H). Then q = p e^u. Near u = 0, the quotients (q - p) / (1 - a) and
# (q u - q + p) / (1 - a)^2 are computed as power series in u.


class RenyiEntropy(NamedTuple):
    """Arguments of the Renyi entropy: the fields of Scores, and the order a of each row."""

    z: Array
    where: Array | None
    beta: Beta
    order: Rowwise
    axes: Axes
    dtype: DType


def _series(u: Any, add: int) -> Any:
    """Return sum u^k / (k! (k + add)): (e^u - 1) / u for add = 1, and (u e^u - e^u + 1) / u^2 for add = 2."""
    total = namespace(u).zeros_like(u)
    for k in range(18, -1, -1):
        total = total * u + 1.0 / (math.factorial(k) * (k + add))
    return total


def _renyi_slopes(i: RenyiEntropy, entropy: Any) -> tuple[Any, Any, Any]:
    """Return (p + q) / 2, and the derivatives of H with respect to x = beta z and to the order a.

    `sum_to_scores` takes (p + q) / 2 in place of p, because H depends on every score with p > 0 or q > 0.
    """
    xp, dtype = namespace(i.z), row_dtype(i.z.dtype)
    of_p = Scores(i.z, i.where, i.beta, i.axes, dtype)
    of_q = of_p._replace(beta=reference.raised(i.beta, i.order, i.z))
    (p, lse), q = softmax(of_p), softmax(of_q).p
    log_p, log_q = log_softmax.first(of_p), log_softmax.first(of_q)
    inside = (log_p != -math.inf) & (lse != math.inf)
    lost = inside & (log_q == -math.inf)
    p, q, log_p, log_q = only(inside, p), only(inside, q), only(inside, log_p), only(inside & ~lost, log_q)
    order = xp.full_like(entropy, min(i.order, 1e18)) if isinstance(i.order, float) else i.order
    order = xp.where(order > 1e18, 1e18, order)

    excess = order - 1.0
    direct = xp.abs(excess) >= 1.0  # for these orders log q - log p is accurate, even for a confident row
    y = xp.where(direct, (log_q - log_p) / xp.where(direct, excess, 1.0), only(inside, log_p + entropy))
    u = excess * y
    near = ~lost & (xp.abs(u) < 1.0)
    small, rest = xp.where(near, u, 0.0), xp.where(near, 1.0, excess)
    of_x = -order * xp.where(near, p * y * _series(small, 1), (q - p) / rest)
    of_order = -xp.where(near, p * y * y * _series(small, 2), ((q * u - q) + p) / (rest * rest))
    return 0.5 * (p + q), of_x, row_sum(of_order, i.axes)


class RenyiVjp(NamedTuple):
    """Arguments of gz = g beta a (q - p) / (1 - a): also the entropy, which the definition reads."""

    of: RenyiEntropy
    entropy: Array
    g: Array


def _defined_renyi_vjp(i: RenyiVjp) -> Any:
    shares, of_x, _of_order = _renyi_slopes(i.of, i.entropy)
    return namespace(i.g).astype(sum_to_scores(i.of, shares, of_x, i.g, frozenset())["z"], i.of.z.dtype)


renyi_entropy_vjp: Operation[RenyiVjp, ToScores] = Operation(
    "renyi_entropy_vjp",
    RenyiVjp,
    ToScores(like("z")),
    definition=_defined_renyi_vjp,
    kernels={"cuda": "softargmax.normalize.triton_sums:renyi_entropy_vjp"},
    constant={"where"},
)


def _renyi_vjp(i: RenyiEntropy, r: EntropyOf, g: EntropyOf, wanted: Wanted) -> Gradients:
    if wanted == {"z"} and not isinstance(i.axes, SpreadAxes):
        return {"z": renyi_entropy_vjp.first(RenyiVjp(i, r.entropy, g.entropy))}
    shares, of_x, of_order = _renyi_slopes(i, r.entropy)
    return sum_to_scores(i, shares, of_x, g.entropy, wanted) | {"order": of_order * g.entropy}


renyi_entropy: Operation[RenyiEntropy, EntropyOf] = Operation(
    "renyi_entropy",
    RenyiEntropy,
    EntropyOf(per_row("z", "dtype")),
    definition=reference.renyi_entropy,
    kernels={"cpu": _native.renyi_entropy, "cuda": "softargmax.normalize.triton_sums:renyi_entropy"},
    vjp=_renyi_vjp,
    saved={"z", "where", "beta", "order", "entropy"},
    constant={"where"},
    always_by_rule=True,
)
