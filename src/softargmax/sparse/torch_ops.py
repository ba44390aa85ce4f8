"""The room's primitives for torch tensors in CPU memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softargmax import sparse
from softargmax.core.torch_bridge import compile_whole, write_into
from softargmax.sparse import reference_loss
from softargmax.sparse.torch_loss import loss_rows
from softargmax.sparse.torch_rows import entmax_out, entmax_rows, threshold_rows

Axes = tuple[int, ...]

compile_whole(getattr(sparse, name) for name in sparse.__all__)


def entmax(z: Tensor, axes: Axes, alpha: Any, where: Tensor | None, out: Tensor | None) -> Tensor:
    """[(alpha - 1) z - tau]_+^(1 / (alpha - 1))."""
    arguments = _arguments(z, axes, alpha, where)
    if out is not None:
        return write_into(entmax_out, out, arguments, ("z", "alpha"))
    return entmax_rows(*arguments)[0]


def threshold(z: Tensor, axes: Axes, alpha: Any, where: Tensor | None) -> tuple[Tensor, Tensor]:
    """Tau, and how many p are above 0 (-1 in a row of NaN)."""
    tau, support = threshold_rows(*_arguments(z, axes, alpha, where))
    return (tau.squeeze(axes), support.squeeze(axes)) if axes else (tau, support)


def loss(z: Tensor, beside: Any, options: Any) -> Tensor:
    """The loss of every row; by the definition, which torch differentiates, where the target is not one class."""
    if not options.plain:
        found: Tensor = reference_loss.loss(z, beside, options)
        return found
    z, alpha, where, axes, order = _arguments(z, (options.axis,), beside.alpha, beside.where)
    rows = loss_rows(z, beside.target, alpha, where, axes, order, options.ignore_index)[0]
    return rows.squeeze(options.axis)


def _arguments(z: Tensor, axes: Axes, alpha: Any, where: Tensor | None) -> tuple[Any, ...]:
    if isinstance(alpha, float):
        return z, None, where, axes, alpha
    rows = [
        1 if axis in axes else size for axis, size in enumerate(z.shape)
    ]  # torch sums the gradient of what they share
    return z, alpha.to(torch.float64).expand(rows), where, axes, 1.0
