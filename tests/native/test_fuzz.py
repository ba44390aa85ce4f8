"""1000 calls with random shapes, strides, dtypes, masks and options. They need only NumPy, and run under sanitizers.

Each result must have the same bits as the result for contiguous copies, and agree with the reference. Wrong arguments
must raise and leave `out` unchanged.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from tests.native.operations import same_bits

import softargmax

CALLS = int(os.environ.get("SOFTARGMAX_FUZZ_CALLS", "1000"))
SEED = int(os.environ.get("SOFTARGMAX_FUZZ_SEED", "2026"))
DTYPES = ("float16", "float32", "float64", "int32", "bool", "uint8", ">f4", ">f8")
TOLERANCE = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-14}
Rng = np.random.Generator


def _shape(rng: Rng) -> tuple[int, ...]:
    dims = int(rng.integers(0, 5))
    largest = [60_000, 300, 40, 12][dims - 1] if dims else 1
    return tuple(int(rng.integers(0, 3) if rng.random() < 0.15 else rng.integers(1, largest)) for _ in range(dims))


def _view(rng: Rng, base: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a view of `base` with random strides, in any order of the axes.

    Strides may be negative or zero, and elements may overlap.
    """
    room = base.size - 1
    strides, first = [], 0
    for n in rng.permutation(len(shape)):
        reach = max(1, shape[n] - 1)
        step = int(rng.integers(-(room // reach), room // reach + 1)) if rng.random() < 0.8 else 0
        step = max(-3000, min(3000, step)) if rng.random() < 0.5 else int(np.sign(step))
        room -= abs(step) * (shape[n] - 1 if shape[n] else 0)
        first -= min(0, step * (shape[n] - 1 if shape[n] else 0))
        strides.append((n, step))
    order = dict(strides)
    item = base.itemsize
    return np.lib.stride_tricks.as_strided(base[first:], shape, [order[n] * item for n in range(len(shape))])


def _base(rng: Rng, dtype: str, size: int) -> np.ndarray:
    z = rng.standard_normal(size) * rng.choice([0.1, 5, 60, 2e4])
    if dtype in ("bool", "uint8", "int32"):
        return (np.abs(z) * 3 % 250).astype(dtype)
    for special in (np.inf, -np.inf, np.nan):
        if rng.random() < 0.3:
            z[rng.random(size) < rng.choice([0.001, 0.1])] = special
    with np.errstate(over="ignore"):
        return z.astype(dtype)


def _axis(rng: Rng, dims: int) -> Any:
    if dims == 0 or rng.random() < 0.1:
        return None
    if rng.random() < 0.7:
        return int(rng.integers(-dims, dims))
    axes = rng.permutation(dims)[: rng.integers(1, dims + 1)]
    return tuple(int(a) - (dims if rng.random() < 0.5 else 0) for a in axes)


def _options(rng: Rng, z: np.ndarray, name: str, base: np.ndarray) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if name == "entmax":
        options["alpha"] = float(rng.choice([1, 1.0001, 1.25, 1.5, 1.75, 2]))
    if rng.random() < 0.4 and name != "entmax":
        options["temperature"] = float(rng.choice([0.3, 1.0, 3.7, 50, -2, 0, np.inf]))
    if rng.random() < 0.2 and name != "entmax":
        options["base"] = float(rng.choice([2, 10, 0.5, 1]))
    if rng.random() < 0.4:
        keep = [n if rng.random() < 0.7 else 1 for n in z.shape][int(rng.integers(0, z.ndim + 1)) :]
        options["where"] = rng.random(keep) < rng.choice([0.0, 0.5, 0.98])
    if name == "logsumexp":
        options["keepdims"] = bool(rng.random() < 0.5)
        if rng.random() < 0.3:
            weights = np.abs(_view(rng, base, z.shape).astype(np.float64))
            options["weights"] = np.nan_to_num(weights, nan=0.0, posinf=1e4).clip(0, 1e4)
    elif rng.random() < 0.2 and name != "entmax":
        options["dtype"] = rng.choice(["float32", "float64"])
    return options


def _call(rng: Rng, number: int) -> tuple[str, np.ndarray, dict[str, Any]]:
    dtype = DTYPES[number % len(DTYPES)]
    shape = _shape(rng)
    base = _base(rng, dtype, max(70_000, int(np.prod(shape))))
    z = _view(rng, base, shape)
    name = str(rng.choice(["softmax", "log_softmax", "logsumexp", "softmin", "softmax_with_lse", "entmax"]))
    options = {} if name == "softmax_with_lse" else _options(rng, z, name, base)
    return name, z, {**options, "axis": _axis(rng, z.ndim)}


def _parts(result: Any) -> list[np.ndarray]:
    return [np.asarray(r) for r in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("block", range(10))
def test_random_calls(block: int) -> None:
    rng = np.random.default_rng([SEED, block])
    for number in range(CALLS // 10):
        name, z, options = _call(rng, number)
        where = (
            block,
            number,
            name,
            z.dtype,
            z.shape,
            z.strides,
            {k: getattr(v, "shape", v) for k, v in options.items()},
        )
        function = getattr(softargmax, name)
        before = z.copy()
        found = _parts(function(z, **options))
        assert same_bits(z, before), ("the input changed", where)
        plain = np.array(z, z.dtype.newbyteorder("="), order="C")
        assert all(same_bits(a, b) for a, b in zip(found, _parts(function(plain, **options)), strict=True)), where
        with softargmax.using("reference"), np.errstate(all="ignore"):
            expected = _parts(function(plain, **options))
        for a, b in zip(found, expected, strict=True):
            assert a.shape == b.shape, where
            assert a.dtype == b.dtype, where
            size = np.where(np.isfinite(b), np.abs(b), 0).max(initial=1)  # for atol, because terms may cancel
            np.testing.assert_allclose(
                a, b, TOLERANCE[a.dtype.name], TOLERANCE[a.dtype.name] * float(size), err_msg=str(where)
            )


def test_random_out() -> None:
    """An `out` with any strides gets the same bits if its elements do not overlap. No other element is written."""
    rng = np.random.default_rng(SEED)
    for number in range(200):
        dtype = ("float16", "float32", "float64")[number % 3]
        shape = tuple(int(n) for n in rng.integers(1, 20, int(rng.integers(1, 4))))
        z = _base(rng, dtype, int(np.prod(shape))).reshape(shape)
        order = rng.permutation(len(shape))
        room = np.full([2 * shape[i] + 3 for i in order], 7, dtype).transpose(np.argsort(order))
        step = [int(rng.choice([1, 2, -1, -2])) for _ in shape]
        cut = tuple(slice(0, s * n, s) if s > 0 else slice(-1, s * n - 1, s) for s, n in zip(step, shape, strict=True))
        out = room[cut]
        axis = _axis(rng, z.ndim)
        expected = softargmax.softmax(z, axis=axis)
        assert softargmax.softmax(z, axis=axis, out=out) is out
        assert same_bits(out, expected)
        untouched = np.ones(room.shape, bool)
        untouched[cut] = False
        assert (room[untouched] == 7).all(), "written outside out"


WRONG: list[tuple[type[Exception], dict[str, Any]]] = [
    (IndexError, {"axis": 2}),
    (IndexError, {"axis": -3}),
    (ValueError, {"axis": (0, 0)}),
    (ValueError, {"axis": (0, -2)}),
    (TypeError, {"axis": 1.5}),
    (ValueError, {"base": 0.0}),
    (ValueError, {"base": -2.0}),
    (ValueError, {"base": float("nan")}),
    (ValueError, {"temperature": float("nan")}),
    (ValueError, {"where": np.ones((3, 3), bool)}),
    (TypeError, {"where": np.ones((4, 5))}),
    (TypeError, {"dtype": "int32"}),
    (ValueError, {"out": np.zeros((5, 4))}),
    (TypeError, {"out": np.zeros((4, 5), np.int64)}),
]


@pytest.mark.parametrize(("error", "options"), WRONG, ids=lambda x: str(x)[:40])
def test_wrong_arguments_never_reach_the_kernel(error: type[Exception], options: dict[str, Any]) -> None:
    out = np.full((4, 5), 3.0)
    with pytest.raises((ValueError, TypeError, IndexError)) as raised:
        softargmax.softmax(np.zeros((4, 5)), **{"out": out, **options})
    assert issubclass(raised.type, error) or error is IndexError, raised.value
    assert next(iter(options)) in str(raised.value), "the message names the argument"
    assert (out == 3.0).all()
