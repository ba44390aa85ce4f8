"""Dask arrays: results have the bits of arrays in memory, for all chunks, and nothing is computed unasked."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import dask.array as da
import numpy as np
import pytest
from tests.parallel.dask_cases import (
    CHUNKS,
    COLUMNS,
    LOSSES,
    MASK,
    PROBABILITIES,
    ROWS,
    TARGET,
    TEMPERATURES,
    WEIGHT,
    compare,
    graph_of,
    lazily,
    same,
    scores,
)

import softargmax

MAPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "cold": {"temperature": 0.0},
    "base": {"base": 2.0},
    "masked": {"where": MASK},
    "row mask": {"where": MASK[:, :1]},
    "by row": {"temperature": TEMPERATURES},
    "lazy": {
        "temperature": da.from_array(TEMPERATURES[:, None], chunks=1),
        "where": da.from_array(MASK, chunks=(2, 777)),
    },
}
every_chunks = pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS.keys())


@every_chunks
@pytest.mark.parametrize("options", MAPS.values(), ids=MAPS.keys())
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_bits(name: str, options: dict[str, Any], chunks: Any) -> None:
    in_memory = {key: x.compute() if isinstance(x, da.Array) else x for key, x in options.items()}
    z = scores()
    found = lazily(getattr(softargmax, name), da.from_array(z, chunks=chunks), **options)
    same(found.compute(scheduler="threads"), getattr(softargmax, name)(z, **in_memory))


@every_chunks
@pytest.mark.parametrize("options", [MAPS["plain"], MAPS["masked"], MAPS["by row"]], ids=["plain", "masked", "by row"])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("entropy", ()),
        ("kl_divergence", (np.roll(scores(spread=3.0), 1, 0),)),
        ("renyi_entropy", (np.abs(TEMPERATURES),)),
        ("softmin", ()),
        ("soft_argmax", ()),
        ("soft_argmax", (WEIGHT,)),
    ],
)
def test_sums(name: str, more: Any, options: dict[str, Any], chunks: Any) -> None:
    compare(name, chunks, *more, **options)


@every_chunks
def test_hardmax(chunks: Any) -> None:
    compare("hardmax", chunks, where=MASK)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
@pytest.mark.parametrize("name", ["softmax", "logsumexp", "entropy"])
def test_dtypes(name: str, dtype: str) -> None:
    z = scores() if dtype != "int32" else np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) % 31
    compare(name, CHUNKS["both"], z=z.astype(dtype))
    compare(name, CHUNKS["rows"], z=z.astype(dtype))


@pytest.mark.parametrize("axis", [0, 1, -2, (0, 1), (-1, -3), (1, 2), None], ids=str)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("softmax", {}),
        ("log_softmax", {"where": np.arange(30).reshape(5, 6)[..., None] % 7 > 0}),
        ("logsumexp", {"keepdims": True}),
        ("entropy", {}),
        ("sparsemax", {}),
    ],
)
def test_axes(name: str, options: dict[str, Any], axis: Any) -> None:
    z = np.random.default_rng(1).standard_normal((5, 6, 4500))
    for chunks in ((2, 3, 1000), (5, 6, 4500), (1, 6, 4096), (3, 6, (4499, 1))):
        compare(name, chunks, z=z, axis=axis, **options)


def test_a_single_row() -> None:
    z = scores()[0]
    for chunks in (COLUMNS, 4096, 777):
        for name in ("softmax", "logsumexp", "entropy", "soft_argmax"):
            compare(name, chunks, z=z)
        compare("logsumexp", chunks, z=z, keepdims=True)
        compare("cross_entropy", chunks, 4097, z=z)


def test_no_rows_and_no_scores() -> None:
    for shape in ((0, 5), (0, COLUMNS), (3, 0)):
        for name in ("softmax", "logsumexp", "entropy"):
            compare(name, (2, 4096), z=np.zeros(shape, np.float32))


@every_chunks
@pytest.mark.parametrize("options", LOSSES.values(), ids=LOSSES.keys())
def test_losses(options: dict[str, Any], chunks: Any) -> None:
    compare("cross_entropy", chunks, TARGET, **options)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy_terms"])
def test_losses_of_other_dtypes_and_axes(name: str, dtype: str) -> None:
    for options in (LOSSES["plain"], LOSSES["all"]):
        compare(name, CHUNKS["both"], TARGET, z=scores(dtype), **options)
    for chunks in (CHUNKS["rows"], CHUNKS["both"]):
        rows_last = np.ascontiguousarray(scores(dtype).T)
        compare(name, tuple(reversed(chunks)), TARGET, z=rows_last, axis=0, weight=WEIGHT)


@pytest.mark.parametrize("chunks", [CHUNKS["rows"], CHUNKS["both"]], ids=["rows", "both"])
@pytest.mark.parametrize("name", ["plain", "none", "weight"])
def test_terms(name: str, chunks: Any) -> None:
    compare("cross_entropy_terms", chunks, TARGET, **LOSSES[name])
    compare("cross_entropy", chunks, PROBABILITIES, **LOSSES[name])


@every_chunks
@pytest.mark.parametrize("options", LOSSES.values(), ids=LOSSES.keys())
def test_gradients(options: dict[str, Any], chunks: Any) -> None:
    compare("cross_entropy_and_gradient", chunks, TARGET, **options)


@pytest.mark.parametrize("chunks", [CHUNKS["rows"], CHUNKS["both"], CHUNKS["empty"]], ids=["rows", "both", "empty"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_gradients_of_other_dtypes_and_axes(dtype: str, chunks: Any) -> None:
    for options in (LOSSES["plain"], LOSSES["all"]):
        compare("cross_entropy_and_gradient", chunks, TARGET, z=scores(dtype), **options)
    compare("cross_entropy_and_gradient", chunks, PROBABILITIES, z=scores(dtype))
    rows_last = tuple(reversed(chunks))
    compare("cross_entropy_and_gradient", rows_last, TARGET, z=np.ascontiguousarray(scores(dtype).T), axis=0)


def test_gradients_of_no_rows() -> None:
    compare("cross_entropy_and_gradient", (2, 4096), np.full(6, -100))
    compare("cross_entropy_and_gradient", (2, 4096), np.zeros(0, int), z=np.zeros((0, COLUMNS), np.float32))


@pytest.mark.parametrize("chunks", [CHUNKS["rows"], CHUNKS["both"], CHUNKS["thousands"]])
def test_selected_classes(chunks: Any) -> None:
    compare("selected_log_softmax", chunks, TARGET, temperature=0.7)
    compare("selected_log_softmax", chunks, TARGET[:, None] % 99 + np.array([[0, 5000, 8000]]))


@pytest.mark.parametrize("chunks", [CHUNKS["rows"], CHUNKS["both"], CHUNKS["thousands"]])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_samples": 3},
        {"temperature": 0.7, "where": np.arange(COLUMNS) % 3 > 0},
        {"top_k": 5},
        {"top_p": 0.9, "num_samples": 2},
        {"num_samples": 4, "replace": False},
        {"stream": np.arange(6) * 7},
    ],
    ids=str,
)
def test_draws(options: dict[str, Any], chunks: Any) -> None:
    z = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    compare("categorical", chunks, z=z, seed=5, **options)
    compare("categorical_with_logprob", chunks, z=z, seed=5, **options)


@pytest.mark.parametrize("chunks", [(6, 50), (2, 20), ((1, 5), (1, 49))])
def test_whole_rows(chunks: Any) -> None:
    z = np.random.default_rng(0).standard_normal((6, 50))
    compare("sparsemax", chunks, z=z)
    compare("entmax", chunks, z=z, alpha=1.5, where=z > -1.0)
    compare("entmax", chunks, z=z, alpha=np.linspace(1.0, 2.0, 6))
    compare("topk_softmax", chunks, 3, z=z)
    compare("gumbel_softmax", chunks, z=z, seed=1)
    compare("sparsemax_loss", chunks, np.arange(6), z=z)


@pytest.mark.parametrize("name", ["linear_cross_entropy", "linear_cross_entropy_terms"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_last_layers(name: str, reduction: str) -> None:
    rng = np.random.default_rng(0)
    h, w, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((40, 16), (50, 16), (50,)))
    target = rng.integers(0, 50, 40)
    for chunks in ((40, 16), (7, 16), (13, 5)):
        for of_w in (w, da.from_array(w, chunks=(9, 7))):
            found = lazily(getattr(softargmax, name), da.from_array(h, chunks=chunks), of_w, target, bias=bias,
                           reduction=reduction, label_smoothing=0.1)  # fmt: skip
            expected = getattr(softargmax, name)(h, w, target, bias=bias, reduction=reduction, label_smoothing=0.1)
            pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
            for one, other in pairs:
                same(one.compute(), other)


CLASSES = 130  # more than an example of a row has (`Chunks.example`)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_gradients_of_last_layers(reduction: str, with_bias: bool, dtype: str) -> None:
    """They are the gradients of the chunks of rows in memory, added up and divided in float64, and then rounded.

    The losses have the bits of all rows in memory.
    """
    rng, function = np.random.default_rng(0), softargmax.linear_cross_entropy_and_gradient
    h, w, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((40, 16), (CLASSES, 16), (CLASSES,)))
    target, weight = rng.integers(0, CLASSES, 40), rng.random(CLASSES)
    target[7] = -100
    options: dict[str, Any] = {"weight": weight, "label_smoothing": 0.1, **({"bias": bias} if with_bias else {})}
    wide = np.float32 if dtype == "float16" else dtype
    wide_options = options | ({"bias": bias.astype(wide)} if with_bias else {})
    divisor = np.float64(math.fsum(weight[target[target >= 0]]) if reduction == "mean" else 1.0)
    for rows, widths in ((40, 16), (7, 16), ((13, 27), 5)):
        cuts = da.from_array(h, chunks=(rows, widths))
        found = lazily(function, cuts, da.from_array(w, chunks=(9, 7)), target, reduction=reduction, **options)
        same(found.loss.compute(), function(h, w, target, reduction=reduction, **options).loss)
        assert found.dh.chunks == cuts.chunks
        stops = np.cumsum(cuts.chunks[0])
        parts = [
            function(h[a:b].astype(wide), w.astype(wide), target[a:b], reduction="sum", **wide_options)
            for a, b in zip([0, *stops], stops, strict=False)
        ]
        same(found.dh.compute(), (np.concatenate([part.dh for part in parts]) / divisor).astype(dtype))
        assert (found.dbias is None) == (not with_bias)
        for name in ("dw", "dbias")[: 1 + with_bias]:
            one = getattr(found, name)
            assert (one.shape, one.dtype, one._meta.dtype) == (one.compute().shape, dtype, dtype)
            of_parts = np.array([getattr(part, name) for part in parts], np.longdouble) / divisor
            true, of = of_parts.sum(0), np.finfo(dtype)
            # Additions, the divisor, the division, and rounding to the dtype, which has subnormal numbers.
            bound = (len(parts) + 2) * 2.0**-53 * abs(of_parts).sum(0) + of.eps / 2 * abs(true) + of.smallest_subnormal
            assert (abs(one.compute() - true) <= bound).all()
            same(one.compute(), one.compute())


def test_gradients_of_half_precision_do_not_overflow_before_they_are_divided() -> None:
    h, w = np.full((4000, 2), 60, np.float16), np.zeros((3, 2), np.float16)
    expected = softargmax.linear_cross_entropy_and_gradient(h, w, np.zeros(4000, int)).dw
    found = softargmax.linear_cross_entropy_and_gradient(da.from_array(h, chunks=(2000, 2)), w, np.zeros(4000, int)).dw
    same(found.compute(), expected)


@pytest.mark.parametrize("shape", [(16,), (3, 5, 16), (0, 16)], ids=str)
def test_gradients_of_last_layers_of_any_shape(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    h, w = rng.standard_normal(shape), rng.standard_normal((CLASSES, 16))
    target = rng.integers(0, CLASSES, shape[:-1])
    expected = softargmax.linear_cross_entropy_and_gradient(h, w, target)
    found = lazily(softargmax.linear_cross_entropy_and_gradient, da.from_array(h, chunks=2), w.tolist(), target)
    same(found.loss.compute(), expected.loss)
    for one, other in ((found.dh, expected.dh), (found.dw, expected.dw)):
        assert one.shape == other.shape
        np.testing.assert_allclose(one.compute(), other, rtol=1e-14, atol=1e-15)


# --- what is refused, and when ---------------------------------------------------------------------------------------


def test_unknown_chunks_are_refused() -> None:
    z = da.from_array(scores(), chunks=(2, 5000))
    unknown = z[z[:, 0] > 0]
    with pytest.raises(ValueError, match=r"^z: expected chunks of known sizes, .*; call z\.compute_chunk_sizes\(\)"):
        softargmax.softmax(unknown)
    same(
        softargmax.logsumexp(unknown.compute_chunk_sizes()).compute(),
        softargmax.logsumexp(scores())[scores()[:, 0] > 0],
    )


def test_arguments_are_checked_before_anything_is_computed() -> None:
    z = da.zeros((6, 9001), chunks=(3, 4096))
    wrong: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "temperature: expected any number except NaN", lambda: softargmax.softmax(z, temperature=np.nan)),
        (ValueError, "where: expected a shape that fits", lambda: softargmax.softmax(z, where=np.ones((6, 9), bool))),
        (TypeError, "where: expected dtype bool", lambda: softargmax.softmax(z, where=da.ones((6, 1)))),
        (TypeError, "softmax\\(\\) has no argument dim", lambda: softargmax.softmax(z, dim=1)),
        (TypeError, "out: not supported", lambda: softargmax.softmax(z, out=np.zeros((6, 9001)))),
        (ValueError, "target: expected a shape", lambda: softargmax.cross_entropy(z, np.zeros(5, int))),
        (ValueError, "reduction: expected one of", lambda: softargmax.cross_entropy(z, [0] * 6, reduction="x")),
        (TypeError, "axis: expected one integer",
         lambda: softargmax.cross_entropy_and_gradient(z, [0] * 6, axis=(0, 1))),
        (NotImplementedError, "Dask arrays are supported by softmax, ", lambda: softargmax.softmax_jacobian(z)),
        (TypeError, "z: expected a Dask array of NumPy arrays, got one of MaskedArray",
         lambda: softargmax.softmax(da.ma.masked_equal(z, 1.0))),
    ]  # fmt: skip
    for kind, message, function in wrong:
        with pytest.raises(kind, match=f"^{message}"):
            lazily(function)


@pytest.mark.parametrize("columns", [4096, 9001])
def test_errors_of_tasks_name_the_chunk(columns: int) -> None:
    z, target = da.zeros((6, 9001), chunks=(2, columns)), np.arange(6)
    target[4] = 9001
    for name in ("cross_entropy", "cross_entropy_terms", "selected_log_softmax"):
        loss = lazily(getattr(softargmax, name), z, target)
        message = r"^chunk \(2, \d\): (target|index): expected 0 to 9000(, or -100 \(ignored\))?, got 9001 at \(0,\)$"
        with pytest.raises(IndexError, match=message):
            (loss[0] if isinstance(loss, tuple) else loss).compute()
    with pytest.raises(IndexError, match=r"^chunk \(2, \d\): target: expected 0 to 9000"):
        lazily(softargmax.cross_entropy_and_gradient, z, target).gradient.compute()
    last_layer = lazily(softargmax.linear_cross_entropy, da.zeros((6, 3), chunks=(2, 3)), np.zeros((9001, 3)), target)
    with pytest.raises(IndexError, match=r"^chunk \(2, 0\): target: expected"):
        last_layer.compute()
    with pytest.raises(ValueError, match=r"^chunk \(1, 0\): temperature: expected any number except NaN"):
        softargmax.softmax(z.rechunk((2, -1)), temperature=da.from_array([1.0, 1, 1, np.nan, 1, 1], chunks=3)).compute()


def test_tasks_use_the_implementation_that_was_requested() -> None:
    z = scores()
    x = da.from_array(z, chunks=CHUNKS["both"])
    with softargmax.using("reference"):
        expected = [softargmax.softmax(z), softargmax.entropy(z)]
        found = [softargmax.softmax(x), softargmax.entropy(x)]
        counts = [len(graph_of(softargmax.entropy(x)))]
    counts += [len(graph_of(softargmax.entropy(x)))]
    assert counts[0] < counts[1]  # a definition needs whole rows
    for one, other in zip(found, expected, strict=True):
        same(one.compute(scheduler="threads"), other)
    with softargmax.using("reference"):
        compare("cross_entropy_and_gradient", CHUNKS["both"], TARGET)
        wrong = softargmax.cross_entropy_and_gradient(x, np.full(ROWS, COLUMNS)).gradient
    with pytest.raises(IndexError, match=r"target: expected 0 to 9000, or -100 \(ignored\), got 9001"):
        wrong.compute()
    with softargmax.using("triton"), pytest.raises(RuntimeError, match="does not support numpy arrays"):
        softargmax.softmax(x)


# --- schedulers, memory and graphs -----------------------------------------------------------------------------------


def test_processes() -> None:
    for name in ("softmax", "logsumexp"):
        compare(name, CHUNKS["both"], scheduler="processes")


def test_a_cluster(cluster: Any) -> None:
    for name in ("softmax", "log_softmax", "logsumexp", "entropy"):
        for chunks in (CHUNKS["both"], CHUNKS["ragged"]):
            compare(name, chunks, scheduler=cluster)
    for name in ("cross_entropy", "cross_entropy_and_gradient"):
        compare(name, CHUNKS["both"], TARGET, scheduler=cluster, **LOSSES["all"])


def test_torch_is_not_needed() -> None:
    code = """
import sys
import dask.array as da, softargmax
print(float(softargmax.softmax(da.zeros((2, 9001), chunks=4096)).sum().compute().round(3)), "torch" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found == "2.0 False\n"
