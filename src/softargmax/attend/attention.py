"""The attention function."""

from __future__ import annotations

from typing import Unpack

from softargmax.attend import operations
from softargmax.attend.check_options import OfAttention, attention_of, plain_attention_of, takes
from softargmax.core._native import heads_at_once
from softargmax.core.types import Array, Vectors


@takes(OfAttention)
def attention(
    q: Vectors,
    k: Vectors,
    v: Vectors,
    **options: Unpack[OfAttention],
) -> Array:
    r"""Return attention: each query's average of the values, weighted by the softmax of its scores.

    .. math::
        S_{ij} = c \tanh\!\left(\frac{s_i \langle q_i, k_j\rangle}{c}\right) + b_{ij} - m \lvert i - j \rvert, \qquad
        o_i = \sum_{j \text{ visible to } i} p_{ij} v_j, \qquad
        p_{ij} = \frac{e^{S_{ij}}}{e^{\mathrm{sink}} + \sum_{j' \text{ visible to } i} e^{S_{ij'}}}

    Parameters
    ----------
    q : array_like, shape (..., H, L, D)
        Queries: H heads of L vectors for each entry of the batch.
    k : array_like, shape (..., G, K, D)
        Keys. G divides H, and H / G consecutive query heads share one head of keys.
    v : array_like, shape (..., G, K, Dv)
        Values. The batch axes of q, k and v broadcast with each other. If one of them has a single head, it broadcasts
        to the heads of the others.
    scale : float or array, optional
        s: a number, or an array that broadcasts with (..., H, L). Defaults to 1 / sqrt(D).
    causal : bool
        If True, a query cannot see keys after its own position. The last query is at the position of the last key, as
        in decoding. (torch's `is_causal` aligns the first query with the first key. For L = K both conventions agree.)
    window : (int or None, int or None), optional
        The number of keys that a query sees before and after its own position. None means no limit.
    mask : array of bool, optional
        True where a query may see a key. Broadcasts with (..., H, L, K).
    bias : array, optional
        b, added to the scores after the soft-cap. Broadcasts with (..., H, L, K). A bias of -inf hides the key.
    slopes : array, optional
        m: a finite number for each head (ALiBi). Broadcasts with (..., H). After the soft-cap, m times the distance
        :math:`\lvert i - j \rvert` between query and key is subtracted from the score. As for `causal`, the last query
        is at the position of the last key. For a key before the query's position, the added term is m (j - i), as in
        the ALiBi paper. Keys after the query's position also have a positive distance.
    softcap : float, optional
        c. If None, scores are not capped.
    sink : array, optional
        An additional score without a value: one number per head, or one number for all heads. A sink of 0 adds 1 to
        the denominator (softmax1). If None, there is no sink.
    alpha : float or array
        The order, above 0, of the entmax that maps the scores and the sink to p. 1 is softmax, 2 is sparsemax. A
        number, or an array that broadcasts with (..., H, L).
    dropout : float
        The probability that an entry of p is dropped, from 0 to below 1. Kept entries are divided by 1 - dropout.
    seed : int or key of jax.random, optional
        The seed of dropout, as in `categorical`. If None, it is drawn from the default generator of q's array library.
    stream : array of int, optional
        An id for each entry of the batch. Defaults to the index of the entry. The dropout of an entry of p depends only
        on the seed, this id, the head, the query and the key.
    key_lengths : array of int, optional
        The number of keys of each entry of the batch. Later keys are not visible.

    Returns
    -------
    array, shape (..., H, L, Dv)
        The output, in q's dtype. It is 0 for a query that sees no key. With D = Dv, a tensor has q's order of the axes
        in memory. So if q is a transposed view, with heads next to the widths, merging heads needs no copy.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype.
    ValueError
        If an argument has the wrong shape or value.

    Notes
    -----
    A query sees a key if causal, window, mask, bias and key_lengths all allow it. If a query does not see a key, NaN or
    inf in that key or its value affects neither the query's output nor its gradients.

    The function computes the scores of a few queries at a time. It never stores the scores of all queries.

    See Also
    --------
    attention_with_lse : also returns the logsumexp of each query's scores.
    entropy_invariant_scale : a scale that depends on the number of keys.
    entmax : the map from scores to p for orders other than 1.

    References
    ----------
    Vaswani et al. (2017), Attention is all you need, section 3.2.1. arXiv:1706.03762.
    Press, Smith & Lewis (2022), Train short, test long, section 3 (slopes). arXiv:2108.12409.
    Correia, Niculae & Martins (2019), Adaptively sparse transformers, section 3 (alpha). arXiv:1909.00015.
    Xiao et al. (2024), Efficient streaming language models with attention sinks, section 3.2. arXiv:2309.17453.

    Examples
    --------
    >>> import numpy as np, softargmax
    >>> q = np.array([[[4.0, 0.0]]])
    >>> k = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    >>> v = np.array([[[10.0], [20.0]]])
    >>> softargmax.attention(q, k, v, scale=1.0).round(2)
    array([[[10.18]]])
    >>> softargmax.attention(q, k, v, scale=1.0, alpha=2.0)
    array([[[10.]]])
    """
    if not options and heads_at_once(q, k, v):
        return operations.attention.now(plain_attention_of(q, k, v))
    return operations.attention.first(attention_of(q, k, v, options))
