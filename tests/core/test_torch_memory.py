"""How the compiled core reads tensors, and which of them it may read as they are."""

from __future__ import annotations

from typing import Any

import pytest

from softargmax.core import _native
from softargmax.core.scale import UNIT

torch = pytest.importorskip("torch")

from softargmax.core.torch_memory import view  # noqa: E402 it imports torch
from softargmax.core.torch_private import PLAIN, dispatch_keys, wrapped  # noqa: E402 it imports torch

pytestmark = pytest.mark.skipif(not _native.know_tensors(torch.Tensor, wrapped), reason="a torch before 2.10")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_are_read_as_their_descriptions_are(dtype: str) -> None:
    z = torch.randn(6, 10, 4).to(getattr(torch, dtype))[::2, 1::3].mT
    where = torch.rand(z.shape) < 0.7
    found, expected = torch.empty_like(z), torch.empty_like(z)
    _native.softmax(z, where, UNIT, (1,), found, None)
    _native.softmax(view(z), view(where), UNIT, (1,), view(expected), None)
    assert torch.equal(found, expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_what_lies_in_memory_as_it_is() -> None:
    assert _native.in_memory(torch.zeros(2, 3).mT)
    assert _native.in_memory(torch.zeros(3, requires_grad=True))
    negated = torch.zeros(3, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    others: list[Any] = [None, 1.0, torch.zeros(3).numpy(), torch.nn.Parameter(torch.zeros(3)), negated]
    others += [torch.zeros(3, device="meta"), torch.eye(3).to_sparse(), torch._efficientzerotensor(3)]
    others += [torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])]
    others += [torch._to_functional_tensor(torch.zeros(3))]
    assert [_native.in_memory(x) for x in others] == [False] * len(others)


def test_keys_of_what_lies_in_memory_say_the_same() -> None:
    asked = []

    def ask(x: Any) -> Any:
        asked.append((_native.in_memory(x), dispatch_keys(x).raw_repr() in PLAIN))
        return x.sum()

    ask(torch.zeros(2, 3))
    torch.func.vmap(ask)(torch.zeros(2, 3))
    torch.func.grad(ask)(torch.zeros(2, 3))
    assert asked == [(True, True), (False, False), (False, False)]
