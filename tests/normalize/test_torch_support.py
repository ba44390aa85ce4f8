"""Derivatives of edge rows: masked NaN, infinities, empty supports, limits of the temperature, weights of 0."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
cases = importlib.import_module("tests.normalize.torch_cases")

import softargmax  # noqa: E402 not without torch

pytestmark = [pytest.mark.filterwarnings(warning) for warning in cases.IGNORED]
INF, NAN = math.inf, math.nan
MASK = torch.tensor([True, False, True, False, True])
both = pytest.mark.parametrize("operation", [softargmax.softmax, softargmax.log_softmax])


def gradient(f: Any, z: Any, g: Any) -> Any:
    z = z.clone().requires_grad_()
    f(z).backward(g)
    return z.grad


@both
@pytest.mark.parametrize("masked", [NAN, INF, -INF, 3e38])
@pytest.mark.parametrize("incoming", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_scores_outside_the_support_are_ignored(operation: Any, masked: float, incoming: float, dtype: str) -> None:
    kind = getattr(torch, dtype)
    z, g = cases.draw(5).to(kind), cases.draw(5, seed=1).to(kind)
    wanted = gradient(operation, z[MASK], g[MASK])
    z[~MASK], g[~MASK] = torch.tensor(masked).to(kind), incoming
    found = gradient(lambda z: operation(z, where=MASK), z, g)
    assert torch.equal(found[MASK], wanted)
    assert torch.equal(found[~MASK], torch.zeros(2, dtype=kind))


@both
@pytest.mark.parametrize("scores", [[1.0, -INF, 2.0, -INF], [-INF, -INF, -INF, -INF]])
def test_a_score_of_minus_infinity_is_outside_the_support(operation: Any, scores: list[float]) -> None:
    z = torch.tensor(scores)
    g = torch.where(z.isinf(), NAN, 1.5)
    found = gradient(operation, z, g)
    assert torch.equal(found[z.isinf()], torch.zeros(int(z.isinf().sum())))
    assert not found.isnan().any()


@both
def test_rows_of_infinities_are_constant_to_every_order(operation: Any) -> None:
    z = torch.tensor([[INF, 1.0, INF], [0.5, 1.0, -INF]], requires_grad=True)
    y = operation(z)
    support = y.detach() > -INF
    (first,) = torch.autograd.grad(
        (torch.where(support, y, 0) * torch.tensor([1.0, 2.0, 3.0])).sum(), z, create_graph=True
    )
    (second,) = torch.autograd.grad((first * first).sum(), z)
    assert torch.equal(first.detach()[0], torch.zeros(3))
    assert torch.equal(second[0], torch.zeros(3))
    assert first[1, :2].abs().min() > 0
    assert second[1, :2].abs().min() > 0
    tangent = torch.func.jvp(operation, (z.detach(),), (torch.tensor([[NAN, 1.0, 2.0], [1.0, 2.0, NAN]]),))[1]
    assert tangent[1, 2] == 0
    assert not tangent[1].isnan().any()


def test_second_derivative_ignores_entries_outside_the_support() -> None:
    z = torch.tensor([1.0, NAN, 2.0, -INF], requires_grad=True)
    where = torch.tensor([True, False, True, True])
    g = torch.tensor([1.0, NAN, 3.0, INF])
    for operation in (softargmax.softmax, softargmax.log_softmax):
        (first,) = torch.autograd.grad(operation(z, where=where), z, g, create_graph=True)
        (second,) = torch.autograd.grad(first, z, torch.tensor([1.0, NAN, 0.5, NAN]))
        assert torch.equal(second[[1, 3]], torch.zeros(2))
        assert (second[[0, 2]] != 0).all()


def test_logsumexp_shares_its_gradient_among_infinities() -> None:
    z = torch.tensor([[INF, 1.0, INF], [-INF, -INF, -INF], [NAN, 0.0, 0.0]])
    found = gradient(softargmax.logsumexp, z, torch.tensor([3.0, NAN, 1.0]))
    assert torch.equal(found[0], torch.tensor([1.5, 0.0, 1.5]))
    assert torch.equal(found[1], torch.zeros(3))
    assert found[2].isnan().all()
    lse = gradient(lambda z: softargmax.softmax_with_lse(z).lse, z, torch.tensor([3.0, 1.0, 1.0]))
    assert torch.equal(lse[:2], found[:2])


@pytest.mark.parametrize("temperature", [0.0, -0.0, INF, -INF])
@pytest.mark.parametrize("operation", [softargmax.softmax, softargmax.log_softmax, softargmax.logsumexp])
def test_limits_of_the_temperature(operation: Any, temperature: float) -> None:
    """At T = 0 and T = inf, the derivative of softmax and of log_softmax is 0, and that of logsumexp is p.

    A number and a tensor as T give the same derivatives.
    """
    z = torch.tensor([[1.0, 5.0, 5.0], [0.0, -1.0, 2.0]], dtype=torch.float64)
    tensor = torch.full((2,), temperature, dtype=torch.float64, requires_grad=True)
    y = operation(z)
    g = cases.draw(*y.shape)
    by_number = gradient(lambda z: operation(z, temperature=temperature), z, g)
    by_tensor = gradient(lambda z: operation(z, temperature=tensor), z, g)
    assert torch.equal(by_number, by_tensor)
    if operation is softargmax.logsumexp:
        p = softargmax.softmax(z, temperature=temperature)
        assert torch.equal(by_number, p * g[:, None])
    else:
        assert torch.equal(by_number, torch.zeros_like(z))
    if math.isinf(temperature) and operation is not softargmax.logsumexp:
        assert torch.equal(tensor.grad, torch.zeros(2, dtype=torch.float64))


ROWWISE = ("softmax", "log_softmax", "softmin", "logsumexp", "softmax_with_lse", "entropy", "soft_argmax", "boltzmann")


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("name", ROWWISE)
def test_a_temperature_of_zero_has_a_gradient_of_zero(name: str, implementation: str) -> None:
    limits = torch.tensor([0.0, -0.0, 1e-310, 1.5], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([[1.0, 2.0, 3.0], [2.0, -1.0, 2.0], [1.0, 1.0, -4.0], [0.5, 2.0, 1.0]], dtype=torch.float64)
    z.requires_grad_()
    with softargmax.using(implementation):
        result = getattr(softargmax, name)(z, temperature=limits)
        alone = getattr(softargmax, name)(z[3], temperature=limits[3])
    results = [(result, alone)] if torch.is_tensor(result) else list(zip(result, alone, strict=True))
    for all_rows, last in results:
        incoming = torch.arange(1.0, 1.0 + all_rows.numel(), dtype=torch.float64).reshape(all_rows.shape)
        incoming = torch.where(all_rows.isfinite(), incoming, 0)
        to_z, to_limits = torch.autograd.grad(all_rows, (z, limits), incoming, retain_graph=True)
        assert to_z.isfinite().all()
        assert to_limits[:3].tolist() == [0.0] * 3
        assert torch.allclose(to_limits[3:], torch.autograd.grad(last, limits, incoming[3], retain_graph=True)[0][3:])


def test_weights_of_zero_are_outside_the_support() -> None:
    z = torch.tensor([1.0, NAN, 2.0], requires_grad=True)
    weights = torch.tensor([2.0, 0.0, 0.5], requires_grad=True)
    softargmax.logsumexp(z, weights=weights).backward()
    inside, few = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([2.0, 0.5], requires_grad=True)
    softargmax.logsumexp(inside, weights=few).backward()
    assert torch.equal(z.grad, torch.tensor([inside.grad[0], 0.0, inside.grad[1]]))
    assert torch.equal(weights.grad, torch.tensor([few.grad[0], 0.0, few.grad[1]]))
    with pytest.raises(ValueError, match="weights"):
        softargmax.logsumexp(z.detach(), weights=-weights.detach())


@pytest.mark.parametrize("name", ["segment_softmax", "segment_log_softmax"])
def test_segments_at_the_edges(name: str) -> None:
    operation = getattr(softargmax, name)
    z = torch.tensor([INF, 1.0, -INF, 2.0, 0.5, -INF])
    offsets = torch.tensor([0, 2, 2, 5, 6])
    g = torch.tensor([1.0, 2.0, NAN, 1.0, -1.0, INF])
    found = gradient(lambda z: operation(z, offsets), z, g)
    rest = gradient(getattr(softargmax, name[8:]), z[3:5], g[3:5])
    assert torch.equal(found[[0, 1, 2, 5]], torch.zeros(4))
    torch.testing.assert_close(found[3:5], rest, rtol=1e-6, atol=1e-8)
    total = gradient(lambda z: softargmax.segment_logsumexp(z, offsets), z, torch.tensor([3.0, NAN, 1.0, NAN]))
    assert torch.equal(total[[0, 1, 2, 5]], torch.tensor([3.0, 0.0, 0.0, 0.0]))


def test_running_sums_at_the_edges() -> None:
    z = torch.tensor([-INF, 1.0, INF, 2.0, INF, -INF])
    last = torch.tensor([NAN, 0.0, 0.0, 0.0, 0.0, 1.0])
    assert torch.equal(gradient(softargmax.logcumsumexp, z, last), torch.tensor([0.0, 0.0, 0.5, 0.0, 0.5, 0.0]))
    z = torch.tensor([0.0, NAN, 0.0])
    found = gradient(softargmax.logcumsumexp, z, torch.tensor([1.0, 0.0, 0.0]))
    assert found[1:].isnan().all()
    assert softargmax.logcumsumexp(torch.tensor(2.0)) == 2.0


@pytest.mark.parametrize("temperature", [1.0, 1e-3, 1e-5, 1e-40, 1e46, 0.0, -0.0, INF, [0.0, INF, -0.5]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_every_prefix_are_those_of_logsumexp(temperature: Any, dtype: Any) -> None:
    z = torch.tensor(
        [[1000.0, 1000.0, 999.9, -INF, NAN], [2.0, INF, 1.0, INF, 0.0], [0.0, 5.0, 5.0, -INF, 1.0]], dtype=dtype
    )
    where = torch.tensor([True, True, True, True, False])
    t = torch.tensor(temperature, dtype=dtype) if isinstance(temperature, list) else temperature
    for n in range(1, 6):
        g = torch.zeros_like(z)
        g[:, n - 1] = torch.tensor([1.0, -2.0, 3.0])
        found = gradient(lambda z: softargmax.logcumsumexp(z, temperature=t, where=where), z, g)
        expected = gradient(
            lambda z, n=n: softargmax.logsumexp(z, temperature=t, where=where[:n]), z[:, :n], g[:, n - 1]
        )
        torch.testing.assert_close(found[:, :n], expected, rtol=1e-6, atol=1e-12)
        assert torch.equal(found[:, n:], torch.zeros_like(z[:, n:]))
