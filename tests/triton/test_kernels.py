"""The CUDA kernels in Triton's interpreter: long rows, layouts, bits, derivatives, and calls left to the definitions.

`make test-triton` runs these tests in a process of its own, because Triton looks at TRITON_INTERPRET when it compiles.
The same command runs the edge table and the accuracy tests of the rooms with these kernels.
"""

from __future__ import annotations

from collections import defaultdict
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

from softargmax.core import triton_launch
from softargmax.core.scale import UNIT
from softargmax.loss import operations as losses
from softargmax.normalize import operations, triton_kernels

LONG = 16400  # two parts, and one with 16 scores
INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def triton() -> Iterator[None]:
    """All calls run the CUDA kernels."""
    with sa.using("triton"):
        yield


def scores(*shape: int, spread: float = 10.0, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


def definition(function: Callable[..., Any], z: torch.Tensor, **options: Any) -> np.ndarray:
    """The result of the definition in float64."""
    with sa.using("reference"):
        return function(z.double(), **options).numpy()


@pytest.mark.parametrize("spread", [1.0, 10.0, 1e4])
@pytest.mark.parametrize("classes", [1, 5, 1000, 4096, LONG])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_float32_is_accurate_to_3_ulp(name: str, classes: int, spread: float) -> None:
    z, function = scores(2, classes, spread=spread), getattr(sa, name)
    truth = definition(function, z)
    at = np.maximum(np.abs(truth), np.abs(z.numpy()).max(1)) if name == "logsumexp" else None
    assert ulp_error(function(z).numpy(), truth, at=at).max() <= 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("classes", [5, 4096, LONG])
def test_halves_are_rounded_once(dtype: torch.dtype, classes: int) -> None:
    # The fast exponential adds 1e-6 of a result, which is 0.002 ulp of float16.
    z = scores(2, classes, spread=3.0, dtype=dtype)
    for function in (sa.softmax, sa.log_softmax):
        found = function(z)
        assert found.dtype == dtype
        error = ulp_error(found.float().numpy(), definition(function, z), dtype=str(dtype)[6:])
        assert error.max() <= 0.51


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [3, 100, 512, 1000, LONG])
def test_a_row_has_the_same_bits_in_every_batch_and_layout(classes: int, dtype: torch.dtype) -> None:
    z, target = scores(5, classes, dtype=dtype), torch.tensor([0, 1, classes - 1, 2, 1])
    for function in (sa.softmax, sa.log_softmax, sa.logsumexp):
        whole = function(z)
        alone = torch.stack([function(row) for row in z])
        down = function(z.T.contiguous(), axis=0)
        spaced = function(torch.stack([z, z])[:, :, :].transpose(0, 1), axis=-1)[:, 0]
        assert torch.equal(whole, alone)
        assert torch.equal(whole, down if down.ndim == 1 else down.T)
        assert torch.equal(whole, spaced)
    losses_of_rows = sa.cross_entropy(z, target, reduction="none")
    alone = torch.stack([sa.cross_entropy(row[None], t[None]) for row, t in zip(z, target, strict=True)])
    assert torch.equal(losses_of_rows, alone)


def test_the_size_of_tasks_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    z, target = scores(3, 5 * triton_launch.PART - 7), torch.tensor([0, 7, 40000])
    first = sa.softmax(z), sa.logsumexp(z), *sa.cross_entropy_and_gradient(z, target)
    monkeypatch.setattr(triton_launch, "AT_ONCE", 2)
    for each in (4, 8, 1000):
        monkeypatch.setattr(triton_launch, "EACH", each)
        again = sa.softmax(z), sa.logsumexp(z), *sa.cross_entropy_and_gradient(z, target)
        assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"temperature": -3.0}, {"temperature": 0.0}])
def test_special_rows_in_parts(options: dict[str, float]) -> None:
    z = scores(6, LONG)
    z[0, 5], z[1, LONG - 1], z[2], z[3, 0], z[4, LONG - 3] = INF, NAN, -INF, -INF, -INF
    z[5, 2], z[5, 3] = INF, NAN
    where = torch.ones(6, LONG, dtype=torch.bool)
    where[0, ::2] = where[4, -5:] = where[5, 3] = False
    for function in (sa.softmax, sa.log_softmax, sa.logsumexp):
        for more in ({}, {"where": where}):
            found, expected = function(z, **options, **more), definition(function, z, **options, **more)
            np.testing.assert_allclose(found.numpy(), expected.astype(np.float32), rtol=1e-6, atol=1e-37)


