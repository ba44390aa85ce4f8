"""The CUDA kernels of sums under a softmax, and of their gradients, in the interpreter: values, edges and bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.oracle.truth import ulp_error
from tests.triton.sum_bounds import sizes, within

import softargmax as sa
from softargmax.core import dispatch

if not dispatch.INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1: run `make test-triton`", allow_module_level=True)

import torch

from softargmax.core import triton_launch
from softargmax.core.scale import UNIT
from softargmax.normalize import entropy_operations, operations, triton_sums

INF, NAN = float("inf"), float("nan")
LONG = 40
"""Rows of this length are cut into two parts of 16 scores and one of 8. Others stay in registers."""
DRAWN = [(classes, spread, torch.float32) for classes in (1, 5, 1000, LONG) for spread in (0.01, 1.0, 1e4)]
DRAWN += [(5, 1.0, torch.bfloat16), (LONG, 10.0, torch.bfloat16)]


@pytest.fixture(autouse=True)
def triton(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All calls run the CUDA kernels."""
    if "classes" in request.fixturenames and request.getfixturevalue("classes") == LONG:
        monkeypatch.setattr(triton_sums, "HALF_PART", 16)
    with sa.using("triton"):
        yield


def scores(*shape: int, spread: float = 1.0, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


def wide(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def truth(function: Callable[..., Any], *tensors: torch.Tensor, **options: Any) -> np.ndarray:
    """The result of the definition in float64."""
    with sa.using("reference"):
        return function(*map(wide, tensors), **{name: wide(x) for name, x in options.items()}).numpy()


@pytest.mark.parametrize(("classes", "spread", "dtype"), DRAWN)
def test_results_are_accurate_to_3_ulp(classes: int, spread: float, dtype: torch.dtype) -> None:
    z, other = scores(2, classes, spread=spread, dtype=dtype), scores(2, classes, spread=spread, dtype=dtype, seed=1)
    for function, tensors in ((sa.entropy, (z,)), (sa.soft_argmax, (z,)), (sa.kl_divergence, (z, other))):
        found, expected = function(*tensors), truth(function, *tensors)
        assert found.dtype == torch.float32
        assert ulp_error(found.numpy(), expected).max() <= 3, function


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("classes", [5, 100, LONG])
def test_means_of_values(classes: int, kind: torch.dtype) -> None:
    z, values = scores(3, classes), scores(classes, seed=1).to(kind)
    found, expected = sa.soft_argmax(z, values), truth(sa.soft_argmax, z, values=values)
    size = truth(sa.soft_argmax, z, values=values.abs())
    assert (np.abs(found.numpy() - expected) <= 2 * 2.0**-23 * size).all()  # terms may have any sign


@pytest.mark.parametrize("classes", [3, 50, LONG])
def test_confident_rows(classes: int) -> None:
    z = scores(4 if classes == LONG else 24, classes)
    z[:, classes // 2] = torch.linspace(0.0, 80.0, len(z))
    other = z + scores(len(z), classes, seed=1)
    for function, tensors in ((sa.entropy, (z,)), (sa.kl_divergence, (z, other)), (sa.kl_divergence, (other, z))):
        assert ulp_error(function(*tensors).numpy(), truth(function, *tensors)).max() <= 3, function


@pytest.mark.parametrize("size", [1e-1, 1e-4, 1e-6])
@pytest.mark.parametrize("classes", [5, LONG])
def test_divergences_of_close_distributions(classes: int, size: float) -> None:
    z = scores(6, classes)
    other = z + size * scores(6, classes, seed=1) + torch.tensor([[0.0], [1.0], [0.0], [-3.0], [0.0], [0.5]])
    assert ulp_error(sa.kl_divergence(z, other).numpy(), truth(sa.kl_divergence, z, other)).max() <= 3
    assert ulp_error(sa.kl_divergence(other, z).numpy(), truth(sa.kl_divergence, other, z)).max() <= 3
    assert sa.kl_divergence(z, z).tolist() == [0.0] * 6


@pytest.mark.parametrize("size", [0.5, 1.0, 2.0, 3.0])
def test_divergences_where_the_formula_changes(size: float) -> None:
    z = scores(40, 3)
    other = z + size * torch.tensor([1.0, -1.0, 1.0])
    for tensors in ((z, other), (other, z)):
        assert ulp_error(sa.kl_divergence(*tensors).numpy(), truth(sa.kl_divergence, *tensors)).max() <= 3


MOST = 2.0
"""The largest incoming gradient."""


def special(classes: int) -> torch.Tensor:
    z = scores(10, classes)
    z[0, -1], z[1, 0], z[2], z[3, 1], z[4, 2] = INF, NAN, -INF, -INF, INF
    z[4, -1], z[5, 1], z[5, -1], z[6, 0], z[7] = INF, INF, NAN, -1e38, 2.0
    z[8, :-1] = -INF
    return z


OPTIONS: list[dict[str, Any]] = [
    {}, {"temperature": 0.0}, {"temperature": INF}, {"temperature": -0.7},
    {"temperature": torch.tensor([[1.0], [0.0], [2.0], [INF], [-1.0], [0.5], [1.0], [0.0], [3.0], [1e-3]])},
]  # fmt: skip


EDGES = [(5, options, masked) for options in OPTIONS for masked in (False, True)]
EDGES += [(LONG, OPTIONS[4], True)]


@pytest.mark.parametrize(("classes", "options", "masked"), EDGES)
def test_edges(classes: int, options: dict[str, Any], masked: bool) -> None:
    z, other = special(classes), special(classes).flip(0)
    if masked:
        options = options | {"where": torch.rand(z.shape, generator=torch.Generator().manual_seed(3)) > 0.3}
    for function, tensors in (
        (sa.entropy, (z,)), (sa.soft_argmax, (z,)), (sa.kl_divergence, (z, other)),
        (sa.kl_divergence, (z, scores(10, classes, seed=1))), (sa.kl_divergence, (scores(10, classes, seed=1), z)),
    ):  # fmt: skip
        found, expected = function(*tensors, **options), truth(function, *tensors, **options)
        np.testing.assert_allclose(found.numpy(), expected.astype(np.float32), rtol=1e-6, atol=1e-20)


def test_values_outside_the_support_are_ignored() -> None:
    z, values = torch.tensor([[0.0, -INF, 1.0, -300.0]]), torch.tensor([1.0, NAN, 2.0, INF])
    where = torch.tensor([[True, True, True, False]])
    found, expected = sa.soft_argmax(z, values, where=where), truth(sa.soft_argmax, z, values=values, where=where)
    assert ulp_error(found.numpy(), expected) <= 1


@pytest.mark.parametrize(("classes", "dtype"), [(3, torch.bfloat16), (100, torch.float32), (LONG, torch.float32)])
def test_a_row_has_the_same_bits_in_every_batch_and_layout(
    classes: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, other = scores(3, classes, spread=4.0, dtype=dtype), scores(3, classes, dtype=dtype, seed=1)
    z[2, 0] = 60.0

    def results(z: torch.Tensor, other: torch.Tensor, axis: int = -1) -> list[torch.Tensor]:
        p, q = z.clone().requires_grad_(), other.clone().requires_grad_()
        found = [sa.entropy(p, axis=axis), sa.soft_argmax(p, axis=axis), sa.kl_divergence(p, q, axis=axis)]
        slopes = [torch.autograd.grad(x.sum(), (p, q), allow_unused=True) for x in found]
        return [*(x.detach() for x in found), *(x for pair in slopes for x in pair if x is not None)]

    whole = results(z, other)
    alone = results(z[2:3], other[2:3])
    assert all(torch.equal(one[2:3], x) for one, x in zip(whole, alone, strict=True))
    down = results(z.T.contiguous(), other.T.contiguous(), axis=0)
    assert all(torch.equal(one, x if x.ndim == 1 else x.T) for one, x in zip(whole, down, strict=True))
    monkeypatch.setattr(triton_launch, "MANY", 1)
    assert all(map(torch.equal, whole, results(z, other)))


def gradients(function: Callable[..., Any], *tensors: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    """The gradients of a weighted sum of the results."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    found = function(*leaves, **options)
    return list(torch.autograd.grad(found, leaves, torch.linspace(0.5, MOST, found.numel()).to(found)))


@pytest.mark.parametrize(("classes", "spread", "dtype"), [one for one in DRAWN if one[0] > 1])
def test_gradients(classes: int, spread: float, dtype: torch.dtype) -> None:
    z, other = scores(2, classes, spread=spread, dtype=dtype), scores(2, classes, spread=spread, dtype=dtype, seed=1)
    values: dict[str, Any] = {"values": scores(classes, seed=2)}
    for function, tensors, options in (
        (sa.entropy, (z,), {}), (sa.soft_argmax, (z,), {}), (sa.soft_argmax, (z,), values),
        (sa.kl_divergence, (z, other), {}),
    ):  # fmt: skip
        found = gradients(function, *tensors, temperature=0.8, **options)
        with sa.using("native"):
            named = {name: x.double() for name, x in options.items()}
            expected = gradients(function, *map(wide, tensors), temperature=0.8, **named)
        size = sizes(function, *tensors, temperature=0.8, **options)
        for one, right, of in zip(found, expected, size, strict=True):
            assert one.dtype == dtype
            assert within(one, right, of, MOST), function


@pytest.mark.parametrize(("classes", "options"), [*((5, options) for options in OPTIONS), (LONG, OPTIONS[4])])
def test_gradients_of_special_rows(classes: int, options: dict[str, Any]) -> None:
    z, other = special(classes), scores(10, classes, seed=1)
    named = {name: wide(x) for name, x in options.items()}
    for function, tensors in (
        (sa.entropy, (z,)), (sa.soft_argmax, (z,)), (sa.kl_divergence, (z, other)), (sa.kl_divergence, (other, z)),
    ):  # fmt: skip
        with sa.using("native"):
            expected = gradients(function, *map(wide, tensors), **named)
            known = ~function(*map(wide, tensors), **named).isnan() | (function is not sa.kl_divergence)
        size = sizes(function, *tensors, **named)
        for one, right, of in zip(gradients(function, *tensors, **options), expected, size, strict=True):
            assert within(one[known], right[known], of[known], MOST), function


def test_the_gradient_of_a_confident_row_keeps_its_digits() -> None:
    z = torch.zeros(20, 5)
    z[:, 1] = torch.linspace(5.0, 60.0, 20)
    with sa.using("native"):
        expected = gradients(sa.entropy, z.double())[0]
    assert ulp_error(gradients(sa.entropy, z)[0].numpy(), expected.numpy()).max() <= 3


def test_second_derivatives_and_vmap() -> None:
    z, other = scores(3, 5), scores(3, 5, seed=1)

    def loss(z: torch.Tensor) -> torch.Tensor:
        q = other.to(z)
        return (sa.entropy(z) * sa.soft_argmax(z) + sa.kl_divergence(z, q) * sa.kl_divergence(q, z)).sum()

    def of(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.func.hessian(loss)(z), torch.func.vmap(torch.func.grad(sa.entropy))(z)

    found = of(z)
    with sa.using("native"):
        expected = of(z.double())
    for one, right in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), right, rtol=1e-4, atol=1e-5)


def records(z: torch.Tensor) -> dict[Any, Any]:
    """The arguments of each operation."""
    of = operations.Expectation(z, None, UNIT, None, (1,), torch.float32)
    kl = entropy_operations.KlDivergence(z, scores(*z.shape, seed=1).to(z), None, UNIT, (1,), torch.float32)
    g = torch.ones(len(z), 1)
    return {
        operations.entropy: operations.Scores(z, None, UNIT, (1,), torch.float32),
        operations.expectation: of,
        operations.mean_vjp: operations.MeanVjp(of, g, True),
        entropy_operations.kl_divergence: kl,
        entropy_operations.kl_divergence_vjp: entropy_operations.KlDivergenceVjp(kl, g, True, False),
    }


def test_the_operators_pass_opcheck() -> None:
    for operation, i in records(scores(3, 5).requires_grad_()).items():
        torch.library.opcheck(operation.torch.overload, operation.torch.flatten(i))


def test_the_definitions_serve_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    monkeypatch.setattr(triton_sums, "launch", lambda *_a, **_k: launched.append(1))
    for operation, i in records(scores(3, 5).double()).items():
        assert operation.first(i).shape in ((3, 1), (3, 5))
    assert sa.entropy(torch.empty(3, 0)).tolist() == [0.0] * 3
    assert not launched
    sa.entropy(scores(3, 5))
    assert launched
