"""The options of the losses, and their checks. Each public function checks its options once.

Array options are reshaped so that they broadcast with the scores.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from softargmax.core import check, signature
from softargmax.core._native import plain_classes
from softargmax.core.arrays import namespace, one_axis, row_dtype
from softargmax.core.check import between, integer, one_of
from softargmax.core.dispatch import PROCESSES, requested
from softargmax.core.scale import UNIT
from softargmax.core.targets import IGNORE, REDUCTIONS, class_weights, kept_of, target_of
from softargmax.core.types import DType, Mask, Numbers, PerRow
from softargmax.loss.arguments import CrossEntropy, LossOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from softargmax.core.scale import Scale


class ModuleKeywords(TypedDict, total=False):
    """The options that both the functions and the torch modules take as keyword arguments."""

    reduction: str
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float | None
    temperature: PerRow


class LinearKeywords(ModuleKeywords, total=False):
    """The options of the functions for a last layer. They are documented in `cross_entropy`."""

    weight: Numbers | None
    where: Mask | None
    dtype: DType | None


class _Axis(TypedDict, total=False):
    axis: int


class Keywords(_Axis, LinearKeywords, total=False):
    """The options of the functions that take scores."""


DEFAULTS = {
    "axis": -1,
    "reduction": "mean",
    "ignore_index": IGNORE,
    "label_smoothing": 0.0,
    "z_loss": 0.0,
    "temperature": 1.0,
}
"""Defaults of the options. An option that is not listed defaults to None."""
_ALL_DEFAULTS: dict[str, Any] = dict.fromkeys(Keywords.__optional_keys__) | DEFAULTS
takes = functools.partial(signature.takes, defaults=DEFAULTS)


class Checked(NamedTuple):
    """The checked options."""

    options: LossOptions
    axis: int
    kept: int
    mean: bool
    dtype: Any


_COMMON_OPTIONS = {"axis", "reduction", "ignore_index"}
_COMMON_REDUCTIONS = {"mean": (0, True), "sum": (0, False)}  # kept, mean


def common_call(z: Any, target: Any, options: Mapping[str, object]) -> CrossEntropy | None:
    """Return the operation's arguments for the most common call in training, or None for other calls.

    The most common call has classes as target, the reduction "mean" or "sum", and no options except axis, reduction and
    ignore_index. The kernel checks the class values. This function takes 4 us. The full check of all options takes
    12 us.
    """
    if not options.keys() <= _COMMON_OPTIONS:
        return None
    chosen = {**DEFAULTS, **options} if options else DEFAULTS
    reduction, ignore_index = chosen["reduction"], chosen["ignore_index"]
    axes = plain_classes(z, chosen["axis"], target)
    kept = _COMMON_REDUCTIONS.get(reduction) if type(reduction) is str else None
    if (
        axes is None
        or kept is None
        or type(ignore_index) is not int
        or not -(1 << 63) <= ignore_index < 1 << 63
        or requested() == "reference"
    ):
        return None
    plain = LossOptions(target, None, None, None, UNIT, ignore_index, 0.0, 0.0, 0.0)  # `_replace` would take 1 us more
    return CrossEntropy(z, plain, axes, *kept, row_dtype(z.dtype))


def checked_options(
    z: Any,
    target: Any,
    keywords: Mapping[str, Any],
    shape: tuple[int, ...] | None = None,
    name: str = "target",
    *,
    look: bool = True,
) -> Checked:
    """Check the target and the options for scores z, or for scores of the given shape that are computed from z.

    If `name` is "index", probabilities are not allowed as target. If `look` is False, the class values are not checked,
    because the kernel checks them. In a process with a part of the classes, the kernel always does.
    """
    options = {**_ALL_DEFAULTS, **keywords}
    look = look and requested() != PROCESSES
    shape = tuple(z.shape) if shape is None else shape
    if not shape:
        raise ValueError("z: expected at least one axis, for the classes, got a 0-d array")
    axis = one_axis(options["axis"], len(shape))
    ignore_index = integer(options["ignore_index"], "ignore_index")
    target, soft = target_of(target, z, shape, axis, ignore_index, name, look=look)
    beta, softcap, where = scores_options(z, shape, axis, options)
    reduction = one_of(options["reduction"], "reduction", REDUCTIONS)
    loss_options = LossOptions(
        target=None if soft else target,
        probabilities=target if soft else None,
        weight=class_weights(options["weight"], z, shape, axis),
        where=where,
        beta=beta,
        ignore_index=ignore_index,
        label_smoothing=between(options["label_smoothing"], "label_smoothing", 1.0),
        z_loss=between(options["z_loss"], "z_loss", math.inf),
        softcap=softcap,
        named=name,
    )
    dtype = check.dtype_of_rows(options["dtype"], z)
    return Checked(loss_options, axis, kept_of(reduction, len(shape) - 1), reduction == "mean", dtype)


def scores_options(z: Any, shape: tuple[int, ...], axis: int, options: Mapping[str, Any]) -> tuple[Scale, float, Any]:
    """Check temperature, soft-cap and mask. Return the scale, the soft-cap (0 if there is none) and the mask."""
    softcap, where = options["softcap"], options["where"]
    softcap = 0.0 if softcap is None else check.positive(softcap, "softcap")
    if where is not None:
        where = check.mask(where, z, shape)
        where = namespace(where).reshape(where, (1,) * (len(shape) - where.ndim) + tuple(where.shape))
    return check.scale_of(options["temperature"], None, z, (axis,)), softcap, where
