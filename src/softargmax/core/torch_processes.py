"""What the processes of a torch process group exchange: the results of blocks, and sums over rows.

Results of blocks are gathered, and each process adds them up in the order of the processes. Large sums go from process
to process, and back. An all-reduce would add in an order that depends on the number of processes and on the size of the
message, so only sums in any order use one.
"""

from __future__ import annotations

import functools
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.distributed import distributed_c10d

from softargmax.core import _native
from softargmax.core.processes import SpreadAxes, processes_of, sizes_of
from softargmax.core.torch_private import is_batched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.distributed import ProcessGroup

group_of: Callable[[str], ProcessGroup] = getattr(distributed_c10d, "_resolve_process_group")  # noqa: B009 private
"""The process group with a name. Torch's functional collectives use this function, too."""


class Processes:
    """The processes of a group, and the number of scores per row in each. It serves one call of a kernel.

    `in_order`: True to add numbers of all processes in their order. The bits are then those of one process.
    """

    def __init__(self, group: ProcessGroup, sizes: tuple[int, ...], *, in_order: bool = True) -> None:
        self.group, self.sizes, self.rank, self.in_order = group, sizes, group.rank(), in_order
        self.is_known = False
        """True if the next `gather` needs nothing of this process, because all has been gathered before."""
        self.first = sum(sizes[: self.rank])
        """The place of this process's first score in a row."""
        self.starts = False  # the kernel's Shards and Args explain these
        self.first_row = self.all_queries = self.key_sums = 0
        self._parts: list[tuple[Tensor, Any]] = []
        """Parts of a sum, and the request that completes each."""
        self._sent: list[Any] = []
        self._expected: deque[Any] = deque()
        """Requests for the next parts of `from_previous`."""

    def note(self) -> bool:
        """True if this object notes that a call has found a number that is not finite, so that the call may go on."""
        return False

    def gather(self, mine: bytes, lengths: Sequence[int]) -> bytes:
        """Send bytes to all processes. Return what all have sent, in their order; process p has sent lengths[p]."""
        with self._giving_up():
            return b"".join(gathered(self.group, mine, lengths))

    def expect(self, part: memoryview) -> None:
        """Start to receive a part of a sum, for which a later `from_previous` waits. So it is sent when it is computed:
        gloo sends no message before the other process receives it.
        """
        if not self.in_order or not len(part):
            return
        with self._giving_up(), answering(self.group):
            self._expected.append(dist.irecv(_memory(part), group=self.group, group_src=self.rank - 1))

    def from_previous(self, part: memoryview) -> None:
        """Wait for a part of a sum, from the process before this one. `part` is the memory that it is written to.

        If numbers are added in any order, the part is 0: `to_next` adds those of the other processes.
        """
        x = _memory(part)
        if not self.in_order or not len(part):
            x.zero_()
            return
        with self._giving_up(), answering(self.group):
            if self._expected:
                self._expected.popleft().wait()
            else:
                dist.recv(x, group=self.group, group_src=self.rank - 1)

    def to_next(self, part: memoryview) -> None:
        """Send a part of a sum to the process after this one, or from the last one back. Do not wait for it."""
        if not len(part) or len(self.sizes) == 1:
            return
        x = _memory(part)
        with self._giving_up(), answering(self.group):
            if not self.in_order:
                self._parts.append((x, dist.all_reduce(x, group=self.group, async_op=True)))
            elif self.rank == len(self.sizes) - 1:
                self._send(x, self.rank - 1)
            else:
                self._send(x, self.rank + 1)
                # The sum can be received into memory that is being sent: it comes back when all of it has arrived.
                self._parts.append((x, dist.irecv(x, group=self.group, group_src=self.rank + 1)))

    def all_back(self) -> None:
        """Wait for all parts of the sum, and pass each on to the process before this one."""
        with self._giving_up(), answering(self.group):
            for x, request in self._parts:
                request.wait()
                if self.in_order and self.rank:
                    self._send(x, self.rank - 1)
            for request in self._sent:
                request.wait()
        self._parts.clear()  # a kernel may pass several results on, and no request can be waited for twice
        self._sent.clear()

    def _send(self, x: Tensor, to: int) -> None:
        self._sent.append(dist.isend(x, group=self.group, group_dst=to))

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Give up all messages after an error, because the memory of the parts may be freed then.

        An all-reduce cannot be given up. It fails soon if a process is gone, or at the timeout.
        """
        try:
            yield
        except BaseException:
            for _, request in () if self.in_order else self._parts:
                with suppress(RuntimeError):
                    request.wait()
            self._parts.clear()
            self._sent.clear()
            self._expected.clear()
            raise


_IN_ORDER, _IN_ANY_ORDER = "in order", "in any order"


def of_group(spread: str) -> Processes:
    """The processes of a torch group that have the rows."""
    group, order = spread.rpartition(":")[0].rsplit(":", 1)
    return Processes(group_of(group), sizes_of(spread), in_order=order == _IN_ORDER)


def spread_text(group: ProcessGroup, sizes: Sequence[int], *, in_order: bool = True) -> str:
    """The text that says how rows are spread (`processes_of`): the group, the order of sums, and scores per row."""
    return f"{group.group_name}:{_IN_ORDER if in_order else _IN_ANY_ORDER}:{','.join(map(str, sizes))}"


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


def gathered(group: ProcessGroup, mine: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Send bytes to all processes of a group. Return what each has sent; process p has sent lengths[p] bytes."""
    return [x.numpy().tobytes() for x in parts_of_all(group, _tensor(mine), lengths)]


