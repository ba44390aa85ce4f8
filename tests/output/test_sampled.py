"""Losses that sample: their definitions, and what theory says of the mean of their gradients."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
layers = importlib.import_module("tests.output.layers")

from softargmax import nn  # noqa: E402
from softargmax.output import Learned, LogUniform, Negatives, Sampler, Uniform, Unigram, partitions  # noqa: E402

F64, layer_of, drawn = torch.float64, layers.layer_of, layers.drawn
K, D, N = 9, 3, 4
Y = torch.tensor([0, 8, 3, 3])


def at(layer: Any, seed: int = 5) -> Any:
    """The same random parameters for every layer."""
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
def test_losses_are_the_definitions(given: Negatives) -> None:
    hidden = drawn(N, D)

    def beside(row: int) -> list[tuple[int, float]]:
        index, log_e = (x if x.ndim == 1 else x[row] for x in given)
        return [(int(j), float(e)) for j, e in zip(index, log_e, strict=True)]

    def compare(layer: Any, of_row: Any) -> None:
        layer = at(layer)
        layer.reduction = "none"
        s = scores(layer, hidden).detach().numpy()
        wanted = [of_row(s[i], int(Y[i]), beside(i)) for i in range(N)]
        torch.testing.assert_close(layer(hidden, Y, given).detach(), torch.tensor(wanted, dtype=F64))

    def sampled(s: Any, y: int, some: list[tuple[int, float]]) -> float:
        return np.log(np.exp(s[y]) + sum(np.exp(s[j] - e) for j, e in some if j != y)) - s[y]

    def importance(s: Any, y: int, some: list[tuple[int, float]]) -> float:
        return np.log(sum(np.exp(s[j] - e) for j, e in some)) - s[y]

    def coin(x: float) -> float:
        return np.log1p(np.exp(-x))

    n = given.index.shape[-1]
    sampler = Unigram(layers.counts(K))
    q = sampler.probabilities

    def nce(s: Any, y: int, some: list[tuple[int, float]]) -> float:
        return coin(s[y] - 0.3 - np.log(n * q[y])) + sum(coin(-(s[j] - 0.3 - e)) for j, e in some)

    def negative(s: Any, y: int, some: list[tuple[int, float]]) -> float:
        return coin(s[y]) + sum(coin(-s[j]) for j, _ in some)

    compare(nn.SampledSoftmax(D, sampler, samples=5), sampled)
    compare(nn.ImportanceSampledSoftmax(D, sampler, samples=5), importance)
    compare(nn.NCE(D, sampler, samples=5, log_z=0.3), nce)
    compare(nn.NegativeSampling(D, sampler, samples=5), negative)


def test_with_all_classes_it_is_the_full_softmax() -> None:
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
    torch.testing.assert_close(layer(hidden, Y), wanted)  # the distinct targets of the call
    layer.use([8, 3, 0, 3])
    torch.testing.assert_close(layer(hidden, Y), wanted)
    layer.use([1, 8, 0, 3])
    assert layer(hidden, Y) > wanted
    layer.use(None)
    torch.testing.assert_close(layer(hidden, Y), wanted)


def test_in_batch_negatives() -> None:
    """Each candidate weighs 1 over how often its class is expected among the draws and the other rows' targets."""
    hidden, q, p = drawn(N, D), Unigram(layers.counts(K)), Unigram(np.arange(1, K + 1), power=1)
    layer = at(nn.SampledSoftmax(D, q, samples=4, in_batch=p, reduction="none")).eval()
    drawn_ones = q.draw(4, seed=0, stream=0, unique=True).index
    every = np.concatenate([drawn_ones, Y.numpy()])
    expected = q.expected(every, 4, unique=True) + (N - 1) * p.probabilities[every]
    s = scores(layer, hidden).detach().numpy()
    for i, y in enumerate(Y.tolist()):
        total = np.exp(s[i, y]) + sum(np.exp(s[i, j]) / e for j, e in zip(every, expected, strict=True) if j != y)
        assert layer(hidden, Y)[i].item() == pytest.approx(np.log(total) - s[i, y], rel=1e-12)


def test_the_sample_grows_until_it_suffices() -> None:
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


def test_draws_change_with_the_step_when_training() -> None:
    layer, hidden = at(nn.SampledSoftmax(D, Uniform(1000), samples=8)), drawn(N, D)
    losses = [layer(hidden, Y).item() for _ in range(3)]
    assert len(set(losses)) == 3
    assert layer.step == 3
    layer.eval()
    assert layer(hidden, Y).item() == layer(hidden, Y).item() not in losses
    other = at(nn.SampledSoftmax(D, Uniform(1000), samples=8, seed=1))
    assert other(hidden, Y).item() not in losses


def test_a_sampler_s_results_are_tensors_where_tensors_are_asked_for() -> None:
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


# --- means of gradients -----------------------------------------------------------------------------------------------

DRAWS = 10_000


def gradients(layer: Any, hidden: Any, y: Any) -> tuple[Any, Any]:
    """The mean over draws of the gradient to h, and its standard error. Every draw is a row of a batch."""
    assert not layer.shared
    rows = hidden.expand(DRAWS, D).clone().requires_grad_()
    layer.reduction = "sum"
    (each,) = torch.autograd.grad(layer(rows, y.expand(DRAWS)), rows)
    return each.mean(0), each.std(0) / DRAWS**0.5


