"""What the processes of a group compare before they exchange scores.

Every process checks its own arguments, and tells all others whether they were good. If one of them has found an error,
or if the arguments do not fit together, all processes raise the same error, and none waits for another. What is
compared follows from the operation's record: dtypes, shapes without the spread axis, numbers, and the values of arrays
that all processes must have, such as targets, or the vectors h of a last layer whose classes are spread.
"""

from __future__ import annotations

import hashlib
import json
import struct
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from softargmax.core.arrays import trained
from softargmax.core.record import ARRAY, AXES
from softargmax.core.torch_processes import gathered, group_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from softargmax.parallel.layout import Layout

_HEADER = struct.Struct("<8sqq?")  # digest of the facts, scores per row, length of the text, True for an error
_ERRORS = {kind.__name__: kind for kind in (ValueError, TypeError, IndexError, NotImplementedError)}


_SHOWN = {
    "beta_number": "1 / temperature",
    "beta_hi": "1 / temperature",
    "axes": "axis",
    "kept": "reduction",
    "mean": "reduction",
    "forms": "gradients",
    "joint": "order",
    "draws": "num_samples",
}
"""Names of slots in errors."""


class Facts(NamedTuple):
    """What a process tells the others of its arguments."""

    columns: int
    """The number of scores per row in this process."""
    named: list[tuple[str, str]]
    """What must be equal in all processes: names and texts."""


def process_group(group: ProcessGroup | DeviceMesh | str | None) -> ProcessGroup:
    """The group of an argument: a process group or its name, a device mesh with one dimension, or None for all."""
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError("group: there is no process group; call torch.distributed.init_process_group first")
    found: Any = dist.group.WORLD if group is None else group_of(group) if isinstance(group, str) else group
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


def spread_axes(operation: Any, slots: Sequence[Any]) -> dict[str, int]:
    """The arguments and results of which each process has a part, and the negative axis of the parts."""
    if operation.spreads:
        return dict(operation.spreads)
    kinds, names = operation.torch.slots.kinds, operation.torch.slots.names
    axes: Sequence[int] = slots[kinds.index(AXES)] if AXES in kinds else ()
    if len(axes) != 1:
        raise ValueError(f"axis: expected one axis, along which rows are spread over processes, got {len(axes)} axes")
    axis = axes[0] - operation.array(operation.torch.unflatten(*slots)).ndim
    scores = [name for name, kind in zip(names, kinds, strict=True) if kind is ARRAY]
    like = [name for name, of in zip(operation.fields, operation.results, strict=True) if of.shape is None]
    return dict.fromkeys((*scores, *like), axis)


def facts_of(operation: Any, slots: list[Any], axes: Mapping[str, int], function: str) -> Facts:
    """Return the facts of a record that is given as its slots. Broadcast the arrays of `slots` along the spread axes.

    A process with one score per row could not know whether an array of size 1 is its part, or one number for the row.
    """
    columns, named = None, [("function", function)]
    of = operation.torch.slots
    names = {**_SHOWN, "target": slots[of.slots.index("named")]} if "named" in of.slots else _SHOWN
    shown = [names.get(slot, slot.removesuffix("_number")) for slot in of.slots]  # a float for all rows
    for place, (name, slot) in enumerate(zip(of.names, shown, strict=True)):
        x = slots[place]
        if not isinstance(x, Tensor):
            named.append((slot, str(x)))
            continue
        if x.device.type != "cpu":
            raise NotImplementedError(f"{slot}: expected a tensor in CPU memory, got one on {x.device}")
        shape: list[Any] = list(x.shape)
        more = ", requires grad" if trained(x) else ""
        if name in axes:
            shape = [1] * (-axes[name] - x.ndim) + shape
            columns = shape[axes[name]] if columns is None else columns
            shape[axes[name]] = columns
            x = slots[place] = torch.broadcast_to(x, shape)
            shape[axes[name]] = "*"
        else:  # all processes must have the same
            more = with_checksum(x) + more
        named.append((slot, f"{str(x.dtype).removeprefix('torch.')} ({', '.join(map(str, shape))}){more}"))
    return Facts(columns or 0, named)


_compiled: ContextVar[bool] = ContextVar("softargmax compiled", default=False)
_ADVICE = {"compiled": "; compile the call in all processes, or in none"}
"""Ends of errors about what is not an argument."""


@contextmanager
def compiled() -> Iterator[None]:
    """Tell the other processes that calls inside the block are operators of a compiled graph.

    The backward pass of such an operator makes the call again. A process that has not compiled it would send other
    messages, and gloo ends a process whose message has another length.
    """
    token = _compiled.set(True)
    try:
        yield
    finally:
        _compiled.reset(token)


def agreed(group: ProcessGroup, facts: Facts | Exception) -> Layout:
    """Compare the facts of all processes, and return how many scores per row each has. An error is raised in all."""
    failed = isinstance(facts, Exception)
    # First: the error then names it, and not the shapes of arrays, which may be others in a graph.
    how = ("compiled", str(_compiled.get()))
    told = [type(facts).__name__, str(facts)] if isinstance(facts, Exception) else [how, *facts.named]
    text = json.dumps(told).encode()
    columns = 0 if isinstance(facts, Exception) else facts.columns
    header = _HEADER.pack(_digest(text), columns, len(text), failed)
    headers = [_HEADER.unpack(one) for one in gathered(group, header, [_HEADER.size] * group.size())]
    digests, sizes, lengths, failures = zip(*headers, strict=True)
    if any(failures) or len(set(digests)) > 1:
        texts = [json.loads(one) for one in gathered(group, text, lengths)]
        raise _disagreement(texts, failures) from (facts if isinstance(facts, Exception) else None)
    return tuple(sizes)


_WORDS = 512
"""The number of 8-byte words in a line of `with_checksum`."""


def with_checksum(x: Tensor) -> str:
    """The part of a text that differs if the values of two tensors do.

    A last layer may have gigabytes of weights, and a hash of all their bytes would take longer than the products of a
    few hundred rows. So the words are added up along lines of a matrix, and along its columns, as integers that wrap
    around. If words have another order, some of these sums differ, too.
    """
    data = x.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    whole = len(data) // (8 * _WORDS) * (8 * _WORDS)
    lines = data[:whole].view(np.uint64).reshape(-1, _WORDS)
    sums = (lines.sum(axis, dtype=np.uint64).tobytes() for axis in (0, 1))
    return f" with checksum {_digest(b''.join([*sums, data[whole:].tobytes()])).hex()}"


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
            advice = _ADVICE.get(names[0], "")
            return ValueError(f"{names[0]}: expected the same in all processes, got {got}{advice}")
    return ValueError(f"expected the same arguments in all processes, got {texts}")
