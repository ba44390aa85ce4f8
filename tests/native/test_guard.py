"""No kernel reads or writes outside its buffers, which end or begin at a protected page."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from softargmax.core import native

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect"),
    pytest.mark.no_sanitize,  # the protected pages detect the same errors
]
WORKER = str(Path(__file__).with_name("guard_worker.py"))


@pytest.mark.slow
@pytest.mark.parametrize("isa", [isa for isa, runs in native.info()["isas"].items() if runs])
def test_no_access_beyond_the_buffers(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTARGMAX_ISA", isa)
    done = subprocess.run([sys.executable, WORKER], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert int(done.stdout) > 20_000


def test_the_fence_stops_a_read_beyond_the_buffer() -> None:
    done = subprocess.run([sys.executable, WORKER, "--beyond"], capture_output=True, text=True, check=False)
    assert done.returncode in (-signal.SIGSEGV, -signal.SIGBUS, 1), done  # 1: a sanitizer reports it
    assert done.stdout == ""
