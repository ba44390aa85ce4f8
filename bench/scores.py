"""Rows of scores for the accuracy table and its quick version in the tests: ordinary spreads, and hard rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Scores = Callable[[np.random.Generator, tuple[int, int], str], NDArray[np.floating]]

SPREADS = (1.0, 10.0, 40.0, 87.0, 1e4)
LENGTHS = (7, 64, 1000, 4097, 65_536, 1_000_000)
HALVES = ("float16", "bfloat16")

# The range of scores for which exp is subnormal in each format.
SUBNORMAL = {"float16": (-17.4, -9.7), "bfloat16": (-93, -87), "float32": (-104, -87), "float64": (-746, -708)}


class Case(NamedTuple):
    """A row of the accuracy table: a kind of scores, and the options of the call."""

    dtype: str
    name: str
    scores: Scores
    temperature: float = 1.0
    base: float | None = None


def spread(s: float) -> Scores:
    """Draw normal scores of standard deviation s."""
    return lambda rng, shape, _: s * rng.standard_normal(shape)


def offset(rng: np.random.Generator, shape: tuple[int, int], _: str) -> NDArray[np.float64]:
    """Draw rows with a common offset of 1e3 to 1e7 in magnitude, of either sign."""
    c = rng.choice([-1.0, 1.0], (shape[0], 1)) * 10 ** rng.uniform(3, 7, (shape[0], 1))
    return c + 10 * rng.standard_normal(shape)


def confident(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> NDArray[np.float64]:
    """Draw rows with one score far above the others. The loss of this score is tiny, and may be subnormal."""
    z = rng.uniform(SUBNORMAL[dtype][0], -10, shape)
    z[np.arange(shape[0]), rng.integers(0, shape[1], shape[0])] = 0
    return z


def ties(rng: np.random.Generator, shape: tuple[int, int], _: str) -> NDArray[np.float64]:
    """Draw from a handful of distinct values."""
    return np.rint(2 * rng.standard_normal(shape))


def repeated(rng: np.random.Generator, shape: tuple[int, int], _: str) -> NDArray[np.float64]:
    """Draw rows with four distinct values. The rounding errors of equal terms add up instead of averaging out."""
    values = rng.uniform(-12, 12, (shape[0], 4))
    return np.take_along_axis(values, rng.choice(4, shape, p=[0.001, 0.009, 0.19, 0.8]), axis=1)


def near_ties(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> NDArray[np.float64]:
    """Draw scores that are 0 to 3 ulp apart."""
    last = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}[dtype]
    return rng.uniform(1, 8, (shape[0], 1)) * (1 + last * rng.integers(0, 4, shape))


def subnormal_results(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> NDArray[np.float64]:
    """Draw rows with one large score. The other probabilities, or the loss of the large score, are subnormal."""
    z = rng.uniform(*SUBNORMAL[dtype], shape)
    z[:, 0] = 0
    return z


def subnormal_scores(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> NDArray[np.float64]:
    """Draw subnormal scores, and zeros of both signs."""
    smallest = {"float16": 6e-8, "bfloat16": 9.2e-41, "float32": 1.4e-45, "float64": 4.9e-324}[dtype]
    return smallest * np.rint(100 * rng.standard_normal(shape))


def half_way(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> NDArray[np.float64]:
    """Draw scores within a few ulp of (k + 1/2) ln 2, where exp's range reduction rounds x / ln 2 up or down."""
    last = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}[dtype]
    k = rng.integers(-140, 1, shape) + 0.5
    return k * np.log(2.0) * (1 + last * rng.integers(-2, 3, shape))


def geometric(rng: np.random.Generator, shape: tuple[int, int], _: str) -> NDArray[np.float64]:
    """Draw rows of the scores -c i for i = 0, 1, 2 and so on, in random order. Each row has its own c."""
    order = rng.permutation(shape[1]).astype(np.float64)
    return -order * 10 ** rng.uniform(-3, 0.7, (shape[0], 1))


def any_size(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> NDArray[np.float64]:
    """Draw rows of every magnitude, from 1e-6 to near the largest number of the format."""
    top = {"float16": 4, "bfloat16": 37, "float32": 37, "float64": 307}[dtype]
    return rng.standard_normal(shape) * 10 ** rng.uniform(-6, top, (shape[0], 1))


def many_small(rng: np.random.Generator, shape: tuple[int, int], _: str) -> NDArray[np.float64]:
    """Draw rows with one large term, and with many small terms whose sum has the same order of magnitude."""
    z = -np.log(shape[1]) - rng.uniform(0, 3, shape)
    z[:, -1] = 0
    return z


def wide(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> NDArray[np.float64]:
    """Draw uniform scores from -end to end, where exp(-end) is about the smallest subnormal number of the format."""
    end = -SUBNORMAL[dtype][0]
    return rng.uniform(-end, end, shape)


ADVERSARIAL: dict[str, Scores] = {
    "offsets 1e3 to 1e7": offset,
    "confident rows": confident,
    "ties": ties,
    "a few values repeated": repeated,
    "near-ties": near_ties,
    "subnormal results": subnormal_results,
    "subnormal scores": subnormal_scores,
    "near (k + 1/2) ln 2": half_way,
    "geometric tails": geometric,
    "every magnitude": any_size,
    "a crowd of small terms": many_small,
    "uniform over exp's range": wide,
}


def mixed(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> NDArray[np.float64]:
    """Draw rows, each with a spread from SPREADS. A quarter of the rows also have a common offset."""
    s = rng.choice(SPREADS, (shape[0], 1))
    c = np.where(rng.random((shape[0], 1)) < 0.25, 10 ** rng.uniform(0, 4, (shape[0], 1)), 0)
    return (
        np.clip(c + s * rng.standard_normal(shape), -6e4, 6e4) if dtype == "float16" else c + s * rng.normal(size=shape)
    )


OPTIONS: tuple[tuple[float, float | None], ...] = (
    (3.7, None),
    (0.1, None),
    (1e-3, None),
    (250.0, None),
    (-1.3, None),
    (1.0, 2.0),
    (10.0, 10.0),
    (0.7, 0.3),
)


def option_name(temperature: float, base: float | None) -> str:
    """Return a name for the options of a row."""
    return f"temperature {temperature:g}" + ("" if base is None else f", base {base:g}")


def cases(dtype: str) -> list[Case]:
    """Return every row of the table for one format."""
    rows = [Case(dtype, f"spread {s:g}", spread(s)) for s in SPREADS]
    options = OPTIONS[::3] if dtype in HALVES else OPTIONS
    rows += [Case(dtype, option_name(t, b), mixed, t, b) for t, b in options]
    hurt = {k: v for k, v in ADVERSARIAL.items() if dtype != "float16" or not k.startswith("offsets")}
    rows += [Case(dtype, name, scores) for name, scores in hurt.items()]
    return rows
