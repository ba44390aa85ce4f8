"""Derivatives of the losses of tensors: finite differences, second and third order, transforms, compiled graphs."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
cases = importlib.import_module("tests.loss.torch_cases")
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402 not without torch

import softargmax as s  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(warning) for warning in cases.IGNORED]
each = pytest.mark.parametrize("case", cases.CASES, ids=[case.name for case in cases.CASES])


def tracked(case: Any) -> tuple[Any, ...]:
    return tuple(value.detach().clone().requires_grad_() for value in case.inputs)


@each
def test_first_derivatives(case: Any) -> None:
    assert gradcheck(
        case.f,
        tracked(case),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        check_undefined_grad=True,
    )


@each
def test_second_derivatives(case: Any) -> None:
    """Check all entries for most cases. Check one random direction for the cases that are `fast`."""
    fast = case.name.startswith("linear ") or case.name in ("terms, rows, T", "terms, soft", "terms, axis 0")
    assert gradgradcheck(case.f, tracked(case), check_fwd_over_rev=True, fast_mode=fast)


# These cases are not compiled, because other functions with the same options are.
ALIKE = ("terms, rows, T", "terms, soft", "terms, axis 0", "linear terms, all", "linear terms, soft")
COMPILED = [case for case in cases.CASES if case.name not in ALIKE]


@pytest.mark.parametrize("case", COMPILED, ids=[case.name for case in COMPILED])
def test_compiled_graph(case: Any) -> None:
    """The compiled graph has no breaks. Its values and gradients equal those of eager code."""
    torch._dynamo.reset()
    compiled = torch.compile(case.f, fullgraph=True, backend="aot_eager")
    inputs, twins = tracked(case), tracked(case)
    found, wanted = compiled(*inputs), case.f(*twins)
    torch.testing.assert_close(found, wanted)
    pick = lambda x: sum(part.sum() for part in x) if isinstance(x, tuple) else x.sum()  # noqa: E731
    found, wanted = (torch.autograd.grad(pick(x), leaves) for x, leaves in ((found, inputs), (wanted, twins)))
    torch.testing.assert_close(found, wanted)


@each
def test_transforms(case: Any) -> None:
    """torch.func: Jacobians of both modes agree, and vmap gives the results of a loop."""
    whole = lambda *x: torch.cat([part.reshape(-1) for part in _parts(case.f(*x))])  # noqa: E731
    places = tuple(range(len(case.inputs)))
    forward = torch.func.jacfwd(whole, argnums=places)(*case.inputs)
    reverse = torch.func.jacrev(whole, argnums=places)(*case.inputs)
    torch.testing.assert_close(forward, reverse)
    batch = tuple(torch.stack([x, x * 1.1]) for x in case.inputs)
    looped = torch.stack([whole(*(x[i] for x in batch)) for i in range(2)])
    torch.testing.assert_close(torch.func.vmap(whole)(*batch), looped)


def _parts(result: Any) -> Any:
    return result if isinstance(result, tuple) else (result,)


def test_a_third_derivative() -> None:
    z = cases.draw(2, 3).requires_grad_()

    def second(z: Any) -> Any:
        (first,) = torch.autograd.grad(s.cross_entropy(z, [0, 2], z_loss=0.1), z, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), z, create_graph=True)[0]

    assert gradcheck(second, (z,))


def test_a_graph_may_be_kept_and_h_used_twice() -> None:
    h, w, y = cases.draw(3, 2).requires_grad_(), cases.draw(4, 2, seed=1).requires_grad_(), torch.tensor([0, 1, 2])
    before = h.detach().clone()
    loss = s.linear_cross_entropy(h, w, y) + s.linear_cross_entropy(h, w, y.flip(0)) + h.pow(2).sum()
    plain = sum(torch.nn.functional.cross_entropy(h @ w.T, t) for t in (y, y.flip(0))) + h.pow(2).sum()
    wanted = torch.autograd.grad(plain, (h, w))
    for _ in range(3):
        torch.testing.assert_close(torch.autograd.grad(loss, (h, w), retain_graph=True), wanted)
    assert torch.equal(h, before)


def test_only_required_gradients_are_computed() -> None:
    h, w = cases.draw(3, 2), cases.draw(4, 2, seed=1).requires_grad_()
    s.linear_cross_entropy(h, w, torch.tensor([0, 1, 2])).backward()
    assert h.grad is None
    assert w.grad is not None
    z = cases.draw(3, 4).requires_grad_()
    terms = s.cross_entropy_terms(z, torch.tensor([0, 1, 2]), reduction="none")
    (found,) = torch.autograd.grad(terms.lse.sum(), z)
    torch.testing.assert_close(found, s.softmax(z).detach())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_autocast_and_narrow_types(dtype: Any) -> None:
    h, w, y = cases.draw(8, 4).to(dtype), cases.draw(6, 4, seed=1).to(dtype), torch.arange(8) % 6
    leaves = [h.requires_grad_(), w.requires_grad_()]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = s.linear_cross_entropy(*leaves, y)
        assert s.cross_entropy(h, y % 4).dtype == torch.float32
    assert loss.dtype == torch.float32
    exact = s.linear_cross_entropy(*wide, y)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=0)
    for found, wanted in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(exact, wide), strict=True):
        assert found.dtype == dtype
        unit = torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), wanted, rtol=unit, atol=4e-7)


def test_meta_tensors() -> None:
    z = torch.ones((2, 3), device="meta", dtype=torch.float16)
    y = torch.zeros(2, dtype=torch.int64, device="meta")
    assert s.cross_entropy(z, y).dtype == torch.float32
    assert s.cross_entropy_and_gradient(z, y).gradient.shape == (2, 3)
    assert s.linear_cross_entropy(z, z, y, reduction="none").shape == (2,)


def test_infinite_and_nan_incoming_gradients() -> None:
    z = torch.tensor([[1.0, 2.0], [-torch.inf, -torch.inf], [1.0, 3.0]], requires_grad=True)
    rows = s.cross_entropy(z, torch.tensor([0, 0, -100]), reduction="none")
    (found,) = torch.autograd.grad(rows, z, torch.tensor([1.0, torch.nan, torch.inf]))
    assert torch.equal(found[1:], torch.zeros(2, 2))
    assert found[0].isfinite().all()
