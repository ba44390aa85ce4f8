"""The program in examples/: its losses have the same bits for any number of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "vocabulary_parallel.py"


def printed(processes: int) -> list[str]:
    """Run the program by torchrun, and return what it prints."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run([*launch, EXAMPLE], check=False, capture_output=True, text=True, env=one_thread)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_losses_of_all_steps_have_the_same_bits() -> None:
    expected = printed(1)
    losses = [float(line.split()[1]) for line in expected]
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 1
    assert printed(2) == expected
    assert printed(4) == expected
