"""Run every operation on buffers next to a protected page. An access outside a buffer ends this process.

python tests/native/guard_worker.py            prints the number of calls
python tests/native/guard_worker.py --beyond   reads one byte beyond a buffer on purpose and is killed
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from tests.native import structures
from tests.native.operations import GRADIENTS, ROW_OPERATIONS, have_torch, scores
from tests.native.vectors import everything

import softargmax

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

# A vector has 16 lanes in float32, and 8 in float64. Lengths 1 to 18 use every number of lanes in the last vector. Most
# other lengths are near two, four and eight vectors, or near one or two blocks of 4096 scores.
LENGTHS = [*range(1, 19), 23, 31, 32, 33, 47, 63, 64, 65, 127, 128, 129, 1000, 4095, 4096, 4097, 4111, 8193]
PAGE = mmap.PAGESIZE


class Fenced:
    """Memory between two protected pages."""

    def __init__(self, size: int) -> None:
        pages = -(-size // PAGE)
        self.size = pages * PAGE
        self.memory = mmap.mmap(-1, self.size + 2 * PAGE)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        libc = ctypes.CDLL(None, use_errno=True)
        for fence in (self.start, self.start + PAGE + self.size):
            if libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(PAGE), 0) != 0:  # 0: PROT_NONE
                raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, a: NDArray[Any], *, end: bool) -> NDArray[Any]:
        """Copy an array to the end of the memory, or to its start, without a gap."""
        offset = PAGE + (self.size - a.nbytes if end else 0)
        copy = np.frombuffer(self.memory, a.dtype, a.size, offset).reshape(a.shape)
        copy[...] = a
        return copy


def calls(dtype: str, n: int, fences: list[Fenced]) -> int:
    """Make every call for rows of n scores, and return the number of calls."""
    count = 0
    rows = 19 if n <= 65 else 3  # kernels process 16 short rows at a time
    z0 = scores((rows, n), dtype)
    padded = np.concatenate([np.zeros((rows, 5), dtype), z0], axis=1)
    for end in (True, False):
        z = fences[0].place(z0, end=end)
        out = fences[1].place(np.zeros_like(z0), end=end)
        mask = fences[2].place(np.arange(n) % 3 != 1, end=end)
        weights = fences[3].place(np.linspace(0, 2, n).astype(dtype), end=end)
        strided = fences[4].place(padded if end else padded[:, ::-1].copy(), end=end)
        strided = strided[:, 5:] if end else strided[:, :n]
        columns = fences[5].place(np.ascontiguousarray(z0.T), end=end).T
        offsets = fences[6].place(np.array([0, min(1, n), n]), end=end)
        temperatures = fences[7].place(np.linspace(0.5, 2.0, rows), end=end)
        halves = fences[0].place(z0, end=end)[:, ::2]
        operations = ROW_OPERATIONS | (GRADIENTS if have_torch() and n < 140 else {})
        for name, operation in operations.items():
            for layout in (z, strided, columns, halves):
                if not name.endswith("vjp") or layout is z:
                    operation(layout)
                    count += 1
        for operation in (softargmax.softmax, softargmax.log_softmax):
            for layout in (z, strided, columns):
                operation(layout, out=out)
            operation(z, out=columns)
            operation(z, where=mask, temperature=temperatures, out=out)
            operation(z[0], out=out[2])
            count += 6
        z = fences[0].place(z0, end=end)
        softargmax.logsumexp(z, weights=weights, where=mask)
        softargmax.softmax(z, axis=0)
        softargmax.logsumexp(strided, axis=(0, 1))
        for row in (z[-1] if end else z[0], strided[-1] if end else strided[0]):
            softargmax.segment_softmax(row, offsets)
            softargmax.segment_log_softmax(row, offsets, temperature=3.7)
            softargmax.segment_logsumexp(row, offsets)
        softargmax.segment_softmax(z.reshape(-1), np.arange(rows + 1) * n)
        count += 10
    return count


def bfloat16_calls(n: int, fences: list[Fenced]) -> int:
    """Make the calls on bfloat16 tensors in fenced memory, and return the number of calls."""
    import torch

    for end in (True, False):
        z = torch.from_numpy(fences[0].place(np.zeros((3, n), np.int16), end=end)).view(torch.bfloat16)
        z.copy_(torch.from_numpy(scores((3, n), "float32")))
        out = torch.from_numpy(fences[1].place(np.zeros((3, n), np.int16), end=end)).view(torch.bfloat16)
        softargmax.softmax(z, out=out)
        softargmax.log_softmax(z, out=out)
        softargmax.logsumexp(z)
    return 6


def large_calls() -> int:
    """Make calls with large results, and return the number of calls.

    The results are so large that kernels write them by non-temporal stores on some processors (Zen 5).
    """
    fences = [Fenced(36 << 20) for _ in range(2)]
    for end in (True, False):
        z = fences[0].place(scores((9, 1 << 20), "float32"), end=end)
        out = fences[1].place(np.zeros_like(z), end=end)
        softargmax.softmax(z, out=out)
        softargmax.log_softmax(z[:, 1:], out=out[:, :-1])
    return 4


def placed(turn: Iterator[Fenced], a: NDArray[Any], *, end: bool) -> NDArray[Any]:
    """Copy an array to the next memory."""
    return next(turn).place(a, end=end)


def room_calls(fences: list[Fenced]) -> int:
    """Make the calls of softargmax.output and softargmax.structure, and return the number of calls.

    Each array is placed in the next memory of `fences`, in a cycle.
    """
    count = 0
    for end in (True, False):
        turn = itertools.cycle(fences)
        place: structures.Place = partial(placed, turn, end=end)
        for dtype in ("float32", "float64"):
            count += len(everything(dtype, place)) + structures.calls(dtype, place)
    return count


def beyond() -> None:
    """Read one byte beyond the buffer, which ends the process."""
    fence = Fenced(100)
    sys.stdout.write(str(ctypes.string_at(fence.start + PAGE + fence.size, 1)))


def main() -> None:
    """Make all calls and print their number."""
    fences = [Fenced(8 * max(3 * 8200, 19 * 70)) for _ in range(8)]
    count = 0
    with softargmax.using("native"), np.errstate(all="ignore"):
        for dtype in ("float16", "float32", "float64"):
            count += sum(calls(dtype, n, fences) for n in LENGTHS)
        count += large_calls()
        count += room_calls([Fenced(1 << 18) for _ in range(16)])
        if have_torch():
            count += sum(bfloat16_calls(n, fences) for n in LENGTHS)
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    beyond() if "--beyond" in sys.argv else main()
