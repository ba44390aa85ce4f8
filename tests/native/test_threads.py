"""Threads: concurrent Python threads, the number of threads, and small inputs on the calling thread."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.native.operations import row_operations, same_bits, scores

import softargmax
from softargmax.core import _native

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    softargmax.set_num_threads(0)


@pytest.mark.slow
def test_eight_threads_at_once() -> None:
    """Every operation gives the same bits in 8 Python threads that start together, with and without the thread pool."""
    inputs = [scores(shape, dtype) for shape in ((16, 9000), (3, 60_001), (5, 7)) for dtype in ("float32", "float64")]
    operations = list(row_operations().items())
    expected = [[operation(z) for z in inputs] for _, operation in operations]
    barrier = threading.Barrier(8)

    def work(seed: int) -> list[str]:
        barrier.wait(60)
        wrong = []
        for i in np.random.default_rng(seed).permutation(len(operations)):
            name, operation = operations[i]
            wrong += [name for z, right in zip(inputs, expected[i], strict=True) if not same_bits(operation(z), right)]
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [[]] * 8


def test_threads_can_change_the_number_of_threads() -> None:
    z = scores((64, 9000), "float32")
    expected = softargmax.softmax(z)
    stop = threading.Event()

    def change_threads() -> None:
        while not stop.is_set():
            for count in (1, 2, 4):
                softargmax.set_num_threads(count)

    thread = threading.Thread(target=change_threads)
    thread.start()
    try:
        assert all(same_bits(softargmax.softmax(z), expected) for _ in range(50))
    finally:
        stop.set()
        thread.join()


def test_set_num_threads() -> None:
    most = _native.most_threads()
    for n in (most, 3):
        softargmax.set_num_threads(n)
        assert softargmax.get_num_threads() == n
    for wrong in (-1, most + 1, 1 << 70):
        with pytest.raises(ValueError, match=str(wrong)):
            softargmax.set_num_threads(wrong)
    for wrong in (1.5, "2", None):
        with pytest.raises(TypeError):
            softargmax.set_num_threads(wrong)
    assert softargmax.get_num_threads() == 3
    softargmax.set_num_threads(0)  # restores the default
    assert softargmax.get_num_threads() >= 1


@pytest.mark.parametrize("count", [1, 2, 5])
def test_environment(count: int) -> None:
    code = "import softargmax; print(softargmax.get_num_threads())"
    environment = {**os.environ, "OMP_NUM_THREADS": str(count)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) == count


COUNT = """
import os, numpy as np, softargmax
softargmax.set_num_threads(2)
softargmax.softmax(np.ones({shape}, np.float32))
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_small_inputs_stay_on_the_calling_thread() -> None:
    """A process that computes only small softmaxes starts no threads. A large softmax starts threads."""

    def threads(shape: tuple[int, ...]) -> int:
        # NumPy's BLAS threads must not be counted.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        arguments = [sys.executable, "-c", COUNT.format(shape=shape)]
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert threads((7,)) == 1
    assert threads((4, 256)) == 1
    assert threads((64, 20_000)) == 2
    assert threads((4_000_000,)) == 2


def run(code: str) -> str:
    """Run code in a process of its own, and return what it prints."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


LARGE = """
import numpy as np, os, softargmax
z = np.random.default_rng(0).standard_normal((64, 9000), np.float32)
"""
TORCH = "import torch; torch.softmax(torch.ones(64, 9000), -1)\n"  # OpenMP has started
MAPPED = """
softargmax.softmax(z)
print("libgomp" in open("/proc/self/maps").read())
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_a_process_without_torch_needs_no_openmp() -> None:
    assert run(LARGE + MAPPED) == "False"


@pytest.mark.no_sanitize
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
@pytest.mark.parametrize("order", [("torch", "softargmax"), ("softargmax", "torch")])
def test_torchs_openmp_is_the_only_one(order: tuple[str, str]) -> None:
    """Whether torch is imported first or last, one libgomp is mapped, and both libraries use its threads."""
    pytest.importorskip("torch")
    calls = {
        "torch": TORCH,
        "softargmax": "softargmax.softmax(z)\n",
    }
    code = """
softargmax.softmax(z)
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}
before = len(os.listdir("/proc/self/task"))
for _ in range(20):
    softargmax.softmax(z), torch.softmax(torch.ones(64, 9000), -1)
print(len(libraries), "torch" in libraries.pop(), len(os.listdir("/proc/self/task")) - before)
"""
    # On a busy machine a thread of OpenMP may start late. softargmax then starts threads of its own. Therefore the test
    # passes if at least one of up to five runs starts no threads.
    started = []
    while 0 not in started and len(started) < 5:
        *found, threads = run(LARGE + calls[order[0]] + calls[order[1]] + code).split()
        assert found == ["1", "True"]
        started.append(int(threads))
    assert 0 in started


