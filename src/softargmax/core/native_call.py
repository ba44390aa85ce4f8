"""Native kernels as functions of records, to be called from kernels written in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softargmax.core.memory import memory_of
from softargmax.core.record import branch, generated, passed

if TYPE_CHECKING:
    from collections.abc import Callable


class Native:
    """A native kernel as a function of a record and its results' memory; results after the first may be left out."""

    def __init__(self, kernel: Callable[..., Any], record: type[Any], results: tuple[str, ...]) -> None:
        self._kernel, self._tree, self._results = kernel, branch(record), results
        self._made: dict[type, Callable[..., Any]] = {}

    def __call__(self, i: Any, *results: Any) -> Any:
        """Run the kernel and return what it returns."""
        return (self._made.get(type(results[0])) or self._make(results[0]))(i, *results)

    def _make(self, array: Any) -> Callable[..., Any]:
        leaves = {leaf.name: leaf for leaf in self._tree.leaves}
        memory = memory_of(array)
        copies, call = passed(self._kernel, leaves, dict.fromkeys(self._results, True), memory)
        lines = [f"{self._tree.target}= _i", *copies, f"return {call}"]
        names = {f"_{name}": one for name, one in memory._asdict().items()}
        made = generated(f"_i, {', '.join(self._results)}", lines, _kernel=self._kernel, **names)
        self._made[type(array)] = made
        return made
