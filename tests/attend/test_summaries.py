"""States of parts of the keys merge to the state of all keys. Statistics equal those computed from a stored p."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from tests.attend.test_values import BACKENDS, OPTIONS, inputs
from tests.oracle.backends import Backend

import softargmax as s

pytestmark = pytest.mark.sanitize


def draw(keys: int, width: int = 16) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(keys)
    return tuple(rng.standard_normal((2, n, width)).astype(np.float32) for n in (5, keys, keys))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("cuts", [(1,), (600,), (512, 1024), (7, 8, 9, 1200)])
def test_parts_merge_to_all_keys(backend: Backend, cuts: tuple[int, ...]) -> None:
    """Merging the states of parts of the keys gives the output and lse of all keys.

    Each state has a relative rounding error of 2^-24. A merge adds the errors of two states.
    """
    q, k, v = draw(1300)
    z = np.einsum("hqd,hkd->hqk", q.astype(float), k.astype(float)) / 4
    p = s.softmax(z)
    truth, lse = p @ v.astype(float), s.logsumexp(z)
    with backend.using():
        whole = s.attention_with_lse(*map(backend.array, (q, k, v)))
        own = max(abs(backend.back(whole.output) - truth).max(), 2.0**-24)
        states = [
            s.attention_state(*map(backend.array, (q, k[:, a:b], v[:, a:b])))
            for a, b in itertools.pairwise((0, *cuts, 1300))
        ]
        for order in (states, states[::-1]):
            found = order[0].merge(*order[1:]).finalize()
            assert abs(backend.back(found.output) - truth).max() <= 2 * own + 2.0**-22
            np.testing.assert_allclose(backend.back(found.lse), lse, rtol=2.0**-21)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_states_of_queries_without_keys(backend: Backend) -> None:
    q, k, v = map(backend.array, draw(40))
    with backend.using():
        none = s.attention_state(q, k, v, mask=backend.array(np.zeros((5, 40), bool)))
        some = s.attention_state(q, k, v)
        both = some.merge(none).finalize()
    assert (backend.back(none.m) == -math.inf).all()
    assert (backend.back(none.r) == -1).all()
    np.testing.assert_array_equal(backend.back(both.output), backend.back(some.finalize().output))
    assert (backend.back(none.finalize().output) == 0).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_states_of_half_precision_are_float32(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    state = s.attention_state(*(torch.tensor(x).to(getattr(torch, dtype)) for x in draw(40)))
    assert {x.dtype for x in state} == {torch.float32}


NAMES = [(), *((name,) for name in OPTIONS), ("causal", "sink", "alpha")]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("names", NAMES, ids="+".join)
def test_statistics(backend: Backend, names: tuple[str, ...]) -> None:
    """attention_stats gives the entropy and key masses of p.

    Attention with unit vectors as values returns p. The probability of the sink is 1 minus the sum of this p.
    """
    q, k, _ = inputs()
    options: dict[str, Any] = {key: value for name in names for key, value in OPTIONS[name].items()}
    own = {key: backend.array(x) if isinstance(x, np.ndarray) else x for key, x in options.items()}
    ones = np.broadcast_to(np.eye(k.shape[-2]), (*k.shape[:-1], k.shape[-2])).copy()
    with backend.using():
        q_, k_ = (backend.array(x, "float64") for x in (q, k))
        p = backend.back(s.attention(q_, k_, backend.array(ones, "float64"), **own))
        found = s.attention_stats(q_, k_, **own)
        top, entropy, mass = map(backend.back, found)
    shares = [p]
    if "sink" in options:
        shares.append(1 - p.sum(-1, keepdims=True))
    whole = np.concatenate(shares, -1)
    inside = whole > 1e-300
    np.testing.assert_allclose(entropy, -(whole * np.log(np.where(inside, whole, 1))).sum(-1), atol=1e-12)
    np.testing.assert_allclose(mass, p.reshape(2, 2, 2, 5, 7).sum((2, 3)), atol=1e-12)
    assert top.shape == q.shape[:-1]
    if not names:
        z = np.einsum("bhqd,bhkd->bhqk", q.astype(float), np.repeat(k, 2, 1).astype(float)) / math.sqrt(6)
        np.testing.assert_allclose(top, z.max(-1), rtol=1e-14)


def test_errors() -> None:
    q, k, v = draw(9)
    with pytest.raises(TypeError, match="alpha"):
        s.attention_state(q, k, v, alpha=1.5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="sink"):
        s.attention_state(q, k, v, sink=0.0)  # type: ignore[call-arg]
    with pytest.raises(
        ValueError,
        match=r"^k: expected shape \(..., heads, keys, 16\) with broadcastable leading axes, .*got \(2, 9, 3\)",
    ):
        s.attention_stats(q, k[..., :3])
