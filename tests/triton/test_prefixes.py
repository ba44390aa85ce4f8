"""The CUDA kernels of prefixes in the interpreter: values, edges, bits and derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.oracle.truth import ulp_error

import softargmax as sa
from softargmax.core import dispatch

if not dispatch.INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1: run `make test-triton`", allow_module_level=True)

import torch

from softargmax.core.scale import UNIT, Scale
from softargmax.normalize import prefix_operations, triton_prefixes
from softargmax.normalize.prefix_operations import LogCumSumExp, PrefixSlopes

INF, NAN = float("inf"), float("nan")
LONG = 39
"""Rows of this length have 10 pieces of 4 scores, whose states are scanned in 3 steps. Others have one piece."""
TEMPERATURES = torch.tensor([[1.0], [0.3], [0.0], [-1.5], [INF], [2.0], [1.0], [0.0]])


@pytest.fixture(autouse=True)
def triton(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All calls run the CUDA kernels."""
    if "classes" in request.fixturenames and request.getfixturevalue("classes") == LONG:
        monkeypatch.setattr(triton_prefixes, "PIECE", 4)
    with sa.using("triton"):
        yield


def scores(*shape: int, spread: float = 1.0, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


def special(classes: int) -> torch.Tensor:
    z = scores(8, classes, spread=3.0)
    z[0, 2], z[1, 1], z[2], z[3, 0], z[4, 1] = INF, NAN, -INF, -INF, INF
    z[4, -1], z[5, 1], z[5, -1], z[6, 0], z[6, 1] = INF, INF, NAN, -1e38, -INF
    z[7] = 2.0
    return z


def surprisals(z: torch.Tensor, where: torch.Tensor | None = None, beta: Scale = UNIT) -> torch.Tensor:
    found: torch.Tensor = prefix_operations.prefix_surprisals.first(LogCumSumExp(z, where, beta, (1,), z.dtype))
    return found


@pytest.mark.parametrize("spread", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [1, 5, 100, LONG])
def test_values(classes: int, dtype: torch.dtype, spread: float) -> None:
    z = scores(3, classes, spread=spread, dtype=dtype)
    z[1] = z[1].sort().values
    name, most = str(dtype)[6:], 3.0 if dtype is torch.float32 else 0.51
    for options in ({}, {"temperature": -0.7}):
        with sa.using("reference"):
            expected = sa.logcumsumexp(z.double(), **options).numpy()
        found = sa.logcumsumexp(z, **options)
        largest = np.maximum(z.double().abs().cummax(1).values.numpy(), np.abs(expected))
        assert ulp_error(found.float().numpy(), expected, dtype=name, at=largest).max() <= most
    with sa.using("reference"):
        truth = surprisals(z.double()).numpy()
    assert ulp_error(surprisals(z).float().numpy(), truth, dtype=name).max() <= most


@pytest.mark.parametrize("temperature", [1.0, 0.0, INF, -0.7, TEMPERATURES])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("classes", [5, LONG])
def test_edges(classes: int, masked: bool, temperature: Any) -> None:
    z = special(classes)
    where = torch.rand(z.shape, generator=torch.Generator().manual_seed(3)) > 0.3 if masked else None
    found = sa.logcumsumexp(z, temperature=temperature, where=where)
    wide = temperature.double() if isinstance(temperature, torch.Tensor) else temperature
    with sa.using("reference"):
        expected = sa.logcumsumexp(z.double(), temperature=wide, where=where)
    largest = torch.where(z.double().abs() < INF, z.double().abs(), 0.0).amax()
    np.testing.assert_allclose(
        found.numpy(), expected.float().numpy(), rtol=3 * 2.0**-23, atol=3 * 2.0**-24 * min(float(largest), 16.0)
    )
    beta = Scale(1.0 / TEMPERATURES.double(), torch.zeros(8, 1, dtype=torch.float64))
    with sa.using("reference"):
        truth = surprisals(z.double(), where, beta)
    assert ulp_error(surprisals(z, where, beta).numpy(), truth.numpy()).max() <= 3


@pytest.mark.parametrize(("classes", "dtype"), [(3, torch.bfloat16), (100, torch.float32), (LONG, torch.float32)])
def test_a_row_has_the_same_bits_in_every_batch_and_layout(classes: int, dtype: torch.dtype) -> None:
    z = scores(3, classes, spread=4.0, dtype=dtype)
    z[1, 0] = 60.0

    def results(z: torch.Tensor, axis: int = -1) -> list[torch.Tensor]:
        leaf = z.clone(memory_format=torch.preserve_format).requires_grad_()
        found = sa.logcumsumexp(leaf, axis=axis)
        g = torch.linspace(-1.0, 1.0, classes).to(z)
        slope = torch.autograd.grad(found, leaf, (g if axis else g[:, None]).expand(z.shape))[0]
        tangent = torch.func.jvp(lambda x: sa.logcumsumexp(x, axis=axis), (z,), (torch.ones_like(z),))[1]
        return [found.detach(), slope, tangent]

    whole = results(z)
    assert all(torch.equal(one[1:2], x) for one, x in zip(whole, results(z[1:2]), strict=True))
    down = results(z.T.contiguous(), axis=0)
    assert all(torch.equal(one, x.T) for one, x in zip(whole, down, strict=True))
    spaced = results(torch.stack([z, z], 1)[:, 0])
    assert all(map(torch.equal, whole, spaced))


def test_a_prefix_has_the_same_bits_in_a_longer_row() -> None:
    z = scores(2, 100, spread=4.0)
    assert torch.equal(sa.logcumsumexp(z[:, :37]), sa.logcumsumexp(z)[:, :37])


def test_pieces_have_the_bits_of_their_own_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    z = scores(2, LONG, spread=4.0)
    monkeypatch.setattr(triton_prefixes, "PIECE", 4)
    assert torch.equal(sa.logcumsumexp(z[:, :17]), sa.logcumsumexp(z)[:, :17])


def slopes(function: Callable[..., Any], z: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of <g, function(z)>, and the tangent of function(z) for the tangent g of z."""
    leaf = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(leaf), leaf, g)
    return slope, torch.func.jvp(function, (z,), (g,))[1]


@pytest.mark.parametrize("temperature", [1.0, -0.5, TEMPERATURES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [5, 70, LONG])
def test_derivatives(classes: int, dtype: torch.dtype, temperature: Any) -> None:
    z, g = scores(8, classes, spread=3.0, dtype=dtype), scores(8, classes, dtype=dtype, seed=1)
    wide = temperature.double() if isinstance(temperature, torch.Tensor) else temperature
    found = slopes(lambda z: sa.logcumsumexp(z, temperature=temperature), z, g)
    with sa.using("native"):
        of = [
            slopes(lambda z: sa.logcumsumexp(z, temperature=wide), z.double(), x)
            for x in (g.double(), g.double().abs())
        ]
    # The gradient has the dtype of z. logcumsumexp of bfloat16, and its tangent, are float32.
    for one, right, size, expected in zip(found, *of, (dtype, torch.float32), strict=True):
        assert one.dtype == expected
        # The sums are in float64. The gradient is linear in g, and g has no error. A result is rounded to float32, and
        # then to its dtype.
        half = torch.finfo(expected).eps / 2 if expected is torch.bfloat16 else 0.0
        allowed = 2.0**-40 * size.abs() + right.abs() * (2.0**-24 + half) + 2.0**-149
        assert ((one.double() - right).abs() <= allowed).all()


@pytest.mark.parametrize("classes", [5, LONG])
def test_gradients_of_special_rows(classes: int) -> None:
    z, g = special(classes), scores(8, classes, seed=1)
    found = slopes(sa.logcumsumexp, z, g)
    with sa.using("native"):
        expected = slopes(sa.logcumsumexp, z.double(), g.double())
    for one, right in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), right, rtol=2.0**-24, atol=2.0**-40, equal_nan=True)


def test_second_derivatives_and_vmap() -> None:
    z = scores(4)

    def loss(z: torch.Tensor) -> torch.Tensor:
        return (sa.logcumsumexp(z) ** 2).sum()

    def of(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        many = torch.stack([z, z.flip(0)])
        return torch.func.hessian(loss)(z), torch.func.vmap(torch.func.grad(loss))(many)

    found = of(z)
    with sa.using("native"):
        expected = of(z.double())
    for one, right in zip(found, expected, strict=True):
        assert ((one.double() - right).abs() <= 2.0**-18 * right.abs().max()).all()


def test_the_gradient_of_temperatures_is_that_of_the_definition() -> None:
    z, t = scores(3, 5), torch.tensor([[0.5], [1.0], [-2.0]])

    def of(z: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = z.clone().requires_grad_(), t.clone().requires_grad_()
        return torch.autograd.grad(sa.logcumsumexp(leaves[0], temperature=leaves[1]).sum(), leaves)

    found = of(z, t)
    with sa.using("native"):
        expected = of(z.double(), t.double())
    for one, right in zip(found, expected, strict=True):
        assert ((one.double() - right).abs() <= 2.0**-20 * right.abs().max()).all()


def records(z: torch.Tensor) -> dict[Any, Any]:
    """The arguments of each operation."""
    of = LogCumSumExp(z, None, UNIT, (1,), z.dtype)
    g = torch.ones_like(z).detach()
    return {
        prefix_operations.logcumsumexp: of,
        prefix_operations.prefix_surprisals: of,
        prefix_operations.prefix_slopes: PrefixSlopes(of, g, True),
    }


def test_the_operators_pass_opcheck() -> None:
    for operation, i in records(scores(3, 5).requires_grad_()).items():
        torch.library.opcheck(operation.torch.overload, operation.torch.flatten(i))


def test_the_definitions_serve_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    monkeypatch.setattr(triton_prefixes, "launch", lambda *_a, **_k: launched.append(1))
    for operation, i in records(scores(3, 5).double()).items():
        assert operation.first(i).shape == (3, 5)
    assert sa.logcumsumexp(torch.empty(3, 0)).shape == (3, 0)
    assert not launched
    for number, (operation, i) in enumerate(records(scores(3, 5)).items()):
        operation.first(i)
        assert len(launched) == number + 1