def test_a_temperature_for_each_row_in_parts() -> None:
    z, temperature = scores(3, LONG), torch.tensor([[0.3], [-2.0], [INF]])
    for function in (sa.softmax, sa.log_softmax):
        expected = definition(function, z, temperature=temperature.double())
        np.testing.assert_allclose(function(z, temperature=temperature).numpy(), expected, rtol=2e-6, atol=1e-37)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"label_smoothing": 0.1, "z_loss": 1e-3},
    {"weight": True, "label_smoothing": 0.1},
    {"weight": True, "reduction": "sum", "temperature": 2.5},
    {"reduction": "none", "where": True},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("classes", [10, 1000, LONG])
def test_losses_and_gradients(classes: int, options: dict[str, Any]) -> None:
    z, target = scores(4, classes), torch.tensor([1, -100, 3, classes - 1])
    weight = torch.rand(classes, generator=torch.Generator().manual_seed(1)) + 0.1
    where = torch.rand(4, classes, generator=torch.Generator().manual_seed(2)) > 0.2
    where[:, [1, 3, -1]] = True
    given = {"weight": weight, "where": where}
    kept = {name: given.get(name, value) if value is True else value for name, value in options.items()}
    wide = {name: value.double() if name == "weight" else value for name, value in kept.items()}
    ours, theirs = z.clone().requires_grad_(), z.double().requires_grad_()
    found = sa.cross_entropy(ours, target, **kept)
    found.sum().backward()
    with sa.using("reference"):
        expected = sa.cross_entropy(theirs, target, **wide)
        expected.sum().backward()
    assert ulp_error(found.detach().numpy(), expected.detach().numpy()).max() <= 3
    largest = theirs.grad.abs().amax(1, keepdim=True)
    assert ((ours.grad - theirs.grad).abs() <= 4 * 2.0**-24 * largest).all()
    loss, gradient = sa.cross_entropy_and_gradient(z, target, **kept)
    assert torch.equal(loss, found)
    assert torch.equal(gradient, ours.grad)


def test_a_confident_row_has_an_accurate_loss_and_gradient() -> None:
    z = torch.tensor([[30.0, 0.0, 1.0, -2.0]], requires_grad=True)
    loss = sa.cross_entropy(z, torch.tensor([0]))
    loss.backward()
    rest = np.exp(-30.0) + np.exp(-29.0) + np.exp(-32.0)
    assert ulp_error(loss.detach().numpy(), np.log1p(rest)) <= 3
    assert ulp_error(z.grad[0, 0].numpy(), -rest / (1 + rest)) <= 3


def test_rows_that_share_memory() -> None:
    z, w = torch.arange(1.0, 7.0)[:, None].expand(6, 8), torch.arange(1.0, 7.0)
    np.testing.assert_allclose(sa.logsumexp(z).numpy(), np.arange(1, 7) + np.log(8), rtol=1e-6)
    ours, theirs = scores(6, 8).requires_grad_(), scores(6, 8).double().requires_grad_()
    (sa.log_softmax(ours).sum(-1) * w).sum().backward()  # the incoming gradient is expanded along each row
    with sa.using("reference"):
        (sa.log_softmax(theirs).sum(-1) * w).sum().backward()
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [-1, 1, (1, 2)])
def test_masks_and_temperatures_that_broadcast_over_heads(axis: Any) -> None:
    z, where = scores(2, 3, 4, 5), torch.rand(2, 1, 4, 5, generator=torch.Generator().manual_seed(1)) > 0.3
    found, expected = sa.softmax(z, axis=axis, where=where), definition(sa.softmax, z, axis=axis, where=where)
    assert ulp_error(found.numpy(), expected).max() <= 3
    temperature = torch.tensor([0.5, 1.0, 3.0])[None, :, None, None]
    expected = definition(sa.softmax, z, temperature=temperature.double())
    np.testing.assert_allclose(sa.softmax(z, temperature=temperature).numpy(), expected, rtol=1e-6)


def test_edges_of_losses() -> None:
    first = torch.tensor([0])
    beside_nan = sa.cross_entropy(torch.tensor([[NAN, -INF, INF]]), torch.tensor([1]))
    assert beside_nan.isnan()
    weighted = sa.cross_entropy(
        torch.tensor([[INF, 0.0]]), first, weight=torch.tensor([1.0, 0.0]), label_smoothing=0.1, reduction="sum"
    )
    assert weighted == 0.0
    z = torch.tensor([[0.0, 1.0, -INF]], requires_grad=True)
    sa.cross_entropy(z, first, reduction="none").backward(torch.tensor([INF]))
    assert z.grad[0, 2] == 0.0
    narrow = sa.cross_entropy(torch.tensor([[10.0, 0.5, -3.0]], dtype=torch.bfloat16), first)
    assert abs(narrow.item() / np.log1p(np.exp(-9.5) + np.exp(-13.0)) - 1) < 2.0**-20


