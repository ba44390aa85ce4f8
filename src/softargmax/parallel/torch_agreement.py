"""What the processes of a group compare before they exchange scores.

Every process checks its own arguments, and tells all others whether they were good. If one of them has found an error,
or if the arguments do not fit together, all processes raise the same error, and none waits for another. What is
compared follows from the operation's record: dtypes, shapes without the spread axis, numbers, and the values of arrays
that all processes must have, such as targets.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from softargmax.core.record import ARRAY, AXES
from softargmax.core.torch_processes import gathered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from softargmax.parallel.layout import Layout

_HEADER = struct.Struct("<8sqq?")  # digest of the facts, scores per row, length of the text, True for an error
_ERRORS = {kind.__name__: kind for kind in (ValueError, TypeError, IndexError, NotImplementedError)}


class Facts(NamedTuple):
    """What a process tells the others of its arguments."""

    axis: int
    """The axis along which rows are spread."""
    columns: int
    """The number of scores per row in this process."""
    named: list[tuple[str, str]]
    """What must be equal in all processes: names and texts."""


def process_group(group: ProcessGroup | DeviceMesh | None) -> ProcessGroup:
    """The group of an argument: a process group, a device mesh with one dimension, or None for all processes."""
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError("group: there is no process group; call torch.distributed.init_process_group first")
    found: Any = dist.group.WORLD if group is None else group
    if hasattr(found, "get_group"):
        if found.ndim != 1:
            raise ValueError(f"group: expected a mesh with one dimension, got {found.ndim}; pass one, as mesh['tp']")
        found = found.get_group()
    if not isinstance(found, dist.ProcessGroup):
        raise TypeError(f"group: expected a process group that contains this process, got {found!r:.60}")
    if "cpu" not in dist.get_backend_config(found):
        backend = dist.get_backend(found)
        raise ValueError(f"group: expected a backend for tensors in CPU memory, such as gloo, got {backend}")
    return found


def facts_of(operation: Any, slots: list[Any], function: str) -> Facts:
    """Return the facts of a record that is given as its slots. Broadcast the arrays of `slots` along the spread axis.

    A process with one score per row could not know whether an array of size 1 is its part, or one number for the row.
    """
    kinds = operation.torch.slots.kinds
    axes: Sequence[int] = slots[kinds.index(AXES)] if AXES in kinds else ()
    if len(axes) != 1:
        raise ValueError(f"axis: expected one axis, along which rows are spread over processes, got {len(axes)} axes")
    axis, z = axes[0], operation.array(operation.torch.unflatten(*slots))
    named = [("function", function)]
    for place, (slot, kind) in enumerate(zip(operation.torch.slots.slots, kinds, strict=True)):
        x = slots[place]
        if not isinstance(x, Tensor):
            named.append((slot, str(x)))
            continue
        if x.device.type != "cpu":
            raise NotImplementedError(f"{slot}: expected a tensor in CPU memory, got one on {x.device}")
        shape: list[Any] = list(x.shape)
        values = ""
        if kind is ARRAY:
            shape = [1] * (z.ndim - x.ndim) + shape
            shape[axis] = z.shape[axis]
            slots[place] = torch.broadcast_to(x, shape)
            shape[axis] = "*"
        else:
            values = f" with checksum {_digest(x.detach().contiguous().view(torch.uint8).numpy().tobytes()).hex()}"
        named.append((slot, f"{str(x.dtype).removeprefix('torch.')} ({', '.join(map(str, shape))}){values}"))
    return Facts(axis, z.shape[axis], named)


def agreed(group: ProcessGroup, facts: Facts | Exception) -> Layout:
    """Compare the facts of all processes, and return how many scores per row each has. An error is raised in all."""
    failed = isinstance(facts, Exception)
    told = [type(facts).__name__, str(facts)] if isinstance(facts, Exception) else facts.named
    text = json.dumps(told).encode()
    columns = 0 if isinstance(facts, Exception) else facts.columns
    header = _HEADER.pack(_digest(text), columns, len(text), failed)
    headers = [_HEADER.unpack(one) for one in gathered(group, header, [_HEADER.size] * group.size())]
    digests, sizes, lengths, failures = zip(*headers, strict=True)
    if any(failures) or len(set(digests)) > 1:
        texts = [json.loads(one) for one in gathered(group, text, lengths)]
        raise _disagreement(texts, failures) from (facts if isinstance(facts, Exception) else None)
    return tuple(sizes)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def _disagreement(texts: Sequence[Any], failures: Sequence[bool]) -> Exception:
    """The error that all processes raise."""
    if any(failures):
        process = failures.index(True)
        kind, message = texts[process]
        return _ERRORS.get(kind, RuntimeError)(f"process {process}: {message}")
    for of_each in zip(*texts, strict=False):
        names, values = zip(*of_each, strict=True)
        if len(set(values)) > 1:
            got = f"{', '.join(values)} in processes 0 to {len(values) - 1}"
            return ValueError(f"{names[0]}: expected the same in all processes, got {got}")
    raise AssertionError("digests differ, but not the facts")
