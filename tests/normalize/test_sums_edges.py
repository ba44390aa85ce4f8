"""Sums under the softmax: values where the formula switches, limits, and derivatives of edge rows."""

from __future__ import annotations

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from tests.normalize.test_sums import Truth, ulps
from tests.oracle.backends import Backend

import softargmax as s

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("implementation", ["native", "reference"])
def test_divergence_where_the_formula_changes(implementation: str) -> None:
    """kl_divergence is accurate for |log p - log q| from 0.2 to 2.

    In this range of delta = log p - log q, the formula changes from a series to delta - 1 + exp(-delta), which cancels
    for small delta.
    """
    rng = np.random.default_rng(8)
    with s.using(implementation), mp.workdps(60):
        for size in (0.3, 0.5, 0.7, 1.0, 1.3, 1.5, 2.0):
            z = rng.standard_normal(3)
            q = z + size * np.array([1.0, -1.0, 1.0]) * rng.choice([-1, 1])
            assert ulps(s.kl_divergence(z, q), Truth(z).divergence(Truth(q)), "float64") <= 4, size


def test_divergence_of_rows_with_maxima_of_any_size(quick: Backend) -> None:
    for z, q in (([1e32, 0.0], [1e15, 1e15]), ([1e20, 0.0], [8000.3] * 2), ([1e20, 0.0], [100.3] * 2)):
        found = float(quick.back(s.kl_divergence(quick.array(z), quick.array(q))))
        assert found == pytest.approx(math.log(2), rel=1e-15)
    beyond = ([1.7e308, -1.0], [-1.7e308, -800.0], 1.7e308), ([-1.7e308], [1.7e308], 0.0), ([NAN], [-INF], NAN)
    for z, q, kl in beyond:
        found = float(quick.back(s.kl_divergence(quick.array(z), quick.array(q))))
        assert found == pytest.approx(kl, nan_ok=True)


@pytest.mark.parametrize("k", [1, 2, 3, 49, 98, 103])
def test_infinities_of_one_sign(quick: Backend, k: int) -> None:
    found = s.signed_logsumexp(quick.array([INF] * k), quick.array([-1.0] * k))
    assert [float(quick.back(x)) for x in found] == [INF, -1.0]


@pytest.mark.parametrize(
    ("z", "w", "truth"),
    [
        ([0.0, -40.0], [1.0, 0.5], 0.5 * math.exp(-40)),
        ([0.0, 0.0], [1.0, 1e-12], 1e-12),
        ([0.0, -40.0], [1.0, -1.0], -math.exp(-40)),
    ],
)
def test_signed_sums_next_to_1(quick: Backend, z: Any, w: Any, truth: float) -> None:
    found = s.signed_logsumexp(quick.array(z), quick.array(w))
    assert float(quick.back(found.log_abs)) == pytest.approx(truth, rel=1e-12)


def test_signed_logsumexp_has_the_dtype_of_its_scores_and_weights() -> None:
    z = np.float32([0, 1])
    for w in ([1.0, -1.0], [1.0, -1e200], [1e-200, 1.0]):
        assert {x.dtype for x in map(np.asarray, s.signed_logsumexp(z, w))} == {np.dtype("float32")}
        assert {x.dtype for x in map(np.asarray, s.signed_logsumexp(z, np.array(w)))} == {np.dtype("float64")}
    torch = pytest.importorskip("torch")
    found = torch.func.vmap(lambda z: s.signed_logsumexp(z, [1.0, -2.0]).log_abs)(torch.ones(3, 2))
    assert found.dtype == torch.float32


