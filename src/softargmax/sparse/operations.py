"""Operations of the sparse maps and of their threshold. The definitions are in reference.py.

The notation is that of `support.py`. The derivative rules of `entmax` use tau only to detect rows of infinities. tau
itself has derivatives only as a result of `threshold`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from softargmax.core import _native
from softargmax.core.arrays import namespace
from softargmax.core.operation import Operation, finite_or_zero, is_number, row_sum, slope
from softargmax.core.record import Array, Axes, Beta, Gradients, Rowwise, Tangents, Wanted, like, per_row
from softargmax.core.scale import Scale
from softargmax.sparse import reference
from softargmax.sparse.results import Threshold
from softargmax.sparse.support import Support

# --- the map: dp = s ((dx)' - w' dalpha), dx = beta dz + z dbeta ------------------------------------------------------


class Scores(NamedTuple):
    """Scores with rows along `axes`, the order alpha of each row, and the options of the map."""

    z: Array
    alpha: Rowwise
    where: Array | None
    beta: Beta
    axes: Axes


class Probabilities(NamedTuple):
    """The sparse probabilities, and the threshold of each row."""

    p: Any
    tau: Any


class EntmaxVjp(NamedTuple):
    """Arguments of the operation that returns gx = s g'."""

    p: Array
    tau: Array
    alpha: Rowwise
    g: Array
    axes: Axes


class ToScores(NamedTuple):
    """The gradient with respect to x."""

    gz: Any


def times_beta(beta: Scale, gx: Any) -> Any:
    """Return the gradient with respect to z, from the gradient gx with respect to x."""
    if is_number(beta) and beta.hi == 1.0:
        return gx
    return namespace(gx).astype(gx * slope(beta), gx.dtype)


def tangent(i: Any, t: Tangents) -> Any:
    """Return dx. The result is only correct in the support. Other entries are not used."""
    if "beta" not in t:
        return times_beta(i.beta, t["z"])
    xp = namespace(i.z)
    by_beta = xp.where(xp.isinf(i.z), 0.0, i.z) * t["beta"]
    return xp.astype(by_beta + t["z"] * slope(i.beta) if "z" in t else by_beta, i.z.dtype)


def _entmax_vjp(i: Scores, r: Probabilities, g: Probabilities, wanted: Wanted) -> Gradients:
    gradients = {}
    if "z" in wanted:
        gradients["z"] = times_beta(i.beta, entmax_vjp.first(EntmaxVjp(r.p, r.tau, i.alpha, g.p, i.axes)))
    row = Support(r.p, r.tau, i.alpha, i.axes) if wanted & {"alpha", "beta"} else None
    if row is not None and "alpha" in wanted:
        gradients["alpha"] = row_sum(row.to_alpha() * row.centred(g.p), i.axes)
    if row is not None and "beta" in wanted:
        gradients["beta"] = row.to_beta(g.p, i)
    return gradients


def _entmax_jvp(i: Scores, r: Probabilities, t: Tangents) -> Probabilities:
    xp, dp = namespace(r.p), namespace(r.p).zeros_like(r.p)
    if "z" in t or "beta" in t:
        dp = entmax_vjp.first(EntmaxVjp(r.p, r.tau, i.alpha, tangent(i, t), i.axes))
    if "alpha" in t:
        dp = dp + xp.astype(Support(r.p, r.tau, i.alpha, i.axes).to_alpha() * t["alpha"], r.p.dtype)
    return Probabilities(dp, None)


def _saved(i: Scores) -> Wanted:
    """Return the fields that the derivative rules read. z and beta are among them only if beta is an array."""
    results = {"alpha", "p", "tau"}
    return results if is_number(i.beta) else results | {"z", "beta"}


entmax: Operation[Scores, Probabilities] = Operation(
    "entmax",
    Scores,
    Probabilities(like("z"), per_row("z", wide=True, spare=True)),
    definition=reference.entmax,
    kernels={"cpu": _native.entmax, "cuda": "softargmax.sparse.triton_kernels:entmax"},
    vjp=_entmax_vjp,
    jvp=_entmax_jvp,
    saved=_saved,
    constant={"tau"},
)


