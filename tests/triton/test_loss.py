"""Cross-entropy by the CUDA kernels, in Triton's interpreter: soft-caps, temperatures, probabilities, saved states.

Other tests of losses are in test_kernels.py and test_linear.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.loss.cases import PRODUCTS, Z, rounded, shown
from tests.loss.test_edges import ROWS
from tests.oracle.truth import ulp_error

import softargmax as sa
from softargmax.core import dispatch

if not dispatch.INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1: run `make test-triton`", allow_module_level=True)

import torch
import triton
import triton.language as tl

from softargmax.core import triton_launch
from softargmax.core.triton_math import cap_slope, capped
from softargmax.loss import operations
from softargmax.loss import triton_kernels as kernels
from softargmax.loss.arguments import CrossEntropy, CrossEntropyVjp
from softargmax.loss.cross_entropy import record

INF, NAN = float("inf"), float("nan")
UNIT = 2.0**-24
"""The unit roundoff of float32."""
SMALLEST = 2.0**-149
"""The smallest float32 number."""
LONG = 600  # two parts of 256 scores, and one with 88
OF_CAP = 5.0
"""Error of a soft-capped score in units of roundoff: 2.5 ulp."""


@pytest.fixture(autouse=True)
def triton_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All calls run the CUDA kernels, which cut rows into parts of 256 scores."""
    for module in (triton_launch, kernels):
        monkeypatch.setattr(module, "PART", 256)
    with sa.using("triton"):
        yield


class Found(NamedTuple):
    """A loss, its gradient by autograd, and both by `cross_entropy_and_gradient`."""

    loss: torch.Tensor
    gradient: Any
    together: Any


def found_for(z: torch.Tensor, target: torch.Tensor, **options: Any) -> Found:
    leaf = z.clone().requires_grad_()
    loss = sa.cross_entropy(leaf, target, **options)
    loss.sum().backward()
    return Found(loss.detach(), leaf.grad, sa.cross_entropy_and_gradient(z, target, **options))


def definition(z: torch.Tensor, target: torch.Tensor, **options: Any) -> Found:
    """The results of the definition in float64."""
    wide = {name: x.double() if is_real(x) else x for name, x in options.items()}
    with sa.using("reference"):
        return found_for(z.double(), target.double() if is_real(target) else target, **wide)


def is_real(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def probabilities(rows: int, classes: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed)).mul(2.0).softmax(-1)


def steepest(temperature: Any) -> float:
    """The largest |beta| of rows with a finite one."""
    t = torch.as_tensor(temperature, dtype=torch.float64).abs()
    return float((1.0 / t[(t > 0.0) & (t < INF)]).amax())


def check(z: torch.Tensor, target: torch.Tensor, **options: Any) -> None:
    """Compare with the definition.

    A capped score x has an error of at most OF_CAP UNIT |x|, and |x| is at most the soft-cap s. So log p has an error
    of 2 OF_CAP UNIT |beta| s. Besides, losses are within 3 ulp. An entry of the gradient is a difference of two
    numbers, of which each is at most beta times the mass of the row, and 2 c lse more.
    """
    found, exact = found_for(z, target, **options), definition(z, target, **options)
    assert torch.equal(found.loss.nan_to_num(nan=7.0), found.together.loss.nan_to_num(nan=7.0))
    assert torch.equal(found.gradient.nan_to_num(nan=7.0), found.together.gradient.nan_to_num(nan=7.0))
    beta, cap, weight = steepest(options.get("temperature", 1.0)), options.get("softcap") or 0.0, options.get("weight")
    of_scores = 2.0 * OF_CAP * UNIT * beta * cap
    lse = beta * (cap or float(z[z.isfinite()].abs().amax())) + np.log(z.shape[-1])
    mass = (1.0 if weight is None else float(weight.amax())) + 2.0 * options.get("z_loss", 0.0) * lse
    share, rows = 1.0, 1.0
    if options.get("reduction", "mean") == "mean":
        share = 1.0 / counted(target, weight)
    if options.get("reduction", "mean") != "none":
        rows = len(z)
    of_loss = 6.0 * UNIT * exact.loss.abs() + of_scores * mass * rows * share
    assert_near(found.loss, exact.loss, of_loss)
    of_gradient = ((16.0 if cap else 8.0) * UNIT + of_scores) * beta * mass * share
    assert_near(found.gradient, exact.gradient, torch.tensor(of_gradient))


def counted(target: torch.Tensor, weight: torch.Tensor | None) -> float:
    """The divisor of a mean."""
    if is_real(target):
        return len(target)
    classes = target[target != -100]
    return len(classes) if weight is None else float(weight[classes].sum())


