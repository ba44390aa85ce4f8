"""What a draw may be asked for, checked once at the public edge."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core import check
from softargmax.core.dispatch import namespace

if TYPE_CHECKING:
    from softargmax.core.scale import Scale

ORDERS = ("top_k_first", "joint")


class Filters(NamedTuple):
    """Each a float, an array that broadcasts with the rows (the classes' axis kept as 1), or None: no such filter.

    An array of integers stays one: float32, where it is the widest there is, would round those above 2^24.
    """

    top_k: Any = None
    top_p: Any = None
    min_p: Any = None
    typical_p: Any = None
    epsilon: Any = None
    eta: Any = None


class Asked(NamedTuple):
    """The distribution to draw from, beside the scores."""

    scale: Scale
    where: Any
    filters: Filters
    joint: bool


_RANGES = {
    "temperature": "from 0 on, infinity included",
    "top_p": "above 0, at most 1",
    "min_p": "from 0 to 1",
    "typical_p": "above 0, at most 1",
    "epsilon": "from 0 to 1",
    "eta": "from 0 to 1",
}


def rows_of(z: Any, name: str = "z") -> Any:
    """Scores with an axis of classes."""
    z = check.scores(z, name)
    if z.ndim == 0:
        raise ValueError(f"{name}: 0-d; it needs an axis of classes")
    return z


def asked(z: Any, temperature: Any, where: Any, order: Any, **filters: Any) -> Asked:
    """Check everything that says which distribution is meant."""
    if order not in ORDERS:
        raise ValueError(f"order: {order!r}; it may be {' or '.join(map(repr, ORDERS))}")
    where = None if where is None else check.mask(where, z)
    given = {name: parameter(value, z, name) for name, value in filters.items() if value is not None}
    scale = check.scale_of(parameter(temperature, z, "temperature"), None, z, (z.ndim - 1,))
    return Asked(scale, where, Filters(**given), order == "joint")


def parameter(value: Any, z: Any, name: str, axis: int = -1) -> Any:
    """A temperature or a filter's parameter: a float, or an array with one per row of the classes along `axis`."""
    axes = (axis % z.ndim,)
    if name == "top_k":
        classes = z.shape[-1]
        may = f"an integer from 1 to {classes}, the number of classes" if classes else "an integer, 1 or above"
        return check.within(value, z, axes, name, lambda k: _counts(k, classes), may, whole=True)
    may = f"a number {_RANGES[name]}"
    return check.within(value, z, axes, name, lambda x: _holds(x, name), may) + 0.0  # -0.0 is 0


def _counts(k: Any, classes: int) -> Any:
    """Whether k of the classes may be kept; of none, nothing is left whatever k is."""
    found = (k >= 1) & (k % 1 == 0)
    return found & (k <= classes) if classes else found


def _holds(x: Any, name: str) -> Any:
    """Whether a parameter is in its range; NaN is not."""
    if name == "temperature":
        return x >= 0.0
    return ((x > 0.0) if name in ("top_p", "typical_p") else (x >= 0.0)) & (x <= 1.0)


def unsound(asked: Asked) -> Any:
    """Which rows have a parameter that nobody could look at and that is out of its range (1 along the classes).

    None if all could be looked at.
    """
    found = None
    for x in (asked.scale.hi, *asked.filters):
        if x is not None and not isinstance(x, float) and not check.seen(x):
            xp = namespace(x)
            wrong = xp.isnan(x) if xp.isdtype(x.dtype, "real floating") else x < 1
            found = wrong if found is None else found | wrong
    return found


def number_of_draws(num_samples: Any) -> int:
    """How many draws of a row: 1 unless something else is asked for."""
    if num_samples is None:
        return 1
    if isinstance(num_samples, bool) or not hasattr(num_samples, "__index__"):
        raise TypeError(f"num_samples: {num_samples!r}; it may be an integer, 0 or above")
    number = operator.index(num_samples)
    if not 0 <= number < 1 << 31:
        raise ValueError(f"num_samples: {number}; it may be an integer from 0 to 2^31 - 1")
    return number


def refuse(row: int, why: int, shape: tuple[int, ...], draws: int = 1) -> None:
    """Raise for the first row that cannot be drawn from, if there is one; the codes are those of kernels.cpp."""
    if row < 0 or draws == 0:
        return
    place = tuple(int(i) for i in np.unravel_index(row, shape)) if shape else ()
    raise ValueError(_PROBLEMS[why].format(draws=draws, place=place))


_PROBLEMS = {
    1: "z: nothing to draw, every score is -inf or masked, in row {place}",
    2: "z: NaN in row {place}",
    3: "z: fewer classes than the {draws} draws without replacement in row {place}",
    4: "temperature, filters: one is out of range in row {place}",
}
