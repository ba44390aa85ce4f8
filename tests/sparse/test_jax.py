"""JAX traces the reference under jit, grad and vmap. All edge rows are in one matrix, so JAX compiles only once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.sparse.test_edges import ROWS

import softargmax as s

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

LENGTH = max(len(row.z) for row in ROWS)
ALPHAS = (1.0, 1.5, 2.0, 3.0)
TABLE = [row for row in ROWS if not 0 < min((abs(x) for x in row.z if x), default=1.0) < 1e-37]


def table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return z, mask and p of the edge rows in TABLE. Shorter rows are padded with NaN outside the mask."""
    z, mask, p = (np.full((len(TABLE), LENGTH), x) for x in (math.nan, 0.0, 0.0))
    for i, row in enumerate(TABLE):
        n = len(row.z)
        z[i, :n], p[i, :n], mask[i, :n] = row.z, row.p, row.where or 1.0
    return z.astype(np.float32), mask > 0, p


def mapped(z: Any, alpha: Any, mask: Any, g: Any) -> list[np.ndarray]:
    """Return p, and the gradients of <g, p> with respect to z and alpha."""
    z, alpha, mask, g = map(jnp.asarray, (z, alpha, mask, g))
    p, pull = jax.vjp(lambda z, a: s.entmax(z, a, where=mask), z, alpha)
    return list(map(np.asarray, (p, *pull(g))))


@pytest.mark.slow
def test_edge_rows() -> None:
    """All edge rows, in one matrix, have their listed values and gradients at every order."""
    wrong = []
    once = table()
    z, mask, wanted = (np.concatenate([x] * len(ALPHAS)) for x in once)
    orders = np.repeat(np.array(ALPHAS, np.float32), len(TABLE))
    g = np.where(wanted != 0, np.arange(1.0, LENGTH + 1), math.nan).astype(np.float32)
    p, gz, ga = mapped(z, orders, mask, g)
    for i, row in enumerate(TABLE * len(ALPHAS)):
        inside = wanted[i] > 0
        mean = g[i][inside].mean() if inside.any() else 0.0
        slope = np.where(inside, wanted[i], 1) ** (2 - orders[i]) * (g[i] - mean)
        level = row.constant or not inside.any()
        right = {
            "p": p[i] == pytest.approx(wanted[i], rel=1e-6, nan_ok=True),
            "outside": (gz[i][wanted[i] == 0] == 0).all(),
            "z": row.support < 0
            or gz[i][inside] == pytest.approx((0 if level else 1) * slope[inside], rel=1e-4, abs=1e-6),
            "alpha": row.support < 0 or ga[i] == pytest.approx(0, abs=1e-5),  # equal scores have equal p at every order
        }
        wrong += [(row.name, float(orders[i]), name) for name, holds in right.items() if not holds]
    assert not wrong


@pytest.mark.slow
def test_compiled_and_batched() -> None:
    """Results under jit and vmap agree with the native kernel. Invalid orders, which are not checked, give NaN rows."""
    z = (3 * np.random.default_rng(9).standard_normal((3, 7, 5))).astype(np.float32)
    orders = np.array([1.0, 1.3, 1.5, 2.5, 0.0, math.nan, math.inf], np.float32)
    batched = np.asarray(jax.jit(jax.vmap(s.entmax, (0, None)))(jnp.asarray(z), jnp.asarray(orders)))
    with s.using("native"):
        wanted = s.entmax(z[:, :4], np.broadcast_to(orders[:4], (3, 4)))
    assert batched[:, :4] == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    assert abs(batched[:, :4].sum(-1) - 1).max() <= 2e-6
    assert np.isnan(batched[:, 4:]).all()
