"""The temperature that minimises the log-loss of scores, for any array library."""

from __future__ import annotations

from typing import Any

import numpy as np

from softargmax.core import check
from softargmax.core.arrays import device_of, is_torch, namespace, row_dtype
from softargmax.core.targets import IGNORE, target_of
from softargmax.normalize import softmax

STEPS = 60
"""Maximum number of steps. If every step is a bisection, this many resolve log beta to the last digit."""
LEAST, MOST = -20.0, 40.0
"""Bounds of log beta, for scores scaled such that the largest finite abs(z - z_y) is 1. z_y is the target's score."""


def fit_temperature(z: Any, target: Any, *, weight: Any = None) -> Any:
    r"""Return the temperature that minimises the log-loss of scores.

    .. math:: \hat\beta = \arg\min_{\beta} \sum_i w_i \left(\log \sum_k e^{\beta z_{ik}} - \beta z_{i y_i}\right),
        \qquad T = 1 / \hat\beta

    Parameters
    ----------
    z : array_like
        Scores, shape (n, K), of any array library.
    target : array_like
        Classes, integers, shape (n,); rows with -100 are ignored.
    weight : array_like, optional
        w, the weight of every row, shape (n,), at least 0.

    Returns
    -------
    array
        T, 0-d, in the library, device and dtype of z (float32 for half precision).

    Raises
    ------
    IndexError
        If a target is out of range.
    TypeError, ValueError
        If an argument has a wrong type or shape.

    Notes
    -----
    The loss is convex in :math:`\beta`. Its derivative is the mean of :math:`\langle p, z \rangle - z_y`. Its second
    derivative is the mean of the variance of z under p. Each step shrinks an interval around :math:`\hat\beta`. A
    Newton step that leaves the interval is replaced by bisection. Nothing is copied from a device to the host.

    If the scores are worse than chance, T is so large that the softmax is uniform. If every row is classified
    correctly, both T and the loss tend to 0. If a score is NaN, or no row has a weight above 0, T is NaN.

    Gradient: none with respect to z.

    References
    ----------
    Guo, Pleiss, Sun & Weinberger (2017), On calibration of modern neural networks, section 4.2. ICML. arXiv:1706.04599.

    Examples
    --------
    >>> import numpy as np
    >>> from softargmax.classify import fit_temperature
    >>> z = np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    >>> float(fit_temperature(z, [0, 0, 1, 1]))  # confident in four rows, right in three: p = 3/4
    3.640...
    """
    z = check.scores(z)
    if z.ndim != 2:
        raise ValueError(f"z: expected shape (n, K), got {tuple(z.shape)}")
    xp = namespace(z)
    z = xp.astype(z.detach() if is_torch(z) else z, row_dtype(z.dtype), copy=False)
    target, soft = target_of(target, z, tuple(z.shape), 1, IGNORE, "target")
    if soft:
        raise TypeError("target: expected classes, got probabilities")
    target = xp.expand_dims(target, axis=1)
    counted = target != IGNORE
    z = xp.where(counted, z, 0.0)
    w = xp.astype(counted, z.dtype)
    if weight is not None:
        weight = check.weights_of(weight, z[:, 0], "weight")
        w = w * xp.astype(xp.broadcast_to(weight, (z.shape[0],)), z.dtype)[:, None]
    own = target == xp.arange(z.shape[1], device=device_of(z))
    margins = z - xp.sum(xp.where(own, z, 0.0), axis=-1, keepdims=True)
    margins = xp.where(counted, margins, 0.0)
    size = xp.max(xp.where(xp.isfinite(margins), xp.abs(margins), 0.0)) if z.shape[0] * z.shape[1] else xp.sum(z)
    size = xp.where(size > 0.0, size, 1.0)
    total = xp.sum(w) + xp.sum(xp.where(xp.isnan(margins) & ~xp.isinf(z), margins, 0.0))
    return xp.where(total > 0.0, size * xp.exp(-_log_beta(z, margins / size, w, size)), xp.nan)


def _log_beta(z: Any, margins: Any, w: Any, size: Any) -> Any:
    """Return log beta by Newton's method for beta.

    The root stays in an interval of log beta, which shrinks with every step. A Newton step that would end outside this
    interval is replaced by a step to its middle. `size` is the largest abs(z - z_y). `margins` are (z - z_y) / size,
    and beta is the factor of z / size.
    """
    xp = namespace(z)
    zero = xp.zeros_like(size)
    found, low, high = zero, zero + LEAST, zero + MOST
    for _ in range(STEPS):
        p = softmax(z, temperature=size * xp.exp(-found))
        differences = xp.where((p > 0.0) & xp.isfinite(margins), margins, 0.0)
        mean = xp.sum(p * differences, axis=-1, keepdims=True)
        slope, curvature = xp.sum(w * mean), xp.sum(w * p * xp.square(differences - mean))
        low, high = xp.where(slope < 0.0, found, low), xp.where(slope < 0.0, high, found)
        beta = xp.exp(found) - slope / xp.where(curvature > 0.0, curvature, 1.0)
        step = xp.log(xp.where(beta > 0.0, beta, 1.0))
        kept = (beta > 0.0) & (curvature > 0.0) & (low < step) & (step < high)
        before, found = found, xp.where(kept, step, 0.5 * (low + high))
        if isinstance(found, np.ndarray | np.generic) and abs(found - before) <= 4 * np.finfo(found.dtype).eps:
            break
    return found
