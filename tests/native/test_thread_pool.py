"""Threads have no data races, and lose no work and no exception, if several threads call at once.

Calls run on the pool, or on a library that takes the place of OpenMP.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "softargmax"  # an installed wheel has no C++
COMPILER = os.environ.get("CXX", "g++")


@pytest.mark.no_sanitize
@pytest.mark.skipif(not shutil.which(COMPILER), reason="needs a C++ compiler")
def test_calls_at_once_under_the_thread_sanitizer(tmp_path: Path) -> None:
    program, openmp = tmp_path / "program", tmp_path / "libgomp.so.1"
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{SOURCE}"]
    library = ["-shared", "-fPIC", f"-Wl,-soname,{openmp.name}"]
    for options, sources, made in (
        ([], [HERE / "thread_pool.cpp", SOURCE / "core" / "cpp" / "threads.cpp"], program),
        (library, [HERE / "openmp.cpp"], openmp),
    ):
        subprocess.run([COMPILER, *flags, *options, *sources, "-o", made, "-ldl"], check=True)
    # The sanitizer cannot map its memory if addresses are too random.
    fixed = ["setarch", "-R"]
    if not shutil.which(fixed[0]) or subprocess.run([*fixed, "true"], capture_output=True, check=False).returncode:
        fixed = []
    done = subprocess.run([*fixed, program, openmp], capture_output=True, text=True, timeout=120, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not run with this system's addresses")
    assert (done.stdout, done.stderr, done.returncode) == ("0\n", "", 0)
