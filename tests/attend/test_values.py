"""Attention agrees with brute force, for every option and every pair of options, with NumPy and torch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from tests.attend.truth import attended
from tests.oracle.backends import Backend

import softargmax as s
from softargmax.core import dispatch

pytestmark = pytest.mark.sanitize

INF, NAN = math.inf, math.nan
BATCH, HEADS, GROUPS, LENGTH, KEYS, WIDTH, VALUES = 2, 4, 2, 5, 7, 6, 3
SHAPE = (BATCH, HEADS, LENGTH, KEYS)
_rng = np.random.default_rng(3)
OPTIONS: dict[str, dict[str, Any]] = {
    "scale": {"scale": _rng.uniform(0.2, 1.5, (HEADS, LENGTH))},
    "causal": {"causal": True},
    "window": {"window": (2, 1)},
    "mask": {"mask": _rng.random((BATCH, 1, LENGTH, KEYS)) < 0.6},
    "bias": {"bias": np.where(_rng.random(SHAPE) < 0.2, -INF, _rng.standard_normal(SHAPE))},
    "softcap": {"softcap": 0.7},
    "sink": {"sink": _rng.standard_normal(HEADS)},
    "alpha": {"alpha": np.array([1.0, 0.6, 1.5, 2.0])[:, None]},
    "slopes": {"slopes": _rng.uniform(-0.5, 1.0, HEADS)},
    "lengths": {"key_lengths": np.array([3, 7])},
}
PAIRS = [(), *((x,) for x in OPTIONS), *itertools.combinations(OPTIONS, 2)]
BACKENDS = tuple(Backend(library, name) for library in ("numpy", "torch") for name in ("reference", "native"))
if dispatch.INTERPRETED:  # `make test-triton`
    BACKENDS = (Backend("torch", "triton"),)


def inputs() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(1)
    shapes = (BATCH, HEADS, LENGTH, WIDTH), (BATCH, GROUPS, KEYS, WIDTH), (BATCH, GROUPS, KEYS, VALUES)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)


@pytest.mark.parametrize("names", PAIRS, ids="+".join)
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_every_pair_of_options(backend: Backend, names: tuple[str, ...]) -> None:
    options = {key: value for name in names for key, value in OPTIONS[name].items()}
    wanted, lse = attended(*inputs(), **options)
    most = max(1.0, abs(inputs()[2]).max())
    own = {key: backend.array(x) if isinstance(x, np.ndarray) else x for key, x in options.items()}
    for dtype, slack in (("float64", 1e-14), ("float32", 2.0**-24 if backend.implementation == "reference" else 1e-6)):
        qkv = [backend.array(x, dtype) for x in inputs()]
        with backend.using():
            found = backend.back(s.attention(*qkv, **own))
            assert abs(found - wanted).max() <= slack * most
            if "alpha" not in names:
                pair = s.attention_with_lse(*qkv, **own)
                np.testing.assert_array_equal(backend.back(pair.output), found)
                np.testing.assert_allclose(backend.back(pair.lse), lse, rtol=2 * slack, atol=2 * slack)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_a_query_without_keys(backend: Backend) -> None:
    q, k, v = (backend.array(x) for x in inputs())
    with backend.using():
        found = s.attention_with_lse(q, k, v, key_lengths=backend.array([0, 7]))
        drained = s.attention_with_lse(q, k, v, key_lengths=backend.array([0, 7]), sink=backend.array([1.5]))
    assert (backend.back(found.output)[0] == 0).all()
    assert (backend.back(found.lse)[0] == -INF).all()
    assert (backend.back(drained.output)[0] == 0).all()
    assert (backend.back(drained.lse)[0] == 1.5).all()


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_hidden_keys_have_no_effect(backend: Backend, bad: float) -> None:
    q, k, v = inputs()
    mask = np.arange(KEYS) < KEYS - 1
    clean = attended(q, k, v, mask=mask)[0]
    for array in (k, v):
        array[:, :, -1] = bad
    torch = backend.library == "torch"
    qkv = [backend.array(x, "float64") for x in (q, k, v)]
    if torch:
        qkv = [x.requires_grad_() for x in qkv]
    with backend.using():
        found = s.attention(*qkv, mask=backend.array(mask))
    np.testing.assert_allclose(backend.back(found), clean, atol=1e-14)
    if torch:
        found.sum().backward()
        for x in qkv:
            assert x.grad.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_a_nan_affects_only_queries_that_see_it(backend: Backend) -> None:
    q, k, v = inputs()
    clean = attended(q, k, v, causal=True)[0]
    k[:, :, -1] = NAN
    with backend.using():
        found = backend.back(s.attention(*(backend.array(x, "float64") for x in (q, k, v)), causal=True))
    np.testing.assert_allclose(found[:, :, :-1], clean[:, :, :-1], atol=1e-14)
    assert np.isnan(found[:, :, -1]).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")  # torch's forward mode warns
def test_gradients_agree_with_finite_differences() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = (torch.tensor(x[:1, :, :3, :2] * 0.5, dtype=torch.float64, requires_grad=True) for x in inputs())
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    sink = torch.zeros(HEADS, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    scale = torch.full((HEADS, 3), 0.7, dtype=torch.float64, requires_grad=True)

    def both(q: Any, k: Any, v: Any, sink: Any, bias: Any, scale: Any) -> Any:
        return tuple(s.attention_with_lse(q, k, v, sink=sink, bias=bias, scale=scale, softcap=1.3, mask=mask))

    assert torch.autograd.gradcheck(both, (q, k, v, sink, bias, scale), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(both, (q, k, v, sink, bias, scale))
    alpha = torch.tensor([[1.4], [0.4], [1.4], [0.9]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: s.attention(*x[:3], alpha=x[3], causal=True), (q, k, v, alpha))


@pytest.mark.slow
def test_jax_gradients_with_hidden_keys() -> None:
    jax = pytest.importorskip("jax")
    q, k, v = inputs()
    k[:, :, -1], v[:, :, -1] = NAN, INF
    mask = jax.numpy.arange(KEYS) < KEYS - 1
    found = jax.jit(jax.grad(lambda *x: s.attention(*x, mask=mask, sink=0.0).sum(), (0, 1, 2)))(q, k, v)
    assert all(np.isfinite(x).all() for x in found)
    wanted, _ = attended(q, k, v, mask=np.asarray(mask), sink=0.0)
    np.testing.assert_allclose(jax.jit(lambda *x: s.attention(*x, mask=mask, sink=0.0))(q, k, v), wanted, atol=1e-6)
