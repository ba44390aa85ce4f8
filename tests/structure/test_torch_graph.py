"""Contractions and factor graphs on tensors: derivatives."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
cases = importlib.import_module("tests.normalize.torch_cases")
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402 after the check for torch

import softargmax as s  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(warning) for warning in cases.IGNORED]
draw = cases.draw
SUBSCRIPTS = "ab,bc,ca,b->"


def factors() -> list[Any]:
    return [draw(*shape, seed=i).requires_grad_() for i, shape in enumerate([(2, 3), (3, 2), (2, 2), (3,)])]


def test_derivatives() -> None:
    x = factors()
    for subscripts in (SUBSCRIPTS, SUBSCRIPTS + "b", SUBSCRIPTS + "abc"):
        assert gradcheck(lambda *x, to=subscripts: s.log_einsum(to, *x), x, check_forward_ad=True)
    assert gradgradcheck(lambda *x: s.log_einsum(SUBSCRIPTS + "b", *x), x)


def test_the_gradient_is_the_marginals() -> None:
    x = factors()
    found = torch.autograd.grad(s.log_einsum(SUBSCRIPTS, *x), x)
    for gradient, marginal in zip(found, s.factor_graph(SUBSCRIPTS, *x).marginals(), strict=True):
        torch.testing.assert_close(gradient, marginal.detach(), rtol=1e-13, atol=1e-15)


def test_the_gradient_at_zero_temperature_is_the_best_configuration() -> None:
    x = factors()
    best = s.factor_graph(SUBSCRIPTS, *x).best()
    gradients = torch.autograd.grad(s.log_einsum(SUBSCRIPTS, *x, temperature=0), x)
    index = dict(zip("abc", best.values.tolist(), strict=True))
    for labels, gradient in zip(SUBSCRIPTS[:-2].split(","), gradients, strict=True):
        assert gradient.sum() == gradient[tuple(index[label] for label in labels)] == 1


def test_derivatives_of_the_distribution() -> None:
    x, t = factors(), torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def results(t: Any, *x: Any) -> Any:
        graph = s.factor_graph(SUBSCRIPTS, *x, temperature=t)
        return graph.log_z, graph.entropy(), graph.log_prob([1, 2, 0]), *graph.marginals()

    assert gradcheck(results, (t, *x))
    assert gradgradcheck(lambda t, *x: results(t, *x)[0], (t, *x))


def test_a_graph_can_be_used_twice() -> None:
    x = factors()
    graph = s.factor_graph(SUBSCRIPTS, *x)
    first = torch.autograd.grad(graph.log_z, x)
    for one, two in zip(first, torch.autograd.grad(graph.log_z, x), strict=True):
        assert torch.equal(one, two)
    with torch.no_grad():
        assert torch.equal(graph.log_z, s.factor_graph(SUBSCRIPTS, *x).log_z)
