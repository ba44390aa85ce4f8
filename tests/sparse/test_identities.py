"""Identities that follow from the definitions of the sparse maps, on every backend except JAX."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.oracle.backends import Backend
from tests.oracle.truth import LIFT, ulp_error
from tests.sparse.truth import exact

import softargmax as s

ALPHAS = (1.0, 1 + 1e-9, 1.2, 1.5, 1.8, 2.0, 2.5, 3.0)
MANY = np.random.default_rng(3).standard_normal((40, 9)) * 2
each = pytest.mark.parametrize("alpha", ALPHAS)


def both(quick: Backend, z: Any, alpha: float, **options: Any) -> np.ndarray:
    return quick.back(s.entmax(quick.array(z), alpha, **options))


@each
def test_shift_and_permutation(quick: Backend, alpha: float) -> None:
    """A shift of the scores changes tau but not p. A permutation of the scores permutes p.

    The scores are multiples of 1/64, so that a shift is exact.
    """
    z = np.round(MANY * 64) / 64
    p, order = both(quick, z, alpha), np.random.default_rng(1).permutation(9)
    for shift in (-64.0, 0.25, 1024.0):
        assert both(quick, z + shift, alpha) == pytest.approx(p, rel=1e-13, abs=1e-15)
    assert both(quick, z[:, order], alpha) == pytest.approx(p[:, order], rel=1e-13, abs=1e-15)
    tau = quick.back(s.threshold(quick.array(z), alpha).tau)
    moved = quick.back(s.threshold(quick.array(z + 64.0), alpha).tau)
    assert moved == pytest.approx(tau + (alpha - 1) * 64.0, rel=1e-14)


@each
def test_order_and_ties(quick: Backend, alpha: float) -> None:
    """A higher score has the same p or a higher one. Equal scores have equal p. Raising a score never lowers its p."""
    z = np.sort(np.round(MANY * 4) / 4, axis=-1)
    p = both(quick, z, alpha)
    assert (np.diff(p) >= 0).all()
    assert (np.diff(p)[np.diff(z) == 0] == 0).all()
    z[:, 3] += 0.5
    assert (both(quick, z, alpha)[:, 3] >= p[:, 3] * (1 - 1e-14)).all()


def test_higher_orders_are_sparser(quick: Backend) -> None:
    z = quick.array(MANY)
    sizes = [quick.back(s.threshold(z, alpha).support_size) for alpha in ALPHAS]
    assert all((a >= b).all() for a, b in pairwise(sizes))
    assert (sizes[0] == 9).all()
    assert sizes[-1].max() < 9
    top = [both(quick, MANY, alpha).max(-1) for alpha in ALPHAS]
    assert all((a <= b * (1 + 1e-12)).all() for a, b in pairwise(top))


@each
def test_p_follows_from_tau(quick: Backend, alpha: float) -> None:
    a = alpha - 1
    found = s.threshold(quick.array(MANY), alpha)
    tau, p = quick.back(found.tau)[:, None], both(quick, MANY, alpha)
    assert (quick.back(found.support_size) == (p > 0).sum(-1)).all()
    if a == 0:
        assert (tau == -1).all()
        return
    v = np.maximum(a * MANY - tau, 0)
    wanted = np.exp(np.log(v, where=v > 0, out=np.full_like(v, -np.inf)) / a)
    slack = 2.0**-50 * (1 + np.abs(tau)) / a  # the error of tau, divided by a; slack / v is the error of log p
    large = p > 1e-6
    assert (np.abs(wanted - p)[large] <= (slack / np.where(v > 0, v, 1) * p)[large] + 1e-15).all()


def test_order_1_is_softmax_to_the_bit_for_a_number(quick: Backend) -> None:
    mask = quick.array(np.arange(9) != 3)
    for dtype in quick.dtypes:
        z = quick.array(MANY, dtype)
        for options in ({}, {"axis": 0}, {"where": mask}, {"axis": None}):
            for one in (1, 1.0, True, np.float32(1)):
                assert (quick.back(s.entmax(z, one, **options)) == quick.back(s.softmax(z, **options))).all()
    per_row = both(quick, MANY, quick.array(np.ones(40)))
    assert per_row == pytest.approx(quick.back(s.softmax(quick.array(MANY))), rel=1e-14)


@pytest.mark.parametrize("at", [1.0, 1.5, 2.0])
def test_p_is_continuous_where_the_kernel_changes_its_formula(quick: Backend, at: float) -> None:
    """A small step of alpha changes p by at most four times the step. |dp / dalpha| is below 1 for these scores."""
    p = both(quick, MANY, at)
    for step in (2.0**-52, 1e-12, 1e-9, 1e-6):
        for alpha in {at + step, max(1.0, at - step)}:
            assert np.abs(both(quick, MANY, alpha) - p).max() <= 4 * step + 4e-16, alpha
            tau = quick.back(s.threshold(quick.array(MANY), alpha).tau)
            assert np.abs(tau - quick.back(s.threshold(quick.array(MANY), at).tau)).max() <= 32 * step + 4e-15, alpha


def test_sparsemax_is_the_projection(quick: Backend) -> None:
    """The Karush-Kuhn-Tucker conditions hold: z - p is tau in the support, and at most tau elsewhere."""
    for spread in (0.1, 1.0, 100.0):
        z = MANY * spread
        p = both(quick, z, 2.0)
        tau = quick.back(s.threshold(quick.array(z), 2.0).tau)[:, None]
        slack = 2.0**-51 * (1 + np.abs(z).max())
        assert (p >= 0).all()
        assert (np.abs(p.sum(-1) - 1) <= 2.0**-50).all()
        assert (np.abs(z - p - tau)[p > 0] <= slack).all()
        assert ((z - tau)[p == 0] <= slack).all()
        others = np.random.default_rng(1).dirichlet(np.full(9, 0.3), 40)
        assert (((z - p) ** 2).sum(-1) <= ((z - others) ** 2).sum(-1) + slack * 100).all()


def test_sparsemax_keeps_points_of_the_simplex(quick: Backend) -> None:
    """sparsemax returns a point of the simplex unchanged. The test uses multiples of 1/1024, which are exact."""
    p = np.random.default_rng(2).multinomial(1024, np.full(9, 1 / 9), 30) / 1024
    p[0] = np.eye(9)[4]
    found = both(quick, p, 2.0)
    assert (np.abs(found - p) <= (0 if quick.implementation == "native" else 2.0**-52)).all()
    assert (found[p == 0] <= 2.0**-52).all()
    once = both(quick, MANY, 2.0)
    assert both(quick, once, 2.0) == pytest.approx(once, abs=4e-16)


@each
def test_entmax_maximizes_its_objective(quick: Backend, alpha: float) -> None:
    """<q, z> + H(q) is at most its value at p, for random points q and for points near p."""
    p = both(quick, MANY, alpha)

    def value(q: np.ndarray) -> np.ndarray:
        a = alpha - 1
        if a < 1e-6:
            return (q * MANY - np.where(q > 0, q * np.log(np.where(q > 0, q, 1)), 0)).sum(-1)
        return (q * MANY).sum(-1) + (1 - (q**alpha).sum(-1)) / (alpha * a)

    rng = np.random.default_rng(7)
    for share in (1.0, 0.1, 1e-3):
        other = (1 - share) * p + share * rng.dirichlet(np.full(9, 0.5), 40)
        assert (value(other) <= value(p) + 1e-14 * (1 + np.abs(value(p)))).all()


# --- shapes, strides and extremes drawn at random ---------------------------------------------------------------------


@st.composite
def layouts(draw: Any) -> tuple[np.ndarray, int]:
    """Draw an array of any shape, order of axes and strides, with extreme scores. Draw one of its axes, too."""
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=8))
    extremes = [-math.inf, 0.0, -0.0, 1e-38, 1e-45, 1e38, -1e38, 3.4e38, -3.4e38, 1.0, 1.0000001]
    elements = st.one_of(st.floats(-4, 4, width=32), st.floats(-1e4, 1e4, width=32), st.sampled_from(extremes))
    with np.errstate(all="ignore"):
        z = draw(hnp.arrays(dtype, shape, elements=elements.map(lambda x: float(dtype(x)))))
    z = np.transpose(z, draw(st.permutations(range(len(shape)))))
    z = z[tuple(slice(None, None, draw(st.sampled_from([1, 2, -1, -3]))) for _ in shape)]
    return z, draw(st.integers(-z.ndim, z.ndim - 1))


@pytest.mark.slow
@given(layouts(), st.sampled_from([1.0, 1 + 1e-6, 1.25, 1.5, 1.75, 2.0]), st.sampled_from(["native", "reference"]))
def test_every_layout_has_the_same_p(case: tuple[np.ndarray, int], alpha: float, name: str) -> None:
    z, axis = case
    with s.using(name):
        p = s.entmax(z, alpha, axis=axis)
        tau, support = s.threshold(z, alpha, axis=axis)
        packed = np.ascontiguousarray(np.moveaxis(z, axis, -1))
        if name == "native":  # the bits of the reference may depend on alignment, like those of NumPy's loops
            assert np.array_equal(np.moveaxis(p, axis, -1), s.entmax(packed, alpha))
        rows, found = packed.reshape(-1, packed.shape[-1]), np.moveaxis(p, axis, -1).reshape(-1, packed.shape[-1])
        for row, ours, t, n in zip(rows, found, np.ravel(tau), np.ravel(support), strict=True):
            if np.isneginf(row).all():
                assert (ours == 0).all()
                assert (t, n) == (-math.inf, 0)
                continue
            true = exact(row, alpha)
            lo = 12.0 if z.dtype == np.float64 else 0.51 if alpha > 1 else 3.0  # order 1 has the bound of softmax
            p_true = np.ldexp(true.p.hi, -LIFT)
            error = np.abs(ours - p_true) - lo * np.spacing(p_true.astype(z.dtype)).astype(np.float64)
            assert (error <= 2.0**-49 * (p_true < 1) + (2.0**-126 if z.dtype == np.float32 else 0)).all(), (row, alpha)
            assert ulp_error(np.asarray(t), float(true.tau), at=1.0).max() <= (1 if name == "native" else 4)
            sure = (p_true > 2.0**-45).sum()
            assert sure <= n <= (p_true >= 0).sum()
