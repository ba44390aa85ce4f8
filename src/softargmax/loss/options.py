"""What every loss may be asked for, checked once at the public edge.

Numbers and names become `Options`, arrays `Beside`, each laid out to broadcast with the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from softargmax.core import check
from softargmax.core.dispatch import namespace
from softargmax.core.targets import IGNORE, REDUCTIONS, between, class_weights, integer, one_of, target_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from softargmax.core.scale import Scale


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
