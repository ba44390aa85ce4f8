"""The programs under tools/ still work with the library.

These programs are run by hand, so no other test would find a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="needs a C++ compiler")
def test_the_check_of_exp_compiles() -> None:
    source = ROOT / "tools" / "exp_check.cpp"
    flags = ["-std=c++17", "-fopenmp", "-fsyntax-only", "-Wall", "-DSOFTARGMAX_ISA_NAME=baseline"]
    include = f"-I{ROOT / 'src' / 'softargmax'}"
    done = subprocess.run(
        [os.environ.get("CXX", "g++"), *flags, include, str(source)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_tables_agree_with_the_measurements() -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "tables.py"), "--check"], check=True, capture_output=True)
