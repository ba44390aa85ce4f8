"""Named tuples that the losses return."""

from __future__ import annotations

from typing import Any, NamedTuple

from softargmax.core.types import Array, of_arrays


@of_arrays
class CrossEntropyTerms(NamedTuple):
    """Result of `cross_entropy_terms`: the loss (which includes z_loss), lse, entropy and z_loss. The option
    `reduction` applies to all four.

    Examples
    --------
    >>> import softargmax
    >>> terms = softargmax.cross_entropy_terms([[1.0, 2.0, 8.0]], [2])
    >>> float(terms.loss), float(terms.lse)
    (0.003384..., 8.003384...)
    """

    loss: Array
    lse: Array
    entropy: Array
    z_loss: Array


@of_arrays
class LossAndGradient(NamedTuple):
    """Result of `cross_entropy_and_gradient`: the loss and its gradient, of the scores' shape and dtype.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.cross_entropy_and_gradient([[1.0, 1.0]], [0]).gradient
    array([[-0.5,  0.5]])
    """

    loss: Array
    gradient: Array


@of_arrays
class LinearLossAndGradient(NamedTuple):
    """Result of `linear_cross_entropy_and_gradient`: the loss and its gradients. dbias is None without a bias.

    Examples
    --------
    >>> import softargmax
    >>> found = softargmax.linear_cross_entropy_and_gradient([[1.0]], [[0.0], [0.0]], [0])
    >>> found.dw
    array([[-0.5],
           [ 0.5]])
    """

    loss: Array
    dh: Array
    dw: Array
    dbias: Array | None


# --- results of the operations ----------------------------------------------------------------------------------------


class Loss(NamedTuple):
    """The loss (one number, or one per row), and the state (m, r, low) of each row.

    Only kernels save states. Without a kernel the shape of `states` is (0,).
    """

    loss: Any
    states: Any


class ToScores(NamedTuple):
    """The gradient with respect to the scores."""

    gradient: Any


class Divergences(NamedTuple):
    """The divergence of each row, in working precision."""

    divergence: Any


class LinearLoss(NamedTuple):
    """The loss, and its gradients in the dtype in which they are summed.

    Gradients that were not computed have shape (0,).
    """

    loss: Any
    dh: Any
    dw: Any
    db: Any


class ToLayer(NamedTuple):
    """The gradients with respect to the arrays of a layer, in the dtype in which they are summed."""

    dh: Any
    dw: Any
    db: Any


class RowTerms(NamedTuple):
    """Loss, lse, entropy and z-loss of each row, in working precision."""

    loss: Any
    lse: Any
    entropy: Any
    of_z: Any


class LinearDivergences(NamedTuple):
    """The divergence of each row, in working precision."""

    divergence: Any
