"""Derivatives, transforms and compilation of log_matmul on tensors."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
cases = importlib.import_module("tests.normalize.torch_cases")
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402 after the check for torch
from torch.func import grad, jacfwd, jacrev, vmap  # noqa: E402

import softargmax as s  # noqa: E402
from softargmax.core.scale import Scale  # noqa: E402
from softargmax.structure import operations as o  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(warning) for warning in cases.IGNORED]
MASK_A = torch.tensor([[True, False, True, True], [False, False, False, False], [True, True, True, True]])


def draw(*shape: int, seed: int = 0, spread: float = 1.0) -> Any:
    return cases.draw(*shape, seed=seed) * spread


CASES = {
    "plain": (s.log_matmul, draw(3, 4), draw(4, 2, seed=1)),
    "far": (s.log_matmul, draw(3, 4, spread=900), draw(4, 2, seed=1, spread=900)),
    "batch": (s.log_matmul, draw(2, 1, 3, 4), draw(2, 4, 2, seed=1)),
    "shared a": (s.log_matmul, draw(3, 4), draw(2, 4, 2, seed=1)),
    "vector": (s.log_matmul, draw(4), draw(2, 4, 2, seed=1)),
    "temperature": (lambda a, b, t: s.log_matmul(a, b, temperature=t), draw(2, 3, 4), draw(4, 2, seed=1),
                    torch.tensor([0.7, -1.3], dtype=torch.float64)),
    "cold": (lambda a, b: s.log_matmul(a, b, temperature=-0.3), draw(3, 4), draw(4, 2, seed=1)),
    "masked": (lambda a, b: cases.finite(s.log_matmul(a, b, where_a=MASK_A)), draw(3, 4), draw(4, 2, seed=1)),
    "limit": (lambda a, b: s.log_matmul(a, b, temperature=0), draw(3, 4), draw(4, 2, seed=1)),
}  # fmt: skip
each = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


def leaves(case: Any) -> tuple[Any, ...]:
    return tuple(x.detach().clone().requires_grad_() for x in case[1:])


@each
def test_first_derivatives(case: Any) -> None:
    assert gradcheck(case[0], leaves(case), check_forward_ad=True, check_batched_grad=True, check_undefined_grad=True)


@each
def test_second_derivatives(case: Any) -> None:
    assert gradgradcheck(case[0], leaves(case), check_fwd_over_rev=True, check_batched_grad=True)


def test_third_derivatives() -> None:
    def second(a: Any, b: Any) -> Any:
        first = torch.autograd.grad(s.log_matmul(a, b).pow(2).sum(), (a, b), create_graph=True)
        found = torch.autograd.grad(first[0].pow(2).sum() + first[1].sum(), (a, b), create_graph=True)
        return found[0].sum() + found[1].pow(2).sum()

    assert gradcheck(second, leaves(CASES["plain"]))


@each
def test_all_derivative_modes_agree(case: Any) -> None:
    loss = lambda *x: case[0](*x).sin().sum()  # noqa: E731
    torch.testing.assert_close(jacfwd(loss)(*case[1:]), jacrev(loss)(*case[1:]), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(jacfwd(jacrev(loss))(*case[1:]), jacrev(jacrev(loss))(*case[1:]), rtol=1e-9, atol=1e-11)


def by_terms(a: Any, b: Any, g: Any) -> tuple[Any, Any]:
    """Return the gradients in float64, from all terms."""
    p = torch.softmax(a.double()[:, :, None] + b.double()[None], 1)
    return (p * g[:, None, :]).sum(2), (p * g[:, None, :]).sum(0)


@pytest.mark.parametrize("spread", [1.0, 10.0, 25.0, 60.0, 1e3])
def test_float32_gradients(spread: float) -> None:
    """An error is at most a few roundings of the sum of all absolute terms, also where products underflow."""
    a, b = (draw(*shape, seed=seed, spread=spread).float() for seed, shape in enumerate(((40, 70), (70, 50))))
    g = draw(40, 50, seed=2).float()
    a.requires_grad_()
    b.requires_grad_()
    found = torch.autograd.grad(s.log_matmul(a, b), (a, b), g)
    wanted, sizes = by_terms(a.detach(), b.detach(), g), by_terms(a.detach(), b.detach(), g.abs())
    for one, truth, size in zip(found, wanted, sizes, strict=True):
        bound = size * 16 * 2.0**-24 + 2.0**-49 * g.abs().max()  # shares below 2^-51 may count as 0
        assert ((one - truth).abs() <= bound).all()


def test_gradients_of_an_item_have_the_same_bits_in_every_batch() -> None:
    a, b = draw(5, 30, 20).float().requires_grad_(), draw(5, 20, 10, seed=1).float().requires_grad_()
    g = draw(5, 30, 10, seed=2).float()
    whole = torch.autograd.grad(s.log_matmul(a, b), (a, b), g)
    alone = torch.autograd.grad(s.log_matmul(a[3], b[3]), (a, b), g[3])
    assert torch.equal(whole[0][3], alone[0][3])
    assert torch.equal(whole[1][3], alone[1][3])


def test_ties_share_the_gradient_at_zero_temperature() -> None:
    a, b = torch.zeros(1, 4).requires_grad_(), torch.tensor([[0.0], [1.0], [1.0], [-3.0]])
    s.log_matmul(a, b, temperature=0).backward()
    assert a.grad.tolist() == [[0.0, 0.5, 0.5, 0.0]]


def test_masked_and_infinite_entries() -> None:
    a = torch.tensor([[math.nan, 1.0, -math.inf], [0.0, math.inf, math.inf]], requires_grad=True)
    b = torch.zeros(3, 2, requires_grad=True)
    keep = torch.tensor([[False, True, True], [True, True, True]])
    c = s.log_matmul(a, b, where_a=keep)
    assert c.tolist() == [[1.0, 1.0], [math.inf, math.inf]]
    c.sum().backward()
    assert a.grad.tolist() == [[0.0, 2.0, 0.0], [0.0, 1.0, 1.0]]
    assert b.grad.tolist() == [[0.0, 0.0], [1.5, 1.5], [0.5, 0.5]]


def test_a_gradient_of_nan_outside_the_support_is_ignored() -> None:
    a = torch.tensor([[-math.inf, 1.0]], requires_grad=True)
    b = torch.tensor([[0.0], [0.0]], requires_grad=True)
    s.log_matmul(a, b).backward(torch.tensor([[math.nan]]))
    assert a.grad[0, 0] == 0
    assert b.grad[0, 0] == 0


def test_vmap_equals_a_loop() -> None:
    a, b = draw(3, 4, 5), draw(5, 6, seed=1)
    found = vmap(lambda x: s.log_matmul(x, b))(a)
    assert all(torch.equal(found[i], s.log_matmul(a[i], b)) for i in range(3))
    per_example = vmap(grad(lambda x: s.log_matmul(x, b).sum()))(a)
    assert torch.equal(per_example[1], grad(lambda x: s.log_matmul(x, b).sum())(a[1]))


def test_compiled_results_have_the_bits_of_eager_results() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(s.log_matmul, fullgraph=True, backend="aot_eager")
    a, b = draw(6, 5).float().requires_grad_(), draw(5, 3, seed=1).float().requires_grad_()
    found, wanted = compiled(a, b), s.log_matmul(a, b)
    assert torch.equal(found, wanted)
    g = torch.ones_like(wanted)
    for one, other in zip(*(torch.autograd.grad(x, (a, b), g) for x in (found, wanted)), strict=True):
        assert torch.equal(one, other)
    torch._dynamo.reset()


BETAS = {"number": Scale(0.7, 0.0), "array": Scale(draw(2, 1, 1, seed=5).abs(), torch.zeros(2, 1, 1).double())}


@pytest.mark.parametrize("beta", BETAS.values(), ids=list(BETAS))
def test_operators(beta: Scale) -> None:
    a, b = draw(2, 3, 4).requires_grad_(), draw(2, 4, 2, seed=1).requires_grad_()
    product = o.Factors(a, b, beta)
    torch.library.opcheck(o.log_matmul.torch.overload, o.log_matmul.torch.flatten(product))
    wide = o.log_matmul(product).wide.detach().requires_grad_()
    for to, w, x in (("ab", draw(2, 3, 2, seed=2), None), ("cab", None, draw(2, 3, 4, seed=3)), ("c", None, None)):
        terms = o.Terms(a, b, wide, beta, w, x, None, to)
        torch.library.opcheck(o.term_sums.torch.overload, o.term_sums.torch.flatten(terms))


@pytest.mark.parametrize("to", ["c", "a", "b", "cab"])
@pytest.mark.parametrize("spread", [1.0, 900.0])
def test_sums_of_terms_and_their_definition(to: str, spread: float) -> None:
    a, b = draw(2, 3, 4, spread=spread), draw(2, 4, 2, seed=1, spread=spread)
    w, x, y = draw(2, 3, 2, seed=2), draw(2, 3, 4, seed=3), draw(2, 4, 2, seed=4)
    for beta in (Scale(1.0, 0.0), Scale(-0.4, 0.0), Scale(math.inf, 0.0), Scale(0.0, 0.0)):
        wide = o.log_matmul(o.Factors(a, b, beta)).wide
        terms = o.Terms(a, b, wide, beta, w, x, y, to)
        wanted = o.term_sums.define(terms)
        torch.testing.assert_close(tuple(o.term_sums(terms)), wanted, rtol=1e-12, atol=1e-14)
        numpy = o.term_sums(o.Terms(*(t.numpy() if hasattr(t, "numpy") else t for t in terms)))
        for one, other in zip(numpy, o.term_sums(terms), strict=True):
            assert np.array_equal(one, other)


def test_jax_differentiates_the_definition() -> None:
    jax = pytest.importorskip("jax")
    a, b = draw(3, 4).float(), draw(4, 2, seed=1).float()
    found = jax.grad(lambda a, b: s.log_matmul(a, b).sum(), (0, 1))(
        jax.numpy.asarray(a.numpy()), jax.numpy.asarray(b.numpy())
    )
    wanted = by_terms(a, b, torch.ones(3, 2))
    for one, truth in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(one), truth.numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 3), (2, 3, 0)])
def test_gradients_of_empty_matrices(shape: tuple[int, int, int]) -> None:
    a, b = torch.zeros(shape[:2]).requires_grad_(), torch.zeros(shape[1:]).requires_grad_()
    s.log_matmul(a, b).sum().backward()
    assert (a.grad == 0).all()
    assert (b.grad == 0).all()


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e8, 1e20])
def test_forward_mode_with_large_and_small_tangents(size: float) -> None:
    a, b = draw(3, 40).float(), draw(40, 2, seed=1).float()
    tangents = (draw(3, 40, seed=2).float() * size, draw(40, 2, seed=3).float() * size)
    found = torch.func.jvp(s.log_matmul, (a, b), tangents)[1]
    p = torch.softmax(a.double()[:, :, None] + b.double(), 1)
    terms = p * (tangents[0].double()[:, :, None] + tangents[1].double())
    assert ((found - terms.sum(1)).abs() <= 16 * 2.0**-24 * terms.abs().sum(1)).all()


def test_the_gradient_to_the_temperature_keeps_its_digits() -> None:
    a, b = draw(3, 40).float() + 1000, draw(40, 2, seed=1).float() - 500

    def slope(a: Any, b: Any) -> Any:
        t = torch.ones(1, dtype=a.dtype, requires_grad=True)
        return torch.autograd.grad(s.log_matmul(a, b, temperature=t).sum(), t)[0].item()

    assert slope(a, b) == pytest.approx(slope(a.double(), b.double()), rel=1e-5)


def test_elements_without_terms_add_nothing_to_the_gradient_of_the_temperature() -> None:
    a, b = torch.tensor([[-math.inf, -math.inf], [0.0, 1.0]]), torch.zeros(2, 2)
    slopes = []
    for rows, g in ((a, torch.tensor([[math.nan, 1.0], [1.0, 1.0]])), (a[1:], torch.ones(1, 2))):
        t = torch.ones(1, requires_grad=True)
        s.log_matmul(rows, b, temperature=t).backward(g[None])
        slopes.append(t.grad.item())
    assert slopes[0] == slopes[1]


def test_permuted_temperatures() -> None:
    a, b, t = draw(2, 3, 4, 5), draw(5, 6, seed=1), torch.tensor([[1.0, 2.0], [0.5, 3.0], [0.1, 9.0]]).double().T
    c = s.log_matmul(a, b, temperature=t)
    assert torch.equal(c[1, 2], s.log_matmul(a[1, 2], b, temperature=9.0))


@pytest.mark.parametrize("own", [False, True], ids=["shared transitions", "own transitions"])
def test_mapped_chains_equal_a_loop(own: bool) -> None:
    """The sequences of all calls are sequences of one chain. If calls have starts of their own, the definition runs."""
    e, t, start = draw(3, 4, 5), draw(3, 5, 5, seed=1), draw(3, 5, seed=2)
    at = 0 if own else None
    t = t if own else t[0]
    each = [s.linear_chain(e[i], t[i] if own else t) for i in range(3)]
    found = vmap(lambda e, t: s.linear_chain(e, t).log_z, (0, at))(e, t)
    assert torch.equal(found, torch.stack([chain.log_z for chain in each]))
    tags = vmap(lambda e, t: s.linear_chain(e, t).best(2).tags, (0, at))(e, t)
    assert torch.equal(tags, torch.stack([chain.best(2).tags for chain in each]))
    gradient = vmap(grad(lambda e, t: s.linear_chain(e, t).log_z), (0, at))(e, t)
    torch.testing.assert_close(gradient, torch.stack([chain.marginals() for chain in each]))
    found = vmap(lambda e, x: s.linear_chain(e, t[0] if own else t, start=x).log_z)(e, start)
    alone = [s.linear_chain(e[i], t[0] if own else t, start=start[i]).log_z for i in range(3)]
    torch.testing.assert_close(found, torch.stack(alone))
