"""The programs in examples/ that use Dask: what they print, and the memory of their workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def printed(name: str, size: int) -> dict[str, str]:
    """Run a program with data of some size. Return what it prints: the numbers after the words."""
    done = subprocess.run([sys.executable, EXAMPLES / name, str(size)], check=False, capture_output=True, text=True,
                          env={**os.environ, "OMP_WAIT_POLICY": "passive"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "run_spec" not in done.stderr  # Dask's warning of two different tasks of one name
    found = re.findall(r"^([a-zA-Z- ]+?):? ((?:[\d.]+|True|False).*)$", done.stdout, re.MULTILINE)
    assert len(found) == len(done.stdout.splitlines()) - 1, done.stdout
    return dict(found)


def growth(found: dict[str, str]) -> float:
    """Return by how many MB the memory of a worker has grown in the run."""
    return float(found["memory of a worker"].split("in the run ")[1].split()[0])


@pytest.mark.slow
def test_an_evaluation() -> None:
    found = printed("dask_evaluation.py", 105_000)
    assert abs(float(found["temperature"]) - 2.5) < 0.1
    before, after = (float(x) for x in found["calibration error"].split(", calibrated "))
    assert after < before / 4
    assert found["same bits as NumPy"] == "True"
    assert growth(found) < 420 / 3  # of 420 MB of logits, two workers would have 210 MB each


@pytest.mark.slow
def test_classifiers() -> None:
    found = printed("dask_classifier.py", 16)
    assert min(float(found[name]) for name in ("GaussianNaiveBayes", "LinearDiscriminant", "SoftmaxRegression")) > 0.8
    assert found["same bits as NumPy"] == "True"
    assert growth(found) < 134 * 3 / 4  # of 134 MB of rows, two workers would have 67 MB each, and what passes need
