"""Sums under the softmax (entropy, divergence, expectation, signed sums): accuracy in ulp, edges, memory."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from tests.oracle.backends import Backend

import softargmax as s

INF, NAN = math.inf, math.nan
BOUND = {"float32": 1.0, "float64": 4.0}  # float32 is computed in float64 and rounded once


def ulps(found: Any, truth: Any, dtype: str) -> float:
    unit = np.spacing(np.array(abs(float(truth)), dtype))
    return float(abs(mp.mpf(float(found)) - truth) / mp.mpf(float(unit)))


class Truth:
    """The softmax of a row in mpmath, with enough digits that cancellation does not matter."""

    def __init__(self, z: Any, beta: float = 1.0) -> None:
        self.x = [mp.mpf(beta) * mp.mpf(float(x)) for x in z]
        self.lse = mp.log(sum(mp.exp(x) for x in self.x))
        self.p = [mp.exp(x - self.lse) for x in self.x]

    def mean(self, values: Any) -> Any:
        return sum(p * mp.mpf(v) for p, v in zip(self.p, values, strict=True))

    def entropy(self) -> Any:
        return self.mean([self.lse - x for x in self.x])

    def divergence(self, other: Truth) -> Any:
        return self.mean([(x - self.lse) - (y - other.lse) for x, y in zip(self.x, other.x, strict=True)])


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spread", [1, 10, 40, 300])
def test_accuracy(implementation: str, dtype: str, spread: int) -> None:
    rng = np.random.default_rng(spread)
    with s.using(implementation), mp.workdps(600):
        for n in (2, 7, 50):
            z, y = (rng.standard_normal((2, n)) * spread).astype(dtype)
            close = (z + 1e-6 * rng.standard_normal(n)).astype(dtype)
            a = Truth(z)
            pairs = {
                "entropy": (s.entropy(z), a.entropy()),
                "entropy, T": (s.entropy(z, temperature=4), Truth(z, 0.25).entropy()),
                "soft_argmax": (s.soft_argmax(z), a.mean(range(n))),
                "values": (s.soft_argmax(z, np.arange(1, n + 1) ** 2), a.mean([i * i for i in range(1, n + 1)])),
                "kl_divergence": (s.kl_divergence(z, y), a.divergence(Truth(y))),
                "kl_divergence, near": (s.kl_divergence(z, close), a.divergence(Truth(close))),
            }
            for name, (found, truth) in pairs.items():
                if abs(truth) > 1e-30:
                    assert ulps(found, truth, dtype) <= BOUND[dtype], (name, n)


def test_close_distributions_keep_their_small_divergence(quick: Backend) -> None:
    """The divergence of close distributions is accurate, although log p has errors of 1e-16.

    The divergence is about 1e-24, half the variance of the difference of the scores.
    """
    z = np.linspace(-3, 3, 8)
    other = z + np.float64(2.0**-40) * np.sin(np.arange(8))
    with mp.workdps(60):
        truth = float(Truth(z).divergence(Truth(other)))
    assert 1e-26 < truth < 1e-22
    assert float(quick.back(s.kl_divergence(quick.array(z), quick.array(other)))) == pytest.approx(truth, rel=1e-4)


@pytest.mark.parametrize("implementation", ["native", "reference"])
def test_signed_sums_lose_only_the_digits_that_cancel(implementation: str) -> None:
    rng = np.random.default_rng(3)
    with s.using(implementation), mp.workdps(60):
        for spread in (1, 10, 40):
            for _ in range(20):
                z, w = rng.standard_normal((2, 50))
                z *= spread
                terms = [mp.mpf(w[i]) * mp.exp(mp.mpf(z[i])) for i in range(50)]
                total, size = sum(terms), sum(abs(t) for t in terms)
                found = s.signed_logsumexp(z, w)
                assert found.sign == float(mp.sign(total))
                unit = 2.0**-52 * (
                    abs(float(found.log_abs)) + float(np.max(np.abs(z))) / 8 + 8 * float(size / abs(total))
                )
                assert abs(found.log_abs - mp.log(abs(total))) <= unit


def test_huge_weights_with_small_exponentials(quick: Backend) -> None:
    """A small exponential with a large weight counts: e^-800 is 0 in float64, but 1e300 e^-800 exceeds 1e-300."""
    log_abs, sign = s.signed_logsumexp(quick.array([0.0, -800.0]), quick.array([1e-300, -1e300]))
    with mp.workdps(60):
        truth = mp.log(mp.mpf(1e300) * mp.exp(-800) - mp.mpf(1e-300))
    assert float(quick.back(log_abs)) == pytest.approx(float(truth), rel=1e-15)
    assert float(quick.back(sign)) == -1.0


@pytest.mark.parametrize(
    ("z", "w", "log_abs", "sign"),
    [
        ([INF, 0.0], [2.0, -1.0], INF, 1.0),
        ([INF, 0.0, INF], [-2.0, 1.0, -1.0], INF, -1.0),
        ([INF, INF], [1.0, -1.0], NAN, NAN),
        ([INF, INF], [2.0, -1.0], NAN, NAN),
        ([INF, 3.0], [0.0, 1.0], 3.0, 1.0),
        ([-INF, -INF], [1.0, -1.0], -INF, 0.0),
        ([1.0, 1.0], [1.0, -1.0], -INF, 0.0),
        ([NAN, 1.0], [1.0, -1.0], NAN, NAN),
        ([0.0, 1.0], [NAN, -1.0], NAN, NAN),
        ([], [], -INF, 0.0),
    ],
)
def test_signed_logsumexp_at_the_edges(quick: Backend, z: Any, w: Any, log_abs: float, sign: float) -> None:
    found = s.signed_logsumexp(quick.array(z), quick.array(w))
    assert [float(quick.back(x)) for x in found] == pytest.approx([log_abs, sign], nan_ok=True)


def test_positions_beyond_the_integers_of_float32() -> None:
    """Positions are computed in float64, because 2^24 + 1 is not a float32. Their mean is rounded only once."""
    z = np.full((1 << 24) + 3, -INF, np.float32)
    z[-2:] = 0.0  # positions 2^24 + 1 and 2^24 + 2
    assert s.soft_argmax(z) == np.float32(2**24 + 1.5)
    assert s.soft_argmax(z.astype(np.float16)).dtype == np.float32


@pytest.mark.parametrize("dtype", ["bool", "int16", "float16", "float32", "float64"])
def test_values_of_every_dtype_and_stride(dtype: str) -> None:
    z = np.array([0.0, 1.0, 2.0])
    wide = (np.arange(24).reshape(6, 4) % 7 % 2).astype(dtype)
    p = s.softmax(z)
    for values in (wide[::2, 1], wide[::-2, 1], wide[1::2], wide[3:, ::-3]):
        expected = p @ values.astype(np.float64)
        assert np.allclose(s.soft_argmax(z, values), expected, rtol=1e-15, atol=0), values.strides
        if values.strides[0] > 0 and min(values.strides) > 0:
            torch = pytest.importorskip("torch")
            found = s.soft_argmax(torch.from_numpy(z), torch.from_numpy(wide)[::2, 1])
            assert float(found) == pytest.approx(float(p @ wide[::2, 1].astype(np.float64)), rel=1e-15)


def test_numbers_with_tensors_are_not_rounded_to_float32() -> None:
    torch = pytest.importorskip("torch")
    z = torch.zeros(2, dtype=torch.float64)
    assert float(s.soft_argmax(z, [0.1, 0.1])) == 0.1
    assert float(s.soft_argmax(z, torch.tensor([2**24 + 1] * 2))) == 2**24 + 1
    assert s.kl_divergence(z.float(), [0.0, 1.0]).dtype == torch.float32


@pytest.mark.no_sanitize  # sanitizers allocate additional memory
@pytest.mark.parametrize("shape", [(4096, 4096), (1, 1 << 24), (1 << 24, 1)])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_no_temporary_of_the_scores_size(library: str, shape: tuple[int, int]) -> None:
    """The peak memory grows by less than an eighth of the 64 MiB of the scores, for many rows and for one row."""
    pytest.importorskip(library)
    axis = 0 if shape[1] == 1 else 1
    code = f"""
