"""Sharding rules of DTensors for torch operators: each process computes rows of its own, and sends nothing.

A rule follows from the record of an operation with `axes`. The axes of its first array before those of a row count
rows. Each of them can be cut, together with the axes of the other arrays that belong to it. A result is then cut along
the axis whose length depends on that of the cut axis. If there is none, as in a mean over all rows, the rule does not
offer the cut. Torch brings arrays that are placed in another way to the nearest placement that a rule offers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from softargmax.core.import_hook import when_imported
from softargmax.core.record import ARRAY, AXES, BETA, LEADING, ROWWISE, SEED
from softargmax.core.torch_memory import DEVICE
from softargmax.core.torch_private import register_sharding

if TYPE_CHECKING:
    from collections.abc import Sequence

_BROADCAST = (ARRAY, ROWWISE, BETA)
"""Kinds of arrays that broadcast with the first array. All other arrays begin with its axes before those of a row."""
_SHAPES = DEVICE._replace(like=lambda x, _: tuple(x.shape), empty=lambda _, shape, __: tuple(shape))
"""What computes the shapes of results, and makes no results."""

Placements = tuple[list[Any], list[Any]]
"""The placements of all results, and those of all slots. A slot without an array has None."""


class _Shape(NamedTuple):
    """What stands for an array."""

    shape: tuple[int, ...]
    dtype: Any

    @property
    def ndim(self) -> int:
        return len(self.shape)


def shard_rows(of: Any) -> bool:
    """Register the rule of an operator once DTensors are imported. Return False if no rule follows from its record.

    Draws have no rule, because they may depend on the number of their row.
    """
    kinds = of.slots.kinds
    if AXES not in kinds or SEED in kinds or of.operation.batch is not None:
        return False
    rule = partial(_rule, of, of.operation.launcher(lambda: None, _SHAPES))
    when_imported("torch.distributed.tensor", partial(register_sharding, of.overload, rule))
    return True


def _rule(of: Any, shapes: Any, flat: Sequence[Any]) -> list[Placements]:
    """The placements for which each process can compute alone."""
    from torch.distributed.tensor import Replicate

    kinds = of.slots.kinds
    given = [_Shape(tuple(x.shape), x.tensor_meta.dtype) if hasattr(x, "tensor_meta") else x for x in flat]
    whole = [Replicate() if isinstance(x, _Shape) else None for x in given]
    axes = given[kinds.index(AXES)]
    leading = min([*axes, *(x for kind, x in zip(kinds, given, strict=True) if kind is LEADING)], default=0)
    cuts = (_cut(of, shapes, given, axis) for axis in range(leading))
    return [([Replicate()] * len(of.operation.fields), whole), *filter(None, cuts)]


def _cut(of: Any, shapes: Any, given: list[Any], axis: int) -> Placements | None:
    """The placements in which an axis of the first array is cut, or None if no process could compute alone."""
    from torch.distributed.tensor import Replicate, Shard

    first = next(x for x in given if isinstance(x, _Shape))
    length, longer = first.shape[axis], list(given)
    inputs: list[Any] = [None] * len(given)
    for place, (kind, x) in enumerate(zip(of.slots.kinds, given, strict=True)):
        if isinstance(x, _Shape):
            at = axis + (x.ndim - first.ndim if kind in _BROADCAST else 0)
            its = x.shape[at] if 0 <= at < x.ndim else 1
            if its == length != 1:
                longer[place] = x._replace(shape=(*x.shape[:at], its + 1, *x.shape[at + 1 :]))
                inputs[place] = Shard(at)
            elif its == 1 and kind in _BROADCAST:
                inputs[place] = Replicate()
            else:
                return None
    results = []
    for before, after in zip(*(_all(shapes(of.unflatten(*x)), of) for x in (given, longer)), strict=True):
        cut = [k for k, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
        if not cut and before != (0,):  # the kernel does not compute a result of the shape (0,)
            return None
        results.append(Shard(cut[0]) if cut else Replicate())
    return results, inputs


def _all(found: Any, of: Any) -> Any:
    return found if of.many else (found,)
