"""Check wheels: tags, contents and size, and the native tests in a fresh environment of each Python.

    python -m tools.check_wheel dist/*.whl                                  the native tests of this Python
    python -m tools.check_wheel dist/*.whl --python python3.12 python3.13   the native tests of these Pythons

For each Python, pip chooses one of the wheels. The exit code is 1 if a check fails. `make wheels` calls this program.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING

from auditwheel.wheel_abi import analyze_wheel_abi
from installer.sources import WheelFile
from packaging.utils import parse_wheel_filename
from tools.fresh_environment import NATIVE_TESTS, ROOT, FreshEnvironment, group

if TYPE_CHECKING:
    from packaging.tags import Tag

BYTES = 6_000_000
"""Largest size of the compiled module."""
GLIBC = 34
"""Largest minor version of glibc 2 that a wheel may need."""
MANYLINUX = r"manylinux_2_(\d+)_(\w+)"
SECONDS = 20
"""Longest time to install a wheel, NumPy and the extra `cli` in a fresh environment, with a quick package index."""


def problems(wheel: Path) -> list[str]:
    """Return what is wrong with the record, the tags or the contents of a wheel."""
    found: list[str] = []

    def expect(what: str, expected: object, got: object) -> None:
        if expected != got:
            found.append(f"{what}: expected {expected}, got {got}")

    name, version, _, tags = parse_wheel_filename(wheel.name)
    with WheelFile.open(wheel) as source:
        try:
            source.validate_record()
        except source.validation_error as error:
            found += [f"RECORD: {issue}" for issue in error.issues]
        metadata, listed = (Parser().parsestr(source.read_dist_info(file)) for file in ("METADATA", "WHEEL"))
    expect("METADATA", [name, str(version)], [metadata["Name"], metadata["Version"]])
    expect("tags in WHEEL", sorted(map(str, tags)), sorted(listed.get_all("Tag", [])))
    with zipfile.ZipFile(wheel) as archive:
        compiled = {file.filename: file.file_size for file in archive.infolist() if ".so" in file.filename}
        expect("C++ sources", [], [file for file in archive.namelist() if file.endswith((".cpp", ".hpp", ".h"))])
    found += [f"{file}: expected at most {BYTES} bytes, got {size}" for file, size in compiled.items() if size > BYTES]
    verdict = analyze_wheel_abi(None, None, wheel, frozenset(), disable_isa_ext_check=False, allow_graft=False)
    policy = verdict.overall_policy.name
    print(f"{wheel.name}: {policy} by auditwheel, {sum(compiled.values()):,} bytes compiled")
    # A module that needs libgomp, or another library that systems may lack, has the platform linux_x86_64.
    glibc = re.fullmatch(MANYLINUX, policy)
    if glibc is None or int(glibc[1]) > GLIBC:
        return [*found, f"platform: expected manylinux_2_{GLIBC} or below, got {policy}"]
    # auditwheel adds the platform of the build's image, which may need a newer glibc than the wheel does.
    named = {tag.platform: re.fullmatch(MANYLINUX, tag.platform) for tag in tags}
    below = [platform for platform, match in named.items() if match is None or int(match[1]) < int(glibc[1])]
    if below or policy not in named:
        found.append(f"platforms: expected {policy}, and none below, got {sorted(named)}")
    # No other compiled file: a bundled libgomp would be a second one beside torch's.
    expect("compiled files", {module(tag, glibc[2]) for tag in tags}, set(compiled))
    audit = [Path(sys.executable).with_name("abi3audit"), "--strict", wheel]
    if "-abi3-" in wheel.name and subprocess.run(audit, check=False).returncode:
        found.append("abi3audit: expected no symbol outside the stable ABI")
    return found


def module(tag: Tag, machine: str) -> str:
    """Return the path of the compiled module in a wheel with this tag."""
    abi = "abi3" if tag.abi == "abi3" else f"cpython-{tag.interpreter.removeprefix('cp')}-{machine}-linux-gnu"
    return f"softargmax/core/_native.{abi}.so"


def test(python: str, wheels: list[Path]) -> None:
    """Install a wheel in a fresh environment, and run its command and the native tests."""
    with tempfile.TemporaryDirectory() as folder:
        environment = FreshEnvironment(python, Path(folder) / "venv")
        start = time.perf_counter()
        environment.install_wheel(wheels, "cli", "--only-binary", ":all:")
        seconds = time.perf_counter() - start
        print(f"{python}: installed in {seconds:.1f} s")
        environment.run("python", "-W", "error", "-c", "import softargmax; print(softargmax.softmax([1.0, 2.0, 3.0]))")
        environment.run("softargmax", "1", "2", "3")
        environment.install(*group("sanitize"))
        environment.run("python", "-m", "pytest", *NATIVE_TESTS, cwd=ROOT)
        if seconds > SECONDS:
            raise SystemExit(f"{python}: expected an installation within {SECONDS} s, got {seconds:.1f} s")


def main() -> int:
    """Check all wheels, then test each Python."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--python", nargs="*", default=[sys.executable])
    options = parser.parse_args()
    found = {wheel.name: problems(wheel) for wheel in options.wheels}
    for name, lines in found.items():
        for line in lines:
            print(f"{name}: {line}", file=sys.stderr)
    if any(found.values()):
        return 1
    for python in options.python:
        test(python, options.wheels)
    return 0


if __name__ == "__main__":
    sys.exit(main())
