"""Values and gradients of arrays and tensors equal those in extended precision, for combinations of options."""

from __future__ import annotations

import importlib
import itertools
import math
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.loss import truth
from tests.loss.cases import CHOICES, PRODUCTS, SOFT, THREES, Z, rounded, shown

import softargmax as s
from softargmax.core.scale import UNIT
from softargmax.loss.arguments import CrossEntropy, LossOptions
from softargmax.loss.operations import cross_entropy

pytestmark = pytest.mark.no_sanitize  # takes minutes with sanitizers, which check the same code in other tests
INF = math.inf


def test_there_are_enough_combinations() -> None:
    assert len(PRODUCTS) >= 500
    for names in itertools.combinations(CHOICES, 3):
        met = {tuple(id(case[name]) for name in names) for case in THREES}
        assert len(met) == math.prod(len(CHOICES[name]) for name in names), names


class Bounds(NamedTuple):
    """Bounds of errors in ulp: of the loss, and of gradients relative to the largest gradient of the row."""

    values: float = 3.0
    gradients: float = 3.0


DEFINED = Bounds(4.0, 6.0)
"""Bounds for the reference with float64 scores. The reference rounds beta, weights and slopes to float64."""


def worst(
    measured: dict[str, float], case: dict[str, Any], dtype: str, bounds: Bounds, found: Any, wanted: truth.Batch
) -> None:
    """Record the largest errors of values and gradients in ulp, and check their bounds.

    If p is close to the target, the gradient is a difference of two nearly equal numbers. For float32 scores, errors
    from rounding these numbers to float64 are not counted. For float64 scores, the unit is the ulp of the larger
    number.
    """
    loss, gradient = found
    largest = np.abs(wanted.gradient).max(-1)
    scale = np.asarray(wanted.scale)
    exact = np.abs(gradient.astype(truth.Wide) - wanted.gradient)
    if dtype == "float64":
        largest, slack = np.maximum(largest, scale), 0.0
    else:
        slack = DEFINED.gradients * np.spacing(scale.astype(np.float64))
    unit = np.spacing(largest.astype(dtype)).astype(truth.Wide)
    errors = {
        "loss": (truth.ulp(loss, wanted.loss), bounds.values),
        "gradient": (np.maximum(exact - np.reshape(slack, (-1, 1)), 0) / unit[:, None], bounds.gradients),
    }
    for name, (error, bound) in errors.items():
        size = float(np.max(error, initial=0.0))
        assert size <= bound, (name, size, shown(case))
        measured[name] = max(measured.get(name, 0.0), size)


def core_tanh(u: Any) -> Any:
    """Return the tanh of the compiled core, from a call with a soft-cap of 1 and rows of one score."""
    rows = np.ascontiguousarray(u, np.float64).reshape(-1, 1)
    options = LossOptions(np.zeros(u.size, np.int64), None, None, None, UNIT, -100, 0.0, 0.0, 1.0)
    m, r, _ = cross_entropy(CrossEntropy(rows, options, (1,), 1, False, rows.dtype)).states.T
    return np.where(np.isnan(r), r, m)


