"""NEON under user-mode emulation: the same bits as this machine's instruction sets.

Needs a cross-compiler and qemu (Debian: `g++-aarch64-linux-gnu`, `qemu-user`); skipped where they are missing.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = Path(__file__).with_name("bits.cpp")
KERNELS = sorted((ROOT / "src" / "softargmax").glob("*/kernels.cpp"))
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra"]
FLAGS += ["-Wconversion", "-Werror", f"-I{ROOT / 'src' / 'softargmax'}", "-fopenmp"]
X86 = {"v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"], "v3": ["-march=x86-64-v3"], "baseline": []}
CROSS = shutil.which("aarch64-linux-gnu-g++")
QEMU = shutil.which("qemu-aarch64")

needs_arm = pytest.mark.skipif(not (CROSS and QEMU), reason="needs aarch64-linux-gnu-g++ and qemu-aarch64")
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("g++"), reason="needs g++ on x86-64")


def runs(isa: str) -> bool:
    """Whether this machine has the instruction set."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return {"v4": "avx512dq" in flags, "v3": "avx2" in flags and "fma" in flags}.get(isa, True)


def lines(command: list[str], binary: Path, runner: list[str]) -> list[str]:
    subprocess.run([*command, str(PROGRAM), "-o", str(binary)], check=True)
    return subprocess.run([*runner, str(binary)], check=True, capture_output=True, text=True).stdout.splitlines()


@needs_x86
def test_every_instruction_set_gives_the_same_states(tmp_path: Path) -> None:
    found = {
        isa: lines(["g++", *FLAGS, *flags, f"-DSOFTARGMAX_ISA_NAME={isa}"], tmp_path / isa, [])
        for isa, flags in X86.items()
        if runs(isa)
    }
    if CROSS and QEMU:
        for isa in ("neon", "baseline"):
            command = [CROSS, "-static", *FLAGS, f"-DSOFTARGMAX_ISA_NAME={isa}"]
            found[f"arm {isa}"] = lines(command, tmp_path / f"arm-{isa}", [QEMU])
    assert len(found["baseline"]) == 56
    for isa, text in found.items():
        assert text == found["baseline"], isa


@needs_arm
@pytest.mark.parametrize("path", KERNELS, ids=[p.parent.name for p in KERNELS])
@pytest.mark.parametrize("isa", ["neon", "baseline"])
def test_kernels_compile_for_arm(path: Path, isa: str, tmp_path: Path) -> None:
    assert CROSS is not None
    command = [CROSS, *FLAGS, f"-DSOFTARGMAX_ISA_NAME={isa}", "-c", str(path), "-o", str(tmp_path / "kernels.o")]
    subprocess.run(command, check=True)
