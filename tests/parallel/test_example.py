"""The programs in examples/: their losses are those of one process, for any number of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def printed(example: str, processes: int) -> list[str]:
    """Run the program by torchrun, and return what it prints."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run([*launch, EXAMPLES / example], check=False, capture_output=True, text=True, env=one_thread)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_losses_of_all_steps_have_the_same_bits() -> None:
    expected = printed("vocabulary_parallel.py", 1)
    losses = [float(line.split()[1]) for line in expected]
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 1
    assert printed("vocabulary_parallel.py", 2) == expected
    assert printed("vocabulary_parallel.py", 4) == expected


@pytest.mark.slow
def test_losses_of_rows_in_several_processes() -> None:
    """The first loss has the bits of one process. After 100 steps, rounding has changed no loss by 1e-6 of it."""
    expected = printed("data_parallel.py", 1)
    losses = [float(line.split()[1]) for line in expected]
    assert len(losses) == 100
    assert losses[-1] < losses[0] - 1
    for processes in (2, 4):
        found = printed("data_parallel.py", processes)
        assert found[0] == expected[0]
        for one, other in zip(found, expected, strict=True):
            loss, of_one = (float.fromhex(line.split()[2]) for line in (one, other))
            assert abs(loss - of_one) <= 1e-6 * of_one
