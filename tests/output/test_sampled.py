"""Sampled losses agree with their definitions."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
layers = importlib.import_module("tests.output.layers")

from softargmax import nn  # noqa: E402
from softargmax.output import Learned, LogUniform, Negatives, Uniform, Unigram, partitions  # noqa: E402

F64, layer_of, drawn = torch.float64, layers.layer_of, layers.drawn
K, D, N = 9, 3, 4
Y = torch.tensor([0, 8, 3, 3])


def at(layer: Any, seed: int = 5) -> Any:
    """Set random parameters, the same for every layer, and return the layer in float64."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in ("weight", "bias"):
            getattr(layer, name).normal_(0, 0.8, generator=generator)
    return layer.double()


def scores(layer: Any, hidden: Any) -> Any:
    return hidden @ layer.weight.T + layer.bias


# --- definitions ------------------------------------------------------------------------------------------------------

SHARED = Negatives(torch.tensor([3, 1, 3, 8]), torch.tensor([0.1, -1.0, 0.1, 0.4], dtype=F64))
OWN = Negatives(torch.arange(N * 5).reshape(N, 5) * 4 % K, torch.linspace(-1, 1, N * 5, dtype=F64).reshape(N, 5))


@pytest.mark.parametrize("given", [SHARED, OWN], ids=["shared", "of rows"])
def test_losses_equal_the_definitions(given: Negatives) -> None:
    hidden = drawn(N, D)

    def candidates_of(row: int) -> list[tuple[int, float]]:
        index, log_e = (x if x.ndim == 1 else x[row] for x in given)
        return [(int(j), float(e)) for j, e in zip(index, log_e, strict=True)]

    def compare(layer: Any, of_row: Any) -> None:
        layer = at(layer)
        layer.reduction = "none"
        s = scores(layer, hidden).detach().numpy()
        wanted = [of_row(s[i], int(Y[i]), candidates_of(i)) for i in range(N)]
        torch.testing.assert_close(layer(hidden, Y, given).detach(), torch.tensor(wanted, dtype=F64))

    def sampled(s: Any, y: int, candidates: list[tuple[int, float]]) -> float:
        return np.log(np.exp(s[y]) + sum(np.exp(s[j] - e) for j, e in candidates if j != y)) - s[y]

    def importance(s: Any, y: int, candidates: list[tuple[int, float]]) -> float:
        return np.log(sum(np.exp(s[j] - e) for j, e in candidates)) - s[y]

    def logistic_loss(x: float) -> float:
        return np.log1p(np.exp(-x))

    n = given.index.shape[-1]
    sampler = Unigram(layers.counts(K))
    q = sampler.probabilities

    def nce(s: Any, y: int, candidates: list[tuple[int, float]]) -> float:
        return logistic_loss(s[y] - 0.3 - np.log(n * q[y])) + sum(
            logistic_loss(-(s[j] - 0.3 - e)) for j, e in candidates
        )

    def negative(s: Any, y: int, candidates: list[tuple[int, float]]) -> float:
        return logistic_loss(s[y]) + sum(logistic_loss(-s[j]) for j, _ in candidates)

    compare(nn.SampledSoftmax(D, sampler, samples=5), sampled)
    compare(nn.ImportanceSampledSoftmax(D, sampler, samples=5), importance)
    compare(nn.NCE(D, sampler, samples=5, log_z=0.3), nce)
    compare(nn.NegativeSampling(D, sampler, samples=5), negative)


def test_all_classes_as_candidates_give_the_full_softmax() -> None:
    hidden = drawn(N, D).requires_grad_()
    full = at(nn.FullSoftmax(D, K))
    target = at(nn.TargetSampledSoftmax(D, K))
    target.use(range(K))
    for layer in (at(nn.SampledSoftmax(D, Uniform(K), samples=K)), target):
        found, wanted = layer(hidden, Y), full(hidden, Y)
        torch.testing.assert_close(found, wanted)
        for a, b in zip(
            torch.autograd.grad(found, (hidden, *layer.parameters())),
            torch.autograd.grad(wanted, (hidden, *full.parameters())),
            strict=True,
        ):
            torch.testing.assert_close(a, b)


def test_target_sampling_is_a_softmax_over_the_targets_of_the_part() -> None:
    hidden, layer = drawn(N, D), at(nn.TargetSampledSoftmax(D, K))
    few = [0, 3, 8]
    wanted = torch.nn.functional.cross_entropy(scores(layer, hidden)[:, few], torch.tensor([0, 2, 1, 1]))
    torch.testing.assert_close(layer(hidden, Y), wanted)  # the default candidates are the call's distinct targets
    layer.use([8, 3, 0, 3])
    torch.testing.assert_close(layer(hidden, Y), wanted)
    layer.use([1, 8, 0, 3])
    assert layer(hidden, Y) > wanted
    layer.use(None)
    torch.testing.assert_close(layer(hidden, Y), wanted)


