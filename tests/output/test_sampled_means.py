"""The gradients of sampled losses, averaged over draws, agree with theory."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
layers = importlib.import_module("tests.output.layers")
sampled = importlib.import_module("tests.output.test_sampled")

from softargmax import nn  # noqa: E402
from softargmax.output import Sampler, Uniform, Unigram  # noqa: E402

F64, drawn, at, scores, K, D = torch.float64, layers.drawn, sampled.at, sampled.scores, sampled.K, sampled.D
DRAWS = 10_000


def gradients(layer: Any, hidden: Any, y: Any) -> tuple[Any, Any]:
    """Return the mean over draws of the gradient with respect to h, and the standard error of the mean.

    Each row of a batch has its own draw.
    """
    assert not layer.shared
    rows = hidden.expand(DRAWS, D).clone().requires_grad_()
    layer.reduction = "sum"
    (each,) = torch.autograd.grad(layer(rows, y.expand(DRAWS)), rows)
    return each.mean(0), each.std(0) / DRAWS**0.5


def truth(hidden: Any, y: Any) -> Any:
    h = hidden.clone().requires_grad_()
    return torch.autograd.grad(at(nn.FullSoftmax(D, K))(h, y), h)[0]


def own_distribution(hidden: Any, y: int) -> Sampler:
    """Return a sampler whose distribution is the layer's softmax, with probability 0 for y."""
    p = at(nn.FullSoftmax(D, K)).log_prob(hidden).detach().exp().numpy()
    p[y] = 0
    return Unigram(p, power=1)


@pytest.mark.parametrize("n", [1, 5])
def test_sampling_from_the_softmax_itself_is_unbiased(n: int) -> None:
    """The softmax itself is the only unbiased sampler (Blanc & Rendle 2018, theorem 2.1)."""
    hidden, y = drawn(D), torch.tensor(3)
    options: dict[str, Any] = {"samples": n, "unique": False, "shared": False}
    mean, error = gradients(at(nn.SampledSoftmax(D, own_distribution(hidden, 3), **options)), hidden, y)
    assert ((mean - truth(hidden, y)).abs() < 3 * error).all()
    biased, error = gradients(at(nn.SampledSoftmax(D, Uniform(K), **options)), hidden, y)
    assert ((biased - truth(hidden, y)).abs() > 6 * error).any(), "another sampler fails the test"


@pytest.mark.parametrize("kind", [nn.SampledSoftmax, nn.ImportanceSampledSoftmax])
def test_bias_falls_as_1_over_n(kind: Any) -> None:
    """In theory, 16 times as many draws give 1/16 of the bias. The test allows 1/8 plus 3 standard errors."""
    hidden, y, sampler = drawn(D), torch.tensor(3), Unigram(layers.counts(K))
    options: dict[str, Any] = {"unique": False} if kind is nn.SampledSoftmax else {}
    bias = {}
    for n in (4, 64):
        mean, error = gradients(at(kind(D, sampler, samples=n, shared=False, **options)), hidden, y)
        bias[n] = mean - truth(hidden, y), error
    assert (bias[4][0].abs() > 6 * bias[4][1]).any()
    assert (bias[64][0].abs() < bias[4][0].abs() / 8 + 3 * bias[64][1]).all()


def test_nce_gradient_has_its_expectation_and_tends_to_likelihood() -> None:
    """The mean gradient is -sigma(-Delta_y) s'_y + sum_j n q_j sigma(Delta_j) s'_j.

    s'_j is the gradient of the score of class j, and Delta is defined in the docstring of `NCE`. If the scores are
    normalised, the mean tends to the gradient of the full softmax as n grows.
    """
    hidden, y, sampler = drawn(D), torch.tensor(3), Unigram(layers.counts(K), power=0.5)
    q = torch.tensor(sampler.probabilities)
    distance = []
    for n in (3, 2000):
        layer = at(nn.NCE(D, sampler, samples=n, shared=False, log_z=0.0))
        with torch.no_grad():
            layer.bias -= scores(layer, hidden).logsumexp(-1)
        s = scores(layer, hidden).detach()
        delta = s - (n * q).log()
        expected = (n * q * delta.sigmoid())[:, None] * layer.weight
        wanted = (expected.sum(0) - (-delta[y]).sigmoid() * layer.weight[y]).detach()
        distance.append((wanted - truth(hidden, y)).norm().item())
        if n == 3:
            mean, error = gradients(layer, hidden, y)
            assert ((mean - wanted).abs() < 3 * error).all()
    assert distance[1] < 0.01 * distance[0]


def test_negative_sampling_learns_pointwise_mutual_information() -> None:
    """At the optimal scores, log p - log q - log n, the mean gradient is 0 (Levy & Goldberg 2014)."""
    n, sampler = 4, Unigram(layers.counts(K))
    p = torch.tensor(Unigram(np.arange(1, K + 1), power=1).probabilities)
    best = p.log() - torch.tensor(sampler.log_probabilities(range(K))) - np.log(n)
    mean_gradient = p * (best.sigmoid() - 1) + n * torch.tensor(sampler.probabilities) * best.sigmoid()
    torch.testing.assert_close(mean_gradient, torch.zeros(K, dtype=F64))
    layer = at(nn.NegativeSampling(D, sampler, samples=n))
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(best)
    y = torch.multinomial(p, DRAWS, replacement=True, generator=torch.Generator().manual_seed(0))
    layer(torch.zeros(DRAWS, D, dtype=F64), y).backward()
    error = (p + n * torch.tensor(sampler.probabilities)).sqrt() / DRAWS**0.5  # an upper bound of the standard error
    assert (layer.bias.grad.abs() < 3 * error).all()
