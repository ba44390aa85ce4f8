"""Tests of every output layer: distribution, log_prob_of, search, draws, reductions and edge cases."""

from __future__ import annotations

import copy
import importlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")
layers = importlib.import_module("tests.output.layers")

from tests.sample.truth import p_value  # noqa: E402

F64, layer_of, drawn = torch.float64, layers.layer_of, layers.drawn
every = pytest.mark.parametrize("name", layers.LAYERS)
distributions = pytest.mark.parametrize("name", layers.DISTRIBUTIONS)


# --- the distribution -------------------------------------------------------------------------------------------------


@distributions
@pytest.mark.parametrize("k", [1, 2, 7, 1000])
def test_a_distribution(name: str, k: int) -> None:
    layer, hidden, y = layer_of(name, k=k, dtype=F64), drawn(6, 5), torch.arange(6) * 5 % k
    log_p = layer.log_prob(hidden)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(6, dtype=F64), rtol=0, atol=1e-12)
    torch.testing.assert_close(layer.log_prob_of(hidden, y), log_p.gather(1, y[:, None])[:, 0])
    n = min(k, 5)
    found, brute = layer.topk(hidden, n), log_p.topk(n)
    assert torch.equal(found.index, brute.indices)
    torch.testing.assert_close(found.values, brute.values)


@distributions
def test_a_distribution_over_many_classes(name: str) -> None:
    layer, hidden = layer_of(name, k=100_003, scale=1.5), drawn(3, 5, dtype=torch.float32)
    with torch.no_grad():
        log_p, y = layer.log_prob(hidden), torch.tensor([0, 50_000, 100_002])
        sums = log_p.double().exp().sum(-1)
        torch.testing.assert_close(sums, torch.ones(3, dtype=F64), rtol=0, atol=1e-5)
        torch.testing.assert_close(layer.log_prob_of(hidden, y), log_p.gather(1, y[:, None])[:, 0])
        found = layer.topk(hidden, 20)
    torch.testing.assert_close(found.values, log_p.topk(20).values)
    torch.testing.assert_close(log_p.gather(1, found.index), found.values)


def test_topk_takes_the_lowest_of_equally_probable_classes() -> None:
    layer = layer_of("full", k=40, dtype=F64)
    torch.nn.init.zeros_(layer.weight)
    levels = torch.arange(40, dtype=F64) % 3
    levels[4] = -torch.inf
    with torch.no_grad():
        layer.bias.copy_(levels)
    best = [n for level in (2, 1, 0, -torch.inf) for n in range(40) if levels[n] == level]
    for k in (1, 5, 13, 14, 39, 40):
        assert layer.topk(drawn(2, 5), k).index.tolist() == [best[:k]] * 2


@distributions
def test_draws_follow_the_distribution_row_by_row(name: str) -> None:
    layer = layer_of(name, k=12, dtype=F64)
    hidden = drawn(1, 5).expand(20_000, 5)
    found = layer.sample(hidden, seed=1)
    p = layer.log_prob(hidden[0]).detach().exp().numpy()
    assert p_value(found, p) > 1e-4
    assert p_value(found, np.full(12, 1 / 12)) < 1e-9, "a wrong distribution fails the test"
    rows = torch.tensor([7, 19_999, 3])
    assert torch.equal(layer.sample(hidden[rows], seed=1, stream=rows), found[rows])


def test_block_size_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = layer_of("full"), drawn(9, 5, dtype=torch.float32)
    with torch.no_grad():
        whole = layer.log_prob(hidden), *layer.topk(hidden, 3), layer.sample(hidden, 4)
        monkeypatch.setattr(importlib.import_module("softargmax.output.torch_base"), "_SIZE", 100)
        parts = layer.log_prob(hidden), *layer.topk(hidden, 3), layer.sample(hidden, 4)
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


# --- losses -----------------------------------------------------------------------------------------------------------


@every
def test_reductions_and_ignored_rows(name: str) -> None:
    layer, hidden, y = layer_of(name, dtype=F64).eval(), drawn(2, 3, 5), torch.tensor([[1, -100, 7], [39, 0, -100]])
    kept = hidden.clone()
    hidden[y == -100] = torch.nan
    layer.reduction = "none"
    losses = layer(hidden, y)
    assert losses.shape == (2, 3)
    assert (losses[y == -100] == 0).all()
    assert losses[y != -100].all()
    layer.reduction = "sum"
    torch.testing.assert_close(layer(hidden, y), losses.sum())
    layer.reduction = "mean"
    torch.testing.assert_close(layer(hidden, y), losses.sum() / 4)
    hidden.requires_grad_()
    layer(hidden, y).backward()
    assert (hidden.grad[y == -100] == 0).all()
    assert hidden.grad.isfinite().all()
    if not getattr(layer, "shared", True):
        return  # negatives depend on the row's position
    whole = [parameter.grad for parameter in layer.parameters()]
    layer.zero_grad()
    layer(kept[y != -100], y[y != -100]).backward()
    for parameter, wanted in zip(layer.parameters(), whole, strict=True):
        torch.testing.assert_close(parameter.grad, wanted)


@every
def test_no_rows_or_all_rows_ignored(name: str) -> None:
    layer = layer_of(name, dtype=F64)
    for n, y in ((0, torch.zeros(0).long()), (2, torch.tensor([-100, -100]))):
        hidden = drawn(n, 5).requires_grad_()
        for reduction, shape in (("mean", ()), ("sum", ()), ("none", y.shape)):
            layer.reduction = reduction
            loss = layer(hidden, y)
            assert loss.shape == shape
            assert not loss.any()
            loss.sum().backward()
        assert not hidden.grad.any()
        if name in layers.DISTRIBUTIONS:
            assert layer.log_prob(hidden).shape == (len(y), 40)
            assert layer.sample(hidden, 0).shape == layer.log_prob_of(hidden, y).shape == y.shape
            assert layer.topk(hidden, 2).index.shape == (len(y), 2)


@every
@pytest.mark.parametrize("k", [1, 2])
def test_one_or_two_classes(name: str, k: int) -> None:
    layer, hidden = layer_of(name, k=k), drawn(4, 5, dtype=torch.float32).requires_grad_()
    loss = layer(hidden, torch.arange(4) % k)
    loss.backward()
    assert loss.isfinite()
    assert hidden.grad.isfinite().all()
    if k == 1 and name in layers.DISTRIBUTIONS and not name.startswith("nce"):
        assert loss.item() == pytest.approx(0, abs=1e-5)
        assert not layer.sample(hidden, 0).any()


@every
def test_shapes_and_dtypes(name: str) -> None:
    layer, hidden = layer_of(name, reduction="none").eval(), drawn(2, 3, 5, dtype=torch.float32)
    y = torch.arange(6).reshape(2, 3)
    found = layer(hidden, y)
    assert torch.equal(found.flatten(), layer(hidden.flatten(0, 1), y.flatten()))
    assert layer(hidden[0, 0], y[0, 0]).shape == ()
    for kind in (torch.uint8, torch.int16, torch.int32):
        assert torch.equal(layer(hidden, y.to(kind)), found)
    for dtype in (torch.float16, torch.bfloat16):
        half, rounded = layer_of(name, dtype=dtype, reduction="none").eval(), hidden.to(dtype)
        wide = copy.deepcopy(half).float()
        assert half(rounded, y).dtype == torch.float32
        torch.testing.assert_close(half(rounded, y), wide(rounded.float(), y))
        half(rounded, y).sum().backward()
        assert half.weight.grad.dtype == dtype if hasattr(half, "weight") else True
    assert layer_of(name, dtype=F64)(hidden, y).dtype == F64
