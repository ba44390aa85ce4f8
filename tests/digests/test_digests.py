"""The digests of every room are those of `digests.json` and `changed.json`, on every instruction set of this machine.

All of them on the best one; on the others those of the kernels (`--kernels` of `record.py`): a process takes 45 s.

`record.py` says how they are made, and recorded anew. They show that a change of the inside changes nothing for users.

Left out, with the reason:

- jit, `torch.compile` and JAX: minutes, and the compiler's bits. Their own tests compare them with eager results.
- The rooms stream and classify: stream promises the bits of the functions in memory, and is tested for them; the
  estimators of classify iterate with SciPy's solvers.
- CUDA and other devices: there were no kernels for them when the digests were recorded.
- Draws without a seed, `nn.Attention` with dropout in training, and first parameters of layers: they come from the
  generators of NumPy and torch.
- float16 in second derivatives, forward mode and vmap (sample: all of these), and pairs of options in dtypes other than
  float32 (a few functions: bfloat16 too): the same code as in the other dtypes, and the file is to stay small.
- `qk_norm` of tensors other than float32: a mean by torch, which has other bits on another processor.
- By the definition (`using("reference")`): the rooms sample (but draws) and attend.

Nothing is left out because its bits differ between instruction sets: none do. Results that take part in a product or a
function of torch or NumPy are marked in the file; they are compared where those have the recorded versions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.digests.record import PINNED, ROOMS, changed, differing, read

import softargmax
from softargmax.core import native

pytest.importorskip("torch")
ISAS = [isa for isa, runs in native.info()["isas"].items() if runs]


@pytest.mark.slow
@pytest.mark.no_sanitize
@pytest.mark.parametrize("isa", ISAS)
def test_nothing_changed(isa: str, tmp_path: Path) -> None:
    environment = {**os.environ, **PINNED, "SOFTARGMAX_ISA": isa, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "tests.digests.record", *["--kernels"] * (isa != ISAS[0])],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert not done.stdout, f"other digests:\n{done.stdout}"
    assert done.returncode == 0, done.stderr
    assert softargmax.__file__ in done.stderr


def test_what_changed_is_recorded_once() -> None:
    """Every case that was meant to change is there, differs from the old one, and has one reason."""
    names = [name for cases in changed().values() for name in cases]
    assert len(set(names)) == len(names)
    old = read()
    for cases in changed().values():
        for name, digest in cases.items():
            room, _, rest = name.partition(": ")
            what, _, variant = rest.rpartition(" | ")
            assert old[room][what][variant].strip("~") != digest, name


def test_differences_are_named() -> None:
    here = {"softmax": {"a": "1", "b": "2"}, "new": {"a": "1"}}
    there = {"softmax": {"a": "1", "b": "~3"}, "gone": {"a": "1"}}
    assert differing(here, there) == ["gone | a", "new | a", "softmax | b"]
    assert not differing({"softmax": {"a": "1"}}, {"softmax": {"a": "~1"}})


def test_enough_is_recorded() -> None:
    counts = {room: sum(map(len, digests.values())) for room, digests in read().items()}
    assert set(counts) == set(ROOMS)
    assert min(counts.values()) > 1000
