"""Launching Triton kernels: strides of rows, sizes of blocks, and calls that a kernel leaves to the definition."""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from softargmax.core.scale import UNIT, Scale, rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ELEMENTS = 1024
"""Scores per warp of a block: 32 per thread."""
REGISTERS = 1 << 14
"""The longest row that a block holds in registers. A longer row is cut into parts."""
PART = 1 << 13
"""Scores per part of a longer row. It depends on nothing else, because it fixes the order of sums."""
LONGEST = 1 << 30
"""Rows have fewer scores, because their numbers are of 32 bits."""
STRIDED = 1 << 9
"""The longest row that is read with a stride. Blocks of 16 such rows fit into registers."""
_WARPS = 16
_MOST_WARPS = 32
_SHORT_WARPS = 4
RUNTIME = ("count", "parts", "each", "tasks", "ahead", "ignore_index", "heads", "group", "queries", "keys", "left",
           "right", "tiles", "drop_below", "sequences")  # fmt: skip
"""Numbers for which Triton compiles no kernels of their own."""
AT_ONCE = 264
"""Tasks that are read before the first write, two for each multiprocessor of an H100."""
EACH = 16
"""The most parts per task, times bytes per score."""
STAGES = 2
"""Parts of a task that are loaded at once."""
MANY = AT_ONCE
"""From this number of long rows on, each row has a program."""
_NUMBERS = 8


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. Triton's own function takes 3 us."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not below n >= 1. Triton's own function takes 3 us."""
    return 1 << (n - 1).bit_length()


class Rows(NamedTuple):
    """The rows of several tensors: `total` rows of `scores` scores.

    Row number `row` of a tensor with strides (outer, inner, score) begins at (row // n) outer + (row % n) inner, where
    n is the field `inner`.
    """

    total: int
    inner: int
    scores: int
    strides: dict[str, tuple[int, int, int]]
    tensors: dict[str, Tensor]
    copied: list[tuple[Tensor, Tensor]]
    """The results that kernels write into packed memory, and this memory."""

    def _align(self, aligned: Sequence[str]) -> int:
        """A power of two that divides strides and the number of scores, at most 16 bytes of scores."""
        most = 16 // next(iter(self.tensors.values())).element_size()
        return math.gcd(most, self.scores, *(n for name in aligned for n in self.strides[name][:2]))

    def named(self, *absent: str, aligned: Sequence[str]) -> dict[str, Any]:
        """The tensors and their strides as arguments of a kernel, by name.

        In place of absent tensors, which are not read, the first one is passed.

        ALIGN divides the strides between rows of the tensors in `aligned`, and the number of scores.
        """
        given = {name: self.tensors.get(name) for name in (*self.tensors, *absent)}
        first = next(iter(self.tensors.values()))
        found: dict[str, Any] = {name: first if x is None else x for name, x in given.items()}
        for name in given:
            found[f"{name}_o"], found[f"{name}_i"], found[f"{name}_k"] = self.strides.get(name, (0, 0, 0))
        return found | {"count": self.total, "inner": self.inner, "scores": self.scores, "ALIGN": self._align(aligned),
                        "FLAT": self.inner == self.total}  # fmt: skip

    def finish(self) -> None:
        """Copy results from packed memory to their own."""
        for result, packed in self.copied:
            result.copy_(packed)


def rows_of(axes: tuple[int, ...], results: Sequence[str], **tensors: Tensor | None) -> Rows:
    """The rows of tensors along `axes`. All tensors broadcast to the first one, and those of `results` are written.

    If two strides do not describe the rows, or if a long row is not contiguous, tensors are copied.
    """
    given = {name: x for name, x in tensors.items() if x is not None}
    found = _planned(axes, tuple((name, x.shape, x.stride()) for name, x in given.items()))
    if found is not None and (found.scores <= STRIDED or all(own[2] in (0, 1) for own in found.strides.values())):
        return found._replace(tensors=given)
    shape = next(iter(given.values())).shape
    ndim = len(shape)
    order = (*(d for d in range(ndim) if d not in axes), *axes)
    packed, copied = {}, []
    for name, x in given.items():
        own = (1,) * (ndim - x.ndim) + tuple(x.shape)
        per_row = all(own[d] == 1 for d in axes)
        full = [1 if d in axes and per_row else n for d, n in enumerate(shape)]
        laid = x.reshape(own).expand(full).permute(order)
        packed[name] = (
            torch.empty_like(laid, memory_format=torch.contiguous_format) if name in results else laid.contiguous()
        )
        copied += [(laid, packed[name])] * (name in results)
    last = tuple(range(ndim - len(axes), ndim))
    found = _planned(last, tuple((name, x.shape, x.stride()) for name, x in packed.items()))
    if found is None:
        raise AssertionError("rows: expected one stride per row of contiguous tensors")
    return found._replace(tensors=packed, copied=copied)


@functools.lru_cache(4096)
def _planned(axes: tuple[int, ...], layout: tuple[tuple[str, Any, Any], ...]) -> Rows | None:
    """The rows of tensors with these (name, shape, strides). None if more than two strides describe them."""
    shape = layout[0][1]
    strides = [_broadcast(own, stride, shape) for _, own, stride in layout]
    dims = sorted((d for d in range(len(shape)) if d not in axes), key=lambda d: -strides[0][d])
    outer, along = _joined(dims, shape, strides), _joined(axes, shape, strides)
    if len(outer) > 2 or len(along) > 1:
        return None
    zeros = [0] * len(layout)
    (first, of_first), (inner, of_inner) = [(1, zeros)] * (2 - len(outer)) + outer
    scores, of_scores = along[0] if along else (1, [1] * len(layout))
    each = zip(of_first, of_inner, of_scores, strict=True)
    by_name = dict(zip((name for name, _, _ in layout), each, strict=True))
    return Rows(first * inner, inner, scores, by_name, {}, [])


def _broadcast(own: Sequence[int], stride: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The strides of an array broadcast to a shape."""
    found = [0 if n == 1 else step for n, step in zip(own, stride, strict=True)]
    return [0] * (len(shape) - len(own)) + found


def _joined(dims: Sequence[int], shape: Sequence[int], strides: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """Join neighbouring dimensions that one stride describes, and return the (size, strides) of each."""
    found: list[tuple[int, list[int]]] = []
    for d in dims:
        if shape[d] == 1:
            continue
        own = [stride[d] for stride in strides]
        if found and all(a == b * shape[d] for a, b in zip(found[-1][1], own, strict=True)):
            found[-1] = found[-1][0] * shape[d], own
        else:
            found.append((shape[d], own))
    return found


class Block(NamedTuple):
    """The size of a kernel's blocks, the number of blocks and of warps, and the constants of a kernel."""

    grid: tuple[int, ...]
    warps: int
    named: dict[str, Any]


def block(rows: Rows) -> Block:
    """The block of a kernel that holds whole rows in registers.

    A thread has 16 or 32 scores of one row. So a row of at most 1,024 scores has some lanes of a warp, and a block has
    four warps. If the scores of a row are not next to each other in memory, a block has at least 8 rows, so that memory
    is read in pieces of at least 32 bytes.
    """
    scores = next_power_of_2(rows.scores)
    name, own = next(iter(rows.strides.items()))
    size = rows.tensors[name].element_size()
    lanes = max(1, scores // 16) if scores <= 128 else min(scores // 32, 32)  # the order of sums: triton_state.row_sum
    count, pieces = 1, 1
    if own[2] != 1 and own[1] == 1:
        count = min(max(ELEMENTS // 2 // scores, 32 // size), next_power_of_2(rows.total))
        warps = max(count * scores // (ELEMENTS if count == 1 else ELEMENTS // 2), 1)
    elif scores <= ELEMENTS:
        count = min(_SHORT_WARPS * 32 // lanes, next_power_of_2(rows.total))
        warps = max(1, count * lanes // 32)
        pieces = max(1, scores // (lanes * (16 // size))) if count > 1 else 1
    else:
        warps = min(scores // ELEMENTS, _WARPS)
    whole = rows.scores == scores and rows.total % count == 0
    named = {"ROWS": count, "SCORES": scores, "WHOLE": whole, "PIECES": pieces}
    return Block((cdiv(rows.total, count),), min(warps, _WARPS), named)


def parts_of(rows: Rows, like: Tensor, *, writes: bool, reads: bool = True, part: int | None = None) -> Block:
    """The block of a kernel that cuts rows into parts, and its memory: states, numbers of rows, and counters of tasks.

    If rows are many, each program has a row. Otherwise programs take turns. `each` is the number of parts per task, and
    `ahead` rows are read before the first one is written: enough tasks for all programs that can run at once. If
    nothing is written, that is all rows. If no states are computed, nothing waits. None of this changes a result.
    `part` is the number of scores per part, if it is not PART.
    """
    part = part or PART
    parts, total = cdiv(rows.scores, part), rows.total
    few = total < MANY
    turns = reads and few
    each = max(1, min(EACH // like.element_size(), parts * total // AT_ONCE)) if few else parts
    tasks = cdiv(parts, each)
    ahead = cdiv(AT_ONCE, tasks) if writes else total
    shape = total if reads else 1, next_power_of_2(parts)
    tickets = like.new_zeros(1 + total, dtype=torch.int32) if turns else like.new_empty(2, dtype=torch.int32)
    named = {
        "m_parts": like.new_empty(shape, dtype=torch.float32),
        "r_parts": like.new_empty(shape, dtype=torch.float64),
        "numbers": like.new_empty((total if turns else 1, _NUMBERS), dtype=torch.float32),
        "tickets": tickets, "done": tickets[1:], "parts": parts, "each": each, "tasks": tasks, "ahead": ahead,
        "TURNS": turns, "PARTS": shape[1], "SCORES": part, "STAGES": STAGES, "WHOLE": rows.scores % part == 0,
    }  # fmt: skip
    programs = tasks * (2 * total + ahead if turns and writes else total)
    return Block((programs,), max(1, part // ELEMENTS), named)


def wider(tile: Block, times: int) -> Block:
    """A block with more warps, which have fewer scores per thread: for options that need registers."""
    return tile._replace(warps=min(times * tile.warps, _MOST_WARPS))


_compiled: dict[Any, Any] = {}
_repeated: dict[Any, Repeated] = {}
_MOST = 4096


class Repeated(NamedTuple):
    """A launch that a later call repeats: only tensors and numbers change, at the places of their names."""

    compiled: Any
    arguments: list[Any]
    changing: list[tuple[int, str]]


def launch_rows(
    choose: Callable[..., tuple[Any, Block, dict[str, Any]]],
    axes: tuple[int, ...],
    results: Sequence[str],
    tensors: dict[str, Tensor | None],
    numbers: dict[str, float],
    **constants: Any,
) -> None:
    """Launch the kernel that `choose(rows, **constants)` returns with its block and arguments, on rows of tensors.

    The choice depends on the layout of the tensors and on constants only. So a second call with the same ones takes
    10 us of Python in place of 40.
    """
    given = {name: x for name, x in tensors.items() if x is not None}
    key = (
        choose, axes, *constants.values(),
        *[(name, x.shape, x.stride(), x.dtype, x.data_ptr() % 16, x.device.index) for name, x in given.items()],
    )  # fmt: skip
    known = _repeated.get(key)
    if known is not None and next(iter(given.values())).device.index == torch.cuda.current_device():
        given |= numbers  # type: ignore[arg-type]
        arguments = known.arguments.copy()
        for place, name in known.changing:
            arguments[place] = given[name]
        known.compiled(*arguments)
        return
    rows = rows_of(axes, results, **given)
    kernel, tile, named = choose(rows, **constants)
    compiled = launch(kernel, tile, **named, **numbers)
    rows.finish()
    if compiled is not None and not rows.copied and not any(isinstance(x, Tensor) for x in tile.named.values()):
        if len(_repeated) >= _MOST:
            _repeated.clear()
        _repeated[key] = _repeatable(compiled, kernel, tile, named | tile.named | numbers, given)


def _repeatable(compiled: Any, kernel: Any, tile: Block, named: dict[str, Any], given: dict[str, Tensor]) -> Repeated:
    """What a call repeats. In place of absent tensors, which are not read, the first one is passed."""
    first = next(iter(given))
    arguments = [named[name] for name in kernel.arg_names]
    changing = [
        (place, name if not isinstance(x, Tensor) or name in given else first)
        for place, (name, x) in enumerate(zip(kernel.arg_names, arguments, strict=True))
        if isinstance(x, Tensor) or type(x) is float
    ]
    return Repeated(compiled[_three(tile.grid)], [None if isinstance(x, Tensor) else x for x in arguments], changing)


def _three(grid: tuple[int, ...]) -> tuple[int, ...]:
    return (*grid, 1, 1)[:3]


def launch(kernel: Any, tile: Block, **named: Any) -> Any:
    """Launch a kernel on the device of its first argument, with arguments by name. Products and sums are never fused.

    Triton's own launch takes 60 us for 35 arguments. Most of it is the choice of the compiled kernel, which depends on
    types, alignment and divisibility only. So the compiled kernel is kept, and returned if the device is the current
    one.
    """
    named |= tile.named
    arguments = [named[name] for name in kernel.arg_names]
    options = {"num_warps": tile.warps, "enable_fp_fusion": False}
    first = arguments[0]
    if not first.is_cuda or first.device.index != torch.cuda.current_device():
        with torch.cuda.device(first.device) if first.is_cuda else nullcontext():
            kernel[tile.grid](*arguments, **options)
        return None
    key = kernel, first.device.index, tile.warps, tuple(map(_kind, kernel.arg_names, arguments))
    compiled = _compiled.get(key)
    if compiled is None:
        compiled = _compiled[key] = kernel[tile.grid](*arguments, **options)
    else:
        compiled[_three(tile.grid)](*arguments)
    return compiled


def _kind(name: str, argument: Any) -> Any:
    """What Triton compiles a kernel for. Names of constants are upper case."""
    if name.isupper():
        return argument
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if type(argument) is float:
        return float
    fits = -(1 << 31) <= argument < 1 << 31
    return fits if name in RUNTIME else (argument == 1, argument % 16 == 0, fits)


def beta_of(beta: Scale) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors `hi` and `lo` if beta has one number per row, and the other arguments of `load_beta`."""
    if isinstance(beta.hi, Tensor):
        return {"hi": beta.hi, "lo": beta.lo}, {"beta_hi": 1.0, "beta_lo": 0.0, "BETA": 2}
    hi, lo = (1.0, 0.0) if beta is UNIT else rounded(beta, 24)
    return {}, {"beta_hi": hi, "beta_lo": lo, "BETA": int(beta != UNIT)}


def served(first: Tensor, *others: Tensor | None, beta: Scale = UNIT, axes: tuple[int, ...] = ()) -> bool:
    """True if no tensor has float64 numbers, none is empty, and float32 can hold beta. Definitions serve the others.

    A row of the first tensor, along `axes`, may have fewer than 2^30 scores.
    """
    if math.prod(first.shape[axis] for axis in axes) >= LONGEST:
        return False
    plain = isinstance(beta.hi, Tensor) or beta.hi == 0.0 or math.isinf(beta.hi) or 1e-37 < abs(beta.hi) < 1e37
    return plain and all(x is None or (x.dtype is not torch.float64 and x.numel() > 0) for x in (first, *others))


def define(operation: Any, i: Any, results: Sequence[Tensor | None]) -> None:
    """Write the results of the definition into the memory of a kernel's results.

    A result of shape (0,) was not computed: only kernels compute states.
    """
    found = operation.define(i)
    for memory, one in zip(results, found if len(operation.fields) > 1 else (found,), strict=True):
        if memory is None or one is None or one.shape == (0,):
            continue
        if one.shape != memory.shape:
            raise ValueError(f"{operation.name}: expected a result of shape {memory.shape}, got {one.shape}")
        memory.copy_(one)
