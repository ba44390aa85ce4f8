"""Modules refuse invalid options at construction, not at the first batch."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = importlib.import_module("softargmax.nn")

WRONG = [
    (lambda: nn.Softmax("a"), TypeError, "dim: expected an integer, a tuple of integers or None, got 'a'"),
    (
        lambda: nn.Softmax(temperature=float("nan")),
        ValueError,
        "temperature: expected any number except NaN, got nan",
    ),
    (lambda: nn.LogSoftmax(dtype=torch.int32), TypeError, "dtype: "),
    (
        lambda: nn.CrossEntropyLoss(reduction="foo"),
        ValueError,
        "reduction: expected one of 'none', 'mean', 'sum', got 'foo'",
    ),
    (
        lambda: nn.CrossEntropyLoss(label_smoothing=3),
        ValueError,
        "label_smoothing: expected a number from 0 to 1, got 3",
    ),
    (
        lambda: nn.CrossEntropyLoss(torch.ones(3, 3)),
        ValueError,
        r"weight: expected one number per class, shape \(9,\), got \(3, 3\)",
    ),
    (
        lambda: nn.CrossEntropyLoss(torch.tensor([1.0, -1.0])),
        ValueError,
        "weight: expected 0 or positive numbers, got some negative",
    ),
    (lambda: nn.CrossEntropyLoss(ignore_index="x"), TypeError, "ignore_index: expected an integer, got 'x'"),
    (
        lambda: nn.CrossEntropyLoss(temperature=torch.tensor(1j)),
        TypeError,
        "temperature: expected dtype float16, bfloat16, float32, .*got torch.complex64",
    ),
    (lambda: nn.LinearCrossEntropyLoss(softcap=-1), ValueError, "softcap: expected a finite number above 0, got -1"),
    (
        lambda: nn.LinearCrossEntropyLoss(z_loss=-1),
        ValueError,
        "z_loss: expected a finite number of at least 0, got -1",
    ),
    (lambda: nn.Entmax(-0.5), ValueError, r"alpha: expected a finite number above 0, got -0.5"),
    (lambda: nn.Entmax(1.5, "a"), TypeError, "dim: expected an integer, a tuple of integers or None, got 'a'"),
    (lambda: nn.Sparsemax(dim="a"), TypeError, "dim: expected an integer, a tuple of integers or None, got 'a'"),
    (lambda: nn.EntmaxLoss(reduction="foo"), ValueError, "reduction: expected one of 'none', 'mean', 'sum', got 'foo'"),
    (lambda: nn.SparsemaxLoss(label_smoothing=4), ValueError, "label_smoothing: expected a number from 0 to 1, got 4"),
    (lambda: nn.GumbelSoftmax(dim="a"), TypeError, "dim: expected an integer, a tuple of integers or None, got 'a'"),
    (lambda: nn.GumbelSoftmax(dim=None), TypeError, "dim: expected one integer, got None"),
    (
        lambda: nn.GumbelSoftmax(temperature=-1),
        ValueError,
        "temperature: expected a number from 0 on, infinity included, got -1",
    ),
    (
        lambda: nn.Attention(8, 2, dropout=1.5),
        ValueError,
        r"dropout: expected a number of at least 0 and below 1, got 1\.5",
    ),
    (
        lambda: nn.Attention(8, 2, dropout=1.0),
        ValueError,
        r"dropout: expected a number of at least 0 and below 1, got 1\.0",
    ),
    (lambda: nn.Attention(8, 2, alpha=0.0), ValueError, r"alpha: expected a finite number above 0, got 0.0"),
    (lambda: nn.Attention(8, 2, softcap=0), ValueError, "softcap: expected a finite number above 0, got 0"),
]


@pytest.mark.parametrize(("build", "error", "says"), WRONG, ids=[says for _, _, says in WRONG])
def test_wrong_options(build: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=f"^{says}"):
        build()


def test_tensor_options() -> None:
    """Modules accept temperatures per row, parameters with any value, and weights on any device."""
    rows = torch.tensor([[1.0], [2.0]])
    assert nn.Softmax(temperature=rows)(torch.zeros(2, 3)).shape == (2, 3)
    loss = nn.CrossEntropyLoss(temperature=torch.nn.Parameter(torch.tensor(2.0)))
    loss(torch.zeros(2, 3), torch.tensor([0, 1])).backward()
    weight = torch.ones(3, device="meta")
    assert nn.CrossEntropyLoss(weight).weight is weight
    assert nn.SparsemaxLoss(weight).weight is weight
    with torch.device("meta"):
        assert nn.Attention(8, 2).q_proj.weight.is_meta
        nn.CrossEntropyLoss(label_smoothing=0.1)
        nn.EntmaxLoss(1.3)
