"""The digest cases of softargmax/output: samplers, trees, cut-offs and word vectors.

The cases of the layers are in `room_output_layers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from tests.digests import room_output_layers
from tests.digests.cases import Case, alone, titled
from tests.digests.inputs import TORCH, below, scores, uniform

from softargmax.output import (
    Learned,
    LogUniform,
    Sampler,
    StepCost,
    Tree,
    Uniform,
    Unigram,
    WordVectors,
    adaptive_cutoffs,
    partitions,
)

COUNTS = 1 + below(1000, 97, salt="counts")


def learned() -> Learned:
    """Return a Learned sampler that has counted classes."""
    sampler = Learned(97, smoothing=0.5, decay=0.9, power=0.75)
    for i in range(3):
        sampler.observe(below(97, 40, salt=f"seen {i}"))
    return sampler


SAMPLERS: dict[str, Sampler] = {
    "Uniform": Uniform(97),
    "Uniform of 1": Uniform(1),
    "LogUniform": LogUniform(97),
    "LogUniform of 5000": LogUniform(5000),
    "Unigram": Unigram(COUNTS),
    "Unigram, power 1": Unigram(np.where(COUNTS % 5 == 0, 0, COUNTS), power=1.0),
    "Learned": learned(),
}


def samplers() -> Iterator[Case]:
    """Yield cases of the distributions, draws and expected counts of samplers."""
    for name, s in SAMPLERS.items():
        most = min(20, int(np.count_nonzero(s.probabilities)))
        index = below(s.classes, 3, 4)
        yield Case(f"{name}: probabilities", "numpy", lambda s=s, i=index: (s.probabilities, s.log_probabilities(i)))
        for n in sorted({0, 1, most}):
            for unique in (False, True):
                for stream in (0, 7):
                    yield Case(
                        titled(name, f"draw {n}"),
                        f"numpy{' unique' * unique} stream {stream}",
                        partial(s.draw, n, seed=3, stream=stream, unique=unique),
                    )
                yield Case(
                    titled(name, f"expected {n}"),
                    f"numpy{' unique' * unique}",
                    partial(s.expected, index, n, unique=unique),
                )
        like = TORCH[0].array(uniform(2))
        yield Case(f"{name}: draw 5", "torch", partial(s.draw, 5, seed=3, like=like))
        yield Case(f"{name}: log_probabilities", "torch", partial(s.log_probabilities, TORCH[0].plain(index)))
    s = learned()
    yield Case("Learned: state", "numpy", lambda: (s.counts, s.state_dict()))


def trees() -> Iterator[Case]:
    """Yield cases of trees, and of quantities computed from a tree."""
    weights = scores(33, 5, salt="weights")
    made = {
        "balanced 1": lambda: Tree.balanced(1),
        "balanced 13": lambda: Tree.balanced(13),
        "huffman": lambda: Tree.huffman(COUNTS),
        "huffman of equals": lambda: Tree.huffman([3] * 11),
        "from_clusters": lambda: Tree.from_clusters(below(6, 33) % 6),
        "from_clusters, counts": lambda: Tree.from_clusters(below(6, 33) % 6, counts=COUNTS[:33]),
        "from_clusters, nested": lambda: Tree.from_clusters([[0, 1], [[2, 3], [4]]], counts=[1, 1, 1, 1, 9]),
        "from_hidden": lambda: Tree.from_hidden(weights, seed=3),
        "from_hidden, float32": lambda: Tree.from_hidden(weights.astype(np.float32), seed=3),
        "from_hidden, torch": lambda: Tree.from_hidden(TORCH[0].array(weights), seed=3),
        "from_state": lambda: Tree.from_state(Tree.huffman(COUNTS).state()),
    }
    for name, make in made.items():

        def run(make: Any = make) -> Any:
            tree = make()
            counts = 1 + below(9, tree.classes, salt="c")
            return tree.children, tree.depths, tree.levels, tuple(tree.paths), tree.expected_depth(counts), repr(tree)

        yield Case(f"Tree.{name}", "numpy", run)


def plans() -> Iterator[Case]:
    """Yield the cases of adaptive_cutoffs and partitions."""
    given = {
        "clusters": {"clusters": 2},
        "batch": {"batch": 32},
        "div_value": {"div_value": 4.0},
        "cost": {"cost": StepCost(call=1e5, least=1e3)},
        "clusters 0": {"clusters": 0},
    }
    zipf = [2**20 // k for k in range(1, 2001)]
    for label, keywords in alone(given):
        yield Case(titled("adaptive_cutoffs", label), "numpy", partial(adaptive_cutoffs, zipf, dim=64, **keywords))
    for most in (1, 5, 100):
        yield Case(f"partitions: {most}", "numpy", partial(partitions, below(40, 300), most=most))


def words() -> Iterator[Case]:
    """Yield cases of training WordVectors, with noise and with a tree."""
    tokens = below(41, 3000, salt="text") % (1 + below(41, 3000, salt="rarer"))
    tokens[::97] = -1
    counts = 1 + np.bincount(tokens[tokens >= 0], minlength=41)
    made: dict[str, dict[str, Any]] = {
        "": {},
        "window 1": {"window": 1},
        "samples 0": {"samples": 0},
        "samples 2, dim 33": {"samples": 2, "dim": 33},
        "dim 16": {"dim": 16},
        "threshold": {"threshold": 0.05},
        "seed": {"seed": 5},
        "sampler": {"sampler": Uniform(41)},
        "tree": {"tree": Tree.huffman(counts)},
        "balanced tree, dim 64": {"tree": Tree.balanced(41), "dim": 64},
    }
    trained: dict[str, dict[str, Any]] = {
        "": {},
        "rates": {"rate": 0.1, "last_rate": 0.01},
        "batch 1": {"batch": 1},
        "batch 200": {"batch": 200},
    }
    for label, keywords in made.items():
        for manner, given in trained.items():

            def run(keywords: Any = keywords, given: Any = given) -> Any:
                model = WordVectors(counts, **{"dim": 12, **keywords})
                losses = [model.train(tokens, **given), model.train(tokens[:500], **given)]
                return losses, np.array(model.vectors), np.array(model.weight)

            yield Case(titled("WordVectors", label), f"numpy {manner}", run)


def cases() -> Iterator[Case]:
    """Yield all digest cases of softargmax/output."""
    for part in (samplers, trees, plans, words, room_output_layers.cases):
        yield from part()
