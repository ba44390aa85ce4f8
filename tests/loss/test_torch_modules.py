"""softargmax.nn: CrossEntropyLoss and LinearCrossEntropyLoss, compared with torch's modules."""

from __future__ import annotations

import copy
import importlib
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
cases = importlib.import_module("tests.loss.torch_cases")

import softargmax as s  # noqa: E402 not without torch

Y = torch.tensor([2, 0, -100])
WEIGHT = cases.positive(4)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", [{}, {"weight": WEIGHT}, {"label_smoothing": 0.1}, {"ignore_index": 0}], ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (3, 4, 2, 2), (4,)], ids=str)
def test_agrees_with_torch(shape: tuple[int, ...], options: dict[str, Any], reduction: str) -> None:
    z = cases.draw(*shape).requires_grad_()
    rows = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = torch.randint(0 if rows else 1, 4, rows, generator=torch.Generator().manual_seed(0))
    if rows and "ignore_index" not in options:
        target[0] = -100
    ours = s.nn.CrossEntropyLoss(**options, reduction=reduction)(z, target)
    theirs = torch.nn.CrossEntropyLoss(**options, reduction=reduction)(z, target)
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    torch.testing.assert_close(*(torch.autograd.grad(x.nan_to_num().sum(), z)[0] for x in (ours, theirs)))
    if "ignore_index" not in options:
        soft = cases.positive(*shape)
        ours, theirs = (lib.CrossEntropyLoss(**options, reduction=reduction)(z, soft) for lib in (s.nn, torch.nn))
        torch.testing.assert_close(ours, theirs)


def test_the_difference_from_torch() -> None:
    z, ignored = cases.draw(2, 4), torch.tensor([-100, -100])
    assert torch.nn.CrossEntropyLoss()(z, ignored).isnan()
    assert s.nn.CrossEntropyLoss()(z, ignored) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"weight": WEIGHT},
        {"ignore_index": 2},
        {"reduction": "sum"},
        {"label_smoothing": 0.3},
        {"z_loss": 0.1},
        {"softcap": 1.0},
        {"temperature": 2.0},
        {"temperature": torch.tensor([1.0, 2.0, 3.0])},
    ],
    ids=str,
)
def test_options_equal_those_of_the_functions(options: dict[str, Any]) -> None:
    z, y = cases.draw(3, 4), torch.tensor([2, 0, 1])
    h, w, b = cases.draw(3, 2), cases.draw(4, 2), cases.draw(4)
    where = cases.MASK
    found = s.nn.CrossEntropyLoss(**options)
    assert torch.equal(found(z, y), s.cross_entropy(z, y, **options))
    assert not torch.equal(found(z, y), s.cross_entropy(z, y))
    assert torch.equal(found(z, y, where), s.cross_entropy(z, y, where=where, **options))
    linear = s.nn.LinearCrossEntropyLoss(**options)
    assert torch.equal(linear(h, w, y), s.linear_cross_entropy(h, w, y, **options))
    assert torch.equal(linear(h, w, y, b, where), s.linear_cross_entropy(h, w, y, bias=b, where=where, **options))


@pytest.mark.parametrize("module", [s.nn.CrossEntropyLoss, s.nn.LinearCrossEntropyLoss])
def test_standard_module_behavior(module: Any) -> None:
    layer = module(WEIGHT, temperature=torch.nn.Parameter(torch.tensor(2.0)), reduction="sum")
    assert set(layer.state_dict()) == {"weight", "temperature"}
    assert [name for name, _ in layer.named_parameters()] == ["temperature"]
    assert repr(layer) == f"{module.__name__}(weight=<4>, reduction='sum', temperature=<>)"
    assert repr(module()) == f"{module.__name__}()"
    z, y = cases.draw(3, 4), torch.tensor([2, 0, 1])
    inputs = (z, y) if module is s.nn.CrossEntropyLoss else (cases.draw(3, 2), cases.draw(4, 2), y)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.double()):
        assert torch.equal(twin(*inputs), layer(*inputs))
    layer(*inputs).backward()
    assert layer.temperature.grad != 0


@pytest.mark.filterwarnings(cases.IGNORED[0])
@pytest.mark.filterwarnings(cases.IGNORED[1])
def test_export() -> None:
    z = cases.draw(3, 4)
    program = torch.export.export(s.nn.CrossEntropyLoss(temperature=3.0), (z, Y))
    torch.testing.assert_close(program.module()(z, Y), s.cross_entropy(z, Y, temperature=3.0))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_empty_batch_has_a_gradient_of_zeros(dtype, reduction):
    h, w, z = (torch.ones(shape, dtype=dtype, requires_grad=True) for shape in ((0, 3), (5, 3), (0, 5)))
    y = torch.zeros(0, dtype=torch.int64)
    s.linear_cross_entropy(h, w, y, reduction=reduction).sum().backward()
    s.cross_entropy(z, y, reduction=reduction).sum().backward()
    assert not w.grad.any()
    assert h.grad.shape == (0, 3)
