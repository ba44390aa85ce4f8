"""The row-wise operations of the native kernels, as functions of a matrix (rows, length), for the tests of this folder.

The result of a row depends on its scores and on column indices, but not on the index of the row. Therefore tests can
reorder, split and batch the rows in any way. The first axis of a result is the axis of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import softargmax

Array = NDArray[Any]
RowOperation = Callable[[Array], Array]


def _columns(z: Array, seed: int) -> Array:
    """Return one number per column, the same for every row."""
    return np.random.default_rng(seed).random(z.shape[-1])


def _per_row(z: Array) -> Array:
    """Return a temperature per row, computed from its first score."""
    first = np.nan_to_num(z[:, 0].astype(np.float64), nan=1.0, posinf=2.0, neginf=3.0)
    return 0.5 + np.abs(np.arctan(first))


def _both(z: Array) -> Array:
    p, lse = softargmax.softmax_with_lse(z)
    return np.concatenate([p.astype(lse.dtype), lse[:, None]], axis=1)


def _class(z: Array) -> Array:
    """Return a class per row, computed from its last score."""
    last = np.nan_to_num(z[:, -1].astype(np.float64), nan=1.0, posinf=2.0, neginf=3.0)
    return (np.abs(last) * 1000).astype(np.int64) % z.shape[1]


def _loss(z: Array, **options: Any) -> Array:
    """Return the losses and the gradients of the rows."""
    loss, gradient = softargmax.cross_entropy_and_gradient(z, _class(z), reduction="none", **options)
    return np.concatenate([gradient.astype(loss.dtype), loss[:, None]], axis=1)


def _orders(z: Array) -> Array:
    """Return an order per row, computed from its first score."""
    return np.choose((_per_row(z) * 1000).astype(np.int64) % 7, [1.0, 1.0001, 1.25, 1.5, 1.75, 2.0, 2.5])


def _threshold(z: Array) -> Array:
    tau, support = softargmax.threshold(z, _orders(z))
    return np.stack([tau, support.astype(tau.dtype)], axis=1)


def _draws(z: Array, **options: Any) -> Array:
    """Return draws, their log-probabilities and the sizes of the supports. Rows that cannot be drawn from give -1.

    All rows use the same stream of random numbers.
    """
    stream = np.full(z.shape[0], 7)
    good = ~np.isnan(z).any(axis=1) & (z > -np.inf).any(axis=1)
    found = softargmax.categorical_with_logprob(
        np.where(good[:, None], z, np.zeros(1, z.dtype)), seed=3, stream=stream, **options
    )
    return np.where(good[:, None], np.stack([found.index, found.logprob, found.support_size], axis=1), -1.0)


def _noise(z: Array) -> Array:
    """Return Gumbel noise, the same for all rows."""
    return np.repeat(softargmax.gumbel((1, z.shape[1]), like=z, seed=1), z.shape[0], axis=0)


ROW_OPERATIONS: dict[str, RowOperation] = {
    "softmax": softargmax.softmax,
    "log_softmax": softargmax.log_softmax,
    "logsumexp": softargmax.logsumexp,
    "softmax_with_lse": _both,
    "softmax temperature 3.7": lambda z: softargmax.softmax(z, temperature=3.7),
    "log_softmax base 2": lambda z: softargmax.log_softmax(z, base=2.0),
    "logsumexp temperature -0.7": lambda z: softargmax.logsumexp(z, temperature=-0.7),
    "log_softmax temperature per row": lambda z: softargmax.log_softmax(z, temperature=_per_row(z)),
    "softmax where": lambda z: softargmax.softmax(z, where=_columns(z, 1) < 0.7),
    "logsumexp where": lambda z: softargmax.logsumexp(z, where=_columns(z, 2) < 0.7),
    "logsumexp weights": lambda z: softargmax.logsumexp(z, weights=_columns(z, 3).astype(z.dtype)),
    "softmin": softargmax.softmin,
    "hardmax": softargmax.hardmax,
    "entropy": softargmax.entropy,
    "entropy, where, temperature": lambda z: softargmax.entropy(z, where=_columns(z, 5) < 0.7, temperature=-1.3),
    "renyi_entropy 0.7": lambda z: softargmax.renyi_entropy(z, 0.7),
    "renyi_entropy, order per row, where": lambda z: softargmax.renyi_entropy(
        z, _orders(z), where=_columns(z, 5) < 0.7, temperature=_per_row(z)
    ),
    "kl_divergence": lambda z: softargmax.kl_divergence(z, z[:, ::-1]),
    "kl_divergence, near, where": lambda z: softargmax.kl_divergence(
        z, (z + 0.01 * _columns(z, 6)).astype(z.dtype), where=_columns(z, 7) < 0.7
    ),
    "soft_argmax, values": lambda z: softargmax.soft_argmax(z, _columns(z, 8)[::-1], temperature=_per_row(z)),
    "logcumsumexp": softargmax.logcumsumexp,
    "logcumsumexp, temperature per row, where": lambda z: softargmax.logcumsumexp(
        z, temperature=_per_row(z), where=_columns(z, 13) < 0.7
    ),
    "soft_argmax": softargmax.soft_argmax,
    "signed_logsumexp": lambda z: softargmax.signed_logsumexp(z, _columns(z, 4).astype(z.dtype) - 0.5).log_abs,
    "cross_entropy": _loss,
    "cross_entropy, temperature per row, where": lambda z: _loss(
        z, temperature=_per_row(z), where=_columns(z, 9) < 0.8
    ),
    "cross_entropy, smoothed, weighted": lambda z: _loss(
        z, label_smoothing=0.1, weight=_columns(z, 10).astype(z.dtype), z_loss=1e-3, softcap=30.0
    ),
    "sparsemax": softargmax.sparsemax,
    "entmax 1.25": lambda z: softargmax.entmax(z, 1.25),
    "entmax 1.5": softargmax.entmax,
    "entmax 3": lambda z: softargmax.entmax(z, 3.0),
    "sparsemax temperature 3.7": lambda z: softargmax.sparsemax(z, temperature=3.7),
    "entmax 1.5, temperature per row": lambda z: softargmax.entmax(z, temperature=_per_row(z)),
    "entmax alpha per row": lambda z: softargmax.entmax(z, _orders(z)),
    "entmax where": lambda z: softargmax.entmax(z, 1.75, where=_columns(z, 12) < 0.7),
    "threshold": _threshold,
    "categorical": lambda z: softargmax.categorical(
        np.nan_to_num(z, nan=1.0, neginf=-9.0), seed=5, stream=np.full(z.shape[0], 2)
    ),
    "categorical, filters": lambda z: _draws(z, top_k=min(40, z.shape[1]), top_p=0.9, temperature=_per_row(z)),
    "categorical, top_p": lambda z: _draws(z, top_p=0.95, min_p=1e-3, temperature=2.0),
    "filter_scores": lambda z: softargmax.filter_scores(z, typical_p=0.9, epsilon=1e-4, eta=1e-3, order="joint"),
    "gumbel": _noise,
    "softmax to float64": lambda z: softargmax.softmax(z, dtype=np.float64),
}


def gradient(operation: str, seed: int = 11, **options: Any) -> RowOperation:
    """Return a function that computes the vjp of an operation with torch.

    The incoming gradient is a random number per column, the same for every row. If the operation returns one number per
    row, the incoming gradient is 1.
    """

    def vjp(z: Array) -> Array:
        import torch

        leaf = torch.from_numpy(np.array(z)).requires_grad_()
        y = getattr(softargmax, operation)(leaf, **options)
        g = torch.from_numpy(_columns(z, seed)).to(y.dtype)
        y.backward(g.expand(y.shape) if y.ndim == 2 else torch.ones_like(y))
        return np.asarray(leaf.grad)

    return vjp


GRADIENTS: dict[str, RowOperation] = {
    "softmax vjp": gradient("softmax"),
    "log_softmax vjp": gradient("log_softmax"),
    "logsumexp vjp": gradient("logsumexp"),
    "softmax vjp temperature 3.7": gradient("softmax", temperature=3.7),
    "log_softmax vjp base 2": gradient("log_softmax", base=2.0),
    "sparsemax vjp": gradient("sparsemax"),
    "entmax vjp 1.25": gradient("entmax", alpha=1.25),
    "entmax vjp 1.5": gradient("entmax"),
    "entmax vjp 3": gradient("entmax", alpha=3.0),
}


def have_torch() -> bool:
    """True if torch is installed. The environment of the sanitizers does not have it."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def row_operations() -> dict[str, RowOperation]:
    """Return all operations that can run here."""
    return ROW_OPERATIONS | (GRADIENTS if have_torch() else {})


