"""Memory of large results: kept when it is let go, never shared, safe in threads and in forked children."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import softargmax
from softargmax import _native

LARGE = _native.POOLED // 4 + 4  # float32 scores of the smallest result that comes from the pool, and a bit


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_a_result_that_is_let_go_gives_its_memory_to_the_next() -> None:
    z = np.zeros(LARGE, np.float32)
    p = softargmax.softmax(z)
    place = address(p)
    second = softargmax.softmax(z)
    assert address(second) != place
    assert place % (2 << 20) == address(second) % (2 << 20) == 0
    del p
    gc.collect()
    third = softargmax.softmax(z)
    assert address(third) == place
    assert (third == second).all()


def test_views_and_tensors_hold_their_memory() -> None:
    torch = pytest.importorskip("torch")
    z = torch.zeros(2, LARGE // 2)
    p = softargmax.softmax(z)
    assert p.is_contiguous()
    assert not p._is_view()
    row = p[1, 5:9]
    array = p.numpy()[0, :3]
    expected = row.clone()
    del p
    others = [softargmax.log_softmax(z) for _ in range(4)]
    assert torch.equal(row, expected)
    assert (array == expected[0].item()).all()
    assert len({other.data_ptr() for other in others}) == 4


def test_tensors_from_the_pool_are_tensors_like_others() -> None:
    torch = pytest.importorskip("torch")
    z = torch.zeros(4, LARGE // 4)
    with torch.no_grad():
        p = softargmax.softmax(z)
    p.mul_(torch.ones(1, requires_grad=True))  # in place, although made under no_grad
    assert p.requires_grad
    turned = softargmax.softmax(z.T, axis=0)
    assert turned.stride() == z.T.stride()
    half = softargmax.softmax(torch.zeros(2, LARGE, dtype=torch.bfloat16))
    assert half.dtype == torch.bfloat16
    assert half[1, 7].item() == torch.tensor(1 / LARGE).bfloat16().item()
    assert torch.equal(p.clone(), p)
    assert softargmax.softmax(z).share_memory_().is_shared()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_dtype_and_layout(dtype: str) -> None:
    z = np.zeros((3, LARGE), dtype)
    p = softargmax.softmax(z)
    assert p.dtype == z.dtype
    assert p.shape == z.shape
    assert p.flags.c_contiguous
    assert p.flags.writeable
    assert np.allclose(p[:, ::1000].astype(float), 1 / LARGE, rtol=1e-3)


def test_threads_take_and_give_at_once() -> None:
    wrong = []

    def work(value: int) -> None:
        for _ in range(30):
            memory = _native.memory(_native.POOLED)
            memory[:: 1 << 16] = value
            if (memory[:: 1 << 16] != value).any():
                wrong.append(value)
            del memory

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


CHILD = """
import os, sys
import softargmax
from softargmax import _native
held = _native.memory(_native.POOLED)
held[:] = 7
_native.memory(_native.POOLED)[:] = 8
if os.fork() == 0:
    mine = _native.memory(_native.POOLED)
    mine[:] = 9
    os._exit(0 if (held == 7).all() else 1)
_, status = os.wait()
assert status == 0 and (held == 7).all()
"""

KEPT = """
import re
from softargmax import _native
_native.memory(1)  # loads NumPy
def resident():
    return int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
before = resident()
held = [_native.memory(40 << 20) for _ in range(20)]
del held
print(resident() - before)
"""


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forked_child_has_its_own() -> None:
    run(CHILD)


def test_no_more_is_kept_than_allowed() -> None:
    assert 200 <= int(run(KEPT)) <= 260
    assert int(run(KEPT, SOFTARGMAX_POOL_MIB="0")) <= 4
    assert 75 <= int(run(KEPT, SOFTARGMAX_POOL_MIB="100")) <= 104


def test_more_than_there_is_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        _native.memory(1 << 60)
