"""The CUDA kernels of Renyi entropies in the interpreter: accuracy, orders, edges and bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from tests.normalize.test_renyi import CONFIDENT, ORDERS, truth
from tests.oracle.truth import ulp_error

import softargmax as sa
from softargmax.core import dispatch

if not dispatch.INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1: run `make test-triton`", allow_module_level=True)

import torch

from softargmax.core import triton_launch
from softargmax.core.scale import UNIT, scale_of_number
from softargmax.normalize import triton_sums
from softargmax.normalize.entropy_operations import RenyiEntropy, RenyiVjp, renyi_entropy, renyi_entropy_vjp

INF, NAN = math.inf, math.nan
LONG = 40
"""Rows of this length are cut into two parts of 16 scores and one of 8. Others stay in registers."""


@pytest.fixture(autouse=True)
def triton(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All calls run the CUDA kernels."""
    if "classes" in request.fixturenames and request.getfixturevalue("classes") == LONG:
        monkeypatch.setattr(triton_sums, "HALF_PART", 16)
    with sa.using("triton"):
        yield


def scores(*shape: int, spread: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * spread).to(dtype)


@pytest.mark.parametrize("classes", [2, 7, LONG])
@pytest.mark.parametrize("order", ORDERS)
def test_accuracy(order: float, classes: int) -> None:
    # The kernel computes in float64. Its result is rounded once, and far from a rounding the error is tiny.
    z = torch.cat([scores(1, classes, spread=spread) for spread in (0.01, 1.0, 10.0, 40.0, 300.0)])
    found = sa.renyi_entropy(z, order, temperature=1.5).numpy()
    with mp.workdps(600):
        expected = [truth(row, order, 1 / mp.mpf(1.5)) for row in z.double().numpy()]
        known = np.array([float(one) for one in expected])
    tiny = known < 1e-30
    assert ulp_error(found[~tiny], known[~tiny]).max(initial=0.0) <= 0.51
    assert (np.abs(found[tiny]) <= 1e-30).all()


@pytest.mark.parametrize("order", [0.3, 0.999999, 1.0, 1.0001, 2.0, 5.0, INF])
def test_entropy_of_confident_rows_is_accurate(order: float) -> None:
    for row in CONFIDENT:
        with mp.workdps(60):
            expected = float(truth(row, order))
        assert ulp_error(sa.renyi_entropy(torch.tensor(row), order).numpy(), expected) <= 0.51


@pytest.mark.parametrize("classes", [5, LONG])
def test_parts_have_the_entropy_of_the_row(classes: int) -> None:
    # A part without support, and parts with nearly no mass.
    z = scores(4, classes, spread=3.0)
    z[0, :2], z[1, -2:], z[2, :-1], z[3, 1:] = -INF, -300.0, -200.0, -INF
    for order in (0.0, 0.2, 1.0, 3.0, INF):
        with sa.using("reference"):
            expected = sa.renyi_entropy(z.double(), order)
        assert ulp_error(sa.renyi_entropy(z, order).numpy(), expected.numpy()).max() <= 0.51


def special(classes: int) -> torch.Tensor:
    z = scores(9, classes)
    z[0, -1], z[1, 0], z[2], z[3, 1], z[4, 2] = INF, NAN, -INF, -INF, INF
    z[4, -1], z[5, 1], z[5, -1], z[6, 0], z[7] = INF, INF, NAN, -1e38, 2.0
    return z


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.0, INF, -0.7])
@pytest.mark.parametrize("classes", [5, LONG])
def test_edges(classes: int, temperature: float, masked: bool) -> None:
    z, where = special(classes), None
    if masked:
        where = torch.rand(z.shape, generator=torch.Generator().manual_seed(3)) > 0.3
    each = torch.tensor([0.0, 0.5, 1.0, 2.0, INF, 0.0, 3.0, 1.0, NAN], dtype=torch.float64)[:, None]
    for order in (0.0, 0.5, 1.0, 2.0, INF, NAN, each):
        i = RenyiEntropy(z, where, scale_of_number(temperature), order, (1,), torch.float32)
        with sa.using("native"):
            expected = renyi_entropy.first(i._replace(z=z.double(), dtype=torch.float64))
        assert ulp_error(renyi_entropy.first(i).numpy(), expected.numpy()).max() <= 0.51


