"""Passing arrays to native kernels and allocating results, for NumPy (torch: torch_memory.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core.native import fresh

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


SMALL_BYTES = 1 << 20


class Memory(NamedTuple):
    """Functions that pass the arrays of one library to kernels and allocate results."""

    view: Callable[[Any], Any]
    """Convert an array to a form that the compiled core accepts; `same` if the core accepts the array itself."""
    dense: Callable[[Any], Any]
    packed: Callable[[Any], Any]
    integers: Callable[[Any], Any]
    like: Callable[[Any, Any], Any]
    empty: Callable[[Any, tuple[int, ...], Any], Any]
    dtypes: Mapping[str, Any]
    numpy: Callable[[Any], Any]
    """Return a NumPy array of the same memory. For a bfloat16 tensor it contains the bits as uint16."""
    array: Callable[[Any], Any]
    """Convert a NumPy array to an array of the library. The bits of bfloat16 stay uint16."""
    small_like: Callable[[Any], Any] | None = None
    """None, or a faster `like` for arrays of less than SMALL_BYTES. The result has the array's dtype."""
    small_empty: Callable[..., Any] | None = None
    """None, or a faster `empty` for calls in which the first argument has less than SMALL_BYTES.

    It is meant for results that are not much larger than the first argument.
    """

    @property
    def direct(self) -> bool:
        """True if kernels accept the arrays directly. Then generated code does not convert them."""
        return self.view is same

    def like_code(self, of: str, dtype: str) -> str:
        """Code that allocates memory laid out like an array.

        For small tensors the code calls torch directly, because a call of a Python function takes 0.2 us.
        """
        made = f"_like({of}, {dtype})"
        small = f"_small_like({of}) if {dtype} is {of}.dtype and {of}.nbytes < {SMALL_BYTES} else {made}"
        return small if self.small_like else made

    def empty_code(self, of: str, shape: str, dtype: str) -> str:
        """Code that allocates memory of a given shape. For small tensors the code calls torch directly."""
        made = f"_empty({of}, {shape}, {dtype})"
        small = f"_small_empty({of}, {shape}, dtype={dtype}) if {of}.nbytes < {SMALL_BYTES} else {made}"
        return small if self.small_empty else made

    def nothing_code(self, of: str) -> str:
        """Code that allocates an array of shape (0,), with the dtype of an array."""
        return f"_small_empty({of}, 0)" if self.small_empty else f"_empty({of}, (0,), {of}.dtype)"

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
    """New memory with the shape of an array, from the pool if it is large."""
    return np.empty(x.shape, dtype) if x.size < _SMALL_SIZE else fresh(x.shape, dtype)


def _empty(of: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return np.empty(shape, dtype) if of.size < _SMALL_SIZE else fresh(shape, dtype)


_SMALL_SIZE = 1 << 12  # for fewer elements, asking the pool would take longer than np.empty
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
"""The functions of each library. torch_memory.py adds those of torch when a call receives the first tensor."""
