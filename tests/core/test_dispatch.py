"""The choice of an implementation (by default, by name, by environment variable), and which objects count as arrays."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

import softargmax
from softargmax.core import dispatch
from softargmax.core.arrays import as_array, kind_of
from softargmax.loss.linear_operations import linear_cross_entropy
from softargmax.loss.operations import cross_entropy_vjp
from softargmax.normalize.operations import softmax

Z = np.arange(3.0)


def serving(z: object = Z) -> str:
    return "reference" if softmax.server(z) == softmax.define else "native"


def test_the_default_implementation() -> None:
    assert serving() == "native"
    with softargmax.using("reference"):
        assert serving() == "reference"
        with softargmax.using("native"):
            assert serving() == "native"
        assert serving() == "reference"
    assert serving() == "native"


def test_each_kind() -> None:
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert kind_of(torch.ones(1)) == "torch"
    assert kind_of(torch.nn.Parameter(torch.ones(1))) == "torch"
    assert kind_of(torch.ones(1, device="meta")) == "torch-device"
    with FakeTensorMode():
        assert kind_of(torch.empty(1, device="cuda")) == "torch-cuda"
    assert serving(torch.ones(1)) == "native"
    strict = pytest.importorskip("array_api_strict")
    assert kind_of(strict.ones(1)) == "array-api"
    assert serving(strict.ones(1)) == "reference"


def test_devices_without_a_kernel_are_served() -> None:
    torch = pytest.importorskip("torch")
    z = torch.ones((2, 3), device="meta", dtype=torch.float16)
    assert softargmax.softmax(z, temperature=2.0).shape == (2, 3)
    assert softargmax.softmax(z).dtype == torch.float16
    assert softargmax.logsumexp(z).dtype == torch.float32
    assert softargmax.softmax(z).device.type == "meta"


def test_a_name_that_cannot_serve_raises() -> None:
    strict = pytest.importorskip("array_api_strict")
    with softargmax.using("native"), pytest.raises(RuntimeError, match=r"'native' .*array-api.*'reference'"):
        softargmax.softmax(strict.ones(3))


def test_triton_serves_cuda_tensors_only() -> None:
    torch = pytest.importorskip("torch")
    for z in (Z, torch.ones(3)):
        with softargmax.using("triton"), pytest.raises(RuntimeError, match=r"'triton' was requested.*'native' or"):
            softargmax.softmax(z)


def test_kernels_that_never_ran_on_a_gpu_serve_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    monkeypatch.setattr(dispatch, "TRIED_ON_GPUS", {"softmax"})
    assert softmax.has_kernel("cuda")
    assert not linear_cross_entropy.has_kernel("cuda")
    with softargmax.using("triton"):
        assert linear_cross_entropy.has_kernel("cuda")
    assert linear_cross_entropy.has_kernel("cpu")
    assert not softmax.has_kernel("mps")


def test_a_backward_pass_in_another_thread_runs_what_the_forward_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    defined: list[object] = []
    define = cross_entropy_vjp.define
    monkeypatch.setattr(cross_entropy_vjp, "define", lambda *a, **k: defined.append(a) or define(*a, **k))
    z = torch.ones(2, 3, requires_grad=True)
    for name in ("native", "reference"):
        with softargmax.using(name):
            loss = softargmax.cross_entropy(z, torch.tensor([0, 1]), reduction="none").sum()
        backward = threading.Thread(target=loss.backward)  # torch does this for CUDA tensors
        backward.start()
        backward.join()
        assert bool(defined) == (name == "reference")


def test_an_unknown_name_raises() -> None:
    with (
        pytest.raises(ValueError, match=r"using\(name\): expected one of 'native', 'triton', 'reference', got 'cuda'"),
        softargmax.using("cuda"),
    ):
        pass


def run(code: str, **more: str) -> subprocess.CompletedProcess[str]:
    import os

    env = {**os.environ, **more}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


def test_the_environment_variable() -> None:
    code = "import tests.core.test_dispatch as t; print(t.serving())"
    assert run(code, SOFTARGMAX_IMPLEMENTATION="reference").stdout.strip().endswith("reference")
    assert run(code, SOFTARGMAX_IMPLEMENTATION="").stdout.strip().endswith("native")
    failed = run(code, SOFTARGMAX_IMPLEMENTATION="fast")
    assert "ValueError: SOFTARGMAX_IMPLEMENTATION: expected" in failed.stderr
    assert "got 'fast'" in failed.stderr


def test_no_framework_is_imported_by_use() -> None:
    code = (
        "import sys, softargmax; softargmax.softmax([1., 2.]); softargmax.entropy([1., 2.]); softargmax.State.empty();"
        "print([m for m in ('torch', 'jax', 'scipy', 'array_api_strict') if m in sys.modules])"
    )
    done = run(code)
    assert done.stdout.strip() == "[]", done.stderr


def test_threads_do_not_share_using_blocks() -> None:
    implementations: list[str] = []
    with softargmax.using("reference"):
        thread = threading.Thread(target=lambda: implementations.append(serving()))
        thread.start()
        thread.join()
    assert implementations == ["native"]


def test_inputs_that_become_numpy_arrays() -> None:
    memory = np.ones(3)
    assert as_array(memory) is memory
    assert type(as_array(memory.view(np.recarray))) is np.ndarray
    for z in (1, 1.5, True, [1.0, 2.0], (1, 2), np.float32(3), range(3), np.array(4.0)):
        assert type(as_array(z)) is np.ndarray
        assert type(softargmax.softmax(z)) is np.ndarray


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i2", "<f4"])
def test_foreign_byte_order(dtype: str) -> None:
    z = np.array([1.0, 2.0, 8.0], dtype)
    result = softargmax.softmax(z)
    assert result.dtype.isnative
    assert (result == softargmax.softmax(z.astype(z.dtype.newbyteorder("=")))).all()


def test_public_names_are_found_and_listed() -> None:
    assert set(softargmax.__all__) <= set(dir(softargmax))
    for name in softargmax.__all__:
        assert getattr(softargmax, name) is not None
    with pytest.raises(AttributeError, match=r"no attribute 'sofmax'"):
        softargmax.sofmax  # noqa: B018


CALLS = """
import sys, numpy, torch
before = set(sys.modules)
import softargmax
z, y = torch.randn(4, 5, requires_grad=True), torch.tensor([0, 2, 1, 4])
chain, graph = softargmax.linear_chain(z[None], z[0, 0].expand(5, 5)), softargmax.factor_graph("ab->", z)
(softargmax.softmax(z)[0, 0] + softargmax.cross_entropy(z, y) + chain.log_z.sum() + graph.log_z).backward()
new = set(sys.modules) - before
"""
LAYERS = """
from softargmax.output import Uniform
layer = softargmax.nn.SampledSoftmax(5, Uniform(100), samples=7)
layer(z, y).backward()
"""


def test_eager_calls_import_no_compiler() -> None:
    """Eager calls do not import torch's compiler, which would add 850 modules and 2 s of CPU time to every process."""
    pytest.importorskip("torch")
    done = run(f"{CALLS}{LAYERS}print(len(new), 'torch._dynamo' in sys.modules)")
    new, compiler = done.stdout.split()
    assert int(new) < 200
    assert compiler == "False"


