"""What the losses with more than one result return: tuples with names."""

from __future__ import annotations

from typing import Any, NamedTuple

from softargmax.core.types import Array, of_arrays


@of_arrays
class CrossEntropyTerms(NamedTuple):
    """What `cross_entropy_terms` returns: the loss (`z_loss` included) and what it is made of, reduced alike.

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
    """What `cross_entropy_and_gradient` returns: the loss, and its gradient to the scores, of their shape and dtype.

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
    """What `linear_cross_entropy_and_gradient` returns: the loss, its gradients to h, w and bias (None without one).

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


# --- of operations ----------------------------------------------------------------------------------------------------


class Loss(NamedTuple):
    """The loss of each group of rows, and the rows' states; of shape (0,) where there is no kernel."""

    loss: Any
    states: Any


class ToScores(NamedTuple):
    """The gradient to the scores."""

    gradient: Any


class Divergences(NamedTuple):
    """One per row, in working precision."""

    divergence: Any


class LinearLoss(NamedTuple):
    """The loss, and its gradients as they were added up; what is not formed is of shape (0,)."""

    loss: Any
    dh: Any
    dw: Any
    db: Any


class ToLayer(NamedTuple):
    """The gradients, as they were added up."""

    dh: Any
    dw: Any
    db: Any


class RowTerms(NamedTuple):
    """The loss of every row, its lse, its entropy, and the z-loss in it; in working precision."""

    loss: Any
    lse: Any
    entropy: Any
    of_z: Any


class LinearDivergences(NamedTuple):
    """One per row, in working precision."""

    divergence: Any
