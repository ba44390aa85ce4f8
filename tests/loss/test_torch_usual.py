"""Calls with no options but reduction and ignore_index: bits of the loss, ignored rows, errors, second derivatives."""

from __future__ import annotations

import pytest

import softargmax as s

torch = pytest.importorskip("torch")


def rows_reduced(z, y, reduction, ignore_index):
    """Return the losses of the rows, reduced by torch. torch also differentiates the reduction."""
    rows = s.cross_entropy(z, y, reduction="none", ignore_index=ignore_index, dtype=torch.float64)
    counted = (y != ignore_index).sum()
    return (rows.sum() / (counted.clamp(min=1) if reduction == "mean" else 1)).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5, 7), (300, 1024), (2, 3, 4, 9), (11,), (0, 4)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignore_index", [-100, 2])
def test_bits_equal_those_of_torchs_reduction(dtype, shape, reduction, ignore_index):
    torch.manual_seed(0)
    z = (torch.randn(shape) * 4).to(dtype).requires_grad_()
    y = torch.randint(shape[-1], shape[:-1])
    options = {"reduction": reduction, "ignore_index": ignore_index}
    ours, theirs = s.cross_entropy(z, y, **options), rows_reduced(z, y, **options)
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)
    for gain in (1.0, -3.0, 0.0):
        found, wanted = (torch.autograd.grad(gain * loss, z, retain_graph=True)[0] for loss in (ours, theirs))
        assert found.dtype == dtype
        assert torch.equal(found, wanted)


def test_all_ignored_is_zero():
    z = torch.randn(4, 5, requires_grad=True)
    loss = s.cross_entropy(z, torch.full((4,), -100))
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, z)[0].any()


def test_the_error_names_class_and_position():
    z, y = torch.randn(2, 3, 5), torch.tensor([[0, 1, 2], [4, 9, 7]])
    with pytest.raises(IndexError, match=r"target: expected 0 to 4, or -100 \(ignored\), got 9 at \(1, 1\)"):
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


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_scores_changed_in_place_raise_an_error_if_they_are_read_again(reduction):
    leaf, y = torch.randn(6, 5, requires_grad=True), torch.tensor([0, 1, 2, 3, 4, 0])
    z = leaf * 1.0
    wanted = torch.autograd.grad(s.cross_entropy(z, y), z)[0]
    loss = s.cross_entropy(z, y, reduction=reduction).mean()
    with torch.no_grad():
        z.add_(torch.arange(5))
    if reduction == "mean":  # the forward pass has computed the gradient, of the scores before the change
        assert torch.equal(torch.autograd.grad(loss, z, retain_graph=True)[0], wanted)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_default_device_is_not_used():
    z, y = torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, 2, 3])
    h, w = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)

    def found():
        plain, linear = s.cross_entropy(z, y), s.linear_cross_entropy(h, w, y)
        return plain.detach(), linear.detach(), *torch.autograd.grad(plain + linear, (z, h, w))

    wanted = found()
    with torch.device("meta"):
        again = found()
    assert all(torch.equal(a, b) for a, b in zip(wanted, again, strict=True))
