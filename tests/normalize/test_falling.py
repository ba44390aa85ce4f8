"""softmin and boltzmann: temperatures of any dtype, limits of the temperature, and Boltzmann's constant k."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.oracle.backends import Backend

import softargmax as s

INF, NAN = math.inf, math.nan


def near(backend: Backend, found: Any, expected: Any, rel: float = 2e-7) -> None:
    assert backend.back(found) == pytest.approx(np.array(expected), rel=rel, abs=1e-45, nan_ok=True)


# --- softmin ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [2, 2.0, True, "int64", "bool", "float64"])
def test_softmin_of_any_temperature(quick: Backend, temperature: Any) -> None:
    """Temperatures of any dtype work, even if the library cannot multiply this dtype by a float."""
    t = float(temperature) if not isinstance(temperature, str) else 1.0 if temperature == "bool" else 2.0
    if isinstance(temperature, str):
        temperature = quick.array(np.asarray(t, temperature))
    z = np.arange(4.0)
    near(
        quick, s.softmin(quick.array(z), temperature=temperature), quick.back(s.softmax(quick.array(-z), temperature=t))
    )
    p = s.boltzmann(quick.array(z), temperature).p
    near(quick, p, quick.back(s.softmax(quick.array(-z), temperature=t)))


@pytest.mark.parametrize("temperature", [None, "two", [[1.0, 2.0, 3.0]]])
def test_errors_name_a_wrong_temperature(temperature: Any) -> None:
    for call in (s.softmin, s.softmax):
        with pytest.raises((TypeError, ValueError), match="temperature"):
            call(np.zeros((2, 4)), temperature=temperature)


BETA_0: dict[str, dict[str, Any]] = {
    "number": {"temperature": INF},
    "negative": {"temperature": -INF},
    "0-d": {"temperature": INF, "as": ()},
    "row": {"temperature": INF, "as": (1,)},
    "base": {"base": 1.0},
    "base and row": {"base": 1.0, "temperature": 3.0, "as": (1,)},
}


@pytest.mark.parametrize("how", BETA_0)
def test_softmin_at_beta_0_is_one_limit(backend: Backend, how: str) -> None:
    """At beta = 0, +inf is outside the support, and entries of -inf share all of the probability."""
    options = dict(BETA_0[how])
    if "as" in options:
        options["temperature"] = backend.array(np.full(options.pop("as"), options["temperature"]))
    for z, expected in (
        ([INF, 1.0, 2.0], [0.0, 0.5, 0.5]),
        ([-INF, 1.0, -INF], [0.5, 0.0, 0.5]),
        ([-INF, 1.0, INF], [1.0, 0.0, 0.0]),
        ([INF, INF, INF], [0.0, 0.0, 0.0]),
        ([NAN, 1.0, INF], [NAN, NAN, 0.0]),
        ([3.0, 1.0, 8.0], [1 / 3, 1 / 3, 1 / 3]),
    ):
        near(backend, s.softmin(backend.array([z]), **options), [expected])


def test_softmin_mixes_temperatures_by_row(backend: Backend) -> None:
    z = backend.array([[INF, 1.0, 2.0], [-INF, 1.0, 2.0], [0.0, 1.0, 1.0], [0.0, INF, 0.0]])
    found = s.softmin(z, temperature=backend.array([INF, INF, -0.0, 1.0]))
    near(backend, found, [[0, 0.5, 0.5], [1, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])


def test_softmin_at_beta_0_in_place() -> None:
    z = np.array([INF, 1.0, 2.0])
    assert s.softmin(z, temperature=INF, out=z) is z
    assert (z == [0.0, 0.5, 0.5]).all()


# --- boltzmann --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("energies", "temperature", "weights", "expected"),
    [
        ([0.0, 1.0], 0.0, [0.0, 1.0], ([0, 1], None, 1.0, 1.0, 0.0, 0.0)),
        ([NAN, 1.0], 1.0, [0.0, 1.0], ([0, 1], -1.0, 1.0, 1.0, 0.0, 0.0)),
        ([-INF, 1.0], 1.0, [0.0, 1.0], ([0, 1], -1.0, 1.0, 1.0, 0.0, 0.0)),
        ([-1e4, 1.0], 1.0, [0.0, 1.0], ([0, 1], -1.0, 1.0, 1.0, 0.0, 0.0)),
        ([1.0, 2.0], 1.0, [0.0, 0.0], ([0, 0], -INF, INF, 0.0, 0.0, 0.0)),
        ([-INF, 1.0, 2.0], INF, None, ([1, 0, 0], INF, -INF, -INF, 0.0, 0.0)),
        ([1.0, 2.0], INF, [0.5, 0.5], ([0.5, 0.5], 0.0, 1.5, 1.5, 0.0, 0.0)),
        ([1.0, 2.0], INF, [0.25, 0.25], ([0.5, 0.5], -math.log(2), INF, 1.5, -math.log(2), 0.0)),
        ([1.0, NAN], INF, None, ([NAN, NAN], NAN, NAN, NAN, NAN, NAN)),
    ],
)
def test_boltzmann_in_its_support(
    backend: Backend, energies: Any, temperature: float, weights: Any, expected: Any
) -> None:
    weights = None if weights is None else backend.array(weights)
    for t in (temperature, backend.array([temperature])):
        found = s.boltzmann(backend.array([energies]), t, weights=weights)
        near(backend, found.p, [expected[0]])
        for value, wanted in zip(found[1:], expected[1:], strict=True):
            if wanted is not None:
                assert backend.back(value) == pytest.approx([wanted], rel=2e-7, abs=3e-7, nan_ok=True)


def test_boltzmann_is_exact_for_any_k(quick: Backend) -> None:
    """p agrees with mpmath at the exact 1 / (k T), also if k T overflows or underflows."""
    import mpmath

    e, t, k = np.array([0.0, 2.4e-18, 1e-18]), 290.0, 1.380649e-23
    with mpmath.workdps(50):
        w = [mpmath.exp(-mpmath.mpf(float(x)) / (mpmath.mpf(k) * mpmath.mpf(t))) for x in e]
        p = [x / mpmath.fsum(w) for x in w]
        high = np.array([float(x) for x in p])
        low = np.array([float(x - mpmath.mpf(float(x))) for x in p])
    for temperature in (t, quick.array(np.array([t]))):
        found = quick.back(s.boltzmann(quick.array(e[None]), temperature, k=k).p)[0]
        assert (np.abs((found - high) - low) <= 4 * np.spacing(high)).all()
    for temperature in (1e300, quick.array(np.array([1e300]))):
        near(quick, s.boltzmann(quick.array([[0.0, 1.0]]), temperature, k=1e300).p, [[0.5, 0.5]])
        small = s.boltzmann(quick.array([[0.0, 1e-10]]), temperature, k=1e-310).p
        near(quick, small, [[1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))]], rel=1e-12)