def scores(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    """Return scores with several spreads. Some rows are confident, and some have infinities or NaN."""
    rng = np.random.default_rng([seed, *shape])
    z = rng.standard_normal(shape) * rng.choice([1.0, 10.0, 40.0, 300.0], (*shape[:-1], 1))
    flat = z.reshape(-1, shape[-1])
    if shape[-1] > 2:
        flat[1::11, 0] = -np.inf
        flat[2::13, -1] = np.inf
        flat[3::17, 1] = np.nan
        flat[4::19, :] = -np.inf
        flat[5::7, 1] = 500.0
    return z.astype(dtype)


def same_bits(a: Array, b: Array) -> bool:
    """True if two arrays have the same dtype, shape and bytes. So NaN equals NaN, and -0.0 differs from 0.0."""
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def segments(z: Array) -> dict[str, Array]:
    """Return the results of the segment operations on a vector with fixed offsets."""
    n = z.shape[0]
    offsets = np.unique(np.concatenate([[0, n], np.random.default_rng(n).integers(0, n + 1, 1 + n // 20)]))
    offsets = np.insert(offsets, 1, [0, 0])  # adds two empty segments
    return {
        "segment_softmax": softargmax.segment_softmax(z, offsets),
        "segment_log_softmax temperature 2": softargmax.segment_log_softmax(z, offsets, temperature=2.0),
        "segment_logsumexp": softargmax.segment_logsumexp(z, offsets),
    }
