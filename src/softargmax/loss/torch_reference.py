"""The definition for torch tensors of any device: derivatives of every order and mode, by formulas.

torch could differentiate the definition by itself; but the gradient to the scores would cancel (p_y - 1), and every
temporary would be kept for it. `torch_rules.py` mends both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softargmax.core.chunks import cut
from softargmax.core.scale import Scale
from softargmax.core.torch_compile import compile_whole
from softargmax.loss import reference_divergence, reference_linear, reference_rows
from softargmax.loss.results import CrossEntropyTerms, LinearLossAndGradient, LossAndGradient
from softargmax.loss.torch_rules import Product, closed, opened, parted, product, rows

if TYPE_CHECKING:
    from torch import Tensor

    from softargmax.core.torch_rules import Tensors
    from softargmax.loss.layer import Flat
    from softargmax.loss.options import Beside, Divergence, Options

compile_whole("softargmax.loss")


# --- primitives -------------------------------------------------------------------------------------------------------


def loss(z: Tensor, beside: Beside, options: Options) -> Tensor:
    """The loss of every row."""
    found: Tensor = rows(_only_loss, options, z, *opened(beside))[0]
    return found


def terms(z: Tensor, beside: Beside, options: Options) -> CrossEntropyTerms:
    """Loss, lse, entropy and z-loss of every row."""
    return CrossEntropyTerms(*rows(_all_terms, options, z, *opened(beside)))


def loss_and_gradient(z: Tensor, seed: Tensor, beside: Beside, options: Options) -> LossAndGradient:
    """The loss of every row, and seed times its gradient; both can be differentiated."""
    gradient = reference_rows.gradient(z, (seed, None, None, None), beside, options)
    return LossAndGradient(loss(z, beside, options), gradient)


def divergence(student: Tensor, teacher: Tensor, scale: Scale, where: Tensor | None, options: Divergence) -> Tensor:
    """The divergence of every row: torch differentiates the definition."""
    found: Tensor = reference_divergence.divergence(student, teacher, scale, where, options)
    return found


def linear_loss(layer: Flat, beside: Beside, options: Options) -> Tensor:
    """The loss of every row."""
    found: Tensor = parted(_linear_loss, (0, *_BESIDE), options, *layer, *opened(beside))[0]
    return found


def linear_terms(layer: Flat, beside: Beside, options: Options) -> CrossEntropyTerms:
    """Loss, lse, entropy and z-loss of every row."""
    return CrossEntropyTerms(*parted(_linear_terms, (0, *_BESIDE), options, *layer, *opened(beside)))


def linear_loss_and_gradient(layer: Flat, seed: Tensor, beside: Beside, options: Options) -> LinearLossAndGradient:
    """The loss of every row, and seed times its gradients; all can be differentiated."""
    if cut((*layer, *opened(beside), seed)):
        return reference_linear.linear_loss_and_gradient(layer, seed, beside, options)
    h, w, bias = layer
    dz = reference_rows.gradient(product(h, w, bias), (seed, None, None, None), beside, options)
    dh, dw = Product.gradients(dz, h, w)
    dbias = None if bias is None else dz.sum(0).to(bias.dtype)
    return LinearLossAndGradient(linear_loss(layer, beside, options), dh.to(h.dtype), dw.to(w.dtype), dbias)


def linear_divergence(student: Flat, teacher: Flat, scale: Scale, where: Tensor | None, options: Divergence) -> Tensor:
    """The divergence of every row."""
    tensors = *student, *teacher, scale.hi, scale.lo, where
    found: Tensor = parted(_linear_divergence, (0, 3, 6, 7, 8), options, *tensors)[0]
    return found


_BESIDE = (3, 5, 6, 7)  # of h, w, bias, target, weight, hi, lo, where those that have rows


def _only_loss(options: Options, z: Tensor, *beside: Any) -> Tensors:
    return (reference_rows.loss(z, closed(*beside), options),)


def _all_terms(options: Options, z: Tensor, *beside: Any) -> Tensors:
    return tuple(reference_rows.terms(z, closed(*beside), options))


def _linear_loss(options: Options, h: Tensor, w: Tensor, bias: Tensor | None, *beside: Any) -> Tensors:
    return rows(_only_loss, options, product(h, w, bias), *beside)


def _linear_terms(options: Options, h: Tensor, w: Tensor, bias: Tensor | None, *beside: Any) -> Tensors:
    return rows(_all_terms, options, product(h, w, bias), *beside)


def _linear_divergence(options: Divergence, *tensors: Any) -> Tensors:
    student, teacher = product(*tensors[:3]), product(*tensors[3:6])
    return (divergence(student, teacher, Scale(*tensors[6:8]), tensors[8], options),)
