"""Convert a .npy file of 4 GiB from scores to probabilities, and show the memory that the conversion takes.

    python -m bench.memory [--gib 4] [--axis -1]     about 1 minute; writes bench/results/memory.json
    python -m bench.memory --gib 0.25 --cap 32       a smaller file under a smaller cap; writes nothing

The conversion runs in its own process. The peak memory is VmHWM from /proc, including the imports. Then sampled rows of
the result are compared, bit by bit, with softmax of the same scores in memory. The exit code is 1 if the peak is above
the cap or a bit differs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from bench.machine import machine

import softargmax as sa

RESULT = Path(__file__).parent / "results" / "memory.json"
ROW = 1 << 17  # scores in a row along the last axis
CONVERT = """
import json, sys, time
import softargmax as sa
from bench.peak import resident
start = time.perf_counter()
sa.stream.softmax(sys.argv[1], sys.argv[2], axis=int(sys.argv[3]), memory=int(sys.argv[4]))
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "peak_mib": resident("VmHWM") / 2**20}))
"""


def write_scores(path: Path, rows: int) -> None:
    """Write (rows, ROW) scores, a few rows at a time."""
    scores = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, ROW))
    for start in range(0, rows, 64):
        stop = min(start + 64, rows)
        scores[start:stop] = 10 * np.random.default_rng(start).standard_normal((stop - start, ROW), np.float32)
    scores.flush()


def same_on_samples(source: Path, target: Path, axis: int) -> int:
    """Compare sampled rows bit by bit with softmax in memory. Return the number of scores compared, or raise."""
    z, p = np.load(source, mmap_mode="r"), np.load(target, mmap_mode="r")
    rng = np.random.default_rng(7)
    count = 0
    for i in rng.choice(z.shape[1] if axis == 0 else z.shape[0], 8, replace=False):
        row, found = (z[i], p[i]) if axis == -1 else (np.ascontiguousarray(z[:, i]), np.ascontiguousarray(p[:, i]))
        if sa.softmax(row).tobytes() != found.tobytes():
            raise SystemExit(f"row {i}: expected the bits of softmax in memory, got others")
        count += row.size
    return count


def run(gib: float, axis: int, cap: float, folder: Path) -> dict[str, object]:
    """Write a file of scores, convert it, and compare samples of the result."""
    rows = max(1, int(gib * (1 << 30)) // (4 * ROW))
    source, target = folder / "scores.npy", folder / "probabilities.npy"
    write_scores(source, rows)
    started = time.perf_counter()
    memory = int(cap * (1 << 20)) * 3 // 8  # the interpreter and NumPy need the rest
    command = [sys.executable, "-c", CONVERT, str(source), str(target), str(axis), str(memory)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"converted {rows} x {ROW} along axis {axis} in {found['seconds']:.1f} s, peak {found['peak_mib']:.0f} MiB")
    compared = same_on_samples(source, target, axis)
    print(f"{compared} scores have the bits of softmax in memory ({time.perf_counter() - started:.0f} s in all)")
    size = source.stat().st_size
    moved = 2 * size / found["seconds"]
    return {"shape": [rows, ROW], "axis": axis, "file_bytes": size, "bytes_a_second": moved, "cap_mib": cap, **found}


def main() -> int:
    """Run the conversion that the command line describes. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--axis", type=int, choices=(-1, 0), default=-1)
    parser.add_argument("--cap", type=float, default=512.0, help="largest peak memory, in MiB")
    parser.add_argument("--folder", help="folder for the files, with free space of twice --gib")
    options = parser.parse_args()
    room = int(2.1 * options.gib * (1 << 30))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        if shutil.disk_usage(name).free < room:
            print(f"{name}: expected {room / 1e9:.0f} GB of free space; --folder names another folder", file=sys.stderr)
            return 2
        found = run(options.gib, options.axis, options.cap, Path(name))
    if options.gib == 4 and options.axis == -1:
        RESULT.write_text(json.dumps({"machine": machine(), "conversion": found}, indent=1) + "\n", encoding="utf-8")
        print("wrote", RESULT)
    return 0 if float(str(found["peak_mib"])) <= options.cap else 1


if __name__ == "__main__":
    sys.exit(main())
