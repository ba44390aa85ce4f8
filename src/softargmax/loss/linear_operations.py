"""Operations for the losses of a last layer's scores. The definitions are in reference_linear.py.

    z = h W^T + b        dh = dz W        dW = dz^T h        db = sum dz

A vjp rule returns the gradients with respect to the arrays of the layer only. For the gradients with respect to the
options, autograd differentiates the definition.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from softargmax.core import _native
from softargmax.core.arrays import followed
from softargmax.core.dispatch import is_native
from softargmax.core.operation import Operation, Together
from softargmax.core.processes import sizes_of
from softargmax.core.record import Gradients, Result, Wanted, gradient
from softargmax.core.row_chunks import cut
from softargmax.core.targets import refuse_class, with_right_classes
from softargmax.loss import kernels, reference_divergence, reference_linear
from softargmax.loss.arguments import (
    Divergence,
    Layer,
    LinearCrossEntropy,
    LinearDivergence,
    LinearTerms,
    LinearTermsVjp,
    LinearVjp,
    LossOptions,
)
from softargmax.loss.operations import divergence
from softargmax.loss.results import Divergences, LinearDivergences, LinearLoss, RowTerms, ToLayer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from softargmax.loss.reference_linear import Part

OF_LAYER = {"h": "h", "w": "w", "bias": "b"}
"""The letters that stand for the arrays of a layer in `forms` and `to`."""


def gradient_letters(names: Collection[str]) -> str:
    """Return the letters of the named arrays of a layer: "h", "w", and "b" for the bias."""
    return "".join(letter for name, letter in OF_LAYER.items() if name in names)


_CLASSES = {"w": -2, "bias": -1, "probabilities": -1, "weight": -1, "where": -1}
"""The axis of the classes in each argument."""
_ROWS = {"h": -2, "target": -1, "probabilities": -2, "where": -2, "beta": -2, "loss": -1, "dh": -2}
"""The axis of the rows in each argument, in the losses of rows, and in the gradient of h."""


def _by_name(found: tuple[Any, ...], to: str) -> Gradients:
    """Return a dict from array name to gradient, for the arrays whose letters are in `to`. `found` is (dh, dw, db)."""
    return {name: x for (name, letter), x in zip(OF_LAYER.items(), found, strict=True) if letter in to}


# --- linear_cross_entropy ---------------------------------------------------------------------------------------------


def _linear_vjp(i: LinearCrossEntropy, r: LinearLoss, g: LinearLoss, wanted: Wanted) -> Gradients:
    to = gradient_letters(wanted)
    if not to:
        return {}
    computed = {name for name, x in zip(OF_LAYER.values(), r[1:], strict=True) if name in i.forms and x is not None}
    if {*to} <= computed and not followed(g.loss, *i.layer):
        # Return new arrays: the caller may change them, and a second backward pass reads the saved gradients again.
        found = ToLayer(
            *(x * g.loss if letter in to else x for letter, x in zip(OF_LAYER.values(), r[1:], strict=True))
        )
    else:
        found = linear_cross_entropy_vjp(LinearVjp(i._replace(forms=""), g.loss, to))
    return _by_name(found, to)


def _refuse(i: LinearCrossEntropy, row: int) -> None:
    options, here = i.options, i.layer.w.shape[0]
    classes = here if i.spread is None or i.by_rows else sum(sizes_of(i.spread))
    refuse_class(options.target, row, (i.layer.h.shape[0], classes), (1,), options.ignore_index, options.named)


def _mend(i: LinearCrossEntropy, _written: Any, run: Callable[[LinearCrossEntropy], Any]) -> Any:
    """Let the kernel compute the rows whose classes exist. The loss and dh of the other rows are NaN, and dW and db."""
    options = i.options
    found = with_right_classes(
        options.target,
        i.layer.w.shape[0],
        options.ignore_index,
        lambda target: run(i._replace(options=options._replace(target=target))),
    )
    if found is None:
        return None
    results, wrong = found
    made = {name: x for name, x in results._asdict().items() if x is not None and x.shape != (0,)}
    for name in made.keys() & {"loss", "dh"}:
        made[name][wrong if made[name].ndim else ...] = math.nan
    for name in made.keys() & {"dw", "db"}:
        made[name][...] = math.nan
    return results


def _mend_of(i: LinearVjp, written: Any, run: Callable[[LinearVjp], Any]) -> Any:
    return _mend(i.of, written, lambda of: run(i._replace(of=of)))


def _together(i: LinearCrossEntropy, wanted: Wanted) -> Together | None:
    forms, names = _forms_of(wanted)
    if i.kept or len(forms) < len(wanted):
        return None
    return Together(linear_cross_entropy, i if i.forms == forms else i._replace(forms=forms), names)


@functools.cache
def _forms_of(wanted: Wanted) -> tuple[str, dict[str, str]]:
    """Return the letters of the wanted arrays of a layer, and the names of their gradients among the results."""
    forms = gradient_letters(wanted)
    return forms, {name: f"d{letter}" for name, letter in OF_LAYER.items() if letter in forms}


linear_cross_entropy: Operation[LinearCrossEntropy, LinearLoss] = Operation(
    "linear_cross_entropy",
    LinearCrossEntropy,
    LinearLoss(
        Result("h", "dtype", "tuple(h.shape[:1][:kept])"),
        gradient("h", "'h' in forms", "sums"),
        gradient("w", "'w' in forms", "sums"),
        gradient("bias", "'b' in forms", "sums"),
    ),
    definition=reference_linear.linear_cross_entropy,
    kernels={"cpu": _native.linear_cross_entropy, "cuda": "softargmax.loss.triton_linear:linear_cross_entropy"},
    vjp=_linear_vjp,
    always_by_rule=True,
    refuse=_refuse,
    mend=_mend,
    saved={*Layer._fields, *LossOptions._fields, "dh", "dw", "db"},
    constant={"target", "where", "dh", "dw", "db"},
    together=_together,
    spreads=_CLASSES | {"dw": -2, "db": -1},
    rows=_ROWS,
    defined_over_processes=True,
)

linear_cross_entropy_vjp: Operation[LinearVjp, ToLayer] = Operation(
    "linear_cross_entropy_vjp",
    LinearVjp,
    ToLayer(
        gradient("h", "'h' in to", "sums"),
        gradient("w", "'w' in to", "sums"),
        gradient("bias", "'b' in to", "sums"),
    ),
    definition=reference_linear.linear_cross_entropy_vjp,
    kernels={
        "cpu": _native.linear_cross_entropy_vjp,
        "cuda": "softargmax.loss.triton_linear:linear_cross_entropy_vjp",
    },
    constant={"target", "where"},
    mend=_mend_of,
    spreads=_CLASSES | {"dw": -2, "db": -1},
    defined_over_processes=True,
)


# --- terms of the loss ------------------------------------------------------------------------------------------------


def _terms_vjp(i: LinearTerms, _r: RowTerms, g: RowTerms, wanted: Wanted) -> Gradients:
    to = gradient_letters(wanted)
    if not to:
        return {}
    return _by_name(linear_terms_vjp(LinearTermsVjp(i, *g, to)), to)


linear_terms: Operation[LinearTerms, RowTerms] = Operation(
    "linear_cross_entropy_terms",
    LinearTerms,
    RowTerms(*(Result("h", "float64", lambda i: tuple(i.layer.h.shape[:1])) for _ in range(4))),
    definition=reference_linear.linear_terms,
    kernels={"cpu": kernels.linear_terms},
    vjp=_terms_vjp,
    always_by_rule=True,
    constant={"target", "where"},
)

linear_terms_vjp: Operation[LinearTermsVjp, ToLayer] = Operation(
    "linear_cross_entropy_terms_vjp",
    LinearTermsVjp,
    linear_cross_entropy_vjp.results,
    definition=reference_linear.linear_terms_vjp,
    kernels={"cpu": kernels.linear_terms_vjp},
    constant={"target", "where"},
)


# --- divergence between the softmaxes of two layers -------------------------------------------------------------------


def _divergence_vjp(i: LinearDivergence, _r: LinearDivergences, g: LinearDivergences, wanted: Wanted) -> Gradients:
    found: dict[str, Any] = {}
    arrays = (*_layer(i, "student"), *_layer(i, "teacher"), i.where, i.beta, g.divergence)
    own = is_native(i.h_student) and cut(tuple(x for x in arrays if x is not None))
    for whose, other in (("student", "teacher"), ("teacher", "student")):
        to = gradient_letters({name.removesuffix(f"_{whose}") for name in wanted if name.endswith(whose)})
        if not to:
            continue
        slope, layer, other_layer = _slope(i, g, whose, other), _layer(i, whose), _layer(i, other)
        if own:
            gradients = kernels.layer_vjp(slope, layer, other_layer, to)
        else:
            gradients = reference_linear.layer_vjp(_with_scores_of(other_layer, slope), layer, arrays, to)
        found |= {f"{name}_{whose}": x for name, x in _by_name(gradients, to).items()}
    return found


def _layer(i: LinearDivergence, whose: str) -> Layer:
    h, w, bias = (getattr(i, f"{name}_{whose}") for name in Layer._fields)
    return Layer(h, w, bias)


def _slope(i: LinearDivergence, g: LinearDivergences, whose: str, other: str) -> Callable[[Any, Any, Part], Any]:
    """Return a function that computes the gradient with respect to the scores of `whose`, for a part of the rows.

    The function takes the scores of `whose`, the scores of `other`, and the slice of the rows to which both belong.
    """

    def slope(z: Any, other_z: Any, part: Part) -> Any:
        where, beta = reference_linear.rows_of(i.where, part), reference_linear.beta_of(i.beta, part)
        scores = {whose: z, other: other_z}
        of = Divergence(**scores, where=where, beta=beta, axes=(1,), kind=i.kind, softcap=i.softcap)
        return divergence.gradients(of, Divergences(reference_linear.rows_of(g.divergence, part)), {whose})[whose]

    return slope


def _with_scores_of(other: Layer, slope: Callable[[Any, Any, Part], Any]) -> Callable[[Any, Part], Any]:
    """Return a function of z and part that computes the scores of the other layer and passes them to `slope`."""
    return lambda z, part: slope(z, reference_linear.product(reference_linear.part_of(other, part)), part)


linear_divergence: Operation[LinearDivergence, LinearDivergences] = Operation(
    "linear_divergence",
    LinearDivergence,
    LinearDivergences(Result("h_student", "float64", lambda i: tuple(i.h_student.shape[:1]))),
    definition=reference_divergence.linear_divergence,
    kernels={"cpu": kernels.linear_divergence},
    vjp=_divergence_vjp,
    always_by_rule=True,
    constant={"where"},
)
