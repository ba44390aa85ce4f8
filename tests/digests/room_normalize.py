"""The digest cases of softargmax/normalize: every function, option and pair of options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from tests.digests.cases import Case, Options, alone, both, chosen, in_manner, titled, variant
from tests.digests.inputs import NUMPY, TORCH, World, below, edges, kept, scores, uniform

import softargmax as sa

ROWS, COLUMNS = 4, 37
FAMILY = ("axis", "axes", "temperature", "temperature per row", "temperature 0-d", "temperature 0", "temperature -2",
          "base", "where")  # fmt: skip


def options(w: World) -> Options:
    """Return the options of all functions. Each function has some of them."""
    return {
        "axis": {"axis": 0},
        "axes": {"axis": None},
        "temperature": {"temperature": 0.7},
        "temperature per row": {"temperature": w.array([[0.5], [1.0], [3.0], [-1.0]])},
        "temperature 0-d": {"temperature": w.array(0.7)},
        "temperature 0": {"temperature": 0.0},
        "temperature -2": {"temperature": -2.0},
        "temperature inf": {"temperature": float("inf")},
        "base": {"base": 2.0},
        "base half": {"base": 0.5},
        "where": {"where": w.plain(kept(ROWS, COLUMNS))},
        "where rows": {"where": w.plain(kept(COLUMNS))},
        "dtype": {"dtype": w.other("float64")},
        "dtype float32": {"dtype": w.other("float32")},
        "keepdims": {"keepdims": True},
        "weights": {"weights": w.array(np.maximum(scores(COLUMNS, salt="weights"), 0.0))},
    }


def into(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `function` with a new `out`.

    The returned function returns a pair: True if the result is the object `out`, and `out`.
    """

    def run(z: Any, **given: Any) -> Any:
        out = z.clone() if hasattr(z, "clone") else z.copy()
        out[...] = 0
        if "dtype" in given:
            out = out.to(given["dtype"]) if hasattr(out, "to") else out.astype(given["dtype"])
        found = function(z, out=out, **given)
        return found is out, out

    return run


