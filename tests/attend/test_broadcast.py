"""The axes before length and width broadcast as in torch's scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.oracle.backends import Backend

import softargmax as s

pytestmark = pytest.mark.sanitize

SHAPES = {
    "one batch of keys": ((3, 4, 5, 6), (1, 2, 7, 6), (1, 2, 7, 2)),
    "keys without a batch": ((3, 4, 5, 6), (2, 7, 6), (2, 7, 2)),
    "values alone have a batch": ((1, 4, 5, 6), (2, 7, 6), (3, 2, 7, 2)),
    "one head of queries": ((3, 1, 5, 6), (3, 4, 7, 6), (3, 4, 7, 2)),
    "one head of values": ((3, 4, 5, 6), (3, 2, 7, 6), (3, 1, 7, 2)),
    "two axes of batches": ((2, 1, 4, 5, 6), (3, 4, 7, 6), (2, 3, 1, 7, 2)),
}


def drawn(*shapes: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape) for shape in shapes]


def full(q: Any, k: Any, v: Any) -> list[np.ndarray[Any, Any]]:
    """Return copies of q, k and v, broadcast to common leading axes."""
    front = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    groups = max(k.shape[-3], v.shape[-3])
    heads = groups if q.shape[-3] == 1 else q.shape[-3]
    return [np.broadcast_to(x, (*front, n, *x.shape[-2:])).copy() for x, n in ((q, heads), (k, groups), (v, groups))]


def reduced(gradient: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the gradient summed over the axes along which an array of this shape was broadcast."""
    sizes = (1,) * (gradient.ndim - len(shape)) + shape
    axes = tuple(i for i, n in enumerate(sizes) if n != gradient.shape[i])
    return gradient.sum(axis=axes).reshape(shape)


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_broadcast_arrays_give_the_bits_of_copies(shapes: Any, quick: Backend) -> None:
    given = drawn(*shapes)
    with quick.using():
        for function in (s.attention, lambda *qkv: s.attention_with_lse(*qkv).lse):
            found = quick.back(function(*map(quick.array, given)))
            assert np.array_equal(found, quick.back(function(*map(quick.array, full(*given)))))


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_gradients_have_the_shapes_of_the_arguments(shapes: Any) -> None:
    torch = pytest.importorskip("torch")
    given, whole = drawn(*shapes), full(*drawn(*shapes))
    g = drawn(s.attention(*given).shape)[0]
    expected = s.attention_vjp(*whole, g)
    tensors = [torch.tensor(x, requires_grad=True) for x in given]
    learned = torch.autograd.grad(s.attention(*tensors), tensors, torch.tensor(g))
    for found, tensor, wanted, own in zip(s.attention_vjp(*given, g)[:3], learned, expected[:3], given, strict=True):
        bound = 32 * np.finfo(float).eps * reduced(abs(wanted), own.shape)
        assert found.shape == tuple(tensor.shape) == own.shape
        assert (abs(found - reduced(wanted, own.shape)) <= bound).all()
        assert (abs(tensor.numpy() - found) <= bound).all()


@pytest.mark.parametrize("name", [name for name in SHAPES if "head" not in name])
def test_broadcasts_like_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    given = [torch.tensor(x) for x in drawn(*SHAPES[name])]
    expected = torch.nn.functional.scaled_dot_product_attention(*given, enable_gqa=True)
    assert torch.allclose(s.attention(*given), expected, rtol=1e-13, atol=1e-13)
