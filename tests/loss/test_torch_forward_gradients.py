"""Losses whose forward pass also computes the gradient: scaled gradients, further passes, checkpoints."""

from __future__ import annotations

import pytest

import softargmax as s

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint  # noqa: E402 after the skip

N, K = 5, 9000
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
OPTIONS = {
    "plain": {},
    "smoothing, z-loss": {"label_smoothing": 0.1, "z_loss": 0.01},
    "soft-cap, temperature, weights": {"softcap": 5.0, "temperature": 0.7, "weight": torch.linspace(0.0, 2.0, K)},
}


def scores(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    z = (4 * torch.randn(N, K, dtype=torch.float64)).to(dtype)
    return z.requires_grad_(), torch.tensor([0, 8999, -100, 17, 4096])


def by_rule(z: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
    """The gradient that the backward pass computes itself: it must stay differentiable."""
    loss = s.cross_entropy(z, y) * scale
    return torch.autograd.grad(loss, z, create_graph=True)[0].detach()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 0.25, -2.0])
def test_powers_of_two_change_no_bit(dtype, scale):
    z, y = scores(dtype)
    (found,) = torch.autograd.grad(s.cross_entropy(z, y) * scale, z)
    assert torch.equal(found, by_rule(z, y, scale))


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_factors_round_once_more_but_never_in_half_precision(dtype):
    z, y = scores(dtype)
    (found,) = torch.autograd.grad(s.cross_entropy(z, y) / 3, z)
    if dtype.itemsize == 2:
        expected = by_rule(z, y, 1 / 3)
    else:
        expected = torch.autograd.grad(s.cross_entropy(z, y), z)[0] * torch.tensor(1.0, dtype=dtype).div(3)
    assert torch.equal(found, expected)


def test_float16_gradients_are_scaled_before_they_are_rounded():
    """As training with a GradScaler needs it: unscaled gradients below 2^-25 are 0 in float16."""
    z, y = torch.zeros(64, 4000, dtype=torch.float16, requires_grad=True), torch.zeros(64, dtype=torch.long)
    (found,) = torch.autograd.grad(s.cross_entropy(z, y) * 2.0**16, z)
    torch.testing.assert_close(found[:, 1:].float(), torch.full((64, 3999), 2.0**16 / 64 / 4000), rtol=2**-11, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("layout", ["rows", "columns", "middle axis"])
def test_every_pass_has_the_same_bits(layout, options, dtype):
    z, y = scores(dtype)
    if layout == "columns":
        z, axis = z.detach().T.contiguous().T.requires_grad_(), -1
    elif layout == "middle axis":
        z, y, axis = z.detach().T.reshape(3, 3000, N).requires_grad_(), torch.tensor([[0] * N, [1] * N, [2999] * N]), 1
    else:
        axis = -1
    if "weight" in options:
        options = {**options, "weight": options["weight"][: z.shape[axis]].to(dtype)}
    loss = s.cross_entropy(z, y, axis=axis, reduction="sum", **options)
    passes = [torch.autograd.grad(loss, z, retain_graph=True)[0] for _ in range(3)]
    assert torch.equal(passes[0], passes[1])
    assert torch.equal(passes[1], passes[2])
    assert passes[0].data_ptr() != passes[1].data_ptr()


def test_the_forward_keeps_one_gradient_and_releases_it():
    z, y = scores()
    loss = s.cross_entropy(z, y)
    (kept,) = [x for x in loss.grad_fn.forward_gradients if x is not None]
    (found,) = torch.autograd.grad(loss, z, retain_graph=True)
    assert found.data_ptr() == kept.data_ptr()
    assert loss.grad_fn.forward_gradients is None


@pytest.mark.parametrize("g", [float("inf"), float("nan")])
def test_ignored_rows_have_no_gradient_whatever_comes_in(g):
    z, y = scores()
    (found,) = torch.autograd.grad(s.cross_entropy(z, y), z, torch.tensor(g))
    assert not found[2].any()
    assert not found[0].isfinite().any()
    torch.testing.assert_close(found, by_rule(z, y, g), equal_nan=True)


@pytest.mark.parametrize("linear", [False, True])
def test_checkpoints_keep_no_gradient(linear):
    torch.manual_seed(0)
    h, w, y = torch.randn(6, 8, requires_grad=True), torch.randn(10, 8, requires_grad=True), torch.arange(6)

    def loss_of(h: torch.Tensor) -> torch.Tensor:
        return s.linear_cross_entropy(h, w, y) if linear else s.cross_entropy(h @ w.T, y)

    loss = checkpoint(loss_of, h, use_reentrant=False)
    assert not hasattr(loss.grad_fn, "forward_gradients")
    found = torch.autograd.grad(loss, (h, w))
    for a, b in zip(found, torch.autograd.grad(loss_of(h), (h, w)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_other_arguments_with_gradients():
    z, y = scores(torch.float64)
    weight, t = torch.rand(K, dtype=torch.float64, requires_grad=True), torch.tensor(1.5, requires_grad=True)
    loss = s.cross_entropy(z, y, weight=weight, temperature=t)
    found = torch.autograd.grad(loss, (z, weight, t))
    rows = y >= 0
    w_y, p_y = weight[y[rows]], torch.log_softmax(z[rows] / t, -1).gather(1, y[rows, None])[:, 0]
    expected = torch.autograd.grad(-(w_y * p_y).sum() / w_y.sum(), (z, weight, t))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-12)
