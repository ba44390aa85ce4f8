"""Operations of the log semiring. The definitions are in reference.py.

With p_ikj = exp(beta (a_ik + b_kj - c_ij)), the sums of the form sum p_ikj w_ij x_ik y_kj are closed under
differentiation: the derivatives of `term_sums` are `term_sums` with other weights. In the limits beta = 0 and
beta = inf, p is constant between jumps.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from softargmax.core import _native
from softargmax.core.arrays import frozen, mapped, namespace
from softargmax.core.operation import Operation, finite_or_zero, is_number, row_sum, slope
from softargmax.core.record import Beta, Dense, Gradients, Packed, Result, Tangents, Wanted, gradient
from softargmax.core.scale import Scale
from softargmax.core.vmap_rows import Batched
from softargmax.structure import reference


class Factors(NamedTuple):
    """Two batches of matrices: a (..., I, K) and b (..., K, J). beta is a number, or has the shape (..., 1, 1)."""

    a: Packed
    b: Packed
    beta: Beta


class Product(NamedTuple):
    """The product in the dtype of a, and in float64."""

    c: Any
    wide: Any


class Terms(NamedTuple):
    """The factors, their product in float64, and weights. None stands for weights of 1. `to` selects the sums."""

    a: Packed
    b: Packed
    wide: Dense
    beta: Beta
    w: Packed | None
    x: Packed | None
    y: Packed | None
    to: str


class Sums(NamedTuple):
    """sum_k p x y, sum_j p w y and sum_i p w x, in the shapes of c, a and b."""

    to_c: Any
    to_a: Any
    to_b: Any


def _batch(i: Any, dims: Any, size: int) -> Batched:
    """The vmap rule: the mapped axis is one more axis of the batch."""

    def moved(x: Any, dim: Any) -> Any:
        if isinstance(x, Scale):
            # Kernels take beta contiguous. `mapped` may return a view, and a product is a new array.
            return Scale(
                *(1.0 * moved(*one) for one in zip(x, dim if isinstance(dim, tuple) else (dim, dim), strict=True))
            )
        if not hasattr(x, "shape"):
            return x
        return mapped(x, dim, size)

    return Batched(type(i)(*map(moved, i, dims)))


# --- the product: dc = sum_k p (da + db) ------------------------------------------------------------------------------


def _product_vjp(i: Factors, r: Product, g: Product, wanted: Wanted) -> Gradients:
    xp = namespace(i.a)
    parts = [xp.astype(x, i.a.dtype) for x in g if x is not None]
    w = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    gradients: dict[str, Any] = {}
    if wanted & {"a", "b"}:
        to = "".join(name for name in ("a", "b") if name in wanted)
        found = term_sums(Terms(i.a, i.b, r.wide, i.beta, w, None, None, to))
        gradients = {"a": found.to_a, "b": found.to_b}
    if "beta" in wanted:
        m, n, finite = _shifts(i, r)
        sums = term_sums(Terms(i.a, i.b, r.wide, i.beta, xp.where(finite, w, 0.0), None, None, "ab"))
        of_beta = _total(i.a - m, sums.to_a) + _total(i.b - n, sums.to_b)
        of_beta = of_beta - _total(xp.where(finite, r.wide - m - n, 0.0), xp.where(finite, w, 0.0))
        gradients["beta"] = _by_beta(i.beta, of_beta)
    return gradients


def _product_jvp(i: Factors, r: Product, t: Tangents) -> Product:
    terms = Terms(i.a, i.b, r.wide, i.beta, None, None, None, "c")
    dc: Any = 0.0
    if "a" in t:
        dc = dc + term_sums.first(terms._replace(x=t["a"]))
    if "b" in t:
        dc = dc + term_sums.first(terms._replace(y=t["b"]))
    xp = namespace(r.wide)
    if "beta" in t:
        m, n, finite = _shifts(i, r)
        mean = term_sums.first(terms._replace(x=i.a - m)) + term_sums.first(terms._replace(y=i.b - n))
        dc = dc + _by_beta(i.beta, xp.where(finite, mean - (r.wide - m - n), 0.0) * t["beta"])
    return Product(xp.astype(dc, i.a.dtype), xp.astype(dc, r.wide.dtype))


log_matmul: Operation[Factors, Product] = Operation(
    "log_matmul",
    Factors,
    Product(
        Result("a", shape="(*a.shape[:-1], b.shape[-1])"),
        Result("a", "float64", "(*a.shape[:-1], b.shape[-1])", spare=True),
    ),
    definition=reference.log_matmul,
    kernels={"cpu": _native.log_matmul},
    vjp=_product_vjp,
    jvp=_product_jvp,
    saved={"a", "b", "beta", "wide"},
    batch=_batch,
)


def _shifts(i: Factors, r: Product) -> tuple[Any, Any, Any]:
    """Return the largest finite score of each row of a and column of b, and where c is finite.

    Subtracting them from a, b and c changes no derivative with respect to beta, but keeps its digits.
    """
    xp = namespace(i.a)

    def largest(x: Any, axis: int) -> Any:
        if x.shape[axis] == 0:
            return 0.0
        top = xp.max(xp.where(xp.isfinite(x), x, -math.inf), axis=axis, keepdims=True)
        return frozen(xp.where(xp.isfinite(top), top, 0.0))

    return largest(i.a, -1), largest(i.b, -2), xp.isfinite(r.wide)


def _total(x: Any, slopes: Any) -> Any:
    """Return <x, slopes> of each item. A slope of 0 counts as 0, even times an infinite x."""
    xp = namespace(x)
    return row_sum(xp.where(slopes == 0, 0.0, slopes * xp.where(slopes == 0, 0.0, x)), (x.ndim - 2, x.ndim - 1))


def _by_beta(beta: Scale, of_beta: Any) -> Any:
    """Return a sum divided by beta, and 0 in the limits."""
    xp = namespace(of_beta)
    limit = (beta.hi == 0.0) | xp.isinf(beta.hi)
    return xp.where(limit, 0.0, of_beta / xp.where(limit, 1.0, beta.hi))


# --- sums of terms ----------------------------------------------------------------------------------------------------
#
# F(w, x, y) = sum p w x y is linear in each weight, and to_c, to_a and to_b are its derivatives with respect to w, x
# and y. A change of a, b or c acts as a change of a weight: dp = p (beta da + beta db - beta dc).

WEIGHTS = {"c": "w", "a": "x", "b": "y"}
SCORES = {"c": ("wide", -1.0), "a": ("a", 1.0), "b": ("b", 1.0)}
"""The name of the scores that belong to a weight, and their sign in the exponent."""


def _times(*factors: Any) -> Any:
    """Return the product of factors, of which None stands for 1."""
    return math.prod(x for x in factors if x is not None)


def _added(parts: list[Any]) -> Any:
    return sum(parts[1:], parts[0]) if parts else None


def _sums_vjp(i: Terms, r: Sums, g: Sums, _wanted: Wanted) -> Gradients:
    """Differentiate <g, sums> = F(g_c, x, y) + F(w, g_a, y) + F(w, x, g_b)."""
    to_weights: dict[str, list[Any]] = {one: [] for one in WEIGHTS}
    to_scores: dict[str, list[Any]] = {one: [] for one in WEIGHTS}
    for one, weight in WEIGHTS.items():
        incoming = getattr(g, f"to_{one}")
        if one not in i.to or incoming is None:
            continue
        others = [x for x in WEIGHTS if x != one]
        sums = term_sums(i._replace(**{weight: incoming, "to": "".join(others)}))
        to_scores[one].append(incoming * getattr(r, f"to_{one}"))
        for other in others:
            found = getattr(sums, f"to_{other}")
            to_weights[other].append(found)
            to_scores[other].append(_times(getattr(i, WEIGHTS[other]), found))
    gradients = {weight: _added(to_weights[one]) for one, weight in WEIGHTS.items()}
    of_beta: Any = 0.0
    for one, (name, sign) in SCORES.items():
        if to_scores[one]:
            slopes = sign * _added(to_scores[one])
            gradients[name] = slopes * _slope(i.beta, slopes)
            of_beta = of_beta + _total(getattr(i, name), slopes)
    if not is_number(i.beta):
        gradients["beta"] = finite_or_zero(i.beta.hi, of_beta)
    return gradients


def _slope(beta: Scale, like: Any) -> Any:
    xp = namespace(like)
    return slope(beta) if is_number(beta) else xp.astype(slope(beta), like.dtype)


def _sums_jvp(i: Terms, r: Sums, t: Tangents) -> Sums:
    xp = namespace(i.a)
    found: dict[str, list[Any]] = {one: [] for one in WEIGHTS}
    for one, weight in WEIGHTS.items():
        name, sign = SCORES[one]
        rates = [t[name] * _slope(i.beta, t[name])] if name in t else []
        rates += [finite_or_zero(getattr(i, name), getattr(i, name) * t["beta"])] if "beta" in t else []
        rate = sign * xp.astype(_added(rates), i.a.dtype) if rates else None
        changes = [t[weight]] if weight in t else []
        changes += [] if rate is None else [_times(getattr(i, weight), rate)]
        if rate is not None and one in i.to:
            found[one].append(rate * getattr(r, f"to_{one}"))
        others = [x for x in WEIGHTS if x != one and x in i.to]
        if changes and others:
            sums = term_sums(i._replace(**{weight: _added(changes), "to": "".join(others)}))
            for other in others:
                found[other].append(getattr(sums, f"to_{other}"))
    none = {one: xp.zeros_like(getattr(r, f"to_{one}")) for one in WEIGHTS}
    return Sums(*(_added(found[one]) if found[one] else none[one] for one in WEIGHTS))


term_sums: Operation[Terms, Sums] = Operation(
    "log_matmul_sums",
    Terms,
    Sums(
        Result("a", shape="(*a.shape[:-1], b.shape[-1]) if 'c' in to else (0,)"),
        gradient("a", "'a' in to"),
        gradient("b", "'b' in to"),
    ),
    definition=reference.term_sums,
    kernels={"cpu": _native.log_matmul_sums},
    vjp=_sums_vjp,
    jvp=_sums_jvp,
    saved={*Terms._fields, *Sums._fields},
    batch=_batch,
)
