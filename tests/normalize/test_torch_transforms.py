"""The torch operators under torch.func transforms, torch.compile and opcheck."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
cases = importlib.import_module("tests.normalize.torch_cases")
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap  # noqa: E402 needs torch

import softargmax  # noqa: E402
from softargmax.core.scale import Scale  # noqa: E402
from softargmax.normalize import (  # noqa: E402
    entropy_operations,
    prefix_operations,
    segment_operations,
    vjp_operations,
)
from softargmax.normalize import operations as o  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(warning) for warning in cases.IGNORED]
each = pytest.mark.parametrize("case", cases.CASES, ids=[case.name for case in cases.CASES])


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Any:
    """Reset the compiler for each test, because Dynamo gives up after many compilations of one function."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def total(f: Any) -> Any:
    """Return a nonlinear scalar function: the sum of the squares of all results of f."""

    def loss(*inputs: Any) -> Any:
        results = f(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        return sum((result.double() ** 2).sum() for result in results)

    return loss


def same_bits(a: Any, b: Any) -> bool:
    pairs = zip(a, b, strict=True) if isinstance(a, tuple) else ((a, b),)
    return all(torch.equal(x, y) and x.stride() == y.stride() and x.dtype == y.dtype for x, y in pairs)


# --- functorch --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [softargmax.softmax, softargmax.log_softmax, softargmax.logsumexp])
def test_a_pullback_is_differentiated_outside(operation: Any) -> None:
    """A pullback of torch.func.vjp can be differentiated with respect to z after torch.func.vjp has returned."""
    z = cases.draw(2, 3).requires_grad_()
    g = cases.draw(*operation(z).shape, seed=3)
    assert torch.autograd.gradcheck(lambda z: torch.func.vjp(operation, z)[1](g)[0], (z,))


@each
def test_jacobians_of_both_modes_agree(case: Any) -> None:
    loss = total(case.f)
    torch.testing.assert_close(jacfwd(loss)(*case.inputs), jacrev(loss)(*case.inputs), rtol=1e-12, atol=1e-13)


@each
def test_second_derivatives_of_all_modes_agree(case: Any) -> None:
    loss = total(case.f)
    wanted = jacrev(jacrev(loss))(*case.inputs)
    for second in (hessian(loss), jacrev(jacfwd(loss)), jacfwd(jacfwd(loss))):
        torch.testing.assert_close(second(*case.inputs), wanted, rtol=1e-11, atol=1e-12)


@each
def test_vmap_over_the_scores_is_a_loop(case: Any) -> None:
    z, *rest = case.inputs
    batch = torch.stack([z, 2 * z, z - 1], 1)
    wanted = [case.f(batch[:, i].contiguous(), *rest) for i in range(3)]
    found = vmap(lambda z: case.f(z, *rest), 1)(batch)
    for i, result in enumerate(wanted):
        part = tuple(x[i] for x in found) if isinstance(found, tuple) else found[i]
        torch.testing.assert_close(part, result, rtol=0, atol=0)


def test_vmap_over_everything_else() -> None:
    z, masks = cases.draw(4), torch.stack([cases.MASK[0], cases.MASK[1]])
    by_mask = vmap(lambda mask: softargmax.softmax(z, where=mask))(masks)
    assert torch.equal(by_mask, softargmax.softmax(z.expand(2, 4), where=masks))
    temperatures = cases.positive(3)
    by_temperature = vmap(lambda t: softargmax.softmax(z, temperature=t))(temperatures)
    assert torch.equal(by_temperature, softargmax.softmax(z.expand(3, 4), temperature=temperatures))
    weights = cases.positive(3, 4)
    by_weights = vmap(lambda w: softargmax.logsumexp(z, weights=w))(weights)
    assert torch.equal(by_weights, softargmax.logsumexp(z.expand(3, 4), weights=weights))
    nested = vmap(vmap(lambda z, t: softargmax.log_softmax(z, temperature=t), (None, 0)), (0, None))
    two = cases.draw(2, 4)
    assert torch.equal(nested(two, temperatures)[1, 2], softargmax.log_softmax(two[1], temperature=temperatures[2]))
    with pytest.raises(NotImplementedError, match="offsets"):
        vmap(lambda offsets: softargmax.segment_softmax(two[0], offsets))(torch.tensor([[0, 2, 4], [0, 1, 4]]))


def test_gradients_per_example() -> None:
    z, w = cases.draw(5, 4), cases.draw(4, seed=3)
    loss = lambda z, w: -softargmax.log_softmax(z * w)[0]  # noqa: E731
    found = vmap(grad(loss, argnums=1), (0, None))(z, w)
    torch.testing.assert_close(found[3], grad(loss, argnums=1)(z[3], w), rtol=1e-14, atol=1e-16)


def test_forward_mode_without_functorch() -> None:
    forward_ad = importlib.import_module("torch.autograd.forward_ad")
    z, t = cases.draw(4), cases.draw(4, seed=2)
    with forward_ad.dual_level():
        dual = softargmax.softmax(forward_ad.make_dual(z, t))
        tangent = forward_ad.unpack_dual(dual).tangent
    assert torch.equal(tangent, jvp(softargmax.softmax, (z,), (t,))[1])


def test_vectorized_jacobian_of_the_old_interface() -> None:
    z = cases.draw(4)
    old = torch.autograd.functional.jacobian(softargmax.softmax, z, vectorize=True)
    torch.testing.assert_close(old, jacrev(softargmax.softmax)(z), rtol=1e-14, atol=1e-16)


# --- torch.compile ----------------------------------------------------------------------------------------------------


@each
def test_compiled_result_has_the_bits_of_eager(case: Any) -> None:
    compiled = torch.compile(case.f, fullgraph=True, backend="aot_eager")
    assert same_bits(compiled(*case.inputs), case.f(*case.inputs))
    inputs = [tuple(x.clone().requires_grad_() for x in case.inputs) for _ in range(2)]
    for f, values in zip((compiled, case.f), inputs, strict=True):
        results = f(*values)
        results = results if isinstance(results, tuple) else (results,)
        torch.autograd.backward(results, [cases.draw(*result.shape, seed=9) for result in results])
    for ours, theirs in zip(*inputs, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("operation", [softargmax.softmax, softargmax.log_softmax])
def test_compiled_gradient_has_the_bits_of_eager(operation: Any) -> None:
    z, g = [cases.draw(6, 40).float().requires_grad_() for _ in range(2)], cases.draw(6, 40, seed=4).float()
    torch.compile(operation, fullgraph=True)(z[0]).backward(g)
    operation(z[1]).backward(g)
    assert torch.equal(z[0].grad, z[1].grad)


@pytest.mark.slow
@pytest.mark.parametrize("transform", [jacrev, jacfwd, hessian, grad, vmap], ids=lambda t: t.__name__)
def test_compiled_transforms(transform: Any) -> None:
    """Most transforms are only traced. The hessian, which uses both modes, is also compiled to C++ (3 s per case)."""
    backend = "inductor" if transform is hessian else "aot_eager"
    # A lambda, because torch 2.13 cannot trace the `hasattr(f, "__name__")` of vmap if f is a single node of the graph.
    f = total(softargmax.softmax) if transform in (hessian, grad) else lambda z: softargmax.softmax(z, axis=-1)
    z = cases.draw(3, 4)
    compiled = torch.compile(transform(f), fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(z), transform(f)(z), rtol=1e-13, atol=1e-15)


def test_operators_inside_transforms() -> None:
    """Captured graphs call the operators, so each operator must support nested calls of jacrev and jacfwd."""
    of = o.softmax.torch
    call = lambda z: of.overload(*of.flatten(o.Scores(z, None, Scale(0.7, 0.0), (0,), z.dtype)))[0]  # noqa: E731
    z = cases.draw(4)
    wanted = lambda z: softargmax.softmax(z, temperature=1 / 0.7)  # noqa: E731
    for first in (jacrev, jacfwd):
        for second in (jacrev, jacfwd):
            found = first(second(call))(z)
            torch.testing.assert_close(found, first(second(wanted))(z), rtol=1e-11, atol=1e-12)


def test_dynamic_shapes() -> None:
    compiled = torch.compile(lambda z: softargmax.softmax(z, temperature=3.0), fullgraph=True, dynamic=True)
    for shape in ((3, 4), (5, 7), (2, 1)):
        assert torch.equal(compiled(cases.draw(*shape)), softargmax.softmax(cases.draw(*shape), temperature=3.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("implementation", "backend"), [("native", "aot_eager"), ("native", "inductor"), ("reference", "aot_eager")]
)
@pytest.mark.parametrize("operation", [softargmax.softmax, softargmax.log_softmax])
def test_out_is_written_by_compiled_graphs(operation: Any, backend: str, implementation: str) -> None:
    compiled = torch.compile(lambda z, out, w: operation(z, where=w, out=out) + 1.0, fullgraph=True, backend=backend)
    z = cases.draw(3, 4)
    with softargmax.using(implementation):
        for out, where in ((torch.full_like(z, 7.0), None), (torch.full_like(z, 7.0), z > 0), (z.clone(), None)):
            given = out if torch.equal(out, z) else z
            wanted = operation(z, where=where)
            assert torch.equal(compiled(given, out, where), wanted + 1.0)
            assert torch.equal(out, wanted)


FIRST_CALLS = {
    "module": "softargmax.nn.Softmax(temperature=2.0)",
    "function": "lambda z: softargmax.softmax(z, temperature=2.0)",
    "sparse module": "softargmax.nn.Sparsemax()",
    "loss module": "softargmax.nn.CrossEntropyLoss()",
    "attention module": "softargmax.nn.Attention(4, 2)",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST_CALLS)
def test_first_call_of_a_process_may_be_compiled(name: str) -> None:
    code = f"""
import softargmax, torch
z = (torch.randn(3, 4), torch.tensor([0, 2, 1]))[: 2 if "Loss" in {FIRST_CALLS[name]!r} else 1]
f = {FIRST_CALLS[name]}
assert torch.equal(torch.compile(f, fullgraph=True, backend="aot_eager")(*z), f(*z))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


# --- opcheck ----------------------------------------------------------------------------------------------------------

Z, G = cases.draw(3, 4), cases.draw(3, 4, seed=1)
NUMBER, ROWS = Scale(0.7, 0.0), Scale(cases.positive(3, 1), torch.zeros(3, 1, dtype=torch.float64))
WEIGHTS, LSE = cases.positive(3, 4), torch.zeros(3, 1, dtype=torch.float64)
P = torch.softmax(Z, 1)
F64, F32 = torch.float64, torch.float32
RAGGED = segment_operations.SegmentScores(Z[:, 0], torch.tensor([0, 2, 3]), NUMBER, F64)
CHECKS = {
    "softmax": (o.softmax, o.Scores(Z, cases.MASK, NUMBER, (1,), F64)),
    "softmax, beta": (o.softmax, o.Scores(Z, None, ROWS, (1,), F64)),
    "softmax, half": (o.softmax, o.Scores(Z.half(), None, NUMBER, (0, 1), F32)),
    "log_softmax": (o.log_softmax, o.Scores(Z, None, ROWS, (1,), F64)),
    "softmax_vjp": (vjp_operations.softmax_vjp, vjp_operations.SoftmaxVjp(P, LSE, G, NUMBER, (1,), F64)),
    "log_softmax_vjp": (
        vjp_operations.log_softmax_vjp,
        vjp_operations.LogSoftmaxVjp(P.log(), LSE, G, NUMBER, (1,), F32),
    ),
    "logsumexp": (o.logsumexp, o.LogSumExp(Z, WEIGHTS, cases.MASK, ROWS, (1,), F64)),
    "logsumexp_vjp": (vjp_operations.logsumexp_vjp, vjp_operations.LogSumExpVjp(P, ROWS.hi, (1,), F64)),
    "entropy": (o.entropy, o.Scores(Z, cases.MASK, ROWS, (1,), F64)),
    "renyi_entropy": (
        entropy_operations.renyi_entropy,
        entropy_operations.RenyiEntropy(Z, cases.MASK, ROWS, ROWS.hi + 1.0, (1,), F64),
    ),
    "renyi_entropy, order 2": (
        entropy_operations.renyi_entropy,
        entropy_operations.RenyiEntropy(Z, None, NUMBER, 2.0, (0,), F32),
    ),
    "expectation": (o.expectation, o.Expectation(Z, None, NUMBER, WEIGHTS, (1,), F32)),
    "kl_divergence": (
        entropy_operations.kl_divergence,
        entropy_operations.KlDivergence(Z, G, cases.MASK, NUMBER, (0,), F64),
    ),
    "segment_softmax": (segment_operations.segment_softmax, RAGGED),
    "segment_log_softmax": (segment_operations.segment_log_softmax, RAGGED),
    "segment_logsumexp": (segment_operations.segment_logsumexp, RAGGED),
    "prefix_surprisals": (
        prefix_operations.prefix_surprisals,
        prefix_operations.LogCumSumExp(Z, cases.MASK, ROWS, (1,), F64),
    ),
    "logcumsumexp": (prefix_operations.logcumsumexp, prefix_operations.LogCumSumExp(Z, cases.MASK, ROWS, (1,), F64)),
}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("tracked", [False, True])
def test_opcheck(name: str, tracked: bool) -> None:
    operation, i = CHECKS[name]
    arguments = operation.torch.flatten(i)
    if tracked:
        lo = ROWS.lo
        arguments = tuple(
            x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() and x is not lo else x
            for x in arguments
        )
    torch.library.opcheck(operation.torch.overload, arguments)


def test_opcheck_of_a_result_that_is_written() -> None:
    i = o.Scores(Z, None, NUMBER, (1,), F64)
    torch.library.opcheck(o.softmax.torch.overload_out, (torch.empty_like(Z), *o.softmax.torch.flatten(i)))
