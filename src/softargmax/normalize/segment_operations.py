"""softmax, log_softmax and logsumexp of ragged rows: arguments, results, derivative rules and kernels.

A row is a segment z[offsets[s] : offsets[s + 1]] along axis 0. Each index of the other axes has separate rows. lse has
shape (S, ...), one number per row. beta is a number, or an array that broadcasts with lse.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from softargmax.core import _native
from softargmax.core.arrays import device_of, jax_of, mapped, namespace
from softargmax.core.operation import Operation, finite_or_zero, only, slope
from softargmax.core.record import Array, Beta, DType, Gradients, Integers, Result, Tangents, Wanted, like
from softargmax.core.scale import Scale
from softargmax.core.vmap_rows import Batched
from softargmax.normalize import reference
from softargmax.normalize.operations import LogProbabilities, Probabilities, SmoothMaximum


class Segments(NamedTuple):
    """The offsets of the segments, and `row`, the number of the segment of each score."""

    offsets: Any
    row: Any

    @staticmethod
    def of(i: Any) -> Segments:
        """Return the segments of the scores in the arguments `i` of an operation."""
        xp = namespace(i.z)
        positions = xp.arange(i.z.shape[0], device=device_of(i.z), dtype=i.offsets.dtype)
        return Segments(i.offsets, xp.searchsorted(i.offsets, positions, side="right") - 1)

    def sum(self, x: Any) -> Any:
        """Return the sum of each segment: (N, ...) to (S, ...)."""
        shape = (self.offsets.shape[0] - 1, *x.shape[1:])
        zeros = namespace(x).zeros(shape, dtype=x.dtype, device=device_of(x))
        return zeros.index_add(0, self.row, x) if jax_of(x) is None else zeros.at[self.row].add(x)

    def broadcast(self, row: Any) -> Any:
        """Broadcast one number per segment to its scores: (S, ...) to (N, ...). One number for all segments is returned
        unchanged.
        """
        return row if isinstance(row, float) or row.shape[0] == 1 else namespace(row).take(row, self.row, axis=0)


def _per_segment(i: Any) -> tuple[int, ...]:
    """Return the shape (S, ...) of an array with one number per segment."""
    return (i.offsets.shape[0] - 1, *i.z.shape[1:])


_LSE = Result("z", "dtype", _per_segment, wide=True)


def _batch(i: Any, dims: Any, size: int) -> Batched:
    """Implement vmap: move the batch axis of z to the end. Segments run along the first axis only."""
    if dims.offsets is not None:
        raise NotImplementedError(
            "offsets: expected an array that vmap does not map, got a mapped one; pass all segments in one call"
        )

    def moved(x: Any, dim: int | None) -> Any:
        return x if isinstance(x, float) else mapped(x, dim, size, -1)

    beta = Scale(*(moved(x, dim) for x, dim in zip(i.beta, dims.beta, strict=True)))
    return Batched(i._replace(z=moved(i.z, dims.z), beta=beta), axis=-1)


def _tangent(i: Any, rows: Segments, inside: Any, t: Tangents) -> Any:
    """Return dx = beta dz + z dbeta."""
    z = only(inside, i.z)
    dx = only(inside, t["z"]) * rows.broadcast(slope(i.beta)) if "z" in t else namespace(z).zeros_like(z)
    return dx + z * rows.broadcast(t["beta"]) if "beta" in t else dx


def _to_beta(i: Any, rows: Segments, p: Any, inside: Any, gx: Any) -> Any:
    """Return the gradient with respect to beta, <z, gx>, computed as <z - <p, z>, gx>, which does not cancel."""
    z = only(inside, i.z)
    return finite_or_zero(i.beta.hi, rows.sum(gx * only(inside, z - rows.broadcast(rows.sum(p * z)))))


# --- softmax: dp = p (dx - <p, dx>). Derivatives use lse only to find rows with lse = inf ---------------


class SegmentScores(NamedTuple):
    """Scores z of shape (N, ...), and the offsets of the S segments, of shape (S + 1,)."""

    z: Array
    offsets: Integers
    beta: Beta
    dtype: DType


def _softmax_inside(rows: Segments, r: Probabilities) -> Any:
    """True for the scores that take part in a derivative."""
    return (r.p != 0) & (rows.broadcast(r.lse) != math.inf)


def _softmax_vjp(i: SegmentScores, r: Probabilities, g: Probabilities, wanted: Wanted) -> Gradients:
    rows = Segments.of(i)
    inside = _softmax_inside(rows, r)
    p, g_ = only(inside, r.p), only(inside, g.p)
    gx = p * (g_ - rows.broadcast(rows.sum(p * g_)))
    return {
        "z": gx * rows.broadcast(slope(i.beta)),
        "beta": _to_beta(i, rows, p, inside, gx) if "beta" in wanted else None,
    }


def _softmax_jvp(i: SegmentScores, r: Probabilities, t: Tangents) -> Probabilities:
    rows = Segments.of(i)
    inside = _softmax_inside(rows, r)
    p, dx = only(inside, r.p), _tangent(i, rows, inside, t)
    return Probabilities(p * (dx - rows.broadcast(rows.sum(p * dx))), None)


segment_softmax: Operation[SegmentScores, Probabilities] = Operation(
    "segment_softmax",
    SegmentScores,
    Probabilities(like("z", "dtype"), _LSE._replace(spare=True)),
    definition=reference.segment_softmax,
    kernels={"cpu": _native.segment_softmax, "cuda": "softargmax.normalize.triton_segments:segment_softmax"},
    vjp=_softmax_vjp,
    jvp=_softmax_jvp,
    saved={"z", "offsets", "beta", "p", "log_p", "lse"},
    constant={"offsets", "lse"},
    batch=_batch,
)


# --- log_softmax: dlog p = dx - <p, dx> -------------------------------------------------------------------------------


def _log_inside(rows: Segments, r: LogProbabilities) -> tuple[Any, Any]:
    """Return the mask of the scores that take part in a derivative, and p (0 outside the mask)."""
    inside = (r.log_p != -math.inf) & (rows.broadcast(r.lse) != math.inf)
    return inside, only(inside, namespace(r.log_p).exp(only(inside, r.log_p)))


def _log_softmax_vjp(i: SegmentScores, r: LogProbabilities, g: LogProbabilities, wanted: Wanted) -> Gradients:
    rows = Segments.of(i)
    inside, p = _log_inside(rows, r)
    g_ = only(inside, g.log_p)
    gx = g_ - p * rows.broadcast(rows.sum(g_))
    return {
        "z": gx * rows.broadcast(slope(i.beta)),
        "beta": _to_beta(i, rows, p, inside, g_) if "beta" in wanted else None,
    }


def _log_softmax_jvp(i: SegmentScores, r: LogProbabilities, t: Tangents) -> LogProbabilities:
    rows = Segments.of(i)
    inside, p = _log_inside(rows, r)
    dx = _tangent(i, rows, inside, t)
    return LogProbabilities(only(inside, dx - rows.broadcast(rows.sum(p * dx))), None)


segment_log_softmax: Operation[SegmentScores, LogProbabilities] = Operation(
    "segment_log_softmax",
    SegmentScores,
    LogProbabilities(like("z", "dtype"), _LSE._replace(spare=True)),
    definition=reference.segment_log_softmax,
    kernels={
        "cpu": _native.segment_log_softmax,
        "cuda": "softargmax.normalize.triton_segments:segment_log_softmax",
    },
    vjp=_log_softmax_vjp,
    jvp=_log_softmax_jvp,
    saved={"z", "offsets", "beta", "p", "log_p", "lse"},
    constant={"offsets", "lse"},
    batch=_batch,
)


# --- logsumexp: L = log sum exp(x) / beta. dL = <p, dz> + <p, z - L> dbeta / beta -------------------------------------


def _slopes(i: SegmentScores, lse: Any, wanted: Wanted) -> tuple[Segments, Any, Any]:
    """Return the segments, dL/dz, and dL/dbeta if requested. Both derivatives can be differentiated again."""
    xp, rows = namespace(i.z), Segments.of(i)
    p = segment_softmax(SegmentScores(i.z, i.offsets, i.beta, i.z.dtype)).p
    if "beta" not in wanted:
        return rows, p, None
    constant = xp.isinf(lse) | xp.isinf(i.beta.hi)
    inside = (p != 0) & ~rows.broadcast(constant)
    distance = only(inside, i.z - rows.broadcast(xp.where(constant, 0.0, lse)))
    of_beta = rows.sum(p * distance) / xp.where(xp.isinf(i.beta.hi), 1.0, i.beta.hi)
    return rows, p, finite_or_zero(of_beta, of_beta)


def _logsumexp_vjp(i: SegmentScores, r: SmoothMaximum, g: SmoothMaximum, wanted: Wanted) -> Gradients:
    rows, p, of_beta = _slopes(i, r.lse, wanted)
    return {"z": only(p != 0, p * rows.broadcast(g.lse)), "beta": None if of_beta is None else of_beta * g.lse}


def _logsumexp_jvp(i: SegmentScores, r: SmoothMaximum, t: Tangents) -> SmoothMaximum:
    rows, p, of_beta = _slopes(i, r.lse, t.keys())
    tangent = rows.sum(only(p != 0, p * t["z"])) if "z" in t else namespace(r.lse).zeros_like(r.lse)
    return SmoothMaximum(tangent + of_beta * t["beta"] if "beta" in t else tangent)


segment_logsumexp: Operation[SegmentScores, SmoothMaximum] = Operation(
    "segment_logsumexp",
    SegmentScores,
    SmoothMaximum(_LSE),
    definition=reference.segment_logsumexp,
    kernels={
        "cpu": _native.segment_logsumexp,
        "cuda": "softargmax.normalize.triton_segments:segment_logsumexp",
    },
    vjp=_logsumexp_vjp,
    jvp=_logsumexp_jvp,
    saved={"z", "offsets", "beta", "lse"},
    constant={"offsets"},
    batch=_batch,
)
