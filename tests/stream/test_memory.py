"""A stream keeps only its windows (stream/windows.py) in memory: a file of 256 MiB needs at most 32 MiB."""

import json
import subprocess
import sys

import numpy as np
import pytest

file_conversion = pytest.importorskip(
    "softargmax.cli.file_conversion", reason="the command is not installed", exc_type=ImportError
)

MIB = 1 << 20

CONVERT = """
import json, sys
import numpy as np
import softargmax
from softargmax import stream
from softargmax.cli.file_conversion import peak_memory

name, axis, memory, source = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if sys.argv[5] == "map":
    source = np.load(source, mmap_mode="r")
softargmax.softmax(np.zeros((2, 8), np.float32))
before = peak_memory()
target = () if name == "logsumexp" else (sys.argv[6],)
getattr(stream, name)(source, *target, axis=axis, memory=memory)
print(peak_memory() - before)
"""


def growth(name, axis, memory, source, target, how="path"):
    words = [sys.executable, "-c", CONVERT, name, json.dumps(axis), str(memory), source, how, target]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
def test_a_quarter_gibibyte_under_a_proportional_cap(tmp_path):
    source, target = tmp_path / "z.npy", tmp_path / "p.npy"
    file_conversion.write_scores(source, 256 * MIB)
    found = file_conversion.convert_in_subprocess(source, target, 24 * MIB)
    # This limit, 32 MiB for a file of 256 MiB, corresponds to 512 MiB for 4 GiB. The interpreter and NumPy take another
    # 30 MiB for any file.
    assert found["peak"] - found["before"] <= 32 * MIB
    assert found["peak"] <= 80 * MIB
    assert file_conversion.equal_rows(source, target)


@pytest.mark.parametrize(
    ("name", "shape", "axis", "dtype", "how"),
    [
        ("softmax", (16, 1 << 20), -1, "f4", "map"),
        ("softmax", (4096, 4096), 0, "f4", "path"),
        ("softmax", (1 << 24,), -1, "f4", "path"),
        ("softmax", (1 << 20, 16), 0, "f4", "path"),
        ("softmax", (256, 512, 128), None, "f2", "path"),
        ("softmax", (64, 1024, 256), (0, 2), "f4", "path"),
        ("log_softmax", (16, 1 << 20), -1, "i4", "path"),
        ("logsumexp", (16, 1 << 20), -1, "f8", "path"),
        ("logsumexp", (16, 1 << 20), 0, "f4", "path"),
    ],
)
def test_memory_is_that_of_the_windows(tmp_path, name, shape, axis, dtype, how):
    z = np.random.default_rng(0).integers(-9, 9, shape, dtype="i1").astype(dtype)
    np.save(tmp_path / "z.npy", z)
    memory = 8 * MIB
    # Besides the windows, the threads copy scores into tiles (core/cpp/strided_tiles.hpp), and logsumexp stores its
    # values. Together these take up to 6 MiB.
    assert growth(name, axis, memory, tmp_path / "z.npy", tmp_path / "p.npy", how) <= memory + 6 * MIB