@pytest.mark.parametrize(("classes", "dtype"), [(3, torch.bfloat16), (100, torch.float32), (LONG, torch.float32)])
def test_a_row_has_the_same_bits_in_every_batch_and_layout(
    classes: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, order = scores(3, classes, spread=4.0, dtype=dtype), torch.tensor([0.5, 1.0, 2.5])
    whole = sa.renyi_entropy(z, order)
    for row in range(3):
        alone = sa.renyi_entropy(z[row : row + 1], order[row : row + 1])
        assert torch.equal(alone, whole[row : row + 1])
        assert torch.equal(sa.renyi_entropy(z[row : row + 1], float(order[row])), alone)
    assert torch.equal(sa.renyi_entropy(z.T.contiguous(), order, axis=0), whole)
    monkeypatch.setattr(triton_launch, "MANY", 1)
    assert torch.equal(sa.renyi_entropy(z, order), whole)
    assert torch.equal(slope(z[:1], order[:1]), slope(z, order)[:1])


def slope(z: torch.Tensor, order: Any, **options: Any) -> torch.Tensor:
    leaf = z.clone().requires_grad_()
    found = sa.renyi_entropy(leaf, order, **options)
    return torch.autograd.grad(found, leaf, torch.linspace(0.5, 2.0, len(z)).to(found))[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", [0.0, 0.3, 1.0 - 2.0**-40, 1.0, 1.0001, 1.9, 2.0, 5.0, INF])
@pytest.mark.parametrize("classes", [5, LONG])
def test_gradients(classes: int, order: float, dtype: torch.dtype) -> None:
    z = torch.cat([scores(1, classes, spread=spread) for spread in (0.1, 1.0, 10.0)]).to(dtype)
    found = slope(z, order, temperature=0.8)
    with sa.using("native"):
        expected = slope(z.double(), order, temperature=0.8)
    # The kernel computes in float64, as the definition does, and rounds to float32, and then to the dtype.
    half = torch.finfo(dtype).eps / 2 if dtype is torch.bfloat16 else 0.0
    allowed = 2.0**-40 * expected.abs().amax(1, keepdim=True) + expected.abs() * (2.0**-24 + half) + 2.0**-149
    assert ((found.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("temperature", [1.0, 0.0, INF, -0.7])
@pytest.mark.parametrize("classes", [5, LONG])
def test_gradients_of_special_rows(classes: int, temperature: float) -> None:
    z, order = special(classes), torch.tensor([0.0, 0.5, 1.0, 2.0, INF, 0.0, 3.0, 1.0, 0.7], dtype=torch.float64)
    found = slope(z, order, temperature=temperature)
    with sa.using("native"):
        expected = slope(z.double(), order, temperature=temperature)
    assert torch.equal(found.isnan(), expected.isnan())
    known = ~expected.isnan()
    allowed = 2.0**-40 * (1.0 + expected.abs()) + expected.abs() * 2.0**-24
    assert ((found.double() - expected).abs() <= allowed)[known].all()


def test_the_gradient_of_orders_is_that_of_the_definition() -> None:
    def of(z: torch.Tensor) -> list[torch.Tensor]:
        leaves = z.clone().requires_grad_(), torch.full((len(z),), 2.5, dtype=z.dtype, requires_grad=True)
        return list(torch.autograd.grad(sa.renyi_entropy(*leaves).sum(), leaves))

    found = of(scores(3, 5))
    with sa.using("native"):
        expected = of(scores(3, 5).double())
    for one, right in zip(found, expected, strict=True):
        assert ((one.double() - right).abs() <= 2.0**-20 * right.abs().max()).all()


def test_the_operators_pass_opcheck_and_the_definition_serves_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    i = RenyiEntropy(scores(3, 5).requires_grad_(), None, UNIT, 2.0, (1,), torch.float32)
    torch.library.opcheck(renyi_entropy.torch.overload, renyi_entropy.torch.flatten(i))
    vjp = RenyiVjp(i._replace(z=scores(3, 5)), torch.ones(3, 1), torch.ones(3, 1))
    torch.library.opcheck(renyi_entropy_vjp.torch.overload, renyi_entropy_vjp.torch.flatten(vjp))
    launched: list[Any] = []
    monkeypatch.setattr(triton_sums, "launch", lambda *_a, **_k: launched.append(1))
    assert renyi_entropy.first(i._replace(z=scores(3, 5).double(), dtype=torch.float64)).shape == (3, 1)
    assert not launched
    renyi_entropy.first(i._replace(z=scores(3, 5)))
    renyi_entropy_vjp.first(vjp)
    assert len(launched) == 2


def test_incoming_gradients_of_nan_are_not_hidden() -> None:
    z = torch.tensor([[1.0, 1.0, -INF], [0.0, 1.0, 2.0], [INF, 0.0, 1.0]])
    for order in (0.0, 2.0):
        leaf = z.clone().requires_grad_()
        (found,) = torch.autograd.grad(sa.renyi_entropy(leaf, order), leaf, torch.full((3,), NAN))
        with sa.using("native"):
            wide = z.double().requires_grad_()
            (expected,) = torch.autograd.grad(sa.renyi_entropy(wide, order), wide, torch.full((3,), NAN).double())
        assert torch.equal(found.isnan(), expected.isnan())
