"""Derivatives of the torch operators with respect to scores and order, compared with finite differences."""

from __future__ import annotations

import importlib
import math
from typing import Any

import mpmath
import numpy as np
import pytest
from tests.sparse.truth import exact

torch = pytest.importorskip("torch")
cases = importlib.import_module("tests.sparse.torch_cases")
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402 after the check for torch

import softargmax as s  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(warning) for warning in cases.IGNORED]
each = pytest.mark.parametrize("case", cases.CASES, ids=[case.name for case in cases.CASES])


def tracked(case: Any) -> tuple[Any, ...]:
    return tuple(value.detach().clone().requires_grad_() for value in case.inputs)


@each
def test_first_derivatives(case: Any) -> None:
    assert ((case.f(*case.inputs) == 0).any() or not case.zeros).item() if case.zeros else True
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


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0, 3.0])
def test_third_derivative(alpha: float) -> None:
    def second(z: Any, g: Any) -> Any:
        first = torch.autograd.grad((s.entmax(z, alpha) * g).sum(), z, create_graph=True)[0]
        return torch.autograd.grad(first.pow(2).sum(), z, create_graph=True)[0]

    z, g = cases.draw(5).requires_grad_(), cases.draw(5, seed=3)
    assert gradcheck(lambda z: second(z, g), (z,))


# --- derivatives with respect to alpha, also at 1, 1.5 and 2, where the kernel changes its formula --------------------

ROWS = {"few": [0.3, -0.2, 1.1, 0.9], "zeros": [2.0, 1.9, -3.0, 0.5, 1.7], "tied": [1.0, 1.0, 0.25]}
ORDERS = (1.0, 1 + 1e-12, 1 + 1e-6, 1 + 1e-4, 1.02, 1.3, 1.5, 1.9, 2.0, 2.5, 3.0)


def by_differences(row: list[float], alpha: float) -> tuple[np.ndarray, float]:
    """Return dp / dalpha and dtau / dalpha in mpmath, by one-sided differences of third order."""
    with mpmath.workdps(60):
        h = mpmath.mpf(10) ** -12
        base = mpmath.mpf(alpha)
        found = [exact(row, base + i * h, 70) for i in range(4)]
        weights = (mpmath.mpf(-11) / 6, 3, mpmath.mpf(-3) / 2, mpmath.mpf(1) / 3)
        p = [sum(w * x.all_p[i] for w, x in zip(weights, found, strict=True)) / h for i in range(len(row))]
        tau = sum(w * x.tau for w, x in zip(weights, found, strict=True)) / h
        return np.array([float(x) for x in p]), float(tau)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("alpha", ORDERS)
def test_the_gradient_to_alpha(alpha: float, name: str) -> None:
    """Gradients of p and tau with respect to alpha agree with finite differences, also at alpha = 1 and near it."""
    row = ROWS[name]
    dp, dtau = by_differences(row, alpha)
    for implementation in ("native", "reference"):
        for g in torch.eye(len(row), dtype=torch.float64):
            order = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
            with s.using(implementation):
                (s.entmax(torch.tensor(row, dtype=torch.float64), order) * g).sum().backward()
            assert order.grad.item() == pytest.approx(dp[int(g.argmax())], rel=1e-12, abs=1e-13), implementation
        order = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
        with s.using(implementation):
            s.threshold(torch.tensor(row, dtype=torch.float64), order).tau.backward()
        assert order.grad.item() == pytest.approx(dtau, rel=1e-11, abs=1e-12), implementation


def test_the_gradient_to_alpha_at_1_in_closed_form() -> None:
    """At alpha = 1, dp_i / dalpha = p_i (<p, l^2> - l_i^2) / 2 with l = log p."""
    z = cases.draw(6)
    p = torch.softmax(z, 0)
    wanted = p * ((p * p.log() ** 2).sum() - p.log() ** 2) / 2
    order = torch.ones((), dtype=torch.float64)
    found = torch.func.jacrev(lambda a: s.entmax(z, a))(order)
    forward = torch.func.jacfwd(lambda a: s.entmax(z, a))(order)
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(forward, wanted, rtol=1e-13, atol=1e-15)


def test_second_derivatives_to_alpha_do_not_blow_up_towards_1() -> None:
    z = cases.draw(4)
    f = lambda a: (s.entmax(z, a) ** 2).sum()  # noqa: E731
    wanted = [torch.func.hessian(f)(cases.number(1 + a)).item() for a in (1e-3, 1e-4)]
    limit = wanted[1] + (wanted[1] - wanted[0]) / 9  # extrapolates linearly to a = 0
    for a in (1e-6, 1e-9, 0.0):
        assert torch.func.hessian(f)(cases.number(1 + a)).item() == pytest.approx(limit, rel=1e-5), a


# --- high orders: with s = p^(2 - alpha), the s of the smallest p is larger than the sum of all other s ---------------


