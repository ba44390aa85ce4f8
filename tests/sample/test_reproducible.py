"""The draw of a row depends only on the row's scores, options and stream, and on the seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.oracle.backends import BACKENDS, Backend
from tests.sample.tracing import traced

import softargmax
from softargmax.core import _native

pytestmark = pytest.mark.sanitize

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "filters": {"top_k": 200, "top_p": 0.9, "min_p": 0.001, "temperature": 1.5},
    "top_p": {"top_p": 0.95},
    "without replacement": {"num_samples": 7, "replace": False},
    "many": {"num_samples": 5},
}
ROWS, CLASSES = 1024, 700


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    softargmax.set_num_threads(0)


def scores(dtype: str = "float32") -> np.ndarray:
    rng = np.random.default_rng(5)
    return (rng.standard_normal((ROWS, CLASSES)) * rng.choice([0.1, 1, 4], (ROWS, 1))).astype(dtype)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_batches_orders_threads_strides(case: str, dtype: str) -> None:
    z, options = scores(dtype), {**CASES[case], "seed": 77}
    whole = softargmax.categorical_with_logprob(z, **options)
    streams = np.arange(ROWS)

    def same(found: Any, rows: Any) -> bool:
        return all(np.array_equal(a, b[rows]) for a, b in zip(found, whole, strict=True))

    for i in (0, 1, 511, ROWS - 1):
        assert same(softargmax.categorical_with_logprob(z[i], stream=streams[i], **options), i)
    order = np.random.default_rng(0).permutation(ROWS)
    assert same(softargmax.categorical_with_logprob(z[order], stream=streams[order], **options), order)
    for threads in (1, 2, 3):
        softargmax.set_num_threads(threads)
        assert same(softargmax.categorical_with_logprob(z, **options), slice(None))
    assert same(softargmax.categorical_with_logprob(np.asfortranarray(z), **options), slice(None))
    assert same(softargmax.categorical_with_logprob(np.repeat(z, 3, axis=1)[:, ::3], **options), slice(None))
    assert same(
        softargmax.categorical_with_logprob(z[::-1][::-1], where=np.ones(CLASSES, bool), **options), slice(None)
    )
    deep = softargmax.categorical_with_logprob(z.reshape(4, 256, CLASSES), **options)
    assert np.array_equal(deep.index.reshape(whole.index.shape), whole.index)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_backends_draw_the_same(backend: Backend, case: str) -> None:
    """All backends but JAX draw the same classes. JAX computes in float32, and at least 97 % of its draws agree."""
    z, options = scores()[:100], {**CASES[case], "seed": 123}
    expected = softargmax.categorical(z, **options)
    backend.array([0.0])
    with backend.using():
        found = backend.back(traced(backend, lambda z: softargmax.categorical(z, **options))(backend.array(z)))
    assert found.dtype == (np.int32 if backend.library == "jax" else np.int64)
    assert (found == expected).mean() >= (0.97 if backend.library == "jax" else 1.0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_halves_of_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    z = torch.from_numpy(scores()).to(getattr(torch, dtype))
    for options in CASES.values():
        assert torch.equal(
            softargmax.categorical(z, seed=1, **options), softargmax.categorical(z.float(), seed=1, **options)
        )


def test_bfloat16_of_numpy() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    z = scores()[:50].astype(bfloat16)
    for options in CASES.values():
        wide = z.astype(np.float32)
        assert np.array_equal(
            softargmax.categorical(z, seed=1, **options), softargmax.categorical(wide, seed=1, **options)
        )
    kept = softargmax.filter_scores(z, top_p=0.5)
    assert (
        kept.dtype
        == softargmax.gumbel_softmax(z, seed=0).dtype
        == softargmax.gumbel(3, like=z, seed=0).dtype
        == bfloat16
    )
    assert np.array_equal(kept.astype(np.float32), softargmax.filter_scores(z.astype(np.float32), top_p=0.5))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("classes", [1, 2, 63, 64, 65, 1000, 4097, 9000])
def test_a_draw_is_the_arg_max_of_scores_and_noise(classes: int, dtype: str) -> None:
    """A draw is the arg max over all columns, blocks and chunks, although the core computes noise only where needed."""
    rng = np.random.default_rng(classes)
    z = (rng.standard_normal((200, classes)) * rng.choice([0, 0.01, 1, 8, 200], (200, 1))).astype(dtype)
    for t in (1.0, 0.25, 30.0):
        key = z.astype(np.float64) / t + softargmax.gumbel(z.shape, seed=6)
        assert (softargmax.categorical(z, temperature=t, seed=6) == key.argmax(axis=1)).all()
        if classes > 10:
            several = softargmax.categorical(z, temperature=t, seed=6, num_samples=10, replace=False)
            assert (several == np.argsort(-key, axis=1)[:, :10]).all()
    all_of_them = softargmax.categorical(z[:20], seed=6, num_samples=classes, replace=False)
    assert (np.sort(all_of_them, axis=1) == np.arange(classes)).all()


def test_noise_is_that_of_its_words() -> None:
    """If each row has its own stream, the core computes the noise of a row from the random words of its stream."""
    streams = np.array([7, -1, 2**40])
    noise = np.empty((3, 130))
    _native.gumbel(noise, 11, streams[:, None], (1,))
    for stream, row in zip(streams, noise, strict=True):
        words, found = np.empty(130, np.uint64), np.empty(130)
        _native.random_words(words, 11, int(stream), 0, 0)
        _native.gumbel_of_words(words, found)
        assert np.array_equal(found, row)
    relaxed = softargmax.gumbel_softmax(np.zeros((3, 130)), seed=11, stream=streams, hard=True)
    assert np.array_equal(relaxed.argmax(axis=1), noise.argmax(axis=1))


def test_seeds_streams_and_draws_differ() -> None:
    z = np.zeros(1 << 16)
    found = {int(softargmax.categorical(z, seed=seed, stream=stream)) for seed in range(8) for stream in range(8)}
    assert len(found) > 60
    assert len(set(softargmax.categorical(z, seed=0, num_samples=64).tolist())) > 60
    far = softargmax.categorical(np.zeros((3, 1 << 16)), seed=0, stream=[2**32, 0, 2**63 - 1])
    assert len(set(far.tolist())) == 3


def test_more_classes_than_a_float_counts() -> None:
    """Draws from 2^24 + 5 classes have the right index, although float32 cannot count that far."""
    n = (1 << 24) + 5
    z = np.full((1, n), -np.inf, np.float32)
    z[0, -1] = 0.0
    assert softargmax.categorical(z, seed=1)[0] == n - 1
    assert softargmax.categorical(z, seed=1, top_k=3, top_p=0.5)[0] == n - 1
    z[0, -3:] = 0.0
    z[0, :5] = -20.0
    assert (softargmax.categorical(z, seed=1, num_samples=20) >= n - 3).all()
    z[:] = 1.0
    drawn = softargmax.categorical_with_logprob(z, seed=1)
    assert drawn.logprob[0] == np.float32(-np.log(n))
    assert drawn.support_size[0] == n


def test_multinomial_has_the_limit_that_the_docs_name() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError, match=r"number of categories cannot exceed 2\^24"):
        torch.multinomial(torch.ones(1).expand((1 << 24) + 1), 1)


def test_seeds_of_generators() -> None:
    torch = pytest.importorskip("torch")
    z = np.zeros((50, 1000))
    first, second = (softargmax.categorical(z, generator=np.random.default_rng(5)) for _ in range(2))
    assert (first == second).all()
    first, second = (softargmax.categorical(z, generator=np.random.RandomState(5)) for _ in range(2))
    assert (first == second).all()
    generator = torch.Generator().manual_seed(3)
    t = torch.zeros(50, 1000)
    a = softargmax.categorical(t, generator=generator)
    assert not torch.equal(a, softargmax.categorical(t, generator=generator))
    assert torch.equal(a, softargmax.categorical(t, generator=torch.Generator().manual_seed(3)))
    assert (softargmax.categorical(z, generator=torch.Generator().manual_seed(3)) == a.numpy()).all()
    np.random.seed(1)  # noqa: NPY002 draws without a seed use this state
    b = softargmax.categorical(z)
    assert not (b == softargmax.categorical(z)).all()
    np.random.seed(1)  # noqa: NPY002
    assert (b == softargmax.categorical(z)).all()
    torch.manual_seed(1)
    c = softargmax.categorical(t)
    torch.manual_seed(1)
    assert torch.equal(c, softargmax.categorical(t))


def test_the_common_call_equals_the_call_with_an_axis() -> None:
    torch = pytest.importorskip("torch")
    z = np.random.default_rng(1).standard_normal((50, 10)).astype(np.float32)
    expected = softargmax.categorical(z, seed=3, axis=1)
    assert np.array_equal(softargmax.categorical(z, seed=3), expected)
    assert np.array_equal(softargmax.categorical(torch.from_numpy(z), seed=3).numpy(), expected)