def parts_of_all(group: ProcessGroup, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """x of every process of a group, of any dtype. Process p has sizes[p] entries along the first axis."""
    # All messages are padded to one length: gloo ends the process if lengths differ.
    sent = x.new_zeros((max(sizes), *x.shape[1:]))
    sent[: len(x)] = x
    if not sent.numel():
        return [sent[:n] for n in sizes]
    received = of_all(group, sent.view(torch.uint8))  # gloo sends no booleans
    return [one.view(x.dtype)[:n] for one, n in zip(received, sizes, strict=True)]


def of_all(group: ProcessGroup, x: Tensor) -> list[Tensor]:
    """x of every process of a group."""
    require_numbers(x)
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size())]
    with answering(group):
        dist.all_gather(parts, x.contiguous(), group=group)
    return parts


def require_numbers(x: Tensor) -> None:
    """Raise for a tensor without numbers of its own, which torch cannot send."""
    if not _native.still() and is_fake(x):
        raise NotImplementedError(
            "torch.compile: processes exchange nothing while they compile; only the functions of softargmax.parallel, "
            "those of DTensors, and losses of layers, are operators of a graph"
        )
    if is_batched(x):
        raise NotImplementedError(
            "is_grads_batched: not supported for rows that are spread over processes; pass one gradient at a time"
        )


def _tensor(data: bytes) -> Tensor:
    return _memory(memoryview(bytearray(data)))


_TYPES = {"B": torch.uint8, "f": torch.float32, "d": torch.float64}


def _memory(data: memoryview) -> Tensor:
    """A tensor in the same memory."""
    dtype = _TYPES[data.format]
    return torch.frombuffer(data, dtype=dtype) if len(data) else torch.empty(0, dtype=dtype)


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
        processes = processes_of(spread)
        return torch.cat(parts_of_all(processes.group, x.movedim(axis, 0), processes.sizes)).movedim(0, axis)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return part(g[0], *ctx.arguments), None, None


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, spread: str) -> Tensor:
        ctx.arguments = axis, spread
        processes = processes_of(spread)
        return x.narrow(axis, processes.first, processes.sizes[processes.rank]).clone()

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return whole(g[0], *ctx.arguments), None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, axes: SpreadAxes) -> Tensor:
        return functools.reduce(torch.add, _parts(x, axes))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.axes = inputs[1]

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return along(g[0], ctx.axes), None


class _Along(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, axes: SpreadAxes) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.axes = inputs[1]

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return total(g[0], ctx.axes), None
