"""Tensors of every kind: dtypes, strides, lazy conjugate and negative bits, subclasses, `out=`, inference mode."""

from __future__ import annotations

import importlib

import pytest

torch = pytest.importorskip("torch")
cases = importlib.import_module("tests.sparse.torch_cases")

import softargmax as s  # noqa: E402 after the check for torch
from softargmax.core.scale import UNIT  # noqa: E402

each = pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0, 3.0])


@each
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes_and_numpy(dtype: str, alpha: float) -> None:
    """Results have the same bits as for NumPy arrays. Half-precision results are float32 results, rounded once."""
    kind = getattr(torch, dtype)
    z = (2 * cases.draw(5, 70)).to(kind)
    p, found = s.entmax(z, alpha), s.threshold(z, alpha)
    assert p.dtype == kind
    assert found.tau.dtype == (torch.float64 if dtype == "float64" else torch.float32)
    assert found.support_size.dtype == torch.int64
    wide = z if dtype in ("float32", "float64") else z.float()
    assert torch.equal(p, torch.from_numpy(s.entmax(wide.numpy(), alpha)).to(kind))
    assert torch.equal(found.tau, torch.from_numpy(s.threshold(wide.numpy(), alpha).tau))


@each
def test_strides_do_not_change_bits_and_layouts_are_kept(alpha: float) -> None:
    z = cases.draw(4, 6, 5).float()
    wanted = s.entmax(z, alpha, axis=1)
    for permutation in ((2, 0, 1), (1, 2, 0)):
        turned = z.permute(permutation)
        found = s.entmax(turned, alpha, axis=permutation.index(1))
        assert torch.equal(found, wanted.permute(permutation))
        assert found.stride() == turned.stride()
    assert torch.equal(s.entmax(torch.stack([z, z], -1)[..., 0], alpha, axis=1), wanted)
    assert torch.equal(s.entmax(z[:1].expand(3, 6, 5), alpha, axis=1), wanted[:1].expand(3, 6, 5))
    g, grads = cases.draw(4, 6, 5, seed=2).float(), []
    for layout in ((0, 1, 2), (2, 1, 0)):
        x = z.permute(layout).contiguous().permute(layout).requires_grad_()
        grads += torch.autograd.grad(s.entmax(x, alpha, axis=1), x, g)
    assert torch.equal(*grads)
    x = z.clone().requires_grad_()
    s.entmax(x, alpha, axis=1).sum().backward()  # the incoming gradient is an expanded tensor
    assert x.grad.abs().max() < 1e-6


def test_lazy_bits_subclasses_and_inference() -> None:
    z = cases.draw(3, 4)
    negative = torch.complex(torch.zeros(3, 4, dtype=torch.float64), -z).conj().imag
    assert negative.is_neg()
    orders = torch.complex(torch.zeros(3, dtype=torch.float64), -cases.PER_ROW).conj().imag
    parameter = torch.nn.Parameter(z)
    for alpha in (1.0, 1.25, 2.0, cases.PER_ROW, orders):
        wanted = s.entmax(z, cases.PER_ROW if alpha is orders else alpha)
        assert torch.equal(s.entmax(negative, alpha), wanted)
        assert s.entmax(parameter, alpha).grad_fn is not None
        with torch.no_grad():
            assert torch.equal(s.entmax(parameter, alpha), wanted)
        with torch.inference_mode():
            assert torch.equal(s.entmax(s.entmax(parameter, alpha).clone(), alpha), s.entmax(wanted, alpha))
    half = z.half()
    fake = importlib.import_module("torch._subclasses.fake_tensor")
    with fake.FakeTensorMode() as mode:
        found = s.threshold(mode.from_tensor(half), axis=0)
        assert (found.tau.shape, found.support_size.shape) == ((4,), (4,))
        assert (found.tau.dtype, found.support_size.dtype) == (torch.float32, torch.int64)


@each
def test_any_shape(alpha: float) -> None:
    assert s.entmax(torch.tensor(3.0, requires_grad=True), alpha).requires_grad
    for shape, axis in (((0,), 0), ((3, 0), 1), ((0, 3), 1), ((2, 0, 3), (0, 2)), ((2, 3), ())):
        z = torch.zeros(shape, requires_grad=True)
        order = torch.tensor(alpha, requires_grad=True)
        result = s.entmax(z, order, axis=axis)
        assert result.shape == shape
        (result.sum() + s.threshold(z, alpha, axis=axis).tau.clamp(min=-9).sum()).backward()
        assert z.grad.shape == shape
        assert order.grad == 0


def test_a_learned_order_of_an_empty_row() -> None:
    for name in ("native", "reference"):
        z, order = torch.zeros(2, 0, requires_grad=True), torch.full((2,), 1.5, requires_grad=True)
        with s.using(name):
            s.threshold(z, order).tau.sum().backward()
        assert (order.grad == 0).all()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 1)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "int64"])
def test_the_order_keeps_its_shape_and_dtype(dtype: str, shape: tuple[int, ...]) -> None:
    z, kind = cases.draw(3, 4), getattr(torch, dtype)
    order = torch.full(shape, 2).to(kind)
    assert torch.equal(s.entmax(z, order), s.sparsemax(z))
    if dtype != "int64":
        order.requires_grad_()
        s.entmax(z, order)[:, 0].sum().backward()
        assert order.grad.shape == shape
        assert order.grad.dtype == kind
        alone = torch.full((3, 1), 2.0, dtype=torch.float64, requires_grad=True)
        s.entmax(z, alone)[:, 0].sum().backward()
        wanted = alone.grad.reshape(3) if shape not in ((), (1,)) else alone.grad.sum()
        assert order.grad.double().reshape(-1) == pytest.approx(wanted.reshape(-1), rel=2**-7)


@each
def test_out(alpha: float) -> None:
    z = cases.draw(3, 4)
    wanted = s.entmax(z, alpha)
    out = torch.empty(4, 3, dtype=torch.float64).T
    version = out._version
    assert s.entmax(z, alpha, out=out) is out
    assert torch.equal(out, wanted)
    assert out._version > version  # so autograd detects that a saved tensor has changed
    again = z.clone()
    assert torch.equal(s.entmax(again, alpha, out=again), wanted)
    with pytest.raises(TypeError, match=r"^out: "):
        s.entmax(z, alpha, out=torch.empty(3, 4))
    with pytest.raises(TypeError, match=r"out: .* requires grad"):
        s.entmax(z, alpha, out=torch.empty_like(z).requires_grad_())
    with pytest.raises(TypeError, match=r"out: .* requires grad"):
        s.entmax(z, torch.full((3,), alpha).requires_grad_(), out=torch.empty_like(z))
    with pytest.raises(TypeError, match=r"out: .* requires grad"):
        s.entmax(z.requires_grad_(), alpha, out=torch.empty_like(z))


def test_every_call_path_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A direct kernel call, the autograd Function and the dispatcher give the same bits."""
    operations = importlib.import_module("softargmax.sparse.operations")
    of = operations.entmax.torch
    z = (2 * cases.draw(7, 300)).float()
    tracked = s.entmax(z.clone().requires_grad_(), 1.7)
    dispatched, _ = of.overload(*of.flatten(operations.Scores(z, 1.7, None, UNIT, (1,))))
    monkeypatch.setattr(of, "apply", lambda *_: pytest.fail("a plain tensor went through the operator"))
    alone = s.entmax(z, 1.7)
    assert torch.equal(alone, tracked)
    assert torch.equal(alone, dispatched)
