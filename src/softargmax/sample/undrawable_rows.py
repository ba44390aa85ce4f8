"""Errors for rows that cannot be drawn from, or a mask of these rows if no error can be raised (tracing, devices)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softargmax.core import check
from softargmax.core.arrays import namespace

if TYPE_CHECKING:
    from softargmax.sample.arguments import Distribution


def unsound(distribution: Distribution) -> Any:
    """Return the mask of rows with a parameter out of range, or None if all parameters were checked before.

    Parameters that are traced or on a device could not be checked before. `check.within` has replaced their invalid
    values by NaN, or by -2 in arrays of integers. The class axis of the mask has size 1.
    """
    found = None
    for x in (distribution.beta.hi, *distribution.filters):
        if x is not None and not isinstance(x, float) and not check.inspectable(x):
            xp = namespace(x)
            wrong = xp.isnan(x) if xp.isdtype(x.dtype, "real floating") else x < 1
            found = wrong if found is None else found | wrong
    return found


def refuse(problem: tuple[int, int], shape: tuple[int, ...], draws: int = 1) -> None:
    """Raise an error for `problem`, a row and its error code (kernels.cpp). With 0 draws there is no error."""
    if draws == 0:
        return
    row, why = problem
    raise ValueError(_PROBLEMS[why].format(draws=draws, place=check.place(row, shape)))


_PROBLEMS = {
    1: "z: expected a score above -inf in the support, got none in row {place}",
    2: "z: expected scores without NaN, got NaN in row {place}",
    3: "z: expected enough classes for {draws} draws without replacement, got fewer in row {place}",
    4: "temperature, filters: expected parameters in their ranges, got one out of range in row {place}",
}
