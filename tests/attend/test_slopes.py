"""ALiBi slopes: from each score, a head subtracts its slope times the distance between query and key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.attend.test_values import BACKENDS, GROUPS, HEADS, KEYS, LENGTH, VALUES, WIDTH, inputs
from tests.attend.truth import attended
from tests.oracle.backends import Backend

import softargmax as s

pytestmark = pytest.mark.sanitize

SLOPES = 2.0 ** -np.arange(1, HEADS + 1)
DISTANCE = np.abs(np.arange(LENGTH)[:, None] + KEYS - LENGTH - np.arange(KEYS))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_slopes_equal_a_bias_by_distance(backend: Backend, causal: bool) -> None:
    """Slopes give the results of a bias of -slope times distance. The gradients agree, too.

    For causal queries, the bias is m [-(i - 1), .., -1, 0], with slope m, as in the ALiBi paper. The gradient of a
    slope is the sum of the bias's gradient times -distance.
    """
    g = np.random.default_rng(0).standard_normal((2, HEADS, LENGTH, VALUES))
    given = [backend.array(x, "float64") for x in (*inputs(), g)]
    bias, slopes = backend.array(-SLOPES[:, None, None] * DISTANCE), backend.array(SLOPES)
    with backend.using():
        found, wanted = (s.attention_vjp(*given, causal=causal, **x) for x in ({"slopes": slopes}, {"bias": bias}))
    np.testing.assert_allclose(
        backend.back(found.slopes), -(backend.back(wanted.bias) * DISTANCE).sum((-2, -1)), atol=1e-13
    )
    for x, y in zip(found[:3], wanted[:3], strict=True):
        np.testing.assert_allclose(backend.back(x), backend.back(y), atol=1e-14)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("shape", [(), (1,), (HEADS,), (2, 1), (2, HEADS)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_one_slope_or_one_per_head(backend: Backend, shape: tuple[int, ...], alpha: float) -> None:
    slopes = np.random.default_rng(1).uniform(0.1, 1.0, shape)
    q, k, v = (backend.array(x, "float64") for x in inputs())
    with backend.using():
        found = backend.back(s.attention(q, k, v, slopes=backend.array(slopes), alpha=alpha))
        if alpha == 1.0:
            back = s.attention_vjp(q, k, v, q[..., :VALUES], slopes=backend.array(slopes))
            assert tuple(back.slopes.shape) == shape
    for entry, own in enumerate(np.broadcast_to(slopes, (2, HEADS))):
        wanted, _ = attended(*(x[entry] for x in inputs()), slopes=own, alpha=alpha)
        np.testing.assert_allclose(found[entry], wanted, atol=1e-14)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_hidden_keys_have_no_effect(backend: Backend, bad: float) -> None:
    q, k, v = inputs()
    k[..., -1, :] = v[..., -1, :] = bad
    mask = np.tile(np.arange(KEYS) < KEYS - 1, (LENGTH, 1))
    mask[2] = False  # a query that sees no key
    own = {"mask": backend.array(mask), "slopes": backend.array(SLOPES), "softcap": 3.0}
    given = [backend.array(x, "float64") for x in (q, k, v)]
    with backend.using():
        found, back = s.attention(*given, **own), s.attention_vjp(*given, given[0][..., :VALUES], **own)
    np.testing.assert_allclose(
        backend.back(found), attended(q, k, v, mask=mask, slopes=SLOPES, softcap=3.0)[0], atol=1e-14
    )
    assert (backend.back(found)[:, :, 2] == 0).all()
    for x in (*back[:3], back.slopes):
        assert np.isfinite(backend.back(x)).all()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_a_nan_slope_affects_only_its_head(backend: Backend) -> None:
    q, k, v = (backend.array(x, "float64") for x in inputs())
    with backend.using():
        clean, found = (
            backend.back(s.attention(q, k, v, slopes=backend.array(x))) for x in (SLOPES, [*SLOPES[:3], np.nan])
        )
    np.testing.assert_array_equal(found[:, :3], clean[:, :3])
    assert np.isnan(found[:, 3]).all()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_distances_of_more_than_a_block(backend: Backend) -> None:
    """With 1500 keys, the output and the gradient of the slopes in float32 agree with the definition in float64."""
    rng = np.random.default_rng(2)
    q, k, v, g = (rng.standard_normal((1, 2, n, w)).astype("f4") for n, w in ((3, 8), (1500, 8), (1500, 4), (3, 4)))
    slopes = np.array([0.01, 0.0])
    with s.using("reference"):
        given = [x.astype(float) for x in (q, k, v, g)]
        wanted, back = s.attention(*given[:3], slopes=slopes), s.attention_vjp(*given, slopes=slopes)
    with backend.using():
        own = [backend.array(x) for x in (q, k, v, g)]
        np.testing.assert_allclose(backend.back(s.attention(*own[:3], slopes=backend.array(slopes))), wanted, atol=2e-6)
        found = s.attention_vjp(*own, slopes=backend.array(slopes))
    size = np.abs(back.slopes).max()
    np.testing.assert_allclose(backend.back(found.slopes), back.slopes, atol=1e-4 * size)


def test_learned_slopes_with_every_option() -> None:
    """For orders 1 and 1.5, the kernels give the gradients of the definition."""
    torch = pytest.importorskip("torch")
    options: dict[str, Any] = {"window": (3, 2), "softcap": 2.0, "key_lengths": [4, 7], "dropout": 0.3, "seed": 5}
    for alpha in (1.0, 1.5):
        found = []
        for implementation in ("native", "reference"):
            slopes = torch.tensor(SLOPES, requires_grad=True)
            bias = torch.zeros(1, KEYS, dtype=torch.float64, requires_grad=True)
            qkv = [torch.tensor(x, dtype=torch.float64) for x in inputs()]
            with s.using(implementation):
                s.attention(*qkv, slopes=slopes, bias=bias, alpha=alpha, **options).square().sum().backward()
            found.append((slopes.grad, bias.grad))
        for x, y in zip(*found, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-12)
            assert x.abs().max() > 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_half_precision_slope(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = (torch.tensor(x) for x in inputs())
    narrow = torch.tensor(SLOPES, dtype=getattr(torch, dtype), requires_grad=True)
    wide = torch.tensor(SLOPES, requires_grad=True)
    found, wanted = (s.attention(q, k, v, slopes=x) for x in (narrow, wide))
    assert torch.equal(found, wanted)  # equal, because the slopes are powers of two and lose no bit
    torch.autograd.backward([found.sum(), wanted.sum()])
    assert narrow.grad.dtype == narrow.dtype
    torch.testing.assert_close(narrow.grad.double(), wide.grad, rtol=1e-2, atol=1e-6)


def test_states_and_statistics_with_slopes() -> None:
    q, k, v = inputs()
    bias = -SLOPES[:, None, None] * DISTANCE
    for function, arrays in ((s.attention_state, (q, k, v)), (s.attention_stats, (q, k))):
        for x, y in zip(function(*arrays, slopes=SLOPES), function(*arrays, bias=bias), strict=True):
            np.testing.assert_allclose(x, y, atol=1e-5)


def test_empty_arrays_have_results() -> None:
    q = inputs()[0].astype(float)
    none = np.zeros((2, GROUPS, 0, WIDTH)), np.zeros((2, GROUPS, 0, VALUES))
    assert (s.attention(q, *none, slopes=SLOPES) == 0).all()
    found = s.attention_vjp(q[:, :, :0], *none, np.zeros((2, HEADS, 0, VALUES)), slopes=SLOPES)
    assert (found.slopes == 0).all()