def truth(hidden: Any, y: Any) -> Any:
    h = hidden.clone().requires_grad_()
    return torch.autograd.grad(at(nn.FullSoftmax(D, K))(h, y), h)[0]


def own_distribution(hidden: Any, y: int) -> Sampler:
    """The softmax itself, over the classes but y."""
    p = at(nn.FullSoftmax(D, K)).log_prob(hidden).detach().exp().numpy()
    p[y] = 0
    return Unigram(p, power=1)


@pytest.mark.parametrize("n", [1, 5])
def test_sampled_from_the_softmax_itself_it_is_unbiased(n: int) -> None:
    """Blanc & Rendle (2018), theorem 2.1: of all samplers this one alone."""
    hidden, y = drawn(D), torch.tensor(3)
    options: dict[str, Any] = {"samples": n, "unique": False, "shared": False}
    mean, error = gradients(at(nn.SampledSoftmax(D, own_distribution(hidden, 3), **options)), hidden, y)
    assert ((mean - truth(hidden, y)).abs() < 3 * error).all()
    biased, error = gradients(at(nn.SampledSoftmax(D, Uniform(K), **options)), hidden, y)
    assert ((biased - truth(hidden, y)).abs() > 6 * error).any(), "the test can fail"


@pytest.mark.parametrize("kind", [nn.SampledSoftmax, nn.ImportanceSampledSoftmax])
def test_the_bias_falls_as_one_over_n(kind: Any) -> None:
    """Consistent: what is left of the bias at 16 times the draws is a sixteenth, within 3 standard errors."""
    hidden, y, sampler = drawn(D), torch.tensor(3), Unigram(layers.counts(K))
    options: dict[str, Any] = {"unique": False} if kind is nn.SampledSoftmax else {}
    bias = {}
    for n in (4, 64):
        mean, error = gradients(at(kind(D, sampler, samples=n, shared=False, **options)), hidden, y)
        bias[n] = mean - truth(hidden, y), error
    assert (bias[4][0].abs() > 6 * bias[4][1]).any()
    assert (bias[64][0].abs() < bias[4][0].abs() / 8 + 3 * bias[64][1]).all()


def test_nce_is_unbiased_for_its_expectation_and_tends_to_likelihood() -> None:
    """E = sigma(-D_y) (-s'_y) + sum_j n q_j sigma(D_j) s'_j; at scores that are normalised it tends to p - e_y."""
    hidden, y, sampler = drawn(D), torch.tensor(3), Unigram(layers.counts(K), power=0.5)
    q = torch.tensor(sampler.probabilities)
    far = []
    for n in (3, 2000):
        layer = at(nn.NCE(D, sampler, samples=n, shared=False, log_z=0.0))
        with torch.no_grad():
            layer.bias -= scores(layer, hidden).logsumexp(-1)
        s = scores(layer, hidden).detach()
        delta = s - (n * q).log()
        expected = (n * q * delta.sigmoid())[:, None] * layer.weight
        wanted = (expected.sum(0) - (-delta[y]).sigmoid() * layer.weight[y]).detach()
        far.append((wanted - truth(hidden, y)).norm().item())
        if n == 3:
            mean, error = gradients(layer, hidden, y)
            assert ((mean - wanted).abs() < 3 * error).all()
    assert far[1] < 0.01 * far[0]


def test_negative_sampling_learns_pointwise_mutual_information() -> None:
    """Levy & Goldberg (2014): at the best scores, log p - log q - log n, the mean gradient is 0."""
    n, sampler = 4, Unigram(layers.counts(K))
    p = torch.tensor(Unigram(np.arange(1, K + 1), power=1).probabilities)
    best = p.log() - torch.tensor(sampler.log_probabilities(range(K))) - np.log(n)
    pulled = p * (best.sigmoid() - 1) + n * torch.tensor(sampler.probabilities) * best.sigmoid()
    torch.testing.assert_close(pulled, torch.zeros(K, dtype=F64))
    layer = at(nn.NegativeSampling(D, sampler, samples=n))
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(best)
    y = torch.multinomial(p, DRAWS, replacement=True, generator=torch.Generator().manual_seed(0))
    layer(torch.zeros(DRAWS, D, dtype=F64), y).backward()
    error = (p + n * torch.tensor(sampler.probabilities)).sqrt() / DRAWS**0.5  # at most: of the counts
    assert (layer.bias.grad.abs() < 3 * error).all()


# --- parts of the data ------------------------------------------------------------------------------------------------


def test_partitions_have_few_targets_and_are_as_long_as_can_be() -> None:
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
        (lambda: partitions([1.5], most=2), TypeError, "targets: dtype float64"),
        (lambda: partitions([[1]], most=2), ValueError, r"targets: shape \(1, 1\)"),
        (lambda: partitions([1], most=0), ValueError, "most: 0; it may be 1 or more"),
        (lambda: partitions([1], most=0.5), TypeError, "most: 0.5"),
    ],
)
def test_errors_of_partitions(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()
