"""The loss of a last layer by the CUDA kernels, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import softargmax as sa
from softargmax.core import dispatch

if not dispatch.INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1: run `make test-triton`", allow_module_level=True)

import torch

from softargmax.loss import triton_linear

INF, NAN = float("inf"), float("nan")
N, D, K = 11, 5, 23


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All calls run the CUDA kernels, and visit four rows at a time, of which two have scores in memory."""
    monkeypatch.setattr(triton_linear, "ROWS", 4)
    monkeypatch.setattr(triton_linear, "SCORES", 2)
    with sa.using("triton"):
        yield


def layer(dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """h, W, the bias and targets, of which one is ignored."""
    g = torch.Generator().manual_seed(seed)
    h, w, bias = (torch.randn(shape, generator=g).to(dtype) for shape in ((N, D), (K, D), (K,)))
    target = torch.randint(0, K, (N,), generator=g)
    target[3] = -100
    return h, w, bias, target


def derivatives(h: Any, w: Any, bias: Any, target: Any, factor: float, **options: Any) -> list[torch.Tensor]:
    """The loss, and the gradients of `factor` times its sum."""
    arrays = [x.detach().clone().requires_grad_() for x in (h, w, bias)]
    loss = sa.linear_cross_entropy(arrays[0], arrays[1], target, bias=arrays[2], **options)
    (loss.sum() * factor).backward()
    return [loss.detach(), *(x.grad for x in arrays)]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"reduction": "sum", "temperature": 0.7},
    {"reduction": "none", "z_loss": 1e-2},
    {"label_smoothing": 0.1, "weight": torch.linspace(0.5, 2, K)},
    {"where": torch.arange(N * K).reshape(N, K) % 7 > 0},
    {"softcap": 1.0, "z_loss": 1e-3},
    {"temperature": torch.linspace(0.5, 2, N)},
    {"target": torch.arange(N * K).reshape(N, K).sin().softmax(-1), "softcap": 1.0},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_and_gradients(dtype: torch.dtype, options: dict[str, Any]) -> None:
    h, w, bias, target = layer(dtype)
    options = dict(options)
    if "where" in options:
        options["where"] = options["where"].clone()
        options["where"][torch.arange(N), target.clamp(min=0)] = True
    target = options.pop("target", target)
    found = derivatives(h, w, bias, target, 3.0, **options)
    wide = {name: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for name, x in options.items()}
    of_classes = target.double() if target.is_floating_point() else target
    with sa.using("reference"):
        exact = derivatives(h.double(), w.double(), bias.double(), of_classes, 3.0, **wide)
        naive = derivatives(h.float(), w.float(), bias.float(), target, 3.0, **options)
    for name, one, other, usual in zip(("loss", "h", "w", "bias"), found, exact, naive, strict=True):
        size = other.abs().amax()
        # Gradients are rounded to the inputs' dtype, and dz before the products.
        unit = 2.0**-24 if name == "loss" else torch.finfo(dtype).eps / 2
        error = 4 * (usual - other).abs().amax() + 3 * unit * size
        assert ((one - other).abs() <= error).all(), name


def test_float16_gradients_of_a_mean_over_many_rows_do_not_underflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_linear, "ROWS", 256)
    n, classes = 250, 500
    h, w = torch.full((n, 2), 1.0, dtype=torch.float16), torch.zeros(classes, 2, dtype=torch.float16)
    target = torch.zeros(n, dtype=torch.int64)
    found = sa.linear_cross_entropy_and_gradient(h, w, target, bias=w[:, 0])
    # 1 / (250 * 500) has 7 binary digits in float16. The result has no error but that of dz and its own rounding.
    assert ((found.dw[1:, 0].double() * classes - 1.0).abs() <= 1.1 * torch.finfo(torch.float16).eps).all()


def test_vectors_that_do_not_count_change_no_gradient() -> None:
    h, w, bias, target = layer()
    masked, ignored = 5, 3
    target[target == masked] = 6
    where = torch.arange(K) != masked
    clean = [sa.linear_cross_entropy_and_gradient(h, w, target, bias=bias, where=where)]
    h[ignored], w[masked, 0], w[masked, 1], bias[masked] = NAN, INF, NAN, NAN
    clean.append(sa.linear_cross_entropy_and_gradient(h, w, target, bias=bias, where=where))
    for one, other in zip(*clean, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_edges() -> None:
    h, w, bias, target = layer()
    bias[2] = -INF  # the class is outside the support
    target[0] = 2
    h[1, 0] = NAN
    found = sa.linear_cross_entropy(h, w, target, bias=bias, reduction="none")
    assert found[0] == INF
    assert found[1].isnan()
    assert found[3] == 0.0
    # A score of +inf stays +inf, even if the bias is -inf.
    given = torch.tensor([[INF]]), torch.tensor([[2.0], [1.0]]), torch.tensor([0])
    found = sa.linear_cross_entropy(*given, bias=torch.tensor([-INF, 0.0]))
    with sa.using("reference"):
        expected = sa.linear_cross_entropy(*given, bias=torch.tensor([-INF, 0.0]))
    torch.testing.assert_close(found, expected)


def test_a_second_backward_pass_and_second_derivatives() -> None:
    h, w, _, target = layer()
    w.requires_grad_()
    loss = sa.linear_cross_entropy(h, w, target)
    (first,) = torch.autograd.grad(loss, w, retain_graph=True)
    (second,) = torch.autograd.grad(loss, w, torch.tensor(2.0), retain_graph=True)
    torch.testing.assert_close(second, 2 * first)
    (again,) = torch.autograd.grad(loss, w, create_graph=True)
    torch.testing.assert_close(again, first, rtol=1e-5, atol=1e-7)
    (of_norm,) = torch.autograd.grad(again.square().sum(), w)
    with sa.using("reference"):
        wide = w.detach().double().requires_grad_()
        (g,) = torch.autograd.grad(sa.linear_cross_entropy(h.double(), wide, target), wide, create_graph=True)
        (expected,) = torch.autograd.grad(g.square().sum(), wide)
    torch.testing.assert_close(of_norm.double(), expected, rtol=1e-4, atol=1e-6)
