"""softmax, log_softmax and logsumexp of ragged rows: arguments, results, derivative rules and kernels.

A row is a segment z[offsets[s] : offsets[s + 1]] along axis 0. Each index of the other axes has separate rows. lse has
shape (S, ...), one number per row. beta is a number, or an array that broadcasts with lse.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from softargmax.core import _native
from softargmax.core.arrays import device_of, jax_of, mapped, namespace, row_dtype
from softargmax.core.operation import Operation, finite_or_zero, only, slope
from softargmax.core.record import Array, Beta, DType, Gradients, Integers, Result, Tangents, Wanted, like
from softargmax.core.scale import UNIT, Scale
from softargmax.core.vmap_rows import Batched
from softargmax.normalize import reference
from softargmax.normalize.operations import LogProbabilities, Probabilities, SmoothMaximum
from softargmax.normalize.vjp_operations import ToScores


class Segments(NamedTuple):
    """The offsets of the segments, and `row`, the number of the segment of each score."""

    offsets: Any
    row: Any

    @staticmethod
    def of(z: Any, offsets: Any) -> Segments:
        """Return the segments of the scores z."""
        xp = namespace(z)
        positions = xp.arange(z.shape[0], device=device_of(z), dtype=offsets.dtype)
        return Segments(offsets, xp.searchsorted(offsets, positions, side="right") - 1)

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
    """Implement vmap: move the batch axis of all arrays to the end. Segments run along the first axis only."""
    if dims.offsets is not None:
        raise NotImplementedError(
            "offsets: expected an array that vmap does not map, got a mapped one; pass all segments in one call"
        )

    def moved(x: Any, dim: int | None) -> Any:
        return x if isinstance(x, float) else mapped(x, dim, size, -1)

    arrays = [name for name in i._fields if name in ("z", "y", "lse", "g")]
    found = {name: moved(getattr(i, name), getattr(dims, name)) for name in arrays}
    if "beta" in i._fields:
        found["beta"] = Scale(*(moved(x, dim) for x, dim in zip(i.beta, dims.beta, strict=True)))
    return Batched(i._replace(**found), axis=-1)


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


class SegmentVjp(NamedTuple):
    """Arguments of gz = beta p (g - <p, g>), where y = p, or of gz = beta (g - p <1, g>), where y = log p.

    `dtype` is the dtype of gz.
    """

    y: Array
    lse: Array
    g: Array
    offsets: Integers
    beta: Beta
    dtype: DType


def _softmax_inside(rows: Segments, p: Any, lse: Any) -> Any:
    """True for the scores that take part in a derivative."""
    return (p != 0) & (rows.broadcast(lse) != math.inf)


def _defined_softmax_vjp(i: SegmentVjp) -> Any:
    rows = Segments.of(i.y, i.offsets)
    inside = _softmax_inside(rows, i.y, i.lse)
    p, g = only(inside, i.y), only(inside, i.g)
    gx = p * (g - rows.broadcast(rows.sum(p * g)))
    return namespace(gx).astype(gx * rows.broadcast(slope(i.beta)), i.dtype)


segment_softmax_vjp: Operation[SegmentVjp, ToScores] = Operation(
    "segment_softmax_vjp",
    SegmentVjp,
    ToScores(like("y", "dtype")),
    definition=_defined_softmax_vjp,
    kernels={"cuda": "softargmax.normalize.triton_segments:segment_softmax_vjp"},
    constant={"lse", "offsets"},
    batch=_batch,
)


def _softmax_vjp(i: SegmentScores, r: Probabilities, g: Probabilities, wanted: Wanted) -> Gradients:
    of = SegmentVjp(r.p, r.lse, g.p, i.offsets, i.beta, i.z.dtype)
    if "beta" not in wanted:
        return {"z": segment_softmax_vjp.first(of)}
    rows = Segments.of(i.z, i.offsets)
    inside = _softmax_inside(rows, r.p, r.lse)
    gx = segment_softmax_vjp.first(of._replace(beta=UNIT, dtype=row_dtype(i.z.dtype)))
    return {"z": gx * rows.broadcast(slope(i.beta)), "beta": _to_beta(i, rows, only(inside, r.p), inside, gx)}


def _softmax_jvp(i: SegmentScores, r: Probabilities, t: Tangents) -> Probabilities:
    rows = Segments.of(i.z, i.offsets)
    inside = _softmax_inside(rows, r.p, r.lse)
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


def _log_inside(rows: Segments, log_p: Any, lse: Any) -> tuple[Any, Any]:
    """Return the mask of the scores that take part in a derivative, and p (0 outside the mask)."""
    inside = (log_p != -math.inf) & (rows.broadcast(lse) != math.inf)
    return inside, only(inside, namespace(log_p).exp(only(inside, log_p)))


def _defined_log_softmax_vjp(i: SegmentVjp) -> Any:
    rows = Segments.of(i.y, i.offsets)
    inside, p = _log_inside(rows, i.y, i.lse)
    g = only(inside, i.g)
    gx = g - p * rows.broadcast(rows.sum(g))
    return namespace(gx).astype(gx * rows.broadcast(slope(i.beta)), i.dtype)


segment_log_softmax_vjp: Operation[SegmentVjp, ToScores] = Operation(
    "segment_log_softmax_vjp",
    SegmentVjp,
    ToScores(like("y", "dtype")),
    definition=_defined_log_softmax_vjp,
    kernels={"cuda": "softargmax.normalize.triton_segments:segment_log_softmax_vjp"},
    constant={"lse", "offsets"},
    batch=_batch,
)


def _log_softmax_vjp(i: SegmentScores, r: LogProbabilities, g: LogProbabilities, wanted: Wanted) -> Gradients:
    of = SegmentVjp(r.log_p, r.lse, g.log_p, i.offsets, i.beta, i.z.dtype)
    gradients = {"z": segment_log_softmax_vjp.first(of)}
    if "beta" in wanted:
        rows = Segments.of(i.z, i.offsets)
        inside, p = _log_inside(rows, r.log_p, r.lse)
        gradients["beta"] = _to_beta(i, rows, p, inside, only(inside, g.log_p))
    return gradients


def _log_softmax_jvp(i: SegmentScores, r: LogProbabilities, t: Tangents) -> LogProbabilities:
    rows = Segments.of(i.z, i.offsets)
    inside, p = _log_inside(rows, r.log_p, r.lse)
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


class SegmentLogSumExpVjp(NamedTuple):
    """Arguments of gz = p g, and 0 where p = 0. g has one number per segment. gz has the dtype of p."""

    y: Array
    g: Array
    offsets: Integers


def _defined_logsumexp_vjp(i: SegmentLogSumExpVjp) -> Any:
    g = Segments.of(i.y, i.offsets).broadcast(i.g)
    return namespace(i.y).astype(only(i.y != 0, i.y * g), i.y.dtype)


segment_logsumexp_vjp: Operation[SegmentLogSumExpVjp, ToScores] = Operation(
    "segment_logsumexp_vjp",
    SegmentLogSumExpVjp,
    ToScores(like("y")),
    definition=_defined_logsumexp_vjp,
    kernels={"cuda": "softargmax.normalize.triton_segments:segment_logsumexp_vjp"},
    constant={"offsets"},
    batch=_batch,
)


def _slopes(i: SegmentScores, lse: Any, wanted: Wanted) -> tuple[Any, Any]:
    """Return dL/dz, and dL/dbeta if requested. Both derivatives can be differentiated again."""
    xp, p = namespace(i.z), segment_softmax.first(SegmentScores(i.z, i.offsets, i.beta, i.z.dtype))
    if "beta" not in wanted:
        return p, None
    rows = Segments.of(i.z, i.offsets)
    constant = xp.isinf(lse) | xp.isinf(i.beta.hi)
    inside = (p != 0) & ~rows.broadcast(constant)
    distance = only(inside, i.z - rows.broadcast(xp.where(constant, 0.0, lse)))
    of_beta = rows.sum(p * distance) / xp.where(xp.isinf(i.beta.hi), 1.0, i.beta.hi)
    return p, finite_or_zero(of_beta, of_beta)


def _logsumexp_vjp(i: SegmentScores, r: SmoothMaximum, g: SmoothMaximum, wanted: Wanted) -> Gradients:
    p, of_beta = _slopes(i, r.lse, wanted)
    of = SegmentLogSumExpVjp(p, g.lse, i.offsets)
    return {"z": segment_logsumexp_vjp.first(of), "beta": None if of_beta is None else of_beta * g.lse}


def _logsumexp_jvp(i: SegmentScores, r: SmoothMaximum, t: Tangents) -> SmoothMaximum:
    p, of_beta = _slopes(i, r.lse, t.keys())
    xp = namespace(r.lse)
    tangent = Segments.of(i.z, i.offsets).sum(only(p != 0, p * t["z"])) if "z" in t else xp.zeros_like(r.lse)
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
