"""The temperature that minimises the log-loss of scores, on any array library."""

from __future__ import annotations

from typing import Any

import numpy as np

from softargmax.core import arrays, check
from softargmax.core.dispatch import device_of, namespace
from softargmax.core.targets import IGNORE, target_of
from softargmax.normalize import softmax

STEPS = 60
"""Enough to halve the range of log beta to its last digit, were every step a bisection."""
RANGE = 10.0
"""How far log beta may be from 0."""


def fit_temperature(z: Any, target: Any, *, weight: Any = None) -> Any:
    r"""The temperature that minimises the log-loss of scores with targets.

    .. math:: \hat\beta = \arg\min_{\beta} \sum_i w_i \left(\log \sum_k e^{\beta z_{ik}} - \beta z_{i y_i}\right),
        \qquad T = 1 / \hat\beta

    Parameters
    ----------
    z : array_like
        Scores, shape (n, K), any array library.
    target : array_like
        Classes, integers, shape (n,); rows of -100 do not count.
    weight : array_like, optional
        w, how much every row counts, shape (n,), at least 0.

    Returns
    -------
    array
        T, 0-d, of z's library, device and dtype (float32 for halves).

    Raises
    ------
    IndexError
        If a target is out of range.
    TypeError, ValueError
        If an argument is of a wrong kind, or a shape does not fit.

    Notes
    -----
    The loss is convex in :math:`\beta`: its derivative is the mean of :math:`\langle p, z \rangle - z_y`, its second
    derivative that of the variance of z under p. Newton's steps that leave what is left of the range, |log T| <= 10,
    are replaced by its middle. Nothing is read back from a device on the way.

    Scores that are wrong more than right get the largest T; of those that are always right no loss is left.

    Gradient: none flows to z.

    References
    ----------
    Guo, Pleiss, Sun & Weinberger (2017), On calibration of modern neural networks, section 4.2. ICML. arXiv:1706.04599.

    Examples
    --------
    >>> import numpy as np
    >>> from softargmax.classify import fit_temperature
    >>> z = np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    >>> float(fit_temperature(z, [0, 0, 1, 1]))  # sure of four, right in three: p = 3/4
    3.640...
    """
    z = check.scores(z)
    if z.ndim != 2:
        raise ValueError(f"z: shape {tuple(z.shape)}; it may be (n, K)")
    xp = namespace(z)
    z = xp.astype(z, check.row_dtype(None, z), copy=False)
    target, soft = target_of(target, z, tuple(z.shape), 1, IGNORE, "target")
    if soft:
        raise TypeError("target: probabilities; it may be classes")
    counts = xp.astype(target != IGNORE, z.dtype)
    own = target == xp.arange(z.shape[1], device=device_of(z))
    apart = z - xp.sum(xp.where(own, z, 0.0), axis=-1, keepdims=True)
    return xp.exp(-_log_beta(z, apart, counts if weight is None else counts * _weight_of(weight, z)))


def _log_beta(z: Any, apart: Any, w: Any) -> Any:
    """Newton's method in beta, within a range of log beta that every step makes smaller; `apart`: z - z_y."""
    xp = namespace(z)
    zero = xp.sum(w) * 0.0
    found, low, high = zero, zero - RANGE, zero + RANGE
    for _ in range(STEPS):
        p = softmax(z, temperature=xp.exp(-found))
        beside = xp.where((p > 0.0) & xp.isfinite(apart), apart, 0.0)
        mean = xp.sum(p * beside, axis=-1, keepdims=True)
        slope, curvature = xp.sum(w * mean), xp.sum(w * p * xp.square(beside - mean))
        low, high = xp.where(slope < 0.0, found, low), xp.where(slope < 0.0, high, found)
        beta = xp.exp(found) - slope / xp.where(curvature > 0.0, curvature, 1.0)
        step = xp.log(xp.where(beta > 0.0, beta, 1.0))
        kept = (beta > 0.0) & (curvature > 0.0) & (low < step) & (step < high)
        before, found = found, xp.where(kept, step, 0.5 * (low + high))
        if isinstance(found, np.ndarray | np.generic) and abs(found - before) <= 4 * np.finfo(found.dtype).eps:
            break
    return found


def _weight_of(weight: Any, z: Any) -> Any:
    """What rows count, (n, 1), in z's dtype."""
    xp = namespace(z)
    found = check.scores(arrays.like(weight, z, "weight"), "weight")
    if tuple(found.shape) != (z.shape[0],):
        raise ValueError(f"weight: shape {tuple(found.shape)}; it may be one per row, ({z.shape[0]},)")
    if check.seen(found) and bool(xp.any(found < 0)):
        raise ValueError("weight: some are negative; they may be 0 or positive")
    return xp.astype(found, z.dtype)[:, None]
