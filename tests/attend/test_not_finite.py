"""NaN and inf affect only the results and gradients of queries that see them. Other queries keep their bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.attend.test_values import BACKENDS
from tests.oracle.backends import Backend

import softargmax as s

INF, NAN = math.inf, math.nan
NATIVE = [backend for backend in BACKENDS if backend.implementation == "native"]


def draw(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("backend", NATIVE, ids=str)
@pytest.mark.parametrize("odd", ["q", "k", "v", "large"])
def test_other_queries_keep_their_bits(backend: Backend, odd: str) -> None:
    """A NaN, or a number too large for the kernel, changes no bit of the queries that do not depend on it."""
    q, k, v = draw(2, 4, 30, 8), draw(2, 2, 600, 8, seed=1), draw(2, 2, 600, 5, seed=2)
    options: dict[str, Any] = {"causal": True, "softcap": 30.0, "sink": np.arange(4.0), "bias": draw(30, 600, seed=3)}
    own = {key: backend.array(x) if isinstance(x, np.ndarray) else x for key, x in options.items()}
    bad = [x.copy() for x in (q, k, v)]
    if odd == "large":
        own.pop("softcap")
        bad[0][1, 0, 7] = 1e9
    else:
        bad["qkv".index(odd)][(1, 0, 590 if odd != "q" else 7)] = NAN
    with backend.using():
        clean, found = (s.attention_with_lse(*map(backend.array, x), **own) for x in ((q, k, v), bad))
    for x, y in zip(map(backend.back, clean), map(backend.back, found), strict=True):
        np.testing.assert_array_equal(x[0], y[0])
        if odd in ("q", "large"):
            same = np.ones((4, 30), bool)
            same[0, 7] = False
            np.testing.assert_array_equal(x[1][same], y[1][same])
        else:
            np.testing.assert_array_equal(x[1, 2:], y[1, 2:])  # heads of the other group of keys
            np.testing.assert_array_equal(x[1, :2, :12], y[1, :2, :12])
    if odd != "large":
        assert np.isnan(backend.back(found.output)[1]).any()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_scores_that_overflow(backend: Backend) -> None:
    q = backend.array([[[1e20]]])
    for sign in (1.0, -1.0):
        k, v = backend.array([[[sign * 1e20], [sign * 1e20]]]), backend.array([[[1.0], [2.0]]])
        with backend.using():
            assert float(backend.back(s.attention(q, k, v, scale=1.0))[0, 0, 0]) == 1.5
    with backend.using():
        k = backend.array([[[-1e20], [1e-20]]])
        found = s.attention(q, k, backend.array([[[1.0], [2.0]]]), scale=1.0, softcap=5.0)
    shares = s.softmax([-5.0, 5 * math.tanh(0.2)])
    assert float(backend.back(found)[0, 0, 0]) == pytest.approx(float(shares @ [1.0, 2.0]), abs=1e-6)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_an_incoming_gradient_reaches_only_visible_keys(backend: Backend) -> None:
    q, k, v, g = draw(1, 2, 4, 8), draw(1, 2, 4, 8, seed=1), draw(1, 2, 4, 3, seed=2), draw(1, 2, 4, 3, seed=4)
    g[0, 0, 0] = NAN
    with backend.using():
        found = s.attention_vjp(*map(backend.array, (q, k, v, g)), causal=True)
    dv = backend.back(found.v)
    assert np.isnan(dv[0, 0, 0]).all()
    assert np.isfinite(dv[0, 0, 1:]).all()
    assert np.isfinite(dv[0, 1]).all()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_query_without_keys_has_zero_gradient(backend: Backend, bad: float) -> None:
    q, k, v, g = draw(1, 2, 3, 8), draw(1, 2, 4, 8, seed=1), draw(1, 2, 4, 3, seed=2), draw(1, 2, 3, 3, seed=4)
    q[0, 0, 0] = bad
    mask = np.ones((3, 4), bool)
    mask[0] = False
    with backend.using():
        given = [backend.array(x) for x in (q, k, v, g, mask, np.full((2, 3), 0.3))]
        found = s.attention_vjp(*given[:4], mask=given[4], scale=given[5])
    for x in (found.q, found.k, found.v, found.scale):
        assert np.isfinite(backend.back(x)).all()
    assert (backend.back(found.q)[0, :, 0] == 0).all()


@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_masked_key_does_not_affect_the_gradient_of_scale(alpha: float, bad: float) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = (torch.tensor(draw(1, 1, n, 4, seed=i)) for i, n in enumerate((2, 3, 3)))
    k[0, 0, 2] = bad
    scale = torch.ones(1, 2, requires_grad=True)
    s.attention(q, k, v, scale=scale, mask=torch.tensor([True, True, False]), alpha=alpha).sum().backward()
    assert scale.grad.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("window", [(0, 2**63 - 1), (2**63 - 1, 2**63 - 1), (2**62, None)], ids=str)
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_windows_beyond_every_key(backend: Backend, window: Any, alpha: float) -> None:
    q, k, v = (backend.array(draw(1, 2, n, 4, seed=i)) for i, n in enumerate((6, 3, 3)))
    wide = tuple(side if side is None else min(side, 1000) for side in window)
    with backend.using():
        found, wanted = (backend.back(s.attention(q, k, v, window=w, alpha=alpha)) for w in (window, wide))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_a_half_precision_sink(alpha: float) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = (torch.tensor(draw(1, 2, n, 8, seed=i)).bfloat16() for i, n in enumerate((3, 5, 5)))
    sink = torch.tensor([0.5, -1.0])
    found = s.attention(q, k, v, sink=sink.bfloat16(), alpha=alpha)
    assert torch.equal(found, s.attention(q, k, v, sink=sink, alpha=alpha))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_empty_arrays_have_results(backend: Backend, alpha: float) -> None:
    a = lambda *shape: backend.array(np.ones(shape, np.float32))  # noqa: E731
    with backend.using():
        for shape, width in (((1, 2, 3, 0), 5), ((1, 2, 3, 4), 0), ((0, 2, 3, 4), 5), ((1, 2, 0, 4), 5)):
            k, v = a(*shape[:2], 6, shape[3]), a(*shape[:2], 6, width)
            assert backend.back(s.attention(a(*shape), k, v, alpha=alpha)).shape == (*shape[:3], width)
            stats = s.attention_stats(a(*shape), k, alpha=alpha)
            assert backend.back(stats.key_mass).shape == (*shape[:2], 6)
        stats = s.attention_stats(a(1, 2, 3, 4), a(1, 2, 0, 4), alpha=alpha)
        assert (backend.back(stats.max_score) == -INF).all()
        assert (backend.back(stats.entropy) == 0).all()
        pages = s.attention_paged(a(2, 2, 1, 4), a(0, 8, 1, 4), a(0, 8, 1, 3), [[0], [0]], [0, 0], alpha=alpha)
        assert (backend.back(pages) == 0).all()
        gradients = s.attention_vjp(a(1, 2, 0, 8), a(1, 2, 5, 8), a(1, 2, 5, 8), a(1, 2, 0, 8))
        assert (backend.back(gradients.k) == 0).all()
        assert (backend.back(gradients.v) == 0).all()


@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")  # torch's forward mode warns
def test_jacobians() -> None:
    torch = pytest.importorskip("torch")
    q, k, v, bias = (
        torch.tensor(draw(*n, seed=i, dtype="float64")) for i, n in enumerate([(2, 3, 4), (2, 5, 4), (2, 5, 2), (3, 5)])
    )
    f = lambda q: s.attention(q, k, v, bias=bias)  # noqa: E731
    wanted = torch.autograd.functional.jacobian(f, q)
    torch.testing.assert_close(torch.func.jacrev(f)(q), wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.func.jacfwd(f)(q), wanted, rtol=1e-12, atol=1e-12)


def test_the_gradient_to_a_scale_has_its_dtype() -> None:
    scale = np.full((2, 3), 0.3, np.float32)
    assert (
        s.attention_vjp(draw(2, 3, 4), draw(2, 5, 4), draw(2, 5, 4), draw(2, 3, 4), scale=scale).scale.dtype
        == np.float32
    )
