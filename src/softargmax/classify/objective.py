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

from softargmax.classify.base import affine, both, transposed_product
from softargmax.classify.rows import BLOCK
from softargmax.classify.sparse_products import add_product
from softargmax.loss import cross_entropy_and_gradient
from softargmax.normalize import softmax
from softargmax.sparse import entmax, entmax_loss

if TYPE_CHECKING:
    from collections.abc import Callable

    from softargmax.classify.base import Array
    from softargmax.classify.rows import Block, Sums, Training

    Layer = tuple[Array, Array]

PIECE = 1 << 12
"""`_squares` sums over W in pieces of this many columns."""


class Loss(NamedTuple):
    """What a block of rows adds to the objective and its derivatives. It has no data, so other processes can have it.

    `free` is the number of rows of the table (see `Objective`).
    """

    classes: int
    free: int
    alpha: float
    intercept: bool

    def add_gradient(self, into: Sums, block: Block, layer: Layer) -> None:
        """Add the weighted losses of the rows, and their gradient with respect to the table."""
        value, gradient = into
        rows, dz = _loss_and_gradient(self.scores(block.x, layer), block.target, self.alpha)
        if block.weight is not None:
            rows = rows * block.weight
        value += float(rows.sum())
        self._add(gradient, dz, block)

    def add_hessian_product(self, into: Sums, block: Block, layer: Layer, along: Layer) -> None:
        """Add the product of the Hessian at `layer` with the table `along`."""
        p = self._probabilities(self.scores(block.x, layer))
        s = p if self.alpha == 1 else _power(p, 2 - self.alpha)
        t = self.scores(block.x, along)
        mean = np.einsum("ik,ik->i", s, t) / s.sum(axis=1)
        self._add(into[0], s * (t - mean[:, None]), block)

    def add_curvature(self, into: Sums, block: Block, layer: Layer | None) -> None:
        """Add the diagonal blocks of the Hessian at `layer`. Without a layer, add the block that all classes share."""
        weight = np.ones(len(block.target)) if block.weight is None else block.weight
        if layer is None:
            self._add_moments(into[0][0], block.x, weight * (1 / self.classes))
            return
        p = self._probabilities(self.scores(block.x, layer)).astype(np.float64)[:, self.classes - self.free :]
        for moments, p_k in zip(into[0], p.T, strict=True):
            self._add_moments(moments, block.x, weight * p_k * (1 - p_k))

    def scores(self, x: Any, layer: Layer) -> Array:
        """Return the scores of all classes for a block of rows."""
        z = affine(x, *layer)
        return z if self.free == self.classes else both(z)

    def _probabilities(self, z: Array) -> Array:
        return np.asarray(softmax(z) if self.alpha == 1 else entmax(z, self.alpha))

    def _add(self, gradient: Array, dz: Array, block: Block) -> None:
        """Add the gradient with respect to the table, given the gradient with respect to the scores without weights."""
        if block.weight is not None:
            dz *= block.weight[:, None].astype(dz.dtype)
        dz = dz[:, self.classes - self.free :]
        if block.transposed is None:
            gradient[:, :-1] += transposed_product(dz, block.x)
        else:
            add_product(block.transposed, dz, gradient[:, :-1].T)
        if self.intercept:
            gradient[:, -1] += dz.sum(axis=0)

    def _add_moments(self, moments: Array, x: Any, weight: Array) -> None:
        """Add the sum of w (x, 1)(x, 1)^T."""
        w = weight.astype(x.dtype)
        weighed = sparse.diags_array(w) @ x if sparse.issparse(x) else x * w[:, None]
        moments[:-1, :-1] += transposed_product(weighed, x)
        if self.intercept:
            first = np.asarray(weighed.sum(axis=0)).reshape(-1)
            moments[-1, :-1] += first
            moments[:-1, -1] += first
            moments[-1, -1] += weight.sum()


