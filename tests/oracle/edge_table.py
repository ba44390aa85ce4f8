"""The edge table: results and gradients that every backend must return for rows that the formula does not cover.

Each row lists its scores, the softmax p and logsumexp. log p is listed only if it differs from the logarithm of the
listed p. The expected gradients of <g, f(z)> are

    softmax        beta p (g - <p, g>)
    log_softmax    beta (g - p sum g), with the sum over the support
    logsumexp      g p

The gradients of softmax and log_softmax are 0 in rows marked `constant`. All gradients are 0 outside the support.
Inside the support they are NaN if the row has a NaN.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from tests.oracle.backends import Backend
from tests.oracle.truth import ulp_error

import softargmax

INF, NAN = math.inf, math.nan
THIRD = 1 / 3


class Row(NamedTuple):
    name: str
    z: list[float]
    p: list[float]
    lse: float  # the result of logsumexp: the smooth maximum
    options: dict[str, Any] = {}  # noqa: RUF012 never changed
    log_p: list[float] | None = None  # defaults to log(p)
    constant: bool = False  # the softmax is constant near these scores, so its derivative is 0
    ulp: float = 3.0
    float64_only: bool = False
    overflows: bool = False  # log p overflows, so the derivative is unspecified


LOG2, LOG3 = math.log(2), math.log(3)
E1 = math.exp(-1)
ROWS = (
    # --- the support
    Row("some -inf", [-INF, 0, 0, -INF], [0, 0.5, 0.5, 0], LOG2),
    Row("one left", [-INF, 3, -INF], [0, 1, 0], 3.0),
    Row("all -inf", [-INF, -INF, -INF], [0, 0, 0], -INF),
    Row("one -inf alone", [-INF], [0], -INF),
    Row("empty", [], [], -INF),
    Row("empty, T < 0", [], [], INF, {"temperature": -1.0}),
    Row("all masked", [1, NAN, INF], [0, 0, 0], -INF, {"where": [False, False, False]}),
    Row("all masked, T < 0", [1, NAN, INF], [0, 0, 0], INF, {"where": [False, False, False], "temperature": -2.0}),
    Row("NaN masked", [1, NAN, 1], [0.5, 0, 0.5], 1 + LOG2, {"where": [True, False, True]}),
    Row("inf masked", [1, INF, 1], [0.5, 0, 0.5], 1 + LOG2, {"where": [True, False, True]}),
    Row("-inf masked", [1, -INF, 1], [0.5, 0, 0.5], 1 + LOG2, {"where": [True, False, True]}),
    Row("huge masked", [1, 3e38, 1], [0.5, 0, 0.5], 1 + LOG2, {"where": [True, False, True]}),
    Row(
        "masked at T = 0",
        [1, 5, 5, 9],
        [0, 0.5, 0.5, 0],
        5.0,
        {"where": [True, True, True, False], "temperature": 0.0},
        constant=True,
    ),
    Row("masked at T = inf", [1, 5, NAN], [0.5, 0.5, 0], INF, {"where": [True, True, False], "temperature": INF}),
    # --- infinities
    Row("one inf", [1, INF, 2], [0, 1, 0], INF, constant=True),
    Row("k inf", [INF, 0, INF, -INF, INF], [THIRD, 0, THIRD, 0, THIRD], INF, constant=True),
    Row("inf, T = 0", [INF, 0, INF], [0.5, 0, 0.5], INF, {"temperature": 0.0}, constant=True),
    Row("inf, T = inf", [INF, 0, INF], [0.5, 0, 0.5], INF, {"temperature": INF}, constant=True),
    Row("inf, T = 3.7", [INF, 0, INF], [0.5, 0, 0.5], INF, {"temperature": 3.7}, constant=True),
    Row("T < 0: inf is out", [INF, 0, 0], [0, 0.5, 0.5], -LOG2, {"temperature": -1.0}),
    Row("T < 0: -inf is infinite", [-INF, 0, -INF, INF], [0.5, 0, 0.5, 0], -INF, {"temperature": -1.0}, constant=True),
    Row("T < 0: all inf", [INF, INF], [0, 0], INF, {"temperature": -1.0}),
    Row("T = -0: inf is out", [INF, 2, 7], [0, 1, 0], 2.0, {"temperature": -0.0}, constant=True),
    Row("T = inf: -inf is out", [-INF, 2, 7], [0, 0.5, 0.5], INF, {"temperature": INF}),
    # --- NaN
    Row("NaN", [1, NAN, 2], [NAN, NAN, NAN], NAN),
    Row("NaN beats inf", [1, NAN, INF], [NAN, NAN, NAN], NAN),
    Row("NaN alone", [NAN], [NAN], NAN),
    Row("NaN, T = 0", [1, NAN, 2], [NAN, NAN, NAN], NAN, {"temperature": 0.0}),
    Row("NaN, T = inf", [1, NAN, 2], [NAN, NAN, NAN], NAN, {"temperature": INF}),
    Row("NaN, T < 0", [1, NAN, 2], [NAN, NAN, NAN], NAN, {"temperature": -1.0}),
    Row("NaN, others masked", [1, NAN, 2], [NAN, NAN, 0], NAN, {"where": [True, True, False]}),
    # --- limits
    Row("one", [7], [1], 7.0),
    Row("one, T = inf", [7], [1], 7.0, {"temperature": INF}),
    Row("all equal", [2, 2, 2], [THIRD, THIRD, THIRD], 2 + LOG3),
    Row("T = 0", [1, 5, 5], [0, 0.5, 0.5], 5.0, {"temperature": 0.0}, constant=True),
    Row("T = -0", [1, 1, 5], [0.5, 0.5, 0], 1.0, {"temperature": -0.0}, constant=True),
    Row("T = 0, falling base", [1, 1, 5], [0.5, 0.5, 0], 1.0, {"temperature": 0.0, "base": 0.5}, constant=True),
    Row("T = inf", [1, 5, 5], [THIRD, THIRD, THIRD], INF, {"temperature": INF}),
    Row("T = -inf", [1, 5, 5], [THIRD, THIRD, THIRD], INF, {"temperature": -INF}),
    Row("base 1", [1, 5, 5], [THIRD, THIRD, THIRD], INF, {"base": 1.0}),
    Row("base 1, T = 0", [1, 5, 5], [THIRD, THIRD, THIRD], INF, {"base": 1.0, "temperature": 0.0}),
    Row("base 2", [0, 1], [THIRD, 2 / 3], LOG3 / LOG2, {"base": 2.0}),
    Row("base 1/2", [0, 1], [2 / 3, THIRD], -(LOG3 / LOG2 - 1), {"base": 0.5}),
    Row("T < 0", [0, 1], [1 / (1 + E1), E1 / (1 + E1)], -math.log1p(E1), {"temperature": -1.0}),
    # --- the ends of the range
    Row("spread of 1e38", [3e38, -3e38, 3e38], [0.5, 0, 0.5], 3e38, log_p=[-LOG2, -6e38, -LOG2], overflows=True),
    Row(
        "spread of 1e38, T = 1e38",
        [3e38, -3e38, 3e38],
        [1 / (2 + math.exp(-6)), 1 / (2 * math.exp(6) + 1), 1 / (2 + math.exp(-6))],
        3e38 + 1e38 * math.log(2 + math.exp(-6)),
        {"temperature": 1e38},
        ulp=8.0,
    ),
    Row(
        "spread of 1e308",
        [1e308, -1e308, 1e308],
        [0.5, 0, 0.5],
        1e308,
        log_p=[-LOG2, -INF, -LOG2],
        float64_only=True,
        overflows=True,
    ),
    Row(
        "spread of 2e308, T = 1e307",
        [1e308, -1e308],
        [1 / (1 + math.exp(-20)), 1 / (1 + math.exp(20))],
        1e308 + 1e307 * math.log1p(math.exp(-20)),
        {"temperature": 1e307},
        log_p=[-math.log1p(math.exp(-20)), -20 - math.log1p(math.exp(-20))],
        ulp=20.0,
        float64_only=True,
    ),
    Row("subnormal", [1e-40, 0, -1e-40], [THIRD, THIRD, THIRD], LOG3),
    Row(
        "subnormal at T = 1e-40",
        [1e-40, 0, 1e-40],
        [0.5 / (1 + E1 / 2), E1 / (2 + E1), 0.5 / (1 + E1 / 2)],
        1e-40 * (1 + math.log(2 + E1)),
        {"temperature": 1e-40},
        float64_only=True,
    ),
    Row("-0.0", [-0.0, 0.0], [0.5, 0.5], LOG2),
    Row("-0.0 at T = 0", [-0.0, 0.0, -1], [0.5, 0.5, 0], 0.0, {"temperature": 0.0}, constant=True),
    Row("confident", [40, 0], [1, math.exp(-40)], 40.0, log_p=[-math.log1p(math.exp(-40)), -40.0]),
    Row("near 0", [0, -40], [1, math.exp(-40)], math.log1p(math.exp(-40)), log_p=[-math.log1p(math.exp(-40)), -40.0]),
)


def served(row: Row, backend: Backend, dtype: str) -> bool:
    """True if the backend can represent the row in this dtype.

    In half precision, only rows with scores from 1e-3 to 100 in magnitude are tested. XLA has no subnormal numbers.
    """
    largest = max((abs(x) for x in row.z if math.isfinite(x)), default=0.0)
    smallest = min((abs(x) for x in (*row.z, row.options.get("temperature", 1.0)) if x), default=1.0)
    if dtype in ("float16", "bfloat16"):
        return largest < 100 and smallest > 1e-3
    xla = backend.library == "jax" and (smallest < 1e-37 or row.options.get("temperature", 1.0) > 1e37)
    return dtype == "float64" or not (row.float64_only or xla)


def check(row: Row, backend: Backend, dtype: str) -> None:
    """Check the three functions for one row of the table, placed between two other rows, on one backend."""
    p = np.array(row.p, np.float64)
    with np.errstate(divide="ignore"):
        log_p = np.log(p) if row.log_p is None else np.array(row.log_p, np.float64)
    for expected, function in (
        (p, softargmax.softmax),
        (log_p, softargmax.log_softmax),
        (row.lse, softargmax.logsumexp),
    ):
        z = np.array([np.zeros(len(row.z)), row.z, np.ones(len(row.z))])
        options = dict(row.options)
        if "where" in options:
            options["where"] = backend.array([options["where"]])
        result = backend.back(function(backend.array(z, dtype), **options))
        width = "float32" if function is softargmax.logsumexp and dtype in ("float16", "bfloat16") else dtype
        name = f"{function.__name__} of {row.name!r}: {result[1]}, not {expected}"
        at = max((abs(x) for x in row.z if math.isfinite(x)), default=0.0) if function is softargmax.logsumexp else None
        at = None if not at or not math.isfinite(row.lse) else at
        error = ulp_error(result[1], expected, dtype=width, at=at)
        assert (error <= row.ulp).all(), f"{name} ({error.max()} ulp)"
        if "where" not in row.options:
            assert not np.isnan(result[[0, 2]]).any(), f"{name}: NaN in the rows before and after it"


def check_gradients(row: Row, backend: Backend, dtype: str) -> None:
    """Check the gradients of the three functions, with incoming gradients that are NaN outside the support."""
    p = np.array(row.p, np.float64)
    beta = _beta(row)
    inside = (p != 0) if row.log_p is None else np.array(row.log_p) != -INF
    g = np.arange(1.0, len(row.z) + 1)
    g_inside = np.where(inside, g, 0.0)
    options = dict(row.options)
    if "where" in options:
        options["where"] = backend.array(options["where"])
    broken = np.isnan(p).any()
    finite_beta = 0.0 if row.constant or math.isinf(beta) else beta
    wanted = {
        softargmax.softmax: finite_beta * p * (g_inside - (p * g_inside).sum()),
        softargmax.log_softmax: finite_beta * np.where(inside, g_inside - p * g_inside.sum(), 0.0),
        softargmax.logsumexp: p,
    }
    for function, expected in wanted.items():
        expected = np.where(inside, NAN if broken else expected, 0.0)  # noqa: PLW2901
        incoming = backend.array(1.0 if function is softargmax.logsumexp else np.where(inside, g, NAN), dtype)
        found = backend.gradient(lambda z: function(z, **options), backend.array(row.z, dtype), incoming)  # noqa: B023
        unit = max(abs(finite_beta), 1.0) * (len(row.z) + 1) * 2.0 ** (-21 if dtype == "float32" else -50)
        same = np.isnan(found) == np.isnan(expected)
        close = np.abs(np.nan_to_num(found) - np.nan_to_num(expected)) <= unit
        assert (same & close).all(), f"gradient of {function.__name__} of {row.name!r}: {found}, not {expected}"
        assert (found[~inside] == 0).all(), (
            f"gradient of {function.__name__} of {row.name!r} outside the support: {found}"
        )


def _beta(row: Row) -> float:
    t, base = row.options.get("temperature", 1.0), row.options.get("base")
    log_base = 1.0 if base is None else math.log(base)
    if log_base == 0.0 or math.isinf(t):
        return 0.0
    return math.copysign(INF, t) * math.copysign(1.0, log_base) if t == 0.0 else log_base / t
