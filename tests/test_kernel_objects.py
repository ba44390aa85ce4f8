"""Kernels compiled for a new instruction set must not leak into the rest of the program.

If two objects contain the same inline function of the standard library, the linker keeps only one copy. If this is the
copy that was compiled with AVX-512, baseline code calls it too, and an older machine stops with an illegal instruction.
Therefore every symbol that a kernel object defines must be in the namespace of its instruction set, or must be hidden
from other objects.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parent.parent / "build" / "dev" / "CMakeFiles"
OBJECTS = sorted(BUILD.glob("softargmax_kernels_*.dir/**/*.o"))


@pytest.mark.skipif(not OBJECTS or not shutil.which("nm"), reason="needs the objects of an editable build, and nm")
@pytest.mark.parametrize("path", OBJECTS, ids=[f"{p.relative_to(BUILD).parts[0]}-{p.parent.name}" for p in OBJECTS])
def test_kernel_objects_define_symbols_only_in_their_own_namespace(path: Path) -> None:
    found = re.search(r"softargmax_kernels_(\w+)\.dir", str(path))
    assert found is not None
    isa = found[1]
    out = subprocess.run(["nm", "-C", "--defined-only", path], check=True, capture_output=True, text=True).stdout
    symbols = [line.split(maxsplit=2)[1:] for line in out.splitlines() if line.strip()]
    # nm prints a letter for each symbol. Capital letters and u, v, w stand for symbols that other objects can see. The
    # symbols DW.ref.*, which exception handling uses, are equal in all objects.
    visible = [s for kind, s in symbols if (kind.isupper() or kind in "uvw") and not s.startswith("DW.ref.")]
    # nm leaves some names of lambdas mangled. In a mangled name, a namespace is written as its length and its name.
    leaked = [s for s in visible if not re.search(rf"\b{isa}\b|^_Z\w*{len(isa)}{isa}", s)]
    assert not leaked, f"{path.name} for {isa} defines, visibly to other objects: {leaked}"
