"""How large scores are made: scales that know the number of keys, and vectors of one length."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from softargmax.core import arrays, check
from softargmax.core.arrays import as_number, namespace, working_dtype
from softargmax.core.check import between, integer
from softargmax.core.signature import public
from softargmax.core.types import Array, Integers, Numbers, PerRow, Vectors, of_arrays


@of_arrays
class NormalizedQK(NamedTuple):
    """Queries and keys of one length each."""

    q: Array
    k: Array


@public
def entropy_invariant_scale(n: Integers, d: int, /, kappa: PerRow = 1.0) -> Array:
    r"""A scale of attention's scores that keeps the entropy of p about the same for any number of keys.

    .. math:: s = \frac{\kappa \log n}{d}

    Parameters
    ----------
    n : int or array of int
        How many keys a query sees: a number, or an array, of causal queries 1 to L say. 0 counts as 1.
    d : int
        D, the width of queries and keys.
    kappa : float or array
        A factor, learnable: one per head, (H, 1) beside n of (L,), is SSMax.

    Returns
    -------
    float or array
        s, to be given as `scale`: a float for two numbers, else an array of the shape n and kappa broadcast to, of
        kappa's kind if that is an array, else n's.

    Raises
    ------
    TypeError, ValueError
        If n or d is no whole number, or below its least.

    Notes
    -----
    From :math:`H \approx \log n - s\,(\max \ell - \bar\ell)` for products :math:`\ell = \langle q, k\rangle`, which
    grow with d: analysis of dimensions, not an identity. With kappa = sqrt(d) / log N it is 1 / sqrt(d) where n = N.

    See Also
    --------
    attention : takes it as `scale`.

    References
    ----------
    Su (2022), A quick derivation of entropy-invariant softmax. https://spaces.ac.cn/archives/9034.
    Nakanishi (2025), Scalable-softmax is superior for attention. arXiv:2501.19399.

    Examples
    --------
    >>> import numpy as np, softargmax
    >>> round(softargmax.entropy_invariant_scale(512, 64, kappa=1.3), 4)
    0.1267
    >>> softargmax.entropy_invariant_scale(np.arange(1, 4), 2).round(4)
    array([0.    , 0.3466, 0.5493])
    """
    d = integer(d, "d")
    if d < 1:
        raise ValueError(f"d: expected an integer, 1 or above, got {d}")
    numbers = isinstance(n, Real) and isinstance(kappa, Real)
    like = arrays.array_of(n if isinstance(kappa, Real) else kappa, "kappa")
    count = arrays.like(n, like, "n")
    if arrays.dtype_name(count.dtype) not in arrays.INTEGERS - {"bool"}:
        raise TypeError(f"n: expected integers, got dtype {count.dtype}")
    xp = namespace(count)
    if check.inspectable(count) and bool(xp.any(count < 0)):
        raise ValueError("n: expected 0 or above, got some below 0")
    dtype = working_dtype(like, xp) if isinstance(kappa, Real) else like.dtype
    log = xp.log(xp.astype(xp.where(count < 1, 1, count), dtype))
    found = (kappa if isinstance(kappa, Real) else like) * log / d
    return float(found) if numbers else as_number(found)


@public
def qk_norm(q: Vectors, k: Vectors, *, gain: Numbers = 1.0, eps: float = 1e-6) -> NormalizedQK:
    r"""Queries and keys divided by their root mean square, so that no score is beyond its scale.

    .. math::
        q \to g \odot \hat q, \qquad k \to \hat k, \qquad \hat x = \frac{x}{\sqrt{\frac 1D \sum_d x_d^2 + \epsilon}}

    Parameters
    ----------
    q, k : array_like, shape (..., D)
        Queries and keys of one width.
    gain : float or array
        g, a number or an array that broadcasts with q, learnable: of shape (D,), or (H, 1, D) for each head. What two
        gains do to a product, theirs does.
    eps : float
        What keeps a vector of zeros from being divided by 0; 0 or above.

    Returns
    -------
    NormalizedQK
        q and k in their own shapes and dtypes.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong kind, dtype or shape; if eps is negative.

    Notes
    -----
    Each has the length sqrt(D), so that attention's own scale, 1 / sqrt(D), gives scores of up to g sqrt(D). With
    gain = g / D and scale 1 they are g times the cosine: L2 normalisation with a learnable g. A vector of zeros stays
    one.

    See Also
    --------
    attention : what they are for.

    References
    ----------
    Henry et al. (2020), Query-key normalization for transformers, section 3. arXiv:2010.04245.
    Dehghani et al. (2023), Scaling vision transformers to 22 billion parameters, section 2. arXiv:2302.05442.

    Examples
    --------
    >>> import numpy as np, softargmax
    >>> q, k = softargmax.qk_norm(np.array([3.0, 4.0]), np.array([0.0, 5.0]))
    >>> round(float(q @ k) / 2, 4)  # the cosine
    0.8
    """
    q = check.scores(q, "q")
    k = check.scores(arrays.like(k, q, "k"), "k")
    if not q.ndim or not k.ndim or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"k: expected the width of q, which has shape {tuple(q.shape)}, got shape {tuple(k.shape)}")
    eps = between(eps, "eps", math.inf)
    if not isinstance(gain, Real):
        gain = check.scores(arrays.like(gain, q, "gain"), "gain")
        if not check.broadcasts(tuple(gain.shape), tuple(q.shape)):
            raise ValueError(
                f"gain: expected a shape that broadcasts to q's, {tuple(q.shape)}, got {tuple(gain.shape)}"
            )
    return NormalizedQK(_of_one_length(q, gain, eps), _of_one_length(k, 1.0, eps))


@np.errstate(invalid="ignore")
def _of_one_length(x: Any, gain: Any, eps: float) -> Any:
    """In working precision, in which no square of a float32 is beyond the range."""
    xp = namespace(x)
    wide = xp.astype(x, working_dtype(x, xp), copy=False)
    size = xp.mean(wide * wide, axis=-1, keepdims=True) + eps
    found = wide / xp.sqrt(xp.where(size == 0.0, 1.0, size))
    return xp.astype(found * gain, x.dtype)
