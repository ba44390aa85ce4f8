"""What a draw may be asked for, checked once at the public edge."""

from __future__ import annotations

import operator
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core import check
from softargmax.core.dispatch import namespace

if TYPE_CHECKING:
    from softargmax.core.scale import Scale

ORDERS = ("top_k_first", "joint")


class Filters(NamedTuple):
    """Each a float, an array that broadcasts with the rows (the classes' axis kept as 1), or None: no such filter."""

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
    "top_p": "above 0, at most 1",
    "min_p": "from 0 to 1",
    "typical_p": "above 0, at most 1",
    "epsilon": "from 0 to 1",
    "eta": "from 0 to 1",
}


def rows_of(z: Any) -> Any:
    """Scores with an axis of classes."""
    z = check.scores(z)
    if z.ndim == 0:
        raise ValueError("z: 0-d; a draw needs an axis of classes")
    return z


def asked(z: Any, temperature: Any, where: Any, order: Any, **filters: Any) -> Asked:
    """Check everything that says which distribution is meant."""
    if order not in ORDERS:
        raise ValueError(f"order: {order!r}; it may be {' or '.join(map(repr, ORDERS))}")
    where = None if where is None else check.mask(where, z)
    given = {name: parameter(value, z, name) for name, value in filters.items() if value is not None}
    return Asked(scale(temperature, z, (z.ndim - 1,)), where, Filters(**given), order == "joint")


def scale(temperature: Any, z: Any, axes: tuple[int, ...]) -> Scale:
    """beta of a temperature that is not negative; -0.0 is 0."""
    if isinstance(temperature, Real):
        if temperature < 0:
            raise ValueError(f"temperature: {temperature}; in sampling it may be 0 or above, infinity included")
        return check.scale_of(float(temperature) + 0.0, None, z, axes)
    given = check.per_row(temperature, z, axes, "temperature")
    if check.seen(given) and bool(namespace(z).any(given < 0)):
        raise ValueError("temperature: some are negative; in sampling they may be 0 or above, infinity included")
    return check.scale_of(given + 0.0, None, z, axes)


def parameter(value: Any, z: Any, name: str) -> Any:
    """One filter's parameter: a float, or an array with one per row."""
    classes = z.shape[-1]
    may = f"an integer from 1 to {classes}, the number of classes" if name == "top_k" else f"a number {_RANGES[name]}"
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, Real):
        number = float(value)
        if not holds(number, name, classes) or (name == "top_k" and not number.is_integer()):
            raise ValueError(f"{name}: {value}; it may be {may}")
        return number
    values = check.per_row(value, z, (z.ndim - 1,), name)
    if check.seen(values):
        xp = namespace(values)
        good = holds(values, name, classes) & ((xp.floor(values) == values) | (name != "top_k"))
        if not bool(xp.all(good)):
            raise ValueError(f"{name}: some are out of range; each may be {may}")
    return values


def holds(x: Any, name: str, classes: int) -> Any:
    """Whether a parameter is in its range; NaN is not."""
    if name == "top_k":
        return (x >= 1.0) & (x <= classes)
    return ((x > 0.0) if name in ("top_p", "typical_p") else (x >= 0.0)) & (x <= 1.0)


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
