"""Find rows that cannot be drawn from. Raise an error if values can be read; else (tracing, devices) return a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softargmax.core import check
from softargmax.core.arrays import namespace

if TYPE_CHECKING:
    from softargmax.sample.arguments import Distribution


def unsound(distribution: Distribution) -> Any:
    """Return the mask of rows that have a parameter out of range, for parameters that could not be checked before.

    The class axis of the mask has size 1. The result is None if all parameters were checked before.
    """
    found = None
    for x in (distribution.beta.hi, *distribution.filters):
        if x is not None and not isinstance(x, float) and not check.inspectable(x):
            xp = namespace(x)
            wrong = xp.isnan(x) if xp.isdtype(x.dtype, "real floating") else x < 1
            found = wrong if found is None else found | wrong
    return found


def refuse(problem: tuple[int, int], shape: tuple[int, ...], draws: int = 1) -> None:
    """Raise the error of the first row that cannot be drawn from, unless draws is 0. kernels.cpp defines the codes."""
    if draws == 0:
        return
    row, why = problem
    raise ValueError(_PROBLEMS[why].format(draws=draws, place=check.place(row, shape)))


_PROBLEMS = {
    1: "z: nothing to draw, every score is -inf or masked, in row {place}",
    2: "z: NaN in row {place}",
    3: "z: fewer classes than the {draws} draws without replacement in row {place}",
    4: "temperature, filters: one is out of range in row {place}",
}
