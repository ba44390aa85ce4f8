"""Softmax as soft addressing: what a query reads from a memory of keys and values."""

from __future__ import annotations

from typing import Unpack

from softargmax.attend import operations
from softargmax.attend.options import OfAttention, attention_of, plain_attention_of, takes
from softargmax.core._native import heads_at_once
from softargmax.core.types import Array, Vectors


@takes(OfAttention)
def attention(
    q: Vectors,
    k: Vectors,
    v: Vectors,
    **options: Unpack[OfAttention],
) -> Array:
    r"""The values of a memory, averaged by how well their keys match each query.

    .. math::
        S_{ij} = c \tanh\!\left(\frac{s_i \langle q_i, k_j\rangle}{c}\right) + b_{ij} - m \lvert i - j \rvert, \qquad
        o_i = \sum_{j \text{ seen by } i} p_{ij} v_j, \qquad
        p_{ij} = \frac{e^{S_{ij}}}{e^{\mathrm{sink}} + \sum_{j' \text{ seen by } i} e^{S_{ij'}}}

    Parameters
    ----------
    q : array_like, shape (..., H, L, D)
        Queries: of each entry of the batch, H heads of L vectors.
    k : array_like, shape (..., G, K, D)
        Keys; G divides H, and H / G query heads next to each other share a head of keys.
    v : array_like, shape (..., G, K, Dv)
        Values. The axes in front of the heads broadcast between q, k and v, and so does a single head.
    scale : float or array, optional
        s, a number, or an array that broadcasts with (..., H, L); 1 / sqrt(D) without it.
    causal : bool
        Whether a query sees no key behind its own place. The last query stands at the last key, as decoding needs it
        (torch's `is_causal` aligns the first ones, which is the same where L = K).
    window : (int or None, int or None), optional
        How many keys a query sees to the left and to the right of its own place; None: all.
    mask : array of bool, optional
        True where a query sees a key; broadcasts with (..., H, L, K).
    bias : array, optional
        b, added to the scores after the soft-cap; broadcasts with (..., H, L, K). A key with -inf is not seen.
    slopes : array, optional
        m, a finite number for each head: broadcasts with (..., H). After the soft-cap, m times the distance of query
        and key is taken from the score (ALiBi). Here i is the query's place among the keys, as `causal` counts it: the
        last query stands at the last key. For causal queries this is m (j - i), as in the paper; to a key behind the
        query's place the distance is positive, too.
    softcap : float, optional
        c; without it S is the scaled product.
    sink : array, optional
        A score without a value, one number per head, or one for all; 0 is softmax1. Without it there is none.
    alpha : float or array
        1 is softmax; otherwise p is the entmax of that order, above 0, over the keys (and the sink), sparsemax at 2: a
        number, or an array that broadcasts with (..., H, L).
    dropout : float
        The share of p that is dropped, from 0 to below 1; what is kept is divided by 1 - dropout.
    seed : int, optional
        What the draw is made with; without it, one of the library's default generator.
    stream : array of int, optional
        A number of its own for every entry of the batch, by its index without it: what is dropped is a function of the
        seed, that number, the head, the query and the key.
    key_lengths : array of int, optional
        How many keys there are, one per entry of the batch: what stands behind them is not seen.

    Returns
    -------
    array, shape (..., H, L, Dv)
        The output, in q's dtype. Of a query that sees no key it is 0.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong kind or dtype; if it has a wrong shape or value.

    Notes
    -----
    All restrictions combine: a query sees the keys that each of them leaves it. A NaN or an infinity in a key or value
    that it does not see reaches neither its output nor a gradient.

    Scores are never all there at once: they are made a few queries at a time.

    See Also
    --------
    attention_with_lse : also log sum exp of every query's scores.
    entropy_invariant_scale : a scale for contexts of any length.
    entmax : p of any other order than 1.

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
