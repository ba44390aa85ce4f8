"""The kernels of the gradient operations agree with the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from softargmax.core.scale import UNIT
from softargmax.sparse import loss_operations as entmax_loss
from softargmax.sparse import operations as o

RNG = np.random.default_rng(3)
Z = RNG.standard_normal((8, 40))
Z[1, :2] = math.inf
Z[2] = -math.inf
Z[3, 5:] = -math.inf
G = RNG.standard_normal((8, 40))
each = pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0, 3.0, np.linspace(1.0, 3.0, 8)[:, None]])


@each
def test_the_gradient_of_the_map(alpha: float | np.ndarray) -> None:
    p, tau = o.entmax(o.Scores(Z, alpha, None, UNIT, (1,)))
    i = o.EntmaxVjp(p, tau, alpha, G, (1,))
    found, wanted = o.entmax_vjp.first(i), o.entmax_vjp.define(i)
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-13 * np.abs(wanted).max())
    np.testing.assert_array_equal(found[1:3], 0)
    np.testing.assert_array_equal(wanted[1:3], 0)
    assert np.abs(found).max() > 0.1


@each
@pytest.mark.parametrize("masked", [False, True])
def test_the_gradient_of_the_loss(alpha: float | np.ndarray, masked: bool) -> None:
    target = np.array([0, 0, 1, 2, 30, -100, 39, 7])[:, None]
    where = np.sort(Z, axis=1)[:, -3:-2] > Z if masked else None  # the three largest scores are masked out
    i = entmax_loss.OfClasses(Z, target, alpha, where, UNIT, (1,), -100)
    loss, roots = entmax_loss.entmax_loss(i)
    np.testing.assert_allclose(loss, entmax_loss.entmax_loss.define(i, first=True), rtol=1e-13)
    of = entmax_loss.LossVjp(G[:, :1].copy(), roots, i)
    found, wanted = entmax_loss.entmax_loss_vjp.first(of), entmax_loss.entmax_loss_vjp.define(of)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(wanted[[2, 5] if masked else [1, 2, 5]], 0)
    assert np.abs(found).max() > 0.1
