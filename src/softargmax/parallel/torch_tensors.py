"""Calls of public functions with DTensors: a DTensor in gives a DTensor out.

The placements of z decide. If z is sharded along the axis of the rows, the rows are spread over that dimension of the
mesh. All other dimensions of the mesh have rows of their own. Other arguments are redistributed to fit z. A tensor that
is not a DTensor counts as replicated.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from softargmax.parallel.torch_spread import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LIKE_Z = ("softmax", "log_softmax")
"""Functions whose result is laid out like z."""
PER_ROW = ("logsumexp", "entropy", "kl_divergence", "cross_entropy")
"""Functions whose result has one number per row, or is one number."""


def call(function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]) -> DTensor:
    """Call a public function some of whose arguments are DTensors."""
    name = function.__name__
    if name not in (*LIKE_Z, *PER_ROW):
        supported = ", ".join((*LIKE_Z, *PER_ROW))
        raise NotImplementedError(f"DTensors are supported by {supported}; for {name}, pass x.full_tensor()")
    bound = inspect.signature(function).bind(*arguments, **options)
    bound.apply_defaults()
    given = bound.arguments
    of_z = next(iter(given))
    z = given[of_z]
    if not isinstance(z, DTensor):
        raise TypeError(f"{of_z}: expected a DTensor, as other arguments, got {type(z).__name__}")
    if not isinstance(given["axis"], int) or not -z.ndim <= given["axis"] < z.ndim:
        raise ValueError(f"axis: expected an integer from {-z.ndim} to {z.ndim - 1}, got {given['axis']!r}")
    rows = _Rows(z, given["axis"] % z.ndim)
    if rows.of_others and given.get("reduction", "none") != "none":
        raise NotImplementedError(
            "reduction: rows are sharded, too; pass reduction='none', and sum the DTensor of their losses"
        )
    local = {key: rows.local(key, x) if isinstance(x, torch.Tensor) else x for key, x in given.items()}
    by_position = [local.pop(key) for key, x in bound.signature.parameters.items() if x.kind is not x.KEYWORD_ONLY]
    if rows.dimension is None:
        found = function(*by_position, **local)
    else:
        found = spread(z.device_mesh.get_group(rows.dimension), function, *by_position, **local)
    return rows.result(found, like_z=name in LIKE_Z)


class _Rows:
    """The rows of a DTensor of scores, and where other arrays must be to fit them."""

    def __init__(self, z: DTensor, axis: int) -> None:
        self.mesh, self.axis, self.shape, self.stride = z.device_mesh, axis, z.shape, z.stride()
        self.placements = [Replicate() if isinstance(one, Partial) else one for one in z.placements]
        along = [k for k, one in enumerate(self.placements) if isinstance(one, Shard) and one.dim % z.ndim == axis]
        if len(along) > 1:
            raise ValueError(f"z: expected at most one dimension of the mesh along axis {axis}, got {len(along)}")
        self.dimension = along[0] if along else None
        self.of_others = any(isinstance(one, Shard) for k, one in enumerate(self.placements) if k not in along)

    def local(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return this process's part of an argument."""
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)
        places: list[Placement]
        if name == "weight":
            places = [Shard(0) if k == self.dimension else Replicate() for k in range(self.mesh.ndim)]
        elif name == "target" and x.ndim < len(self.shape):
            places = self.of_rows(kept=False)
        else:
            places = [self._beside(one, x) for one in self.placements]
        found: torch.Tensor = x.redistribute(self.mesh, places).to_local()
        return found

    def _beside(self, placement: Placement, x: torch.Tensor) -> Placement:
        """The placement of an array that broadcasts with z."""
        if not isinstance(placement, Shard):
            return placement
        dim = placement.dim % len(self.shape) - len(self.shape) + x.ndim
        return Shard(dim) if dim >= 0 and x.shape[dim] != 1 else Replicate()

    def of_rows(self, *, kept: bool) -> list[Placement]:
        """The placements of an array with one number per row. If `kept`, the axis is there with size 1."""
        places: list[Placement] = []
        for k, one in enumerate(self.placements):
            if k == self.dimension or not isinstance(one, Shard):
                places.append(Replicate())
            else:
                dim = one.dim % len(self.shape)
                places.append(Shard(dim - (dim > self.axis and not kept)))
        return places

    def result(self, found: torch.Tensor, *, like_z: bool) -> DTensor:
        """A result as a DTensor."""
        if like_z:
            return DTensor.from_local(
                found, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride
            )
        rows = [n for k, n in enumerate(self.shape) if k != self.axis]
        kept = found.ndim == len(self.shape)
        shape = torch.Size([n if k != self.axis else 1 for k, n in enumerate(self.shape)] if kept else rows)
        if found.ndim == 0 and len(rows) > 0:  # a sum or mean over all rows
            return DTensor.from_local(found, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)
        places = self.of_rows(kept=kept)
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(found, self.mesh, places, run_check=False, shape=shape, stride=stride)
