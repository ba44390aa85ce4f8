"""Differentiating the backward pass: dependent inputs, hooks, autocast, memory."""

from __future__ import annotations

import pytest

import softargmax as s

torch = pytest.importorskip("torch")
N, D, K = 6, 5, 7


def theirs(h, w, y, bias=None):
    z = h @ w.T if bias is None else h @ w.T + bias
    return torch.nn.functional.cross_entropy(z, y)


def ours(h, w, y, bias=None):
    return s.linear_cross_entropy(h, w, y, bias=bias)


TIED = {
    "tied embedding": lambda e, y: (torch.tanh(e[y]), e),
    "one tensor twice": lambda e, _: (e[:N], e),
    "a multiple": lambda e, _: (e[:N] * 2, e * 3),
    "a bias of the weights": lambda e, _: (torch.ones(N, D, dtype=e.dtype), e, e.sum(1)),
}


@pytest.mark.parametrize("name", TIED)
@pytest.mark.parametrize("again", [False, True])
def test_dependent_inputs(name, again):
    torch.manual_seed(0)
    e, y = torch.randn(K, D, dtype=torch.float64, requires_grad=True), torch.randint(K, (N,))
    found = []
    for loss in (ours, theirs):
        h, w, *bias = TIED[name](e, y)
        (g,) = torch.autograd.grad(loss(h, w, y, *bias), e, create_graph=again)
        found.append([g] if not again else [g, *torch.autograd.grad((g**2).sum(), e)])
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_hooks_run_once(dtype, linear, again):
    torch.manual_seed(0)
    z, w, y = torch.randn(N, D, dtype=dtype), torch.randn(D, D, dtype=dtype), torch.randint(D, (N,))
    found = []
    for loss in (ours, theirs) if linear else (s.cross_entropy, torch.nn.functional.cross_entropy):
        x = z.clone().requires_grad_()
        inner = x * 1.0
        inner.register_hook(lambda g: 2 * g)
        value = loss(inner, w, y) if linear else loss(inner, y)
        found.append(torch.autograd.grad(value, (x, inner), create_graph=again))
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_no_rows(reduction):
    h, w = torch.zeros(0, D, requires_grad=True), torch.ones(K, D, requires_grad=True)
    loss = s.linear_cross_entropy(h, w, torch.zeros(0, dtype=torch.long), reduction=reduction)
    dh, dw = torch.autograd.grad(loss.sum(), (h, w))
    assert dh.shape == h.shape
    assert not dw.any()


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("gain", [0.0, 1.0])
def test_a_row_of_nan_stays_nan(implementation, gain):
    z = torch.randn(4, 5)
    z[1, 2] = float("nan")
    z.requires_grad_()
    y = torch.tensor([0, 1, 2, -100])
    with s.using(implementation):
        for options in ({}, {"label_smoothing": 0.1}):
            (g,) = torch.autograd.grad(s.cross_entropy(z, y, **options) * gain, z)
            assert g[1].isnan().all()
            assert g[[0, 2, 3]].isfinite().all()


def test_autocast_does_not_change_second_derivatives():
    torch.manual_seed(0)
    h, w = (torch.randn(n, D, requires_grad=True) for n in (N, K))
    y = torch.randint(K, (N,))
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(ours(h, w, y), (h, w), create_graph=True)
    for a, b in zip(found, torch.autograd.grad(theirs(h, w, y), (h, w)), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_gradients_of_the_forward_are_released():
    h, w = torch.randn(N, D, requires_grad=True), torch.randn(K, D, requires_grad=True)
    loss = s.linear_cross_entropy(h, w, torch.randint(K, (N,)))
    assert loss.grad_fn.forward_gradients[1].shape == w.shape
    loss.backward()
    assert loss.grad_fn.forward_gradients is None
    with pytest.raises(RuntimeError, match="already been freed"):
        _ = loss.grad_fn.saved_tensors


def test_a_bias_of_no_classes_has_a_gradient_of_no_numbers():
    h, w, bias = torch.randn(2, D), torch.randn(0, D), torch.zeros(0, requires_grad=True)
    s.linear_cross_entropy(h, w, torch.tensor([-100, -100]), bias=bias, reduction="none").sum().backward()
    assert bias.grad.shape == (0,)


def test_errors():
    z, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
    for name, value in (("label_smoothing", torch.tensor(0.0)), ("z_loss", torch.zeros(2)), ("axis", -1.0)):
        with pytest.raises(TypeError, match=name):
            s.cross_entropy(z, y, **{name: value})
    with pytest.raises((TypeError, ValueError), match="reduction"):
        s.cross_entropy(z, y, reduction=3)
    for function, given in ((s.cross_entropy, (z, y)), (s.linear_cross_entropy, (z, torch.randn(5, 4), y))):
        with pytest.raises(ValueError, match="ignore_index"):
            function(*given, ignore_index=2**70)


def test_the_module_can_be_exact():
    h, w, y = torch.randn(N, D), torch.randn(K, D), torch.randint(K, (N,))
    module = s.nn.LinearCrossEntropyLoss(exact=True, label_smoothing=0.1)
    assert "exact=True" in repr(module)
    assert torch.equal(module(h, w, y), s.linear_cross_entropy(h, w, y, exact=True, label_smoothing=0.1))
