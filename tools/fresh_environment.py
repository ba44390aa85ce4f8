"""A fresh virtual environment in which tools install and test a wheel."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
VARIABLES = {"PYTHONPATH": "", "OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1"}
"""Environment variables: only installed packages are found, and test processes do not disturb one another."""

NATIVE_TESTS = (
    *("-n", "auto", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--doctest-ignore-import-errors"),
    *("--ignore=tests/native/test_thread_pool.py", "tests/native"),
    *("tests/normalize/test_edges.py", "tests/normalize/test_sums.py"),
)
"""pytest's options for the native tests of an installed wheel. `test-command` in pyproject.toml and recipe/recipe.yaml
repeat them. test_thread_pool.py is left out: it compiles C++ of its own, and tests no wheel."""


def group(name: str) -> tuple[str, str]:
    """Return pip's options for a dependency group of pyproject.toml."""
    return "--group", f"{ROOT / 'pyproject.toml'}:{name}"


class FreshEnvironment:
    """A virtual environment in `folder`, made by the command `python`, with the newest pip."""

    def __init__(self, python: str, folder: Path) -> None:
        self._folder = folder
        subprocess.run([python, "-m", "venv", folder], check=True)
        self.install("--upgrade", "pip")

    def run(
        self,
        program: str,
        *arguments: str | Path,
        check: bool = True,
        cwd: Path | None = None,
        stdout: int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment. By default it runs in the environment's folder.

        The options are those of `subprocess.run`.
        """
        command, variables = [self._folder / "bin" / program, *arguments], {**os.environ, **VARIABLES}
        return subprocess.run(command, check=check, cwd=cwd or self._folder, stdout=stdout, env=variables, text=True)

    def install(self, *what: str | Path) -> None:
        """Install packages with pip."""
        self.run("python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *what)

    def install_wheel(self, wheels: list[Path], extras: str, *options: str | Path) -> None:
        """Install the wheel that pip chooses of `wheels`, which are in one folder, with these extras.

        The first step reads no package index, which might have another wheel of the same version.
        """
        version = parse_wheel_filename(wheels[0].name)[1]
        self.install("--no-index", "--no-deps", "--find-links", wheels[0].resolve().parent, f"softargmax=={version}")
        self.install(*options, f"softargmax[{extras}]=={version}")
