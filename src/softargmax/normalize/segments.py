"""softmax, log_softmax and logsumexp of ragged rows: segments of one long axis, such as graphs or packed sequences."""

from __future__ import annotations

import math
from typing import Any

from softargmax.core import check
from softargmax.core.arrays import device_of, namespace
from softargmax.core.offsets import segments_of
from softargmax.core.signature import public
from softargmax.core.types import Array, Integers, Logits, Mask, PerRow
from softargmax.normalize import segment_operations as operations
from softargmax.normalize.segment_operations import SegmentScores


@public
def segment_softmax(
    z: Logits,
    /,
    offsets: Integers | None = None,
    *,
    index: Integers | None = None,
    num_segments: int | None = None,
    temperature: PerRow = 1.0,
    where: Mask | None = None,
) -> Array:
    r"""Return the softmax of each segment of z's first axis.

    .. math:: p_i = \frac{e^{z_i / T}}{\sum_{j \in I} e^{z_j / T}}, \qquad
              I = \{o_s, \dots, o_{s+1} - 1\} \ni i \quad\text{or}\quad I = \{j : s_j = s_i\}

    I is the set of positions in the segment of i. o_s is entry s of `offsets`, and s_j is entry j of `index`.

    Parameters
    ----------
    z : array_like, shape (N, ...)
        Scores, any array library. Each index of the other axes (for example heads) has separate rows.
    offsets : array of int, shape (S + 1,)
        The bounds of the segments: non-decreasing, from 0 to N. A segment may be empty.
    index : array of int, shape (N,)
        The segment number of each score, from 0 to S - 1, in any order. Pass either `index` or `offsets`.
    num_segments : int, optional
        S, the number of segments, for use with `index`. Defaults to the largest index plus 1. The call must then read
        the largest index, so it waits for the device. Required under tracing.
    temperature : float or array
        T as in `softmax`. An array broadcasts with (S, ...). For scores of shape (N, H), an array of shape (S, 1) has
        one temperature per segment, and an array of shape (H,) one per head.
    where : array of bool, optional
        True for the scores in the support, as in `softmax`.

    Returns
    -------
    array
        p, of z's shape and dtype.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If offsets decrease or do not run from 0 to N, or another argument has a wrong shape or value.

    Notes
    -----
    Each segment is a row. Its edge cases and gradient are as in `softmax`. On a device or under tracing the values of
    offsets and index are not checked. Wrong values give NaN.

    If `index` is not sorted, the scores are first sorted by `index`, with a stable sort. The result is returned in the
    caller's order. It has the same bits as the result for the sorted scores with their offsets. Passing offsets avoids
    the sort.

    References
    ----------
    Velickovic et al. (2018), Graph attention networks, section 2.1: a softmax over each node's neighbours.
    arXiv:1710.10903.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.segment_softmax([1.0, 2.0, 5.0, 5.0, 5.0], [0, 2, 2, 4, 5]).round(3)
    array([0.269, 0.731, 0.5  , 0.5  , 1.   ])
    >>> softargmax.segment_softmax([5.0, 1.0, 5.0, 2.0, 5.0], index=[2, 0, 2, 0, 3]).round(3)
    array([0.5  , 0.269, 0.5  , 0.731, 1.   ])
    """
    rows, order = _checked(z, offsets, index, num_segments, temperature, where)
    return _unsorted(operations.segment_softmax.first(rows), order)


