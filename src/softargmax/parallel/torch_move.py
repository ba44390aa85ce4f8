"""Move arrays between the processes of a group, from one layout to another. The derivative moves them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from softargmax.core.torch_processes import answering, require_numbers
from softargmax.parallel.layout import bounds, overlaps

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from softargmax.parallel.layout import Layout


def moved(x: Tensor, axis: int, group: ProcessGroup, have: Layout, want: Layout) -> Tensor:
    """Return this process's part of the layout `want`. x is its part of the layout `have`, along `axis`."""
    if have == want:
        return x
    return cast("Tensor", _Moved.apply(x, axis, group, have, want))  # type: ignore[no-untyped-call]


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, group: ProcessGroup, have: Layout, want: Layout) -> Tensor:
        ctx.arguments = axis, group, want, have
        return _exchanged(x, axis, group, have, want)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return moved(g[0], *ctx.arguments), None, None, None, None


def transposed(x: Tensor, part: int, whole: int, group: ProcessGroup, have: Layout, want: Layout) -> Tensor:
    """Return x with all of axis `part`, and this process's part of axis `whole`.

    x has this process's part of axis `part`, in the layout `have`, and all of axis `whole`. The layout of axis `whole`
    becomes `want`.
    """
    return cast("Tensor", _Transposed.apply(x, part, whole, group, have, want))  # type: ignore[no-untyped-call]


class _Transposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, part: int, whole: int, group: ProcessGroup, have: Layout, want: Layout) -> Tensor:
        require_numbers(x)
        ctx.arguments = whole, part, group, want, have
        shape = list(x.shape)
        shape[part], shape[whole] = sum(have), want[group.rank()]
        result = x.new_empty(shape)
        sent, places = (
            {of: a.narrow(axis, start, stop - start) for of, (start, stop) in enumerate(bounds(layout))}
            for a, axis, layout in ((x, whole, want), (result, part, have))
        )
        _exchange(group, sent, places)
        return result

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return transposed(g[0], *ctx.arguments), None, None, None, None, None


def _exchanged(x: Tensor, axis: int, group: ProcessGroup, have: Layout, want: Layout) -> Tensor:
    require_numbers(x)
    rank, shape = group.rank(), list(x.shape)
    shape[axis] = want[rank]
    result = x.new_empty(shape)
    sent = {to: x.narrow(axis, start, stop - start) for to, start, stop in overlaps(have, want, rank)}
    # What arrives from a process is what would be sent back to it.
    places = {of: result.narrow(axis, start, stop - start) for of, start, stop in overlaps(want, have, rank)}
    _exchange(group, sent, places)
    return result


def _exchange(group: ProcessGroup, sent: dict[int, Tensor], places: dict[int, Tensor]) -> None:
    """Send an array to each process of `sent`, and write the array that each process of `places` sends to its place."""
    rank = group.rank()
    if rank in sent:
        places.pop(rank).copy_(sent.pop(rank))
    buffers = {
        of: torch.empty_like(as_numbers(place), memory_format=torch.contiguous_format)
        for of, place in places.items()
        if place.numel()
    }
    with answering(group):
        requests = [dist.irecv(buffer, group=group, group_src=of) for of, buffer in buffers.items()]
        requests += [
            dist.isend(as_numbers(part).contiguous(), group=group, group_dst=to)
            for to, part in sent.items()
            if part.numel()
        ]
        for request in requests:
            if request is not None:  # it is None in a process outside of the group
                request.wait()
    for of, buffer in buffers.items():
        as_numbers(places[of]).copy_(buffer)


def as_numbers(x: Tensor) -> Tensor:
    """x, with integers in place of booleans: gloo sends no booleans."""
    return x.view(torch.uint8) if x.dtype is torch.bool else x
