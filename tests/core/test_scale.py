"""beta = ln(base) / temperature, a pair of numbers, has twice the working precision and the right limits."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softargmax.core.arrays import namespace
from softargmax.core.scale import UNIT, Scale, negated, rounded, scale_of_array, scale_of_number

pytestmark = pytest.mark.no_sanitize  # beta is computed in Python
INF = math.inf


def beta(temperature: float, base: float | None) -> mpmath.mpf:
    with mpmath.workdps(60):
        return (mpmath.mpf(1) if base is None else mpmath.log(base)) / mpmath.mpf(temperature)


@given(st.floats(1e-200, 1e200), st.one_of(st.none(), st.floats(1e-10, 1e10).filter(lambda b: b != 1)))
def test_pair(temperature: float, base: float | None) -> None:
    scale = scale_of_number(temperature, base)
    with mpmath.workdps(60):
        error = abs((mpmath.mpf(scale.hi) + mpmath.mpf(scale.lo)) / beta(temperature, base) - 1)
        assert error < mpmath.mpf(2) ** -104
        narrow = rounded(scale, 24)
        if 1e-30 < abs(scale.hi) < 1e30:
            assert narrow.hi == np.float32(scale.hi)
            assert abs((mpmath.mpf(narrow.hi) + mpmath.mpf(narrow.lo)) / beta(temperature, base) - 1) < 2.0**-52


@given(st.floats(1e-100, 1e100), st.one_of(st.none(), st.floats(1e-10, 1e10).filter(lambda b: b != 1)))
def test_array_pair(temperature: float, base: float | None) -> None:
    t = np.array([temperature, -temperature])
    scale = scale_of_array(t, base, namespace(t))
    with mpmath.workdps(60):
        for i, sign in enumerate((1, -1)):
            error = (mpmath.mpf(scale.hi[i]) + mpmath.mpf(scale.lo[i])) / (sign * beta(temperature, base)) - 1
            assert abs(error) < mpmath.mpf(2) ** -100


@pytest.mark.parametrize(
    ("temperature", "base", "hi"),
    [
        (1.0, None, 1.0),
        (0.0, None, INF),
        (-0.0, None, -INF),
        (0.0, 0.5, -INF),
        (-0.0, 0.5, INF),
        (INF, None, 0.0),
        (-INF, None, 0.0),
        (3.0, 1.0, 0.0),
        (0.0, 1.0, 0.0),
        (INF, 2.0, 0.0),
        (1e-320, None, INF),
        (2.0, None, 0.5),
        (-2.0, None, -0.5),
    ],
)
def test_limits(temperature: float, base: float | None, hi: float) -> None:
    t = np.array([temperature])
    array = scale_of_array(t, base, namespace(t))
    for scale in (scale_of_number(temperature, base), type(array)(float(array.hi[0]), float(array.lo[0]))):
        assert scale.hi == hi
        assert scale.lo == 0.0
        assert hi != 0.0 or math.copysign(1.0, scale.hi) == 1.0, "beta = 0 must be +0.0"


def test_signed_zeros_differ_in_any_order() -> None:
    assert [scale_of_number(t).hi for t in (0.0, -0.0, 0.0, -0.0)] == [INF, -INF, INF, -INF]


def test_unit_is_one_object() -> None:
    assert scale_of_number(1.0) is UNIT
    assert scale_of_number(2.0) is not UNIT


def test_negated() -> None:
    assert negated(Scale(2.0, 1e-17)) == (-2.0, -1e-17)
    assert negated(scale_of_number(-1.0)) is UNIT
    assert math.copysign(1.0, negated(scale_of_number(INF)).hi) == 1.0, "beta = 0 must be +0.0"
    t = np.array([INF, 0.0, 2.0])
    assert (negated(scale_of_array(t, None, namespace(t))).hi == [0.0, -INF, -0.5]).all()


@given(st.floats(1e-100, 1e100), st.floats(1e-200, 1e200))
def test_pair_with_a_factor(temperature: float, k: float) -> None:
    t = np.array([temperature])
    array = scale_of_array(t, None, namespace(t), k)
    for scale in (scale_of_number(temperature, None, k), Scale(float(array.hi[0]), float(array.lo[0]))):
        if 1e-270 < abs(scale.hi) < 1e270:
            with mpmath.workdps(60):
                pair = mpmath.mpf(scale.hi) + mpmath.mpf(scale.lo)
                assert abs(pair * mpmath.mpf(temperature) * mpmath.mpf(k) - 1) < mpmath.mpf(2) ** -100