def test_the_soft_cap_of_the_core() -> None:
    u = np.concatenate([np.geomspace(1e-300, 800, 20_001), np.linspace(0, 3, 20_001), [0.0, 1e308, INF]])
    u = np.concatenate([u, -u[:-1]])  # -inf is outside the support
    found, exact = core_tanh(u), np.tanh(u.astype(truth.Wide))
    assert truth.ulp(found, exact).max() <= 4
    assert np.isnan(core_tanh(np.array([math.nan]))).all()


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["automatic", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_gradients(dtype: str, implementation: str) -> None:
    z = Z.astype(dtype)
    measured: dict[str, float] = {}
    for plain in PRODUCTS:
        case = rounded(plain, dtype)
        wanted = truth.batch(z, **case, tanh=core_tanh if implementation == "automatic" else truth.numpy_tanh)
        options = {name: value for name, value in case.items() if name != "target"}
        with nullcontext() if implementation == "automatic" else s.using(implementation):
            loss, gradient = s.cross_entropy_and_gradient(z, case["target"], **options)
            assert np.array_equal(loss, s.cross_entropy(z, case["target"], **options))
        assert loss.dtype == gradient.dtype == z.dtype
        bounds = DEFINED if implementation == "reference" and dtype == "float64" else Bounds()
        worst(measured, plain, dtype, bounds, (loss, gradient), wanted)
    print(measured)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tensors_and_their_derivatives(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    z = Z.astype(dtype)
    measured: dict[str, float] = {}

    for plain in PRODUCTS:
        case = rounded(plain, dtype)
        wanted = truth.batch(z, **case, tanh=core_tanh)
        options = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in case.items()}
        scores = torch.from_numpy(z).clone().requires_grad_()
        loss = s.cross_entropy(scores, options.pop("target"), **options)
        (gradient,) = torch.autograd.grad(loss, scores, torch.ones_like(loss))
        assert loss.dtype == gradient.dtype == scores.dtype
        worst(measured, plain, dtype, Bounds(), (loss.detach().numpy(), gradient.numpy()), wanted)
    print(measured)


def test_terms() -> None:
    for plain in THREES:
        wanted, loss = truth.batch(Z, **plain).rows, truth.batch(Z, **plain, tanh=core_tanh).rows.loss
        options = {name: value for name, value in plain.items() if name not in ("target", "reduction")}
        found = s.cross_entropy_terms(Z, plain["target"], **options, reduction="none")
        assert truth.ulp(found.loss, loss).max() <= 4, shown(plain)
        for name in ("entropy", "z_loss"):
            assert truth.ulp(getattr(found, name), getattr(wanted, name)).max() <= 4, (name, shown(plain))
        largest = np.maximum(np.abs(wanted.lse), 1.0)
        assert truth.ulp(found.lse, wanted.lse, largest).max() <= 4, shown(plain)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_reduced_terms(reduction: str) -> None:
    for plain in PRODUCTS[::50]:
        options = {**plain, "reduction": reduction}
        target = options.pop("target")
        rows = s.cross_entropy_terms(Z, target, **{**options, "reduction": "none"})
        found = s.cross_entropy_terms(Z, target, **options)
        assert np.array_equal(found.loss, s.cross_entropy(Z, target, **options))
        kept = np.ones(len(Z), bool) if target is SOFT else target != -100
        weight = options["weight"]
        counts = kept * (1.0 if weight is None or target is SOFT else weight[target * kept])

        def by(rows: Any, counts: Any) -> Any:
            if reduction == "none":
                return rows
            return rows.sum() / (counts.sum() if reduction == "mean" else 1.0)

        assert np.allclose(found.z_loss, by(rows.z_loss, counts), rtol=1e-14)
        assert np.allclose(found.entropy, by(rows.entropy, kept), rtol=1e-14)
        assert np.allclose(found.lse, by(rows.lse, kept), rtol=1e-13)


def test_agreement_with_torch() -> None:
    torch = pytest.importorskip("torch")
    functional = importlib.import_module("torch.nn.functional")
    scores = torch.from_numpy(Z).requires_grad_()
    compared = 0
    for plain in PRODUCTS:
        if plain["z_loss"] or plain["where"] is not None or isinstance(plain["temperature"], np.ndarray):
            continue
        case = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in plain.items()}
        softcap, T, target = case.pop("softcap"), case.pop("temperature"), case.pop("target")
        case.pop("z_loss"), case.pop("where")
        ours = s.cross_entropy(scores, target, softcap=softcap, temperature=T, **case)
        x = (scores if softcap is None else softcap * torch.tanh(scores / softcap)) / T
        theirs = functional.cross_entropy(x, target, **case)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        mine, peers = (torch.autograd.grad(one.sum(), scores)[0] for one in (ours, theirs))
        torch.testing.assert_close(mine, peers, rtol=1e-9, atol=1e-12)
        compared += 1
    assert compared >= 200
