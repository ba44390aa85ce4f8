"""Checks of `out=`, the array that a result is written into. They run before anything is written."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from softargmax.core.arrays import as_array, is_strict, is_torch, kind_of, readable


def output(out: Any, z: Any, dtype: Any, where: Any = None, scale: Any = ()) -> None:
    """Check that a result of z's shape and this dtype can be written into `out`.

    `out` may be z itself. It may overlap neither a part of z nor `where`, because memory would be overwritten before it
    is read.
    """
    kind = kind_of(z)
    if kind not in ("numpy", "torch", "torch-cuda", "torch-device") and not is_strict(z):
        raise TypeError(f"out: expected None, as {type(z).__name__} cannot be written into, got {type(out).__name__}")
    if isinstance(out, np.ma.MaskedArray):
        raise TypeError("out: expected a plain array, got a masked array; pass its data")
    wanted = np.ndarray if kind == "numpy" else type(as_array(z)) if not is_torch(z) else None
    if (wanted is None and not is_torch(out)) or (wanted is not None and not isinstance(out, wanted)):
        raise TypeError(f"out: expected z's kind, {type(z).__name__}, got {type(out).__name__}")
    if is_torch(z):
        _check_tensor(out, z, where, *scale)
        if any(is_torch(part) and part.requires_grad for part in scale):
            raise TypeError("out: temperature requires grad, but results that are written into out have no derivative")
    if tuple(out.shape) != tuple(z.shape):
        raise ValueError(f"out: expected z's shape, {tuple(z.shape)}, got {tuple(out.shape)}")
    if out.dtype != dtype:
        raise TypeError(f"out: expected dtype {dtype}, got {out.dtype}; dtype= selects another")
    if kind == "numpy" and not out.flags.writeable:
        raise ValueError("out: expected an array that can be written, got a read-only one")
    if readable(out) and readable(z):  # a traced tensor has no memory yet
        _check_overlap(out, z, where)


def fits(out: Any, z: Any) -> bool:
    """True if a quick test shows that `out` is valid: contiguous, like z in type, dtype and shape, and
    not in z's memory.

    Nearly every valid `out` passes this test. If the scores have evicted all other data from the caches, the test
    shortens the checks of a call from 70 us to 40 us.
    """
    if type(out) is not type(z) or out.dtype != z.dtype or out.shape != z.shape or not readable(z):
        return False
    if is_torch(z):
        both = out.layout == z.layout and out.is_cpu and not (out.requires_grad or z.requires_grad or out.is_neg())
        dense = both and out.is_contiguous() and z.is_contiguous()
    else:
        dense = out.flags.c_contiguous and out.flags.writeable
    return dense and not _may_overlap(out, z)


def _may_overlap(out: Any, z: Any) -> bool:
    if not is_torch(z):
        return bool(np.may_share_memory(out, z))
    start, other = out.data_ptr(), z.data_ptr()
    return bool(start < other + z.nbytes and other < start + out.nbytes)


def _check_tensor(out: Any, z: Any, *others: Any) -> None:
    if any(_batched(tensor) for tensor in (out, z, *others) if is_torch(tensor)):
        raise TypeError("out: expected None inside torch.func.vmap, which cannot write into an array, got a tensor")
    if out.requires_grad or z.requires_grad:
        name = "out" if out.requires_grad else "z"
        raise TypeError(f"out: {name} requires grad, but results that are written into out have no derivative")
    if out.layout != z.layout:
        raise TypeError(f"out: expected a dense tensor, of z's layout {z.layout}, got layout {out.layout}")
    if out.is_neg():
        raise ValueError("out: expected a tensor whose memory contains its values, got a lazily negated view")
    if out.device != z.device:
        raise ValueError(f"out: expected a tensor on z's device, {z.device}, got one on {out.device}")


def _batched(tensor: Any) -> bool:
    """True if a tensor is batched by torch.func.vmap."""
    functorch = getattr(sys.modules["torch"]._C, "_functorch", None)  # noqa: SLF001 torch has no public API for this
    return bool(getattr(functorch, "is_batchedtensor", lambda _: False)(tensor))


def _check_overlap(out: Any, z: Any, where: Any) -> None:
    target = _memory(out)
    if not _distinct(target):
        raise ValueError("out: expected elements with separate memory, got an array whose elements share memory")
    source = _memory(z)
    same = target.ctypes.data == source.ctypes.data and target.strides == source.strides and out.dtype == z.dtype
    if not same and _shared(target, source):
        raise ValueError("out: expected z itself or separate memory, got an array that overlaps a part of z")
    if where is not None and _shared(target, _memory(where)):
        raise ValueError("out: expected memory separate from that of `where`, got an array that overlaps it")


def _distinct(target: Any) -> bool:
    """True if no two elements share memory.

    The test requires each stride to be at least as long as the memory that the axes with smaller strides cover.

    It also rejects some layouts whose elements interleave without sharing memory.
    """
    reach = target.itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(target.strides, target.shape, strict=True)):
        if size > 1 and stride < reach:
            return False
        reach += stride * (size - 1)
    return True


def _memory(array: Any) -> Any:
    """A NumPy view of an array in CPU memory, with the same element size. Tensors are viewed as integers."""
    if not is_torch(array):
        return array
    import torch

    if array.is_neg():  # a view of the memory itself, without the lazy negation
        array = torch._neg_view(array)  # noqa: SLF001 torch has no public API for this
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return array.detach().view(bits[array.element_size()]).numpy()


def _shared(a: Any, b: Any) -> bool:
    try:
        work: Any = 100_000
        return bool(np.may_share_memory(a, b) and np.shares_memory(a, b, max_work=work))
    except np.exceptions.TooHardError:
        return True  # NumPy could not decide within the work limit, so `out` is refused
