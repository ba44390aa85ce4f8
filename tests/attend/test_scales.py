"""Values, gradients and errors of entropy_invariant_scale and qk_norm."""

from __future__ import annotations

import math

import numpy as np
import pytest

import softargmax as s


def test_the_scale_by_the_number_of_keys() -> None:
    n = np.arange(6)
    np.testing.assert_allclose(s.entropy_invariant_scale(n, 4, 2.0), 2 * np.log(np.maximum(n, 1)) / 4, rtol=1e-15)
    assert s.entropy_invariant_scale(512, 64, kappa=8 / math.log(512)) == pytest.approx(1 / 8)
    torch = pytest.importorskip("torch")
    kappa = torch.ones(3, 1, requires_grad=True)
    found = s.entropy_invariant_scale(torch.arange(1, 5), 2, kappa)
    assert found.shape == (3, 4)
    found.sum().backward()
    np.testing.assert_allclose(kappa.grad.numpy(), np.full((3, 1), math.log(24) / 2), rtol=1e-6)


def test_the_entropy_grows_less_than_with_the_default_scale() -> None:
    rng, invariant, default = np.random.default_rng(0), [], []
    for n in (64, 4096):
        q, k = rng.standard_normal((1, 32, 64)), rng.standard_normal((1, n, 64))
        for found, scale in ((invariant, s.entropy_invariant_scale(n, 64, 8 / math.log(64))), (default, 1 / 8)):
            found.append(float(s.entropy(scale * (q @ k.swapaxes(-1, -2))).mean()))
    assert default[1] - default[0] > 1.5 * (invariant[1] - invariant[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norms(dtype: str) -> None:
    rng = np.random.default_rng(1)
    q, k = (rng.standard_normal((2, 3, 5, 8)) * 10.0 ** rng.integers(-10, 30, (2, 3, 5, 1)) for _ in range(2))
    gain = rng.uniform(0.5, 2, (3, 1, 8))
    found = s.qk_norm(q.astype(dtype), k.astype(dtype), gain=gain.astype(dtype), eps=0.0)
    for x, y, g in ((q, found.q, gain), (k, found.k, 1.0)):
        wide = x.astype(dtype).astype(np.longdouble)
        wanted = g * wide / np.sqrt((wide**2).mean(-1, keepdims=True))
        assert y.dtype == dtype
        np.testing.assert_allclose(y, wanted.astype(float), rtol=4 * np.finfo(dtype).eps)
    assert (s.qk_norm(np.zeros(3), np.zeros(3), eps=0.0).q == 0).all()


def test_the_gradients_of_norms() -> None:
    torch = pytest.importorskip("torch")
    q, k, gain = (torch.randn(*n, dtype=torch.float64).requires_grad_() for n in ((2, 4), (3, 4), (4,)))
    assert torch.autograd.gradcheck(lambda *x: tuple(s.qk_norm(*x[:2], gain=x[2])), (q, k, gain))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: s.entropy_invariant_scale(3, 0), ValueError, "^d: expected an integer, 1 or above, got 0"),
        (lambda: s.entropy_invariant_scale(3, 2.0), TypeError, r"^d: expected an integer, got 2.0"),
        (
            lambda: s.entropy_invariant_scale(-1, 2),
            ValueError,
            "^n: expected integers, 0 or above, got a negative number",
        ),
        (lambda: s.entropy_invariant_scale(1.5, 2), TypeError, "^n: expected integers, got dtype float64"),
        (
            lambda: s.qk_norm(np.ones(3), np.ones(4)),
            ValueError,
            r"^k: expected the width of q, which has shape \(3,\), got shape \(4,\)",
        ),
        (lambda: s.qk_norm(np.ones(3), np.ones(3), eps=-1.0), ValueError, "^eps: "),
        (
            lambda: s.qk_norm(np.ones(3), np.ones(3), gain=np.ones(2)),
            ValueError,
            r"^gain: expected a shape that broadcasts to q's, \(3,\), got \(2,\)",
        ),
    ],
)
def test_errors(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()  # type: ignore[operator]