@public
def segment_log_softmax(
    z: Logits,
    /,
    offsets: Integers | None = None,
    *,
    index: Integers | None = None,
    num_segments: int | None = None,
    temperature: PerRow = 1.0,
    where: Mask | None = None,
) -> Array:
    r"""Return the natural logarithm of `segment_softmax`, computed without the softmax itself.

    .. math:: \log p_i = z_i / T - \log \sum_{j \in I} e^{z_j / T}

    I is the set of positions in the segment of i.

    Parameters
    ----------
    z, offsets, index, num_segments, temperature, where
        As in `segment_softmax`.

    Returns
    -------
    array
        log p, of z's shape and dtype. Entries are at most 0.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If offsets decrease or do not run from 0 to N, or another argument has a wrong shape or value.

    Notes
    -----
    Each segment is a row. Its edge cases and gradient are as in `log_softmax`.

    References
    ----------
    Blanchard, Higham & Higham (2021), Accurately computing the log-sum-exp and softmax functions.
    IMA Journal of Numerical Analysis 41. https://doi.org/10.1093/imanum/draa038

    Examples
    --------
    >>> import softargmax
    >>> softargmax.segment_log_softmax([1.0, 2.0, 5.0, 5.0, 5.0], [0, 2, 2, 4, 5]).round(3)
    array([-1.313, -0.313, -0.693, -0.693,  0.   ])
    """
    rows, order = _checked(z, offsets, index, num_segments, temperature, where)
    return _unsorted(operations.segment_log_softmax.first(rows), order)


@public
def segment_logsumexp(
    z: Logits,
    /,
    offsets: Integers | None = None,
    *,
    index: Integers | None = None,
    num_segments: int | None = None,
    temperature: PerRow = 1.0,
    where: Mask | None = None,
) -> Array:
    r"""Return the smooth maximum of each segment of z's first axis.

    .. math:: T \log \sum_{j \in I} e^{z_j / T}

    I is the set of positions in the segment. The result is T times the logarithm of the denominator of
    `segment_softmax`. Like the result of `logsumexp`, it has the unit of the scores.

    Parameters
    ----------
    z, offsets, index, num_segments, temperature, where
        As in `segment_softmax`.

    Returns
    -------
    array, shape (S, ...)
        One number per segment, for each index of the other axes. float32 for half-precision scores.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If offsets decrease or do not run from 0 to N, or another argument has a wrong shape or value.

    Notes
    -----
    Each segment is a row. Its edge cases and gradient are as in `logsumexp`. An empty segment gives -inf.

    References
    ----------
    Blanchard, Higham & Higham (2021), Accurately computing the log-sum-exp and softmax functions.
    IMA Journal of Numerical Analysis 41. https://doi.org/10.1093/imanum/draa038

    Examples
    --------
    >>> import softargmax
    >>> softargmax.segment_logsumexp([1.0, 2.0, 5.0, 5.0, 5.0], [0, 2, 2, 4, 5]).round(3)
    array([2.313,  -inf, 5.693, 5.   ])
    """
    rows, _ = _checked(z, offsets, index, num_segments, temperature, where)
    return operations.segment_logsumexp.first(rows)


def _checked(
    z: Any, offsets: Any, index: Any, num_segments: Any, temperature: Any, where: Any
) -> tuple[SegmentScores, Any]:
    """Return the arguments with the scores sorted by segment, and the sorting order (None if already sorted)."""
    z = check.scores(z)
    where = check.optional_mask(where, z)
    offsets, order = segments_of(offsets, index, num_segments, z)
    xp = namespace(z)
    segments = xp.empty((offsets.shape[0] - 1, *z.shape[1:]), dtype=z.dtype, device=device_of(z))
    scale = check.scale_of(temperature, None, segments, (), rows="the segments")
    if where is not None:
        where = xp.broadcast_to(where, z.shape)
    if order is not None:
        z, where = (None if x is None else xp.take(x, order, axis=0) for x in (z, where))
    rows = SegmentScores(z, offsets, scale, z.dtype)
    return rows if where is None else rows._replace(z=_masked(rows, where)), order


def _masked(rows: SegmentScores, where: Any) -> Any:
    """Return the scores, with masked scores moved outside the support: to -inf, or to +inf if beta < 0."""
    xp, hi = namespace(rows.z), rows.beta.hi
    if isinstance(hi, float):
        return xp.where(where, rows.z, math.inf if hi < 0.0 else -math.inf)
    segments = operations.Segments.of(rows.z, rows.offsets)
    below = segments.broadcast(xp.where(hi < 0.0, xp.full_like(hi, math.inf), -math.inf))
    return xp.where(where, rows.z, xp.astype(below, rows.z.dtype))


def _unsorted(x: Any, order: Any) -> Any:
    """Undo the sort: return x in the order of the caller's scores."""
    return x if order is None else namespace(x).take(x, namespace(order).argsort(order), axis=0)
