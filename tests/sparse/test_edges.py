"""Edge rows of the sparse maps: values and gradients on every backend except JAX, which test_jax.py tests."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.oracle.backends import DIFFERENTIATING, Backend
from tests.oracle.truth import ulp_error

import softargmax as s

INF, NAN = math.inf, math.nan
THIRD = 1 / 3
FAR = ("far below", "spread of 1e38")
ALPHAS = (1.0, 1 + 1e-6, 1.25, 1.5, 2.0, 3.0, 0.1, 0.9, 0.5)


class Row(NamedTuple):
    name: str
    z: list[float]
    p: list[float]
    tau: float | None  # None if tau is finite: `check_threshold` computes it
    support: int
    where: list[bool] | None = None
    constant: bool = False  # True for a row of infinities, whose derivatives are 0


NONE = [False, False, False]
ROWS = (
    Row("some -inf", [-INF, 0, 0, -INF], [0, 0.5, 0.5, 0], None, 2),
    Row("one left", [-INF, 3, -INF], [0, 1, 0], None, 1),
    Row("all -inf", [-INF, -INF, -INF], [0, 0, 0], -INF, 0),
    Row("one -inf alone", [-INF], [0], -INF, 0),
    Row("empty", [], [], -INF, 0),
    Row("all masked", [1, NAN, INF], [0, 0, 0], -INF, 0, NONE),
    Row("NaN masked", [1, NAN, 1], [0.5, 0, 0.5], None, 2, [True, False, True]),
    Row("inf masked", [1, INF, 1], [0.5, 0, 0.5], None, 2, [True, False, True]),
    Row("-inf masked", [1, -INF, 1], [0.5, 0, 0.5], None, 2, [True, False, True]),
    Row("huge masked", [1, 3e38, 1], [0.5, 0, 0.5], None, 2, [True, False, True]),
    Row("one inf", [1, INF, 2], [0, 1, 0], INF, 1, constant=True),
    Row("inf alone", [INF], [1], INF, 1, constant=True),
    Row("k inf", [INF, 0, INF, -INF, INF], [THIRD, 0, THIRD, 0, THIRD], INF, 3, constant=True),
    Row("inf, others masked", [INF, 5, INF], [1, 0, 0], INF, 1, [True, True, False], constant=True),
    Row("NaN", [1, NAN, 2], [NAN, NAN, NAN], NAN, -1),
    Row("NaN beats inf", [1, NAN, INF], [NAN, NAN, NAN], NAN, -1),
    Row("NaN alone", [NAN], [NAN], NAN, -1),
    Row("NaN and -inf", [NAN, -INF], [NAN, 0], NAN, -1),
    Row("NaN, others masked", [1, NAN, 2], [NAN, NAN, 0], NAN, -1, [True, True, False]),
    Row("one", [7], [1], None, 1),
    Row("all equal", [2, 2, 2], [THIRD, THIRD, THIRD], None, 3),
    Row("spread of 1e38", [3e38, -3e38, 3e38], [0.5, 0, 0.5], None, 2),
    Row("far below", [-1e38, -3e38], [1, 0], None, 1),
    Row("subnormal", [1e-40, 0, -1e-40], [THIRD, THIRD, THIRD], None, 3),
    Row("-0.0", [-0.0, 0.0], [0.5, 0.5], None, 2),
    Row("most negative", [-3.4028234663852886e38] * 2 + [-INF], [0.5, 0.5, 0], None, 2),
)
HUGE = (
    Row("spread of 1e308", [1e308, -1e308, 1e308], [0.5, 0, 0.5], None, 2),
    Row("largest", [1.79e308] * 3, [THIRD] * 3, None, 3),
    Row("most negative in float64", [-INF] + [-1.7976931348623157e308] * 3, [0] + [THIRD] * 3, None, 3),
    Row("least subnormals", [5e-324, 0.0, -5e-324], [THIRD] * 3, None, 3),
)
each = pytest.mark.parametrize("row", ROWS + HUGE, ids=lambda row: row.name)


def orders(row: Row, alphas: tuple[float, ...]) -> list[float]:
    """Return the orders at which a row has its listed p.

    Rows in FAR do not have it at orders below 1. There every finite score has p > 0, even at a distance of 1e38 from
    the maximum.
    """
    return [alpha for alpha in alphas if alpha >= 1 or row.name not in FAR]


def serves(row: Row, backend: Backend, dtype: str) -> bool:
    sizes = [abs(x) for x in row.z if x and math.isfinite(x)]
    largest, smallest = max(sizes, default=0.0), min(sizes, default=1.0)
    if "16" in dtype:
        return largest < 100 and smallest > 1e-3
    return not (dtype == "float32" and row in HUGE)


def masked(row: Row, backend: Backend, *, rows: bool) -> dict[str, Any]:
    if row.where is None:
        return {}
    return {"where": backend.array([row.where] if rows else row.where)}


@each
def test_values(row: Row, quick: Backend) -> None:
    """Every edge row gets its listed p and puts no NaN into other rows, for one alpha and for an array of alphas."""
    z = np.array([np.zeros(len(row.z)), row.z, np.ones(len(row.z))])
    for dtype in quick.dtypes:
        if not serves(row, quick, dtype):
            continue
        for alpha in orders(row, ALPHAS if quick.implementation == "native" else ALPHAS[::2]):
            for order in (alpha, quick.array(np.full(3, alpha))):
                p = quick.back(s.entmax(quick.array(z, dtype), order, **masked(row, quick, rows=True)))
                where = (row.name, dtype, alpha, p)
                assert ulp_error(p[1], np.array(row.p), dtype=dtype).max(initial=0) <= 1, where
                if row.where is None:
                    assert not np.isnan(p[[0, 2]]).any(), where
            check_threshold(row, quick, dtype, alpha)


@each
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_of_long_rows(row: Row, dtype: str) -> None:
    """An edge row, padded with -inf to 67 scores for the kernel for long rows, has its listed p and support.

    Its loss is NaN if and only if a p of the row is NaN.
    """
    if not serves(row, Backend("numpy", "native"), dtype):
        return
    z, p, mask = np.full(67, -INF), np.zeros(67), np.ones(67, bool)
    z[: len(row.z)], p[: len(row.z)], mask[: len(row.z)] = row.z, row.p, row.where or True
    for alpha in orders(row, ALPHAS):
        found, root = s.entmax(z.astype(dtype), alpha, where=mask), s.threshold(z.astype(dtype), alpha, where=mask)
        assert ulp_error(found, p, dtype=dtype).max() <= 1, (row.name, alpha, found)
        assert root.support_size == row.support, (row.name, alpha, root)
        loss = s.entmax_loss(z.astype(dtype), p.argmax(), alpha, where=mask)
        assert math.isnan(loss) == np.isnan(p).any(), (row.name, alpha, loss)


def check_threshold(row: Row, backend: Backend, dtype: str, alpha: float) -> None:
    found = s.threshold(backend.array([row.z], dtype), alpha, **masked(row, backend, rows=True))
    tau, support = float(backend.back(found.tau)[0]), int(backend.back(found.support_size)[0])
    where = (row.name, dtype, alpha, tau, support)
    assert support == row.support, where
    if row.tau is None:
        largest = max(x for x in row.z if math.isfinite(x) and (row.where is None or row.where[row.z.index(x)]))
        count = sum(p > 0 for p in row.p)
        wanted = (alpha - 1) * largest - count ** -(alpha - 1)  # all scores in the support are equal here
        most = float(np.finfo("float64" if dtype == "float64" else "float32").max)
        assert tau == pytest.approx(np.clip(wanted, -most, most), rel=1e-6), where
    else:
        assert tau == row.tau or (math.isnan(tau) and math.isnan(row.tau)), where


@each
@pytest.mark.parametrize("backend", [backend for backend in DIFFERENTIATING if backend.library == "torch"], ids=str)
def test_gradients(row: Row, backend: Backend) -> None:
    """Incoming gradients that are NaN or infinite where p is 0 are ignored. Rows of infinities have derivative 0.

    All p above 0 are equal in these rows, so the gradient is (g - mean of g) times s = p^(2 - alpha).
    """
    p = np.array(row.p, np.float64)
    inside, g = p != 0, np.arange(1.0, len(row.z) + 1)
    mean = g[inside].mean() if inside.any() else 0.0
    options = masked(row, backend, rows=False)
    for dtype, alpha in itertools.product(("float32", "float64"), orders(row, ALPHAS)):
        if not serves(row, backend, dtype) or (alpha == 1 and row.name in FAR):
            # At alpha = 1 every finite score is in the support. So a NaN in g counts even where p is rounded to 0.
            continue
        wanted = np.where(inside, np.where(inside, p, 1) ** (2 - alpha) * (g - mean), 0.0)
        wanted = np.zeros(len(g)) if row.constant else np.where(inside & np.isnan(p), NAN, wanted)
        for outside in (NAN, INF):
            incoming = backend.array(np.where(inside, g, outside), dtype)
            with backend.using():
                found = backend.gradient(
                    lambda z: s.entmax(z, alpha, **options),  # noqa: B023
                    backend.array(row.z, dtype),
                    incoming,
                )
            where = (row.name, dtype, alpha, found, wanted)
            assert (np.isnan(found) == np.isnan(wanted)).all(), where
            rounding = 2.0 ** (-20 if dtype == "float32" else -49)
            assert (np.abs(np.nan_to_num(found) - np.nan_to_num(wanted)) <= 8 * rounding).all(), where


@pytest.mark.parametrize("row", [row for row in ROWS if row.tau is not None], ids=lambda row: row.name)
@pytest.mark.parametrize("name", ["native", "reference"])
def test_gradients_of_tau_and_alpha(row: Row, name: str) -> None:
    """For an empty support, the derivatives of tau and p are 0. A NaN does not affect other rows."""
    torch = pytest.importorskip("torch")
    where = None if row.where is None else torch.tensor([row.where, [True] * 3])
    for alpha, which in itertools.product((1.0, 1.5, 2.5), (s.entmax, lambda *z, **o: s.threshold(*z, **o).tau)):
        z = torch.tensor([row.z, [0.0] * len(row.z)], dtype=torch.float64, requires_grad=True)
        a = torch.full((2,), alpha, dtype=torch.float64, requires_grad=True)
        with s.using(name):
            which(z, a, where=where).sum().backward()
        message = (row.name, alpha, which, z.grad, a.grad)
        assert z.grad[1].isfinite().all(), message
        assert a.grad[1].isfinite(), message
        if row.support == 0 or (row.constant and which is s.entmax):
            assert (z.grad[0] == 0).all(), message
            assert abs(a.grad[0]) < 1e-15, message


@pytest.mark.parametrize("alpha", [1.0, 1.5, 3.0])
def test_both_implementations_have_equal_gradients_of_an_infinite_tau(alpha: float) -> None:
    torch = pytest.importorskip("torch")
    found = []
    for name in ("native", "reference"):
        z = torch.tensor([INF, 0.0, INF], dtype=torch.float64, requires_grad=True)
        with s.using(name):
            s.threshold(z, torch.tensor(alpha)).tau.backward()
        found.append(z.grad.tolist())
    assert found[0] == found[1]


def test_an_infinite_tau_of_finite_scores_keeps_the_gradient() -> None:
    """If (alpha - 1) max z overflows but the scores are finite, the gradient is that of an ordinary row."""
    torch = pytest.importorskip("torch")
    for dtype, top in ((torch.float32, 2e38), (torch.float64, 1e308)):
        for name in ("native", "reference"):
            z = torch.full((2,), top, dtype=dtype, requires_grad=True)
            with s.using(name):
                s.entmax(z, 3.0)[0].backward()
            assert torch.allclose(z.grad, torch.tensor([1.0, -1.0], dtype=dtype)), (name, z.grad)