def of_p(p: np.ndarray, alpha: float, g: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return the gradients dz = s g' and -<s g', w'> with respect to z and alpha, and the largest w.

    Here a = alpha - 1, s = p^(2 - alpha) and w = (1 - p^a + p^a log p^a) / a^2. g' and w' are g and w minus their means
    with weights s.
    """
    with mpmath.workdps(400):
        a = mpmath.mpf(alpha) - 1
        p, g = ([mpmath.mpf(float(x)) for x in values] for values in (p, g))
        log = [mpmath.log(x) for x in p]
        s = [mpmath.exp((1 - a) * x) for x in log]
        w = [(1 - mpmath.exp(a * x) + a * x * mpmath.exp(a * x)) / a**2 for x in log]
        mean = [mpmath.fdot(s, values) / mpmath.fsum(s) for values in (g, w)]
        dz = [x * (y - mean[0]) for x, y in zip(s, g, strict=True)]
        dalpha = -mpmath.fdot(dz, [x - mean[1] for x in w])
        return np.array([float(x) for x in dz]), float(dalpha), float(max(w))


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("alpha", [2.5, 5.0, 10.0, 20.0])
def test_gradients_of_high_orders(alpha: float, implementation: str) -> None:
    """Gradients are accurate at high orders. The largest gradients are 1e30.

    All scores are near their maximum, so that several p are above 0.
    """
    z = cases.draw(100, 4, seed=6) * 0.6 / alpha
    z[:, 3] = torch.where(torch.arange(100) % 4 == 0, z[:, 2], z[:, 3])  # ties, some at the threshold
    g, order = cases.draw(100, 4, seed=7), torch.full((100, 1), alpha, dtype=torch.float64)
    z.requires_grad_(), order.requires_grad_()
    with s.using(implementation):
        p = s.entmax(z, order)
    p.backward(g)
    sizes = []
    for i in range(len(z)):
        there = p[i].detach() > 0
        row, up, down = (x[i].detach()[there].numpy() for x in (p, g, z.grad))
        dz, dalpha, w = of_p(row, alpha, up)
        slack = 2.0**-53 * (16 + 2 * alpha * abs(np.log(row)).max())
        if implementation == "reference":  # the reference computes s from its own threshold, not from the rounded p
            slack *= 2 * alpha
        assert np.abs(down - dz).max() <= slack * np.abs(dz).max(), i
        assert abs(order.grad[i].item() - dalpha) <= slack * w * np.abs(dz).sum() + 1e-300, i
        sizes.append(np.abs(dz).max())
    assert max(sizes) > {2.5: 10, 5.0: 1e3, 10.0: 1e6, 20.0: 1e12}[alpha]


def test_gradients_of_a_large_support_stay_finite_at_high_orders() -> None:
    """Gradients stay finite although s = p^(2 - alpha) overflows for each p. The sum of the clipped s is finite."""
    g = torch.arange(40_000, dtype=torch.float64) / 40_000
    for alpha in (80.0, 101.0):
        z = torch.zeros(40_000, dtype=torch.float64, requires_grad=True)
        (dz,) = torch.autograd.grad(s.entmax(z, alpha), z, g)
        torch.testing.assert_close(dz / dz[-1], 2 * (g - g.mean()) / (g[-1] - g[0]), rtol=1e-12, atol=1e-12)


# --- incoming and outgoing gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_native_and_reference_gradients_agree(dtype: str, alpha: float) -> None:
    """Gradients of the kernel and the reference differ only by rounding errors.

    The kernel computes s = p^(2 - alpha) from the rounded p, so s has |2 - alpha| times the relative error of p.
    """
    kind = getattr(torch, dtype)
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}[dtype]
    for spread in (0.3, 1.0, 3.0):
        z, g = (spread * cases.draw(20, 7)).to(kind), cases.draw(20, 7, seed=4).to(kind)
        found = z.clone().requires_grad_()
        s.entmax(found, torch.tensor(alpha)).backward(g)
        wanted = z.double().requires_grad_()
        with s.using("reference"):
            p = s.entmax(wanted, torch.tensor(alpha, dtype=torch.float64))
        p.backward(g.double())
        assert found.grad.dtype == kind
        p = p.detach()
        tiny = 2.0**-24 if dtype == "float16" else 0.0
        if dtype == "float64":  # the reference's own error (test_values.py)
            unit = 2.0**-53 * (4 - 2 * p.clamp(min=1e-300).log()) / torch.where(p > 0, p, 1) ** (alpha - 1)
        off = (unit + tiny / torch.where(p > 0, p, 1)) * max(1.0, abs(2 - alpha))  # relative error of s
        size = torch.where(p > 0, p, 1) ** (2 - alpha) * (g.double().abs() + g.double().abs().amax(-1, keepdim=True))
        slack = 4 * off.amax(-1, keepdim=True) * size + 2 * tiny
        visible = (found.detach().new_tensor(1) * p).to(kind) > 0
        assert (((found.grad.double() - wanted.grad).abs() <= slack) | ~visible).all()


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0, 2.5])
def test_gradients_outside_the_support_are_ignored(alpha: float) -> None:
    z, mask = 3 * cases.draw(6, 9), torch.arange(9) != 4
    order = torch.full((6,), alpha, dtype=torch.float64)
    p = s.entmax(z, alpha, where=mask)
    clean = torch.where(p > 0, cases.draw(6, 9, seed=5), 0)
    assert (p == 0).any(-1).all()
    for outside in (math.nan, math.inf, -math.inf, 1e300):
        dirty = torch.where(p > 0, clean, outside)
        for f in (lambda z, _: s.entmax(z, alpha, where=mask), lambda z, a: s.entmax(z, a, where=mask)):
            (_, pull), (_, forward) = torch.func.vjp(f, z, order), torch.func.jvp(f, (z, order), (dirty, order * 0))
            wanted = torch.func.vjp(f, z, order)[1](clean)
            for ours, theirs in zip(pull(dirty), wanted, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
            torch.testing.assert_close(forward, wanted[0], rtol=1e-14, atol=1e-15)


def test_only_arguments_that_require_it_get_a_gradient() -> None:
    z, order = cases.draw(3), cases.number(1.3).requires_grad_()
    s.entmax(z, order)[0].backward()
    assert z.grad is None
    assert order.grad is not None
    z.requires_grad_()
    s.entmax(z, order.detach())[0].backward()
    assert z.grad is not None
    found = s.threshold(z, order)
    assert found.tau.requires_grad
    assert not found.support_size.requires_grad
    assert not found.support_size.is_floating_point()
