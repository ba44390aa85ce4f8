"""The temperature that minimises the log-loss of scores, for any array library."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core import check
from softargmax.core.arrays import device_of, is_torch, namespace, row_dtype
from softargmax.core.targets import IGNORE, target_of
from softargmax.normalize import softmax

if TYPE_CHECKING:
    from collections.abc import Callable

    from softargmax.classify.rows import Block, Sums, Training

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
    rows = _checked(z, target, weight)
    xp, size = namespace(rows.z), rows.size()
    size = xp.where(size > 0.0, size, 1.0)
    log_beta = _log_beta(partial(rows.scaled(size).slopes, size), size)
    return xp.where(rows.total() > 0.0, size * xp.exp(-log_beta), xp.nan)


def temperature_of(training: Training) -> float:
    """Return the temperature of scores by sums over blocks of rows, which may be in the chunks of a Dask array."""
    blocks = training.usual_blocks(_of_block)
    size = np.asarray(blocks.fold(_Rows.size, max, 0.0) or 1.0)
    if not blocks.sum(_add_total, (np.zeros(()),))[0] > 0.0:
        return math.nan
    blocks = training.usual_blocks(partial(_scaled, size))

    def slopes(found: Any) -> Any:
        return blocks.sum(_add_slopes, (np.zeros(()), np.zeros(())), size, found)

    return float(size * np.exp(-_log_beta(slopes, size)))


class _Rows(NamedTuple):
    """Scores, their differences z - z_y from the target's score, and weights, shape (n, 1)."""

    z: Any
    margins: Any
    w: Any

    def size(self) -> Any:
        """Return the largest finite abs(z - z_y), or 0."""
        xp = namespace(self.z)
        if not self.z.shape[0] * self.z.shape[1]:
            return xp.sum(self.z)
        return xp.max(xp.where(xp.isfinite(self.margins), xp.abs(self.margins), 0.0))

    def total(self) -> Any:
        """Return the sum of the weights, or NaN if a score is NaN."""
        xp = namespace(self.z)
        nan = xp.isnan(self.margins) & ~xp.isinf(self.z)
        return xp.sum(self.w) + xp.sum(xp.where(nan, self.margins, 0.0))

    def scaled(self, size: Any) -> _Rows:
        """Divide the differences by a size. Those that are not finite become 0: their p is 0, or the result is NaN."""
        xp = namespace(self.z)
        return self._replace(margins=xp.where(xp.isfinite(self.margins), self.margins / size, 0.0))

    def slopes(self, size: Any, log_beta: Any) -> tuple[Any, Any]:
        """Return the first and the second derivative of the loss with respect to beta, the factor of z / size.

        The differences are those that `scaled` has divided by the size.
        """
        xp = namespace(self.z)
        p = softmax(self.z, temperature=size * xp.exp(-log_beta))
        mean = xp.sum(p * self.margins, axis=-1, keepdims=True)
        return xp.sum(self.w * mean), xp.sum(self.w * p * xp.square(self.margins - mean))


def _checked(z: Any, target: Any, weight: Any) -> _Rows:
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
    return _Rows(z, margins, w)


def _of_block(block: Block) -> _Rows:
    return _checked(block.x, block.target, block.weight)


def _scaled(size: Any, block: Block) -> _Rows:
    return _of_block(block).scaled(size)


def _add_total(into: Sums, rows: _Rows) -> None:
    total = into[0]
    total += rows.total()


def _add_slopes(into: Sums, rows: _Rows, size: Any, log_beta: Any) -> None:
    slope, curvature = into
    found = rows.slopes(size, log_beta)
    slope += found[0]
    curvature += found[1]


def _log_beta(slopes: Callable[[Any], tuple[Any, Any]], size: Any) -> Any:
    """Return log beta by Newton's method for beta, the factor of z / size.

    The root stays in an interval of log beta, which shrinks with every step. A Newton step that would end outside this
    interval is replaced by a step to its middle. `slopes` returns the derivatives at a log beta.
    """
    xp = namespace(size)
    zero = xp.zeros_like(size)
    found, low, high = zero, zero + LEAST, zero + MOST
    for _ in range(STEPS):
        slope, curvature = slopes(found)
        low, high = xp.where(slope < 0.0, found, low), xp.where(slope < 0.0, high, found)
        beta = xp.exp(found) - slope / xp.where(curvature > 0.0, curvature, 1.0)
        step = xp.log(xp.where(beta > 0.0, beta, 1.0))
        kept = (beta > 0.0) & (curvature > 0.0) & (low < step) & (step < high)
        before, found = found, xp.where(kept, step, 0.5 * (low + high))
        if isinstance(found, np.ndarray | np.generic) and abs(found - before) <= 4 * np.finfo(found.dtype).eps:
            break
    return found
