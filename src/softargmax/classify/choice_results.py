"""The named tuples that models of choices return."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from softargmax.classify.base import Array


class CoefficientTable(NamedTuple):
    """Result of `ConditionalLogit.summary`: a row per coefficient.

    z is the coefficient divided by its standard error, and p_value the probability of an abs(z) that is at least as
    large if the coefficient is 0. low and high are the bounds of the confidence interval.
    """

    names: Array
    coef: Array
    std_err: Array
    z: Array
    p_value: Array
    low: Array
    high: Array

    def __str__(self) -> str:
        """Return the table as text."""
        width = max(map(len, self.names), default=0)
        lines = [" " * width + "".join(f"{name:>11}" for name in self._fields[1:])]
        for name, *row in zip(*self, strict=True):
            lines.append(f"{name:<{width}}" + "".join(f"{value:>11.4g}" for value in row))
        return "\n".join(lines)


class HypothesisTest(NamedTuple):
    """Result of a test: a statistic, which has a chi-square distribution if the hypothesis holds, and its p-value."""

    statistic: float
    degrees_of_freedom: int
    p_value: float


class Elasticities(NamedTuple):
    """Result of `ConditionalLogit.elasticities`, one number per row.

    `own` is the relative change of an alternative's probability per relative change of its feature, and `cross` that of
    the probability of every other alternative of the same chooser.
    """

    own: Array
    cross: Array
