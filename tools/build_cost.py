"""Measure what a clean build of the compiled module costs: CPU seconds, and the bytes of the module.

    python -m tools.build_cost g++ clang++-19    some minutes each; writes bench/results/build_cost.json

ccache is switched off, and the packages of the build are those of this environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from bench.machine import machine
from tools.measurements import RESULTS, ROOT


def cost(compiler: str) -> dict[str, float | str]:
    """Build a wheel with a compiler. Return the compiler's version, the CPU seconds, and the size of the module."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    before = os.times()
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        command = [*pip, "--wheel-dir", folder, "--config-settings", f"build-dir={folder}/build", str(ROOT)]
        subprocess.run(command, check=True, env=os.environ | {"CXX": compiler, "CCACHE_DISABLE": "1"})
        (wheel,) = Path(folder).glob("*.whl")
        size = max(one.file_size for one in zipfile.ZipFile(wheel).infolist() if one.filename.endswith(".so"))
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return {"version": version, "cpu_seconds": seconds, "bytes": size}


def main() -> int:
    """Measure the compilers that the command line names, and write the result."""
    found = {}
    for compiler in sys.argv[1:] or ["g++"]:
        found[compiler] = cost(compiler)
        print(compiler, found[compiler], flush=True)
    record = {"machine": machine(), "builds": found}
    (RESULTS / "build_cost.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
