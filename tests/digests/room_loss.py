"""The digest cases of softargmax/loss: losses of scores, with options, pairs of options and derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from tests.digests import room_loss_layers
from tests.digests.cases import Case, Options, alone, both, chosen, gradients, in_manner, titled, variant
from tests.digests.inputs import NUMPY, TORCH, World, below, edges, kept, scores, uniform
from tests.digests.room_normalize import LAYOUTS, defined

import softargmax as sa

SIZE = 21  # the number of rows, and also of classes, so that the options fit both axes


def options(w: World) -> Options:
    """Return the options of cross_entropy."""
    masses = uniform(SIZE, SIZE, salt="masses")
    return {
        "sum": {"reduction": "sum"},
        "none": {"reduction": "none"},
        "axis": {"axis": 0},
        "masses": {"target": w.array(masses / masses.sum(axis=1, keepdims=True))},
        "ignore": {"ignore_index": int(below(SIZE, SIZE)[1])},
        "weight": {"weight": w.array(uniform(SIZE, salt="weight"))},
        "smoothing": {"label_smoothing": 0.1},
        "z_loss": {"z_loss": 0.01},
        "softcap": {"softcap": 5.0},
        "temperature": {"temperature": 0.7},
        "temperature per row": {"temperature": w.array(0.5 + uniform(SIZE, 1, salt="temperature"))},
        "temperature 0-d": {"temperature": w.array(1.5)},
        "where": {"where": w.plain(kept(SIZE, SIZE) | (np.arange(SIZE) == below(SIZE, SIZE)[:, None]))},
        "dtype": {"dtype": w.other("float64")},
    }


SELECTED = "axis", "ignore", "softcap", "temperature", "temperature per row", "temperature 0-d", "where", "dtype"
DISTILLED = "sum", "none", "axis", "softcap", "temperature", "temperature per row", "where", "dtype"


def targeted(name: str) -> Callable[..., Any]:
    """Return a loss that takes its target as a keyword."""
    function = getattr(sa, name)

    def run(z: Any, *, target: Any, **given: Any) -> Any:
        return function(z, target, **given)

    return run


def of_scores() -> Iterator[Case]:
    """Yield the cases of cross_entropy, its terms and gradient, and of the log-probability of a class."""
    for name in ("cross_entropy", "cross_entropy_terms", "cross_entropy_and_gradient", "selected_log_softmax"):
        for w in (*NUMPY, *TORCH):
            given, z, target = options(w), w.array(scores(SIZE, SIZE)), w.plain(below(SIZE, SIZE))
            if name == "selected_log_softmax":
                given = chosen(given, *SELECTED)
            run = targeted(name)
            tracked = w.is_torch and name != "cross_entropy_and_gradient"
            differentiated = in_manner("grad" if tracked else "", run)
            every = w.dtype == "float32" or (name == "cross_entropy" and w.dtype == "bfloat16")
            for label, keywords in both(given) if every else alone(given):
                what, a = titled(name, label), {"target": target, **keywords}
                yield Case(what, variant(w), partial(differentiated, z, **a))
                if tracked and (label in given or not label):
                    yield Case(what, variant(w, "alone"), partial(run, z, **a))
            yield from over_edges(name, w, differentiated)
            yield from over_layouts(name, w, differentiated)
            if tracked and w.dtype != "float16":
                for label, keywords in alone(given):
                    for manner in ("second", "forward"):
                        f, a = in_manner(manner, run), {"target": target, **keywords}
                        yield Case(titled(name, label), variant(w, manner), partial(f, z, **a))
        for w in (NUMPY[1], TORCH[0]):
            z, target = w.array(scores(SIZE, SIZE)), w.plain(below(SIZE, SIZE))
            f = in_manner("grad" if w.is_torch and name != "cross_entropy_and_gradient" else "", targeted(name))
            for label, keywords in alone(chosen(options(w), *SELECTED) if "selected" in name else options(w)):
                yield Case(titled(name, label), variant(w, "definition"), defined(f, z, {"target": target, **keywords}))


def over_edges(name: str, w: World, run: Callable[..., Any]) -> Iterator[Case]:
    """Yield cases with infinities, NaN and empty rows, targets in and outside the support, and errors."""
    z, reduced = w.array(edges(SIZE)), {} if "selected" in name else {"reduction": "none"}
    more: Options = {
        "temperature": {"temperature": -1.0},
        "softcap": {"softcap": 5.0},
        "where": {"where": w.plain(kept(10, SIZE))},
        **({} if "selected" in name else {"smoothing": {"label_smoothing": 0.1}, "z_loss": {"z_loss": 0.1}}),
    }
    for label, keywords in alone(more):
        for salt in ("", "other"):
            target = below(SIZE, 10, salt=salt)
            target[:3] = (3, 4, 5) if salt else target[:3]
            what = titled(name, f"edges {salt}" + (f", {label}" if label else ""))
            a = {"target": w.plain(target), **reduced, **keywords}
            yield Case(what, variant(w), partial(run, z, **a))
    ignored = w.plain(np.full(10, -100))
    for reduction in ("mean", "sum", "none")[: 1 if "selected" in name else 3]:
        a = {"target": ignored, **({} if "selected" in name else {"reduction": reduction})}
        yield Case(titled(name, f"all ignored, {reduction}"), variant(w), partial(run, z, **a))
    outside = w.plain(np.full(10, SIZE))
    yield Case(titled(name, "no such class"), variant(w), partial(run, z, target=outside))


def over_layouts(name: str, w: World, run: Callable[..., Any]) -> Iterator[Case]:
    """Yield cases with different strides, shapes and sizes."""
    if w.dtype not in {"float32", "bfloat16"}:
        return
    for layout, lay in LAYOUTS.items():
        z = lay(w.array(scores(4, 37)))
        axis = 1 if z.ndim == 3 else -1
        rows = [n for i, n in enumerate(z.shape) if i != axis % max(1, z.ndim)] if z.ndim else []
        target = w.plain(below(max(1, z.shape[axis] if z.ndim else 1), *rows))
        yield Case(titled(name, layout), variant(w), partial(run, z, target=target, axis=axis))
    for rows, columns in ((2, 20_001), (300, 7), (1, 70_003), (9, 1000)):
        z, target = w.array(scores(rows, columns)), w.plain(below(columns, rows))
        yield Case(titled(name, f"{rows} x {columns}"), variant(w), partial(run, z, target=target))
        smooth = {} if "selected" in name else {"label_smoothing": 0.1, "z_loss": 0.01}
        yield Case(
            titled(name, f"{rows} x {columns} along the first"),
            variant(w),
            partial(run, z.T, target=target, axis=0, **smooth),
        )
    yield Case(
        titled(name, "int32 classes"),
        variant(w),
        partial(run, w.array(scores(5, 9)), target=w.plain(below(9, 5).astype(np.int32))),
    )


def distilled() -> Iterator[Case]:
    """Yield the cases of distillation."""
    for w in (*NUMPY, *TORCH):
        z, teacher = w.array(scores(SIZE, SIZE)), w.array(scores(SIZE, SIZE, salt="teacher"))
        given = {**chosen(options(w), *DISTILLED), "no scale": {"scale": False}}
        run = in_manner("grad" if w.is_torch else "", sa.distillation)
        for divergence in ("forward", "reverse", "js"):
            name = f"distillation {divergence}"
            for label, keywords in both(given) if w.dtype == "float32" else alone(given):
                a = {"divergence": divergence, **keywords}
                yield Case(titled(name, label), variant(w), partial(run, z, teacher, **a))
            for i, shift in enumerate((0, 3)):
                z_, t_ = w.array(edges(SIZE)), w.array(np.roll(edges(SIZE), shift, axis=0))
                a = {"divergence": divergence, "reduction": "none"}
                yield Case(titled(name, f"edges {i}"), variant(w), partial(run, z_, t_, **a))
            z_, t_ = w.array(scores(3, 5003)), w.array(scores(3, 5003, salt="t"))
            yield Case(titled(name, "3 x 5003"), variant(w), partial(run, z_, t_, divergence=divergence))
            t_ = w.array(scores(SIZE, salt="one teacher"))
            yield Case(titled(name, "one teacher"), variant(w), partial(run, z, t_, divergence=divergence))
            if w.is_torch and w.dtype != "float16":
                for label, keywords in alone(given):
                    for manner in ("second", "forward"):
                        f, a = in_manner(manner, sa.distillation), {"divergence": divergence, **keywords}
                        yield Case(titled(name, label), variant(w, manner), partial(f, z, teacher, **a))
            if w in {NUMPY[1], TORCH[0]}:
                for label, keywords in alone(given):
                    a = {"teacher": teacher, "divergence": divergence, **keywords}
                    f = in_manner(
                        "grad" if w.is_torch else "", lambda z, *, teacher, **a: sa.distillation(z, teacher, **a)
                    )
                    yield Case(titled(name, label), variant(w, "definition"), defined(f, z, a))


def mapped() -> Iterator[Case]:
    """Yield cases under vmap, and gradients by torch.func.grad."""
    import torch

    for w in TORCH[:3]:
        z, target = w.array(scores(SIZE, SIZE)), w.plain(below(SIZE, SIZE))
        for name in ("cross_entropy", "cross_entropy_terms", "selected_log_softmax"):
            function = getattr(sa, name)
            few = "smoothing", "z_loss", "softcap", "temperature", "weight"
            for label, keywords in alone({} if "selected" in name else chosen(options(w), *few)):

                def run(function: Any = function, z: Any = z, target: Any = target, keywords: Any = keywords) -> Any:
                    def total(z: Any, target: Any) -> Any:
                        found = function(z, target, **keywords)
                        return found.loss if hasattr(found, "loss") else found

                    rows = torch.func.vmap(lambda z, t: function(z, t, **keywords))(z, target)
                    return rows, torch.func.vmap(torch.func.grad(total))(z, target)

                yield Case(titled(name, label), variant(w, "vmap"), run)


def modules() -> Iterator[Case]:
    """Yield the cases of the torch modules."""
    import torch

    w, nn = TORCH[0], sa.nn
    z, target = w.array(scores(SIZE, SIZE)), w.plain(below(SIZE, SIZE))
    z3, target3 = w.array(scores(3, SIZE, 5)), w.plain(below(SIZE, 3, 5))
    weight, where = w.array(uniform(SIZE, salt="weight")), options(w)["where"]["where"]
    built = {
        "": nn.CrossEntropyLoss(),
        "weight": nn.CrossEntropyLoss(weight),
        "smoothing, none": nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none"),
        "z_loss, sum": nn.CrossEntropyLoss(z_loss=0.01, reduction="sum"),
        "softcap, ignore": nn.CrossEntropyLoss(softcap=5.0, ignore_index=3),
        "learned temperature": nn.CrossEntropyLoss(temperature=torch.nn.Parameter(torch.tensor(0.75))),
    }
    for label, module in built.items():
        for shape, scored, classes, mask in (
            ("", z, target, None),
            ("where", z, target, where),
            ("3", z3, target3, None),
        ):

            def call(module: Any = module, z: Any = scored, classes: Any = classes, mask: Any = mask) -> Any:
                leaf = z.clone().requires_grad_()
                found = module(leaf, classes, mask)
                return found, gradients(found, [leaf, *module.parameters()])

            yield Case(titled("nn.CrossEntropyLoss", label), variant(w, shape), call)
    h, matrix = w.array(scores(6, 8, size=1.0)), w.array(scores(SIZE, 8, salt="w", size=1.0))
    for label, module in {
        "": nn.LinearCrossEntropyLoss(),
        "exact, weight": nn.LinearCrossEntropyLoss(weight, exact=True),
        "options": nn.LinearCrossEntropyLoss(label_smoothing=0.1, z_loss=0.01, softcap=5.0, reduction="sum"),
        "learned temperature": nn.LinearCrossEntropyLoss(temperature=torch.nn.Parameter(torch.tensor(0.75))),
    }.items():

        def linear(module: Any = module) -> Any:
            leaves = [h.clone().requires_grad_(), matrix.clone().requires_grad_(), weight.clone().requires_grad_()]
            found = module(leaves[0], leaves[1], target[:6], leaves[2])
            return found, gradients(found, [*leaves, *module.parameters()])

        yield Case(titled("nn.LinearCrossEntropyLoss", label), variant(w), linear)


def cases() -> Iterator[Case]:
    """Yield all digest cases of softargmax/loss."""
    for part in (of_scores, distilled, mapped, modules, room_loss_layers.cases):
        yield from part()