@pytest.mark.slow
def test_functions_called_before_the_compiler_is_imported_are_registered() -> None:
    """torch.compile works with functions and layers that were called before the compiler was imported.

    Functions become nodes of the graph. Some methods of layers stay outside of the graph.
    """
    pytest.importorskip("torch")
    code = (
        f"{CALLS}{LAYERS}"
        "both = lambda z: softargmax.softmax(z) + softargmax.cross_entropy(z, y);"
        "found = torch.compile(both, fullgraph=True, backend='aot_eager')(z);"
        "torch.testing.assert_close(found, both(z));"
        "layer.eval(); torch.testing.assert_close(torch.compile(layer, backend='eager')(z, y), layer(z, y));"
        "assert not any(type(one).__module__.startswith('softargmax') for one in sys.meta_path);"
        "print('whole')"
    )
    done = run(code)
    assert done.stdout.strip() == "whole", done.stderr


@pytest.mark.slow
def test_torch_compile_of_a_function_that_was_never_called() -> None:
    pytest.importorskip("torch")
    code = (
        "import softargmax, torch; z = torch.arange(4.0);"
        "f = torch.compile(lambda z: softargmax.entropy(z, temperature=2.0), fullgraph=True, backend='aot_eager');"
        "torch.testing.assert_close(f(z), softargmax.entropy(z, temperature=2.0)); print('whole')"
    )
    done = run(code)
    assert done.stdout.strip() == "whole", done.stderr
