"""More digest cases of softargmax/loss: losses of the hidden vectors and weights of a last layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from tests.digests.cases import Case, Options, alone, both, chosen, in_manner, titled, variant
from tests.digests.inputs import NUMPY, TORCH, World, below, kept, scores, uniform
from tests.digests.room_normalize import defined

import softargmax as sa

ROWS, DIM, CLASSES = 13, 8, 21


def options(w: World) -> Options:
    """Return the options of linear_cross_entropy."""
    masses = uniform(ROWS, CLASSES, salt="masses")
    return {
        "bias": {"bias": w.array(scores(CLASSES, salt="bias", size=1.0))},
        "exact": {"exact": True},
        "sum": {"reduction": "sum"},
        "none": {"reduction": "none"},
        "masses": {"target": w.array(masses / masses.sum(axis=1, keepdims=True))},
        "ignore": {"ignore_index": int(below(CLASSES, ROWS)[1])},
        "weight": {"weight": w.array(uniform(CLASSES, salt="weight"))},
        "smoothing": {"label_smoothing": 0.1},
        "z_loss": {"z_loss": 0.01},
        "softcap": {"softcap": 3.0},
        "temperature": {"temperature": 0.7},
        "temperature per row": {"temperature": w.array(0.5 + uniform(ROWS, 1, salt="temperature"))},
        "where": {"where": w.plain(kept(ROWS, CLASSES) | (np.arange(CLASSES) == below(CLASSES, ROWS)[:, None]))},
        "dtype": {"dtype": w.other("float64")},
    }


SELECTED = "bias", "ignore", "softcap", "temperature", "temperature per row", "where", "dtype"
DISTILLED = "sum", "none", "softcap", "temperature", "temperature per row", "where", "dtype"
NAMES = ("linear_cross_entropy", "linear_cross_entropy_terms", "linear_cross_entropy_and_gradient",
         "linear_selected_log_softmax")  # fmt: skip


def targeted(name: str) -> Callable[..., Any]:
    """Return a loss that takes its target as a keyword."""
    function = getattr(sa, name)

    def run(h: Any, w: Any, *, target: Any, **given: Any) -> Any:
        return function(h, w, target, **given)

    return run


def of(name: str, w: World) -> Options:
    """Return the options of a function."""
    given = options(w)
    if "selected" in name:
        return chosen(given, *SELECTED)
    return {label: x for label, x in given.items() if label != "exact" or "terms" not in name}


def layers() -> Iterator[Case]:
    """Yield cases of every option and, for some dtypes, of every pair of options, with all gradients."""
    for name in NAMES:
        for w in (*NUMPY, *TORCH):
            given, target = of(name, w), w.plain(below(CLASSES, ROWS))
            h, matrix = w.array(scores(ROWS, DIM, size=1.5)), w.array(scores(CLASSES, DIM, salt="w", size=1.5))
            tracked = w.is_torch and not name.endswith("and_gradient")
            run = in_manner("grad" if tracked else "", targeted(name))
            whole = w.dtype == "float32" or (name == "linear_cross_entropy" and w.dtype == "bfloat16")
            for label, keywords in both(given) if whole else alone(given):
                a = {"target": target, **keywords}
                yield Case(titled(name, label), variant(w), partial(run, h, matrix, **a))
                if tracked and (label in given or not label):
                    f = targeted(name)
                    yield Case(titled(name, label), variant(w, "alone"), partial(f, h, matrix, **a))
            yield from shapes(name, w, run)
            if w.is_torch and w.dtype in {"float32", "float64"} and tracked:
                for label, keywords in alone(given):
                    for manner in ("second", "forward"):
                        f, a = in_manner(manner, targeted(name)), {"target": target, **keywords}
                        yield Case(titled(name, label), variant(w, manner), partial(f, h, matrix, **a))
            if w in {NUMPY[1], TORCH[0]}:
                for label, keywords in alone(given):
                    a = {"target": target, "w": matrix, **keywords}
                    f = in_manner("grad" if tracked else "", weighted(name))
                    yield Case(titled(name, label), variant(w, "definition"), defined(f, h, a))


def weighted(name: str) -> Callable[..., Any]:
    """Return a loss that takes its weights and target as keywords."""
    run = targeted(name)
    return lambda h, *, w, **given: run(h, w, **given)


def shapes(name: str, w: World, run: Callable[..., Any]) -> Iterator[Case]:
    """Yield cases with other sizes, leading axes, strides, classes with bias -inf, ignored rows and edge rows."""
    for rows, classes, dim in ((1, 3, 1), (70, 300, 33), (3, 5003, 16), (200, 20, 64)):
        if w.dtype == "float16" and rows > 3:
            continue
        h, m = w.array(scores(rows, dim, size=1.0)), w.array(scores(classes, dim, salt="w", size=1.0))
        target = w.plain(below(classes, rows))
        what = titled(name, f"{rows} x {classes} x {dim}")
        yield Case(what, variant(w), partial(run, h, m, target=target))
    h, m = w.array(scores(2, 3, DIM, size=1.5)), w.array(scores(DIM, CLASSES, salt="w", size=1.5)).T
    target = w.plain(below(CLASSES, 2, 3))
    yield Case(titled(name, "axes, strides"), variant(w), partial(run, h, m, target=target))
    h, m = w.array(scores(ROWS, DIM, size=9.0)), w.array(scores(CLASSES, DIM, salt="w", size=9.0))
    target, bias = w.plain(below(CLASSES, ROWS)), scores(CLASSES, salt="bias")
    bias[[2, 5]] = -np.inf
    for label, keywords in alone(
        {"bias -inf": {"bias": w.array(bias)}, "all ignored": {"target": w.plain(np.full(ROWS, -100))}}
    ):
        a = {"target": target, **keywords}
        yield Case(titled(name, f"far, {label}"), variant(w), partial(run, h, m, **a))
    edge_cases = scores(ROWS, DIM)
    edge_cases[1, 2], edge_cases[2, 3], edge_cases[3, :] = np.nan, np.inf, 0.0
    h, reduced = w.array(edge_cases), {} if "selected" in name else {"reduction": "none"}
    yield Case(titled(name, "edges"), variant(w), partial(run, h, m, target=target, **reduced))
    yield Case(titled(name, "no rows"), variant(w), partial(run, h[:0], m, target=target[:0]))
    yield Case(titled(name, "no such class"), variant(w), partial(run, h, m, target=w.plain(np.full(ROWS, CLASSES))))
    if w.is_torch and w.dtype != "float32":  # weights and vectors of different dtypes
        m = w._replace(dtype="float32").array(scores(CLASSES, DIM, salt="w"))
        yield Case(titled(name, "float32 weights"), variant(w), partial(run, h, m, target=target))


def distilled() -> Iterator[Case]:
    """Yield the cases of linear_distillation."""
    for w in (*NUMPY, *TORCH):
        given = {
            **chosen(options(w), *DISTILLED),
            "no scale": {"scale": False},
            "bias_student": {"bias_student": w.array(scores(CLASSES, salt="bias", size=1.0))},
            "bias_teacher": {"bias_teacher": w.array(scores(CLASSES, salt="bias too", size=1.0))},
        }
        student = w.array(scores(ROWS, DIM, size=1.5)), w.array(scores(CLASSES, DIM, salt="w", size=1.5))
        teacher = w.array(scores(ROWS, 5, salt="h", size=1.5)), w.array(scores(CLASSES, 5, salt="w t", size=1.5))
        run = in_manner("grad" if w.is_torch else "", sa.linear_distillation)
        for divergence in ("forward", "reverse", "js"):
            name = f"linear_distillation {divergence}"
            for label, keywords in both(given) if w.dtype == "float32" and divergence == "forward" else alone(given):
                a = {"divergence": divergence, **keywords}
                yield Case(titled(name, label), variant(w), partial(run, *student, *teacher, **a))
            if w in TORCH[:2]:
                for manner in ("second", "forward"):
                    f = in_manner(manner, sa.linear_distillation)
                    yield Case(name, variant(w, manner), partial(f, *student, *teacher, divergence=divergence))


def cases() -> Iterator[Case]:
    """Yield all cases of this file."""
    for part in (layers, distilled):
        yield from part()
