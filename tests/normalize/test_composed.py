"""The Jacobian at T = 0, composed functions under vmap, and errors for complex scores at limits of the temperature."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.oracle.backends import Backend

import softargmax as s

INF, NAN = math.inf, math.nan


def near(backend: Backend, found: Any, expected: Any, rel: float = 2e-7) -> None:
    assert backend.back(found) == pytest.approx(np.array(expected), rel=rel, abs=1e-45, nan_ok=True)


# --- the Jacobian -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, -0.0])
def test_jacobian_at_temperature_0_is_0(backend: Backend, temperature: float) -> None:
    z = [[1.0, 5.0, 5.0], [1.0, 2.0, 3.0], [INF, 0.0, -INF], [1.0, NAN, 2.0]]
    expected = np.zeros((4, 3, 3))
    expected[3] = NAN
    for t in (temperature, backend.array([temperature] * 4)):
        near(backend, s.softmax_jacobian(backend.array(z), temperature=t), expected)


@pytest.mark.parametrize("implementation", ["native", "reference"])
def test_composed_functions_in_vmap(implementation: str) -> None:
    torch = pytest.importorskip("torch")
    z = torch.linspace(-3, 3, 24, dtype=torch.float64).reshape(2, 3, 4) ** 2
    t = torch.tensor([2.0, math.inf], dtype=torch.float64)
    calls: list[Any] = [
        lambda z, _: s.softmax_jacobian(z),
        lambda z, _: s.softmax_jacobian(z, axis=0),
        lambda z, t: s.softmax_jacobian(z, temperature=t),
        lambda z, t: s.softmin(z, temperature=t),
        lambda z, t: tuple(s.boltzmann(z, t)),
        lambda z, t: tuple(s.boltzmann(z, t, weights=torch.arange(4.0, dtype=z.dtype))),
        lambda z, t: s.logsumexp(z, temperature=t),
    ]
    with s.using(implementation):
        for call in calls:
            found = torch.func.vmap(call)(z, t)
            for i in range(2):
                alone = call(z[i], t[i])
                for a, b in zip(found, alone, strict=True) if isinstance(alone, tuple) else ((found, alone),):
                    torch.testing.assert_close(a[i], b, rtol=1e-14, atol=1e-14)


def test_the_gradient_of_free_energy_is_p() -> None:
    torch = pytest.importorskip("torch")
    for weights in (None, [0.0, 2.0, 1.0]):
        e = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
        system = s.boltzmann(e, 1.5, k=2.0, weights=weights)
        (gradient,) = torch.autograd.grad(system.free_energy, e)
        torch.testing.assert_close(gradient, system.p, rtol=1e-14, atol=0)


# --- complex scores ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": -0.0}, "temperature"),
        ({"temperature": INF}, "temperature"),
        ({"temperature": np.array([1.0, 0.0])}, "temperature"),
        ({"temperature": np.array([1.0, -INF])}, "temperature"),
        ({"base": 1.0}, "base"),
        ({"base": 1}, "base"),
    ],
)
def test_complex_scores_have_no_limits(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named}: "):
        s.logsumexp(np.array([[1 + 1j, 2.0], [0.5, 1j]]), **options)
