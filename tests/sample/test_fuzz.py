"""The core equals the reference on calls with random shapes, strides, dtypes, masks and options."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from tests.native.test_fuzz import _base, _view

import softargmax

pytestmark = pytest.mark.sanitize

CALLS = int(os.environ.get("SOFTARGMAX_FUZZ_CALLS", "1000"))
SEED = int(os.environ.get("SOFTARGMAX_FUZZ_SEED", "2026"))
Rng = np.random.Generator


def _per_row(rng: Rng, rows: tuple[int, ...], draw: Any) -> Any:
    """Return a number, or an array that broadcasts with the rows."""
    if rng.random() < 0.6:
        return draw()
    shape = tuple(n if rng.random() < 0.7 else 1 for n in rows)[int(rng.integers(0, len(rows) + 1)) :]
    return np.array([draw() for _ in range(int(np.prod(shape)))]).reshape(shape)


def _options(rng: Rng, z: np.ndarray) -> dict[str, Any]:
    rows, classes = z.shape[:-1], z.shape[-1]
    draws = {
        "temperature": lambda: float(rng.choice([0, 0.3, 1, 3.7, 50, np.inf])),
        "top_k": lambda: int(rng.integers(1, max(1, classes) + 1)),
        "top_p": lambda: float(rng.uniform(0.01, 1)),
        "min_p": lambda: float(rng.uniform(0, 1) ** 4),
    }
    options = {name: _per_row(rng, rows, draw) for name, draw in draws.items() if rng.random() < 0.4 and classes}
    if rng.random() < 0.4:
        keep = [n if rng.random() < 0.7 else 1 for n in z.shape][int(rng.integers(0, z.ndim + 1)) :]
        options["where"] = rng.random(keep) < rng.choice([0.5, 0.98])
    if rng.random() < 0.3:
        options["order"] = "joint"
    return options


def _call(function: Any, *arguments: Any, **options: Any) -> Any:
    """Return the results, or the text of the error."""
    try:
        found = function(*arguments, **options)
    except ValueError as error:
        return str(error)
    return [np.asarray(part) for part in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("block", range(10))
def test_random_calls(block: int) -> None:
    rng = np.random.default_rng([SEED, block])
    drawn = 0
    for number in range(CALLS // 10):
        dtype = str(rng.choice(["float16", "float32", "float64", "int32", "bool", ">f4"]))
        dims = int(rng.integers(1, 4))
        shape = tuple(
            int(rng.integers(0, 2) if rng.random() < 0.05 else rng.integers(1, m)) for m in (5, 9, 400)[-dims:]
        )
        base = _base(rng, dtype, 70_000)
        if number % 2:
            base = np.where(np.isnan(base.astype(np.float64)), np.zeros_like(base), base)
        z = _view(rng, base, shape)
        options = _options(rng, z)
        how = {
            "seed": int(rng.integers(2**63)),
            "num_samples": int(rng.integers(0, 4)),
            "replace": bool(rng.random() < 0.7),
        }
        if rng.random() < 0.3:
            how["stream"] = rng.integers(-(2**63), 2**63, shape[:-1])
        where = (block, number, dtype, shape, options, how)
        plain = np.array(z, z.dtype.newbyteorder("="), order="C")
        calls = ((softargmax.categorical_with_logprob, how), (softargmax.filter_scores, {}))
        for function, more in calls:
            found = _call(function, z, **options, **more)
            again = _call(function, plain, **options, **more)
            with softargmax.using("reference"):
                expected = _call(function, plain, **options, **more)
            assert isinstance(found, str) == isinstance(expected, str), (found, expected, where)
            if isinstance(found, str):
                assert found == again == expected, where
                continue
            drawn += found[0].size > 0
            for a, b, c in zip(found, again, expected, strict=True):
                assert a.dtype == c.dtype, where
                assert np.array_equal(a, b, equal_nan=True), where
                if a.dtype.kind == "f" and function is softargmax.categorical_with_logprob:
                    assert np.allclose(a, c, rtol=1e-6, atol=1e-9), where
                else:
                    assert np.array_equal(a, c, equal_nan=True), where
    assert drawn > CALLS // 20
