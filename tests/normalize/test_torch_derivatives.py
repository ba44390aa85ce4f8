"""Derivatives of the torch operators against finite differences: reverse, forward, second, batched."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
cases = importlib.import_module("tests.normalize.torch_cases")
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402 needs torch

import softargmax  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(warning) for warning in cases.IGNORED]
each = pytest.mark.parametrize("case", cases.CASES, ids=[case.name for case in cases.CASES])


def tracked(case: Any) -> tuple[Any, ...]:
    return tuple(value.detach().clone().requires_grad_() for value in case.inputs)


@each
def test_first_derivatives(case: Any) -> None:
    assert gradcheck(
        case.f,
        tracked(case),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        check_undefined_grad=True,
    )


@each
def test_second_derivatives(case: Any) -> None:
    assert gradgradcheck(case.f, tracked(case), check_fwd_over_rev=True, check_batched_grad=True)


@pytest.mark.parametrize("operation", [softargmax.softmax, softargmax.log_softmax])
def test_third_derivative(operation: Any) -> None:
    def second(z: Any, g: Any) -> Any:
        first = torch.autograd.grad((operation(z, temperature=0.8) * g).sum(), z, create_graph=True)[0]
        return torch.autograd.grad(first.pow(2).sum(), z, create_graph=True)[0]

    z, g = cases.draw(4).requires_grad_(), cases.draw(4, seed=3)
    assert gradcheck(lambda z: second(z, g), (z,))


def test_softmin() -> None:
    z, temperature = cases.draw(3, 4).requires_grad_(), cases.positive(3).requires_grad_()
    f = cases.on(softargmax.softmin, temperature=None, axis=1)
    assert gradcheck(f, (z, temperature), check_forward_ad=True)
    assert gradgradcheck(f, (z, temperature))


def test_softmax_is_the_gradient_of_logsumexp_and_its_jacobian_the_hessian() -> None:
    z = cases.draw(5)
    f = lambda z: softargmax.logsumexp(z, temperature=0.6)  # noqa: E731
    assert torch.equal(torch.func.grad(f)(z), softargmax.softmax(z, temperature=0.6))
    jacobian = softargmax.softmax_jacobian(z, temperature=0.6)
    torch.testing.assert_close(torch.func.hessian(f)(z), jacobian, rtol=1e-14, atol=1e-16)
    torch.testing.assert_close(torch.func.jacrev(lambda z: softargmax.softmax(z, temperature=0.6))(z), jacobian)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_gradients_of_narrow_types_are_those_of_float64_rounded(name: str, dtype: str) -> None:
    kind = getattr(torch, dtype)
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}[dtype]
    operation = getattr(softargmax, name)
    z = (3 * cases.draw(6, 9)).to(kind)
    found, wanted = z.clone().requires_grad_(), z.double().requires_grad_()
    y, y_wide = operation(found, temperature=0.9), operation(wanted, temperature=0.9)
    g = cases.draw(*y.shape, seed=5).to(y.dtype)
    y.backward(g)
    y_wide.backward(g.double())
    assert found.grad.dtype == kind
    # The backward pass reads rounded results. log p is up to 30 in magnitude, so its error is up to 30 times that of p.
    slack = 32 * unit * (g.double().abs().sum(-1, keepdim=True) if name != "logsumexp" else g.double().abs()[:, None])
    assert ((found.grad.double() - wanted.grad).abs() <= slack).all()


def test_derivative_with_respect_to_temperature_does_not_cancel() -> None:
    """d softmax / dT is accurate for scores far from 0, for which <z, p (g - <p, g>)> would lose all digits."""
    z, g = cases.draw(5), cases.draw(5, seed=7)
    far = (z.float() + 0).double() + 2.0**20
    one = torch.ones((), dtype=torch.float64, requires_grad=True)
    other = torch.ones((), dtype=torch.float64, requires_grad=True)
    (softargmax.softmax(far, temperature=one) * g).sum().backward()
    (softargmax.softmax(far - 2.0**20, temperature=other) * g).sum().backward()
    assert abs(one.grad - other.grad) <= 1e-9 * abs(other.grad)


def test_only_tensors_that_require_a_gradient_get_one() -> None:
    z, temperature = cases.draw(3), cases.positive(1)[0].requires_grad_()
    softargmax.softmax(z, temperature=temperature)[0].backward()
    assert z.grad is None
    assert temperature.grad is not None
    p, lse = softargmax.softmax_with_lse(z.requires_grad_())
    (only_lse,) = torch.autograd.grad(lse, z, retain_graph=True)
    assert torch.equal(only_lse, p.detach())
