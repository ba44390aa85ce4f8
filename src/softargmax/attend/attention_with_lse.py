"""Attention with the logarithm of its denominator, by which parts of the keys are merged."""

from __future__ import annotations

from typing import Unpack

from softargmax.attend import operations
from softargmax.attend.options import OfSoftmax, attention_of, takes
from softargmax.attend.results import AttentionWithLse
from softargmax.core import check
from softargmax.core.arrays import namespace
from softargmax.core.types import Vectors


@takes(OfSoftmax)
def attention_with_lse(
    q: Vectors,
    k: Vectors,
    v: Vectors,
    **options: Unpack[OfSoftmax],
) -> AttentionWithLse:
    r"""Attention, and log sum exp of every query's scores, from which p can be had again.

    .. math:: \mathrm{lse}_i = \log\left(e^{\mathrm{sink}} + \sum_{j \text{ seen by } i} e^{S_{ij}}\right)

    Parameters
    ----------
    q, k, v : array_like
        Queries, keys and values as in `attention`.
    scale, causal, window, mask, bias, slopes, softcap, sink, dropout, seed, stream, key_lengths
        As in `attention`; its `alpha` is 1 here, as other orders have no lse. Nothing is dropped from lse.

    Returns
    -------
    AttentionWithLse
        output as `attention` has it, and lse of shape (..., H, L), float32 for half inputs, else in q's dtype: -inf
        where no key is seen, and there is no sink.

    Raises
    ------
    TypeError, ValueError
        As `attention`.

    Notes
    -----
    Gradients flow through both results.

    See Also
    --------
    attention : the output alone.
    State : what attention over parts of the keys is merged by.

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
    return AttentionWithLse(output, namespace(lse).astype(lse, check.row_dtype(None, i.q)))
