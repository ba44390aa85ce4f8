"""The compiled core reads tensors, and recognises tensors that need no conversion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import softargmax
from softargmax.core import _native
from softargmax.core.scale import UNIT

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402 torch may be missing

from softargmax.core.torch_memory import view  # noqa: E402 it imports torch
from softargmax.core.torch_private import PLAIN, dispatch_keys, wrapped  # noqa: E402 it imports torch

known = _native.know_tensors(torch.Tensor, torch.nn.Parameter, wrapped, torch.is_grad_enabled)
pytestmark = pytest.mark.skipif(not known, reason="a torch before 2.10")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_kernels_read_tensors_like_their_descriptions(dtype: str) -> None:
    z = torch.randn(6, 10, 4).to(getattr(torch, dtype))[::2, 1::3].mT
    where = torch.rand(z.shape) < 0.7
    found, expected = torch.empty_like(z), torch.empty_like(z)
    _native.softmax(z, where, UNIT, (1,), found, None)
    _native.softmax(view(z), view(where), UNIT, (1,), view(expected), None)
    assert torch.equal(found, expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_in_memory() -> None:
    assert _native.in_memory(torch.zeros(2, 3).mT)
    assert _native.in_memory(torch.zeros(3, requires_grad=True))
    assert _native.in_memory(torch.nn.Parameter(torch.zeros(3)))
    negated = torch.zeros(3, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    others: list[Any] = [None, 1.0, torch.zeros(3).numpy(), negated]
    others += [torch.zeros(3, device="meta"), torch.eye(3).to_sparse(), torch._efficientzerotensor(3)]
    others += [torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])]
    others += [torch._to_functional_tensor(torch.zeros(3))]
    assert [_native.in_memory(x) for x in others] == [False] * len(others)


def test_dispatch_keys_agree_with_in_memory() -> None:
    answers = []

    def ask(x: Any) -> Any:
        answers.append((_native.in_memory(x), dispatch_keys(x).raw_repr() in PLAIN))
        return x.sum()

    ask(torch.zeros(2, 3))
    torch.func.vmap(ask)(torch.zeros(2, 3))
    torch.func.grad(ask)(torch.zeros(2, 3))
    assert answers == [(True, True), (False, False), (False, False)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_common_call_of_tensors_is_recognised(dtype: Any) -> None:
    z = torch.zeros(2, 3, 4, dtype=dtype)
    assert [_native.axes_at_once(z, axis) for axis in (-3, 0, 2, -1)] == [(0,), (0,), (2,), (2,)]
    assert [_native.plain_axes(z, axis) for axis in (3, -4, None, (0,), True, 1 << 70)] == [None] * 6
    assert _native.heads_at_once(z, z, z[..., :2])
    assert not _native.heads_at_once(z, z.double() if dtype != torch.float64 else z.float(), z)
    assert not _native.heads_at_once(z, z[..., :2], z)
    assert not _native.heads_at_once(z, z, z[:, :2])
    assert not _native.heads_at_once(z[0], z[0], z[0])
    assert _native.heads_at_once(z, z[:1], z[:1])  # both heads of queries share one of keys
    for q, k, v in ((z[:1], z, z), (z, z[:1], z), (z, z[:0], z[:0]), (z[None], z, z)):
        assert not _native.heads_at_once(q, k, v)
    tracked = z.clone().requires_grad_()
    assert _native.plain_heads(tracked, tracked, tracked[..., :2])
    assert not _native.plain_heads(z, z[..., :2], z)


@pytest.mark.parametrize("make", [torch.zeros, np.zeros], ids=["tensor", "array"])
def test_one_class_per_row_is_recognised(make: Any) -> None:
    library = torch if make is torch.zeros else np
    z, other = make((2, 3, 4), dtype=library.float32), np if library is torch else torch

    def classes(shape: tuple[int, ...], dtype: Any = library.int64) -> Any:
        return make(shape, dtype=dtype)

    assert _native.plain_classes(z, -1, classes((2, 3))) == (2,)
    assert _native.plain_classes(z, 1, classes((2, 4))) == (1,)
    assert _native.plain_classes(z[0, 0], 0, classes(())) == (0,)
    wrong = [
        classes((2, 4)),
        classes((3, 2)),
        classes((2, 3, 4)),
        classes((2, 3), library.int32),
        other.zeros((2, 3)),
        None,
    ]
    assert [_native.plain_classes(z, -1, target) for target in wrong] == [None] * 6
    assert [_native.plain_classes(z, axis, classes((2, 3))) for axis in (True, None, 3, 1 << 70)] == [None] * 4
    assert _native.plain_classes(z[0, 0, 0], -1, classes(())) is None


def test_matching_heads_of_arrays_are_recognised() -> None:
    q = np.zeros((2, 3, 4), np.float32)
    assert _native.plain_heads(q, q, q[..., :2])
    assert not _native.heads_at_once(q, q, q)  # `heads_at_once` accepts only tensors
    foreign, deep = q.astype(">f4"), np.zeros((1,) * 9, np.float32)
    others = [q.astype(np.float64), q[0], q[:, :, :2], foreign, torch.zeros(2, 3, 4), [1.0]]
    assert not any(_native.plain_heads(q, k, q) for k in others)
    assert not any(_native.plain_heads(x, x, x) for x in (foreign, deep, q[0], np.ma.masked_array(q)))


@pytest.mark.parametrize("values", [torch.zeros(3, dtype=torch.int64), [1.0], 1.0, None, np.zeros(3, np.int32)])
def test_other_arguments_are_not_a_common_call(values: Any) -> None:
    assert _native.plain_axes(values, -1) is None
    assert _native.axes_at_once(values, -1) is None
    assert not _native.heads_at_once(values, values, values)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_common_call_of_arrays_is_recognised(dtype: Any) -> None:
    z = np.zeros((2, 3), dtype)
    assert _native.plain_axes(z, -1) == _native.axes_at_once(z, 1) == (1,)
    others = [z.astype(z.dtype.newbyteorder(">")), np.ma.masked_array(z), z[0, 0]]
    assert [_native.plain_axes(x, 0) for x in others] == [None] * 3


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_calls_that_torch_must_see_are_not_served_at_once() -> None:
    z, heads = torch.zeros(3), torch.zeros(1, 2, 3)
    answers: list[tuple[Any, bool]] = []

    def ask(x: Any) -> Any:
        answers.append((_native.axes_at_once(z, -1), _native.heads_at_once(heads, heads, heads)))
        return x.sum()

    ask(z)
    assert answers.pop() == ((0,), True)
    torch.func.vmap(ask)(torch.zeros(2, 3))
    torch.func.grad(ask)(z)
    torch.func.jvp(ask, (z,), (z,))
    with FakeTensorMode(allow_non_fake_inputs=True):
        ask(z)
    torch.jit.trace(ask, (z,), check_trace=False)
    assert answers == [(None, False)] * 5
    tracked = z.clone().requires_grad_()
    assert _native.plain_axes(tracked, -1) == (0,)
    assert _native.axes_at_once(tracked, -1) is None
    assert not _native.heads_at_once(heads, heads, heads.clone().requires_grad_())
    with torch.no_grad():
        assert _native.axes_at_once(tracked, -1) == (0,)


def test_a_tensor_that_an_ended_transform_wrapped() -> None:
    kept: list[torch.Tensor] = []
    z = torch.tensor([1.0, 2.0, 3.0])
    torch.func.grad(lambda x: (kept.append(x), x.sum())[1])(z)
    wanted = softargmax.softmax(z)
    assert torch.equal(softargmax.softmax(kept[0]), wanted)
    with torch.no_grad():
        assert torch.equal(softargmax.softmax(kept[0]), wanted)
