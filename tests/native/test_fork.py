"""A process that is forked after a call does not hang and gives the same results. (torch's softmax hangs.)"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from tests.native.operations import same_bits

import softargmax

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
SHAPE = (64, 20_000)  # large enough for several threads


def _answer(_: int = 0) -> np.ndarray:
    return softargmax.softmax(np.random.default_rng(3).standard_normal(SHAPE, np.float32) * 10)


def _wait(pid: int, seconds: float) -> int:
    """Return the child's exit status. If the child does not end in time, kill it and fail."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail("the forked child hangs")


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns about a fork with threads
        return os.fork()


def test_os_fork_after_use() -> None:
    before = _answer()
    reader, writer = os.pipe()
    pid = _fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if all(same_bits(_answer(), before) for _ in range(3)) else 2
            os.write(writer, b"done")
        finally:
            os._exit(code)
    assert _wait(pid, 60) == 0
    assert os.read(reader, 4) == b"done"
    os.close(reader)
    os.close(writer)
    assert same_bits(_answer(), before), "the parent still works"


def test_fork_of_a_fork() -> None:
    before = _answer()
    pid = _fork()
    if pid == 0:
        code = 1
        try:
            same = same_bits(_answer(), before)
            grandchild = os.fork()
            if grandchild == 0:
                os._exit(0 if same_bits(_answer(), before) else 3)
            code = 0 if same and os.waitpid(grandchild, 0)[1] == 0 else 2
        finally:
            os._exit(code)
    assert _wait(pid, 60) == 0


def test_multiprocessing_fork_after_use() -> None:
    before = _answer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            answers = pool.map_async(_answer, range(4)).get(timeout=120)
    assert all(same_bits(a, before) for a in answers)


# With the sanitizers of GCC 12, a child would wait forever for a lock of the allocator that another thread held at the
# fork.
@pytest.mark.no_sanitize
def test_fork_while_another_thread_computes() -> None:
    """A child works even if the parent's thread pool is busy at the moment of the fork."""
    code = """
import os, threading, numpy as np, softargmax
z = np.ones((64, 20_000), np.float32)
softargmax.softmax(z)  # runs lazy imports now: Python's import locks do not survive a fork
stop = threading.Event()
def work():
    while not stop.is_set(): softargmax.softmax(z)
t = threading.Thread(target=work); t.start()
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        softargmax.softmax(z); os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
stop.set(); t.join(); print("done")
"""
    arguments = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "done\n", done.stderr


def test_data_loader_workers() -> None:
    torch = pytest.importorskip("torch")

    class Rows(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> object:
            z = torch.randn(64, 20_000, generator=torch.Generator().manual_seed(i))
            return softargmax.softmax(z)

    rows = Rows()
    before = [rows[i] for i in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        loader = torch.utils.data.DataLoader(rows, num_workers=2, multiprocessing_context="fork", timeout=100)
        for found, expected in zip(loader, before, strict=True):
            assert torch.equal(found[0], expected)