import softargmax, {library}
from bench.peak import peak_of
z, v = {library}.ones({shape}, dtype={library}.float32), {library}.ones({max(shape)})
w = z > 0
calls = (
    lambda z: softargmax.entropy(z, axis={axis}),
    lambda z: softargmax.soft_argmax(z, axis={axis}),
    lambda z: softargmax.soft_argmax(
        z, v[: z.shape[{axis}]], axis={axis}, temperature=2.0, where=w[: z.shape[0], : z.shape[1]]
    ),
    lambda z: softargmax.kl_divergence(z, z, axis={axis}),
)
for call in calls:
    call({library}.ones((3, 3), dtype={library}.float32))
before, peak, _ = peak_of(lambda: [call(z) for call in calls])
print((peak - before) / z.nbytes)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1 / 8


def test_the_temperature_of_a_divergence(quick: Backend) -> None:
    """The temperature is applied to differences of scores, so the small divergence of close rows is accurate."""
    rng = np.random.default_rng(8)
    z, eps = rng.standard_normal(7) * 3 + 2000.0, rng.standard_normal(7) * 1e-6
    for q, temperature, base in ((z + eps, 3.7, None), (z[::-1].copy(), 0.7, None), (z + eps, -2.3, 3.0)):
        with mp.workdps(60):
            beta = (mp.mpf(1) if base is None else mp.log(base)) / mp.mpf(temperature)
            logs = []
            for row in (z, q):
                x = [mp.mpf(float(v)) * beta for v in row]
                lse = mp.log(mp.fsum(mp.exp(v) for v in x))
                logs.append([v - lse for v in x])
            truth = mp.fsum(mp.exp(a) * (a - b) for a, b in zip(*logs, strict=True))
        found = quick.back(s.kl_divergence(quick.array(z), quick.array(q), temperature=temperature, base=base))
        if found.dtype == np.float64:
            assert abs(mp.mpf(float(found)) - truth) <= 4 * np.spacing(float(truth))


def test_the_limits_of_a_divergence(quick: Backend) -> None:
    p, q = quick.array(np.array([1.0, 5.0, 5.0, -INF])), quick.array(np.array([7.0, 7.0, 7.0, 7.0]))
    for temperature, there, back in ((0.0, math.log(2), INF), (INF, math.log(4 / 3), INF), (-0.0, math.log(4), INF)):
        assert float(quick.back(s.kl_divergence(p, q, temperature=temperature))) == pytest.approx(there, rel=1e-6)
        assert float(quick.back(s.kl_divergence(q, p, temperature=temperature))) == back


@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch._prims_common.check` is deprecated:FutureWarning")
def test_the_gradient_of_a_divergence_to_its_temperature() -> None:
    torch = pytest.importorskip("torch")
    z = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    t = torch.tensor([0.4, 1.7, -2.3], dtype=torch.float64)
    leaves = [x.clone().requires_grad_() for x in (*z, t)]
    call = lambda p, q, t: s.kl_divergence(p, q, temperature=t)  # noqa: E731
    assert torch.autograd.gradcheck(call, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, leaves)