def test_a_class_out_of_range_gives_nan() -> None:
    found = sa.cross_entropy_and_gradient(scores(3, 5), torch.tensor([0, 9, -1]), reduction="none")
    assert found.loss.isnan().tolist() == [False, True, True]
    assert found.gradient.isnan().all(1).tolist() == [False, True, True]


@pytest.mark.parametrize("classes", [6, LONG])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_first_derivatives(name: str, classes: int) -> None:
    function = getattr(sa, name)
    z, g = scores(2, classes, spread=2.0), scores(2, classes, seed=1)
    g = g[:, 0] if name == "logsumexp" else g
    ours, theirs = z.clone().requires_grad_(), z.double().requires_grad_()
    (found,) = torch.autograd.grad(function(ours), ours, g)
    with sa.using("reference"):
        (expected,) = torch.autograd.grad(function(theirs), theirs, g.double())
    # An entry is a sum of terms of at most |g|, each rounded a few times.
    assert ((found - expected).abs() <= 4 * 2.0**-24 * g.abs().amax()).all()


def test_second_derivatives_forward_mode_and_vmap() -> None:
    z, tangent = scores(3, 5, spread=2.0), scores(3, 5, seed=1)

    def loss(z: torch.Tensor) -> torch.Tensor:
        return (sa.softmax(z) * sa.log_softmax(z)).sum() + sa.logsumexp(z).square().sum()

    def of(function: Callable[..., Any]) -> tuple[Any, ...]:
        return torch.func.hessian(function)(z), torch.func.jvp(function, (z,), (tangent,))[1]

    found = of(loss)
    with sa.using("reference"):
        expected = of(loss)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    batches = torch.stack([z, tangent])
    assert torch.equal(torch.vmap(sa.softmax)(batches), torch.stack([sa.softmax(z), sa.softmax(tangent)]))


@pytest.mark.parametrize("operation", [operations.softmax, operations.log_softmax, operations.logsumexp])
def test_the_operators_pass_opcheck(operation: Any) -> None:
    z = scores(3, 5).requires_grad_()
    i = operations.Scores(z, None, UNIT, (1,), torch.float32)
    if operation is operations.logsumexp:
        i = operations.LogSumExp(z, None, None, UNIT, (1,), torch.float32)
    torch.library.opcheck(operation.torch.overload, operation.torch.flatten(i))


def test_out_dtype_and_other_axes() -> None:
    z = scores(3, 4, 5, 6)
    out = torch.empty_like(z)
    assert sa.softmax(z, out=out) is out
    assert torch.equal(out, sa.softmax(z))
    for axis in (0, 1, (0, 2), (1, 3), None):
        expected = definition(sa.softmax, z, axis=axis)
        assert ulp_error(sa.softmax(z, axis=axis).numpy(), expected).max() <= 3
    narrow = sa.softmax(z.bfloat16(), dtype=torch.float32)
    assert ulp_error(narrow.numpy(), definition(sa.softmax, z.bfloat16())).max() <= 3


def test_a_repeated_launch_passes_the_tensors_and_numbers_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[dict[str, Any]] = []
    names = triton_kernels.whole_rows.arg_names
    compiled = defaultdict(lambda: lambda *found: passed.append(dict(zip(names, found, strict=True))))
    monkeypatch.setattr(triton_launch, "launch", lambda *_a, **_k: compiled)
    monkeypatch.setattr(triton_launch, "_repeated", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    z = scores(3, 8)
    sa.softmax(z, out=z, temperature=2.0)  # the first call has the same tensor twice
    other, out = scores(3, 8, seed=1), torch.empty(3, 8)
    sa.softmax(other, out=out, temperature=4.0)
    sa.softmax(other[:2], out=out[:2])  # another layout, so it is not a repeated launch
    (found,) = passed
    assert found["z"].data_ptr() == found["where"].data_ptr() == other.data_ptr()
    assert found["out"].data_ptr() == out.data_ptr()
    assert found["beta_hi"] == 0.25


def test_the_definitions_serve_what_no_kernel_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    monkeypatch.setattr(triton_launch, "launch", lambda *_a, **_k: launched.append(1))
    z = scores(3, 5).double()
    np.testing.assert_allclose(sa.softmax(z).numpy(), definition(sa.softmax, z), rtol=1e-15)
    assert sa.softmax(torch.empty(3, 0)).shape == (3, 0)
    assert sa.logsumexp(torch.empty(2, 0)).tolist() == [-INF, -INF]
    weighted = sa.logsumexp(scores(2, 3), weights=torch.tensor([1.0, 2.0, 0.0]))
    assert weighted.shape == (2,)
    target = torch.softmax(scores(3, 5, seed=1), 1)
    assert sa.cross_entropy(scores(3, 5), target, label_smoothing=0.1).shape == ()
    assert not launched
    assert "cuda" in losses.cross_entropy.kernels
