"""The options of draws, and their checks. Each public function checks its options once."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from softargmax.core import check
from softargmax.core.arrays import last, namespace, row_shape, shown
from softargmax.core.scale import Scale
from softargmax.core.seeds import source
from softargmax.sample.arguments import Distribution, Filters

if TYPE_CHECKING:
    from softargmax.core.seeds import Source

ORDERS = ("top_k_first", "joint")


_RANGES = {
    "temperature": "from 0 on, infinity included",
    "top_p": "above 0, at most 1",
    "min_p": "from 0 to 1",
    "typical_p": "above 0, at most 1",
    "epsilon": "from 0 to 1",
    "eta": "from 0 to 1",
}


def rows_of(z: Any, name: str = "z") -> Any:
    """Check scores, which must have an axis for the classes."""
    z = check.scores(z, name)
    if z.ndim == 0:
        raise ValueError(f"{name}: expected at least one axis, for the classes, got a 0-d array")
    return z


def options_of(z: Any, axis: int, temperature: Any, where: Any, order: Any, **filters: Any) -> Distribution:
    """Check all options of the distribution. In the returned arrays the class axis is the last axis."""
    if order not in ORDERS:
        raise ValueError(f"order: expected {' or '.join(map(repr, ORDERS))}, got {order!r}")
    where = None if where is None else check.mask(where, z)
    checked = {name: parameter(value, z, name, axis) for name, value in filters.items() if value is not None}
    beta = check.scale_of(parameter(temperature, z, "temperature", axis), None, z, (axis,))

    def last_axis(x: Any) -> Any:
        if x is None or isinstance(x, float) or axis == z.ndim - 1:
            return x
        return last(namespace(x).reshape(x, (1,) * (z.ndim - x.ndim) + tuple(x.shape)), axis)

    filters = {name: last_axis(value) for name, value in checked.items()}
    return Distribution(Scale(*map(last_axis, beta)), last_axis(where), Filters(**filters), order == "joint")


def parameter(value: Any, z: Any, name: str, axis: int = -1) -> Any:
    """Check a temperature or a filter's parameter: a float, or an array with one number per row."""
    axes = (axis % z.ndim,)
    if name == "top_k":
        expected = "an integer: 1 or above, or -1 or 0 for all classes"
        found = check.within(value, z, axes, name, lambda k: (k >= -1) & (k % 1 == 0), expected, whole=True)
        return _kept(found, max(z.shape[axis], 1))
    expected = f"a number {_RANGES[name]}"
    return check.within(value, z, axes, name, lambda x: _in_range(x, name), expected) + 0.0  # turns -0.0 into 0.0


def _kept(k: Any, classes: int) -> Any:
    """Return the number of classes that top_k keeps. -1 (in vLLM), 0 (in transformers) and k > `classes` keep all."""
    if isinstance(k, float):
        return k if 1 <= k <= classes else float(classes)
    xp = namespace(k)
    return xp.where((k == -1) | (k == 0) | (k > classes), xp.full_like(k, classes), k)


def _in_range(x: Any, name: str) -> Any:
    """True where a parameter is in its range; False for NaN."""
    if name == "temperature":
        return x >= 0.0
    return ((x > 0.0) if name in ("top_p", "typical_p") else (x >= 0.0)) & (x <= 1.0)


def source_of(z: Any, axis: int, seed: Any, stream: Any, generator: Any) -> Source:
    """Return the seed and the streams of rows along `axis`. The streams have z's shape, but size 1 along the axis."""
    rows = row_shape(z.shape, (axis,))
    found = source(z, rows, seed, stream, generator)
    if found.stream is None:
        return found
    return found._replace(stream=namespace(z).reshape(found.stream, (*rows[:axis], 1, *rows[axis:])))


def number_of_draws(num_samples: Any) -> int:
    """Return the number of draws per row; the default is 1."""
    if num_samples is None:
        return 1
    if not check.is_integer(num_samples):
        raise TypeError(f"num_samples: expected an integer, 0 or above, got {shown(num_samples)}")
    number = operator.index(num_samples)
    if not 0 <= number < 1 << 31:
        raise ValueError(f"num_samples: expected an integer from 0 to 2^31 - 1, got {number}")
    return number
