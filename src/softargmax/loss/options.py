"""What every loss may be asked for, checked once at the public edge.

Numbers and names become `Options`, arrays `Beside`, each laid out to broadcast with the scores.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from softargmax.core import arrays, check
from softargmax.core.dispatch import device_of, namespace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from softargmax.core.scale import Scale

REDUCTIONS = ("none", "mean", "sum")
IGNORE = -100


class LinearKeywords(TypedDict, total=False):
    """The options of the functions that make their scores themselves; `cross_entropy` explains them."""

    reduction: str
    ignore_index: int
    weight: Any
    label_smoothing: float
    z_loss: float
    softcap: float | None
    temperature: Any
    where: Any
    dtype: Any


class Keywords(LinearKeywords, total=False):
    """The options of the functions of scores."""

    axis: int


DEFAULTS: dict[str, Any] = {
    "axis": -1,
    "reduction": "mean",
    "ignore_index": IGNORE,
    "weight": None,
    "label_smoothing": 0.0,
    "z_loss": 0.0,
    "softcap": None,
    "temperature": 1.0,
    "where": None,
    "dtype": None,
}


@dataclass(frozen=True)
class Options:
    """What was asked for, without arrays. `soft`: targets are probabilities; `wide`: the dtype of a row's number."""

    axis: int
    classes: int
    reduction: str
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float | None
    soft: bool
    wide: Any
    least: float = 0.0
    """Probabilities of this and below may be taken as 0 in gradients."""


@dataclass(frozen=True)
class Divergence:
    """What a distillation was asked for, without arrays. `kind`: "forward", "reverse" or "js"."""

    axis: int
    kind: str
    reduction: str
    softcap: float | None
    wide: Any


class Beside(NamedTuple):
    """The arrays beside scores, each of as many dimensions: along `axis` they are 1 or K long (`where`: or fewer).

    `target` is classes in the default integer dtype, or probabilities; `weight` and `where` may be None.
    """

    target: Any
    weight: Any
    scale: Scale
    where: Any


def checked(
    z: Any, target: Any, given: Mapping[str, Any], shape: tuple[int, ...] | None = None, name: str = "target"
) -> tuple[Beside, Options]:
    """Check the target and the options beside scores z, or beside scores of this shape that are made of z.

    An "index" in the target's place may be classes only.
    """
    unknown = given.keys() - DEFAULTS.keys()
    if unknown:
        raise TypeError(f"{min(unknown)}: no such option; there are {', '.join(DEFAULTS)}")
    asked = {**DEFAULTS, **given}
    shape = tuple(z.shape) if shape is None else shape
    if not shape:
        raise ValueError("z: 0-d; a loss needs an axis of classes")
    axis = check.one_axis(asked["axis"], len(shape))
    ignore_index = integer(asked["ignore_index"], "ignore_index")
    target, soft = target_of(target, z, shape, axis, ignore_index, name)
    scale, softcap, where = scores_options(z, shape, axis, asked)
    options = Options(
        axis=axis,
        classes=shape[axis],
        reduction=one_of(asked["reduction"], "reduction", REDUCTIONS),
        ignore_index=ignore_index,
        label_smoothing=between(asked["label_smoothing"], "label_smoothing", 1.0),
        z_loss=between(asked["z_loss"], "z_loss", math.inf),
        softcap=softcap,
        soft=soft,
        wide=check.row_dtype(asked["dtype"], z),
    )
    return Beside(target, class_weights(asked["weight"], z, shape, axis), scale, where), options


def scores_options(
    z: Any, shape: tuple[int, ...], axis: int, asked: Mapping[str, Any]
) -> tuple[Scale, float | None, Any]:
    """What becomes of scores before anything else: the scale, the soft-cap, the support."""
    softcap, where = asked["softcap"], asked["where"]
    if softcap is not None:
        softcap = check.positive(softcap, "softcap")
    if where is not None:
        where = check.mask(where, z, shape)
        where = namespace(where).reshape(where, (1,) * (len(shape) - where.ndim) + tuple(where.shape))
    return check.scale_of(asked["temperature"], None, z, (axis,)), softcap, where


