"""The digest cases of softargmax/sparse: maps, thresholds, losses, every option and pair of options."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from tests.digests.cases import Case, Options, alone, both, chosen, gradients, in_manner, titled, variant
from tests.digests.inputs import NUMPY, TORCH, World, below, edges, kept, scores, uniform
from tests.digests.room_normalize import LAYOUTS, defined, into, over_itself

import softargmax as sa

ROWS, COLUMNS = 4, 37
SQUARE = 21  # the number of rows, and also of classes, so that the options fit both axes


def options(w: World) -> Options:
    """Return the options of the maps."""
    return {
        "axis": {"axis": 0},
        "axes": {"axis": None},
        "where": {"where": w.plain(kept(ROWS, COLUMNS))},
        "alpha 1": {"alpha": 1.0},
        "alpha 1.25": {"alpha": 1.25},
        "alpha 2": {"alpha": 2.0},
        "alpha 3": {"alpha": 3.0},
        "alpha per row": {"alpha": w.array([[1.0], [1.3], [2.0], [4.0]])},
        "alpha 0-d": {"alpha": w.array(1.75)},
    }


def of_losses(w: World) -> Options:
    """Return the options of the losses."""
    masses = uniform(SQUARE, SQUARE, salt="masses")
    return {
        "sum": {"reduction": "sum"},
        "none": {"reduction": "none"},
        "axis": {"axis": 0, "target": w.plain(below(SQUARE, SQUARE))},
        "masses": {"target": w.array(masses / masses.sum(axis=1, keepdims=True))},
        "ignore": {"ignore_index": int(below(SQUARE, SQUARE)[1])},
        "weight": {"weight": w.array(uniform(SQUARE, salt="weight"))},
        "smoothing": {"label_smoothing": 0.1},
        "where": {"where": w.plain(kept(SQUARE, SQUARE))},
        "dtype": {"dtype": w.other("float64")},
        **{label: given for label, given in options(w).items() if label.startswith("alpha") and "row" not in label},
        "alpha per row": {"alpha": w.array(1.0 + below(4, SQUARE, 1, salt="alpha") / 2)},
    }


MAPS = {"sparsemax": sa.sparsemax, "entmax": sa.entmax, "threshold": sa.threshold}


def of(name: str, w: World) -> Options:
    """Return the options of a map."""
    return {label: given for label, given in options(w).items() if name != "sparsemax" or not label.startswith("alpha")}


def maps() -> Iterator[Case]:
    """Yield cases of values, gradients and second derivatives of entmax, sparsemax and threshold."""
    for name, function in MAPS.items():
        for w in (*NUMPY, *TORCH):
            given, z, e = of(name, w), w.array(scores(ROWS, COLUMNS, size=2.0)), w.array(edges())
            run = in_manner("grad" if w.is_torch else "", function)
            for label, keywords in both(given) if w.dtype == "float32" else alone(given):
                yield Case(titled(name, label), variant(w), partial(run, z, **keywords))
            for label, keywords in alone(chosen(given, "alpha 1", "alpha 2", "alpha 3", "axis")):
                yield Case(titled(name, f"edges, {label}"), variant(w), partial(run, e, **keywords))
            for manner in ("second", "forward", "vmap") if w.is_torch and w.dtype != "float16" else ():
                for label, keywords in alone(given):
                    if manner != "vmap" or label not in {"alpha per row", "axes", "where"}:
                        yield Case(
                            titled(name, label), variant(w, manner), partial(in_manner(manner, function), z, **keywords)
                        )


def over_layouts() -> Iterator[Case]:
    """Yield cases with different strides, shapes and sizes, with `out=`, and of the reference implementation."""
    for name, function in MAPS.items():
        for w in (NUMPY[0], NUMPY[2], TORCH[0]):
            run = in_manner("grad" if w.is_torch else "", function)
            for layout, lay in LAYOUTS.items():
                z = lay(w.array(scores(ROWS, COLUMNS)))
                yield Case(titled(name, layout), variant(w), partial(run, z, axis=-1 if z.ndim < 3 else 1))
            for rows, columns in ((2, 20_001), (300, 7), (9, 1000)):
                z = w.array(scores(rows, columns))
                yield Case(titled(name, f"{rows} x {columns}"), variant(w), partial(run, z))
        for w in (NUMPY[1], TORCH[0]):
            z, run = w.array(scores(ROWS, COLUMNS, size=2.0)), in_manner("grad" if w.is_torch else "", function)
            for label, keywords in alone(of(name, w)):
                yield Case(titled(name, label), variant(w, "definition"), defined(run, z, keywords))
        for w in (NUMPY[0], NUMPY[2], TORCH[0], TORCH[2]) if name != "threshold" else ():
            z = w.array(scores(ROWS, COLUMNS))
            for label, keywords in alone(of(name, w)):
                yield Case(titled(name, f"out, {label}"), variant(w), partial(into(function), z, **keywords))
            yield Case(titled(name, "out is z"), variant(w), partial(over_itself(function), z))


def tempered(w: World, rows: int) -> Options:
    """Return options with a base, or with temperatures: as numbers, and as arrays with one temperature per row."""
    each = np.resize([0.3, 1.0, -2.3, 3.7, float("inf")], (rows, 1))
    return {
        "temperature": {"temperature": 0.7},
        "temperature per row": {"temperature": w.array(each)},
        "temperature 0-d": {"temperature": w.array(0.7)},
        "temperature 0": {"temperature": 0.0},
        "temperature -2": {"temperature": -2.0},
        "base": {"base": 2.0},
        "axis + temperature": {"axis": 0, "temperature": 0.7},
        "where + temperature per row": {"where": w.plain(kept(rows, COLUMNS)), "temperature": w.array(each)},
    }


def with_orders(name: str, given: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each of the given options with the default alpha and, if the map takes alpha, with several others."""
    for label, keywords in given.items():
        yield label, dict(keywords)
        for alpha in (0.5, 1.0, 1.25, 2.0, 3.0) if not name.startswith("sparsemax") else ():
            yield f"alpha {alpha:g} + {label}", {"alpha": alpha, **keywords}


