"""Losses in blocks of rows: nonfinite numbers in one row or class do not change the bits of other rows and classes."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
blocks = importlib.import_module("softargmax.output.torch_block_softmax")
layers = importlib.import_module("softargmax.output.torch_base")

from softargmax import cross_entropy  # noqa: E402
from softargmax.core.dispatch import using  # noqa: E402

NAN, INF, N = float("nan"), float("inf"), 50
RNG = torch.Generator().manual_seed(3)
BLOCKS = {1: ([100], [6]), 3: ([3, 20, 77], [3, 2, 1])}


def drawn(number: int, dtype: Any) -> list[Any]:
    """Return random y, h, b, and the weight W_i of each block."""
    shapes = [(N, 6), (100,), *zip(*BLOCKS[number], strict=True)]
    y = torch.arange(N) * 7 % 100
    y[11] = -100
    return [y, *(torch.randn(*n, generator=RNG, dtype=dtype) for n in shapes)]


def found(y: Any, *given: Any, total: bool = False) -> list[Any]:
    """Return the losses or their sum, and the gradients dh, db and every dW_i."""
    h, bias, *weights = (x.clone().requires_grad_() for x in given)
    loss = blocks.block_losses(h, weights, bias, y, total=total)
    return [loss.detach(), *torch.autograd.grad(loss.sum(), (h, bias, *weights))]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("size", [1 << 23, 3000], ids=["whole", "parts"])
@pytest.mark.parametrize("number", BLOCKS)
def test_nonfinite_numbers_change_no_bit_of_other_rows(
    number: int, size: int, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "_SIZE", size)
    y, h, *layer = drawn(number, torch.float32)
    changed = h.clone()
    changed[17, 1] = bad
    kept = torch.arange(N) != 17
    for total in (False, True):
        clean, with_bad = (found(y, x, *layer, total=total) for x in (h, changed))
        for x, same in list(zip(clean, with_bad, strict=True))[total:2]:
            assert torch.equal(x[kept], same[kept])
            assert not torch.equal(x[17], same[17])


def places(h: Any, b: Any, w: Any) -> dict[str, list[Any]]:
    """Return the views into which a test writes a nonfinite number."""
    return {
        "a class": [w[-1][5, :1]],
        "two classes": [w[0][1, :1], w[-1][5, :1]],
        "rows": [h[2, :1], h[5, -1:], h[7, ::5]],
        "rows and a class": [h[2, :1], h[5, -1:], w[0][2, :1]],
        "a bias": [b[8:9]],
        "every bias": [b],
    }


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("where", ["a class", "two classes", "rows", "rows and a class", "a bias", "every bias"])
@pytest.mark.parametrize("number", BLOCKS)
def test_nonfinite_results_equal_the_definition(number: int, where: str, bad: float) -> None:
    y, h, bias, *weights = drawn(number, torch.float64)
    y[:6] = torch.tensor([2, 1, 8, 28, 8, 99])
    for x in places(h, bias, weights)[where]:
        x.fill_(bad)
    ours = found(y, h, bias, *weights)
    with using("reference"):
        defined = found(y, h, bias, *weights)
        pieces = zip(h.split_with_sizes([w.shape[1] for w in weights], 1), weights, strict=True)
        losses = cross_entropy(torch.cat([x @ w.T for x, w in pieces], 1) + bias, y, reduction="none")
    torch.testing.assert_close(ours[0], losses, rtol=1e-12, atol=1e-14, equal_nan=True)
    for x, wanted in zip(ours, defined, strict=True):
        torch.testing.assert_close(x, wanted, rtol=1e-12, atol=1e-14, equal_nan=True)
