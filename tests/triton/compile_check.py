"""Compile the CUDA kernels for GPUs that are not there, and check the instructions.

    python -m tests.triton.compile_check [--capabilities 80 90 100 120]      30 minutes; prints a table

No kernel may use more shared memory than a block has, add floats with atomics, flush subnormals
outside of 2^x, or contain products and sums that the compiler may fuse. No kernel that serves by default
(`TRIED_ON_GPUS`) may spill registers on compute capability 9.0; other spills are listed. The exit code is 1 if a kernel
breaks a rule.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor

import triton
from tests.triton.compiled import Report, report
from tests.triton.launches import launches


def _report(job: tuple[int, int]) -> Report:
    return report(launches()[job[0]], job[1])


def main() -> int:
    """Compile everything, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capabilities", type=int, nargs="+", default=[80, 90, 100, 120])
    parser.add_argument("--every", type=int, default=1, help="compile one launch in this many")
    options = parser.parse_args()
    chosen = range(0, len(launches()), options.every)
    jobs = [(at, capability) for capability in options.capabilities for at in chosen]
    print(f"Triton {triton.__version__}: {len(jobs)} kernels")
    broken = 0
    with ProcessPoolExecutor(2) as pool:
        for (_, capability), found in zip(jobs, pool.map(_report, jobs, chunksize=8), strict=True):
            if found.broken or found.spills:
                rules = ", ".join(found.broken) or "no rule"
                print(f"sm_{capability} {found.name}: {found.spills} spills; breaks: {rules}")
            broken += bool(found.broken)
    print(f"{broken} of them break a rule")
    return int(broken > 0)


if __name__ == "__main__":
    raise SystemExit(main())
