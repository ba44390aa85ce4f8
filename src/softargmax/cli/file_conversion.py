"""Convert a large file in a separate process, and measure the peak memory of the process.

The tour, ``softargmax bench stream`` and the tests use this module. The separate process is ``python -m
softargmax.cli.file_conversion SOURCE TARGET MEMORY``, which converts the file and prints its peak memory as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import softargmax
from softargmax import stream
from softargmax.cli.errors import FailedRunError

LENGTH = 1 << 16  # scores per row, the size of a large vocabulary


def write_scores(path: Path, size: int, *, seed: int = 0) -> tuple[int, int]:
    """Write a file of float32 scores of about `size` bytes, block by block. Return the shape of the array."""
    rows = max(1, size // (4 * LENGTH))
    block = np.random.default_rng(seed).normal(0, 4, (min(rows, 32), LENGTH)).astype(np.float32)
    with stream.whole_file(path) as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, LENGTH)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, rows, len(block)):
            part = block[: rows - start] + np.float32(start % 7)
            file.write(np.roll(part, start, axis=1).tobytes())
    return rows, LENGTH


def convert_in_subprocess(source: Path, target: Path, memory: int) -> dict[str, Any]:
    """Convert a file in a separate process. Return the seconds, and the peak memory before and after the conversion."""
    words = [sys.executable, "-m", "softargmax.cli.file_conversion", str(source), str(target), str(memory)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603  our own module
    if done.returncode:
        raise FailedRunError(f"the conversion process failed: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def equal_rows(source: Path, target: Path, samples: int = 16) -> bool:
    """True if sampled rows of the result have the same bits as the results of the in-memory function."""
    scores, converted = np.load(source, mmap_mode="r"), np.load(target, mmap_mode="r")
    rows = sorted({0, len(scores) - 1, *np.random.default_rng(1).integers(0, len(scores), samples).tolist()})
    return all(softargmax.softmax(scores[row]).tobytes() == converted[row].tobytes() for row in rows)


def peak_memory() -> int:
    """Return this process's peak resident memory, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise FailedRunError("/proc/self/status: expected a line VmHWM (peak memory), got none")


def main(source: str, target: str, memory: str) -> None:
    """Convert the file, and print the seconds and the peak memory as JSON."""
    softargmax.softmax(np.zeros((2, 8), np.float32))  # load modules before the measurement
    before = peak_memory()
    start = time.perf_counter()
    stream.softmax(source, target, memory=int(memory))
    print(json.dumps({"before": before, "peak": peak_memory(), "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main(*sys.argv[1:])
