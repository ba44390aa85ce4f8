"""Tests of DifferentiatedSoftmax: its definition, blocks, draws, arguments and cost."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
cases = importlib.import_module("tests.output.test_ranked")

from tests.sample.truth import p_value  # noqa: E402

from softargmax.nn import DifferentiatedSoftmax, FullSoftmax  # noqa: E402

F64, filled, drawn = cases.F64, cases.filled, cases.drawn
SHAPES = [([1], [4]), ([1, 1], [3, 1]), ([2, 5], [3, 1]), ([1, 20, 79], [2, 1, 1]), ([300], [4])]


def by_hand(layer: Any, hidden: Any) -> Any:
    """Return the probabilities of all classes, in the order of their ranks, by the definition in float64."""
    begin, z = 0, []
    for weight in layer.weights:
        z.append(hidden[:, begin : begin + weight.shape[1]].double() @ weight.double().T)
        begin += weight.shape[1]
    e = torch.exp(torch.cat(z, 1) + (0 if layer.bias is None else layer.bias.double()))
    return e / e.sum(1, keepdim=True)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("sizes", "widths"), SHAPES)
def test_p_is_one_softmax_over_slices_of_h(sizes: list[int], widths: list[int], bias: bool) -> None:
    layer, hidden = filled(DifferentiatedSoftmax(4, sizes, widths, bias=bias, dtype=F64), mixed=False), drawn(5, 4)
    y, truth = torch.arange(5) * 61 % sum(sizes), by_hand(layer, hidden)
    torch.testing.assert_close(layer.log_prob(hidden).exp(), truth, rtol=1e-12, atol=0)
    losses = -truth.gather(1, y[:, None])[:, 0].log()
    torch.testing.assert_close(layer(hidden, y), losses.mean(), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(layer.log_prob_of(hidden, y), -losses, rtol=1e-12, atol=1e-13)


def test_equals_a_full_softmax_with_zero_weights() -> None:
    layer, hidden, y = (
        filled(DifferentiatedSoftmax(4, [2, 5], [3, 1]), mixed=False),
        drawn(5, 4).float(),
        torch.arange(5),
    )
    full = FullSoftmax(4, 7)
    with torch.no_grad():
        full.weight.copy_(torch.block_diag(*layer.weights))
        full.bias.copy_(layer.bias)
    torch.testing.assert_close(layer(hidden, y), full(hidden, y))
    torch.testing.assert_close(layer.log_prob(hidden), full.log_prob(hidden))
    layer(hidden, y).backward()
    full(hidden, y).backward()
    torch.testing.assert_close(layer.weights[0].grad, full.weight.grad[:2, :3])
    torch.testing.assert_close(layer.weights[1].grad, full.weight.grad[2:, 3:])
    torch.testing.assert_close(layer.bias.grad, full.bias.grad)


@pytest.mark.parametrize("k", [7, 1000, 100_003])
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
def test_probabilities_sum_to_1(k: int, dtype: Any) -> None:
    layer = filled(DifferentiatedSoftmax.from_counts(8, 1e6 / np.arange(1, k + 1), dtype=dtype), 2.0)
    hidden, y = drawn(3, 8, dtype=dtype), torch.tensor([0, k // 2, k - 1])
    log_p = layer.log_prob(hidden)
    assert log_p.shape == (3, k)
    assert log_p.dtype == dtype
    assert (log_p.double().exp().sum(1) - 1).abs().max() < (1e-5 if dtype == torch.float32 else 1e-12)
    torch.testing.assert_close(layer.log_prob_of(hidden, y), log_p.gather(1, y[:, None])[:, 0])
    found = layer.topk(hidden, 5)
    torch.testing.assert_close(found.values, log_p.topk(5).values)
    torch.testing.assert_close(log_p.gather(1, found.index), found.values)


@pytest.mark.parametrize(
    ("dim", "counts", "blocks", "shapes"),
    [
        (64, [1] * 1024, 1, [(1024, 64)]),
        (64, [1] * 1024, 4, [(256, 32), (256, 16), (256, 8), (256, 8)]),
        (64, [1] * 256 + [4] * 64, 2, [(64, 32), (256, 32)]),
        (5, [1] * 1024, 4, [(342, 3), (341, 1), (341, 1)]),
        (1, [1] * 1024, 4, [(1024, 1)]),
        (64, [3, 5], 4, [(1, 32), (1, 32)]),
    ],
)
def test_blocks_have_equal_shares_of_the_counts(dim: int, counts: Any, blocks: int, shapes: Any) -> None:
    layer = DifferentiatedSoftmax.from_counts(dim, counts, blocks=blocks)
    assert [tuple(weight.shape) for weight in layer.weights] == shapes


def test_from_counts_makes_no_empty_block() -> None:
    layer = DifferentiatedSoftmax.from_counts(16, [0, 0, 9, 0, 0], blocks=3)
    assert [len(weight) for weight in layer.weights] == [1, 1, 3]
    assert layer.order[0] == 2
    layer = DifferentiatedSoftmax.from_counts(16, [1, 1, 1, 1, 1000], blocks=5)
    assert [len(weight) for weight in layer.weights] == [1, 1, 1, 1, 1]
    # Each share is 0.1. The sum of eight shares is below 0.8 in floats, which must not make a block empty.
    layer = DifferentiatedSoftmax.from_counts(1024, np.ones(10), blocks=10)
    assert [len(weight) for weight in layer.weights] == [1] * 10


def test_draws_follow_the_distribution() -> None:
    layer, hidden = filled(DifferentiatedSoftmax(4, [2, 10], [3, 1], dtype=F64), 0.5), drawn(1, 4)
    p = layer.log_prob(hidden)[0].exp().detach().numpy()
    draws = layer.sample(hidden.expand(100_000, 4), 1).numpy()
    assert p_value(draws, p) > 1e-4
    assert p_value(draws, p[::-1].copy()) < 1e-9, "a wrong distribution fails the test"


def test_loss_never_stores_all_scores() -> None:
    n, k = 512, 100_003
    layer = DifferentiatedSoftmax(64, [100, 5000, k - 5100], [48, 12, 4])
    hidden, y = drawn(n, 64, dtype=torch.float32).requires_grad_(), torch.arange(n) * 190
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        layer(hidden, y).backward()
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in profile.key_averages())
    assert 0 < allocated < n * k * 4 / 8, "`allocated` counts all allocations of torch, including freed memory"


def test_repr_shows_the_options() -> None:
    shown = repr(DifferentiatedSoftmax(4, [2, 5], [3, 1], bias=False, reduction="sum"))
    assert shown.startswith("DifferentiatedSoftmax(\n  4, [2, 5], [3, 1], bias=False, reduction='sum'\n")


X = drawn(2, 4, dtype=torch.float32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda s: s(X, torch.tensor([0, 7])),
            IndexError,
            r"target: expected 0 to 6, or -100 \(ignored\), got 7 at \(1,\)",
        ),
        (lambda s: s.topk(X, 8), ValueError, "k: expected 1 to 7, got 8"),
        (lambda s: type(s)(4, [], []), ValueError, r"blocks: expected one or more integers, each 1 or above, got \(\)"),
        (
            lambda s: type(s)(4, [2, 0], [3, 1]),
            ValueError,
            r"blocks: expected one or more integers, each 1 or above, got \(2, 0\)",
        ),
        (
            lambda s: type(s)(4, [2, 5], [4, 0]),
            ValueError,
            r"widths: expected one or more integers, each 1 or above, got \(4, 0\)",
        ),
        (lambda s: type(s)(4, [2, 5], [4]), ValueError, r"widths: expected 2 numbers, one per block, got \(4,\)"),
        (
            lambda s: type(s)(4, [2, 5], [3, 2]),
            ValueError,
            r"widths: expected numbers whose sum is dim, 4, got \(3, 2\) with the sum 5",
        ),
        (lambda s: type(s)(4, 7, [4]), TypeError, "blocks: expected a sequence of integers, got 7"),
        (lambda s: type(s)(4, [2.0], [4]), TypeError, "blocks: expected an integer, got 2.0"),
        (
            lambda s: type(s)(4, [2], [4], dtype=torch.int64),
            TypeError,
            "dtype: expected float16, bfloat16, float32 or float64, got torch.int64",
        ),
        (lambda s: type(s).from_counts(4, [1, 2], blocks=0), ValueError, "blocks: expected 1 or more, got 0"),
        (lambda s: type(s).from_counts(0, [1, 2]), ValueError, "dim: expected 1 or more, got 0"),
    ],
)
def test_errors(call: Callable[[Any], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(DifferentiatedSoftmax(4, [2, 5], [3, 1]))