@pytest.mark.no_sanitize
def test_torch_sets_the_default_number_of_threads() -> None:
    """`torch.set_num_threads` changes our default, whether torch is imported before or after the first call."""
    pytest.importorskip("torch")
    change = "import torch; torch.set_num_threads(1); softargmax.softmax(z); print(softargmax.get_num_threads())"
    assert run(LARGE + change) == "1"
    assert run(LARGE + "softargmax.softmax(z)\n" + change) == "1"


@pytest.mark.no_sanitize
@pytest.mark.parametrize("first", ["", "torch.softmax(torch.ones(64, 9000), -1)", "softargmax.softmax(z)"])
def test_a_new_thread_has_torchs_number_of_threads(first: str) -> None:
    """A thread that has not called torch yet has torch's number, not that of the processors."""
    pytest.importorskip("torch")
    change = f"""
import threading, torch
{first}
torch.set_num_threads(5)
def ask():
    print(softargmax.get_num_threads(), torch.get_num_threads())
for _ in range(2):
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
ask()
"""
    assert run(LARGE + change) == "5 5\n5 5\n5 5"


@pytest.mark.no_sanitize
@pytest.mark.parametrize("torch", [False, True])
def test_signals_arrive_during_calls(*, torch: bool) -> None:
    """Python's handlers run while calls use several threads, and change no bits."""
    if torch:
        pytest.importorskip("torch")
    code = (
        LARGE
        + (TORCH if torch else "")
        + """
import signal, time
softargmax.set_num_threads(4)
expected = softargmax.softmax(z)
arrived = []
def handle(*_):
    arrived.append(softargmax.softmax(z))
    signal.setitimer(signal.ITIMER_REAL, 0.002)
signal.signal(signal.SIGALRM, handle)
handle()
results, end = [], time.monotonic() + 60
while len(arrived) < 20 and time.monotonic() < end:
    results.append(softargmax.softmax(z))
    del results[:-20]
signal.signal(signal.SIGALRM, signal.SIG_IGN)
print(len(arrived) >= 20, all(np.array_equal(result, expected) for result in arrived + results))
"""
    )
    assert run(code) == "True True"


@pytest.mark.no_sanitize
@pytest.mark.parametrize("threads", [1, 2])
def test_a_process_ends_while_daemon_threads_compute(threads: int) -> None:
    code = (
        LARGE
        + f"""
import threading, time
softargmax.set_num_threads({threads})
softargmax.softmax(z)
def work():
    while True:
        softargmax.softmax(z)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
class Last:
    def __del__(self, sleep=time.sleep):
        sleep(0.2)  # gives the threads time to ask for the GIL of a Python that is ending
last = Last()
print("end")
"""
    )
    assert run(code) == "end"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
@pytest.mark.parametrize("torch", [False, True])
def test_more_threads_than_processors(*, torch: bool) -> None:
    """Threads that wait for a processor change no bits, with our pool and with torch's OpenMP."""
    if torch:
        pytest.importorskip("torch")
    code = (
        LARGE
        + (TORCH if torch else "")
        + """
softargmax.set_num_threads(1)
one = softargmax.softmax(z)
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
softargmax.set_num_threads(8)
print(all(np.array_equal(softargmax.softmax(z), one) for _ in range(50)))
"""
    )
    assert run(code) == "True"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_threads_of_its_own() -> None:
    code = (
        LARGE
        + """
softargmax.set_num_threads(3)
softargmax.softmax(z)
child = os.fork()
if child == 0:
    before = len(os.listdir("/proc/self/task"))
    softargmax.softmax(z)
    os._exit(10 * before + len(os.listdir("/proc/self/task")))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert run(code) == "13"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_the_default_follows_the_affinity() -> None:
    assert run("import os, softargmax; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
               "print(softargmax.get_num_threads())") == "1"  # fmt: skip


@pytest.mark.no_sanitize
def test_threads_work_after_a_failed_call() -> None:
    """A call that finds no memory raises MemoryError, and the next call works."""
    code = (
        LARGE
        + """
import resource
softargmax.set_num_threads(4)
x = np.zeros((3000, 2), np.float32)
first = softargmax.linear_cross_entropy(x, np.zeros((9000, 2), np.float32), np.zeros(3000, int))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), -1))
try:
    softargmax.linear_cross_entropy(x, np.zeros((90_000, 2), np.float32)[:, :], np.zeros(3000, int))
    print("no error")
except MemoryError:
    print("MemoryError")
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
print(first == softargmax.linear_cross_entropy(x, np.zeros((9000, 2), np.float32), np.zeros(3000, int)))
"""
    )
    assert run(code).split("\n") == ["MemoryError", "True"]