def one_of(value: Any, name: str, choices: tuple[str, ...]) -> str:
    """One of some words."""
    if value not in choices:
        raise ValueError(f"{name}: {value!r}; it may be {', '.join(map(repr, choices))}")
    return str(value)


def integer(value: Any, name: str) -> int:
    """An integer of any library, no boolean."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: {value!r}; it may be an integer")
    number = operator.index(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{name}: {number:.3e}; it may be an integer of 64 bits")
    return number


def between(value: Any, name: str, high: float) -> float:
    """A finite number from 0 to `high`."""
    may = f"from 0 to {high:g}" if high < math.inf else "0 or a finite number above it"
    if not isinstance(value, Real):
        raise TypeError(f"{name}: {value!r}; it may be a number, {may}")
    number = float(value)
    if not 0.0 <= number <= high or math.isinf(number):
        raise ValueError(f"{name}: {value}; it may be {may}")
    return number


def class_weights(weight: Any, z: Any, shape: tuple[int, ...], axis: int) -> Any:
    """Weights, one per class and at least 0, along the classes' axis."""
    if weight is None:
        return None
    weight = check.scores(arrays.like(weight, z, "weight"), "weight")
    if tuple(weight.shape) != (shape[axis],):
        raise ValueError(f"weight: shape {tuple(weight.shape)}; it may be one per class, ({shape[axis]},)")
    xp = namespace(weight)
    if check.seen(weight) and bool(xp.any(weight < 0)):
        raise ValueError("weight: some are negative; they may be 0 or positive")
    return xp.reshape(weight, tuple(n if i == axis else 1 for i, n in enumerate(shape)))


def target_of(target: Any, z: Any, shape: tuple[int, ...], axis: int, ignore_index: int, name: str) -> tuple[Any, bool]:
    """The target laid out as `Beside` has it, and whether it holds probabilities."""
    target = arrays.like(target, z, name)
    rows = tuple(n for i, n in enumerate(shape) if i != axis)
    found, dtype = tuple(target.shape), arrays.dtype_name(target.dtype)
    if dtype in arrays.FLOATS and found == shape and name == "target":
        if ignore_index != IGNORE:
            raise ValueError(f"ignore_index: {ignore_index}; beside probabilities as targets it may be {IGNORE} only")
        return check.scores(target, name), True
    if dtype not in arrays.INTEGERS - {"bool"}:
        also = f", or probabilities of the scores' shape {shape}" if name == "target" else ""
        raise TypeError(f"{name}: dtype {target.dtype}, shape {found}; it may be integers of shape {rows}{also}")
    if found != rows:
        raise ValueError(f"{name}: shape {found}; it may be that of the rows, {rows}")
    xp = namespace(target)
    kind = xp.__array_namespace_info__().default_dtypes(device=device_of(target))["integral"]
    target = xp.astype(target, kind, copy=False)
    if check.seen(target):
        _in_range(target, shape[axis], ignore_index, name)
    return xp.expand_dims(target, axis=axis), False


def _in_range(target: Any, classes: int, ignore_index: int, name: str) -> None:
    xp = namespace(target)
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if not bool(xp.any(wrong)):
        return
    place = int(xp.argmax(xp.astype(xp.reshape(wrong, (-1,)), target.dtype)))
    value = int(xp.reshape(target, (-1,))[place])
    position = []
    for n in reversed(target.shape):
        place, at = divmod(place, n)
        position.append(at)
    may = f"from 0 to {classes - 1}" if classes else "nothing, there are no classes"
    raise IndexError(f"{name}: {value} at {tuple(reversed(position))}; it may be {may}, or {ignore_index}: ignored")
