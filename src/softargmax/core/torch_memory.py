"""Tensors' memory: as the compiled core reads it, and fresh for results."""

from __future__ import annotations

import torch
from torch import Tensor

from softargmax import _native
from softargmax.core.native import TYPES, View

_CODES = {getattr(torch, name): code for name, code in TYPES.items()}


def view(tensor: Tensor) -> View:
    """A tensor in CPU memory, as the compiled core takes it: four integers cost a tenth of a DLPack capsule."""
    return tensor.data_ptr(), _CODES[tensor.dtype], tensor.shape, tensor.stride()


def fresh_like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for a result of the tensor's shape, laid out like it; from the pool if it is large."""
    if tensor.numel() * dtype.itemsize < _native.POOLED:
        return torch.empty_like(tensor) if tensor.dtype is dtype else torch.empty_like(tensor, dtype=dtype)
    strides = torch.empty_like(tensor, dtype=dtype, device="meta").stride()
    memory = torch.frombuffer(_native.memory(tensor.numel() * dtype.itemsize), dtype=torch.uint8)
    # Not a view of that: a result that was one could not be changed in place where it was made under no_grad.
    return torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), 0, tensor.shape, strides)
