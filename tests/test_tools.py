"""The programs under tools/ still work with the library.

These programs are run by hand, so no other test would find a failure.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version
from tools.compat import claims
from tools.fresh_environment import NATIVE_TESTS

import softargmax

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
    subprocess.run([sys.executable, "-m", "tools.tables", "--check"], check=True, capture_output=True, cwd=ROOT)


RECIPE = ROOT / "recipe" / "recipe.yaml"
FILES = [ROOT / "pyproject.toml", pytest.param(RECIPE, marks=pytest.mark.skipif(not RECIPE.exists(), reason="sdist"))]


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_the_native_tests_of_wheels_are_the_same_everywhere(file: Path) -> None:
    command = shlex.join(NATIVE_TESTS)
    assert command in " ".join(file.read_text(encoding="utf-8").replace("\\\n", " ").split())


@pytest.mark.skipif(not RECIPE.exists(), reason="sdist")
def test_the_recipe_has_the_version_of_the_package() -> None:
    assert f'  version: "{softargmax.__version__}"' in RECIPE.read_text(encoding="utf-8").splitlines()


def test_every_claimed_version_was_tested() -> None:
    """The lower bounds in pyproject.toml are the versions of the environment "oldest" of `make compat`.

    The Pythons that pyproject.toml lists are those of the environments. No test failed in any environment.
    """
    found = json.loads((ROOT / "bench" / "results" / "compat.json").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = found["oldest"]["packages"]
    assert {name: Version(bound) for name, bound in claims().items()} == {
        name: Version(Version(version).public) for name, version in oldest.items()
    }
    pythons = {line.rsplit(" ", 1)[1] for line in project["classifiers"] if re.search(r"3\.\d+$", line)}
    assert pythons == {run["python"].rsplit(".", 1)[0] for run in found.values()}
    assert all(run["passed"] > 1000 and not run.keys() & {"failed", "error", "errors"} for run in found.values())
