"""The Rényi entropy: accuracy in ulp, orders near 1, limits of the order, edge rows, derivatives and errors."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from tests.normalize.test_sums import BOUND, ulps
from tests.oracle.backends import Backend

import softargmax as s
from softargmax.core.scale import Scale
from softargmax.normalize.entropy_operations import RenyiEntropy, renyi_entropy

INF, NAN = math.inf, math.nan
ORDERS = (0.0, 1e-3, 0.3, 0.5, 0.51, 0.75, 0.999999, 1 - 2**-53, 1.0, 1 + 2**-52, 1.0001, 1.3, 1.9, 2.0, 5.0, 1e19, INF)
CONFIDENT = ([20.0, 0.0], [36.0, 0.0], [5.0, 0.0], [3.0, 0.0, 0.0], [40.0, 1.0, 1.0])


def truth(z: Any, order: Any, beta: Any = 1) -> Any:
    """Return the entropy by its definition, in mpmath's current precision. Results are cached."""
    return _truth(tuple(map(float, z)), order, beta, mp.mp.prec)


@cache
def _truth(z: tuple[float, ...], order: Any, beta: Any, precision: int) -> Any:
    with mp.workprec(precision):
        x = [mp.mpf(beta) * mp.mpf(v) for v in z if v > -INF]
        lse = mp.log(sum(mp.exp(v) for v in x))
        if order == INF:
            return lse - max(x)
        if order == 1:
            return sum(mp.exp(v - lse) * (lse - v) for v in x)
        order = mp.mpf(order)
        return (mp.log(sum(mp.exp(order * v) for v in x)) - order * lse) / (1 - order)


@pytest.mark.no_sanitize  # takes 20 s in mpmath, and other tests also run the kernel
@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("order", ORDERS)
def test_accuracy(implementation: str, dtype: str, order: float) -> None:
    rng = np.random.default_rng(7)
    rows = [rng.standard_normal(n) * spread for spread in (0.01, 1, 10, 40, 300) for n in (2, 7, 50)]
    with s.using(implementation), mp.workdps(600):
        for row in (*rows, *CONFIDENT):
            z = np.array(row, dtype)
            wanted = truth(z, order)
            if wanted > 1e-30:
                assert ulps(s.renyi_entropy(z, order), wanted, dtype) <= BOUND[dtype], z
            assert ulps(s.renyi_entropy(z, order, temperature=4), truth(z, order, 0.25), dtype) <= BOUND[dtype], z


def test_entropy_of_confident_rows_is_accurate(quick: Backend) -> None:
    for order in (0.3, 0.999999, 1.0, 1.0001, 2.0, 5.0, INF):
        with mp.workdps(60):
            wanted = float(truth([20.0, 0.0], order))
        found = quick.back(s.renyi_entropy(quick.array([20.0, 0.0]), order))
        assert float(found) == pytest.approx(wanted, rel=1e-14), order


@pytest.mark.parametrize("order", [0.0, 0.5, 1.0, 1.5, 2.0, INF])
@pytest.mark.parametrize(
    ("z", "h"),
    [
        ([-INF, -INF], 0.0),
        ([], 0.0),
        ([3.0], 0.0),
        ([1.0, -INF], 0.0),
        ([INF, 0.0, INF], math.log(2)),
        ([1.0, NAN], NAN),
        ([2.0] * 5, math.log(5)),
        ([1.7e308] * 3, math.log(3)),
    ],
)
def test_edges(quick: Backend, z: list[float], h: float, order: float) -> None:
    found = quick.back(s.renyi_entropy(quick.array(np.array(z, np.float64)), order))
    assert float(found) == pytest.approx(h, rel=4e-16, nan_ok=True)
    assert math.copysign(1.0, float(found)) == 1.0 or math.isnan(h)


