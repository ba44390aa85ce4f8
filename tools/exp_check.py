"""Check the exp of the kernels on every float32 of its domain, on every instruction set that this machine runs.

    python tools/exp_check.py        about 4 minutes on 2 cores; writes bench/results/exp_check.json

exp_check.cpp is compiled with the library's headers and with the flags of CMakeLists.txt. The exit code is 1 if an
error is above the bound, or if two instruction sets differ in a bit.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "bench" / "results" / "exp_check.json"
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fopenmp"]
ISAS = {
    "x86-64-v4": ["-DSOFTARGMAX_ISA_NAME=v4", "-march=x86-64-v4", "-mprefer-vector-width=512"],
    "x86-64-v3": ["-DSOFTARGMAX_ISA_NAME=v3", "-march=x86-64-v3"],
    "baseline": ["-DSOFTARGMAX_ISA_NAME=baseline"],
}
NEEDS = {"x86-64-v4": "avx512dq", "x86-64-v3": "fma"}
BOUND = 1.25  # ulp


def check(isa: str, folder: Path) -> list[dict[str, Any]]:
    """Compile and run exp_check.cpp for one instruction set, and return the lines that it prints."""
    program = folder / isa
    source = ROOT / "tools" / "exp_check.cpp"
    include = f"-I{ROOT / 'src' / 'softargmax'}"
    compiler = [os.environ.get("CXX", "g++"), *FLAGS, *ISAS[isa], include]
    subprocess.run([*compiler, str(source), "-o", str(program)], check=True)
    started = time.monotonic()
    text = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    lines = [json.loads(line) for line in text.splitlines()]
    for found in lines:
        print(isa, found, flush=True)
    print(f"{isa}: {time.monotonic() - started:.0f} s", flush=True)
    return lines


def main() -> int:
    """Check every instruction set and write the result. Return the exit code."""
    if platform.machine() != "x86_64":
        print(f"expected a machine with x86-64, got {platform.machine()}", file=sys.stderr)
        return 2
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    here = [isa for isa in ISAS if NEEDS.get(isa, "fpu") in cpu]
    with tempfile.TemporaryDirectory() as folder:
        results = {isa: check(isa, Path(folder)) for isa in here}
    first = results[here[0]]
    same = all([f["bits"] for f in lines] == [f["bits"] for f in first] for lines in results.values())
    worst = max(f["max_ulp"] for lines in results.values() for f in lines)
    name = next(line.partition(":")[2].strip() for line in cpu.splitlines() if line.startswith("model name"))
    record = {"cpu": name, "bound": BOUND, "max_ulp": worst, "same_bits": same, "isas": results}
    RESULT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"max error {worst} ulp, {'the same' if same else 'DIFFERENT'} bits; wrote {RESULT.relative_to(ROOT)}")
    return 0 if same and worst <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