def test_in_batch_negatives() -> None:
    """A candidate's weight is the inverse of its expected count among the draws and the targets of other rows."""
    hidden, q, p = drawn(N, D), Unigram(layers.counts(K)), Unigram(np.arange(1, K + 1), power=1)
    layer = at(nn.SampledSoftmax(D, q, samples=4, in_batch=p, reduction="none")).eval()
    drawn_ones = q.draw(4, seed=0, stream=0, unique=True).index
    every = np.concatenate([drawn_ones, Y.numpy()])
    expected = q.expected(every, 4, unique=True) + (N - 1) * p.probabilities[every]
    s = scores(layer, hidden).detach().numpy()
    for i, y in enumerate(Y.tolist()):
        total = np.exp(s[i, y]) + sum(np.exp(s[i, j]) / e for j, e in zip(every, expected, strict=True) if j != y)
        assert layer(hidden, Y)[i].item() == pytest.approx(np.log(total) - s[i, y], rel=1e-12)


def test_sample_grows_until_the_ess_is_reached() -> None:
    layer = at(nn.ImportanceSampledSoftmax(D, Uniform(K), samples=8, least_ess=60.0, most=300)).eval()
    hidden = drawn(N, D)
    layer(hidden, Y)
    assert layer.drawn in (64, 128, 256)
    assert (layer.ess >= 60).all()
    found = layer.sampler.draw(layer.drawn, seed=0)
    r = np.exp(scores(layer, hidden).detach().numpy())[:, found.index]
    np.testing.assert_allclose(layer.ess, r.sum(1) ** 2 / (r**2).sum(1), rtol=1e-12)
    layer.least_ess = 1e6
    layer(hidden, Y)
    assert layer.drawn == 300
    layer(hidden, torch.tensor([-100, 1, -100, -100]))
    assert layer.ess.shape == (1,)


def test_draws_change_with_the_training_step() -> None:
    layer, hidden = at(nn.SampledSoftmax(D, Uniform(1000), samples=8)), drawn(N, D)
    losses = [layer(hidden, Y).item() for _ in range(3)]
    assert len(set(losses)) == 3
    assert layer.step == 3
    layer.eval()
    assert layer(hidden, Y).item() == layer(hidden, Y).item() not in losses
    other = at(nn.SampledSoftmax(D, Uniform(1000), samples=8, seed=1))
    assert other(hidden, Y).item() not in losses


def test_sampler_results_are_tensors_like_the_argument() -> None:
    sampler = LogUniform(50)
    found = sampler.draw(5, seed=3, unique=True, like=torch.zeros(1))
    plain = sampler.draw(5, seed=3, unique=True)
    assert all(np.array_equal(a.numpy(), b) for a, b in zip(found, plain, strict=True))
    index = torch.tensor([[0, 49]])
    assert torch.equal(sampler.expected(index, 7), torch.from_numpy(sampler.expected([[0, 49]], 7)))
    assert torch.equal(sampler.log_probabilities(index), torch.from_numpy(sampler.log_probabilities([[0, 49]])))


def test_learned_follows_the_targets() -> None:
    layer, hidden = at(nn.SampledSoftmax(D, Learned(K), samples=4)), drawn(N, D)
    for _ in range(5):
        layer(hidden, Y)
    assert layer.sampler.counts.tolist() == [5, 0, 0, 10, 0, 0, 0, 0, 5]


@pytest.mark.parametrize(
    "options", [{}, {"shared": False}, {"shared": False, "unique": False}, {"in_batch": True}], ids=str
)
def test_ignored_rows_do_not_change_other_rows(options: dict[str, Any]) -> None:
    """Results under tracing equal those of eager code, although only eager code removes ignored rows."""
    given = {**options, "in_batch": Unigram(layers.counts(K))} if "in_batch" in options else options
    layer = at(nn.SampledSoftmax(D, Unigram(layers.counts(K)), samples=3, reduction="none", **given)).eval()
    hidden, y = drawn(6, D), torch.tensor([7, -100, 5, -100, -100, 2])
    found = layer(hidden, y)
    traced, _ = torch.func.vjp(lambda h: layer(h, y), hidden)
    torch.testing.assert_close(traced, found)
    if "in_batch" not in options:
        y[0] = -100
        assert torch.equal(layer(hidden, y)[1:], found[1:])


