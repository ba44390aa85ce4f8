"""Losses of scores in NumPy arrays, by the compiled core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core import _native
from softargmax.core.axes import squeezed
from softargmax.core.native import beta_of, fresh, view
from softargmax.loss import reference
from softargmax.loss.results import CrossEntropyTerms, LossAndGradient
from softargmax.normalize import operations
from softargmax.normalize.operations import Scores

if TYPE_CHECKING:
    from softargmax.loss.options import Beside, Options

Array = np.ndarray[Any, Any]


def loss(z: Array, beside: Beside, options: Options) -> Array:
    """The loss of every row."""
    rows = _per_row(z, options)
    _run(z, beside, options, loss=rows)
    return rows


def terms(z: Array, beside: Beside, options: Options) -> CrossEntropyTerms:
    """Loss, lse, entropy and z-loss of every row."""
    if options.softcap is not None:
        return reference.terms(z, beside, options)._replace(loss=loss(z, beside, options))
    rows, lse = _per_row(z, options), _per_row(z, options)
    _run(z, beside, options, loss=rows, lse=lse)
    axes = (options.axis,)
    entropy = squeezed(operations.entropy.first(Scores(z, beside.where, beside.scale, axes, rows.dtype)), axes)
    found = rows, lse, entropy, options.z_loss * lse * lse if options.z_loss else np.zeros_like(lse)
    if options.soft:
        return CrossEntropyTerms(*found)
    ignored = np.squeeze(beside.target == options.ignore_index, options.axis)
    return CrossEntropyTerms(*(np.where(ignored, 0.0, one) for one in found))


def loss_and_gradient(z: Array, seed: Array, beside: Beside, options: Options) -> LossAndGradient:
    """The loss of every row, and seed times its gradient."""
    return into(fresh(z.shape, z.dtype), z, seed, beside, options)


def into(gradient: Array, z: Array, seed: Any, beside: Beside, options: Options) -> LossAndGradient:
    """The same with the gradient in memory that is given, z's own for one."""
    rows = _per_row(z, options)
    _run(z, beside, options, loss=rows, out=view(gradient), seed=np.array(seed, np.float64, order="C"))
    return LossAndGradient(rows, gradient)


def _per_row(z: Array, options: Options, *more: int) -> Array:
    return np.empty([*(n for i, n in enumerate(z.shape) if i != options.axis), *more])


def _run(z: Array, beside: Beside, options: Options, **results: Any) -> None:
    """Call the kernel for what is asked for among `results`: loss, lse, out (the gradient) with its seed."""
    target, weight, scale, where = beside
    hi, lo = beta_of(scale)
    _native.cross_entropy(
        view(z),
        None if options.soft else np.ascontiguousarray(target, np.int64).reshape(-1),
        _per_row(z, options, 3),
        (options.axis,),
        other=view(target) if options.soft else None,
        weight=None if weight is None else view(weight),
        where=where,
        hi=hi,
        lo=lo,
        ignore_index=options.ignore_index,
        label_smoothing=options.label_smoothing,
        z_loss=options.z_loss,
        softcap=options.softcap or 0.0,
        least=options.least,
        **results,
    )
