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
from tools import speed_page
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


PAGE = """
- **Slow.** <!-- lines: a *;
  beside others, * --> It is slow.
"""


def record(*, model: str = "1", **result: object) -> dict[str, object]:
    machine = {"processor": {"model": model, "caches": {}, "isas": ["x86-64-v4"]}, "commit": "abc"}
    return {"machine": machine, "isa": "x86-64-v4", "results": [result]}


def bench(name: str, ratio: float, of_limit: float = 0.5) -> dict[str, object]:
    return {"name": name, "ratios": {"torch": ratio}, "targets": {"torch": 2.0}, "of_limit": of_limit}


@pytest.mark.parametrize(
    ("all_sets", "avx2", "misses", "found"),
    [
        (record(**bench("a line", 1.9)), None, [], []),
        (record(**bench("a line", 2.2)), None, [], []),
        (record(**bench("a line", 2.4)), None, [], ["Slow: a reason, but no line is near its promise"]),
        (record(**bench("a line", 2.4)), None, ["beside others, busy: slower"], []),
        (record(**bench("a line", 1.9)), None, ["draws: slower"], ["draws: below the promise, without a reason"]),
        (record(**bench("a line", 1.9)), record(**bench("b", 1.9)), [], ["b: below the promise, without a reason"]),
        (record(**bench("a line", 1.9, 1.03)), None, [], ["a line, AVX-512: faster than the limit of the machine"]),
        (
            record(**bench("a line", 1.9)),
            record(model="2", **bench("a line", 1.9)),
            [],
            ["room: the run with AVX2 only is from another processor"],
        ),
    ],
)
def test_what_the_measurements_contradict_is_found(monkeypatch, all_sets, avx2, misses, found) -> None:
    monkeypatch.setattr(speed_page, "benches", lambda: {"room": all_sets})
    monkeypatch.setattr(speed_page, "avx2_record", lambda _: avx2)
    monkeypatch.setattr(speed_page, "load", lambda _: {"misses": misses})
    assert list(speed_page.problems(PAGE)) == found


def test_the_table_of_missed_promises_names_their_reasons(monkeypatch) -> None:
    monkeypatch.setattr(speed_page, "benches", lambda: {"room": record(**bench("a line", 1.6))})
    monkeypatch.setattr(speed_page, "avx2_record", lambda _: None)
    assert speed_page.below(PAGE).splitlines()[2] == "| a line, AVX-512 | torch 1.60 | 2 | 0.50 | 0.62 | Slow |"


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