def test_limits(quick: Backend) -> None:
    z = quick.array([1.0, 5.0, 5.0, -INF])
    for order in (0.0, 0.5, 1.0, 3.0, INF):
        assert float(quick.back(s.renyi_entropy(z, order, temperature=0.0))) == pytest.approx(math.log(2), rel=1e-15)
        assert float(quick.back(s.renyi_entropy(z, order, temperature=INF))) == pytest.approx(math.log(3), rel=1e-15)
    wide = quick.array([1e300, -1e300, 0.0])
    assert float(quick.back(s.renyi_entropy(wide, 0.0))) == pytest.approx(math.log(3), rel=1e-15)
    assert float(quick.back(s.renyi_entropy(wide, 1e-3))) == 0.0


def test_an_order_per_row_agrees_with_single_orders(quick: Backend) -> None:
    z = np.random.default_rng(3).standard_normal((4, 3, 5)) * 3
    orders = np.array([[0.0, 0.5, 1.0], [1.5, 2.0, 7.0], [INF, 1.0001, 0.3], [1.0, 1.0, 3.0]])
    mask = np.arange(15).reshape(3, 5) % 4 != 0
    found = quick.back(s.renyi_entropy(quick.array(z), quick.array(orders), where=quick.array(mask, "bool")))
    kept = quick.back(s.renyi_entropy(quick.array(z), quick.array(orders[..., None]), where=quick.array(mask, "bool")))
    assert (found == kept).all()
    for at in np.ndindex(orders.shape):
        alone = s.renyi_entropy(quick.array(z[at][mask[at[1]]]), float(orders[at]))
        assert found[at] == pytest.approx(float(quick.back(alone)), rel=4e-15)


def test_it_decreases_with_the_order_and_agrees_with_entropy() -> None:
    z = np.random.default_rng(4).standard_normal((20, 9)) * 2
    found = np.stack([s.renyi_entropy(z, order) for order in np.linspace(0, 4, 41)])
    assert (np.diff(found, axis=0) < 0).all()
    np.testing.assert_allclose(s.renyi_entropy(z, 1.0), s.entropy(z), rtol=1e-15)
    np.testing.assert_allclose(s.renyi_entropy(z, 2.0), -np.log((s.softmax(z) ** 2).sum(-1)), rtol=1e-13)
    np.testing.assert_allclose(s.renyi_entropy(z, INF), -s.log_softmax(z).max(-1), rtol=1e-15)


@pytest.mark.parametrize("axis", [0, (0, 2), (2, 0), None, ()])
def test_axes(quick: Backend, axis: Any) -> None:
    z = np.random.default_rng(5).standard_normal((3, 4, 5))
    axes = tuple(range(3)) if axis is None else (axis if isinstance(axis, tuple) else (axis,))
    p = np.exp(z) / np.exp(z).sum(axes, keepdims=True)
    found = quick.back(s.renyi_entropy(quick.array(z), 1.7, axis=axis))
    assert found == pytest.approx(np.log((p**1.7).sum(axes)) / -0.7, rel=1e-13, abs=1e-15)


def test_dtype(quick: Backend) -> None:
    for given in quick.dtypes:
        for requested in quick.dtypes:
            found = s.renyi_entropy(quick.array([1.0, 2.0], given), 2.0, dtype=quick.dtype(requested))
            assert str(found.dtype).endswith(requested)


@pytest.mark.parametrize("order", [-1e-300, -1.0, NAN, -INF, np.array([1.0, -1.0, 2.0])])
def test_orders_out_of_range(order: Any) -> None:
    with pytest.raises(ValueError, match=r"^order: .* 0 or above, infinity included"):
        s.renyi_entropy(np.ones((3, 4)), order)


@pytest.mark.parametrize(("order", "error"), [("two", TypeError), (None, TypeError), (np.ones(4), ValueError)])
def test_orders_of_a_wrong_type(order: Any, error: Any) -> None:
    with pytest.raises(error, match=r"^order: "):
        s.renyi_entropy(np.ones((3, 4)), order)


