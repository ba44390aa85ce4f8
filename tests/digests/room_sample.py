"""The digest cases of softargmax/sample: draws, filters and noise, with every option and pair of options."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from tests.digests.cases import Case, Options, alone, both, chosen, in_manner, titled, variant
from tests.digests.inputs import NUMPY, TORCH, World, below, edges, kept, scores, uniform
from tests.digests.room_normalize import defined

import softargmax as sa

ROWS, COLUMNS = 5, 37


def options(w: World) -> Options:
    """Return the options of draws and filters."""
    each = uniform(ROWS, 1, salt="each")
    return {
        "temperature": {"temperature": 0.7},
        "temperature 0": {"temperature": 0.0},
        "temperature per row": {"temperature": w.array(0.5 + each)},
        "top_k": {"top_k": 5},
        "top_k per row": {"top_k": w.plain(1 + below(COLUMNS, ROWS, 1))},
        "top_p": {"top_p": 0.8},
        "top_p per row": {"top_p": w.array(0.1 + 0.8 * each)},
        "min_p": {"min_p": 0.05},
        "typical_p": {"typical_p": 0.7},
        "epsilon": {"epsilon": 0.01},
        "eta": {"eta": 0.02},
        "where": {"where": w.plain(kept(ROWS, COLUMNS))},
        "joint": {"order": "joint"},
        "num_samples": {"num_samples": 9},
        "without replacement": {"num_samples": 9, "replace": False},
        "stream": {"stream": w.plain(below(1000, ROWS))},
        "seed": {"seed": 2**63 + 5},
    }


DRAWN = ("temperature", "temperature 0", "temperature per row", "top_k", "top_k per row", "top_p", "top_p per row",
         "min_p", "where", "joint", "num_samples", "without replacement", "stream", "seed")  # fmt: skip
FILTERED = ("temperature", "temperature per row", "top_k", "top_k per row", "top_p", "top_p per row", "min_p",
            "typical_p", "epsilon", "eta", "where", "joint")  # fmt: skip


def draws() -> Iterator[Case]:
    """Yield the cases of categorical, with and without log-probabilities."""
    for name in ("categorical", "categorical_with_logprob"):
        function = getattr(sa, name)
        for w in (*NUMPY, *TORCH):
            given, z = chosen(options(w), *DRAWN), w.array(scores(ROWS, COLUMNS))
            for label, keywords in both(given) if w.dtype == "float32" else alone(given):
                a = {"seed": 3, **keywords}
                yield Case(titled(name, label), variant(w), partial(function, z, **a))
            edge_cases = edges()
            edge_cases[[2, 3]] = 1.0
            for label, keywords in alone(chosen(given, "temperature", "top_k", "top_p", "min_p", "num_samples")):
                a, z_ = {"seed": 3, **keywords}, w.array(edge_cases)
                yield Case(titled(name, f"edges, {label}"), variant(w), partial(function, z_, **a))
            for i in (2, 3):
                yield Case(
                    titled(name, f"row {i} of the edges"), variant(w), partial(function, w.array(edges()[i]), seed=3)
                )
            for shape in ((COLUMNS,), (2, 3, 9), (3, 1), (0, 4), (2, 20_001), (300, 7)):
                z_ = w.array(scores(*shape))
                a = {"seed": 3, "top_p": 0.9}
                yield Case(titled(name, f"shape {shape}"), variant(w), partial(function, z_, seed=3))
                yield Case(titled(name, f"shape {shape}, top_p"), variant(w), partial(function, z_, **a))
        w = NUMPY[1]
        for label, keywords in alone(chosen(options(w), *DRAWN)):
            a, z = {"seed": 3, **keywords}, w.array(scores(ROWS, COLUMNS))
            yield Case(titled(name, label), variant(w, "definition"), defined(function, z, a))
    z = scores(ROWS, COLUMNS)
    yield Case(
        "categorical: generator", "numpy", partial(sa.categorical, z, generator=np.random.Generator(np.random.PCG64(5)))
    )


def filters() -> Iterator[Case]:
    """Yield the cases of filter_scores, with gradients."""
    for w in (*NUMPY, *TORCH):
        given, z = chosen(options(w), *FILTERED), w.array(scores(ROWS, COLUMNS))
        run = in_manner("grad" if w.is_torch else "", sa.filter_scores)
        for label, keywords in both(given) if w.dtype == "float32" else alone(given):
            yield Case(titled("filter_scores", label), variant(w), partial(run, z, **keywords))
        for label, keywords in alone(chosen(given, "top_k", "top_p", "min_p", "typical_p", "epsilon", "eta")):
            yield Case(
                titled("filter_scores", f"edges, {label}"), variant(w), partial(run, w.array(edges()), **keywords)
            )
            yield Case(
                titled("filter_scores", f"3 x 5003, {label}"),
                variant(w),
                partial(run, w.array(scores(3, 5003)), **keywords),
            )


def noise() -> Iterator[Case]:
    """Yield the cases of gumbel and gumbel_softmax."""
    for w in (*NUMPY, *TORCH):
        for shape in (7, (3, 9), (2, 3, 5), (), (0, 3), (2, 5003)):
            yield Case(f"gumbel: {shape}", variant(w), partial(sa.gumbel, shape, like=w.array([1.0]), seed=3))
        z = w.array(scores(ROWS, COLUMNS))
        given: Options = {
            "hard": {"hard": True},
            "axis": {"axis": 0},
            "temperature": {"temperature": 0.3},
            "temperature 0": {"temperature": 0.0},
            "temperature per row": {"temperature": w.array(0.5 + uniform(ROWS, 1))},
            "where": {"where": w.plain(kept(ROWS, COLUMNS))},
            "seed": {"seed": 11},
        }
        run = in_manner("grad" if w.is_torch else "", sa.gumbel_softmax)
        for label, keywords in both(given):
            a = {"seed": 3, **keywords}
            yield Case(titled("gumbel_softmax", label), variant(w), partial(run, z, **a))
        e = w.array(edges())
        yield Case("gumbel_softmax: edges", variant(w), partial(run, e, seed=3))
        yield Case("gumbel_softmax: edges, hard", variant(w), partial(run, e, seed=3, hard=True))
        streams = w.plain(below(99, ROWS))
        yield Case("gumbel_softmax: stream", variant(w), partial(run, z, seed=3, stream=streams))


def policies() -> Iterator[Case]:
    """Yield the cases of boltzmann_policy and speculative_sample."""
    for w in (*NUMPY, *TORCH):
        z = w.array(scores(ROWS, COLUMNS))
        run = in_manner("grad" if w.is_torch else "", sa.boltzmann_policy)
        each = w.array(uniform(ROWS, 1))
        given: Options = {
            "epsilon": {"epsilon": 0.1},
            "epsilon per row": {"epsilon": each},
            "where": {"where": w.plain(kept(ROWS, COLUMNS))},
        }
        for t, temperature in (("1.5", 1.5), ("0", 0.0), ("per row", each + 0.5)):
            for label, keywords in both(given):
                a = {"temperature": temperature, **keywords}
                what = titled("boltzmann_policy", f"T = {t}" + (f", {label}" if label else ""))
                yield Case(what, variant(w), partial(run, z, **a))
        yield Case("boltzmann_policy: edges", variant(w), partial(run, w.array(edges()), temperature=0.5, epsilon=0.1))
        length, classes = 4, 7
        target = w.array(scores(ROWS, length + 1, classes, salt="target", size=2.0))
        draft = w.array(scores(ROWS, length, classes, salt="draft", size=2.0))
        tokens = w.plain(below(classes, ROWS, length))
        more: Options = {
            "temperature": {"temperature": 0.7},
            "temperature 0": {"temperature": 0.0},
            "temperature per row": {"temperature": w.array(0.5 + uniform(ROWS))},
            "top_k": {"top_k": 3},
            "top_p": {"top_p": 0.8},
            "min_p": {"min_p": 0.05},
            "joint": {"order": "joint"},
            "stream": {"stream": w.plain(below(99, ROWS))},
        }
        for label, keywords in both(more) if w.dtype == "float32" else alone(more):
            a: dict[str, Any] = {"seed": 3, **keywords}
            yield Case(
                titled("speculative_sample", label),
                variant(w),
                partial(sa.speculative_sample, target, draft, tokens, **a),
            )


def modules() -> Iterator[Case]:
    """Yield the cases of the module `nn.GumbelSoftmax`, which draws from a torch.Generator."""
    import torch

    w = TORCH[0]
    z = w.array(scores(ROWS, COLUMNS))
    for label, module in {
        "": sa.nn.GumbelSoftmax(),
        "dim": sa.nn.GumbelSoftmax(0, temperature=0.5),
        "hard": sa.nn.GumbelSoftmax(hard=True),
    }.items():
        yield Case(
            titled("nn.GumbelSoftmax", label),
            variant(w),
            partial(module, z, generator=torch.Generator().manual_seed(3)),
        )


def cases() -> Iterator[Case]:
    """Yield all digest cases of softargmax/sample."""
    for part in (draws, filters, noise, policies, modules):
        yield from part()
