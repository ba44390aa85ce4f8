"""Definitions of the divergences between a teacher's softmax p and a student's softmax q.

    forward = KL(p || q)        reverse = KL(q || p)        js = KL(p || m) / 2 + KL(q || m) / 2, m = (p + q) / 2
    KL(p || q) = sum_k (p_k d_k - p_k + q_k) = sum_k p_k (d_k + expm1(-d_k)),  d = log p - log q

No term is negative, so the terms do not cancel. A class with p_k = 0 adds 0 to the sum of p_k d_k. A class with p_k > 0
and q_k = 0 makes KL(p || q) +inf. If the support of p is empty, KL(p || q) is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core.arrays import namespace
from softargmax.core.error_free import row_sum
from softargmax.core.row_chunks import by_rows
from softargmax.loss.arguments import Layer
from softargmax.loss.reference import INF, normalized
from softargmax.loss.reference_linear import beta_of, by_parts, part_of, product, rows_of

if TYPE_CHECKING:
    from softargmax.core.scale import Scale
    from softargmax.loss.arguments import LinearDivergence
    from softargmax.loss.reference_linear import Part


@np.errstate(all="ignore")
def divergence(
    student: Any, teacher: Any, where: Any, beta: Scale, axes: tuple[int, ...], kind: str, softcap: float
) -> Any:
    """Return the divergence of every row, in working precision."""
    (axis,) = axes

    def rows(student: Any, teacher: Any, beta: Any, where: Any) -> Any:
        q, log_q, _ = normalized(student, beta, where, axes, softcap)
        p, log_p, _ = normalized(teacher, beta, where, axes, softcap)
        if kind == "reverse":
            p, log_p, q, log_q = q, log_q, p, log_p
        xp = namespace(p)
        in_p, in_q = log_p != -INF, log_q != -INF
        both = in_p & in_q
        d = xp.where(both, log_p, 0.0) - xp.where(both, log_q, 0.0)
        if kind != "js":
            there = xp.any(in_p, axis=axis, keepdims=True)
            alone = xp.where(in_p, INF, xp.where(there, q, 0.0))
            return row_sum(xp.where(both, _term(p, d, q), alone), axes)
        m = 0.5 * (p + q)
        # log(p / m) = -log((1 + exp(-d)) / 2). If q is 0, log(p / m) is log 2. If p is 0, log(q / m) is log 2.
        to_p, to_q = (-xp.log1p(0.5 * xp.expm1(xp.minimum(x, 700.0))) for x in (-d, d))
        of_p = xp.where(both, _term(p, to_p, m), xp.where(in_p, p * _LOG_2_LESS_HALF, 0.5 * q))
        of_q = xp.where(both, _term(q, to_q, m), xp.where(in_q, q * _LOG_2_LESS_HALF, 0.5 * p))
        return 0.5 * row_sum(of_p + of_q, axes)

    return by_rows(rows, axes, student, teacher, beta, where)


def linear_divergence(i: LinearDivergence) -> Any:
    """Return the divergence of every row. The scores of the two layers are computed for a few rows at a time."""
    student, teacher = Layer(i.h_student, i.w_student, i.bias_student), Layer(i.h_teacher, i.w_teacher, i.bias_teacher)

    def rows(z: Any, part: Part) -> Any:
        other = product(part_of(teacher, part))
        return divergence(z, other, rows_of(i.where, part), beta_of(i.beta, part), (1,), i.kind, i.softcap)

    return by_parts(rows, student, (*teacher, i.where, i.beta))


_LOG_2_LESS_HALF = 0.6931471805599453 - 0.5


def _term(p: Any, d: Any, q: Any) -> Any:
    """Return p d - p + q, where q = p exp(-d).

    If |d| < 1, compute it as p (d + expm1(-d)), which is accurate for small d.
    """
    xp = namespace(p)
    near = xp.abs(d) < 1.0
    small, far = xp.where(near, d, 0.0), xp.where(near, 0.0, d)
    return xp.where(near, p * (small + xp.expm1(-small)), (p * far - p) + q)
