"""NEON, under user-mode emulation, gives the same bits as the best instruction set of this machine.

tests/native compares the instruction sets of x86 with each other.

The tests need a cross-compiler and qemu (Debian: `g++-aarch64-linux-gnu`, `qemu-user`). Without these
programs, the tests are skipped.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent / "src" / "softargmax"
ROOMS = ("normalize", "sample", "attend", "output")
THREADS = SOURCE / "core" / "cpp" / "threads.cpp"
CORE, NORMALIZE, SAMPLE, ATTEND, OUTPUT = (SOURCE / room / "kernels.cpp" for room in ("core", *ROOMS))
# The sources of each program, in addition to core, and the number of lines that it prints.
PROGRAMS = {
    "states": ([HERE / "bits.cpp"], 56),
    "operations": ([HERE / "operations.cpp", NORMALIZE], 1800),
    "draws": ([HERE / "draws.cpp", SAMPLE], 425),
    "attention": ([HERE / "attention.cpp", ATTEND], 176),
    "vectors": ([HERE / "vectors.cpp", OUTPUT], 128),
}

# Bits do not depend on the optimization level. With -O1, the code for NEON compiles in half the time.
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", f"-I{SOURCE}", "-pthread"]
ISAS = {"v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"], "v3": ["-march=x86-64-v3"], "baseline": []}
CROSS = shutil.which("aarch64-linux-gnu-g++")
QEMU = shutil.which("qemu-aarch64")
BUILD = SOURCE.parent.parent / "build" / "dev" / "CMakeFiles"


def here(isa: str) -> bool:
    """True if this machine supports the instruction set."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return {"v4": "avx512dq" in flags, "v3": "avx2" in flags and "fma" in flags}.get(isa, True)


def compiled(source: Path, isa: str) -> Path:
    """Return the object file of an editable build if it is up to date, and otherwise the source.

    Compiling the source takes 27 s of CPU time.
    """
    made = BUILD / f"softargmax_kernels_{isa}.dir" / "src" / "softargmax" / source.parent.name / f"{source.name}.o"
    newest = max(path.stat().st_mtime for path in SOURCE.rglob("*.[ch]pp"))
    return made if source.name == "kernels.cpp" and made.exists() and made.stat().st_mtime > newest else source


def build(compiler: list[str], isa: str, sources: list[Path], to: Path, *more: str) -> Path:
    command = [*compiler, *FLAGS, f"-DSOFTARGMAX_ISA_NAME={isa}", *more, *map(str, sources), "-o", str(to)]
    subprocess.run(command, check=True)
    return to


def core(compiler: list[str], isa: str, folder: Path) -> Path:
    """Return the object file of core, which every program needs. It is compiled once."""
    made = folder / f"core-{isa}.o"
    if (source := compiled(CORE, isa)) != CORE:
        return source
    return made if made.exists() else build(compiler, isa, [CORE], made, "-c")


def lines(compiler: list[str], isa: str, program: str, binary: Path, runner: list[str]) -> list[str]:
    sources, count = PROGRAMS[program]
    shared = core(compiler, isa, binary.parent.parent)
    build(compiler, isa, [shared, THREADS, *(compiled(source, isa) for source in sources)], binary)
    found = subprocess.run([*runner, str(binary)], check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(found) == count
    return found


@pytest.fixture(scope="module", params=PROGRAMS)
def expected(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """Return a program, and the lines that it prints if compiled for the best instruction set of this machine."""
    if platform.machine() != "x86_64" or not (shutil.which("g++") and CROSS and QEMU):
        pytest.skip("needs x86-64, g++, aarch64-linux-gnu-g++ and qemu-aarch64")
    isa = next(isa for isa in ISAS if here(isa))
    return request.param, lines(["g++", *ISAS[isa]], isa, request.param, tmp_path_factory.mktemp("best") / isa, [])


@pytest.mark.slow
def test_neon_gives_the_same_bits(expected: tuple[str, list[str]], tmp_path: Path) -> None:
    program, bits = expected
    # CMakeLists.txt defines _Float16 in the same way for compilers that need it.
    compiler = [str(CROSS), "-static", "-D_Float16=__fp16"]
    assert lines(compiler, "neon", program, tmp_path / "neon", [str(QEMU)]) == bits
