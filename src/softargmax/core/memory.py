"""How arrays are passed to native kernels, and how results are allocated, for NumPy (torch: torch_memory.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core.native import fresh

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


SMALL = 1 << 20


class Memory(NamedTuple):
    """How the arrays of one library are passed to kernels, and how results are allocated."""

    view: Callable[[Any], Any]
    """Convert an array to what the compiled core takes; `same` if it takes the array itself."""
    dense: Callable[[Any], Any]
    packed: Callable[[Any], Any]
    integers: Callable[[Any], Any]
    like: Callable[[Any, Any], Any]
    empty: Callable[[Any, tuple[int, ...], Any], Any]
    dtypes: Mapping[str, Any]
    numpy: Callable[[Any], Any]
    """A NumPy array of the same memory; for a bfloat16 tensor, its bits."""
    array: Callable[[Any], Any]
    """Convert a NumPy array to the library's own, except where `numpy` returned bits."""
    small_like: Callable[[Any], Any] | None = None
    """A single call that replaces `like` for arrays below SMALL bytes in their own dtype, if there is one."""
    small_empty: Callable[..., Any] | None = None
    """A single call that replaces `empty` where `of` is below SMALL bytes, and the result is about as large or less."""

    @property
    def direct(self) -> bool:
        """True if kernels accept the arrays directly, so that generated code converts nothing."""
        return self.view is same

    def like_code(self, of: str, dtype: str) -> str:
        """Code that allocates memory laid out like an array; inline for small tensors, as a call takes 0.2 us."""
        made = f"_like({of}, {dtype})"
        small = f"_small_like({of}) if {dtype} is {of}.dtype and {of}.nbytes < {SMALL} else {made}"
        return small if self.small_like else made

    def empty_code(self, of: str, shape: str, dtype: str) -> str:
        """Code that allocates memory of a given shape. For small tensors the code is inline, too."""
        made = f"_empty({of}, {shape}, {dtype})"
        small = f"_small_empty({of}, {shape}, dtype={dtype}) if {of}.nbytes < {SMALL} else {made}"
        return small if self.small_empty else made

    def kernel_result(self, result: str, *, optional: bool) -> str:
        """Code for the argument that a kernel receives for a result."""
        if self.direct:
            return result
        return f"None if {result} is None else _view({result})" if optional else f"_view({result})"


def memory_of(array: Any) -> Memory:
    """The memory functions for the library of an array."""
    return MEMORIES["numpy" if isinstance(array, np.ndarray) else "torch"]


def same(x: Any) -> Any:
    """Return the argument."""
    return x


def _like(x: Any, dtype: Any) -> Any:
    """Memory with the shape of an array; the pool provides large ones."""
    return np.empty(x.shape, dtype) if x.size < _SMALL else fresh(x.shape, dtype)


def _empty(of: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return np.empty(shape, dtype) if of.size < _SMALL else fresh(shape, dtype)


_SMALL = 1 << 12
NUMPY = Memory(
    view=same,
    dense=lambda x: np.ascontiguousarray(x, np.float64),
    packed=np.ascontiguousarray,
    integers=lambda x: np.ascontiguousarray(x, np.int64),
    like=_like,
    empty=_empty,
    dtypes={name: np.dtype(name) for name in ("float32", "float64", "int64", "bool")},
    numpy=same,
    array=same,
)


MEMORIES = {"numpy": NUMPY}
"""By kind of array. torch_memory.py adds torch's when the first tensor arrives."""