def test_gradients_of_signed_logsumexp() -> None:
    torch = pytest.importorskip("torch")
    for implementation in ("native", "reference"):
        with s.using(implementation):
            w = torch.ones(2, dtype=torch.float64, requires_grad=True)
            s.signed_logsumexp(torch.tensor([0.0, 1.0], dtype=torch.float64), w).log_abs.backward()
            assert w.grad.tolist() == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])
        z = torch.tensor([0.0, 0.0, 1.0], requires_grad=True)
        s.signed_logsumexp(z, torch.tensor([1.0, 1e-9, -1e-9])).log_abs.backward()
        assert z.grad.tolist() == pytest.approx([1.0, 1e-9, -math.e * 1e-9], rel=1e-4)


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("g", [INF, -INF, NAN])
def test_incoming_gradients_outside_the_support_are_ignored(implementation: str, g: float) -> None:
    torch = pytest.importorskip("torch")
    z = torch.tensor([[-INF, -INF, -INF], [1.0, -INF, 2.0]], dtype=torch.float64)
    other = torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    weights = torch.tensor([[g], [1.0]], dtype=torch.float64)[:, 0]
    with s.using(implementation):
        for call in (s.entropy, s.soft_argmax, lambda z: s.kl_divergence(z, other)):
            leaf = z.clone().requires_grad_()
            (call(leaf) * weights).sum().backward()
            assert leaf.grad[0].tolist() == [0.0] * 3
            assert leaf.grad[1, 1] == 0.0
            assert bool(leaf.grad.isfinite().all())


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("q", [[0.0, -INF, 1.0], [-INF, -INF, -INF]])
def test_an_infinite_divergence_is_constant(implementation: str, q: list[float]) -> None:
    torch = pytest.importorskip("torch")
    with s.using(implementation):
        leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in ([1.0, 2.0, 0.0], q)]
        kl = s.kl_divergence(*leaves)
        assert kl == INF
        kl.backward()
        assert [leaf.grad.tolist() for leaf in leaves] == [[0.0] * 3] * 2


def test_gradients_of_near_distributions() -> None:
    torch = pytest.importorskip("torch")
    z = torch.linspace(-1, 1, 8)
    leaf = (z + 1e-4 * torch.sin(torch.arange(8.0))).requires_grad_()
    s.kl_divergence(z, leaf).backward()
    exact = s.softmax(leaf.detach().double()) - s.softmax(z.double())
    assert leaf.grad.tolist() == pytest.approx(exact.tolist(), rel=2e-7)


def test_gradients_of_half_precision_values_are_rounded_after_the_sum() -> None:
    torch = pytest.importorskip("torch")
    z, v = torch.zeros(4096, 64), torch.ones(64, dtype=torch.float16, requires_grad=True)
    (1e-4 * s.soft_argmax(z, v)).sum().backward()
    assert v.grad.tolist() == pytest.approx([4096e-4 / 64] * 64, rel=2**-11)


def test_heat_capacity_of_equal_and_of_huge_energies() -> None:
    assert 0 <= s.boltzmann([0.41] * 3, 1.7).heat_capacity < 1e-60
    rng = np.random.default_rng(2)
    energies = 1e15 + rng.integers(0, 2, (300, 5)) / 8
    assert (s.boltzmann(energies, rng.uniform(0.1, 3, 300)).heat_capacity >= 0).all()
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float64):
        e = torch.tensor([0.0, 1.0, torch.finfo(dtype).max], dtype=dtype, requires_grad=True)
        s.boltzmann(e, 0.5).heat_capacity.backward()
        assert e.grad.tolist() == pytest.approx([-0.2002, 0.2002, 0], abs=1e-4)


def test_the_core_refuses_a_missing_z_q() -> None:
    from softargmax.core import _native

    z, out = np.ones((2, 3)), np.empty(2)
    with pytest.raises(TypeError, match="z_q"):
        _native.kl_divergence(z, None, None, (1.0, 0.0), (1,), out)


def test_lse_in_the_unit_of_the_scaled_scores(quick: Backend) -> None:
    assert float(quick.back(s.softmax_with_lse(quick.array([42.0]), temperature=1e-308).lse)) == INF


@pytest.mark.slow
def test_gradient_of_lse_at_a_maximum_of_0() -> None:
    jax = pytest.importorskip("jax")
    slope = jax.grad(lambda z: s.softmax_with_lse(z, temperature=0.5).lse)(jax.numpy.zeros(2))
    assert slope.tolist() == [1.0, 1.0]


def test_masked_weights_are_not_checked(quick: Backend) -> None:
    found = s.logsumexp(
        quick.array([0.0, 1.0]), weights=quick.array([1.0, INF]), where=quick.array([True, False], "bool")
    )
    assert float(quick.back(found)) == 0.0
