"""What operators do along the rows of a torch tensor; a number per row keeps the reduced axes as 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax.core.torch_memory import view

if TYPE_CHECKING:
    from collections.abc import Sequence


def row_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a number per row beside a result of this dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def per_row(z: Tensor, axes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory for a number per row."""
    return z.new_empty([1 if axis in axes else size for axis, size in enumerate(z.shape)], dtype=dtype)


def maybe(tensor: Tensor | None) -> Any:
    """The memory of a tensor as the kernels take it, if there is one."""
    return None if tensor is None else view(tensor)


def row_sum(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """<1, tensor>. (torch takes no axes for all axes.)"""
    return tensor.sum(tuple(axes), keepdim=True) if axes else tensor


def along(slope: Tensor, t: Tensor, axes: Sequence[int]) -> Tensor:
    """<slope, t> of each row; where the slope is 0, t is not looked at."""
    slope = slope.double()
    return row_sum(torch.where(slope == 0, 0, slope * t), axes)
