"""How arrays reach native kernels, and where memory for results comes from: NumPy's (torch's: torch_memory.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core.native import fresh

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


SMALL = 1 << 20


class Memory(NamedTuple):
    """How the arrays of a library reach kernels, and where results come from."""

    view: Callable[[Any], Any]
    """What the compiled core takes in place of an array; `same` where that is the array."""
    dense: Callable[[Any], Any]
    packed: Callable[[Any], Any]
    integers: Callable[[Any], Any]
    like: Callable[[Any, Any], Any]
    empty: Callable[[Any, tuple[int, ...], Any], Any]
    row_dtype: Callable[[Any], Any]
    dtypes: Mapping[str, Any]
    numpy: Callable[[Any], Any]
    """NumPy's array of the same memory; of a tensor's bfloat16 the bits."""
    array: Callable[[Any], Any]
    """From NumPy's array to the library's own, where `numpy` did not return bits."""
    alike: Callable[[Any], Any] | None = None
    """What `like` comes to for arrays below SMALL bytes and their own dtype, where that is one call."""

    @property
    def direct(self) -> bool:
        """Whether kernels take arrays as they are: then generated code calls nothing for them."""
        return self.view is same

    def laid_like(self, of: str, dtype: str) -> str:
        """Code for memory laid out like an array: of small tensors the call itself, as a function takes 0.2 us."""
        made = f"_like({of}, {dtype})"
        return f"_alike({of}) if {dtype} is {of}.dtype and {of}.nbytes < {SMALL} else {made}" if self.alike else made

    def seen(self, result: str, *, optional: bool) -> str:
        """Code for what a kernel is given of a result."""
        if self.direct:
            return result
        return f"None if {result} is None else _view({result})" if optional else f"_view({result})"


def memory_of(array: Any) -> Memory:
    """The memory of an array that native kernels can read."""
    return MEMORIES["numpy" if isinstance(array, np.ndarray) else "torch"]


def same(x: Any) -> Any:
    """The argument."""
    return x


def _like(x: Any, dtype: Any) -> Any:
    """Memory of an array's shape; from the pool where that may pay."""
    return np.empty(x.shape, dtype) if x.size < _SMALL else fresh(x.shape, dtype)


def _empty(beside: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return np.empty(shape, dtype) if beside.size < _SMALL else fresh(shape, dtype)


_SMALL = 1 << 12
_FLOAT64 = np.dtype(np.float64)
NUMPY = Memory(
    view=same,
    dense=lambda x: np.ascontiguousarray(x, np.float64),
    packed=np.ascontiguousarray,
    integers=lambda x: np.ascontiguousarray(x, np.int64),
    like=_like,
    empty=_empty,
    row_dtype=lambda dtype: _FLOAT64 if dtype == _FLOAT64 else np.dtype(np.float32),
    dtypes={name: np.dtype(name) for name in ("float32", "float64", "int64", "bool")},
    numpy=same,
    array=same,
)


MEMORIES = {"numpy": NUMPY}
"""By kind of array; torch's joins when the first tensor comes in."""