def test_classes_with_expected_count_0_are_no_negatives() -> None:
    few = np.array([5, 4, 3, 2, 0, 0, 0, 0, 0])
    layer = at(nn.SampledSoftmax(D, Unigram(few), samples=3, in_batch=Unigram(few, power=1), reduction="none"))
    found = layer.eval()(drawn(4, D), torch.tensor([7, 0, 1, 2]))
    assert found.isfinite().all()


def test_in_batch_learns_and_is_saved() -> None:
    def fresh() -> Any:
        return nn.SampledSoftmax(D, Uniform(K), samples=3, in_batch=Learned(K))

    layer, twin = fresh(), fresh()
    layer(drawn(N, D), Y)
    assert layer.in_batch.counts.tolist() == [1, 0, 0, 2, 0, 0, 0, 0, 1]
    twin.load_state_dict(layer.state_dict())
    assert np.array_equal(twin.in_batch.counts, layer.in_batch.counts)


@pytest.mark.parametrize("unique", [True, False])
def test_negatives_of_each_row_change_with_the_step(unique: bool) -> None:
    layer = at(nn.SampledSoftmax(D, Uniform(1000), samples=4, shared=False, unique=unique))
    losses = {layer(drawn(N, D), Y).item() for _ in range(3)}
    assert len(losses) == 3


@pytest.mark.parametrize("log_z", ["learned", "context", 0.0, 2.5])
def test_nce_is_initially_normalised(log_z: Any) -> None:
    layer, hidden = nn.NCE(D, Uniform(K), samples=4, log_z=log_z), torch.zeros(2, D)
    scores_of = torch.stack([layer.log_score_of(hidden, torch.full((2,), k)) for k in range(K)], 1)
    torch.testing.assert_close(scores_of.exp().sum(1), torch.ones(2))
    with torch.no_grad():
        layer.bias.normal_()
        layer.weight.zero_()
    layer.reset_parameters()
    scores_of = torch.stack([layer.log_score_of(hidden, torch.full((2,), k)) for k in range(K)], 1)
    torch.testing.assert_close(scores_of.exp().sum(1), torch.ones(2))
    assert layer.weight.any()


def test_log_score_of_is_score_minus_log_z() -> None:
    layer, hidden = at(nn.NCE(D, Uniform(K), samples=4, log_z="learned")), drawn(N, D)
    with torch.no_grad():
        layer.log_z.fill_(1.5)
    torch.testing.assert_close(layer.log_score_of(hidden, Y), scores(layer, hidden).gather(1, Y[:, None])[:, 0] - 1.5)
    torch.testing.assert_close(layer.scores(hidden), scores(layer, hidden))


@pytest.mark.parametrize("kind", [nn.SampledSoftmax, nn.ImportanceSampledSoftmax, nn.NCE, nn.NegativeSampling])
def test_weight_argument_is_not_changed(kind: Any) -> None:
    weight = torch.nn.Parameter(drawn(K, D, dtype=torch.float32))
    before = weight.detach().clone()
    layer = kind(D, Uniform(K), samples=4, weight=weight, dtype=torch.bfloat16)
    assert layer.weight is weight
    assert torch.equal(weight, before)
    assert layer.bias.dtype == torch.bfloat16


def test_negatives_out_of_range_give_nan_under_tracing() -> None:
    layer = at(nn.SampledSoftmax(D, Uniform(K), samples=4, reduction="none"))
    index, log_e = torch.tensor([[0, 1], [-1, 2], [3, K], [4, 5]]), torch.zeros(4, 2, dtype=F64)
    found = torch.func.vmap(lambda h, y, i, e: layer(h, y, Negatives(i, e)))(drawn(4, D), Y, index, log_e)
    assert found.isnan().tolist() == [False, True, True, False]


# --- parts of the data ------------------------------------------------------------------------------------------------


def test_partitions_have_few_targets_and_maximal_length() -> None:
    y = np.random.default_rng(0).zipf(1.3, 2000) % 97
    for most in (1, 2, 7, 40, 97, 1000):
        parts = partitions(torch.from_numpy(y), most=most)
        assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
        assert (parts[0].start, parts[-1].stop) == (0, 2000)
        for part in parts:
            assert np.array_equal(part.classes, np.unique(y[part.start : part.stop]))
            assert len(part.classes) <= most
            assert part.stop == 2000 or (len(part.classes) == most and y[part.stop] not in part.classes)
    assert partitions([], most=3) == []


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: partitions([1.5], most=2), TypeError, "targets: expected integers, got dtype float64"),
        (lambda: partitions([[1]], most=2), ValueError, r"targets: expected shape \(n,\), got \(1, 1\)"),
        (lambda: partitions([1], most=0), ValueError, "most: expected 1 or more, got 0"),
        (lambda: partitions([1], most=0.5), TypeError, "most: expected an integer, got 0.5"),
    ],
)
def test_errors_of_partitions(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()
