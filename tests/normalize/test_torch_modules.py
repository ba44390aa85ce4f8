"""softargmax.nn.Softmax and LogSoftmax: options, learned temperatures, copies, export and errors."""

from __future__ import annotations

import copy
import importlib
import io
import math
import pickle
import re
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
cases = importlib.import_module("tests.normalize.torch_cases")

import softargmax  # noqa: E402 not without torch

pairs = pytest.mark.parametrize(
    ("module", "function"),
    [(softargmax.nn.Softmax, softargmax.softmax), (softargmax.nn.LogSoftmax, softargmax.log_softmax)],
    ids=["Softmax", "LogSoftmax"],
)


@pairs
@pytest.mark.parametrize(
    "options",
    [{}, {"dim": 0}, {"dim": (0, 1)}, {"dim": None}, {"temperature": 0.3}, {"base": 2.0}, {"dtype": torch.float64}],
    ids=str,
)
def test_options_are_those_of_the_function(module: Any, function: Any, options: dict[str, Any]) -> None:
    z = cases.draw(3, 4).float()
    found = module(**options)(z)
    wanted = function(z, **{"axis" if name == "dim" else name: value for name, value in options.items()})
    assert torch.equal(found, wanted)
    assert found.dtype == wanted.dtype
    if options not in ({}, {"dim": -1}):
        assert found.dtype != z.dtype or not torch.equal(found, function(z))
    assert torch.equal(module(**options)(z, where=cases.MASK), function(z, where=cases.MASK, **{
        "axis" if name == "dim" else name: value for name, value in options.items()
    }))  # fmt: skip


@pairs
def test_dim_by_position_as_in_torch(module: Any, function: Any) -> None:
    z = cases.draw(3, 4)
    assert torch.equal(module(0)(z), function(z, axis=0))


@pairs
def test_a_temperature_can_be_learned(module: Any, function: Any) -> None:
    layer = module(temperature=torch.nn.Parameter(torch.tensor(2.0)))
    z = cases.draw(3, 4).float()
    (name, parameter), *rest = layer.named_parameters()
    assert (name, rest) == ("temperature", [])
    layer(z)[0, 0].backward()
    assert parameter.grad is not None
    assert parameter.grad != 0
    step = torch.optim.SGD(layer.parameters(), lr=1.0)
    before = layer(z).detach()
    step.step()
    assert not torch.equal(layer(z), before)


@pairs
def test_other_tensors_are_buffers(module: Any, function: Any) -> None:
    layer = module(temperature=torch.tensor([1.0, 2.0, 3.0]))
    assert list(layer.state_dict()) == ["temperature"]
    assert list(layer.parameters()) == []
    z = cases.draw(3, 4)
    assert torch.equal(layer.double()(z), function(z, temperature=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)))


@pairs
def test_copies_pickles_and_prints(module: Any, function: Any) -> None:
    layer = module(1, temperature=2.0, base=10.0)
    assert repr(layer) == f"{module.__name__}(dim=1, temperature=2.0, base=10.0)"
    assert "temperature=<3>" in repr(module(temperature=torch.ones(3)))
    assert repr(module()) == f"{module.__name__}(dim=-1)"
    z = cases.draw(3, 4)
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(saved, weights_only=False)):
        assert torch.equal(twin(z), layer(z))


@pairs
def test_export(module: Any, function: Any) -> None:
    z = cases.draw(3, 4)
    program = torch.export.export(module(temperature=3.0), (z,))
    assert torch.equal(program.module()(z), function(z, temperature=3.0))
    assert any("softargmax" in str(node.target) for node in program.graph.nodes)


def test_errors_for_unknown_names_list_the_choices() -> None:
    with pytest.raises(AttributeError, match=r"it has .*LogSoftmax, .*Softmax, "):
        softargmax.nn.Sofmax  # noqa: B018 the access is the test
    assert {"Softmax", "LogSoftmax"} <= set(dir(softargmax.nn))


@pairs
@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (
            {"temperature": math.nan},
            ValueError,
            "temperature: expected any number except NaN, got nan",
        ),
        ({"temperature": None}, TypeError, "temperature: expected a number, or an array with one per row, got None"),
        ({"temperature": "hot"}, TypeError, "temperature: expected a number, or an array with one per row, got 'hot'"),
        (
            {"temperature": np.array("hot")},
            TypeError,
            "temperature: expected dtype float16, bfloat16, float32, float64, an integer or bool, got <U3",
        ),
        (
            {"temperature": torch.tensor(1j)},
            TypeError,
            "temperature: expected dtype float16, bfloat16, float32, float64, an integer or bool",
        ),
        ({"base": -1}, ValueError, "base: expected a finite number above 0, got -1"),
        ({"base": "e"}, TypeError, "base: expected a number above 0, got 'e'"),
        ({"base": -1, "temperature": torch.ones(2)}, ValueError, "base: expected a finite number above 0, got -1"),
        ({"dim": "x"}, TypeError, "dim: expected an integer, a tuple of integers or None, got 'x'"),
        ({"dim": 1.0}, TypeError, "dim: expected an integer, a tuple of integers or None, got 1.0"),
        ({"dim": (0, 0)}, ValueError, "dim: expected each axis once, got (0, 0)"),
        ({"dim": 64}, IndexError, "dim: expected from -64 to 63, got 64, which is out of range for 64 dimensions"),
        (
            {"dtype": torch.int32},
            TypeError,
            "dtype: expected torch's float16, bfloat16, float32 or float64, or its name, got torch.int32",
        ),
        (
            {"dtype": "floaty"},
            TypeError,
            "dtype: expected torch's float16, bfloat16, float32 or float64, or its name, got 'floaty'",
        ),
    ],
)
def test_bad_options_are_refused_at_construction(
    module: Any, function: Any, options: dict[str, Any], error: Any, says: str
) -> None:
    with pytest.raises(error, match="^" + re.escape(says)):
        module(**options)


@pairs
def test_the_values_of_a_temperature_may_be_set_later(module: Any, function: Any) -> None:
    layer = module(temperature=torch.nn.Parameter(torch.full((3,), math.nan)))
    layer.load_state_dict({"temperature": torch.tensor([1.0, 2.0, 3.0])})
    z = cases.draw(3, 4).float()
    assert torch.equal(layer(z), function(z, temperature=torch.tensor([1.0, 2.0, 3.0])))
    for given in ([1.0, 2.0, 3.0], np.array([1.0, 2.0, 3.0])):
        assert torch.equal(module(temperature=given)(z), layer(z))
    assert module(temperature=torch.nn.Parameter(torch.ones(3, device="meta"))).temperature.is_meta