class Objective:
    """The objective f as a function of a table of shape (F, D + 1).

    A row of the table has the D coefficients and the intercept of one class. F is the number of classes, or 1 for two
    classes. With two classes, the only row belongs to the second class, and the first class has scores of 0.
    """

    def __init__(self, training: Training, classes: int, *, alpha: float, l2: float, intercept: bool) -> None:
        self.total, self.features = float(len(training.target)), int(training.X.shape[1])
        if training.weight is not None:
            # Scale the weights to a mean of 1, so that float32 can represent them.
            scale = self.total / training.per_class(classes).sum()
            training = training._replace(weight=training.weight * scale)
        self.training, self.X, self.target = training, training.X, training.target
        self.classes, self.l2, self.intercept = classes, l2, intercept
        self.free = 1 if classes == 2 else classes
        self.loss = Loss(classes, self.free, alpha, intercept)
        self.shape = self.free, self.features + 1

    def value_and_gradient(self, table: Array) -> tuple[float, Array]:
        """Return f and its gradient, which has the table's shape and layout."""
        into = np.zeros(()), self._penalty_gradient(table)
        value, gradient = self._blocks.sum(self.loss.add_gradient, into, self._layer(table))
        gradient /= self.total
        return float(value) / self.total + 0.5 * self.l2 * _squares(table[:, :-1]), gradient

    def hessian_at(self, table: Array) -> Callable[[Array], Array]:
        """Return a function that multiplies the Hessian by a table.

        The function uses the Jacobian J of p with respect to the scores. For one row of X and a vector t of K numbers,
        J t = s (t - <s, t> / <s, 1>) with s = p^(2 - alpha).
        """
        layer = self._layer(table)

        def product(other: Array) -> Array:
            into = (self._penalty_gradient(other),)
            found: Array = self._blocks.sum(self.loss.add_hessian_product, into, layer, self._layer(other))[0]
            found /= self.total
            return found

        return product

    def curvature(self, table: Array | None, rows: int) -> Array:
        """Return the diagonal blocks of the Hessian, (F, D + 1, D + 1), from about `rows` evenly spaced rows of X.

        Without a table, return the block that all classes share at W = 0, shape (1, D + 1, D + 1). In this block, 1 / K
        replaces p (1 - p). For alpha other than 1, p (1 - p) itself is only an approximation.
        """
        step = max(1, len(self.target) // rows)
        part = self.training if step == 1 else self.training.sample(step)
        blocks = self._blocks if step == 1 else part.blocks(self._rows_to_a_block())
        total = float(len(part.target)) if part.weight is None else float(part.per_class(self.classes).sum())
        into = (np.zeros((1 if table is None else self.free, *2 * (self.features + 1,))),)
        layer = None if table is None else self._layer(table)
        found: Array = blocks.sum(self.loss.add_curvature, into, layer)[0]
        found /= max(total, 1e-300)
        found[:, :-1, :-1] += self.l2 * np.eye(self.features)
        if not self.intercept:
            found[:, -1, -1] = 1.0
        return found

    def scales(self) -> Array:
        """Return the square roots of the Hessian's diagonal at W = 0 for one class, shape (D + 1,).

        As in `curvature`, 1 / K replaces p (1 - p). The entry of the intercept is 1. Entries of 0 are replaced by 1.
        """
        squares = self._blocks.sum(_add_squares, (np.zeros(self.features),))[0]
        found = np.append(np.sqrt(squares / self.total / self.classes + self.l2), 1.0)
        return np.where(found > 0, found, 1.0)

    @cached_property
    def _blocks(self) -> Any:
        return self.training.blocks(self._rows_to_a_block())

    def _rows_to_a_block(self) -> int:
        """Return the number of rows per block, a multiple of 24.

        A block usually fits the cache. It is larger if otherwise most of the time would go into adding up gradients.
        """
        stored = self.training.stored
        cached = BLOCK // max(stored, self.classes, 1)
        amortised = 16 * self.classes * self.features // (self.classes + stored + 1)
        return max(24, int(max(cached, min(amortised, 16 * BLOCK // self.classes))) // 24 * 24)

    def _layer(self, table: Array) -> Layer:
        """Return W and b in the dtype of X."""
        return table[:, :-1].astype(self.X.dtype, copy=False), table[:, -1].astype(self.X.dtype)

    def _penalty_gradient(self, table: Array) -> Array:
        """Return the number of rows times the gradient of the penalty. The intercepts have no penalty."""
        gradient = table * (self.l2 * self.total)
        gradient[:, -1] = 0
        return gradient


def _add_squares(into: Sums, block: Block) -> None:
    total, weight = into[0], np.ones(len(block.target)) if block.weight is None else block.weight
    if sparse.issparse(block.x):
        total += block.x.power(2).T @ weight
    else:
        total += np.einsum("i,ij->j", weight, np.square(block.x, dtype=np.float64))


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
