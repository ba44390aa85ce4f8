"""torch.func transforms, torch.compile and opcheck of the operators."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
cases = importlib.import_module("tests.sparse.torch_cases")
from torch.func import grad, hessian, jacfwd, jacrev, vmap  # noqa: E402 after the check for torch

import softargmax as s  # noqa: E402
from softargmax.core.scale import UNIT, Scale  # noqa: E402
from softargmax.sparse import loss_operations as entmax_loss  # noqa: E402
from softargmax.sparse import operations as o  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(warning) for warning in cases.IGNORED]
each = pytest.mark.parametrize("case", cases.CASES, ids=[case.name for case in cases.CASES])


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Any:
    """Reset dynamo before and after each test, because dynamo gives up on a function that it has compiled often."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def total(f: Any) -> Any:
    return lambda *inputs: (f(*inputs) ** 2).sum()


@each
def test_all_derivative_modes_agree(case: Any) -> None:
    loss = total(case.f)
    torch.testing.assert_close(jacfwd(loss)(*case.inputs), jacrev(loss)(*case.inputs), rtol=1e-12, atol=1e-13)
    wanted = jacrev(jacrev(loss))(*case.inputs)
    for second in (hessian(loss), jacrev(jacfwd(loss)), jacfwd(jacfwd(loss))):
        torch.testing.assert_close(second(*case.inputs), wanted, rtol=1e-10, atol=1e-11)


@each
def test_vmap_over_the_scores_equals_a_loop(case: Any) -> None:
    z, *rest = case.inputs
    batch = torch.stack([z, 2 * z, z - 1], 1)
    found = vmap(lambda z: case.f(z, *rest), 1)(batch)
    for i in range(3):
        assert torch.equal(found[i], case.f(batch[:, i].contiguous(), *rest))


def test_vmap_over_other_arguments() -> None:
    z, orders = cases.draw(4), cases.PER_ROW
    assert torch.equal(vmap(lambda a: s.entmax(z, a))(orders), s.entmax(z.expand(3, 4), orders))
    assert torch.equal(vmap(lambda w: s.entmax(z, where=w))(cases.MASK), s.entmax(z.expand(3, 4), where=cases.MASK))
    found = vmap(s.threshold)(z.expand(3, 4), orders)
    wanted = s.threshold(z.expand(3, 4), orders)
    assert torch.equal(found.tau, wanted.tau)
    assert torch.equal(found.support_size, wanted.support_size)
    nested = vmap(vmap(s.entmax, (None, 0)), (0, None))(cases.draw(2, 4), orders)
    assert torch.equal(nested[1, 2], s.entmax(cases.draw(2, 4)[1], orders[2]))
    per_example = vmap(grad(lambda z, a: s.entmax(z, a)[0], argnums=1))(cases.draw(3, 4), orders)
    torch.testing.assert_close(
        per_example[2], grad(lambda a: s.entmax(cases.draw(3, 4)[2], a)[0])(orders[2]), rtol=1e-14, atol=1e-15
    )


@each
def test_compiled_results_have_the_bits_of_eager_results(case: Any) -> None:
    compiled = torch.compile(case.f, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*case.inputs), case.f(*case.inputs))
    inputs = [tuple(x.clone().requires_grad_() for x in case.inputs) for _ in range(2)]
    for f, values in zip((compiled, case.f), inputs, strict=True):
        result = f(*values)
        result.backward(cases.draw(*result.shape, seed=9))
    for ours, theirs in zip(*inputs, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("transform", [jacrev, hessian, vmap], ids=lambda t: t.__name__)
def test_compiled_transforms(transform: Any) -> None:
    # A lambda, because torch 2.13 cannot trace the `hasattr(f, "__name__")` of vmap if f is a single node of the graph.
    f = total(s.sparsemax) if transform is hessian else lambda z: s.entmax(z, axis=-1)
    z = cases.draw(3, 4)
    compiled = torch.compile(transform(f), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(z), transform(f)(z), rtol=1e-13, atol=1e-15)


def test_compiled_out_and_dynamic_shapes() -> None:
    compiled = torch.compile(lambda z, out: s.entmax(z, 1.7, out=out) + 1.0, fullgraph=True, backend="aot_eager")
    z, out = cases.draw(3, 4), torch.zeros(3, 4, dtype=torch.float64)
    assert torch.equal(compiled(z, out), s.entmax(z, 1.7) + 1.0)
    assert torch.equal(out, s.entmax(z, 1.7))
    dynamic = torch.compile(lambda z: s.threshold(z, 1.7), fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in ((3, 4), (5, 7)):
        assert torch.equal(dynamic(cases.draw(*shape)).support_size, s.threshold(cases.draw(*shape), 1.7).support_size)


# --- opcheck ----------------------------------------------------------------------------------------------------------

Z, G = cases.draw(3, 4), cases.draw(3, 4, seed=1)
ORDERS = cases.PER_ROW[:, None]
ROWS = Scale(cases.PER_ROW[:, None] / 2, cases.PER_ROW[:, None] * 0.0)
SCORES = o.Scores(Z, ORDERS, None, ROWS, (1,))
P, TAU = o.entmax(SCORES)
TARGETS = entmax_loss.OfClasses(Z, torch.tensor([[0], [3], [-100]]), ORDERS, cases.MASK, ROWS, (1,), -100)
ROOTS = entmax_loss.entmax_loss(TARGETS).roots
CHECKS = {
    "entmax": (o.entmax, o.Scores(Z, 1.5, cases.MASK, UNIT, (1,))),
    "entmax, per row": (o.entmax, SCORES),
    "entmax, half": (o.entmax, o.Scores(Z.half(), 2.0, None, Scale(0.7, 0.0), (0, 1))),
    "entmax_vjp": (o.entmax_vjp, o.EntmaxVjp(P, TAU, ORDERS, G, (1,))),
    "entmax_threshold": (o.threshold, o.Scores(Z, ORDERS, cases.MASK, UNIT, (1,))),
    "entmax_loss": (entmax_loss.entmax_loss, TARGETS),
    "entmax_loss, one order": (entmax_loss.entmax_loss, TARGETS._replace(alpha=1.5, where=None)),
    "entmax_loss_vjp": (entmax_loss.entmax_loss_vjp, entmax_loss.LossVjp(TAU.abs(), ROOTS, TARGETS)),
}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("tracked", [False, True])
def test_opcheck(name: str, tracked: bool) -> None:
    operation, i = CHECKS[name]
    arguments = operation.torch.flatten(i)
    if tracked:
        arguments = tuple(
            x.clone().requires_grad_()
            if isinstance(x, torch.Tensor) and x.is_floating_point() and x is not TAU and x is not ROOTS
            else x
            for x in arguments
        )
    torch.library.opcheck(operation.torch.overload, arguments)


def test_opcheck_of_the_out_argument() -> None:
    torch.library.opcheck(o.entmax.torch.overload_out, (torch.empty_like(Z), *o.entmax.torch.flatten(SCORES)))
