"""The short way of the usual call is the general one: the same bits, the same refusals."""

from __future__ import annotations

import pytest

import softargmax as s
from softargmax.loss import of_scores

torch = pytest.importorskip("torch")


def general(z, y, **options):
    return of_scores.general_loss(z, y, options)


@pytest.fixture
def calls(monkeypatch):
    """How often the short way was taken."""
    from softargmax.loss import torch_usual

    seen = []
    usual = torch_usual._Loss.apply
    monkeypatch.setattr(torch_usual._Loss, "apply", lambda *a: seen.append(1) or usual(*a))
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5, 7), (300, 1024), (2, 3, 4, 9), (11,), (0, 4)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignore_index", [-100, 2])
def test_the_bits_of_the_general_way(calls, dtype, shape, reduction, ignore_index):
    torch.manual_seed(0)
    z = (torch.randn(shape) * 4).to(dtype).requires_grad_()
    y = torch.randint(shape[-1], shape[:-1])
    options = {"reduction": reduction, "ignore_index": ignore_index}
    ours, theirs = s.cross_entropy(z, y, **options), general(z, y, **options)
    assert calls
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)
    for gain in (1.0, -3.0, 0.0):
        found, wanted = (torch.autograd.grad(gain * loss, z, retain_graph=True)[0] for loss in (ours, theirs))
        assert found.dtype == dtype
        assert torch.equal(found, wanted)


def test_all_ignored_is_zero(calls):
    z = torch.randn(4, 5, requires_grad=True)
    loss = s.cross_entropy(z, torch.full((4,), -100))
    assert calls
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, z)[0].any()


def test_other_calls_take_the_general_way(calls):
    z, y = torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, 2, 3])
    s.cross_entropy(z, y.int())
    s.cross_entropy(z.double(), y)
    s.cross_entropy(z, y, reduction="none")
    s.cross_entropy(z, y, label_smoothing=0.1)
    s.cross_entropy(z, y, temperature=2.0)
    s.cross_entropy(z, y, weight=torch.ones(5))
    s.cross_entropy(z, y, where=torch.ones(5, dtype=torch.bool))
    s.cross_entropy(z, y, dtype=torch.float64)
    s.cross_entropy(z.T, y, axis=0)
    s.cross_entropy(z, torch.softmax(z.detach(), -1))
    torch.func.grad(lambda z: s.cross_entropy(z, y))(z)
    with s.using("reference"):
        s.cross_entropy(z, y)
    assert not calls


def test_out_of_range_is_named_with_its_place():
    z, y = torch.randn(2, 3, 5), torch.tensor([[0, 1, 2], [4, 9, 7]])
    with pytest.raises(IndexError, match=r"target: 9 at \(1, 1\)"):
        s.cross_entropy(z, y)


def test_a_gradient_penalty():
    z, y = torch.randn(6, 5, requires_grad=True), torch.tensor([0, 1, 2, 3, 4, -100])
    wide = z.detach().double().requires_grad_()

    def penalty(loss, z):
        (g,) = torch.autograd.grad(loss, z, create_graph=True)
        return torch.autograd.grad((g**2).sum(), z)[0]

    found = penalty(s.cross_entropy(z, y), z)
    wanted = penalty(torch.nn.functional.cross_entropy(wide, y), wide)
    assert torch.allclose(found.double(), wanted, rtol=1e-5, atol=1e-8)


def test_scores_changed_in_place_are_noticed():
    z = torch.randn(6, 5, requires_grad=True) * 1.0
    loss = s.cross_entropy(z, torch.tensor([0, 1, 2, 3, 4, 0]))
    with torch.no_grad():
        z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_default_device_is_not_asked(calls):
    z, y = torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, 2, 3])
    h, w = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)

    def found():
        usual, linear = s.cross_entropy(z, y), s.linear_cross_entropy(h, w, y)
        return usual.detach(), linear.detach(), *torch.autograd.grad(usual + linear, (z, h, w))

    wanted = found()
    with torch.device("meta"):
        again = found()
    assert calls
    assert all(torch.equal(a, b) for a, b in zip(wanted, again, strict=True))
