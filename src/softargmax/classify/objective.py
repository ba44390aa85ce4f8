"""The objective of softmax regression, its gradient and Hessian-vector products, computed by blocks of rows.

    f(W, b) = (1 / sum w) sum_i w_i loss(W x_i + b, y_i) + (l2 / 2) |W|^2

The scores, probabilities and gradient of a block are computed while the rows of the block are in the cache. So a pass
reads X from memory only once. Sums over blocks are float64.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from softargmax.classify.base import affine, both
from softargmax.classify.sparse_products import add_product, rows_of
from softargmax.core import _native
from softargmax.loss import cross_entropy_and_gradient
from softargmax.normalize import softmax
from softargmax.sparse import entmax, entmax_loss

if TYPE_CHECKING:
    from collections.abc import Callable

    from softargmax.classify.base import Array, Training

BLOCK = 1 << 20
"""Usual size of a block of rows: the number of entries of X or the number of scores, whichever is larger.

For 50,000 rows of 64 features and 1000 classes, a pass takes 71 ms. With a quarter of this block size it takes 85 ms.
"""

PIECE = 1 << 12
"""`_squares` sums over W in pieces of this many columns."""


class Block(NamedTuple):
    """A block of rows with their classes and weights (None if all weights are 1).

    If the rows are sparse, `transposed` is their transpose in CSR format. All transposes together are a second copy of
    X, which is kept during the fit. With 20 classes, a gradient takes half as long with `transposed` as with `x`.
    """

    x: Any
    transposed: Any
    target: Array
    weight: Array | None


class Objective:
    """The objective f as a function of a table of shape (F, D + 1).

    A row of the table has the D coefficients and the intercept of one class. F is the number of classes, or 1 for two
    classes. With two classes, the only row belongs to the second class, and the first class has scores of 0.
    """

    def __init__(self, training: Training, classes: int, *, alpha: float, l2: float, intercept: bool) -> None:
        self.X, self.target, weight = training
        # Scale the weights to a mean of 1, so that float32 can represent them.
        self.weight = None if weight is None else weight * (len(self.target) / weight.sum())
        self.classes, self.alpha, self.l2, self.intercept = classes, alpha, l2, intercept
        self.free = 1 if classes == 2 else classes
        self.features: int = self.X.shape[1]
        self.total = float(len(self.target))
        self.shape = self.free, self.features + 1

    def value_and_gradient(self, table: Array) -> tuple[float, Array]:
        """Return f and its gradient, which has the table's shape and layout."""
        value, gradient, layer = 0.0, self._penalty_gradient(table), self._layer(table)
        for block in self._blocks:
            rows, dz = _loss_and_gradient(self._scores(block.x, layer), block.target, self.alpha)
            if block.weight is not None:
                rows = rows * block.weight
                dz *= block.weight[:, None].astype(dz.dtype)
            value += float(rows.sum())
            self._add(gradient, dz, block)
        gradient /= self.total
        return value / self.total + 0.5 * self.l2 * _squares(table[:, :-1]), gradient

    def hessian_at(self, table: Array) -> Callable[[Array], Array]:
        """Return a function that multiplies the Hessian by a table.

        The function uses the Jacobian J of p with respect to the scores. For one row of X and a vector t of K numbers,
        J t = s (t - <s, t> / <s, 1>) with s = p^(2 - alpha).
        """
        layer = self._layer(table)

        def product(other: Array) -> Array:
            found, along = self._penalty_gradient(other), self._layer(other)
            for block in self._blocks:
                p = self._probabilities(self._scores(block.x, layer))
                s = p if self.alpha == 1 else _power(p, 2 - self.alpha)
                t = self._scores(block.x, along)
                mean = np.einsum("ik,ik->i", s, t) / s.sum(axis=1)
                dz = s * (t - mean[:, None])
                if block.weight is not None:
                    dz *= block.weight[:, None].astype(dz.dtype)
                self._add(found, dz, block)
            found /= self.total
            return found

        return product

    def curvature(self, table: Array | None, rows: int) -> Array:
        """Return the diagonal blocks of the Hessian, (F, D + 1, D + 1), from about `rows` evenly spaced rows of X.

        Without a table, return the block that all classes share at W = 0, shape (1, D + 1, D + 1). In this block, 1 / K
        replaces p (1 - p). For alpha other than 1, p (1 - p) itself is only an approximation.
        """
        step = max(1, len(self.target) // rows)
        x = self.X[::step]
        weight = np.ones(x.shape[0]) if self.weight is None else self.weight[::step]
        weight = weight / max(float(weight.sum()), 1e-300)
        if table is None:
            return self._block(x, weight * (1 / self.classes))[None]
        p = self._probabilities(self._scores(x, self._layer(table))).astype(np.float64)[:, self.classes - self.free :]
        return np.stack([self._block(x, weight * p_k * (1 - p_k)) for p_k in p.T])

    def scales(self) -> Array:
        """Return the square roots of the Hessian's diagonal at W = 0 for one class, shape (D + 1,).

        As in `curvature`, 1 / K replaces p (1 - p). The entry of the intercept is 1. Entries of 0 are replaced by 1.
        """
        found = np.append(np.zeros(self.features), 1.0)
        for block in self._blocks:
            squares = block.x.power(2) if sparse.issparse(block.x) else np.square(block.x, dtype=np.float64)
            found[:-1] += squares.T @ (np.ones(len(block.target)) if block.weight is None else block.weight)
        found[:-1] = np.sqrt(found[:-1] / self.total / self.classes + self.l2)
        return np.where(found > 0, found, 1.0)

    def _block(self, x: Any, weight: Array) -> Array:
        """Return the sum of w (x, 1)(x, 1)^T plus the l2 term. Without an intercept, the last diagonal entry is 1."""
        weighed = (
            sparse.diags_array(weight.astype(x.dtype)) @ x
            if sparse.issparse(x)
            else x * weight.astype(x.dtype)[:, None]
        )
        found = np.empty((self.features + 1, self.features + 1))
        found[:-1, :-1] = _transposed_product(weighed, x) + self.l2 * np.eye(self.features)
        found[-1, :-1] = found[:-1, -1] = np.asarray(weighed.sum(axis=0)).reshape(-1) * self.intercept
        found[-1, -1] = weight.sum() if self.intercept else 1.0
        return found

    @cached_property
    def _blocks(self) -> list[Block]:
        rows = max(24, self._rows_to_a_block() // 24 * 24)
        return [self._rows_from(slice(start, start + rows)) for start in range(0, len(self.target), rows)]

    def _rows_from(self, part: slice) -> Block:
        weight = None if self.weight is None else self.weight[part]
        if not sparse.issparse(self.X):
            return Block(self.X[part], None, self.target[part], weight)
        x = rows_of(self.X, part)
        return Block(x, x.T.tocsr(), self.target[part], weight)

    def _rows_to_a_block(self) -> int:
        """Return the number of rows per block.

        A block usually fits the cache. It is larger if otherwise most of the time would go into adding up gradients.
        """
        stored = self.X.nnz // max(1, len(self.target)) if sparse.issparse(self.X) else self.features
        cached = BLOCK // max(stored, self.classes, 1)
        amortised = 16 * self.classes * self.features // (self.classes + stored + 1)
        return int(max(cached, min(amortised, 16 * BLOCK // self.classes)))

    def _layer(self, table: Array) -> tuple[Array, Array]:
        """Return W and b in the dtype of X."""
        return table[:, :-1].astype(self.X.dtype, copy=False), table[:, -1].astype(self.X.dtype)

    def _scores(self, x: Any, layer: tuple[Array, Array]) -> Array:
        """Return the scores of all classes for a block of rows."""
        z = affine(x, *layer)
        return z if self.free == self.classes else both(z)

    def _probabilities(self, z: Array) -> Array:
        return np.asarray(softmax(z) if self.alpha == 1 else entmax(z, self.alpha))

    def _add(self, gradient: Array, dz: Array, block: Block) -> None:
        """Add the gradient of a block of rows to the total gradient."""
        dz = dz[:, self.classes - self.free :]
        if block.transposed is None:
            gradient[:, :-1] += _transposed_product(dz, block.x)
        else:
            add_product(block.transposed, dz, gradient[:, :-1].T)
        if self.intercept:
            gradient[:, -1] += dz.sum(axis=0)

    def _penalty_gradient(self, table: Array) -> Array:
        """Return the number of rows times the gradient of the penalty. The intercepts have no penalty."""
        gradient = table * (self.l2 * self.total)
        gradient[:, -1] = 0
        return gradient


def _loss_and_gradient(z: Array, target: Array, alpha: float) -> tuple[Array, Array]:
    """Return the loss of every row, in float64, and its gradient p - e_y with respect to the row's scores."""
    if alpha == 1:
        loss, gradient = cross_entropy_and_gradient(z, target, reduction="none", dtype=np.float64)
        return loss, gradient
    rows = entmax_loss(z, target, alpha, reduction="none", dtype=np.float64)
    gradient = entmax(z, alpha)
    gradient[np.arange(len(target)), target] -= 1
    return rows, gradient


def _squares(w: Array) -> float:
    """Return the sum of squares. Pieces that fit the cache take a third of the time of one `np.square`."""
    return sum(float(np.square(w[:, i : i + PIECE]).sum()) for i in range(0, w.shape[1], PIECE))


def _power(p: Array, exponent: float) -> Array:
    """Return a power of the positive entries, and 0 for entries of 0."""
    return np.where(p > 0, np.where(p > 0, p, 1) ** exponent, 0).astype(p.dtype)


def _transposed_product(a: Any, b: Any) -> Array:
    """Return a^T b as a dense array. Both are dense, or both are sparse."""
    if sparse.issparse(b):
        return np.asarray((a.T @ b).todense())
    found = np.empty((a.shape[1], b.shape[1]), a.dtype)
    _native.product(a.T, b, found)
    return found
