"""logsumexp of complex scores, with SciPy's conventions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import softargmax as s

special = pytest.importorskip("scipy.special")
INF, NAN = math.inf, math.nan
LIBRARIES = ("numpy", "torch", "array_api_strict")


def arrays(library: str, z: Any) -> Any:
    return np.asarray(z) if library == "numpy" else pytest.importorskip(library).asarray(z)


def same(found: Any, expected: Any, rel: float = 1e-14) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    for a, b in ((found.real, expected.real), (found.imag, expected.imag)):
        assert a == pytest.approx(b, rel=rel, abs=1e-15, nan_ok=True)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("axis", [-1, 0, (0, 1), None])
def test_agreement_with_scipy(library: str, axis: Any) -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((4, 5)) * 3 + 1j * rng.standard_normal((4, 5)) * 9
    for keepdims in (False, True):
        expected = special.logsumexp(z, axis=axis, keepdims=keepdims)
        found = s.logsumexp(arrays(library, z), axis=axis, keepdims=keepdims)
        assert np.asarray(found).shape == np.shape(expected)
        same(found, expected, rel=1e-13)
    assert s.logsumexp(arrays(library, z.astype(np.complex64))).dtype == arrays(library, z.astype(np.complex64)).dtype


@pytest.mark.parametrize(
    "z",
    [
        [complex(0, 3.0), complex(0, 3.0)],
        [complex(2, math.pi), complex(2, math.pi)],
        [complex(0, 0), complex(0, math.pi)],
        [complex(-INF, 0), complex(-INF, 0)],
        [complex(-INF, 1), complex(1, 2)],
        [complex(INF, 0), complex(1, 2)],
        [complex(INF, 1), complex(1, 2)],
        [complex(1, NAN), complex(1, 2)],
        [complex(700, 1), complex(710, 2)],
        [complex(1, 100.0)],
        [complex(0, 0), complex(-40, 1)],
    ],
)
def test_conventions_of_scipy(z: list[complex]) -> None:
    with np.errstate(all="ignore"):
        expected = special.logsumexp(np.array(z))
    same(s.logsumexp(np.array(z)), expected)


def test_options() -> None:
    z = np.array([[1 + 2j, 2 - 1j, 0.5 + 0.25j]])
    masked = s.logsumexp(np.array([[1 + 2j, NAN, 0.5 + 0.25j]]), where=[True, False, True])
    same(masked, special.logsumexp(z[:, [0, 2]], axis=-1))
    weighted = s.logsumexp(z, weights=[1.0, 0.0, 3.0])
    same(weighted, special.logsumexp(z, b=np.array([1.0, 0.0, 3.0]), axis=-1))
    same(s.logsumexp(z, temperature=2.0), 2.0 * special.logsumexp(z / 2.0, axis=-1))
    same(s.logsumexp(z, base=2.0), special.logsumexp(z * math.log(2), axis=-1) / math.log(2))
    same(s.logsumexp(np.zeros((2, 0), complex)), [-INF, -INF])
    real = s.logsumexp(z.real)
    same(s.logsumexp(z.real + 0j), real)


def test_other_functions_take_real_scores() -> None:
    for function in (s.softmax, s.entropy, s.logcumsumexp, s.soft_argmax):
        with pytest.raises(
            TypeError,
            match=r"^z: expected dtype float16, bfloat16, float32, float64, an integer or bool, got complex128",
        ):
            function(np.array([1j]))


def test_native_refuses_complex_scores() -> None:
    with s.using("native"), pytest.raises(RuntimeError, match=r"'native'.*complex"):
        s.logsumexp(np.array([1j]))
