"""Tests of AdaptiveSoftmax: its definition, torch's module, search, draws, arguments and cost."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
adaptive = importlib.import_module("softargmax.output.torch_adaptive")
layers = importlib.import_module("softargmax.output.torch_base")
cases = importlib.import_module("tests.output.test_ranked")

from tests.sample.truth import p_value  # noqa: E402

from softargmax.nn import AdaptiveSoftmax  # noqa: E402
from softargmax.output import adaptive_cutoffs  # noqa: E402

F64, filled, drawn = cases.F64, cases.filled, cases.drawn


def by_hand(layer: Any, hidden: Any) -> Any:
    """Return the probabilities of all classes, in the order of their ranks, by the definition in float64."""

    def softmax(h: Any, w: Any, b: Any) -> Any:
        e = torch.exp(h @ w.double().T + (0 if b is None else b.double()))
        return e / e.sum(1, keepdim=True)

    frequent = len(layer.head) - len(layer.tails)
    head = softmax(hidden.double(), layer.head, layer.head_bias)
    p, begin = [head[:, :frequent]], 0
    for i, (projection, tail) in enumerate(zip(layer.projections, layer.tails, strict=True)):
        bias = None if layer.tail_bias is None else layer.tail_bias[begin : begin + len(tail)]
        begin += len(tail)
        p.append(head[:, frequent + i, None] * softmax(hidden.double() @ projection.double().T, tail, bias))
    return torch.cat(p, 1)


# --- the distribution -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_bias", [True, False])
@pytest.mark.parametrize("tail_bias", [True, False])
@pytest.mark.parametrize(("k", "cutoffs"), [(1, []), (2, [1]), (7, []), (7, [2, 3, 6]), (300, [10, 100])])
def test_p_is_head_times_cluster(k: int, cutoffs: list[int], head_bias: bool, tail_bias: bool) -> None:
    layer = AdaptiveSoftmax(6, k, cutoffs, div_value=2.0, head_bias=head_bias, tail_bias=tail_bias, dtype=F64)
    filled(layer, mixed=False)
    hidden, y = drawn(5, 6), torch.arange(5) * 61 % k
    truth = by_hand(layer, hidden)
    torch.testing.assert_close(layer.log_prob(hidden).exp(), truth, rtol=1e-12, atol=0)
    losses = -truth.gather(1, y[:, None])[:, 0].log()
    torch.testing.assert_close(layer(hidden, y), losses.mean(), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(layer.log_prob_of(hidden, y), -losses, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("k", [7, 1000, 100_003])
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
def test_probabilities_sum_to_1(k: int, dtype: Any) -> None:
    layer = filled(AdaptiveSoftmax.from_counts(8, 1e6 / np.arange(1, k + 1), clusters=3, dtype=dtype), 2.0)
    hidden, y = drawn(3, 8, dtype=dtype), torch.tensor([0, k // 2, k - 1])
    log_p = layer.log_prob(hidden)
    assert log_p.shape == (3, k)
    assert log_p.dtype == dtype
    assert (log_p.double().exp().sum(1) - 1).abs().max() < (1e-5 if dtype == torch.float32 else 1e-12)
    torch.testing.assert_close(layer.log_prob_of(hidden, y), log_p.gather(1, y[:, None])[:, 0])


def test_rarer_clusters_have_shorter_vectors() -> None:
    layer = AdaptiveSoftmax(64, 1000, [10, 50, 200, 500], div_value=4)
    assert layer.head.shape == (14, 64)
    assert [tuple(p.shape) for p in layer.projections] == [(16, 64), (4, 64), (1, 64), (1, 64)]
    assert [tuple(p.shape) for p in layer.tails] == [(40, 16), (150, 4), (300, 1), (500, 1)]
    assert layer.head_bias is layer.tail_bias is None
    assert [tuple(p.shape) for p in AdaptiveSoftmax(64, 1000, np.array([10]), div_value=1.5).tails] == [(990, 42)]


def test_from_counts_uses_the_cost_models_cutoffs() -> None:
    counts = 1e6 / np.arange(1, 5001)
    cases = ({}, {"clusters": 2}, {"batch": 64}, {"cutoffs": [7, 70]})
    found = [AdaptiveSoftmax.from_counts(64, counts[::-1], **options).cutoffs for options in cases]
    assert found[0] == adaptive_cutoffs(counts, dim=64)
    assert found[2] == adaptive_cutoffs(counts, dim=64, batch=64)
    assert found[3] == (7, 70)
    assert len(set(found)) == 4, "each argument changes the cut-offs"
    layer = AdaptiveSoftmax.from_counts(64, counts, clusters=0, head_bias=True, div_value=2)
    assert (layer.cutoffs, layer.div_value, layer.head_bias.shape) == ((), 2.0, (5000,))


# --- torch's module ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_bias", [True, False])
@pytest.mark.parametrize(("k", "cutoffs"), [(2, [1]), (50, [5, 20, 49]), (3000, [100, 1000])])
def test_from_torch_equals_torchs_module(k: int, cutoffs: list[int], head_bias: bool) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(16, k, cutoffs, div_value=2.0, head_bias=head_bias)
    ours = AdaptiveSoftmax.from_torch(theirs)
    hidden, y = drawn(40, 16, dtype=torch.float32).requires_grad_(), torch.arange(40) * 1009 % k
    output, loss = theirs(hidden, y)
    torch.testing.assert_close(ours.log_prob_of(hidden, y), output)
    torch.testing.assert_close(ours(hidden, y), loss)
    torch.testing.assert_close(ours.log_prob(hidden), theirs.log_prob(hidden))
    assert torch.equal(ours.topk(hidden, 1).index[:, 0], theirs.predict(hidden))
    loss.backward()
    wanted, hidden.grad = hidden.grad, None
    ours(hidden, y).backward()
    torch.testing.assert_close(hidden.grad, wanted)
    tails = list(theirs.tail)
    for i, of in enumerate((ours.projections, ours.tails)):
        for one, tail in zip(of, tails, strict=True):
            torch.testing.assert_close(one.grad, tail[i].weight.grad)
    torch.testing.assert_close(ours.head.grad, theirs.head.weight.grad)
    with torch.no_grad():
        theirs.head.weight.zero_()
    assert ours.head.all(), "the weights are copies"


def test_from_torch_copies_dtype_mode_and_options() -> None:
    with pytest.warns(UserWarning, match="Initializing zero-element tensors"):  # from torch's module
        theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(8, 50, [5, 10, 20], div_value=4.0, dtype=F64).eval()
    ours = AdaptiveSoftmax.from_torch(theirs, reduction="sum", ignore_index=3)
    assert [tail[0].out_features for tail in theirs.tail] == [2, 0, 0]
    hidden = drawn(6, 8)
    torch.testing.assert_close(ours.log_prob(hidden), theirs.log_prob(hidden))
    assert not ours.training
    assert ours.head.dtype == F64
    y = torch.tensor([0, 7, 15, 30, 49, 3])
    torch.testing.assert_close(ours(hidden, y), -theirs(hidden[:5], y[:5]).output.sum())
    with pytest.raises(TypeError, match=r"module: expected a torch\.nn\.AdaptiveLogSoftmaxWithLoss, got Linear"):
        AdaptiveSoftmax.from_torch(torch.nn.Linear(2, 3))


# --- search -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "cutoffs"), [(1, []), (2, [1]), (7, [2, 3, 6]), (400, []), (400, [3, 30, 200])])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_topk_equals_sorted_log_prob(k: int, cutoffs: list[int], scale: float) -> None:
    layer = filled(AdaptiveSoftmax(5, k, cutoffs, div_value=1.2, tail_bias=True, dtype=F64), scale)
    hidden = drawn(30, 5)
    values, index = torch.sort(layer.log_prob(hidden), dim=1, descending=True)
    for n in sorted({1, min(3, k), min(50, k), k}):
        found = layer.topk(hidden, n)
        assert torch.equal(found.index, index[:, :n])
        assert torch.equal(found.values, values[:, :n])


def test_topk_computes_only_the_clusters_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = filled(AdaptiveSoftmax(3, 90, [30, 50, 70], head_bias=True), 0.1, mixed=False)
    computed: list[tuple[int, int]] = []
    log_p = adaptive.Cluster.log_p

    def counted(cluster: Any, h: Any) -> Any:
        if len(h):
            computed.append((cluster.begin, len(h)))
        return log_p(cluster, h)

    hidden = drawn(8, 3, dtype=torch.float32)
    for tokens, k, wanted in (
        ([-20.0, 5.0, -20.0], 5, [(50, 8)]),
        ([-9.0, -9.0, -9.0], 30, []),  # topk needs no cluster
        ([0.5, 5.0, -20.0], 5, [(50, 8)]),  # the best classes of cluster 2 are more probable than cluster 1 as a whole
        ([5.0, 5.5, -20.0], 25, [(30, 8), (50, 8)]),
    ):
        with torch.no_grad():
            layer.head_bias.zero_()[30:] = torch.tensor(tokens)
        monkeypatch.setattr(adaptive.Cluster, "log_p", log_p)
        truth = layer.log_prob(hidden).topk(k).indices
        monkeypatch.setattr(adaptive.Cluster, "log_p", counted)
        computed.clear()
        assert torch.equal(layer.topk(hidden, k).index, truth)
        assert sorted(computed) == wanted


def test_topk_with_classes_of_probability_0() -> None:
    layer = filled(AdaptiveSoftmax(3, 6, [2, 4], head_bias=True, tail_bias=True), mixed=False)
    with torch.no_grad():
        layer.head_bias[0] = layer.head_bias[3] = layer.tail_bias[1] = -torch.inf
    found = layer.topk(drawn(4, 3, dtype=torch.float32), 6)
    assert (found.index.sort(1).values == torch.arange(6)).all(), "every class occurs once"
    assert (found.values[:, 2:] == -torch.inf).all()
    assert (found.index[:, :2].sort(1).values == torch.tensor([1, 2])).all()


def test_nan_rows() -> None:
    layer, hidden = filled(AdaptiveSoftmax(5, 40, [4, 20])), drawn(3, 5, dtype=torch.float32)
    hidden[1, 2] = torch.nan
    found = layer.topk(hidden, 2)
    assert found.index[1].tolist() == [-1, -1]
    assert found.values[1].isnan().all()
    assert torch.equal(found.index[2], layer.topk(hidden[2:], 2).index[0])
    with pytest.raises(ValueError, match="got NaN in row 1"):
        layer.sample(hidden, 0)
    with torch.no_grad():
        layer.tails[0].fill_(torch.nan)
    assert (layer.topk(hidden, 40).index == -1).all()
    with pytest.raises(ValueError, match=r"got NaN in row \d+"):
        layer.sample(hidden[:1].expand(200, 5), 0)


# --- draws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_draws_follow_the_distribution(seed: int) -> None:
    layer = filled(AdaptiveSoftmax(3, 14, [2, 6], div_value=1.0, dtype=F64), 0.5)
    hidden = drawn(1, 3)
    p = layer.log_prob(hidden)[0].exp().detach().numpy()
    draws = layer.sample(hidden.expand(200_000, 3), seed).numpy()
    assert p_value(draws, p) > 1e-4
    first, second = np.argsort(-p)[:2]
    p[[first, second]] += np.array([-0.1, 0.1]) * p[second]
    assert p_value(draws, p) < 1e-9, "a wrong distribution fails the test"


def test_draws_depend_only_on_seed_and_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = filled(AdaptiveSoftmax(5, 300, [10, 100])), drawn(40, 5, dtype=torch.float32)
    found = layer.sample(hidden, 5)
    assert torch.equal(found, layer.sample(hidden, seed=5))
    assert not torch.equal(found, layer.sample(hidden, 6))
    some = torch.tensor([30, 3, 17])
    assert torch.equal(layer.sample(hidden[some], 5, stream=some), found[some])
    assert not torch.equal(layer.sample(hidden), layer.sample(hidden))
    monkeypatch.setattr(layers, "_SIZE", 900)
    assert torch.equal(found, layer.sample(hidden, 5)), "the block size has no effect"


# --- cost and errors --------------------------------------------------------------------------------------------------


def test_loss_never_stores_all_scores() -> None:
    n, k, dim = 512, 100_003, 64
    layer = AdaptiveSoftmax(dim, k, [1000, 10_000])
    hidden, y = drawn(n, dim, dtype=torch.float32).requires_grad_(), torch.arange(n) * 2
    layer(hidden, y).backward()
    y[:50] = torch.arange(50) * 2000
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        layer(hidden, y).backward()
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in profile.key_averages())
    assert 0 < allocated < n * k * 4 / 4, "`allocated` counts all allocations of torch, including freed memory"


def test_training_reduces_the_loss() -> None:
    layer = AdaptiveSoftmax(8, 50, [5, 20], div_value=2.0)
    optimizer, losses = torch.optim.Adam(layer.parameters(), lr=0.1), []
    hidden, y = drawn(20, 8, dtype=torch.float32), torch.arange(20) * 2
    for _ in range(60):
        optimizer.zero_grad()
        loss = layer(hidden, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_repr_shows_the_options() -> None:
    shown = repr(AdaptiveSoftmax(8, 50, [5, 20], div_value=2, tail_bias=True, reduction="sum"))
    wanted = "8, 50, [5, 20], div_value=2, head_bias=False, tail_bias=True, reduction='sum'"
    assert shown.startswith(f"AdaptiveSoftmax(\n  {wanted}\n")


X, Y = drawn(2, 5, dtype=torch.float32), torch.tensor([0, 6])


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda s: s(X, torch.tensor([0, 9])),
            IndexError,
            r"target: expected 0 to 8, or -100 \(ignored\), got 9 at \(1,\)",
        ),
        (lambda s: s(X[:, :4], Y), ValueError, r"hidden: expected shape \(..., 5\), got \(2, 4\)"),
        (lambda s: s.topk(X, 10), ValueError, "k: expected 1 to 9, got 10"),
        (
            lambda s: s.sample(X, -1),
            ValueError,
            r"seed: expected an integer from 0 to 2\^64 - 1, got a negative number",
        ),
        (lambda s: type(s)(5, 9, [0]), ValueError, r"cutoffs: expected increasing numbers from 1 to 8, got \(0,\)"),
        (lambda s: type(s)(5, 9, [9]), ValueError, r"cutoffs: expected increasing numbers from 1 to 8, got \(9,\)"),
        (
            lambda s: type(s)(5, 9, [3, 3]),
            ValueError,
            r"cutoffs: expected increasing numbers from 1 to 8, got \(3, 3\)",
        ),
        (
            lambda s: type(s)(5, 9, [4, 3]),
            ValueError,
            r"cutoffs: expected increasing numbers from 1 to 8, got \(4, 3\)",
        ),
        (lambda s: type(s)(5, 9, [2.5]), TypeError, r"cutoffs: expected an integer, got 2.5"),
        (lambda s: type(s)(5, 9, 3), TypeError, "cutoffs: expected a sequence of integers, got 3"),
        (lambda s: type(s)(5, 9, [3], div_value=0), ValueError, "div_value: expected a finite number above 0, got 0"),
        (lambda s: type(s)(5, 9, [3], div_value="4"), TypeError, "div_value: expected a number above 0, got '4'"),
        (lambda s: type(s)(0, 9, [3]), ValueError, "dim: expected 1 or more, got 0"),
        (lambda s: type(s)(5, 0, []), ValueError, "classes: expected 1 or more, got 0"),
        (
            lambda s: type(s)(5, 9, [3], reduction="max"),
            ValueError,
            "reduction: expected one of 'none', 'mean', 'sum', got 'max'",
        ),
        (
            lambda s: type(s)(5, 9, [3], dtype=torch.int64),
            TypeError,
            "dtype: expected float16, bfloat16, float32 or float64, got torch.int64",
        ),
        (
            lambda s: type(s).from_counts(5, [1, 2], clusters=2),
            ValueError,
            "clusters: expected at most 1 for 2 classes, got 2",
        ),
        (
            lambda s: type(s).from_counts(5, [1, 2], clusters=1, cutoffs=[1]),
            ValueError,
            "clusters: expected None if cutoffs are passed, got 1",
        ),
    ],
)
def test_errors(call: Callable[[Any], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(AdaptiveSoftmax(5, 9, [3, 6]))
