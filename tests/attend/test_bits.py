"""The bits of a query's result do not depend on other queries, on the number of threads or on the processor."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.native.test_isa import HERE

import softargmax as s

pytestmark = pytest.mark.sanitize

WORKER = str(Path(__file__).with_name("worker.py"))
B, H, G, L, K, D, V = 3, 4, 2, 37, 1300, 24, 40


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def arrays() -> tuple[np.ndarray, ...]:
    return draw(B, H, L, D), draw(B, G, K, D, seed=1), draw(B, G, K, V, seed=2)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window": (300, 5), "softcap": 2.0},
    {"sink": np.ones(H), "mask": np.arange(K) % 7 != 3},
    {"slopes": 0.01 * np.arange(H), "causal": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "causal", "window", "sink", "slopes"])
def test_a_query_alone_has_the_same_bits(arrays: tuple[np.ndarray, ...], options: dict[str, Any]) -> None:
    q, k, v = arrays
    whole, gradients = s.attention_with_lse(q, k, v, **options), s.attention_vjp(q, k, v, draw(B, H, L, V), **options)
    reverse = s.attention(q[::-1], k[::-1], v[::-1], **options)[::-1]
    np.testing.assert_array_equal(reverse, whole.output)
    for entry in range(B):
        one = s.attention_with_lse(q[entry], k[entry], v[entry], **options)
        np.testing.assert_array_equal(one.output, whole.output[entry])
        np.testing.assert_array_equal(one.lse, whole.lse[entry])
        back = s.attention_vjp(q[entry], k[entry], v[entry], draw(B, H, L, V)[entry], **options)
        for x, y in zip(back[:3], gradients[:3], strict=True):
            np.testing.assert_array_equal(x, y[entry])
    if "causal" in options or "window" in options:
        return  # a query that is passed alone would be at another position
    for i in (0, 11, 12, L - 1):
        row = {key: x[..., i, :] if np.ndim(x) > 2 else x for key, x in options.items()}
        np.testing.assert_array_equal(s.attention(q[:, :, i : i + 1], k, v, **row), whole.output[:, :, i : i + 1])


@pytest.mark.parametrize("length", [60, 1300])
def test_decoding_with_a_cache_has_the_same_bits(length: int) -> None:
    q, k, v = draw(H, length, D), draw(G, length, D, seed=1), draw(G, length, V, seed=2)
    for options in ({}, {"window": (100, 0), "sink": np.zeros(H)}, {"slopes": 0.3 ** np.arange(H)}):
        whole = s.attention(q, k, v, causal=True, **options)
        cache = [np.full_like(k, np.nan), np.full_like(v, np.nan)]
        for i in range(0, length, 1 if length < 100 else 97):
            cache[0][:, : i + 1], cache[1][:, : i + 1] = k[:, : i + 1], v[:, : i + 1]
            step = s.attention(q[:, i : i + 1], k[:, : i + 1], v[:, : i + 1], causal=True, **options)
            padded = s.attention(q[:, i : i + 1], *cache, key_lengths=i + 1, causal=True, **options)
            np.testing.assert_array_equal(step[:, 0], whole[:, i])
            np.testing.assert_array_equal(padded[:, 0], whole[:, i])


@pytest.mark.parametrize("window", [None, (700, 0), (5000, 0)])
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_decoding_at_other_orders_has_the_same_bits(alpha: float, window: Any) -> None:
    """Decoding one query at a time gives the bits of the full call. 9000 keys are more than two blocks of scores."""
    length, steps = (9000, 3) if window == (5000, 0) else (1500, 9)
    q, k, v = (1.5 * draw(1, length, 8, seed=i) for i in range(3))
    options: dict[str, Any] = {"causal": True, "alpha": alpha, "window": window, "sink": 0.3, "slopes": [1e-3]}
    last = s.attention(q[:, -64:], k, v, **options) if length > 2000 else s.attention(q, k, v, **options)
    for i in np.linspace(length - last.shape[1], length - 1, steps).astype(int):
        step = s.attention(q[:, i : i + 1], k[:, : i + 1], v[:, : i + 1], **options)
        np.testing.assert_array_equal(step[:, 0], last[:, i - length])


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 300), (2, 4, 5), (5, 1, 200)])
def test_bits_do_not_depend_on_the_number_of_threads(shape: tuple[int, int, int]) -> None:
    """Any number of threads gives the same bits, for few heads and for many heads.

    With few heads, threads share the queries or keys of a head. With many heads, each thread processes whole heads.
    """
    batch, heads, length = shape
    q, k, v, g = draw(batch, heads, length, D), draw(batch, heads, K, D), draw(batch, heads, K, V), draw(*shape, V)
    found = []
    try:
        for threads in (1, 2, 3, 16):
            s.set_num_threads(threads)
            found.append((*s.attention_with_lse(q, k, v), *s.attention_vjp(q, k, v, g)[:3]))
            slopes = {"slopes": np.linspace(0, 0.1, heads)}
            found[-1] += s.attention_with_lse(q, k, v, **slopes)
            found[-1] += tuple(x for x in s.attention_vjp(q, k, v, g, **slopes) if x is not None)
    finally:
        s.set_num_threads(0)
    for other in found[1:]:
        for x, y in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("causal", [{}, {"causal": False}, {"causal": True}], ids=["", "not causal", "causal"])
@pytest.mark.parametrize(("keys", "values"), [(K, V), (L, D)], ids=["of other sizes", "of one shape"])
def test_the_common_call_equals_the_call_with_a_scale(causal: dict[str, bool], keys: int, values: int) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = draw(2, L, D), draw(2, keys, D, seed=1), draw(2, keys, values, seed=2)
    expected = s.attention(q, k, v, scale=1 / np.sqrt(D), **causal)
    assert np.array_equal(s.attention(q, k, v, **causal), expected)
    assert np.array_equal(s.attention(*map(torch.from_numpy, (q, k, v)), **causal).numpy(), expected)
    assert np.array_equal(s.attention_with_lse(q, k, v, **causal).output, expected)


def test_bits_do_not_depend_on_strides_and_libraries(arrays: tuple[np.ndarray, ...]) -> None:
    wanted = s.attention(*arrays)
    turned = [np.ascontiguousarray(x.transpose(2, 0, 3, 1)).transpose(1, 3, 0, 2) for x in arrays]
    np.testing.assert_array_equal(s.attention(*turned), wanted)
    apart = [np.repeat(x, 2, axis=-1)[..., ::2] for x in arrays]
    np.testing.assert_array_equal(s.attention(*apart), wanted)
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(s.attention(*map(torch.from_numpy, arrays)).numpy(), wanted)


LAYOUTS: dict[str, Any] = {
    "contiguous": lambda x: x,
    "of wider rows": lambda x: np.concatenate([x, x], -1)[..., : x.shape[-1]],
    "transposed": lambda x: np.ascontiguousarray(np.moveaxis(x, -1, 0)).transpose(1, 2, 0),
    "reversed": lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
    "float16": lambda x: x.astype(np.float16),
    "float64": lambda x: x.astype(np.float64),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("width", "values"), [(64, 64), (40, 128), (17, 24)])
def test_few_queries_have_the_bits_of_many(layout: str, width: int, values: int) -> None:
    """The bits do not depend on whether keys and values are packed.

    Keys used by at most 12 queries, and values used by at most 96 queries, are not packed if their numbers are
    contiguous. (Keys in float64 are always packed.) With 100 queries, both are packed.
    """
    q, k, v = draw(2, 100, width), draw(2, 561, width, seed=1), draw(2, 561, values, seed=2)
    q, k, v = q.astype(LAYOUTS[layout](k).dtype), LAYOUTS[layout](k), LAYOUTS[layout](v)
    many = s.attention(q, k, v)
    for rows in (1, 4, 5, 12, 13):
        np.testing.assert_array_equal(s.attention(q[:, :rows], k, v), many[:, :rows])


@functools.lru_cache
def worker(isa: str) -> dict[str, Any]:
    environment = {**os.environ, "SOFTARGMAX_ISA": isa}
    done = subprocess.run(
        [sys.executable, WORKER], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return json.loads(done.stdout)


@pytest.mark.parametrize("isa", HERE)
def test_every_instruction_set_stays_within_its_buffers(isa: str) -> None:
    """All instruction sets give the same bits, and no kernel accesses memory outside its buffers.

    Each buffer ends or begins at a protected page, so an access outside the buffer would crash the worker.
    """
    best, forced = worker(HERE[0]), worker(isa)
    assert forced["isa"] == isa
    assert len(best["digests"]) > 250
    assert not {name for name, x in forced["digests"].items() if best["digests"][name] != x}
