"""softmax and log_softmax of all kinds of tensors: dtypes, strides, lazy negation, `out=`, other processes."""

from __future__ import annotations

import importlib
import multiprocessing
from typing import Any

import numpy as np
import pytest
from tests.oracle.truth import family_truth, ulp_error

torch = pytest.importorskip("torch")
cases = importlib.import_module("tests.normalize.torch_cases")

import softargmax  # noqa: E402 not without torch

both = pytest.mark.parametrize("name", ["softmax", "log_softmax"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("spread", [1.0, 40.0, 1e4])
def test_values_against_the_truth(dtype: str, spread: float) -> None:
    kind = getattr(torch, dtype)
    z = (spread * cases.draw(20, 57)).to(kind)
    truth = family_truth(z.double().numpy() if dtype != "float64" else z.numpy(), 0.7)
    p, lse = softargmax.softmax_with_lse(z, temperature=0.7)
    log_p = softargmax.log_softmax(z, temperature=0.7)
    assert p.dtype == log_p.dtype == kind
    assert lse.dtype == (kind if dtype == "float64" else torch.float32)
    bound = {"float16": 0.51, "bfloat16": 0.51, "float32": 3.0, "float64": 4.0}[dtype]
    assert ulp_error(p.double().numpy(), *truth.softmax, dtype=dtype).max() <= bound
    assert ulp_error(log_p.double().numpy(), *truth.log_softmax, dtype=dtype).max() <= bound


def naive_ulp(z: Any) -> float:
    truth = family_truth(z.double().numpy()).softmax
    return float(ulp_error(torch.softmax(z, -1).numpy(), *truth).max())


def test_closer_to_the_truth_than_torch() -> None:
    z = 20 * cases.draw(50, 100).float()
    truth = family_truth(z.double().numpy()).softmax
    ours = ulp_error(softargmax.softmax(z).numpy(), *truth).max()
    assert ours <= 3.0 < naive_ulp(z)


@both
@pytest.mark.parametrize("result", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("source", ["float16", "float32", "float64", "int64"])
def test_dtype(name: str, source: str, result: str) -> None:
    operation, kind = getattr(softargmax, name), getattr(torch, result)
    z = (4 * cases.draw(3, 5)).to(getattr(torch, source))
    found = operation(z, dtype=kind)
    assert found.dtype == kind
    if result == "float64" or source != "float64":
        wide = operation(z.to(torch.float64 if result == "float64" else torch.float32))
        assert torch.equal(found, wide.to(kind))
    if source != "int64":
        z.requires_grad_()
        operation(z, dtype=kind)[0, 0].backward()
        assert z.grad.dtype == z.dtype


@both
def test_strides_do_not_change_bits_and_layouts_are_kept(name: str) -> None:
    operation = getattr(softargmax, name)
    z = cases.draw(4, 6, 5).float()
    wanted = operation(z, axis=1)
    for permutation in ((2, 0, 1), (1, 2, 0)):
        permuted = z.permute(permutation)
        found = operation(permuted, axis=permutation.index(1))
        assert torch.equal(found, wanted.permute(permutation))
        assert found.stride() == permuted.stride()
    assert torch.equal(operation(torch.stack([z, z], -1)[..., 0], axis=1), wanted)
    assert torch.equal(operation(z[:1].expand(3, 6, 5), axis=1), wanted[:1].expand(3, 6, 5))
    g = cases.draw(4, 6, 5, seed=2).float()
    grads = []
    for layout in ((0, 1, 2), (2, 1, 0)):
        x = z.permute(layout).contiguous().permute(layout).requires_grad_()
        (grad,) = torch.autograd.grad(operation(x, axis=1), x, g)
        grads.append(grad)
    assert torch.equal(*grads)


@both
def test_any_shape(name: str) -> None:
    operation = getattr(softargmax, name)
    one = 1.0 if name == "softmax" else 0.0
    assert operation(torch.tensor(3.0)) == one
    assert operation(torch.tensor(3.0, requires_grad=True)).requires_grad
    for shape, axis in (((0,), 0), ((3, 0), 1), ((0, 3), 1), ((2, 0, 3), (0, 2))):
        z = torch.zeros(shape, requires_grad=True)
        result = operation(z, axis=axis)
        assert result.shape == shape
        result.sum().backward()
        assert z.grad.shape == shape
    assert softargmax.logsumexp(torch.zeros(3, 0)).tolist() == [-torch.inf] * 3


@both
def test_lazy_bits_subclasses_and_inference(name: str) -> None:
    operation = getattr(softargmax, name)
    z = cases.draw(3, 4)
    negative = torch.complex(torch.zeros(3, 4, dtype=torch.float64), -z).conj().imag
    assert negative.is_neg()
    assert torch.equal(operation(negative), operation(z))
    parameter = torch.nn.Parameter(z)
    assert operation(parameter).grad_fn is not None
    with torch.no_grad():
        assert torch.equal(operation(parameter), operation(z))
    with torch.inference_mode():
        inside = operation(parameter)
        assert torch.equal(operation(inside.clone()), operation(operation(z)))
    fake = importlib.import_module("torch._subclasses.fake_tensor")
    with fake.FakeTensorMode() as mode:
        assert operation(mode.from_tensor(z)).shape == (3, 4)


@both
def test_every_path_gives_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A direct call of the kernel, the autograd Function and the dispatcher give the same bits."""
    operations = importlib.import_module("softargmax.normalize.operations")
    operation = getattr(softargmax, name)
    of = getattr(operations, name).torch
    z = (9 * cases.draw(7, 300)).float()
    tracked = operation(z.clone().requires_grad_())
    assert tracked.grad_fn is not None
    dispatched, _ = of.overload(*of.flatten(operations.Scores(z, None, operations.UNIT, (1,), z.dtype)))
    monkeypatch.setattr(of, "apply", lambda *_: pytest.fail("a plain tensor went through the operator"))
    alone = operation(z)
    assert torch.equal(alone, tracked)
    assert torch.equal(alone, dispatched)
    with softargmax.using("reference"):
        bound = 2 * torch.finfo(torch.float32).eps * alone.abs() + 1e-45
        assert ((operation(z) - alone).abs() <= bound).all()


@both
def test_out(name: str) -> None:
    operation = getattr(softargmax, name)
    z = cases.draw(3, 4)
    wanted = operation(z, temperature=0.7)
    out = torch.empty(4, 3, dtype=torch.float64).T
    version = out._version
    assert operation(z, temperature=0.7, out=out) is out
    assert torch.equal(out, wanted)
    assert out._version > version  # autograd detects that a saved tensor has changed
    narrow = torch.empty(3, 4)
    assert torch.equal(operation(z, temperature=0.7, out=narrow, dtype=torch.float32), wanted.float())
    again = z.clone()
    assert torch.equal(operation(again, temperature=0.7, out=again), wanted)
    for options in ({"out": torch.empty_like(z).requires_grad_()}, {"temperature": torch.ones(3).requires_grad_()}):
        with pytest.raises(TypeError, match=r"out: .* requires grad"):
            operation(z, **({"out": torch.empty_like(z)} | options))
    with pytest.raises(TypeError, match=r"out: .* requires grad"):
        operation(z.requires_grad_(), out=torch.empty_like(z))


def test_writing_into_a_saved_tensor_is_detected() -> None:
    z = cases.draw(3).requires_grad_()
    y = z.exp()
    loss = (y * y).sum()
    softargmax.softmax(cases.draw(3), out=y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_backward_frees_the_graph() -> None:
    z = cases.draw(3).requires_grad_()
    loss = softargmax.softmax(z).square().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


# --- other processes ------------------------------------------------------------------------------------------------


def large() -> Any:
    return torch.ones(64, 8192)


def in_child(z: Any, queue: Any) -> None:
    queue.put(softargmax.softmax(z)[0, 0].item())  # do not use torch functions that start threads


def test_forked_child_after_use_in_the_parent() -> None:
    """A forked child computes the same result. torch.softmax would hang, because its threads do not survive a fork."""
    z = large()
    wanted = softargmax.softmax(z)[0, 0].item()
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()
    child = fork.Process(target=in_child, args=(z, queue), daemon=True)
    child.start()
    child.join(60)
    assert child.exitcode == 0, "the child hangs"
    assert queue.get() == wanted


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return softargmax.softmax(large() * index, axis=0)[0, :3]


def test_data_loader_with_workers() -> None:
    softargmax.softmax(large())
    batches = list(
        torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=2, timeout=60, multiprocessing_context="fork")
    )
    assert np.allclose(torch.cat(batches).numpy(), 1 / 64)
