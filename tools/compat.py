"""Test what pyproject.toml claims: each Python, with the oldest and the newest version of every dependency.

    python -m tools.compat dist/*.whl                 every environment, about 25 minutes on 2 cores
    python -m tools.compat dist/*.whl --only oldest   one environment; its new results replace the earlier ones

A wheel is installed in a fresh environment, with the oldest or the newest versions that satisfy pyproject.toml. There
a sample of all tests runs (`pytest --quick`), and with transformers all of its tests. The versions and the number of
tests go to bench/results/compat.json, and `tools/tables.py` writes the table of docs/installation.md.
tests/test_tools.py compares the claims with the file. `make compat` calls this program.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from tools.fresh_environment import ROOT, FreshEnvironment, group

RESULTS = ROOT / "bench" / "results" / "compat.json"
TRANSFORMERS = "tests/integrate"
"""The tests of transformers, whose interfaces change from version to version: all run, slow ones included."""


class Environment(NamedTuple):
    """A Python, the extras to install, and constraints of versions for pip. `options` are those of pytest."""

    python: str
    extras: str
    group: str
    constraints: list[str]
    options: tuple[str, ...] = ()


def claims() -> dict[str, str]:
    """Return the lower bound of each dependency and of each extra's packages in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *(t for extra in project["optional-dependencies"].values() for t in extra)]
    found = [one for one in map(Requirement, texts) if one.name != "softargmax"]
    unbounded = [str(one) for one in found if not any(bound.operator == ">=" for bound in one.specifier)]
    if unbounded:
        raise ValueError(f"pyproject.toml: expected a lower bound (>=) for each dependency, got {', '.join(unbounded)}")
    return {r.name: bound.version for r in found for bound in r.specifier if bound.operator == ">="}


def environments() -> dict[str, Environment]:
    """Return the environments by name.

    Only torch 2.13.0 for Python 3.11 has a wheel here that needs no gigabytes of CUDA libraries. So the other Pythons
    are tested without torch, and "oldest" and "newest" have the same torch.
    """
    torch_user = "tests/test_types.py::test_the_programs_of_users_run[torch_user]"
    without_torch = ("--ignore-glob=*torch*", "--doctest-ignore-import-errors", f"--deselect={torch_user}")
    lowest = [f"{name}=={version}" for name, version in claims().items()] + [f"jaxlib=={claims()['jax']}"]
    # Old packages use what newer ones deprecate.
    old = ("-W", "default::DeprecationWarning")
    others = "sklearn,jax,dask,cli,plot,csv"
    return {
        "oldest": Environment("python3.11", "all", "test", lowest, old),
        "newest, 3.11": Environment("python3.11", "all", "test", ["torch==2.13.0"]),
        "newest, 3.12": Environment("python3.12", others, "sanitize", [], without_torch),
        "newest, 3.13": Environment("python3.13", others, "sanitize", [], without_torch),
    }


def tested(environment: Environment, wheels: list[Path]) -> dict[str, Any]:
    """Run the sample of tests in a fresh environment, and return its versions and the number of tests by outcome."""
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("\n".join(environment.constraints), encoding="utf-8")
        fresh = FreshEnvironment(environment.python, Path(folder) / "venv")
        fresh.install_wheel(wheels, environment.extras, "--constraint", constraints, *group(environment.group))
        # test_tools.py compares pages with this program's results.
        runs = [("--quick", "--ignore=tests/test_tools.py", f"--ignore={TRANSFORMERS}", "tests")]
        runs += [(TRANSFORMERS,)] if environment.extras == "all" else []
        counts: Counter[str] = Counter()
        for tests in runs:
            options = ("-q", "-n", "auto", "-p", "no:cacheprovider", *environment.options, *tests)
            done = fresh.run("python", "-m", "pytest", *options, cwd=ROOT, stdout=subprocess.PIPE, check=False)
            if done.returncode not in (0, 1):  # 1: tests failed
                raise SystemExit(f"pytest: expected exit code 0 or 1, got {done.returncode}\n{done.stdout}")
            print(done.stdout[-3000:], flush=True)
            found = re.findall(r"(\d+) (passed|failed|errors?)\b", done.stdout.splitlines()[-1])
            counts.update({word: int(n) for n, word in found})
        listed = fresh.run("python", "-m", "pip", "list", "--format", "json", stdout=subprocess.PIPE).stdout
        python = fresh.run("python", "-V", stdout=subprocess.PIPE).stdout.split()[1]
    versions = {package["name"].lower().replace("_", "-"): package["version"] for package in json.loads(listed)}
    packages = {name: versions[name] for name in claims() if name in versions}
    return {"python": python, "packages": packages, "passed": 0, **counts}


def main() -> int:
    """Test the environments, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--only", choices=environments(), nargs="+", default=list(environments()))
    options = parser.parse_args()
    before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    found = {name: before[name] for name in environments() if name in before}
    for name in options.only:
        print(name, flush=True)
        found[name] = tested(environments()[name], options.wheels)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(set(found[name]) - {"python", "packages", "passed"} for name in options.only))


if __name__ == "__main__":
    sys.exit(main())
