"""Rows that are spread over the processes of a group.

Each process has whole blocks of every row (`Operation.block` scores), in the order of the processes. A kernel computes
the results of its own blocks, and gathers those of all processes. Then every process merges them from left to right, as
one process would. So the results have the same bits for any number of processes.

A call may also compute one part without processes, if it is given what the calls for the other parts have found
(parallel/parts.py).
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

from softargmax.core.dispatch import PROCESSES, requesting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class SpreadAxes(tuple[int, ...]):  # noqa: SLOT001 a subclass of tuple cannot have slots
    """The axes of rows that are spread over processes.

    `spread` is text, so that a graph of torch can store it: the name of the process group, and the number of scores per
    row in each process.
    """

    spread: str

    def __new__(cls, axes: Sequence[int], spread: str) -> Self:
        """Make axes of their numbers."""
        self = super().__new__(cls, axes)
        self.spread = spread
        return self


def sizes_of(spread: str) -> tuple[int, ...]:
    """The number of scores per row in each process."""
    return tuple(map(int, spread.rpartition(":")[2].split(",")))


def whole_shape(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """The shape of an array with whole rows, from the shape of this process's part."""
    if not isinstance(axes, SpreadAxes):
        return tuple(shape)
    return tuple(sum(sizes_of(axes.spread)) if k in axes else n for k, n in enumerate(shape))


_STANDING_IN: dict[str, Any] = {}


@contextmanager
def standing_in(processes: Any) -> Iterator[str]:
    """A text for which `processes_of` returns this object, in place of the processes of a torch group."""
    spread = f"{id(processes)}:{','.join(map(str, processes.sizes))}"
    _STANDING_IN[spread] = processes
    try:
        yield spread
    finally:
        del _STANDING_IN[spread]


def processes_of(spread: str) -> Any:
    """The processes that have the rows. Kernels call this function."""
    return _STANDING_IN[spread] if spread in _STANDING_IN else exchanges().of_group(spread)


def exchanges() -> Any:
    """The functions by which the processes of a torch group exchange arrays."""
    return importlib.import_module("softargmax.core.torch_processes")


def refuse_spread(axes: Sequence[int] | str | None) -> None:
    """Raise NotImplementedError for rows that are spread over processes, of which a definition would see a part."""
    if isinstance(axes, SpreadAxes | str):
        raise NotImplementedError(
            "rows that are spread over processes: only the native kernels compute them, and no kernel computes this "
            "call or this derivative; bring the rows together in one process"
        )


_server: ContextVar[Callable[[Any, Any, bool, Any], Any]] = ContextVar("softargmax server of spread rows")


@contextmanager
def spreading(server: Callable[[Any, Any, bool, Any], Any]) -> Iterator[None]:
    """Let `server(operation, record, first, out)` compute all operations inside the block (`Operation.server`)."""
    token = _server.set(server)
    try:
        with requesting(PROCESSES):
            yield
    finally:
        _server.reset(token)


def over_processes(operation: Any, i: Any, first: bool = False, out: Any = None) -> Any:
    """Compute an operation by the server of the enclosing `spreading` block."""
    return _server.get()(operation, i, first, out)
