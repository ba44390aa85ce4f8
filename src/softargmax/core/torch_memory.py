"""Tensors' memory: as the compiled core reads it, and fresh for results."""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softargmax.core.native import TYPES, View

if TYPE_CHECKING:
    from collections.abc import Callable

_CODES = {getattr(torch, name): code for name, code in TYPES.items()}
_LARGE = 4 << 20  # bytes from which NumPy, too, asks for huge pages


def view(tensor: Tensor) -> View:
    """A tensor in CPU memory, as the compiled core takes it: four integers cost a tenth of a DLPack capsule."""
    return tensor.data_ptr(), _CODES[tensor.dtype], tensor.shape, tensor.stride()


def fresh_like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for a result of the tensor's shape, laid out like it, in huge pages if it is large.

    torch does not ask for them: the page faults of new 64 MiB in pages of 4 KiB take 15 ms, three times a softmax.
    """
    result = torch.empty_like(tensor) if tensor.dtype is dtype else torch.empty_like(tensor, dtype=dtype)
    size = result.nbytes
    if size >= _LARGE and _madvise is not None:
        first = -(-result.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (result.data_ptr() + size) // mmap.PAGESIZE * mmap.PAGESIZE
        _madvise(first, last - first, mmap.MADV_HUGEPAGE)  # advice: what the system answers does not matter
    return result


def _find_madvise() -> Callable[[int, int, int], int] | None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return madvise


_madvise = _find_madvise()