def _entmax_vjp_vjp(i: EntmaxVjp, _r: ToScores, g: ToScores, wanted: Wanted) -> Gradients:
    """Differentiate <h, s g'>, where g is `i.g` and h is the incoming gradient `g.gz`.

    <h, s g'> is symmetric in g and h. Its derivative with respect to s is h' g'.
    """
    row = Support(i.p, i.tau, i.alpha, i.axes)
    to_s = row.centred(i.g) * row.centred(g.gz)
    return {
        "p": (1.0 - row.a) * row.s / row.p * to_s,
        "alpha": -row_sum(row.s * row.log * to_s, i.axes) if "alpha" in wanted else None,
        "g": entmax_vjp.first(i._replace(g=g.gz)),
    }


def _entmax_vjp_jvp(i: EntmaxVjp, _r: ToScores, t: Tangents) -> ToScores:
    xp = namespace(i.p)
    u = entmax_vjp.first(i._replace(g=t["g"])) if "g" in t else xp.zeros_like(i.p)
    if "p" not in t and "alpha" not in t:
        return ToScores(u)
    row = Support(i.p, i.tau, i.alpha, i.axes)
    rate = (1.0 - row.a) / row.p * row.only(t["p"]) if "p" in t else 0.0  # the relative change of s
    rate = rate - row.log * t["alpha"] if "alpha" in t else rate
    return ToScores(u + xp.astype(row.s * row.centred(rate * row.centred(i.g)), i.p.dtype))


entmax_vjp: Operation[EntmaxVjp, ToScores] = Operation(
    "entmax_vjp",
    EntmaxVjp,
    ToScores(like("p")),
    definition=reference.entmax_vjp,
    kernels={"cpu": _native.entmax_vjp, "cuda": "softargmax.sparse.triton_kernels:entmax_vjp"},
    vjp=_entmax_vjp_vjp,
    jvp=_entmax_vjp_jvp,
    constant={"tau"},
)


# --- the threshold: dtau = a <s, dx> / <s, 1> + ((tau + 1) / a - a <s, w> / <s, 1>) dalpha ----------------------------


def _slopes(i: Scores) -> tuple[Support, Any]:
    """Return the `Support`, and dtau / dalpha (None if alpha is a number).

    dtau / dalpha = max x + lambda + a dlambda / da, with lambda and e_a as in `reference.py`.
    """
    p, tau = entmax(i)
    row = Support(p, tau, i.alpha, i.axes)
    if isinstance(i.alpha, float):
        return row, None
    xp, a = row.xp, row.a
    m = row.top(xp.astype(i.z, row.dtype) * slope(i.beta), row.inside)
    log = row.top(row.log, row.inside)  # log p of the maximum, whose p is e_a(-lambda)
    x = xp.where(a == 0, log, xp.expm1(a * log) / xp.where(a == 0, 1.0, a))
    return row, xp.where(xp.isinf(tau), 0.0, m - x - a * row.mean(row.by_alpha()))


def _threshold_vjp(i: Scores, _r: Threshold, g: Threshold, _wanted: Wanted) -> Gradients:
    row, by_alpha = _slopes(i)
    return {
        "z": times_beta(i.beta, row.s / row.total * (row.a * g.tau)),
        "alpha": None if by_alpha is None else g.tau * by_alpha,
        "beta": None if is_number(i.beta) else finite_or_zero(i.beta.hi, row.mean(i.z) * (row.a * g.tau)),
    }


def _threshold_jvp(i: Scores, _r: Threshold, t: Tangents) -> Threshold:
    row, by_alpha = _slopes(i)
    tangent_tau = row.a * row.mean(tangent(i, t)) if "z" in t or "beta" in t else row.xp.zeros_like(row.total)
    return Threshold(tangent_tau + by_alpha * t["alpha"] if "alpha" in t else tangent_tau, None)


threshold: Operation[Scores, Threshold] = Operation(
    "entmax_threshold",
    Scores,
    Threshold(per_row("z", wide=True), per_row("z", "int64")),
    definition=reference.threshold,
    kernels={"cpu": _native.entmax_threshold, "cuda": "softargmax.sparse.triton_kernels:threshold"},
    vjp=_threshold_vjp,
    jvp=_threshold_jvp,
    constant={"support_size"},
)
