"""The result of a single row is a NumPy scalar, as for NumPy's reductions, for every function and implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import softargmax as s

Z = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 4.0]])
CALLS = {
    "logsumexp": lambda z: s.logsumexp(z, axis=None),
    "logsumexp, weights": lambda z: s.logsumexp(z, axis=None, weights=z > 1),
    "logsumexp, complex": lambda z: s.logsumexp(z + z.dtype.type(1) * 1j, axis=None),
    "softmax_with_lse": lambda z: s.softmax_with_lse(z, axis=None).lse,
    "signed_logsumexp": lambda z: s.signed_logsumexp(z, z - 1, axis=None),
    "entropy": lambda z: s.entropy(z, axis=None),
    "renyi_entropy": lambda z: s.renyi_entropy(z, 2.0, axis=None),
    "kl_divergence": lambda z: s.kl_divergence(z, z[::-1], axis=None),
    "soft_argmax": lambda z: s.soft_argmax(z, axis=None),
    "boltzmann": lambda z: s.boltzmann(z, 2.0, axis=None)[1:],
    "boltzmann, weights": lambda z: s.boltzmann(z, 2.0, axis=None, weights=z > 1)[1:],
}


@pytest.mark.parametrize("implementation", [None, "reference"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_row_gives_a_number(name: str, implementation: str | None, dtype: Any) -> None:
    call = CALLS[name]
    if implementation is None:
        found = call(Z.astype(dtype))
    else:
        with s.using(implementation):
            found = call(Z.astype(dtype))
    wanted = {np.float64: np.float64}.get(dtype, np.float32)
    if "complex" in name:
        wanted = {np.float64: np.complex128}.get(dtype, np.complex64)
    for number in found if isinstance(found, tuple) else (found,):
        assert type(number) is wanted
        assert type(number) is type(np.sum(Z.astype(wanted)))


@pytest.mark.parametrize("call", [s.logsumexp, s.entropy, s.soft_argmax, lambda z: s.softmax_with_lse(z).lse])
def test_a_number_is_a_row_of_one(call: Any) -> None:
    for z in (3.0, np.float64(3.0), np.array(3.0)):
        assert type(call(z)) is np.float64
    assert type(s.logsumexp(3.0, keepdims=True)) is np.float64
    assert call([3.0]) == call(3.0)


def test_arrays_stay_arrays() -> None:
    assert s.logsumexp(Z[0], keepdims=True).shape == (1,)
    assert s.soft_argmax(Z[0], [[1.0], [2.0], [3.0]]).shape == (1,)
    assert type(s.softmax(3.0)) is np.ndarray
    torch = pytest.importorskip("torch")
    assert s.entropy(torch.zeros(3)).shape == ()


def test_heat_capacity_does_not_depend_on_the_zero_of_energy() -> None:
    gaps = np.array([0.0, 0.0, 0.25])
    expected = s.boltzmann(gaps, 1.0).heat_capacity
    for dtype, offset in (("float32", 1e6), ("float64", 1e15)):
        found = s.boltzmann((gaps + offset).astype(dtype), 1.0).heat_capacity
        assert found == pytest.approx(expected, rel=1e-5)
        assert s.boltzmann(np.full(3, offset, dtype), 1.0).heat_capacity == 0
