"""Losses of numbers near the limits of float64 and float32, where intermediate results could overflow or underflow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import softargmax as s

INF = math.inf

LOSSES: list[tuple[list[float], Any, dict[str, Any], float]] = [
    ([1e308, -1e308, -1e308, -1e308], 0, {"temperature": 1e306, "label_smoothing": 0.1}, 15.0),
    (
        [1e305] + [-1e305] * 4095,
        0,
        {"temperature": 1e304, "label_smoothing": 0.1},
        2.0 * 4095 / 4096 + math.log1p(4095 * math.exp(-20)),
    ),
    (
        [1.7e308, 1.7e308, -1.7e308],
        [0.0, 0.0, 1.0],
        {"temperature": 1e300, "weight": [0.0, 1.0, 2.0]},
        6.8e8 + 2 * math.log(2),
    ),
    ([1e308, -1e308, 1e307], 0, {"temperature": 1e300, "label_smoothing": 1.0}, 2.9e8 / 3),
    ([1.0, 2.0, 3.0], 0, {"temperature": 1e-300, "label_smoothing": 1.0}, 1e300),
    ([5e-324, 0.0], [0.5, 0.5], {"temperature": 0.0}, INF),
    ([5e-324, 0.0], 0, {"temperature": 0.0, "label_smoothing": 0.1}, INF),
    ([1.0, 3.0], 1, {"temperature": 0.0, "label_smoothing": 0.1}, INF),
    ([1.0, 3.0], 1, {"temperature": 0.0}, 0.0),
    ([3.0, 3.0], 1, {"temperature": 0.0, "label_smoothing": 0.1}, math.log(2)),
    ([1.0, INF], 1, {"label_smoothing": 0.1}, INF),
    ([-INF, INF], 1, {"label_smoothing": 0.1}, 0.0),
    ([0.0, 1.0, INF], 0, {"temperature": INF, "softcap": 5.0}, math.log(3)),
]


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize(("z", "target", "options", "expected"), LOSSES)
def test_loss(z: list[float], target: Any, options: dict[str, Any], expected: float, implementation: str) -> None:
    with s.using(implementation):
        found = s.cross_entropy([z], [target], reduction="none", **options)
    assert found[0] == pytest.approx(expected, rel=1e-13)


def test_the_sum_of_the_distances_may_overflow() -> None:
    with s.using("native"):
        found = s.cross_entropy([[1e308, -1e308, 1e307]], [0], label_smoothing=1.0)
    assert found == pytest.approx(29 / 3 * 1e307, rel=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.25}, {"softcap": 3.0}])
@pytest.mark.parametrize("exponent", [-40, -90, -280])
def test_gradients_are_exactly_proportional_to_a_small_incoming_gradient(
    dtype: str, options: dict[str, Any], exponent: int
) -> None:
    torch = pytest.importorskip("torch")
    if exponent < np.finfo(dtype).minexp:
        exponent = -110
    leaf = torch.tensor([[0.0, 1.0, 0.5, -3.0], [9.0, 0.0, 1.0, 2.0]], dtype=getattr(torch, dtype)).requires_grad_()
    loss = s.cross_entropy(leaf, torch.tensor([0, 0]), **options, reduction="sum")
    whole, small = (
        torch.autograd.grad(loss, leaf, torch.tensor(gain, dtype=loss.dtype), retain_graph=True)[0]
        for gain in (1.0, 2.0**exponent)
    )
    assert torch.equal(small * 2.0**-exponent, whole)


@pytest.mark.parametrize(("dtype", "temperature"), [("float32", 2.0**70), ("float64", 2.0**500)])
@pytest.mark.parametrize("e", [0.0, 0.25])
def test_gradients_are_accurate_for_a_small_beta(dtype: str, temperature: float, e: float) -> None:
    z = np.array([[0.0, 1.0, 0.5, -3.0]], dtype)
    found = s.cross_entropy_and_gradient(z, [0], temperature=temperature, label_smoothing=e).gradient * temperature
    level = s.cross_entropy_and_gradient(0 * z, [0], label_smoothing=e).gradient
    assert np.allclose(found, level, rtol=4 * np.finfo(dtype).eps)


def test_a_gradient_that_overflows_is_infinite() -> None:
    options = {"temperature": 1e-300, "softcap": 2.0, "z_loss": 0.2}
    assert s.cross_entropy_and_gradient([[1.0, 2.0]], [0], **options).gradient[0, 1] == INF
    assert not s.cross_entropy_and_gradient([[INF, 1.0, 2.0]], [0], **options).gradient.any()


def test_a_huge_weight_is_multiplied_last() -> None:
    weight = [1.0, 1.0, 1e308]
    found = s.cross_entropy_and_gradient([[0.0, 1.0, 2.0]], [2], temperature=0.01, weight=weight, label_smoothing=0.1)
    assert math.isfinite(found.gradient[0, 2])
