"""Tests of AdaptiveSoftmax and DifferentiatedSoftmax: the order of classes, losses in blocks, derivatives."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
blocks = importlib.import_module("softargmax.output.torch_block_softmax")
layers = importlib.import_module("softargmax.output.torch_base")

from softargmax import nn  # noqa: E402
from softargmax.core.dispatch import using  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning"),  # torch's forward mode warns
    pytest.mark.filterwarnings("ignore:`isinstance.*is deprecated:FutureWarning"),  # torch.compile warns
]
F64 = torch.float64


def adaptive(k: int, dim: int = 6, *, bias: bool = True, **options: Any) -> Any:
    cutoffs = sorted({max(1, k // 8), k // 2} - {0, k})
    return nn.AdaptiveSoftmax(dim, k, cutoffs, div_value=1.5, head_bias=bias, tail_bias=bias, **options)


def differentiated(k: int, dim: int = 6, *, bias: bool = True, **options: Any) -> Any:
    sizes = [k] if k < 3 else [1, k // 3, k - 1 - k // 3]
    return nn.DifferentiatedSoftmax(dim, sizes, [dim] if k < 3 else [dim - 2, 1, 1], bias=bias, **options)


KINDS = {"adaptive": adaptive, "differentiated": differentiated}
every = pytest.mark.parametrize("name", KINDS)


def filled(layer: Any, scale: float = 0.7, *, mixed: bool = True) -> Any:
    """Give a layer random parameters, and a random order of classes if `mixed` is True, and return it."""
    generator = torch.Generator().manual_seed(layer.classes)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0, scale, generator=generator)
    if mixed:
        layer._reorder(torch.randperm(layer.classes, generator=generator))
    return layer


def layer_of(name: str, k: int = 40, **options: Any) -> Any:
    return filled(KINDS[name](k, **options))


def drawn(*shape: int, dtype: Any = F64) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(9), dtype=F64).to(dtype)


# --- the order --------------------------------------------------------------------------------------------------------


@every
def test_targets_and_results_use_the_callers_classes(name: str) -> None:
    layer = layer_of(name, dtype=F64, reduction="none")
    ranked = copy.deepcopy(layer)
    ranked._reorder(torch.arange(40))
    hidden, y, order = drawn(9, 6), torch.arange(9) * 4, layer.order
    assert not torch.equal(order, torch.arange(40))
    assert torch.equal(layer(hidden, order[y]), ranked(hidden, y))
    assert torch.equal(layer.log_prob_of(hidden, order[y]), ranked.log_prob_of(hidden, y))
    assert torch.equal(layer.log_prob(hidden)[:, order], ranked.log_prob(hidden))
    assert torch.equal(layer.topk(hidden, 5).index, order[ranked.topk(hidden, 5).index])
    assert torch.equal(layer.topk(hidden, 5).values, ranked.topk(hidden, 5).values)
    torch.testing.assert_close(
        layer.log_prob(hidden).gather(1, layer.topk(hidden, 5).index), layer.topk(hidden, 5).values
    )
    layer.reduction = ranked.reduction = "mean"
    assert torch.equal(layer(hidden, order[y]), ranked(hidden, y))


@every
def test_from_counts_ranks_by_decreasing_count(name: str) -> None:
    counts = np.array([3.0, 0.0, 7.0, 7.0, 0.0, 100.0])
    kind = {"adaptive": nn.AdaptiveSoftmax, "differentiated": nn.DifferentiatedSoftmax}[name]
    for given in (counts, counts.astype(np.uint8), torch.tensor(counts), counts.tolist()):
        layer = kind.from_counts(8, given, dtype=F64, reduction="sum")
        assert layer.order.tolist() == [5, 2, 3, 0, 1, 4]
        assert layer.reduction == "sum"
        assert layer.log_prob(drawn(2, 8)).dtype == F64
    for k in (1, 2):
        assert kind.from_counts(8, np.arange(k) + 1.0).order.tolist() == list(range(k))[::-1]


@every
@pytest.mark.parametrize(
    ("counts", "error", "match"),
    [
        ([1.0, -1.0], ValueError, "counts: expected a finite number, 0 or above, got -1.0 for class 1"),
        ([np.nan, 1.0], ValueError, "counts: expected a finite number, 0 or above, got nan for class 0"),
        ([np.inf, 1.0], ValueError, "counts: expected a finite number, 0 or above, got inf for class 0"),
        ([0, 0], ValueError, "counts: expected at least one above 0, got only zeros"),
        ([], ValueError, r"counts: expected shape \(K,\), one per class, K from 1 to 2\^31 - 1, got \(0,\)"),
        ("many", TypeError, "counts"),
    ],
)
def test_invalid_counts(name: str, counts: Any, error: type[Exception], match: str) -> None:
    kind = {"adaptive": nn.AdaptiveSoftmax, "differentiated": nn.DifferentiatedSoftmax}[name]
    with pytest.raises(error, match=match):
        kind.from_counts(8, counts)


# --- losses and derivatives -------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("k", [1, 2, 7, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_reductions_equal_those_of_log_prob(name: str, k: int, bias: bool) -> None:
    layer, hidden = layer_of(name, k, bias=bias, dtype=F64), drawn(2, 3, 6)
    y = torch.tensor([[0, k - 1, -100], [k // 2, -100, k // 3]])
    log_p = layer.log_prob(hidden)
    losses = torch.where(y < 0, 0, -log_p.gather(-1, y.clamp(min=0)[..., None])[..., 0])
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(2, 3, dtype=F64), rtol=0, atol=1e-12)
    for reduction, wanted in (("none", losses), ("sum", losses.sum()), ("mean", losses.sum() / 4)):
        layer.reduction = reduction
        torch.testing.assert_close(layer(hidden, y), wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer.log_prob_of(hidden, y), -losses, rtol=1e-12, atol=1e-12)


@every
@pytest.mark.parametrize(
    ("k", "bias", "reduction"), [(1, True, "mean"), (2, False, "none"), (4, True, "mean"), (4, False, "none")]
)
def test_gradients(name: str, k: int, bias: bool, reduction: str) -> None:
    layer = layer_of(name, k, dim=3, bias=bias, dtype=F64, reduction=reduction)
    hidden, y = drawn(4, 3).requires_grad_(), torch.tensor([0, k - 1, -100, k // 2])
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def of(method: str, *arguments: Any) -> Any:
        class Of(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = layer

            def forward(self, hidden: Any) -> Any:
                return getattr(self.layer, method)(hidden, *arguments)

        return lambda h, *p: torch.func.functional_call(
            Of(), {f"layer.{n}": one for n, one in zip(names, p, strict=True)}, (h,)
        )

    inputs = (hidden, *parameters)
    # A second backward pass of a last layer computes its gradients again, with other roundings. They are below 2.
    options: Any = {"check_forward_ad": True, "check_batched_grad": True, "nondet_tol": torch.finfo(F64).eps}
    for method, *arguments in (("forward", y), ("log_prob_of", y), ("log_prob",)):
        assert torch.autograd.gradcheck(of(method, *arguments), inputs, **options)
    assert torch.autograd.gradgradcheck(of("forward", y), inputs, check_fwd_over_rev=True, fast_mode=True)


@every
def test_backward_can_be_repeated_with_any_factor(name: str) -> None:
    layer, hidden, y = layer_of(name, dtype=F64), drawn(5, 6).requires_grad_(), torch.arange(5) * 7
    inputs = (hidden, *layer.parameters())
    wanted = torch.autograd.grad(-layer.log_prob(hidden).gather(1, y[:, None]).mean(), inputs)
    loss = layer(hidden, y)
    for factor in (1.0, 3.0, 0.0):
        found = torch.autograd.grad(loss, inputs, torch.tensor(factor, dtype=F64), retain_graph=True)
        for one, truth in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, factor * truth, rtol=1e-10, atol=1e-12)
    layer.reduction = "none"
    seeds = drawn(5)
    wanted = torch.autograd.grad(-layer.log_prob(hidden).gather(1, y[:, None])[:, 0], inputs, seeds)
    for one, truth in zip(torch.autograd.grad(layer(hidden, y), inputs, seeds), wanted, strict=True):
        torch.testing.assert_close(one, truth, rtol=1e-10, atol=1e-12)
    (dh,) = torch.autograd.grad(layer(hidden, y).sum(), hidden)
    frozen = copy.deepcopy(layer).requires_grad_(requires_grad=False)
    frozen.reduction = "sum"
    assert torch.equal(torch.autograd.grad(frozen(hidden, y), hidden)[0], dh), "frozen parameters do not change dh"


@every
def test_no_rows_or_all_rows_ignored(name: str) -> None:
    layer = layer_of(name, ignore_index=-1)
    hidden = drawn(3, 6, dtype=torch.float32)
    for given, y in ((hidden[:0], torch.zeros(0).long()), (hidden * torch.nan, torch.full((3,), -1))):
        for reduction, shape in (("mean", ()), ("sum", ()), ("none", y.shape)):
            layer.zero_grad()
            layer.reduction, h = reduction, given.clone().requires_grad_()
            loss = layer(h, y)
            loss.sum().backward()
            assert loss.shape == shape
            assert not loss.any()
            assert not h.grad.any()
            assert all(p.grad is not None and not p.grad.any() for p in layer.parameters())
    assert layer.log_prob(hidden[:0]).shape == (0, 40)
    assert layer.topk(hidden[:0], 3).index.shape == layer.topk(hidden[:0], 3).values.shape == (0, 3)
    assert layer.sample(hidden[:0], 0).shape == (0,)


# --- bits, memory, implementations ------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16], ids=str)
def test_a_row_has_the_same_bits_in_every_batch(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden, y = (
        layer_of(name, 500, dtype=dtype, reduction="none"),
        drawn(50, 6, dtype=dtype),
        torch.arange(50) * 9,
    )
    hidden.requires_grad_()

    def all_of(part: Any) -> list[Any]:
        loss, stream = layer(hidden[part], y[part]), torch.arange(50)[part]
        (dh,) = torch.autograd.grad(loss.sum(), hidden)
        found = [loss, dh[part], layer.log_prob(hidden[part]), layer.log_prob_of(hidden[part], y[part])]
        return [*found, *layer.topk(hidden[part], 5), layer.sample(hidden[part], 3, stream=stream)]

    whole, threads = all_of(slice(None)), torch.get_num_threads()
    for part in (slice(7, 8), slice(40, None), torch.arange(49, -1, -1)):
        torch.set_num_threads(1 if part == slice(7, 8) else 2)
        try:
            found = all_of(part)
        finally:
            torch.set_num_threads(threads)
        assert all(torch.equal(ours, x[part]) for ours, x in zip(found, whole, strict=True))
    monkeypatch.setattr(layers, "_SIZE", 7000)
    assert all(torch.equal(ours, x) for ours, x in zip(all_of(slice(None)), whole, strict=True)), (
        "smaller blocks of rows give the same bits"
    )


@every
def test_block_size_does_not_change_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden, y = layer_of(name, dtype=F64), drawn(50, 6).requires_grad_(), torch.arange(50) % 40
    inputs = (hidden, *layer.parameters())
    whole = torch.autograd.grad(layer(hidden, y), inputs)
    monkeypatch.setattr(layers, "_SIZE", 300)
    for one, wanted in zip(torch.autograd.grad(layer(hidden, y), inputs), whole, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-12, atol=1e-14)


@every
def test_results_equal_the_definition(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype, scale in ((F64, 0.7), (torch.float32, 6.0), (torch.float16, 0.7)):
        layer, hidden, y = layer_of(name, dtype=dtype), drawn(9, 6, dtype=dtype), torch.arange(9) * 4
        hidden = (hidden * scale).requires_grad_()
        found = layer(hidden, y)
        gradient = torch.autograd.grad(found, (hidden, *layer.parameters()))
        with using("reference"):
            defined = layer(hidden, y)
            truth = torch.autograd.grad(defined, (hidden, *layer.parameters()))
        torch.testing.assert_close(found, defined)
        torch.testing.assert_close(gradient, truth)
    if name == "adaptive":  # its head and clusters are last layers of `linear_cross_entropy`
        return
    monkeypatch.setattr(blocks, "_Losses", None)
    with pytest.raises(AttributeError, match="apply"):
        layer(hidden, y)
    with using("reference"):
        layer(hidden, y)


@pytest.mark.parametrize("widths", [[6], [4, 2]])
def test_ignored_rows_do_not_change_results(widths: list[int]) -> None:
    weights = [drawn(20 // len(widths), width).requires_grad_() for width in widths]
    h, y = drawn(3, 6).requires_grad_(), torch.tensor([4, -100, 19])
    wanted = blocks.block_losses(h[[0, 2]], weights, None, y[[0, 2]], total=False)
    truth = torch.autograd.grad(wanted.sum(), weights)
    for implementation in ("native", "reference"):
        with using(implementation):
            found = blocks.block_losses(h, weights, None, y, total=False)
            assert found[1] == 0
            torch.testing.assert_close(found[[0, 2]], wanted)
            for loss in (found.sum(), blocks.block_losses(h, weights, None, y, total=True)):
                torch.testing.assert_close(torch.autograd.grad(loss, weights), truth)


@every
def test_infinite_vector_excludes_its_class(name: str) -> None:
    layer, hidden = layer_of(name), drawn(4, 6, dtype=torch.float32).abs().requires_grad_()
    with torch.no_grad():
        (layer.head if name == "adaptive" else layer.weights[1])[2] = -torch.inf
    loss = layer(hidden, layer.order[torch.tensor([1, 0, 20, 39])])
    loss.backward()
    assert loss.isfinite()
    assert hidden.grad.isfinite().all(), "no product of 0 and infinity"


@every
def test_small_losses_stay_accurate(name: str) -> None:
    layer = filled(KINDS[name](7, dtype=torch.float32), 0.0, mixed=False)
    with torch.no_grad():
        (layer.head_bias if name == "adaptive" else layer.bias)[0] = 40.0
    hidden = torch.zeros(1, 6)
    for implementation in ("native", "reference"):
        with using(implementation):
            others = 2 if name == "adaptive" else 6  # number of scores that compete with class 0
            found = layer(hidden, torch.tensor([0])).item()
            assert found == pytest.approx(others * np.exp(-40.0), rel=1e-6, abs=0)
