"""The digests of every room are the recorded ones, on every instruction set of this machine.

A room is a folder of src/softargmax. `digests.json` has the recorded digests. `changed.json` has the digests of
results that were later changed on purpose.

On the best instruction set all digests are compared. On the others only the digests of kernels are compared (option
`--kernels` of `record.py`). Each instruction set runs in a process that takes 45 s.

`record.py` describes how digests are computed and recorded. Digests show that internal changes do not change results.

The following has no digests, for these reasons:

- jit, `torch.compile` and JAX: they take minutes, and their bits depend on the compiler. Other tests compare them with
  eager results.
- The rooms stream and classify: streams give the same bits as the functions in memory, and the tests of stream check
  this. The estimators of classify use SciPy's solvers.
- CUDA and other devices: there were no kernels for them when the digests were recorded.
- Draws without a seed, `nn.Attention` with dropout in training, and initial parameters of layers: they depend on the
  generators of NumPy and torch.
- float16 in second derivatives, forward mode and vmap, and pairs of options in dtypes other than float32: they run the
  same code as cases that have digests, and would make the file large. A few functions have digests of pairs in
  bfloat16, too. The room sample has no digests of second derivatives, forward mode and vmap at all.
- `qk_norm` of tensors other than float32: it uses torch's mean, whose bits depend on the processor.
- The definitions (`using("reference")`) of the rooms attend and output, and of sample except for draws: other tests
  compare them with truth.

The library's results have the same bits on all instruction sets, so the digests hold for all of them. Results that
depend on a product or a function of torch or NumPy are marked in the file. Marked results are compared only if torch
and NumPy have the recorded versions.
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
def test_digests_are_unchanged(isa: str, tmp_path: Path) -> None:
    environment = {**os.environ, **PINNED, "SOFTARGMAX_ISA": isa, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "tests.digests.record", *["--kernels"] * (isa != ISAS[0])],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert not done.stdout, f"digests that differ:\n{done.stdout}"
    assert done.returncode == 0, done.stderr
    assert softargmax.__file__ in done.stderr


def test_intended_changes_are_recorded_once() -> None:
    """Every case in `changed.json` appears there once, and has another digest in `digests.json`."""
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


def test_every_room_has_over_1000_digests() -> None:
    counts = {room: sum(map(len, digests.values())) for room, digests in read().items()}
    assert set(counts) == set(ROOMS)
    assert min(counts.values()) > 1000
