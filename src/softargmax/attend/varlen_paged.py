"""Attention for sequences of different lengths: packed sequences, and caches in pages."""

from __future__ import annotations

from typing import Any, Unpack

from softargmax.attend import operations
from softargmax.attend.arguments import Packed
from softargmax.attend.check_options import OfSequences, attention_of, pages_of, takes
from softargmax.core import arrays, check
from softargmax.core.arrays import namespace
from softargmax.core.offsets import bounds_hold, offsets_of
from softargmax.core.types import Array, Integers, Vectors


@takes(OfSequences)
def attention_varlen(
    q: Vectors,
    k: Vectors,
    v: Vectors,
    cu_q: Integers,
    cu_k: Integers,
    **options: Unpack[OfSequences],
) -> Array:
    r"""Return attention for packed sequences, which are stored one after another without padding.

    .. math::
        o_{a_s \ldots a_{s+1} - 1} = \mathrm{attention}\left(
            q_{a_s \ldots a_{s+1} - 1},\; k_{b_s \ldots b_{s+1} - 1},\; v_{b_s \ldots b_{s+1} - 1}\right)

    Parameters
    ----------
    q : array_like, shape (N, H, D)
        Queries of all sequences.
    k : array_like, shape (M, G, D)
        Keys of all sequences. G divides H.
    v : array_like, shape (M, G, Dv)
        Values of all sequences.
    cu_q, cu_k : array of int, shape (S + 1,)
        a and b. Sequence s has the queries a_s to a_{s+1} - 1 and the keys b_s to b_{s+1} - 1. a and b are
        nondecreasing. a runs from 0 to N, b from 0 to M.
    scale, alpha : float or array, optional
        As in `attention`. An array broadcasts with (H, N).
    causal, window, softcap, slopes, sink
        As in `attention`, for each sequence separately.

    Returns
    -------
    array, shape (N, H, Dv)
        The output, in q's dtype. The output of each sequence has the same bits as `attention` of that sequence alone.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype.
    ValueError
        If an argument has the wrong shape or value.

    Notes
    -----
    In CPU memory the function reads the values of the offsets, so `jax.jit` and `torch.compile` cannot trace it. On a
    GPU, the kernels compute the output of a sequence with at most 16 queries in the order of sums for more queries.

    See Also
    --------
    attention : for sequences of equal length, or padded sequences (`key_lengths`).
    attention_paged : for a cache in pages.

    References
    ----------
    Dao (2023), FlashAttention-2, section 3. arXiv:2307.08691.

    Examples
    --------
    >>> import numpy as np, softargmax
    >>> x = np.arange(6.0).reshape(6, 1, 1)
    >>> softargmax.attention_varlen(x, x, x, [0, 2, 6], [0, 2, 6], causal=True)[:, 0, 0].round(2)
    array([0.  , 0.73, 2.  , 2.95, 3.98, 4.99])
    """
    q = check.scores(q, "q")
    if q.ndim != 3:
        raise ValueError(f"q: expected shape (queries, heads, width), got {tuple(q.shape)}")
    k, v = (arrays.like(x, q, name) for x, name in ((k, "k"), (v, "v")))
    for x, name in ((k, "k"), (v, "v")):
        if x.ndim != 3:
            raise ValueError(f"{name}: expected shape (keys, heads, width), got {tuple(x.shape)}")
    cu_q, cu_k = _bounds(cu_q, q, "cu_q", "q"), _bounds(cu_k, k, "cu_k", "k")
    if cu_q.shape != cu_k.shape:
        raise ValueError(f"cu_k: expected {cu_q.shape[0]} bounds, as in cu_q, got {cu_k.shape[0]}")
    xp = namespace(q)
    q, k, v = (xp.permute_dims(x, (1, 0, 2)) for x in (q, k, v))
    whole = attention_of(q, k, v, options)
    return xp.permute_dims(operations.attention_varlen.first(Packed(whole, cu_q, cu_k)), (1, 0, 2))


def _bounds(offsets: Any, x: Any, name: str, of: str) -> Any:
    """Check the offsets. Their values are checked if they can be read."""
    offsets = offsets_of(offsets, x, name, of)
    bounds_hold(offsets, x, name, of)
    if offsets.shape[0] == 1 and x.shape[0]:
        raise ValueError(f"{name}: expected bounds from 0 to {x.shape[0]}, the length of {of}, got no sequences")
    return offsets


@takes(OfSequences)
def attention_paged(
    q: Vectors,
    k_pages: Vectors,
    v_pages: Vectors,
    page_table: Integers,
    lengths: Integers,
    **options: Unpack[OfSequences],
) -> Array:
    r"""Return attention to keys and values in pages. Key j of a batch entry is in the entry's page number j // P.

    .. math:: k_{ej} = \mathrm{k\_pages}_{t,\; j \bmod P}, \qquad t = \mathrm{page\_table}_{e,\; \lfloor j / P \rfloor}

    Parameters
    ----------
    q : array_like, shape (B, H, L, D)
        Queries. The last query is at the position of the entry's last key.
    k_pages : array_like, shape (pages, P, G, D)
        Pages of P keys. G divides H.
    v_pages : array_like, shape (pages, P, G, Dv)
        Pages of P values.
    page_table : array of int, shape (B, pages of an entry)
        t: the indices of each entry's pages. Indices of pages beyond an entry's length are ignored.
    lengths : array of int, shape (B,)
        The number of keys of each entry.
    scale, causal, window, softcap, slopes, sink, alpha
        As in `attention`.

    Returns
    -------
    array, shape (B, H, L, Dv)
        The output, in q's dtype. It has the same bits as `attention` of the same keys in one array.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype.
    ValueError
        If an argument has the wrong shape or value.
    IndexError
        If an index in `page_table` is out of range.

    Notes
    -----
    The kernel reads the pages in place. For derivatives, and for orders other than 1 (on a GPU: other than 1, 1.5 and
    2), the pages are first copied into one array.

    See Also
    --------
    attention : for keys in one array.
    attention_varlen : for packed sequences.

    References
    ----------
    Kwon et al. (2023), Efficient memory management for large language model serving with PagedAttention, section 4.1.
    arXiv:2309.06180.

    Examples
    --------
    >>> import numpy as np, softargmax
    >>> pages = np.arange(8.0).reshape(4, 2, 1, 1)  # keys 0 and 1, 2 and 3, ..
    >>> softargmax.attention_paged(np.zeros((1, 1, 1, 1)), pages, pages, [[3, 0]], [3])  # keys 6, 7 and 0
    array([[[[4.33333333]]]])
    """
    return operations.attention_paged.first(pages_of(q, k_pages, v_pages, page_table, lengths, options))
