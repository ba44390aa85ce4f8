"""NaN and inf in one row, or in a class that other rows mask, do not change a bit of the other rows' results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.loss.cases import CLASSES, PRODUCTS, shown

import softargmax as s

NAN, INF = float("nan"), float("inf")
RNG = np.random.default_rng(17)
N, D, K = 33, 520, 4100
"""Sizes at which the kernels split rows: they add at most 512 products in one chain, and a block has 4096 classes."""
H, W, B = (RNG.standard_normal(n).astype(np.float32) * 0.3 for n in ((N, D), (K, D), (K,)))
TEACHER = RNG.standard_normal((N, 3)).astype(np.float32), RNG.standard_normal((K, 3)).astype(np.float32)
Y = RNG.integers(0, K, N)
PAIRS = PRODUCTS[::53]
"""Every 53rd case of PRODUCTS. For any two options, these cases contain all combinations of their choices."""


def bits(x: Any) -> Any:
    """Return a result as a NumPy array."""
    return np.asarray(x.detach() if hasattr(x, "detach") else x)


def by_rows(convert: Any, h: Any, w: Any, y: Any, *, teacher: Any = TEACHER[0], **options: Any) -> dict[str, Any]:
    """Return every result that has one row per hidden vector, by name."""
    given = {name: convert(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    h, w, y = convert(h), convert(w), convert(y)
    other = [convert(x[:n]) for x, n in ((teacher, len(h)), (TEACHER[1], len(w)))]
    plain = {name: given[name] for name in ("temperature", "softcap", "where") if name in given}
    found = {"dh": s.linear_cross_entropy_and_gradient(h, w, y, **given, reduction="sum").dh}
    found["loss"] = s.linear_cross_entropy(h, w, y, **given, reduction="none")
    for name, x in s.linear_cross_entropy_terms(h, w, y, **given, reduction="none")._asdict().items():
        found[f"terms.{name}"] = x
    if y.ndim == 1:
        found["selected"] = s.linear_selected_log_softmax(h, w, y, **plain)
    of: dict[str, Any] = {**plain, "divergence": "js", "reduction": "none", "scale": False}
    found["student"], found["teacher"] = (s.linear_distillation(*x, **of) for x in ((h, w, *other), (*other, h, w)))
    return {name: bits(x) for name, x in found.items()}


def tensors(x: Any) -> Any:
    return pytest.importorskip("torch").from_numpy(x)


BAD = pytest.mark.parametrize(
    ("convert", "bad"), [(np.asarray, NAN), (np.asarray, INF), (tensors, -INF)], ids=["numpy-nan", "numpy-inf", "torch"]
)


@BAD
def test_a_row_that_is_not_finite(convert: Any, bad: float) -> None:
    h = H.copy()
    h[7, 3] = bad
    clean, found = (by_rows(convert, x, W, Y, bias=B, z_loss=0.01) for x in (H, h))
    kept = np.arange(N) != 7
    for name, x in clean.items():
        assert x[kept].tobytes() == found[name][kept].tobytes(), name
        assert not np.array_equal(x[7], found[name][7]), name


@BAD
def test_a_class_that_rows_exclude(convert: Any, bad: float) -> None:
    w, bias, where = W.copy(), B.copy(), np.ones((N, K), bool)
    where[:, 4099] = np.arange(N) % 3 == 0
    y = np.where(Y == 4099, 0, Y)
    w[4099, 519] = bias[4099] = bad
    clean, found = (by_rows(convert, H, *x, y, bias=b, where=where) for x, b in (((W,), B), ((w,), bias)))
    for name, x in clean.items():
        assert x[~where[:, 4099]].tobytes() == found[name][~where[:, 4099]].tobytes(), name


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_every_pair_of_options(bad: float) -> None:
    rng = np.random.default_rng(3)
    h, w = rng.standard_normal((12, 5)).astype(np.float32), rng.standard_normal((6, 5)).astype(np.float32)
    changed = h.copy()
    changed[2] = bad
    kept = np.arange(12) != 2
    for case in PAIRS:
        options = {name: value for name, value in case.items() if name not in ("target", "reduction")}
        clean, found = (by_rows(np.asarray, x, w, case["target"], **options) for x in (h, changed))
        for name, x in clean.items():
            assert x[kept].tobytes() == found[name][kept].tobytes(), (name, shown(case))


@pytest.mark.parametrize("convert", [np.asarray, tensors], ids=["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_to_the_layer_are_those_of_the_definition(convert: Any, dtype: str) -> None:
    """With masked classes, and with NaN and inf in the vectors, gradients equal those of the reference."""
    rng = np.random.default_rng(8)
    h, w, b = (rng.standard_normal(n).astype(dtype) for n in ((12, 5), (6, 5), (6,)))
    where = rng.random((12, 6)) < 0.7
    where[np.arange(12), np.maximum(CLASSES, 0)] = True
    h[1, 2], h[6], w[4, 1], b[3] = NAN, INF, -INF, INF
    given = [convert(x) for x in (h, w, CLASSES)]
    options: Any = {"bias": convert(b), "where": convert(where), "label_smoothing": 0.1}
    found = s.linear_cross_entropy_and_gradient(*given, **options)
    with s.using("reference"):
        wanted = s.linear_cross_entropy_and_gradient(*given, **options)
    for x, y in zip(map(bits, found), map(bits, wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=64 * np.finfo(dtype).eps, atol=64 * np.finfo(dtype).eps)


@pytest.mark.parametrize("convert", [np.asarray, tensors], ids=["numpy", "torch"])
def test_a_row_alone_has_the_bits_of_the_row_in_the_batch(convert: Any) -> None:
    whole = by_rows(convert, H, W, Y, bias=B)
    for part in (slice(0, 1), slice(16, 29)):
        for name, x in by_rows(convert, H[part], W, Y[part], bias=B, teacher=TEACHER[0][part]).items():
            assert x.tobytes() == whole[name][part].tobytes(), name


def test_derivatives_of_tensors() -> None:
    """A row has the same gradient alone, together with other rows, and together with a row of NaN."""
    torch = pytest.importorskip("torch")
    changed = H.copy()
    changed[7] = NAN

    def gradients(h: Any, y: Any, teacher: Any) -> list[Any]:
        leaf, weight = tensors(h).requires_grad_(), tensors(W[:700]).requires_grad_()
        terms = s.linear_cross_entropy_terms(
            leaf, weight, tensors(y % 700), bias=tensors(B[:700]), reduction="sum", z_loss=0.1
        )
        rows = s.linear_selected_log_softmax(leaf, weight, tensors(y % 700), bias=tensors(B[:700]))
        divergence = s.linear_distillation(leaf, weight, *map(tensors, (teacher, TEACHER[1][:700])), reduction="sum")
        given = (terms.loss + 2 * terms.entropy, rows.sum(), divergence)
        return [torch.autograd.grad(x, leaf)[0].numpy() for x in given]

    whole, with_nan = (gradients(h, Y, TEACHER[0]) for h in (H, changed))
    alone = gradients(H[8:11], Y[8:11], TEACHER[0][8:11])
    for x, y, z in zip(whole, with_nan, alone, strict=True):
        assert np.delete(x, 7, 0).tobytes() == np.delete(y, 7, 0).tobytes()
        assert x[8:11].tobytes() == z.tobytes()
        assert np.isnan(y[7]).all()