def over_itself(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `function` with a copy of the scores, which is also `out`."""

    def run(z: Any, **given: Any) -> Any:
        z = z.clone() if hasattr(z, "clone") else z.copy()
        return function(z, out=z, **given)

    return run


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "softmax": (sa.softmax, (*FAMILY, "temperature inf", "base half", "where rows", "dtype", "dtype float32")),
    "log_softmax": (sa.log_softmax, (*FAMILY, "temperature inf", "base half", "where rows", "dtype", "dtype float32")),
    "softmin": (
        sa.softmin,
        ("axis", "temperature per row", "temperature 0-d", "temperature inf", "base", "where", "dtype"),
    ),
    "hardmax": (sa.hardmax, ("axis", "axes", "where")),
    "softmax_with_lse": (sa.softmax_with_lse, (*FAMILY, "dtype")),
    "logsumexp": (sa.logsumexp, (*FAMILY, "temperature inf", "where rows", "keepdims", "weights", "dtype")),
    "entropy": (sa.entropy, FAMILY),
    "renyi_entropy 0.7": (partial(sa.renyi_entropy, order=0.7), (*FAMILY, "keepdims")),
    "renyi_entropy 2": (partial(sa.renyi_entropy, order=2.0), FAMILY),
    "spatial_soft_argmax": (
        partial(sa.spatial_soft_argmax, axis=-1),
        ("axes", "temperature", "temperature 0", "where"),
    ),
    "softmax_jacobian": (sa.softmax_jacobian, ("axis", "temperature", "temperature per row", "temperature 0", "base")),
    "soft_argmax": (sa.soft_argmax, tuple(x for x in FAMILY if x not in {"base", "temperature -2"})),
    "logcumsumexp": (
        sa.logcumsumexp,
        ("axis", "temperature", "temperature per row", "temperature -2", "temperature 0", "temperature inf", "where"),
    ),
}
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "fortran": lambda z: np.asfortranarray(z) if isinstance(z, np.ndarray) else z.T.contiguous().T,
    "every second": lambda z: z[:, ::2],
    "one row": lambda z: z[0],
    "one column": lambda z: z[:, :1],
    "no columns": lambda z: z[:, :0],
    "no rows": lambda z: z[:0],
    "three axes": lambda z: z[:, :36].reshape(4, 4, 9),
    "number": lambda z: z[0, 0],
}


def over_options() -> Iterator[Case]:
    """Yield cases of every option and pair of options, with values and gradients, and cases of edge rows."""
    for name, (function, labels) in FUNCTIONS.items():
        for w in (*NUMPY, *TORCH):
            given, z = chosen(options(w), *labels), w.array(scores(ROWS, COLUMNS))
            for label, keywords in both(given) if w.dtype == "float32" else alone(given):
                what, run = titled(name, label), in_manner("grad" if w.is_torch else "", function)
                yield Case(what, variant(w), partial(run, z, **keywords))
                if w.is_torch and label in given:
                    yield Case(what, variant(w, "alone"), partial(function, z, **keywords))
        for w in (*NUMPY, *TORCH):
            given, z = chosen(options(w), *labels), w.array(edges())
            picked = {x: given[x] for x in ("temperature", "temperature -2", "temperature 0", "axis") if x in given}
            for label, keywords in alone(picked):
                what = titled(name, f"edges, {label}" if label else "edges")
                run = in_manner("grad" if w.is_torch else "", function)
                yield Case(what, variant(w), partial(run, z, **keywords))


def with_out() -> Iterator[Case]:
    """Yield cases of `out=` with the other options."""
    for name, function in (("softmax", sa.softmax), ("log_softmax", sa.log_softmax), ("softmin", sa.softmin)):
        for w in (NUMPY[0], NUMPY[2], TORCH[0], TORCH[2]):
            z = w.array(scores(ROWS, COLUMNS))
            for label, keywords in alone(chosen(options(w), *FAMILY, "dtype")):
                run = into(function)
                yield Case(titled(name, f"out, {label}"), variant(w), partial(run, z, **keywords))
            run = over_itself(function)
            yield Case(titled(name, "out is z"), variant(w), partial(run, z))
            yield Case(titled(name, "out is z, axis"), variant(w), partial(run, z, axis=0))


def over_layouts() -> Iterator[Case]:
    """Yield cases with different strides, shapes and sizes."""
    for name, (function, labels) in FUNCTIONS.items():
        for w in (NUMPY[0], TORCH[2]):
            for layout, lay in LAYOUTS.items():
                z = lay(w.array(scores(ROWS, COLUMNS)))
                axes: list[tuple[str, Any]] = [("", -1)] if layout != "three axes" else [("axis 1", 1), ("axis 0", 0)]
                if "axes" in labels and layout == "three axes":
                    axes.append(("axes 0, 2", (0, 2)))
                for label, axis in axes:
                    what = titled(name, f"{layout}, {label}" if label else layout)
                    run = in_manner("grad" if w.is_torch else "", function)
                    yield Case(what, variant(w), partial(run, z, axis=axis))
        for rows, columns in ((2, 20_001), (300, 7), (1, 70_003), (9, 1000)):
            if name == "softmax_jacobian":
                continue
            for w in (NUMPY[0], NUMPY[1], TORCH[2]):
                z, run = w.array(scores(rows, columns)), in_manner("grad" if w.is_torch else "", function)
                yield Case(titled(name, f"{rows} x {columns}"), variant(w), partial(run, z))
        z = np.asfortranarray(scores(300, 200).astype(np.float32))
        yield Case(titled(name, "300 x 200 along the first"), "numpy float32", partial(function, z, axis=0))
        yield Case(titled(name, "integers"), "numpy int64", partial(function, below(9, 3, 8)))
        yield Case(titled(name, "lists"), "lists", partial(function, [[1.0, 2.0, 8.0], [3.0, 1.0, 1.0]]))


def derivatives() -> Iterator[Case]:
    """Yield cases of second derivatives, forward mode and vmap, for the options that affect derivatives."""
    for name in (
        "softmax",
        "log_softmax",
        "softmin",
        "softmax_with_lse",
        "logsumexp",
        "entropy",
        "soft_argmax",
        "logcumsumexp",
        "renyi_entropy 0.7",
        "renyi_entropy 2",
    ):
        function, labels = FUNCTIONS[name]
        for w in TORCH[:3]:
            z = w.array(scores(ROWS, COLUMNS))
            few = (
                "temperature",
                "temperature per row",
                "temperature 0-d",
                "temperature 0",
                "where",
                "axis",
                "base",
                "weights",
            )
            for label, keywords in alone(chosen(chosen(options(w), *few), *labels)):
                for manner in ("second", "forward", "vmap"):
                    if manner == "vmap" and label not in {"", "temperature", "base"}:
                        continue
                    run = in_manner(manner, function)
                    yield Case(titled(name, label), variant(w, manner), partial(run, z, **keywords))


def others() -> Iterator[Case]:
    """Yield the cases of functions with other arguments."""
    for w in (*NUMPY, *TORCH):
        run = in_manner("grad" if w.is_torch else "", lambda f, *given, **keywords: f(*given, **keywords))
        z, e = w.array(scores(ROWS, COLUMNS)), w.array(edges())
        given = chosen(options(w), *FAMILY, "keepdims", "weights")
        yield from divergences(w, run)
        signs = w.array(scores(COLUMNS, salt="signs"))
        for label, keywords in both(chosen(given, "axes", "where", "keepdims")):
            yield Case(
                titled("signed_logsumexp", label), variant(w), partial(run, sa.signed_logsumexp, z, signs, **keywords)
            )
        for label, keywords in both({**chosen(given, "axis", "axes", "where", "weights"), "k": {"k": 0.5}}):
            for t in (1.5, -1.0) if label else (1.5, 0.0, float("inf"), -1.0):
                yield Case(
                    titled("boltzmann", f"T = {t}" + (f", {label}" if label else "")),
                    variant(w),
                    partial(run, sa.boltzmann, z, t, **keywords),
                )
        yield Case("boltzmann: edges", variant(w), partial(run, sa.boltzmann, e, 0.5))
        for columns in (1, 3):
            values = w.array(scores(COLUMNS, columns, salt="values")[:, 0] if columns == 1
                             else scores(COLUMNS, columns, salt="values"))  # fmt: skip
            for label, keywords in both(chosen(given, "temperature", "temperature per row", "where")):
                what = titled("soft_argmax", f"values {columns}" + (f", {label}" if label else ""))
                yield Case(what, variant(w), partial(run, sa.soft_argmax, z, values, **keywords))
        orders = w.array(np.array([[0.0], [0.5], [1.0], [np.inf]]))
        yield Case(titled("renyi_entropy", "order per row"), variant(w), partial(run, sa.renyi_entropy, z, orders))
        yield from segments(w, run)
    z = scores(4, 9) + 1j * scores(4, 9, salt="imaginary")
    for label, keywords in alone({"axis": {"axis": 0}, "keepdims": {"keepdims": True}}):
        yield Case(titled("logsumexp", f"complex, {label}"), "numpy complex128", partial(sa.logsumexp, z, **keywords))


def divergences(w: World, run: Callable[..., Any]) -> Iterator[Case]:
    """Yield the cases of kl_divergence."""
    z, q = w.array(scores(ROWS, COLUMNS)), w.array(scores(ROWS, COLUMNS, salt="q"))
    e, shift = w.array(edges()), w.array(edges()[::-1])
    given = options(w)
    for label, keywords in both(chosen(given, "axis", "axes", "where")):
        yield Case(titled("kl_divergence", label), variant(w), partial(run, sa.kl_divergence, z, q, **keywords))
    yield Case("kl_divergence: edges", variant(w), partial(run, sa.kl_divergence, e, shift))
    for label, keywords in both(chosen(options(w), *FAMILY, "temperature inf", "base half")):
        if "temperature" in label or "base" in label:
            yield Case(titled("kl_divergence", label), variant(w), partial(run, sa.kl_divergence, z, q, **keywords))
    for label, keywords in alone(chosen(options(w), "temperature", "temperature 0", "temperature -2")):
        if label:
            yield Case(titled("kl_divergence", f"edges, {label}"), variant(w),
                       partial(run, sa.kl_divergence, e, shift, **keywords))  # fmt: skip


def segments(w: World, run: Callable[..., Any]) -> Iterator[Case]:
    """Yield the cases of the functions on ragged rows."""
    ends = w.plain(np.array([0, 0, 5, 6, 20, 57, 57, 90]))
    for shape in ((90,), (90, 3)):
        z = w.array(scores(*shape))
        temperatures = {"temperature": {"temperature": 0.7}, "temperature -1": {"temperature": -1.0}}
        if len(shape) == 2:
            temperatures["temperature per head"] = {"temperature": w.array([0.5, 1.0, 2.0])}
        for name in ("segment_softmax", "segment_log_softmax", "segment_logsumexp"):
            for label, keywords in alone(temperatures):
                what = titled(name, f"{len(shape)} axes" + (f", {label}" if label else ""))
                yield Case(what, variant(w), partial(run, getattr(sa, name), z, ends, **keywords))
    z = w.array(edges().reshape(-1))
    for name in ("segment_softmax", "segment_log_softmax", "segment_logsumexp"):
        every = w.plain(np.arange(0, 191, 19))
        yield Case(titled(name, "edges"), variant(w), partial(run, getattr(sa, name), z, every))


def definition() -> Iterator[Case]:
    """Yield cases of the reference implementation."""
    for name, (function, labels) in FUNCTIONS.items():
        for w in (NUMPY[1], TORCH[0]):
            z, run = w.array(scores(ROWS, COLUMNS)), in_manner("grad" if w.is_torch else "", function)
            for label, keywords in alone(chosen(options(w), *labels)):
                yield Case(titled(name, label), variant(w, "definition"), defined(run, z, keywords))


def defined(run: Callable[..., Any], z: Any, keywords: dict[str, Any]) -> Callable[[], Any]:
    """Return a call of `run` that uses the reference implementation."""

    def call() -> Any:
        with sa.using("reference"):
            return run(z, **keywords)

    return call


def modules() -> Iterator[Case]:
    """Yield the cases of the torch modules."""
    import torch

    w = TORCH[0]
    z, where = w.array(scores(ROWS, COLUMNS)), w.plain(kept(ROWS, COLUMNS))
    for name in ("Softmax", "LogSoftmax"):
        kind = getattr(sa.nn, name)
        for label, module in {
            "": kind(),
            "dim 0": kind(0),
            "temperature": kind(temperature=0.5),
            "learned": kind(temperature=torch.nn.Parameter(torch.tensor(0.75))),
            "base, dtype": kind(base=2.0, dtype=torch.float64),
        }.items():

            def call(module: Any = module, where: Any = None) -> Any:
                leaf = z.clone().requires_grad_()
                found = module(leaf, where)
                from tests.digests.cases import gradients

                return found, gradients(found, [leaf, *module.parameters()])

            yield Case(titled(f"nn.{name}", label), "torch float32", call)
            yield Case(titled(f"nn.{name}", label), "torch float32 where", partial(call, where=where))


def state() -> Iterator[Case]:
    """Yield the cases of State."""
    for w in (NUMPY[0], NUMPY[1], TORCH[0]):
        z, v = w.array(scores(ROWS, COLUMNS)), w.array(uniform(ROWS, COLUMNS, 3))

        def run(z: Any = z, v: Any = v, width: Any = None) -> Any:
            empty = sa.State.empty((ROWS,), width=width, like=z)
            parts = [(z[:, i : i + 9], None if width is None else v[:, i : i + 9]) for i in range(0, COLUMNS, 9)]
            folded = [empty.fold(*part) for part in parts]
            whole = folded[0].merge(*folded[1:])
            return folded, whole, whole.finalize(), empty.finalize(), empty.merge(whole).l

        yield Case("State", variant(w), run)
        yield Case("State: values", variant(w), partial(run, width=3))


def cases() -> Iterator[Case]:
    """Yield all digest cases of softargmax/normalize."""
    for part in (over_options, with_out, over_layouts, derivatives, others, definition, modules, state):
        yield from part()
