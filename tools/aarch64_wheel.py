"""Cross-compile a wheel for aarch64, and run its native tests under an emulator.

    python -m tools.aarch64_wheel            about 15 minutes on 2 cores
    python -m tools.aarch64_wheel --quick    a sample of the tests, about 4 minutes

This needs x86-64, Debian 12, and its packages `g++-aarch64-linux-gnu` and `qemu-user`. Debian's Python 3.11 for arm64
is unpacked in build/aarch64, and not installed. If the checks and tests pass, the wheel goes to dist/. This program
builds no wheel for the stable ABI: such a wheel is for Python 3.12 and later, and Debian 12 has only Python 3.11 to
test it. `make wheel-aarch64` calls this program.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from tools.check_wheel import problems
from tools.fresh_environment import NATIVE_TESTS, ROOT

if TYPE_CHECKING:
    from pathlib import Path

BUILD = ROOT / "build" / "aarch64"
SYSTEM = BUILD / "root"
"""Where Debian's packages are unpacked."""
PYTHON = "python3.11"
PROGRAMS = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "qemu-aarch64": "qemu-user",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}
"""The programs that must be installed, and Debian's packages of them."""
PACKAGES = [
    *("python3.11", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libpython3.11-dev"),
    *("libc6", "libstdc++6", "libgcc-s1", "libexpat1", "zlib1g", "libssl3", "libffi8", "libbz2-1.0", "liblzma5"),
    *("libsqlite3-0", "libuuid1", "libcrypt1"),
]
"""Debian's packages of Python, and of the libraries that it needs."""
TOOLCHAIN = f"""
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CXX_FLAGS_INIT "-isystem {SYSTEM}/usr/include")
set(Python_INCLUDE_DIR {SYSTEM}/usr/include/{PYTHON})
"""


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> None:
    """Run a command with additional environment variables. It must succeed."""
    subprocess.run([str(word) for word in command], check=True, cwd=cwd, env={**os.environ, **environment})


def unpack_python() -> None:
    """Download Debian's packages for arm64, and unpack them."""
    debs, lists = BUILD / "debs", BUILD / "apt" / "lists"
    for old in (debs, SYSTEM):
        shutil.rmtree(old, ignore_errors=True)
    for folder in (debs, lists / "partial", BUILD / "apt" / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    # apt-get gets its own state folders, so that the machine's list of architectures stays as it is.
    places = {"State": BUILD / "apt", "State::lists": lists, "State::status": "/dev/null", "Cache": BUILD / "apt"}
    options = [f"-oDir::{name}={place}" for name, place in places.items()]
    apt = ["apt-get", "-qq", "-oAPT::Architecture=arm64", "-oAPT::Architectures=arm64", "-oAPT::Sandbox::User=root"]
    run(*apt, *options, "update")
    run(*apt, *options, "download", *PACKAGES, cwd=debs)
    for package in debs.glob("*.deb"):
        run("dpkg-deb", "-x", package, SYSTEM)


def cross_compile() -> Path:
    """Build the wheel, and return its path."""
    toolchain, config, raw = BUILD / "toolchain.cmake", BUILD / "sysconfig", BUILD / "raw"
    toolchain.write_text(TOOLCHAIN, encoding="utf-8")
    config.mkdir(exist_ok=True)
    names = "_sysconfigdata__aarch64-linux-gnu"  # Python's build variables, which name the module and the wheel
    shutil.copy(SYSTEM / "usr" / "lib" / PYTHON / f"{names}.py", config)
    shutil.rmtree(raw, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", raw]
    run(
        *(*pip, "."),
        _PYTHON_HOST_PLATFORM="linux-aarch64",
        _PYTHON_SYSCONFIGDATA_NAME=names,
        PYTHONPATH=str(config),
        CMAKE_ARGS=f"-DCMAKE_TOOLCHAIN_FILE={toolchain}",
    )
    repaired = BUILD / "repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    run("auditwheel", "repair", "--wheel-dir", repaired, *raw.glob("*.whl"))
    (wheel,) = repaired.glob("*.whl")
    return wheel


def test(wheel: Path, *options: str) -> None:
    """Install the wheel, NumPy and the packages of the tests for aarch64, and run the native tests."""
    site = BUILD / "site"
    shutil.rmtree(site, ignore_errors=True)
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 28, 34, 36)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", site, *platforms, "--only-binary=:all:"]
    run(*pip, "--python-version=3.11", wheel, "--group", f"{ROOT / 'pyproject.toml'}:sanitize")
    # Tests that start Python start it under the emulator, too.
    python = BUILD / "python"
    python.write_text(f'#!/bin/sh\nexec qemu-aarch64 -L {SYSTEM} {SYSTEM}/usr/bin/{PYTHON} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    (site / "sitecustomize.py").write_text(f"import sys\n\nsys.executable = '{python}'\n", encoding="utf-8")
    # Three kinds of tests are left out, because qemu 7.2 does not support them. In a forked child with threads, an
    # assertion inside qemu fails. qemu ignores memory limits. And qemu has a thread of its own, which
    # `test_small_inputs_stay_on_the_calling_thread` would count.
    chosen = ("-k", "not fork and not failed_call and not calling_thread")
    run(python, "-m", "pytest", *NATIVE_TESTS, *chosen, "-n", "0", *options, PYTHONPATH=str(site))


def main() -> int:
    """Build, check and test the wheel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run a sample of the tests")
    options = parser.parse_args()
    absent = [f"{program} (package {package})" for program, package in PROGRAMS.items() if not shutil.which(program)]
    if absent:
        raise SystemExit(f"aarch64_wheel: not installed: {', '.join(absent)}")
    BUILD.mkdir(parents=True, exist_ok=True)
    unpack_python()
    wheel = cross_compile()
    found = problems(wheel)
    if found:
        print(*found, sep="\n", file=sys.stderr)
        return 1
    test(wheel, *(["--quick"] if options.quick else []))
    (ROOT / "dist").mkdir(exist_ok=True)
    shutil.copy(wheel, ROOT / "dist")
    return 0


if __name__ == "__main__":
    sys.exit(main())
