"""Move scores between the processes of a group, from one layout to another. The derivative moves them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from softargmax.core.torch_processes import answering
from softargmax.parallel.layout import overlaps

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


def _exchanged(x: Tensor, axis: int, group: ProcessGroup, have: Layout, want: Layout) -> Tensor:
    if x.dtype is torch.bool:  # gloo sends no booleans
        return _exchanged(x.view(torch.uint8), axis, group, have, want).view(torch.bool)
    rank, shape = group.rank(), list(x.shape)
    shape[axis] = want[rank]
    result = x.new_empty(shape)
    sent = {to: x.narrow(axis, start, stop - start) for to, start, stop in overlaps(have, want, rank)}
    # What arrives from a process is what would be sent back to it.
    places = {of: result.narrow(axis, start, stop - start) for of, start, stop in overlaps(want, have, rank)}
    if rank in sent:
        places.pop(rank).copy_(sent.pop(rank))
    buffers = {of: torch.empty_like(place, memory_format=torch.contiguous_format) for of, place in places.items()}
    with answering(group):
        requests = [dist.irecv(buffer, group=group, group_src=of) for of, buffer in buffers.items()]
        requests += [dist.isend(part.contiguous(), group=group, group_dst=to) for to, part in sent.items()]
        for request in requests:
            if request is not None:  # it is None in a process outside of the group
                request.wait()
    for of, place in places.items():
        place.copy_(buffers[of])
    return result
