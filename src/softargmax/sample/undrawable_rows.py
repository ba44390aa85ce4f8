"""Rows that cannot be drawn from: an error if values can be read, a mask under tracing and on devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softargmax.core import check
from softargmax.core.arrays import namespace

if TYPE_CHECKING:
    from softargmax.sample.arguments import Distribution


def unsound(distribution: Distribution) -> Any:
    """Return the mask of rows whose parameters could not be checked and are out of range (size 1 along classes).

    None if all could be looked at.
    """
    found = None
    for x in (distribution.beta.hi, *distribution.filters):
        if x is not None and not isinstance(x, float) and not check.inspectable(x):
            xp = namespace(x)
            wrong = xp.isnan(x) if xp.isdtype(x.dtype, "real floating") else x < 1
            found = wrong if found is None else found | wrong
    return found


def refuse(problem: tuple[int, int], shape: tuple[int, ...], draws: int = 1) -> None:
    """Raise for the first row that cannot be drawn from, if anything is drawn; the codes are those of kernels.cpp."""
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
