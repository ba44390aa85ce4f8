"""Move arrays between the processes of a group, from one layout to another. The derivative moves them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from softargmax.core.torch_processes import answering, require_numbers
from softargmax.parallel.layout import (
    in_order,
    places_in_row,
    places_of,
    sends,
    sizes_of_chunks,
    sizes_of_processes,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from softargmax.parallel.layout import Chunks, Layout


def moved(x: Tensor, axis: int, group: ProcessGroup, have: Layout, want: Layout) -> Tensor:
    """Return this process's part of the layout `want`. x is its part of the layout `have`, along `axis`."""
    return rearranged(x, axis, group, in_order(have), in_order(want))


def rearranged(x: Tensor, axis: int, group: ProcessGroup, have: Chunks, want: Chunks) -> Tensor:
    """Return this process's chunks of `want`, one after the other. x has those of `have`, along `axis`."""
    if have == want:
        return x
    return cast("Tensor", _Rearranged.apply(x, axis, group, have, want))  # type: ignore[no-untyped-call]


class _Rearranged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, group: ProcessGroup, have: Chunks, want: Chunks) -> Tensor:
        ctx.arguments = axis, group, want, have
        return _exchanged(x, axis, group, have, want)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return rearranged(g[0], *ctx.arguments), None, None, None, None


def transposed(x: Tensor, part: int, whole: int, group: ProcessGroup, have: Chunks, want: Chunks) -> Tensor:
    """Return x with all of axis `part`, and this process's chunks of axis `whole`, one after the other.

    x has this process's chunks of axis `part`, those of `have`, and all of axis `whole`. The chunks of axis `whole`
    become those of `want`.
    """
    return cast("Tensor", _Transposed.apply(x, part, whole, group, have, want))  # type: ignore[no-untyped-call]


class _Transposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, part: int, whole: int, group: ProcessGroup, have: Chunks, want: Chunks) -> Tensor:
        require_numbers(x)
        ctx.arguments = whole, part, group, want, have
        rank, shape = group.rank(), list(x.shape)
        shape[part], shape[whole] = sum(sizes_of_chunks(have)), sizes_of_processes(want, group.size())[rank]
        result = x.new_empty(shape)
        own_parts, own_wholes = places_of(have, rank), places_of(want, rank)
        sent = [
            (to, x.narrow(whole, first, last - first).narrow(part, start, stop - start))
            for to, first, last in places_in_row(want)
            for start, stop in own_parts
        ]
        places = [
            (of, result.narrow(whole, first, last - first).narrow(part, start, stop - start))
            for first, last in own_wholes
            for of, start, stop in places_in_row(have)
        ]
        _exchange(group, sent, places)
        return result

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return transposed(g[0], *ctx.arguments), None, None, None, None, None


def _exchanged(x: Tensor, axis: int, group: ProcessGroup, have: Chunks, want: Chunks) -> Tensor:
    require_numbers(x)
    rank, shape = group.rank(), list(x.shape)
    shape[axis] = sizes_of_processes(want, group.size())[rank]
    result = x.new_empty(shape)
    sent = [(to, x.narrow(axis, start, stop - start)) for to, start, stop in sends(have, want, rank)]
    # What arrives from a process is what would be sent back to it.
    places = [(of, result.narrow(axis, start, stop - start)) for of, start, stop in sends(want, have, rank)]
    _exchange(group, sent, places)
    return result


def _exchange(group: ProcessGroup, sent: list[tuple[int, Tensor]], places: list[tuple[int, Tensor]]) -> None:
    """Send arrays to processes, and write the arrays that processes send to their places.

    Arrays for the same process arrive in the order in which they are sent.
    """
    rank = group.rank()
    for (_, place), (_, part) in zip(_of(places, rank), _of(sent, rank), strict=True):
        place.copy_(part)
    buffers = [
        (of, place, torch.empty_like(as_numbers(place), memory_format=torch.contiguous_format))
        for of, place in places
        if place.numel() and of != rank
    ]
    with answering(group):
        requests = [dist.irecv(buffer, group=group, group_src=of) for of, _, buffer in buffers]
        requests += [
            dist.isend(as_numbers(part).contiguous(), group=group, group_dst=to)
            for to, part in sent
            if part.numel() and to != rank
        ]
        for request in requests:
            if request is not None:  # it is None in a process outside of the group
                request.wait()
    for _, place, buffer in buffers:
        as_numbers(place).copy_(buffer)


def _of(arrays: list[tuple[int, Tensor]], process: int) -> list[tuple[int, Tensor]]:
    return [one for one in arrays if one[0] == process]


def as_numbers(x: Tensor) -> Tensor:
    """x, with integers in place of booleans: gloo sends no booleans."""
    return x.view(torch.uint8) if x.dtype is torch.bool else x
