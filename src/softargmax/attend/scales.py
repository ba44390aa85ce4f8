"""Score scales that depend on the number of keys, and normalization of queries and keys."""

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
    """Result of `qk_norm`: normalized queries and keys."""

    q: Array
    k: Array


@public
def entropy_invariant_scale(n: Integers, d: int, /, kappa: PerRow = 1.0) -> Array:
    r"""Return a scale for attention scores that keeps the entropy of p about the same for any number of keys.

    .. math:: s = \frac{\kappa \log n}{d}

    Parameters
    ----------
    n : int or array of int
        The number of keys that a query sees: a number, or an array, such as 1 to L for causal queries. 0 counts as 1.
    d : int
        D, the width of queries and keys.
    kappa : float or array
        A factor, which may be learned. With one kappa per head, of shape (H, 1), and n of shape (L,), the scale is that
        of Scalable-Softmax (Nakanishi).

    Returns
    -------
    float or array
        s, for the option `scale` of `attention`. A float if n and kappa are numbers, otherwise an array of the shape to
        which n and kappa broadcast. The array belongs to kappa's library, or to n's library if kappa is a number.

    Raises
    ------
    TypeError
        If n or d is not an integer.
    ValueError
        If n is below 0 or d is below 1.

    Notes
    -----
    The scale follows from :math:`H \approx \log n - s\,(\max \ell - \bar\ell)` for the entropy H of p and the
    products :math:`\ell = \langle q, k\rangle`, which grow with d. This is dimensional analysis, not an identity. With
    kappa = sqrt(d) / log N the scale is 1 / sqrt(d) for n = N.

    See Also
    --------
    attention : takes the result as `scale`.

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
        raise ValueError("n: expected integers, 0 or above, got a negative number")
    dtype = working_dtype(like, xp) if isinstance(kappa, Real) else like.dtype
    log = xp.log(xp.astype(xp.where(count < 1, 1, count), dtype))
    found = (kappa if isinstance(kappa, Real) else like) * log / d
    return float(found) if numbers else as_number(found)


@public
def qk_norm(q: Vectors, k: Vectors, *, gain: Numbers = 1.0, eps: float = 1e-6) -> NormalizedQK:
    r"""Return queries and keys divided by their root mean squares, so that scores are bounded.

    .. math::
        q \to g \odot \hat q, \qquad k \to \hat k, \qquad \hat x = \frac{x}{\sqrt{\frac 1D \sum_d x_d^2 + \epsilon}}

    Parameters
    ----------
    q, k : array_like, shape (..., D)
        Queries and keys of the same width D.
    gain : float or array
        g: a number, or an array that broadcasts with q, for example of shape (D,), or (H, 1, D) for one gain per head.
        It may be learned. Only q is multiplied by g. A second gain for k would only rescale g in the product q k.
    eps : float
        :math:`\epsilon`, 0 or above, added to the mean square.

    Returns
    -------
    NormalizedQK
        q and k in their own shapes and dtypes.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype.
    ValueError
        If an argument has the wrong shape, or eps is negative.

    Notes
    -----
    Each normalized vector has the length sqrt(D). So with attention's default scale, 1 / sqrt(D), scores are at most
    g sqrt(D) in magnitude. With gain = g / D and scale 1, scores are g times the cosine. This is L2 normalization with
    a learned g. A vector of zeros stays 0, even for eps = 0.

    See Also
    --------
    attention : takes the normalized queries and keys.

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
    return NormalizedQK(_normalized(q, gain, eps), _normalized(k, 1.0, eps))


@np.errstate(invalid="ignore")
def _normalized(x: Any, gain: Any, eps: float) -> Any:
    """Normalize one array in working precision, so that squares of float32 numbers do not overflow."""
    xp = namespace(x)
    wide = xp.astype(x, working_dtype(x, xp), copy=False)
    size = xp.mean(wide * wide, axis=-1, keepdims=True) + eps
    found = wide / xp.sqrt(xp.where(size == 0.0, 1.0, size))
    return xp.astype(found * gain, x.dtype)
