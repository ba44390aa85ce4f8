"""Attention that also returns lse, the logarithm of its denominator."""

from __future__ import annotations

from typing import Unpack

from softargmax.attend import operations
from softargmax.attend.check_options import OfSoftmax, attention_of, takes
from softargmax.attend.results import AttentionWithLse
from softargmax.core.arrays import namespace, row_dtype
from softargmax.core.types import Vectors


@takes(OfSoftmax)
def attention_with_lse(
    q: Vectors,
    k: Vectors,
    v: Vectors,
    **options: Unpack[OfSoftmax],
) -> AttentionWithLse:
    r"""Return attention and the logsumexp of each query's scores.

    .. math:: \mathrm{lse}_i = \log\left(e^{\mathrm{sink}} + \sum_{j \text{ visible to } i} e^{S_{ij}}\right)

    Parameters
    ----------
    q, k, v : array_like
        Queries, keys and values, as in `attention`.
    scale, causal, window, mask, bias, slopes, softcap, sink, dropout, seed, stream, key_lengths
        As in `attention`. There is no `alpha`: orders other than 1 have no lse. Dropout does not affect lse.

    Returns
    -------
    AttentionWithLse
        output, as `attention` returns it, and lse, of shape (..., H, L). lse has q's dtype, or float32 if q has half
        precision. Without a sink, lse is -inf for a query that sees no key.

    Raises
    ------
    TypeError, ValueError
        As for `attention`.

    Notes
    -----
    Both results are differentiable. From lse you can recompute p, or merge attention over parts of the keys.

    See Also
    --------
    attention : only the output.
    State : merges attention over parts of the keys.

    References
    ----------
    Dao et al. (2022), FlashAttention, section 3.1. arXiv:2205.14135.

    Examples
    --------
    >>> import numpy as np, softargmax
    >>> q, k = np.array([[[1.0, 0.0]]]), np.array([[[1.0, 0.0], [0.0, 1.0]]])
    >>> softargmax.attention_with_lse(q, k, k, scale=1.0).lse.round(4)
    array([[1.3133]])
    """
    i = attention_of(q, k, v, options)
    output, lse = operations.attention(i)
    return AttentionWithLse(output, namespace(lse).astype(lse, row_dtype(i.q.dtype)))
