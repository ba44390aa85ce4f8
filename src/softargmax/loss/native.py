"""The primitives of this room on NumPy arrays, by the compiled core (what they are: reference.py)."""

from softargmax.loss.native_linear import linear_loss, linear_loss_and_gradient
from softargmax.loss.native_rows import loss, loss_and_gradient, terms
from softargmax.loss.reference import divergence, linear_divergence, linear_terms

__all__ = [
    "divergence",
    "linear_divergence",
    "linear_loss",
    "linear_loss_and_gradient",
    "linear_terms",
    "loss",
    "loss_and_gradient",
    "terms",
]
