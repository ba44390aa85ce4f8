"""The digest cases of softargmax/attend: every function, option and pair of options, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from tests.digests.cases import Case, Options, alone, both, chosen, gradients, in_manner, titled, variant
from tests.digests.inputs import NUMPY, TORCH, World, below, kept, scores, uniform

import softargmax as sa

BATCH, HEADS, GROUPS, QUERIES, KEYS, DIM, WIDTH = 2, 4, 2, 9, 21, 8, 6


def options(w: World) -> Options:
    """Return the options of attention."""
    mask = kept(HEADS, QUERIES, KEYS)
    return {
        "scale": {"scale": 0.3},
        "scale per head": {"scale": w.array(0.1 + uniform(HEADS, 1, salt="scale"))},
        "causal": {"causal": True},
        "window": {"window": (5, 2)},
        "mask": {"mask": w.plain(mask)},
        "bias": {"bias": w.array(scores(HEADS, QUERIES, KEYS, salt="bias", size=1.0))},
        "bias of keys": {"bias": w.array(scores(BATCH, 1, 1, KEYS, salt="bias", size=1.0))},
        "softcap": {"softcap": 2.0},
        "sink": {"sink": w.array(scores(HEADS, salt="sink", size=1.0))},
        "slopes": {"slopes": w.array(0.1 + uniform(HEADS, salt="slopes"))},
        "alpha 1.5": {"alpha": 1.5},
        "alpha per head": {"alpha": w.array(1.0 + uniform(HEADS, 1, salt="alpha"))},
        "dropout": {"dropout": 0.25, "seed": 3},
        "key_lengths": {"key_lengths": w.plain(np.array([13, 21]))},
    }


PLACES = "scale", "causal", "window", "softcap"
SEQUENCES = *PLACES, "sink", "alpha 1.5"
PARTS = *PLACES, "scale per head", "mask", "bias", "bias of keys", "slopes", "key_lengths"
SOFTMAX = *PARTS, "sink", "dropout"
STATS = *PARTS, "sink", "alpha 1.5", "alpha per head"


def qkv(w: World, size: float = 2.0) -> tuple[Any, Any, Any]:
    """Return queries, keys and values."""
    return (
        w.array(scores(BATCH, HEADS, QUERIES, DIM, salt="q", size=size)),
        w.array(scores(BATCH, GROUPS, KEYS, DIM, salt="k", size=size)),
        w.array(scores(BATCH, GROUPS, KEYS, WIDTH, salt="v", size=size)),
    )


def dense() -> Iterator[Case]:
    """Yield the cases of attention, and of its variants with lse, state and stats, on dense batches."""
    for name, labels in (("attention", tuple(options(NUMPY[0]))), ("attention_with_lse", SOFTMAX),
                         ("attention_state", PARTS), ("attention_stats", STATS)):  # fmt: skip
        function = getattr(sa, name)
        for w in (*NUMPY, *TORCH):
            given, arrays = chosen(options(w), *labels), qkv(w)
            arrays = arrays[:2] if name == "attention_stats" else arrays
            run = in_manner("grad" if w.is_torch else "", function)
            whole = w.dtype == "float32" or (name == "attention" and w.dtype == "bfloat16")
            for label, keywords in both(given) if whole else alone(given):
                yield Case(titled(name, label), variant(w), partial(run, *arrays, **keywords))
                if w.is_torch and (label in given or not label):
                    yield Case(titled(name, label), variant(w, "alone"), partial(function, *arrays, **keywords))
            if w.is_torch and w.dtype in {"float32", "float64"}:
                for label, keywords in alone(given):
                    for manner in ("second", "forward"):
                        f = in_manner(manner, function)
                        yield Case(titled(name, label), variant(w, manner), partial(f, *arrays, **keywords))
            yield from edge_cases(name, w, run)


def edge_cases(name: str, w: World, run: Callable[..., Any]) -> Iterator[Case]:
    """Yield cases with different sizes and strides, and with NaN and infinities in visible or hidden keys."""
    take = 2 if name == "attention_stats" else 3
    for heads, groups, queries, keys, dim in (
        (1, 1, 1, 1, 1),
        (3, 1, 1, 130, 64),
        (2, 2, 70, 150, 33),
        (2, 1, 5, 0, 4),
    ):
        shapes = (heads, queries, dim), (groups, keys, dim), (groups, keys, dim)
        x = [w.array(scores(*shape, salt=s)) for shape, s in zip(shapes, "qkv", strict=True)][:take]
        for label, keywords in alone({"causal": {"causal": True}}):
            what = titled(name, f"{heads} {groups} {queries} {keys} {dim}" + (f", {label}" if label else ""))
            yield Case(what, variant(w), partial(run, *x, **keywords))
    turned = [np.swapaxes(scores(BATCH, n, h, d, salt=s), 1, 2) for n, h, d, s in
              ((QUERIES, HEADS, DIM, "q"), (KEYS, GROUPS, DIM, "k"), (KEYS, GROUPS, WIDTH, "v"))]  # fmt: skip
    strided = [w.array(x) for x in turned][:take]
    yield Case(titled(name, "strided"), variant(w), partial(run, *strided))
    q, k, v = (scores(BATCH, h, n, d, salt=s) for h, n, d, s in
               ((HEADS, QUERIES, DIM, "q"), (GROUPS, KEYS, DIM, "k"), (GROUPS, KEYS, WIDTH, "v")))  # fmt: skip
    k[0, 0, 4], v[0, 0, 4], k[1, 1, 20, 2], v[0, 1, 20] = np.nan, np.nan, np.inf, -np.inf
    broken = [w.array(x) for x in (q, k, v)][:take]
    hidden = np.ones((QUERIES, KEYS), dtype=bool)
    hidden[:, [4, 20]] = False
    for label, keywords in {
        "seen": {},
        "masked": {"mask": w.plain(hidden)},
        "biased away": {"bias": w.array(np.where(hidden, 0.0, -np.inf))},
        "window": {"window": (3, 0)},
        "nothing seen": {"mask": w.plain(hidden & False)},
    }.items():
        yield Case(titled(name, f"NaN {label}"), variant(w), partial(run, *broken, **keywords))


def vjps() -> Iterator[Case]:
    """Yield the cases of attention_vjp."""
    for w in (*NUMPY, *TORCH):
        given, (q, k, v) = chosen(options(w), *SOFTMAX), qkv(w)
        g = w.array(scores(BATCH, HEADS, QUERIES, WIDTH, salt="g", size=1.0))
        with_lse = {"g_lse": {"g_lse": w.array(scores(BATCH, HEADS, QUERIES, salt="l", size=1.0))}, **given}
        for label, keywords in both(with_lse) if w.dtype in {"float32", "bfloat16"} else alone(with_lse):
            yield Case(titled("attention_vjp", label), variant(w), partial(sa.attention_vjp, *(q, k, v, g), **keywords))
        k_, hidden = np.array(scores(BATCH, GROUPS, KEYS, DIM, salt="k")), np.ones((QUERIES, KEYS), dtype=bool)
        k_[0, 0, 4], hidden[:, 4] = np.nan, False
        x = q, w.array(k_), v, g
        yield Case("attention_vjp: NaN masked", variant(w), partial(sa.attention_vjp, *x, mask=w.plain(hidden)))
        yield Case("attention_vjp: NaN seen", variant(w), partial(sa.attention_vjp, *x))


def sequences() -> Iterator[Case]:
    """Yield the cases of attention_varlen and attention_paged."""
    for w in (*NUMPY, *TORCH):
        given = chosen(options(w), *SEQUENCES)
        packed = (w.array(scores(17, HEADS, DIM, salt="q")), w.array(scores(30, GROUPS, DIM, salt="k")),
                  w.array(scores(30, GROUPS, WIDTH, salt="v")))  # fmt: skip
        ends = w.plain(np.array([0, 4, 4, 12, 17])), w.plain(np.array([0, 7, 9, 20, 30]))
        scales = {"scale per query": {"scale": w.array(0.1 + uniform(HEADS, 17))}}
        f = in_manner("grad" if w.is_torch else "", sa.attention_varlen)
        for label, keywords in both({**given, **scales}) if w.dtype == "float32" else alone({**given, **scales}):
            yield Case(titled("attention_varlen", label), variant(w), partial(f, *packed, *ends, **keywords))
        pages = (w.array(scores(3, HEADS, 2, DIM, salt="q")), w.array(scores(9, 5, GROUPS, DIM, salt="k")),
                 w.array(scores(9, 5, GROUPS, WIDTH, salt="v")))  # fmt: skip
        table = w.plain(below(9, 3, 4)), w.plain(np.array([20, 3, 11]))
        f = in_manner("grad" if w.is_torch else "", sa.attention_paged)
        for label, keywords in both(given) if w.dtype == "float32" else alone(given):
            yield Case(titled("attention_paged", label), variant(w), partial(f, *pages, *table, **keywords))
            if w.is_torch and (label in given or not label):
                yield Case(
                    titled("attention_paged", label),
                    variant(w, "alone"),
                    partial(sa.attention_paged, *pages, *table, **keywords),
                )
        k = np.array(scores(9, 5, GROUPS, DIM, salt="k"))
        k[int(below(9, 3, 4)[0, 0]), 1] = np.nan
        broken = pages[0], w.array(k), pages[2]
        yield Case("attention_paged: NaN", variant(w), partial(sa.attention_paged, *broken, *table))


def scales() -> Iterator[Case]:
    """Yield the cases of entropy_invariant_scale and qk_norm."""
    for w in (*NUMPY, *TORCH):
        n = w.plain(np.arange(9))
        run = in_manner("grad" if w.is_torch else "", sa.entropy_invariant_scale)
        kappa = w.array(uniform(HEADS, 1))
        yield Case("entropy_invariant_scale", variant(w), partial(run, n, 8))
        yield Case("entropy_invariant_scale: kappa", variant(w), partial(run, n, 8, kappa))
        if w.is_torch and w.dtype != "float32":
            continue  # in these dtypes, the bits of torch's mean and its gradient depend on the processor
        q, k, _ = qkv(w)
        run = in_manner("grad" if w.is_torch else "", sa.qk_norm)
        for label, keywords in both({"gain": {"gain": w.array(uniform(DIM))}, "eps": {"eps": 0.1}}):
            yield Case(titled("qk_norm", label), variant(w), partial(run, q, k, **keywords))
    yield Case("entropy_invariant_scale: numbers", "numbers", partial(sa.entropy_invariant_scale, 512, 64, 1.3))


def modules() -> Iterator[Case]:
    """Yield the cases of the torch module, with fixed parameters."""
    import torch

    w = TORCH[0]
    x, context = w.array(scores(2, 7, 16, salt="x", size=1.0)), w.array(scores(2, 9, 12, salt="c", size=1.0))
    built: dict[str, dict[str, Any]] = {
        "": {},
        "groups, causal": {"groups": 2, "causal": True},
        "head_dim, no bias": {"head_dim": 3, "bias": False},
        "window, softcap": {"window": (2, 1), "softcap": 2.0},
        "sink, norm": {"sink": True, "norm": True},
        "scale log": {"scale": "log", "causal": True},
        "alpha": {"alpha": 1.5},
        "learned alpha": {"alpha": torch.nn.Parameter(torch.tensor(1.25))},
        "context": {"context_dim": 12},
    }
    for label, given in built.items():

        def call(given: Any = given) -> Any:
            layer = sa.nn.Attention(16, 4, **given)
            with torch.no_grad():
                for name, parameter in layer.named_parameters():
                    if name != "alpha":
                        parameter.copy_(torch.tensor(scores(*parameter.shape, salt=name, size=0.5)))
            leaf = x.clone().requires_grad_()
            found = layer(leaf, context) if "context_dim" in given else layer(leaf)
            return found, gradients(found, [leaf, *layer.parameters()])

        yield Case(titled("nn.Attention", label), variant(w), call)


def cases() -> Iterator[Case]:
    """Yield all digest cases of softargmax/attend."""
    for part in (dense, vjps, sequences, scales, modules):
        yield from part()
