"""What the processes of a torch process group exchange: the results of blocks, and sums over rows.

Every exchange is an all-gather, whose results each process adds up in the order of the processes. An all-reduce would
add them in an order that depends on the number of processes and on the size of the message.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from softargmax.core.processes import SpreadAxes, sizes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.distributed import ProcessGroup

group_of: Callable[[str], ProcessGroup] = getattr(distributed_c10d, "_resolve_process_group")  # noqa: B009 private
"""The process group with a name. Torch's functional collectives use this function, too."""


class Processes:
    """The processes of a group, and the number of scores per row in each."""

    def __init__(self, group: ProcessGroup, sizes: tuple[int, ...]) -> None:
        self.group, self.sizes, self.rank = group, sizes, group.rank()
        self._sent: list[Any] = []

    def gather(self, mine: bytes, lengths: Sequence[int]) -> bytes:
        """Send bytes to all processes. Return what all have sent, in their order; process p has sent lengths[p]."""
        return b"".join(gathered(self.group, mine, lengths))

    def from_previous(self, length: int) -> bytes:
        """Wait for bytes of the process before this one."""
        received = torch.empty(length, dtype=torch.uint8)
        with answering(self.group):
            dist.recv(received, group=self.group, group_src=self.rank - 1)
        return received.numpy().tobytes()

    def to_next(self, mine: bytes) -> None:
        """Send bytes to the process after this one. Do not wait until they have arrived."""
        with answering(self.group):
            self._sent.append(dist.isend(_tensor(mine), group=self.group, group_dst=self.rank + 1))

    def from_last(self, mine: bytes) -> bytes:
        """Return the bytes of the last process, which all processes get. Wait until all earlier bytes have arrived."""
        received = _tensor(mine)
        with answering(self.group):
            dist.broadcast(received, group=self.group, group_src=len(self.sizes) - 1)
            while self._sent:
                self._sent.pop().wait()
        return received.numpy().tobytes()


def processes_of(spread: str) -> Processes:
    """The processes that have the rows. Kernels call this function."""
    return Processes(group_of(spread.rpartition(":")[0]), sizes_of(spread))


def is_anywhere(flag: bool, spread: str) -> bool:
    """True if a flag is set in any of the processes that have the rows."""
    processes = processes_of(spread)
    return any(processes.gather(bytes([flag]), [1] * len(processes.sizes)))


def whole(x: Tensor, axis: int, spread: str) -> Tensor:
    """The parts of all processes along an axis. Every process has the gradient of the whole, and takes its part."""
    return cast("Tensor", _Whole.apply(x, axis, spread))  # type: ignore[no-untyped-call]


def part(x: Tensor, axis: int, spread: str) -> Tensor:
    """The part of an array along an axis that belongs to this process. The gradients of all parts are gathered."""
    return cast("Tensor", _Part.apply(x, axis, spread))  # type: ignore[no-untyped-call]


def spread_text(group: ProcessGroup, sizes: Sequence[int]) -> str:
    """The text that says how rows are spread (`processes_of`): the group, and the scores per row in each process."""
    return f"{group.group_name}:{','.join(map(str, sizes))}"


def gathered(group: ProcessGroup, mine: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Send bytes to all processes of a group. Return what each has sent; process p has sent lengths[p] bytes."""
    longest = max(lengths)
    if longest == 0:
        return [b""] * len(lengths)
    # All messages are padded to one length: gloo ends the process if lengths differ.
    received = of_all(group, _tensor(mine.ljust(longest, b"\0")))
    return [x[:n].numpy().tobytes() for x, n in zip(received, lengths, strict=True)]


def of_all(group: ProcessGroup, x: Tensor) -> list[Tensor]:
    """x of every process of a group."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size())]
    with answering(group):
        dist.all_gather(parts, x.contiguous(), group=group)
    return parts


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


@contextmanager
def answering(group: ProcessGroup) -> Iterator[None]:
    """Explain torch's error if another process does not answer."""
    try:
        yield
    except RuntimeError as error:
        message = (
            f"process {group.rank()} of {group.size()}: another process of the group did not answer; "
            "see the messages of the other processes. The group cannot be used again."
        )
        raise RuntimeError(message) from error


def total(x: Tensor, axes: SpreadAxes) -> Tensor:
    """The sum over the processes that have the rows, in their order. The derivative is passed on."""
    return cast("Tensor", _Total.apply(x, axes))  # type: ignore[no-untyped-call]


def along(x: Any, axes: SpreadAxes) -> Any:
    """x, which all processes have. The derivative is the sum over the processes that have the rows."""
    return _Along.apply(x, axes) if isinstance(x, Tensor) else x  # type: ignore[no-untyped-call]


def largest(x: Tensor, axes: SpreadAxes) -> Tensor:
    """The largest number over the processes that have the rows. It has no derivative."""
    return torch.stack(_parts(x.detach(), axes)).amax(0)


def _parts(x: Tensor, axes: SpreadAxes) -> list[Tensor]:
    """x of every process that has the rows."""
    return of_all(processes_of(axes.spread).group, x)


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, spread: str) -> Tensor:
        ctx.arguments = axis, spread
        processes, front = processes_of(spread), x.movedim(axis, 0)
        sent = front.new_zeros((max(processes.sizes), *front.shape[1:]))  # padded, as in `gathered`
        sent[: len(front)] = front
        parts = [sent] * len(processes.sizes)
        if sent.numel():
            parts = [one.view(x.dtype) for one in of_all(processes.group, sent.view(torch.uint8))]
        return torch.cat([one[:n] for one, n in zip(parts, processes.sizes, strict=True)]).movedim(0, axis)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return part(g[0], *ctx.arguments), None, None


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, spread: str) -> Tensor:
        ctx.arguments = axis, spread
        processes = processes_of(spread)
        return x.narrow(axis, sum(processes.sizes[: processes.rank]), processes.sizes[processes.rank]).clone()

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return whole(g[0], *ctx.arguments), None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: SpreadAxes) -> Tensor:
        return functools.reduce(torch.add, _parts(x, axes))

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return g[0], None


class _Along(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: SpreadAxes) -> Tensor:
        ctx.axes = axes
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return total(g[0], ctx.axes), None
