"""Mergeable states of attention, and statistics of p."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Unpack

from softargmax.attend import operations
from softargmax.attend.check_options import OfParts, OfStats, attention_of, takes
from softargmax.attend.reference import cached_parts, weights
from softargmax.attend.results import AttentionStats
from softargmax.core.arrays import namespace, row_dtype
from softargmax.core.state import State
from softargmax.core.types import Vectors

if TYPE_CHECKING:
    from softargmax.attend.arguments import Attention


@takes(OfParts)
def attention_state(
    q: Vectors,
    k: Vectors,
    v: Vectors,
    **options: Unpack[OfParts],
) -> State:
    r"""Return the state of attention over a part of the keys. The states of all parts merge to the state of all keys.

    .. math:: m = \mathrm{lse}, \qquad r = 0, \qquad o = \frac{\sum_j e^{S_j} v_j}{\sum_j e^{S_j}}

    Parameters
    ----------
    q, k, v : array_like
        Queries, and a part of the keys and values, as in `attention`.
    scale, causal, window, mask, bias, slopes, softcap, key_lengths
        As in `attention`, for this part of the keys. The last query is at the position of the part's last key. There
        is no `sink`. To add a sink, merge with a `State` of a single score, the sink, whose value is a vector of zeros.
        There is no `alpha`, because orders other than 1 have no state.

    Returns
    -------
    State
        One state per query, with rows of shape (..., H, L) and values of width Dv. The dtype is that of q, or float32
        if q has half precision.

    Raises
    ------
    TypeError, ValueError
        As for `attention`.

    Notes
    -----
    A state subtracts m from all scores. Usually m is the largest score, but any m is valid. Here m is lse, so the sum l
    of exponentials is 1, and the field r = l - 1 is 0. A query that sees no key has the empty state.

    See Also
    --------
    State.merge : merges the states of two parts; `finalize` returns output and lse.
    attention_with_lse : output and lse of all keys in one call.

    References
    ----------
    Dao et al. (2023), Flash-Decoding for long-context inference. https://crfm.stanford.edu/2023/10/12/flashdecoding.html

    Examples
    --------
    >>> import numpy as np, softargmax
    >>> q, k, v = np.ones((1, 1, 2)), np.arange(8.0).reshape(1, 4, 2), np.arange(4.0).reshape(1, 4, 1)
    >>> parts = [softargmax.attention_state(q, k[:, i : i + 2], v[:, i : i + 2]) for i in (0, 2)]
    >>> parts[0].merge(parts[1]).finalize().output.round(12) == softargmax.attention(q, k, v).round(12)
    array([[[ True]]])
    """
    i = attention_of(q, k, v, options)
    xp, kind = namespace(i.q), row_dtype(i.q.dtype)
    q, k, v = (xp.astype(x, kind, copy=False) for x in i[:3])
    output, lse = operations.attention(i._replace(q=q, k=k, v=v))
    lse = xp.astype(lse, kind)
    return State(lse, xp.where(lse == -math.inf, -1.0, xp.zeros_like(lse)), output)


@takes(OfStats)
def attention_stats(
    q: Vectors,
    k: Vectors,
    **options: Unpack[OfStats],
) -> AttentionStats:
    r"""Return the largest score and the entropy of each query, and the sum of p for each key, without storing scores.

    .. math:: \max_j S_{ij}, \qquad H_i = -\sum_j p_{ij} \log p_{ij}, \qquad M_j = \sum_i p_{ij}

    Parameters
    ----------
    q, k : array_like
        Queries (..., H, L, D) and keys (..., G, K, D), as in `attention`.
    scale, causal, window, mask, bias, slopes, softcap, sink, alpha, key_lengths
        As in `attention`.

    Returns
    -------
    AttentionStats
        max_score and entropy (in nats), of shape (..., H, L), and key_mass, of shape (..., G, K). They have q's dtype,
        or float32 if q has half precision. A query that sees no key has max_score -inf and entropy 0, and adds 0 to
        key_mass. The entropy includes the probability of a sink, but key_mass does not.

    Raises
    ------
    TypeError, ValueError
        As for `attention`.

    Notes
    -----
    The function processes a few queries at a time.

    See Also
    --------
    attention : the output.
    entropy : the entropy of the softmax of any scores.

    References
    ----------
    Zhai et al. (2023), Stabilizing transformer training by preventing attention entropy collapse. arXiv:2303.06296.
    Zhang et al. (2023), H2O: heavy-hitter oracle, section 4 (sums of p by key). arXiv:2306.14048.

    Examples
    --------
    >>> import numpy as np, softargmax
    >>> q, k = np.array([[[1.0], [4.0]]]), np.array([[[1.0], [2.0]]])
    >>> found = softargmax.attention_stats(q, k, scale=1.0)
    >>> found.max_score, found.entropy.round(3), found.key_mass.round(3)
    (array([[2., 8.]]), array([[0.582, 0.09 ]]), array([[0.287, 1.713]]))
    """
    i = attention_of(q, k, k, options)
    xp, length = namespace(i.q), i.q.shape[-2]
    found = [_stats(i.part(part), part.start, length) for part in cached_parts(i)]
    tops, entropies, masses = zip(*found, strict=True)
    whole = xp.concat(tops, axis=-1), xp.concat(entropies, axis=-1), sum(masses[1:], masses[0])
    return AttentionStats(*(xp.astype(x, row_dtype(i.q.dtype)) for x in whole))


def _stats(i: Attention, start: int, length: int) -> tuple[Any, Any, Any]:
    """Return max_score, entropy and key_mass for a part of the queries, in working precision."""
    z, p, whole = weights(i, start, length)
    xp = namespace(z)
    top = xp.max(z, axis=-1) if z.shape[-1] else xp.sum(z, axis=-1) - math.inf
    *leading, groups, keys, _ = i.k.shape
    mass = (
        xp.sum(xp.reshape(p, (*leading, groups, math.prod(p.shape[-3:-1]) // groups, keys)), axis=-2)
        if groups
        else xp.sum(p, axis=-2)
    )
    inside = whole > 0.0
    return top, -xp.sum(xp.where(inside, whole * xp.log(xp.where(inside, whole, 1.0)), 0.0), axis=-1), mass