# --- derivatives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("order", [1e-3, 0.3, 0.9, 0.999999, 1 - 1e-12, 1.0, 1.0001, 1.3, 2.0, 5.0, 1000.0])
def test_gradients_of_confident_rows_are_accurate(implementation: str, order: float) -> None:
    torch = pytest.importorskip("torch")
    with s.using(implementation), mp.workdps(150):
        a, h = mp.mpf(order), mp.mpf(10) ** -50
        for row in (*CONFIDENT, [1.0, 2.0, 3.0], [0.1, 0.0, 0.05], [5.0, -3.0, 2.0, 2.0, 0.0]):
            z = torch.tensor(row, dtype=torch.float64, requires_grad=True)
            of = torch.tensor(order, dtype=torch.float64, requires_grad=True)
            s.renyi_entropy(z, of).backward()
            lse_p, lse_q = (mp.log(sum(mp.exp(b * mp.mpf(x)) for x in row)) for b in (1, a))
            p = [mp.exp(x - lse_p) for x in row]
            q = [mp.exp(a * x - lse_q) for x in row]
            entropy = truth(row, 1)
            if order == 1:
                wanted = [x * (-mp.log(x) - entropy) for x in p]
            else:
                wanted = [a / (1 - a) * (y - x) for x, y in zip(p, q, strict=True)]
            largest = float(max(map(abs, wanted)))
            np.testing.assert_allclose(z.grad.numpy(), np.array(wanted, np.float64), rtol=0, atol=4e-14 * largest)
            to_order = (truth(row, a + h) - truth(row, a - h)) / (2 * h)
            assert float(of.grad) == pytest.approx(float(to_order), rel=4e-14)


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("order", [0.0, 0.5, 1.0, 2.0, INF])
def test_gradients_at_the_edges(implementation: str, order: float) -> None:
    torch = pytest.importorskip("torch")
    rows = [[-INF, -INF, -INF], [INF, INF, 0.0], [1.0, -INF, 2.0], [0.0, 0.0, 0.0], [800.0, 0.0, -INF]]
    z = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    of = torch.full((5,), order, dtype=torch.float64, requires_grad=True)
    with s.using(implementation):
        s.renyi_entropy(z, of).sum().backward()
    assert z.grad[[0, 1, 3]] == pytest.approx(0.0, abs=1e-15)
    assert z.grad[2, 1] == z.grad[4, 2] == 0.0
    assert bool(z.grad.isfinite().all())
    assert bool(of.grad.isfinite().all())
    assert of.grad[[0, 1, 3]] == pytest.approx(0.0, abs=1e-15)


def test_vmap_over_the_order() -> None:
    torch = pytest.importorskip("torch")
    z = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    orders = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    found = torch.func.vmap(lambda a: s.renyi_entropy(z, a))(orders)
    assert torch.equal(found, torch.stack([s.renyi_entropy(z, a) for a in orders]))
    slopes = torch.func.vmap(torch.func.grad(lambda a: s.renyi_entropy(z[0], a)))(orders)
    assert torch.equal(slopes, torch.stack([torch.func.grad(lambda a: s.renyi_entropy(z[0], a))(a) for a in orders]))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_an_order_of_nan_gives_nan(backend: Any) -> None:
    """On a device an invalid order becomes NaN. The result is then NaN, even if the row has an empty support."""
    z = np.array([[0.0, 1.0], [-INF, -INF], [0.0, 1.0], [-INF, -INF]])
    arguments = RenyiEntropy(z, None, Scale(1.0, 0.0), np.array([[NAN], [NAN], [2.0], [2.0]]), (1,), z.dtype)
    with s.using(backend):
        found = renyi_entropy.first(arguments)
    assert np.isnan(found[:2]).all()
    assert np.isfinite(found[2:]).all()


def test_a_traced_order_below_zero_gives_nan() -> None:
    jax = pytest.importorskip("jax")
    found = jax.jit(s.renyi_entropy)(jax.numpy.zeros((2, 3)), jax.numpy.array([-1.0, 2.0]))
    assert np.isnan(found[0])
    assert float(found[1]) == pytest.approx(math.log(3), rel=1e-6)
