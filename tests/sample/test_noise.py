"""The random words are those of Philox4x32-10, and the noise computed from them is accurate to the last digits."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from tests.oracle.backends import Backend

import softargmax
from softargmax.core import _native, philox
from softargmax.sample import reference

stats = pytest.importorskip("scipy.stats")

WORD = 0xFFFFFFFF
# (counter, key, expected words) from the file kat_vectors of Random123, philox 4x32 10.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]) -> None:
    for dtype in (np.int64, np.uint32):
        words = philox.block(*(tuple(np.array([n], dtype) for n in numbers) for numbers in (counter, key)))
        assert tuple(int(w[0]) for w in words) == expected
    out = np.empty(4, np.uint64)
    second, stream = counter[1] >> 31, counter[2] | counter[3] << 32
    stream = stream - (1 << 64) if stream >= 1 << 63 else stream
    _native.random_words(out, key[0] | key[1] << 32, stream, counter[1] & 0x7FFFFFFF, 4 * counter[0])
    assert tuple((out >> np.uint64(0 if second else 32)) & np.uint64(WORD)) == expected


@pytest.mark.parametrize("columns", [1, 3, 4, 63, 64, 65, 1000])
@pytest.mark.parametrize("seed", [0, 1, 0x123456789ABCDEF0, 2**64 - 1])
def test_reference_and_core_have_the_same_words(seed: int, columns: int) -> None:
    streams = np.array([0, 1, 2**40 + 7, -1, -(2**63)])
    high, low = philox.words(np.zeros(1), seed, streams, np.array([0, 5, 2**31 - 1]), columns)
    for i, stream in enumerate(streams):
        for j, draw in enumerate((0, 5, 2**31 - 1)):
            out = np.empty(columns, np.uint64)
            _native.random_words(out, seed, int(stream), draw, 0)
            assert (out == (high[i, j].astype(np.uint64) << np.uint64(32) | low[i, j].astype(np.uint64))).all()


def chosen_words() -> np.ndarray:
    """Return words at both ends of the 64-bit range, in its middle, at powers of two from both ends, and at random."""
    powers = [1 << i for i in range(64)]
    ends = [0, 1, 2, 2**63 - 1, 2**63, 2**63 + 1, *powers, *(2**64 - 1 - x for x in powers), 2**64 - 1]
    one = [int(2**64 * (1 - np.exp(-1))) + i for i in (-3, 0, 3)]  # where the noise is 0
    return np.array(
        ends + one + np.random.default_rng(1).integers(2**64, size=200, dtype=np.uint64).tolist(), np.uint64
    )


def exact(words: np.ndarray) -> list[mpmath.mpf]:
    with mpmath.workprec(300):
        return [-mpmath.log(-mpmath.log(1 - (mpmath.mpf(int(w)) + 0.5) / mpmath.mpf(2) ** 64)) for w in words]


def ulps(found: np.ndarray, truth: list[mpmath.mpf]) -> float:
    """Return the largest error in ulp. Below 1/16, where a logarithm cancels, the unit is the ulp of 1/16."""
    unit = np.spacing(np.maximum(np.abs([float(t) for t in truth]), 1 / 16))
    return max(abs(float(mpmath.mpf(float(a)) - t)) / u for a, t, u in zip(found, truth, unit, strict=True))


def test_noise_of_chosen_words() -> None:
    words = chosen_words()
    truth = exact(words)
    found = np.empty(words.size)
    _native.gumbel_of_words(words, found)
    assert ulps(found, truth) <= 1.0
    assert found.min() == pytest.approx(-3.81, abs=0.01)
    assert found.max() == pytest.approx(45.05, abs=0.01)


def test_reference_noise_of_chosen_words(monkeypatch: pytest.MonkeyPatch) -> None:
    words = chosen_words()
    high, low = (words >> np.uint64(32)).astype(np.int64), (words & np.uint64(WORD)).astype(np.int64)
    monkeypatch.setattr(philox, "words", lambda *_: (high, low))
    found = reference.noise(np.zeros(1), 0, None, 1, None, words.size)
    scale = np.maximum(1.0, np.abs(found))
    assert (np.abs(found - np.array([float(t) for t in exact(words)])) / scale).max() < 2e-15


@pytest.mark.slow
def test_the_distribution() -> None:
    """A million numbers, and their upper tail of probability 1/4096, pass Kolmogorov-Smirnov tests."""
    g = softargmax.gumbel((1000, 1000), seed=11).reshape(-1)
    assert stats.kstest(g, stats.gumbel_r.cdf).pvalue > 1e-3
    cut = -np.log(-np.log1p(-1 / 4096))
    assert stats.kstest(g[g > cut], lambda x: 1 - (-np.expm1(-np.exp(-x))) * 4096).pvalue > 1e-3
    assert stats.kstest(g + 0.02, stats.gumbel_r.cdf).pvalue < 1e-9  # the test detects a shift of 0.02


def test_every_backend_makes_the_same_noise(backend: Backend) -> None:
    like = backend.array(np.zeros(1))
    found = backend.back(softargmax.gumbel((3, 5, 70), like=like, seed=2**64 - 3))
    with softargmax.using("native"):
        expected = softargmax.gumbel((3, 5, 70), seed=2**64 - 3)
    assert found == pytest.approx(expected, abs=2e-5 if backend.library == "jax" else 1e-13)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_noise_in_every_type_is_rounded_once(dtype: str) -> None:
    wide = softargmax.gumbel((4, 100), seed=3)
    narrow = softargmax.gumbel((4, 100), like=np.zeros(1, dtype), seed=3)
    through = wide.astype(np.float32) if dtype == "float16" else wide
    assert (narrow == through.astype(dtype)).all()


def test_shapes() -> None:
    assert softargmax.gumbel((), seed=0).shape == ()
    assert softargmax.gumbel(3, seed=0).shape == (3,)
    assert softargmax.gumbel((0, 3), seed=0).shape == (0, 3)
    assert softargmax.gumbel((2, 0), seed=0).shape == (2, 0)
    with softargmax.using("reference"):
        assert softargmax.gumbel((), seed=0) == pytest.approx(float(softargmax.gumbel(1, seed=0)[0]))
        assert softargmax.gumbel((2, 0), seed=0).shape == (2, 0)
    with pytest.raises(ValueError, match="shape"):
        softargmax.gumbel((-1,), seed=0)
    with pytest.raises(TypeError, match="shape"):
        softargmax.gumbel("3", seed=0)


def test_large_scores_keep_their_noise() -> None:
    z = np.full((20_000, 2), 1e8, np.float32)
    share = softargmax.gumbel_softmax(z, hard=True, seed=0)[:, 0].mean()
    assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(len(z))


SPREADS = [
    ("float32", 3e38, [1e38, 3e38, np.inf, 1.0, 0.0]),
    ("float64", 1.7e308, [1e308, 1.7e308, np.inf, 1.0, 0.0]),
    ("float16", 6e4, [2e4, 6e4, np.inf, 1.0, 0.0]),
]


@pytest.mark.parametrize(("dtype", "far", "temperatures"), SPREADS, ids=lambda x: x if isinstance(x, str) else "")
def test_the_whole_range_of_scores(backend: Backend, dtype: str, far: float, temperatures: list[float]) -> None:
    """gumbel_softmax is accurate at every T from 0 to inf, even if differences of scores exceed the dtype's range."""
    if dtype not in backend.dtypes:
        pytest.skip("not a dtype of this library")
    row = np.array([far, -far, 0.0, far], dtype)
    noise = softargmax.gumbel((len(temperatures), 4), seed=5)
    for given in (None, np.array(temperatures)):
        for i, t in enumerate(temperatures):
            if backend.library == "jax" and t == far:
                continue  # XLA flushes a subnormal 1 / T to 0
            if given is None:
                found = softargmax.gumbel_softmax(
                    backend.array(row), temperature=t, seed=5, stream=backend.array(i, "int32")
                )
            else:
                z = backend.array(np.tile(row, (len(temperatures), 1)))
                found = softargmax.gumbel_softmax(z, temperature=backend.array(given), seed=5)[i, ...]
            top = mpmath.mpf(float(row.max()))
            x = [(float(a) - top) + mpmath.mpf(float(b)) for a, b in zip(row, noise[i], strict=True)]
            e = [mpmath.exp((a - max(x)) / t) if t else mpmath.mpf(a == max(x)) for a in x]
            wanted = np.array([float(a / sum(e)) for a in e])
            close = {"float16": 1e-3, "float32": 4e-6, "float64": 1e-15}[dtype]
            close = 1e-4 if backend.library == "jax" else close  # JAX computes the noise in float32
            assert backend.back(found) == pytest.approx(wanted, rel=close, abs=close * 1e-2), (t, given is None)


def test_gradients_over_the_whole_range() -> None:
    torch = pytest.importorskip("torch")
    z = torch.tensor([3e38, -3e38, 0.0], requires_grad=True)
    t = torch.tensor(1e38, requires_grad=True)
    y = softargmax.gumbel_softmax(z, temperature=t, seed=0)
    p = softargmax.softmax([0.0, -6.0, -3.0])
    (slope,) = torch.autograd.grad(y[1] * 1e38, z)
    assert slope.numpy() == pytest.approx(p[1] * (np.eye(3)[1] - p), rel=1e-5)