def at_temperatures() -> Iterator[Case]:
    """Yield the cases of the maps with temperatures and bases."""
    for name, function in MAPS.items():
        for w in (*NUMPY, *TORCH):
            run, z, e = (
                in_manner("grad" if w.is_torch else "", function),
                w.array(scores(ROWS, COLUMNS)),
                w.array(edges()),
            )
            for label, keywords in with_orders(name, tempered(w, ROWS)):
                yield Case(titled(name, label), variant(w), partial(run, z, **keywords))
            for label, keywords in with_orders(
                name, chosen(tempered(w, 19), "temperature", "temperature 0", "temperature -2")
            ):
                yield Case(titled(name, f"edges, {label}"), variant(w), partial(run, e, **keywords))
            for rows, columns in ((2, 20_001), (300, 7)):
                keywords = chosen(tempered(w, rows), "temperature", "temperature per row")
                for label, one in with_orders(name, keywords) if w.dtype in {"float32", "float64"} else ():
                    x = w.array(scores(rows, columns))
                    yield Case(titled(name, f"{rows} x {columns}, {label}"), variant(w), partial(run, x, **one))
        for w in (NUMPY[1], TORCH[0]):
            z, run = w.array(scores(ROWS, COLUMNS)), in_manner("grad" if w.is_torch else "", function)
            for label, keywords in with_orders(name, chosen(tempered(w, ROWS), "temperature", "temperature per row")):
                yield Case(titled(name, label), variant(w, "definition"), defined(run, z, keywords))


def losses_at_temperatures() -> Iterator[Case]:
    """Yield the cases of sparsemax_loss and entmax_loss with temperatures."""
    for name in ("sparsemax_loss", "entmax_loss"):
        for w in (*NUMPY, *TORCH):
            run, z, e = (
                in_manner("grad" if w.is_torch else "", _loss(name)),
                w.array(scores(ROWS, COLUMNS)),
                w.array(edges()),
            )
            given = {x: v for x, v in tempered(w, ROWS).items() if x != "base" and "axis" not in x}
            target, of_edges = w.plain(below(COLUMNS, ROWS)), w.plain(below(19, 10))
            for label, keywords in with_orders(name, given):
                yield Case(titled(name, label), variant(w), partial(run, z, target=target, **keywords))
                keywords |= {"label_smoothing": 0.1, "reduction": "none"}
                yield Case(titled(name, f"smoothing, none, {label}"), variant(w),
                           partial(run, z, target=target, **keywords))  # fmt: skip
            for label, keywords in with_orders(name, chosen(tempered(w, 19), "temperature", "temperature 0")):
                keywords |= {"reduction": "none"}
                yield Case(titled(name, f"edges, {label}"), variant(w), partial(run, e, target=of_edges, **keywords))


