"""The primitives of this room on NumPy arrays, by the compiled core (what they are: reference.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax import _native
from softargmax.core.dispatch import implementation
from softargmax.core.native import beta_of, fresh, view
from softargmax.loss import reference
from softargmax.loss.results import CrossEntropyTerms, LinearLossAndGradient, LossAndGradient

if TYPE_CHECKING:
    from softargmax.loss.layer import Flat
    from softargmax.loss.options import Beside, Options

Array = np.ndarray[Any, Any]

divergence = reference.divergence
linear_divergence = reference.linear_divergence
linear_terms = reference.linear_terms


def loss(z: Array, beside: Beside, options: Options) -> Array:
    """The loss of every row."""
    rows = rows_of(z, options)
    run(z, beside, options, loss=rows)
    return rows


def terms(z: Array, beside: Beside, options: Options) -> CrossEntropyTerms:
    """Loss, lse, entropy and z-loss of every row."""
    if options.softcap is not None:
        return reference.terms(z, beside, options)._replace(loss=loss(z, beside, options))
    rows, lse = rows_of(z, options), rows_of(z, options)
    run(z, beside, options, loss=rows, lse=lse)
    entropy = implementation("normalize", z).entropy(z, (options.axis,), beside.scale, beside.where, rows.dtype)
    found = rows, lse, entropy, options.z_loss * lse * lse if options.z_loss else np.zeros_like(lse)
    if options.soft:
        return CrossEntropyTerms(*found)
    ignored = np.squeeze(beside.target == options.ignore_index, options.axis)
    return CrossEntropyTerms(*(np.where(ignored, 0.0, one) for one in found))


def loss_and_gradient(z: Array, seed: Array, beside: Beside, options: Options) -> LossAndGradient:
    """The loss of every row, and seed times its gradient."""
    rows, gradient = rows_of(z, options), fresh(z.shape, z.dtype)
    run(z, beside, options, loss=rows, out=view(gradient), seed=np.array(seed, np.float64, order="C"))
    return LossAndGradient(rows, gradient)


def rows_of(z: Array, options: Options) -> Array:
    """Memory for a number per row."""
    return np.empty([n for i, n in enumerate(z.shape) if i != options.axis])


def run(z: Array, beside: Beside, options: Options, **results: Any) -> None:
    """Call the kernel for what is asked for among `results`: loss, lse, out (the gradient) with its seed."""
    target, weight, scale, where = beside
    _native.cross_entropy(
        view(z),
        None if options.soft else np.ascontiguousarray(target, np.int64).reshape(-1),
        view(target) if options.soft else None,
        None if weight is None else view(weight),
        where,
        (options.axis,),
        *beta_of(scale),
        options.ignore_index,
        options.label_smoothing,
        options.z_loss,
        options.softcap or 0.0,
        np.empty((*rows_of(z, options).shape, 3)),
        given=False,
        **results,
    )


def linear_loss(layer: Flat, beside: Beside, options: Options) -> Array:
    """The loss of every row."""
    from softargmax.loss import native_linear

    return native_linear.linear_loss(layer, beside, options)


def linear_loss_and_gradient(layer: Flat, seed: Any, beside: Beside, options: Options) -> LinearLossAndGradient:
    """The loss of every row, and seed times its gradients."""
    from softargmax.loss import native_linear

    return native_linear.linear_loss_and_gradient(layer, seed, beside, options)
