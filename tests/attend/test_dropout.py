"""Dropout depends only on (seed, stream, head, query, key), has the given rate, and is the same in gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.attend.test_values import BACKENDS
from tests.oracle.backends import Backend

import softargmax as s

pytestmark = pytest.mark.sanitize

B, H, L, K, D = 3, 4, 40, 600, 8


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def kept(backend: Backend, keys: int = K, **options: object) -> np.ndarray:
    """Return the factor by which dropout multiplies each p: 0 or 1 / (1 - rate).

    With unit vectors as values, the output of attention is p. The factor is p with dropout, divided by p without it.
    """
    q, k = draw(B, H, L, D), draw(B, H, K, D, seed=1)[:, :, :keys]
    v = np.broadcast_to(np.eye(keys, dtype=np.float32), (B, H, keys, keys)).copy()
    with backend.using():
        given = [backend.array(x) for x in (q, k, v)]
        p, dropped = s.attention(*given), s.attention(*given, **options)
    return backend.back(dropped) / backend.back(p)


@pytest.mark.slow
def test_every_backend_drops_the_same_entries() -> None:
    found = [kept(backend, dropout=0.3, seed=7) for backend in BACKENDS]
    for other in found:
        np.testing.assert_allclose(other, found[0], rtol=1e-5)
    values = np.unique(found[0].round(4))
    np.testing.assert_allclose(values, [0, 1 / 0.7], rtol=1e-4)
    jnp = pytest.importorskip("jax.numpy")
    q, k, v = (jnp.asarray(draw(1, 2, n, D, seed=i)) for i, n in enumerate((5, 9, 9)))
    wanted = s.attention(*map(np.asarray, (q, k, v)), dropout=0.5, seed=3)
    np.testing.assert_allclose(s.attention(q, k, v, dropout=0.5, seed=3), wanted, atol=1e-5)


@pytest.mark.no_sanitize  # the other tests run the same code under the sanitizers
def test_the_share_of_dropped_entries() -> None:
    """The fraction of dropped entries is within four standard errors of the rate, over all heads and in each head."""
    for rate in (0.1, 0.5, 0.9):
        dropped = kept(BACKENDS[0], dropout=rate, seed=11) == 0
        for share, count in ((dropped.mean(), dropped.size), *((x.mean(), x.size) for x in dropped[0])):
            assert abs(share - rate) < 4 * math.sqrt(rate * (1 - rate) / count)
    neighbours = (dropped[..., 1:] & dropped[..., :-1]).mean()
    assert abs(neighbours - 0.81) < 4 * math.sqrt(0.81 * 0.19 / dropped.size)


def test_seed_and_stream_change_the_mask() -> None:
    whole = kept(BACKENDS[1], dropout=0.4, seed=5) == 0
    assert (whole != (kept(BACKENDS[1], dropout=0.4, seed=6) == 0)).mean() > 0.3
    for a, b in ((whole[0], whole[1]), (whole[:, 0], whole[:, 1]), (whole[:, :, 0], whole[:, :, 1])):
        assert (a != b).mean() > 0.3
    np.testing.assert_array_equal(kept(BACKENDS[1], keys=70, dropout=0.4, seed=5) == 0, whole[..., :70])
    streams = kept(BACKENDS[1], dropout=0.4, seed=5, stream=np.array([2, 0, 1])) == 0
    np.testing.assert_array_equal(streams, whole[[2, 0, 1]])


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_gradients(backend: Backend) -> None:
    """The gradients use the dropout mask of the output.

    The output is linear in v, so <g, output> equals <dv, v>. Finite differences confirm the gradients of q and k.
    """
    q, k, v, g = (draw(2, 2, n, D, seed=i).astype(float) for i, n in enumerate((5, 9, 9, 5)))
    options = {"dropout": 0.5, "seed": 2, "sink": 0.3, "softcap": 3.0}
    with backend.using():
        f = lambda *x: backend.back(s.attention(*map(backend.array, x), **options))  # noqa: E731
        found = s.attention_vjp(*map(backend.array, (q, k, v, g)), **options)
    assert (g * f(q, k, v)).sum() == pytest.approx((backend.back(found.v) * v).sum(), rel=1e-12)
    step = 1e-6
    for x, gradient, i in ((q, found.q, 0), (k, found.k, 1)):
        moved = [[q, k, v], [q, k, v]]
        direction = draw(*x.shape, seed=77)
        moved[0][i], moved[1][i] = x + step * direction, x - step * direction
        slope = (g * (f(*moved[0]) - f(*moved[1]))).sum() / (2 * step)
        assert slope == pytest.approx((backend.back(gradient) * direction).sum(), rel=1e-6)


def test_torch_differentiates_with_the_same_mask() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = (
        torch.tensor(draw(1, 2, n, 4, seed=i), dtype=torch.float64, requires_grad=True) for i, n in enumerate((3, 5, 5))
    )
    for alpha in (1.0, 1.5):
        f = lambda *x, a=alpha: s.attention(*x, dropout=0.4, seed=1, alpha=a)  # noqa: E731
        assert torch.autograd.gradcheck(f, (q, k, v))
    torch.manual_seed(3)
    first, second = s.attention(q, k, v, dropout=0.5), s.attention(q, k, v, dropout=0.5)
    torch.manual_seed(3)
    assert torch.equal(first, s.attention(q, k, v, dropout=0.5))
    assert not torch.equal(first, second)


@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")  # torch's forward mode warns
def test_forward_mode_has_the_digits_of_the_dtype() -> None:
    """The tangent along v equals the output in float64: the definition does not round 1 / (1 - rate) to float32."""
    torch = pytest.importorskip("torch")
    q, k, v = (torch.tensor(draw(1, 2, n, 4, seed=i), dtype=torch.float64) for i, n in enumerate((3, 5, 5)))
    output, tangent = torch.func.jvp(lambda v: s.attention(q, k, v, dropout=0.3, seed=1), (v,), (v,))
    torch.testing.assert_close(tangent, output, rtol=1e-14, atol=1e-15)


def test_dropout_of_sparse_maps() -> None:
    q, k, v = draw(2, 2, 30, D), draw(2, 2, 700, D, seed=1), draw(2, 2, 700, 5, seed=2)
    found = []
    for backend in BACKENDS[:2]:
        with backend.using():
            found.append(s.attention(q, k, v, alpha=1.5, dropout=0.5, seed=4, causal=True, window=(300, 0)))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_errors() -> None:
    q = draw(2, 1, 3, 4)
    for rate, error in ((1.0, ValueError), (-0.1, ValueError), (math.nan, ValueError), ("1", TypeError)):
        with pytest.raises(error, match=r"^dropout: "):
            s.attention(q, q, q, dropout=rate)
    with pytest.raises(ValueError, match=r"^stream: expected the rows' shape, \(2,\), got \(3,\)"):
        s.attention(q, q, q, dropout=0.5, seed=1, stream=[1, 2, 3])
    with pytest.raises(
        ValueError, match=r"^seed: expected the seed of the forward call \(because dropout is not 0\), got None"
    ):
        s.attention_vjp(q, q, q, q, dropout=0.5)
    with pytest.raises(TypeError, match=r"^seed: "):
        s.attention(q, q, q, dropout=0.5, seed=1.5)