def assert_near(found: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> None:
    same = (found == exact) | (found.isnan() & exact.isnan())
    error = (found - exact).abs()
    assert (same | (error <= bound + SMALLEST)).all(), (error / bound)[~same].amax()


# --- soft-caps --------------------------------------------------------------------------------------------------------


@triton.jit  # type: ignore[untyped-decorator]
def cap_scores(x: Any, y: Any, slope: Any, softcap: Any, N: tl.constexpr) -> None:
    k = tl.arange(0, N)
    score = tl.load(x + k)
    tl.store(y + k, capped(score, softcap, True))
    tl.store(slope + k, cap_slope(score, softcap))


@pytest.mark.parametrize("softcap", [0.75, 5.0, 30.0, 2.0**19])
def test_soft_capped_scores_are_within_2_5_ulp(softcap: float) -> None:
    u = np.concatenate([np.geomspace(1e-8, 100.0, 4000), np.linspace(0.1, 2.0, 12384)]) * softcap
    x = np.where(np.arange(len(u)) % 2, u, -u).astype(np.float32)
    y, slope = torch.empty(len(x)), torch.empty(len(x))
    cap_scores[(1,)](torch.from_numpy(x), y, slope, softcap, len(x))
    wide = x.astype(np.float64) / softcap
    assert ulp_error(y.numpy(), softcap * np.tanh(wide)).max() <= OF_CAP / 2.0
    exact = 1.0 / np.cosh(wide) ** 2
    assert (np.abs(slope.numpy() - exact) <= 8.0 * UNIT * exact + 2.0**-121).all()
    edges = torch.tensor([INF, -INF, NAN, 0.0])
    cap_scores[(1,)](edges, y, slope, softcap, 4)
    torch.testing.assert_close(y[:4], torch.tensor([softcap, -INF, NAN, 0.0]), equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(slope[:4], torch.tensor([0.0, 0.0, NAN, 1.0]), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5, "reduction": "sum"},
        {"temperature": -3.0, "label_smoothing": 0.1, "z_loss": 1e-3},
        {"temperature": torch.tensor([[0.5], [2.0], [-1.0], [INF]]), "reduction": "none"},
    ],
)
@pytest.mark.parametrize("classes", [7, LONG])
def test_soft_caps(classes: int, options: dict[str, Any]) -> None:
    z = torch.randn(4, classes, generator=torch.Generator().manual_seed(0)) * 20.0
    z[0, 2], z[1, 0] = INF, -INF
    check(z, torch.tensor([2, 3, -100, classes - 1]), softcap=15.0, **options)


EACH = [0.3, -2.0, 0.0, -0.0, INF, 1.0]
"""A temperature for each row."""


# --- temperatures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2}, {"soft": True}, {"z_loss": 1e-2}])
@pytest.mark.parametrize(("classes", "temperature"), [(5, 0.0), (5, -0.0), (5, INF), (5, EACH), (LONG, EACH)])
def test_temperatures_of_rows_and_limits(classes: int, temperature: Any, options: dict[str, Any]) -> None:
    options = dict(options)
    z = torch.randn(6, classes, generator=torch.Generator().manual_seed(4)) * 3.0
    target = torch.tensor([0, classes - 1, 1, 2, 1, -100])
    if options.pop("soft", False):
        target = probabilities(6, classes)
    z[2] = z[3] = 1.5
    z[2, 0], z[4, 3], z[5, 0] = -4.0, INF, -INF
    per_row = torch.tensor(temperature)[:, None] if isinstance(temperature, list) else temperature
    found = sa.cross_entropy_and_gradient(z, target, temperature=per_row, reduction="none", **options)
    exact = definition(z, target, temperature=per_row, reduction="none", **options)
    np.testing.assert_allclose(found.loss.numpy(), exact.loss.float().numpy(), rtol=1e-6)
    np.testing.assert_allclose(found.gradient.numpy(), exact.gradient.float().numpy(), rtol=4e-6, atol=4e-7)


# --- probabilities ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [1, 9, 130, LONG])
def test_probabilities_as_targets(classes: int, dtype: torch.dtype) -> None:
    z = (torch.randn(3, classes, generator=torch.Generator().manual_seed(5)) * 4.0).to(dtype)
    target = probabilities(3, classes)
    target[1, 0] = 0.0
    z[1, 0] = -INF if classes > 1 else 0.0
    if dtype is torch.float32:
        check(z, target, reduction="none")
        check(z, target, reduction="mean", z_loss=1e-3)
        return
    found, exact = found_for(z, target, reduction="none"), definition(z, target, reduction="none")
    x = z.double().clamp(min=-100.0)
    of_exp = (2.0**-20 + UNIT * (x.amax(1) - x.amin(1)))[:, None]
    assert_near(found.loss, exact.loss, of_exp[:, 0] * (1.0 + exact.loss))
    half_ulp = torch.finfo(dtype).eps / 2.0 * exact.gradient.abs()
    p = exact.gradient + target
    assert_near(found.gradient, exact.gradient, 1.001 * half_ulp + of_exp * (p + target))


@pytest.mark.parametrize("classes", [4, LONG])
def test_the_gradient_of_a_confident_row_with_probabilities_is_accurate(classes: int) -> None:
    z, target = torch.full((3, classes), -30.0), torch.zeros(3, classes)
    z[:, 1], target[:, 1] = 5.0, 1.0
    found, exact = found_for(z, target), definition(z, target)
    assert ulp_error(found.loss.numpy(), exact.loss.numpy()).max() <= 3
    assert ulp_error(found.gradient.numpy(), exact.gradient.numpy()).max() <= 3


