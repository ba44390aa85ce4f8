"""Passing tensors to the compiled core and allocating results, for torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax.core import _native
from softargmax.core.memory import MEMORIES, Memory, same
from softargmax.core.native import TYPES, View
from softargmax.core.torch_private import wrapped

if TYPE_CHECKING:
    import numpy as np

# Huge pages are requested for tensors of at least this size, in bytes, as NumPy does for its arrays. torch requests
# none, and with pages of 4 KiB the page faults of 16 MiB take 6 ms.
_LARGE = 4 << 20
_POOLED = _native.POOLED
_ORDINARY = (Tensor, torch.nn.Parameter)
_CODES = {getattr(torch, name): code for name, code in TYPES.items()}


def view(tensor: Tensor) -> View:
    """A tensor in CPU memory as a tuple, the form that the compiled core needs with torch before 2.10."""
    return tensor.data_ptr(), _CODES[tensor.dtype], tensor.shape, tensor.stride()


def fresh_like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for a result with the tensor's shape and layout. Large results come from the pool (allocator.hpp).

    Like NumPy's memory, memory from the pool cannot grow in place (`resize_`).
    """
    size = tensor.numel() * dtype.itemsize
    if size < _POOLED or type(tensor) not in _ORDINARY:
        # Passing the dtype takes 0.27 us of a call's 1.18 us (Zen 4), so the tensor's own dtype is not passed.
        result = torch.empty_like(tensor) if dtype is tensor.dtype else torch.empty_like(tensor, dtype=dtype)
        if size >= _LARGE:
            _native.want_huge_pages(result.data_ptr(), size)
        return result
    return _pooled(size, torch.empty_like(tensor, dtype=dtype, device="meta"))


def fresh_empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Contiguous memory for a result. Large results come from the pool."""
    size = math.prod(shape) * dtype.itemsize
    if size < _POOLED or type(like) not in _ORDINARY:
        # A tuple of sizes and a dtype take time, so sizes are separate arguments, and like's own dtype is not passed.
        sizes = shape or ((),)
        return like.new_empty(*sizes) if dtype is like.dtype else like.new_empty(*sizes, dtype=dtype)
    return _pooled(size, torch.empty(shape, dtype=dtype, device="meta"))


def _pooled(size: int, like: Tensor) -> Tensor:
    memory = torch.frombuffer(_native.memory(size), dtype=torch.uint8)
    # The result is not a view of `memory`, because a view made under no_grad could not be changed in place.
    return torch.empty(0, dtype=like.dtype, device="cpu").set_(memory.untyped_storage(), 0, like.shape, like.stride())


def shared(x: Any) -> Any:
    """A NumPy array of a tensor's memory. Other objects are returned unchanged.

    For a bfloat16 tensor the array contains the bits as uint16.
    """
    if not isinstance(x, Tensor):
        return x
    x = x.detach()
    return (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()


def returned(array: np.ndarray[Any, Any], dtype: torch.dtype) -> Tensor:
    """Convert a NumPy array returned by `shared` back to a tensor."""
    found = torch.from_numpy(array)
    return found.view(dtype) if dtype == torch.bfloat16 else found


_DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64, "bool": torch.bool}


def _dense(x: Tensor) -> Tensor:
    # Each call is made only if needed: a torch call that changes nothing takes 0.3 us to 0.8 us.
    x = x.detach() if x.requires_grad else x
    return (x if x.dtype is torch.float64 else x.double()).contiguous()


def _integers(x: Tensor) -> Tensor:
    return (x if x.dtype is torch.int64 else x.to(torch.int64)).contiguous()


CPU = Memory(
    view=same if _native.know_tensors(*_ORDINARY, wrapped, torch.is_grad_enabled) else view,
    dense=_dense,
    packed=lambda x: x.contiguous(),
    integers=_integers,
    like=fresh_like,
    empty=fresh_empty,
    dtypes=_DTYPES,
    numpy=shared,
    array=torch.from_numpy,
    small_like=torch.empty_like,
    small_empty=Tensor.new_empty,
)
MEMORIES["torch"] = CPU
DEVICE = CPU._replace(
    view=same,
    like=lambda x, dtype: torch.empty_like(x, dtype=dtype),
    empty=lambda x, shape, dtype: x.new_empty(shape, dtype=dtype),
    small_like=None,
    small_empty=None,
)
