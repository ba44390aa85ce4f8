"""The promised accuracy, tested on a few times 10^5 values. `python -m bench.accuracy` tests 10^7 values of each case.

The promised bounds are 3 ulp in float32, 4 ulp in float64, and 2 ulp for the tiny loss of a confident row. The bound of
a subnormal probability is the smallest subnormal number. Results in float16 and bfloat16 are the float32 results,
rounded once.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from bench.accuracy import OPS, classes_of, errors, operations_of, pieces, rounded, softargmax_side
from bench.scores import Case, cases, mixed
from tests.oracle.truth import Family, exact_family, family_truth, ulp_error

import softargmax

BOUND = {"float32": 3.0, "float64": 4.0}
CASES = [case for dtype in BOUND for case in cases(dtype)]


def _id(case: Case) -> str:
    return f"{case.dtype}-{case.name}"


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_within_the_bound(case: Case) -> None:
    for z in pieces(case, 12_000):
        truth = family_truth(z, case.temperature, case.base)
        for op in operations_of(case):
            error = errors(op, softargmax_side(op, z, case), truth, z)
            assert error.max() <= BOUND[case.dtype], (op, z.shape, *np.argwhere(error == error.max())[0])


@pytest.mark.parametrize("name", ["spread 10", "a few values repeated", "near-ties", "a crowd of small terms"])
@pytest.mark.parametrize("dtype", list(BOUND))
def test_long_rows(dtype: str, name: str) -> None:
    """Rows of many blocks keep the bound, so the rounding errors of equal terms and of merges do not add up."""
    (case,) = (c for c in cases(dtype) if c.name == name)
    z = rounded(case.scores(np.random.default_rng(8), (1, 1_000_003), dtype), dtype)
    truth = family_truth(z)
    for op in OPS:
        assert errors(op, softargmax_side(op, z, case), truth, z).max() <= BOUND[dtype], op


def test_the_bound_can_fail() -> None:
    """The naive formula exceeds the bound, so the tests of the bound can fail."""
    case = Case("float32", "spread 40", mixed)
    (z,) = (z for z in pieces(case, 10_000) if z.shape[-1] == 64)
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    assert errors("softmax", (p, "float32"), family_truth(z), z).max() > 20


def test_half_of_the_classes_have_the_largest_score() -> None:
    z = np.random.default_rng(3).standard_normal((1000, 100))
    for y in (classes_of(z), np.concatenate([classes_of(row[None]) for row in z])):
        assert 0.45 < (y == z.argmax(-1)).mean() < 0.56
        assert len(set(y[y != z.argmax(-1)])) > 90


# --- confident rows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("row", "temperature"),
    [
        ([40, 0], 1.0),
        ([0, -40], 1.0),
        ([0, -80, -80], 2.0),
        ([-30, 0, -31, -29.5], 1.0),
        ([1, 41, 2], -1.0),
        ([0, -87], 1.0),
    ],
)
def test_tiny_loss(implementation: str, dtype: str, row: list[float], temperature: float) -> None:
    z = np.array(row, dtype)
    truth = exact_family(z, temperature)
    with softargmax.using(implementation):
        log_p = softargmax.log_softmax(z, temperature=temperature)
        lse = softargmax.logsumexp(z, temperature=temperature)
    assert ulp_error(log_p, *truth.log_softmax).max() <= 2
    assert ulp_error(lse, *truth.logsumexp, at=truth.largest).max() <= 2


def test_the_loss_of_a_score_that_is_larger_by_40() -> None:
    for dtype in ("float32", "float64"):
        assert softargmax.log_softmax(np.array([40, 0], dtype))[0] == pytest.approx(-4.248354255291589e-18, rel=3e-7)
        assert softargmax.logsumexp(np.array([0, -40], dtype)) == pytest.approx(4.248354255291589e-18, rel=3e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_confident_rows(dtype: str) -> None:
    rng = np.random.default_rng(5)
    z = rng.uniform(-60, -17 if dtype == "float32" else -37, (400, 33)).astype(dtype)
    z[np.arange(400), rng.integers(0, 33, 400)] = 0
    truth = family_truth(z)
    assert ulp_error(softargmax.log_softmax(z), *truth.log_softmax).max() <= 2
    assert ulp_error(softargmax.logsumexp(z), *truth.logsumexp).max() <= 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_below_the_normal_range(dtype: str) -> None:
    """Subnormal probabilities are off by at most the smallest subnormal number. Subnormal losses are within 2 ulp."""
    (case,) = (c for c in cases(dtype) if c.name == "subnormal results")
    tiny = float(np.finfo(dtype).tiny)
    checked = 0
    for z in pieces(case, 20_000):
        truth = family_truth(z)
        for op, bound in (("softmax", 1), ("log_softmax", 2)):
            actual, _ = softargmax_side(op, z, case)
            error = ulp_error(actual, *getattr(truth, op))
            below = (actual != 0) & (np.abs(actual) < tiny)
            checked += int(below.sum())
            assert error[below].max(initial=0) <= bound, op
    assert checked > 1000


# --- merged states ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiny_loss_through_merged_states(dtype: str) -> None:
    big, small = np.array([0.0], dtype), np.array([-40.0], dtype)
    state = softargmax.State.empty((), like=big)
    for merged in (
        state.fold(big).merge(state.fold(small)),
        state.fold(small).merge(state.fold(big)),
        state.fold(small).fold(big),
        state.fold(big).merge(state).merge(state.fold(small)),
    ):
        truth = exact_family([0.0, -40.0])
        assert ulp_error(np.asarray(merged.finalize().lse), *truth.logsumexp).max() <= 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_merged_states(dtype: str) -> None:
    """States of any parts of a row, merged in any order, keep the bound of logsumexp."""
    rng = np.random.default_rng(6)
    for s in (1, 10, 40, 1e3):
        z = (s * rng.standard_normal((50, 257))).astype(dtype)
        cuts = np.sort(rng.choice(np.arange(1, 257), 6, replace=False))
        empty = softargmax.State.empty(50, like=z)
        states = [empty.fold(part) for part in np.split(z, cuts, axis=1)]
        while len(states) > 1:
            first = states.pop(int(rng.integers(len(states))))
            at = int(rng.integers(len(states)))
            states[at] = states[at].merge(first)
        truth = family_truth(z)
        error = ulp_error(np.asarray(states[0].finalize().lse), *truth.logsumexp, at=truth.largest)
        assert error.max() <= BOUND[dtype]


# --- half precision ---------------------------------------------------------------------------------------------------


def _halves() -> list[Case]:
    return [case for dtype in ("float16", "bfloat16") for case in cases(dtype)]


@pytest.mark.parametrize("case", _halves(), ids=_id)
def test_half_is_the_float32_result_rounded_once(case: Case) -> None:
    torch = pytest.importorskip("torch")
    for z in pieces(case, 6_000):
        tensor = torch.from_numpy(z).to(getattr(torch, case.dtype))
        for op in ("softmax", "log_softmax"):
            function = getattr(softargmax, op)
            options = {"temperature": case.temperature, "base": case.base}
            found = function(tensor, **options)
            wide = function(tensor.float(), **options)
            assert found.dtype == tensor.dtype
            assert torch.equal(found, wide.to(tensor.dtype)), op
            if case.dtype == "float16":
                assert np.array_equal(function(z, **options), found.numpy()), op
        lse = softargmax.logsumexp(tensor, **options)
        assert lse.dtype == torch.float32
        assert torch.equal(lse, softargmax.logsumexp(tensor.float(), **options))


# --- the family's other members ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weighted_logsumexp(dtype: str) -> None:
    rng = np.random.default_rng(7)
    for s in (1, 10, 40):
        z = (s * rng.standard_normal(30)).astype(dtype)
        w = (10 ** rng.uniform(-3, 3, 30)).astype(dtype)
        truth = exact_family(z, 1.7, None, w)
        lse = softargmax.logsumexp(z, temperature=1.7, weights=w)
        at = np.maximum(truth.largest, np.abs(np.log(w)).max())
        assert ulp_error(lse, *truth.logsumexp, at=at).max() <= BOUND[dtype]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logcumsumexp(dtype: str) -> None:
    rng = np.random.default_rng(9)
    for s, temperature in ((1, 1.0), (10, 1.0), (40, 1.0), (10, 3.7), (10, -0.3), (2000, 0.7)):
        z = (s * rng.standard_normal(2000)).astype(dtype)
        found = softargmax.logcumsumexp(z, temperature=temperature)
        for n in (1, 2, 3, 17, 900, 2000):
            truth = family_truth(z[:n], temperature)
            assert ulp_error(found[n - 1 : n], *truth.logsumexp, at=truth.largest).max() <= BOUND[dtype], n


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_segments(dtype: str) -> None:
    rng = np.random.default_rng(10)
    z = (20 * rng.standard_normal(1000)).astype(dtype)
    offsets = np.concatenate([[0], np.sort(rng.integers(0, 1001, 60)), [1000]])
    found = Family(
        softargmax.segment_softmax(z, offsets),
        softargmax.segment_log_softmax(z, offsets),
        softargmax.segment_logsumexp(z, offsets),
        np.zeros(1),
    )
    for s, (start, stop) in enumerate(pairwise(offsets)):
        if start == stop:
            assert found.logsumexp[s] == -np.inf
            continue
        truth = family_truth(z[start:stop])
        assert ulp_error(found.softmax[start:stop], *(_row(x) for x in truth.softmax)).max() <= BOUND[dtype]
        assert ulp_error(found.log_softmax[start:stop], *(_row(x) for x in truth.log_softmax)).max() <= BOUND[dtype]
        assert ulp_error(found.logsumexp[s], *truth.logsumexp, at=truth.largest).max() <= BOUND[dtype]


def _row(part: object) -> object:
    return part[0] if isinstance(part, np.ndarray) and part.ndim == 2 else part
