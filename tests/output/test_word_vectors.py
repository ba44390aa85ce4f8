"""Tests of WordVectors: pairs, subsampling, training steps, reproducibility, and the quality of trained vectors.

This file compares training steps with gradients of the torch modules. tests/native compares them with a definition.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import softargmax
from softargmax.output import LogUniform, Tree, Uniform, Unigram, WordVectors, philox_stream

pytestmark = pytest.mark.sanitize

module = importlib.import_module("softargmax.output.word_vectors")
COUNTS = 1000 // np.arange(1, 41)


def text(n: int = 3000, seed: int = 0) -> Any:
    """Return word numbers of two kinds, even and odd, ten of one kind at a time. Each 50th is -1, a sentence's end."""
    rng = np.random.default_rng(seed)
    kinds = np.repeat(rng.integers(0, 2, n // 10), 10)
    words = 2 * rng.integers(0, 20, len(kinds)) + kinds
    return np.where(np.arange(len(words)) % 50 == 49, -1, words)


def pairs_by_loops(tokens: list[int], windows: list[int], start: int, stop: int) -> list[tuple[int, list[int]]]:
    found = []
    for i in range(start, stop):
        if tokens[i] < 0:
            continue
        near = []
        for step in (-1, 1):
            for j in range(i + step, i + step * (windows[i] + 1), step):
                if not 0 <= j < len(tokens) or tokens[j] < 0:
                    break
                near.append(j)
        found.append((tokens[i], [tokens[j] for j in sorted(near)]))
    return found


@pytest.mark.parametrize("reach", [1, 2, 7])
@pytest.mark.parametrize("ends", [0.0, 0.1, 0.6, 1.0])
def test_pairs_equal_a_loop(ends: float, reach: int) -> None:
    rng = np.random.default_rng([reach, int(10 * ends)])
    tokens = np.where(rng.random(200) < ends, -1, rng.integers(0, 9, 200))
    windows = rng.integers(1, reach + 1, 200)
    for start, stop in ((0, 200), (0, 50), (50, 51), (150, 200), (70, 70)):
        centres, starts, context = module._pairs(tokens, windows, reach, start, stop)
        parts = [part.tolist() for part in np.split(context, starts[1:-1])] if len(centres) else []
        found = list(zip(centres.tolist(), parts, strict=True))
        assert found == pairs_by_loops(tokens.tolist(), windows.tolist(), start, stop)
        assert starts[0] == 0


def test_frequent_words_are_subsampled() -> None:
    """Subsampling keeps the share sqrt(t / f) + t / f of a word's tokens, and all ends of sentences.

    f is the word's share of the text, and t is `threshold`. Window sizes are uniform from 1 to 3.
    """
    counts = np.array([9000, 900, 90, 10])
    model = WordVectors(counts, 2, threshold=1e-2, window=3)
    tokens = np.append(np.repeat(np.arange(4), 50_000), np.full(1000, -1))
    kept, windows = model._subsampled(tokens)
    share = 1e-2 / (counts / counts.sum())
    expected = np.minimum(1, np.sqrt(share) + share)
    stay = np.bincount(kept[kept >= 0], minlength=4) / 50_000
    assert (np.abs(stay - expected) < 5 * np.sqrt(expected * (1 - expected) / 50_000) + 1e-12).all()
    assert (kept < 0).sum() == 1000
    even = np.bincount(windows, minlength=4)[1:] / len(windows)
    assert (np.abs(even - 1 / 3) < 5 * np.sqrt(2 / 9 / len(windows))).all()
    everything, _ = WordVectors(counts, 2)._subsampled(tokens)
    assert (everything == tokens).all()


@pytest.mark.parametrize("tree", [None, Tree.huffman(COUNTS)], ids=str)
def test_small_step_equals_the_torch_module(tree: Tree | None) -> None:
    """Training on one batch of all tokens, at a small rate, has the loss and the SGD updates of the torch module."""
    torch = pytest.importorskip("torch")
    tokens, rate = text(60), 1e-3
    model = WordVectors(COUNTS, 12, tree=tree, samples=4, window=2, seed=3)
    model.weight[:] = np.random.default_rng(0).normal(size=model.weight.shape) * 0.3
    before, weight = model.vectors.copy(), model.weight.copy()
    kept, windows = model._subsampled(tokens)
    centres, starts, context = module._pairs(kept, windows, 2, 0, len(kept))
    vectors = torch.nn.Parameter(torch.from_numpy(before.copy()))
    hidden, target = vectors[np.repeat(centres, np.diff(starts))], torch.from_numpy(context)
    options = {"bias": False, "reduction": "none"}
    if tree is None:
        layer = softargmax.nn.NegativeSampling(12, Unigram(COUNTS), samples=4, **options)
        drawn = Unigram(COUNTS).draw(4 * len(context), seed=3, stream=0)
        negatives = type(drawn)(*(np.reshape(x, (-1, 4)) for x in drawn))
    else:
        layer, negatives = softargmax.nn.HierarchicalSoftmax(12, tree, **options), None
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
    losses = layer(hidden, target, negatives) if tree is None else layer(hidden, target)
    if tree is None:  # WordVectors leaves out draws of the target
        own = torch.from_numpy(negatives.index) == target[:, None]
        scores = (hidden * layer.weight[target]).sum(1)
        losses = losses + (own * torch.nn.functional.logsigmoid(-scores)[:, None]).sum(1)
    losses.sum().backward()
    loss = model.train(tokens, rate=rate, batch=len(tokens))
    assert loss == pytest.approx(float(losses.detach().mean()), rel=1e-5)
    # The tolerance allows for the changes of the weights within the batch, which are proportional to the rate.
    for after, first, parameter in ((model.vectors, before, vectors), (model.weight, weight, layer.weight)):
        np.testing.assert_allclose((after - first) / rate, -parameter.grad.numpy(), rtol=1e-2, atol=5e-3)


@pytest.mark.no_sanitize  # slow; other tests run the same options
@pytest.mark.parametrize(
    "options", [{}, {"tree": Tree.huffman(COUNTS)}, {"sampler": LogUniform(40)}, {"threshold": 0.01}]
)
def test_training_finds_words_of_one_kind(options: dict[str, Any]) -> None:
    tokens = text(20_000)
    model = WordVectors(np.bincount(tokens[tokens >= 0], minlength=40), 16, window=4, **options)
    losses = [model.train(tokens, rate=0.05) for _ in range(5)]
    assert losses[4] < losses[0]
    v = model.vectors / np.linalg.norm(model.vectors, axis=1, keepdims=True)
    near = np.argsort(-(v @ v.T), axis=1)[:, 1]
    assert np.mean(near % 2 == np.arange(40) % 2) > 0.95


def test_large_batches_do_not_diverge() -> None:
    """A batch of 256 words updates the tree's root a thousand times. Training does not diverge and vectors stay small.

    Training would diverge if all updates of a batch used the root's vector from before the batch.
    """
    q = 1.0 / np.arange(1, 1501)
    rng = np.random.default_rng(0)
    kinds = np.repeat(rng.integers(0, 2, 3000), 10)
    tokens = 2 * rng.choice(1500, 30_000, p=q / q.sum()) + kinds
    counts = np.bincount(tokens, minlength=3000)
    small, large = (WordVectors(counts, 16, tree=Tree.huffman(counts)) for _ in range(2))
    losses = small.train(tokens, batch=1), large.train(tokens, batch=256)
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert np.abs(large.weight).max() < 1.5 * np.abs(small.weight).max()


@pytest.mark.parametrize("tree", [False, True])
def test_same_seed_same_bits(tree: bool) -> None:
    tokens = text(4000)

    def trained(threads: int, seed: int = 5, **options: Any) -> list[Any]:
        softargmax.set_num_threads(threads)
        model = WordVectors(
            COUNTS, 24, tree=Tree.huffman(COUNTS) if tree else None, threshold=0.02, seed=seed, **options
        )
        return [model.train(tokens), model.train(tokens[:777], rate=0.1, last_rate=0.01), model.vectors, model.weight]

    try:
        first = trained(1)
        for threads in (1, 2, 3):
            assert all(np.array_equal(a, b) for a, b in zip(trained(threads), first, strict=True))
        assert trained(1, seed=6)[0] != first[0]
    finally:
        softargmax.set_num_threads(0)


def test_every_option_changes_the_vectors() -> None:
    tokens = text(2000)

    def vectors(rates: dict[str, Any] | None = None, **options: Any) -> Any:
        model = WordVectors(**{"counts": COUNTS, "dim": 6, **options})
        model.train(tokens, **(rates or {}))
        return model.vectors

    plain = vectors()
    for options in (
        {"counts": COUNTS[::-1]},
        {"samples": 2},
        {"window": 2},
        {"threshold": 1e-3},
        {"sampler": Uniform(40)},
        {"tree": Tree.balanced(40)},
        {"seed": 1},
    ):
        assert not np.array_equal(vectors(**options), plain), options
    for rates in ({"rate": 0.1}, {"last_rate": 1e-3}, {"batch": 1}):
        assert not np.array_equal(vectors(rates), plain), rates
    assert vectors(dim=7).shape == (40, 7)


def test_second_text_has_new_draws() -> None:
    """A second text has new draws. An empty text, and a text in which no sentence has two words, have loss 0."""
    tokens = text(2000)
    model = WordVectors(COUNTS, 6)
    assert model.train([]) == 0
    assert model.train([-1, -1, 3, -1]) == 0
    model.train(tokens)
    once = model.vectors.copy()
    model.train(tokens)
    again = WordVectors(COUNTS, 6)
    again.train(tokens)
    again.vectors[:] = once
    assert not np.array_equal(model.vectors, again.vectors)


def test_initial_vectors_are_small() -> None:
    v = WordVectors(np.ones(3000), 20).vectors
    assert np.abs(v).max() <= 1 / 40
    assert abs(v.mean()) < 5 / 40 / np.sqrt(3 * v.size)
    assert abs(v.std() - 1 / 40 / np.sqrt(3)) < 1e-4


@pytest.mark.parametrize("purpose", [philox_stream.CANDIDATES, philox_stream.WINDOWS])
def test_compiled_core_has_the_random_numbers_of_python(purpose: int) -> None:
    for seed, stream, first, count in (
        (0, 0, 0, 1000),
        (2**64 - 1, -1, 17, 3),
        (5, 2**62, 2**32 - 40, 40),
        (1, 2, 3, 0),
    ):
        native = philox_stream.numbers(seed, stream, first, count, purpose)
        with softargmax.using("reference"):
            assert all(
                (a == b).all()
                for a, b in zip(native, philox_stream.numbers(seed, stream, first, count, purpose), strict=True)
            )


@pytest.mark.parametrize(
    ("error", "name", "change"),
    [
        (ValueError, "counts", {"counts": [1, -1]}),
        (ValueError, "counts", {"counts": [0, 0]}),
        (ValueError, "dim", {"dim": 0}),
        (TypeError, "dim", {"dim": 2.5}),
        (ValueError, "window", {"window": 0}),
        (ValueError, "samples", {"samples": -1}),
        (ValueError, "threshold", {"threshold": -0.1}),
        (TypeError, "threshold", {"threshold": "much"}),
        (ValueError, "tree", {"tree": Tree.balanced(3)}),
        (ValueError, "sampler", {"sampler": Uniform(3)}),
        (TypeError, "tree", {"tree": Uniform(2)}),
        (TypeError, "sampler", {"sampler": Tree.balanced(2)}),
        (ValueError, "tree, sampler", {"tree": Tree.balanced(2), "sampler": Uniform(2)}),
        (ValueError, "seed", {"seed": -1}),
    ],
)
def test_errors_of_models(error: type[Exception], name: str, change: dict[str, Any]) -> None:
    with pytest.raises(error, match=name):
        WordVectors(**{"counts": [2, 1], "dim": 3, **change})


@pytest.mark.parametrize(
    ("error", "name", "tokens", "options"),
    [
        (IndexError, "tokens: expected word numbers from -1 to 1, got 2 at 1", [0, 2], {}),
        (IndexError, "tokens: expected word numbers from -1 to 1, got -2 at 0", [-2, 1], {}),
        (TypeError, "tokens", [0.5], {}),
        (ValueError, "tokens", [[0, 1]], {}),
        (ValueError, "rate", [0, 1], {"rate": 0.0}),
        (ValueError, "last_rate", [0, 1], {"last_rate": -1.0}),
        (ValueError, "batch", [0, 1], {"batch": 0}),
    ],
)
def test_errors_of_texts(error: type[Exception], name: str, tokens: Any, options: dict[str, Any]) -> None:
    model = WordVectors([2, 1], 3)
    before = model.vectors.copy()
    with pytest.raises(error, match=name):
        model.train(tokens, **options)
    assert np.array_equal(model.vectors, before)
