"""Every instruction set gives the same bits. SOFTARGMAX_ISA selects an instruction set or raises an error."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import softargmax
from softargmax.core import native

# Other tests run these kernels under sanitizers. This test would find no further errors under them, and take five times
# as long as without them.
pytestmark = pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="slow under sanitizers")
KNOWN = ("x86-64-v4", "x86-64-v3", "baseline", "neon")
HERE = [isa for isa, runs in native.info()["isas"].items() if runs]


def _python(isa: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "SOFTARGMAX_ISA"}
    if isa is not None:
        environment["SOFTARGMAX_ISA"] = isa
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=280, check=False
    )


@functools.lru_cache
def _worker(isa: str) -> dict[str, object]:
    done = _python(isa, str(Path(__file__).with_name("isa_worker.py")))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_there_are_several_instruction_sets() -> None:
    assert set(HERE) <= set(KNOWN)
    assert len(HERE) > 1


@pytest.mark.slow
@pytest.mark.parametrize("isa", HERE)
def test_same_bits_on_every_instruction_set(isa: str) -> None:
    best, forced = _worker(HERE[0]), _worker(isa)
    assert forced["isa"] == isa
    different = {k for k, v in forced["digests"].items() if best["digests"][k] != v}
    assert not different
    assert len(forced["digests"]) == len(best["digests"]) > 300


def test_the_best_is_chosen() -> None:
    done = _python(None, "-c", "from softargmax.core import native; print(native.info()['isa'])")
    assert done.stdout.strip() == HERE[0], done.stderr


@pytest.mark.parametrize("isa", ["avx9000", "", "X86-64-V4", *(name for name in KNOWN if name not in HERE)])
def test_unknown_or_unsupported_names_raise(isa: str) -> None:
    done = _python(isa, "-c", "import softargmax; print(softargmax.softmax([1.0, 2.0]))")
    if isa == "":  # an empty variable counts as unset
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode != 0
    assert "SOFTARGMAX_ISA" in done.stderr
    assert isa in done.stderr
    assert all(name in done.stderr for name in HERE), "the message lists the allowed names"


def test_info_describes_the_running_core() -> None:
    info = native.info()
    assert info["isa"] in HERE
    assert info["threads"] == softargmax.get_num_threads()
