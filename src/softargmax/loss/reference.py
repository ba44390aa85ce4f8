"""The primitives of this room, which every implementation defines, here by the definition in array-API Python.

Of scores z, and of a layer (h, w, bias) that makes scores of shape (N, K), with `Beside` and `Options` checked:

    loss(z, beside, options)                              the loss of every row
    terms(z, beside, options)                             CrossEntropyTerms of rows' numbers
    loss_and_gradient(z, seed, beside, options)           the loss of every row, and seed times its gradient to z
    divergence(student, teacher, scale, where, options)   the divergence of every row
    linear_loss, linear_terms, linear_divergence          the same of layers
    linear_loss_and_gradient(layer, seed, beside, options)    loss, and seed times its gradients to h, w and bias

Rows' numbers are in working precision (float64 where there is one): what reduces them rounds them.
"""

from softargmax.loss.reference_divergence import divergence
from softargmax.loss.reference_linear import linear_divergence, linear_loss, linear_loss_and_gradient, linear_terms
from softargmax.loss.reference_rows import loss, loss_and_gradient, terms

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