def test_mass_at_the_maximum_of_a_lower_part() -> None:
    z, target = torch.zeros(2, LONG), torch.zeros(2, LONG)
    z[:, 5], z[:, 300], target[0, 5], target[1, 300] = 1.0, 2.0, 1.0, 1.0
    assert sa.cross_entropy(z, target, temperature=0.0, reduction="none").tolist() == [INF, 0.0]


def test_probabilities_in_other_layouts() -> None:
    z, target = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(6)), probabilities(15, 7).reshape(3, 5, 7)
    plain = sa.cross_entropy(z, target, reduction="none")
    along = sa.cross_entropy(z.transpose(1, 2).contiguous(), target.transpose(1, 2), axis=1, reduction="none")
    assert torch.equal(plain, along)
    assert torch.equal(sa.cross_entropy(z.mT, target.mT.contiguous(), axis=-2, reduction="none"), plain)
    narrow = sa.cross_entropy(z, target.to(torch.bfloat16).expand(3, 5, 7), reduction="sum")
    with sa.using("reference"):
        exact = sa.cross_entropy(z.double(), target.to(torch.bfloat16).double(), reduction="sum")
    assert ulp_error(narrow.numpy(), exact.numpy()) <= 3


# --- saved states -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"soft": True}])
@pytest.mark.parametrize(("classes", "many"), [(6, 1), (LONG, 1), (LONG, triton_launch.MANY)])
def test_the_backward_pass_reads_saved_states(
    classes: int, many: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_launch, "MANY", many)
    options = dict(options)
    z = torch.randn(3, classes, generator=torch.Generator().manual_seed(7)) * 3.0
    target = probabilities(3, classes) if options.pop("soft", False) else torch.tensor([0, 2, classes - 1])
    i: CrossEntropy = record(z, target, {"reduction": "none", **options})  # type: ignore[typeddict-item]
    loss, states = operations.cross_entropy(i)
    assert states.isfinite().all()
    one = torch.ones_like(loss)
    whole = operations.cross_entropy_vjp.first(CrossEntropyVjp(i, None, one, 0.0))
    again = operations.cross_entropy_vjp.first(CrossEntropyVjp(i, states, one, 0.0))
    assert torch.equal(whole, again)
    states[..., 1] = 2.0 * states[..., 1] + 1.0  # 1 + r doubles, so each p is half as large
    less = operations.cross_entropy_vjp.first(CrossEntropyVjp(i, states, one, 0.0))
    others = torch.ones(3, classes, dtype=torch.bool)
    if i.options.target is not None:
        others[torch.arange(3), target] = False
    p = sa.softmax(z)
    others &= z < z.amax(1, keepdim=True)
    torch.testing.assert_close((whole - less)[others], (0.5 * p)[others], rtol=1e-5, atol=1e-7)


def test_states_of_rows_that_are_copied() -> None:
    z = torch.randn(4, 3, 5, 6, generator=torch.Generator().manual_seed(9)).transpose(0, 2)  # three strides of rows
    target = torch.arange(60).reshape(5, 3, 4) % 6
    found, plain = found_for(z, target), found_for(z.contiguous(), target)
    assert torch.equal(found.loss, plain.loss)
    assert torch.equal(found.gradient, plain.gradient)


def test_losses_in_float64_are_those_of_the_definition() -> None:
    z, target = torch.randn(2, 5, generator=torch.Generator().manual_seed(8)), torch.tensor([1, 4])
    found = found_for(z, target, dtype=torch.float64)
    exact = definition(z, target)
    assert ulp_error(found.loss.numpy(), exact.loss.numpy()).max() <= 1
    assert ulp_error(found.gradient.numpy(), exact.gradient.numpy()).max() <= 1


# --- all options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", PRODUCTS[::43], ids=shown)
def test_options_together(case: dict[str, Any]) -> None:
    options = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in rounded(case, "f4").items()}
    if isinstance(options["temperature"], torch.Tensor):
        options["temperature"] = options["temperature"][:, None]
    check(torch.from_numpy(Z.astype(np.float32)), options.pop("target"), **options)


@pytest.mark.parametrize("name", ROWS)
def test_edge_rows(name: str) -> None:
    scores, target, options, loss, gradient = ROWS[name]
    z = torch.tensor([scores])
    given = {key: torch.tensor(x) if isinstance(x, list) else x for key, x in options.items()}
    found = found_for(z, torch.tensor([target]), reduction="none", **given)
    for one in (found.loss, found.together.loss):
        assert one.tolist() == pytest.approx([loss], rel=1e-6, abs=1e-7, nan_ok=True)
    if gradient is not None:
        for one in (found.gradient, found.together.gradient):
            assert one[0].tolist() == pytest.approx(gradient, rel=1e-6, abs=1e-7, nan_ok=True)
