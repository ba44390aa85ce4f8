"""The digest cases of softargmax/structure: every function, option and result, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from tests.digests.cases import Case, Options, alone, in_manner, titled, variant
from tests.digests.inputs import NUMPY, TORCH, World, below, scores, uniform

import softargmax as sa

ITEMS, LENGTH, TAGS = 5, 7, 6
SHAPES = tuple(
    ((3, rows, depth), (3, depth, cols))
    for rows, depth, cols in (
        (5, 7, 4), (1, 1, 1), (33, 70, 40), (2, 0, 3), (1, 64, 1), (40, 1, 40), (3, 200, 2), (16, 16, 16), (17, 31, 65)
    )
)  # fmt: skip


def temperatures(w: World) -> Options:
    """Return the options of `log_matmul`."""
    return {
        "T 0": {"temperature": 0.0},
        "T 0.7": {"temperature": 0.7},
        "T -1.3": {"temperature": -1.3},
        "base 2": {"base": 2.0},
        "T per item": {"temperature": w.array(0.5 + uniform(3, salt="temperature"))},
    }


def products() -> Iterator[Case]:
    """Yield the cases of `log_matmul`."""
    for w in (*NUMPY, *TORCH):
        run = in_manner("grad" if w.is_torch else "", sa.log_matmul)
        for shapes in SHAPES:
            a, b = (scores(*shape, salt=salt) for shape, salt in zip(shapes, "ab", strict=True))
            for label, given in alone(temperatures(w)):
                what = titled("log_matmul", f"{shapes[0]}" + (f", {label}" if label else ""))
                yield Case(what, variant(w), partial(run, w.array(a), w.array(b), **given))
        a, b = scores(3, 5, 7, salt="a", size=400.0), scores(3, 7, 4, salt="b", size=400.0)
        a[0, 1], a[1, 2, 3], b[1, 0, 1], b[2, :, 1] = -np.inf, np.nan, np.inf, -np.inf
        yield Case(titled("log_matmul", "far, infinite"), variant(w), partial(run, w.array(a), w.array(b)))
        if w.is_torch and w.dtype in {"float32", "float64"}:
            for manner in ("second", "forward"):
                f = in_manner(manner, sa.log_matmul)
                yield Case("log_matmul", variant(w, manner), partial(f, w.array(a[:, :, :4] / 99), w.array(b[:, :4])))


OF_CHAINS: dict[str, Callable[..., Any]] = {
    "log_z": lambda chain, _: chain.log_z,
    "marginals": lambda chain, _: chain.marginals(),
    "pair_marginals": lambda chain, _: chain.pair_marginals(),
    "entropy": lambda chain, _: chain.entropy(),
    "log_prob": lambda chain, tags: chain.log_prob(tags),
    "best": lambda chain, _: tuple(chain.best()),
    "best 4": lambda chain, _: tuple(chain.best(4)),
    "sample": lambda chain, _: chain.sample(3, seed=9),
}


def chains() -> Iterator[Case]:
    """Yield the cases of `linear_chain`."""
    steps, dead = scores(ITEMS, LENGTH - 1, TAGS, TAGS, salt="steps"), scores(ITEMS, LENGTH, TAGS, salt="dead")
    dead[0, 2], dead[1, 3, 1], dead[2, 0, 0] = -np.inf, np.nan, np.inf
    shared = scores(TAGS, TAGS, salt="transitions")
    emissions = scores(ITEMS, LENGTH, TAGS, salt="emissions")
    forbidden = np.where(shared < -2.0, -np.inf, shared)
    for w in (*NUMPY, *TORCH):
        tags, lengths = w.plain(below(TAGS, ITEMS, LENGTH, salt="tags")), w.plain(np.array([7, 4, 1, 0, 6]))
        ends = {"start": w.array(shared[0]), "end": w.array(shared[1])}
        for label, e, t, given in (
            ("", emissions, shared, {}),
            ("lengths, ends", emissions, shared, {"lengths": lengths, **ends}),
            ("steps", emissions, steps, {"lengths": lengths}),
            ("forbidden", emissions, forbidden, {}),
            ("infinite", dead, shared, {}),
            ("far", emissions * 300.0, shared * 300.0, {}),
            ("one position", emissions[:, :1], shared, {}),
            ("one tag", emissions[:, :, :1], shared[:1, :1], {}),
            ("two tags", emissions[:, :, :2], shared[:2, :2], {"lengths": lengths}),
            ("many tags", scores(ITEMS, LENGTH, 37, salt="many"), scores(37, 37, salt="many steps"), {}),
            ("steps of items", emissions, steps[:1], {"lengths": lengths}),
            ("no position", emissions[:, :0], shared, {}),
        ):
            for name, result in OF_CHAINS.items():

                def call(e: Any, t: Any, result: Callable[..., Any] = result, tags: Any = tags, **given: Any) -> Any:
                    return result(sa.linear_chain(e, t, **given), tags)

                differentiable = name not in {"best", "best 4", "sample"}
                run = in_manner("grad" if w.is_torch and differentiable else "", call)
                what = titled(f"linear_chain {name}", label)
                yield Case(what, variant(w), partial(run, w.array(e), w.array(t), **given))


OF_GRAPHS: dict[str, Callable[..., Any]] = {
    "log_z": lambda graph, _: graph.log_z,
    "marginals": lambda graph, _: graph.marginals(),
    "marginal": lambda graph, _: graph.marginal("ca"),
    "entropy": lambda graph, _: graph.entropy(),
    "log_prob": lambda graph, values: graph.log_prob(values),
    "best": lambda graph, _: tuple(graph.best()),
    "sample": lambda graph, _: graph.sample(3, seed=9),
}


GRAPHS = {
    "ring": ("nab,nbc,ca,b->n", ((4, 2, 3), (4, 3, 5), (5, 2), (3,))),
    "chain": ("nab,bc,cd->n", ((4, 2, 3), (3, 2), (2, 3))),
    "tree": ("na,ab,ac,ad->n", ((4, 3), (3, 2), (3, 4), (3, 2))),
    "square": ("nab,bc,cd,da->n", ((4, 2, 2), (2, 2), (2, 2), (2, 2))),
    "three of one": ("nabc,c->n", ((4, 2, 3, 4), (4,))),
}


def graphs() -> Iterator[Case]:
    """Yield the cases of `log_einsum` and `factor_graph`."""
    temperatures = {"T 0.8": {"temperature": 0.8}, "T 3": {"temperature": 3.0}}
    for w in (*NUMPY, *TORCH):
        for graph, (subscripts, shapes) in GRAPHS.items():
            x = [w.array(scores(*shape, salt=f"{graph} {i}", size=2.0)) for i, shape in enumerate(shapes)]
            for to in ("", "b", "ca"):
                for label, given in alone({"T 0": {"temperature": 0.0}, **temperatures}):
                    run = in_manner("grad" if w.is_torch else "", partial(sa.log_einsum, subscripts + to))
                    what = titled("log_einsum", f"{graph} {to}" + (f", {label}" if label else ""))
                    yield Case(what, variant(w), partial(run, *x, **given))
            for label, given in alone(temperatures):
                values = w.plain(below(2, 4, len(sa.factor_graph(subscripts, *x).variables), salt="values"))
                for name, result in OF_GRAPHS.items():

                    def call(
                        *x: Any,
                        result: Callable[..., Any] = result,
                        values: Any = values,
                        subscripts: str = subscripts,
                        given: Any = given,
                    ) -> Any:
                        return result(sa.factor_graph(subscripts, *x, **given), values)

                    run = in_manner("grad" if w.is_torch and name not in {"best", "sample"} else "", call)
                    what = titled(f"factor_graph {name}", graph + (f", {label}" if label else ""))
                    yield Case(what, variant(w), partial(run, *x))


def cases() -> Iterator[Case]:
    """Yield all digest cases of softargmax/structure."""
    for part in (products, chains, graphs):
        yield from part()