def topk() -> Iterator[Case]:
    """Yield the cases of topk_softmax."""
    for w in (*NUMPY, *TORCH):
        z = w.array(scores(ROWS, COLUMNS))
        run = in_manner("grad" if w.is_torch else "", sa.topk_softmax)
        temperatures = w.array([[0.5], [1.0], [2.0], [0.0]])
        given = {
            "axis": {"axis": 0},
            "temperature": {"temperature": 0.7},
            "temperature per row": {"temperature": temperatures},
            "where": {"where": w.plain(kept(ROWS, COLUMNS))},
        }
        for k in (1, 3):
            for label, keywords in both(given):
                what = titled("topk_softmax", f"k = {k}" + (f", {label}" if label else ""))
                yield Case(what, variant(w), partial(run, z, k, **keywords))
        each = w.plain(np.array([[1], [2], [5], [37]]))
        yield Case("topk_softmax: k per row", variant(w), partial(run, z, each))


def _loss(name: str) -> Any:
    """Return the loss of this name as a function that takes its target as a keyword."""
    function = getattr(sa, name)

    def run(z: Any, *, target: Any, **given: Any) -> Any:
        return function(z, target, **given)

    return run


def losses() -> Iterator[Case]:
    """Yield the cases of sparsemax_loss and entmax_loss."""
    for name in ("sparsemax_loss", "entmax_loss"):
        for w in (*NUMPY, *TORCH):
            given = {x: v for x, v in of_losses(w).items() if name == "entmax_loss" or not x.startswith("alpha")}
            z, e = w.array(scores(SQUARE, SQUARE, size=2.0)), w.array(edges())
            target, of_edges = w.plain(below(SQUARE, SQUARE)), w.plain(below(19, 10))
            run = in_manner("grad" if w.is_torch else "", _loss(name))
            for label, keywords in both(given) if w.dtype == "float32" else alone(given):
                yield Case(titled(name, label), variant(w), partial(run, z, **{"target": target, **keywords}))
            for label, keywords in alone(chosen(given, "alpha 1", "alpha 2", "smoothing")):
                keywords |= {"target": of_edges, "reduction": "none"}
                yield Case(titled(name, f"edges, {label}"), variant(w), partial(run, e, **keywords))
            if w.is_torch and w.dtype in {"float32", "float64"}:
                for label, keywords in alone(given):
                    for manner in ("second", "forward"):
                        f = in_manner(manner, _loss(name))
                        yield Case(
                            titled(name, label), variant(w, manner), partial(f, z, **{"target": target, **keywords})
                        )
        for w in (NUMPY[1], TORCH[0]):
            z, target = w.array(scores(SQUARE, SQUARE, size=2.0)), w.plain(below(SQUARE, SQUARE))
            run = in_manner("grad" if w.is_torch else "", _loss(name))
            for label, keywords in alone(of_losses(w)):
                if name == "entmax_loss" or not label.startswith("alpha"):
                    yield Case(titled(name, label), variant(w, "definition"),
                               defined(run, z, {"target": target, **keywords}))  # fmt: skip


def modules() -> Iterator[Case]:
    """Yield the cases of the torch modules."""
    import torch

    w, nn = TORCH[0], sa.nn
    z, where = w.array(scores(ROWS, COLUMNS, size=2.0)), w.plain(kept(ROWS, COLUMNS))
    target, weight = w.plain(below(COLUMNS, ROWS)), w.array(uniform(COLUMNS, salt="weight"))
    built = {
        "Sparsemax": (nn.Sparsemax(), ()),
        "Sparsemax: dim": (nn.Sparsemax(0), ()),
        "Entmax": (nn.Entmax(1.3), ()),
        "Entmax: learned": (nn.Entmax(torch.nn.Parameter(torch.tensor(1.5)), dim=(0, 1)), ()),
        "SparsemaxLoss": (nn.SparsemaxLoss(), (target,)),
        "SparsemaxLoss: weight": (nn.SparsemaxLoss(weight, reduction="none"), (target,)),
        "EntmaxLoss": (nn.EntmaxLoss(label_smoothing=0.1, reduction="sum"), (target,)),
        "EntmaxLoss: learned": (nn.EntmaxLoss(torch.nn.Parameter(torch.tensor(1.5)), weight), (target,)),
    }
    for name, (module, extra) in built.items():
        for label, mask in (("", None), ("where", where)):

            def call(module: Any = module, extra: Any = extra, mask: Any = mask) -> Any:
                leaf = z.clone().requires_grad_()
                found = module(leaf, *extra, mask)
                return found, gradients(found, [leaf, *module.parameters()])

            yield Case(f"nn.{name}", variant(w, label), call)


def cases() -> Iterator[Case]:
    """Yield all digest cases of softargmax/sparse."""
    for part in (maps, over_layouts, at_temperatures, topk, losses, losses_at_temperatures, modules):
        yield from part()
