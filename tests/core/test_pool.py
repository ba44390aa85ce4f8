"""The memory pool of large results: reuse of freed memory, separate results, threads, forked processes and limits."""

from __future__ import annotations

import copy
import gc
import io
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import softargmax
from softargmax.core import _native, native

LARGE = _native.POOLED // 4 + 4  # a result of this many float32 numbers comes from the pool


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_the_memory_of_a_freed_result_is_reused() -> None:
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


def test_views_and_tensors_keep_their_memory() -> None:
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


def test_tensors_from_the_pool_are_ordinary() -> None:
    torch = pytest.importorskip("torch")
    z = torch.zeros(4, LARGE // 4)
    with torch.no_grad():
        p = softargmax.softmax(z)
    p.mul_(torch.ones(1, requires_grad=True))  # changed in place, although it was computed under no_grad
    assert p.requires_grad
    transposed = softargmax.softmax(z.T, axis=0)
    assert transposed.stride() == z.T.stride()
    half = softargmax.softmax(torch.zeros(2, LARGE, dtype=torch.bfloat16))
    assert half.dtype == torch.bfloat16
    assert half[1, 7].item() == torch.tensor(1 / LARGE).bfloat16().item()
    assert torch.equal(copy.deepcopy(p.detach()), p)
    file = io.BytesIO()
    torch.save(transposed, file)
    file.seek(0)
    assert torch.equal(torch.load(file), transposed)
    assert softargmax.softmax(z).share_memory_().is_shared()


def test_the_default_device_and_subclasses_with_large_results() -> None:
    torch = pytest.importorskip("torch")

    class Mine(torch.Tensor):
        pass

    for n in (8, LARGE):
        z = torch.zeros(n)
        with torch.device("meta"):
            assert softargmax.softmax(z).device.type == "cpu"
        assert type(softargmax.softmax(z.as_subclass(Mine))) is Mine
        assert type(softargmax.softmax(torch.nn.Parameter(z))) is torch.Tensor


def test_memory_of_the_pool_does_not_grow_in_place() -> None:
    """Like tensors in NumPy's memory, tensors from the pool cannot grow in place. Smaller results can grow."""
    torch = pytest.importorskip("torch")
    assert softargmax.softmax(torch.zeros(8)).resize_(16).shape == (16,)
    with pytest.raises(RuntimeError, match="resizable"):
        softargmax.softmax(torch.zeros(LARGE)).resize_(2 * LARGE)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_dtype_and_layout(dtype: str) -> None:
    z = np.zeros((3, LARGE), dtype)
    p = softargmax.softmax(z)
    assert p.dtype == z.dtype
    assert p.shape == z.shape
    assert p.flags.c_contiguous
    assert p.flags.writeable
    assert np.array_equal(p[:, ::1000], np.full((3, len(p[0, ::1000])), 1 / LARGE).astype(dtype))


def test_threads_allocate_and_free_concurrently() -> None:
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
import os
from softargmax.core import _native
held, freed = _native.memory(_native.POOLED), _native.memory(_native.POOLED)
held[:] = 7
del freed
if os.fork() == 0:
    mine, second = _native.memory(_native.POOLED), _native.memory(_native.POOLED)
    mine[:], second[:] = 9, 8
    os._exit(0 if (held == 7).all() and (mine == 9).all() else 1)
_, status = os.wait()
mine = _native.memory(_native.POOLED)
mine[:] = 6
assert status == 0 and (held == 7).all() and (mine == 6).all()
"""

LIMITED = """
import resource
from softargmax.core import _native
_native.memory(1)
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (200 << 20), now + (200 << 20)))
_native.memory(150 << 20)[:] = 1
_native.memory(160 << 20)[:] = 1
"""

KEPT = """
import re
from softargmax.core import _native
_native.memory(1)  # loads NumPy
def size():
    return int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
before = size()
held = [_native.memory(40 << 20) for _ in range(20)]
del held
print(size() - before)
"""


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forked_child_has_its_own_pool() -> None:
    run(CHILD)


def test_kept_memory_is_released_if_memory_is_short() -> None:
    run(LIMITED)


@pytest.mark.parametrize("nonsense", ["abc", "-1", "1e3", "99999999999999999999"])
def test_an_invalid_pool_size_raises_at_import(nonsense: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import softargmax; softargmax.softmax([1.0])"],
        env=os.environ | {"SOFTARGMAX_POOL_MIB": nonsense},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"SOFTARGMAX_POOL_MIB={nonsense}: expected a whole number of MiB" in done.stderr


def test_the_pool_size_is_a_limit() -> None:
    assert 200 <= int(run(KEPT)) <= 260
    assert int(run(KEPT, SOFTARGMAX_POOL_MIB="0")) <= 4
    assert 75 <= int(run(KEPT, SOFTARGMAX_POOL_MIB="100")) <= 104


def test_too_large_a_request_is_a_memory_error() -> None:
    for size in (1 << 60, (1 << 64) - 5):
        with pytest.raises(MemoryError):
            _native.memory(size)
    with pytest.raises(ValueError, match="too big"):  # NumPy's error
        native.fresh((1 << 61,), np.float64)
