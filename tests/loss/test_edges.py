"""Edge rows of every function have the documented loss and gradient in every library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from tests.oracle.backends import Backend

import softargmax as s

INF, NAN = np.inf, np.nan
REFERENCE = [Backend(library, "reference") for library in ("numpy", "array_api_strict", "torch", "jax")]
BEST = [Backend(library, "best") for library in ("numpy", "torch")]


def serve(backend: Backend) -> Iterator[Backend]:
    """Select the reference implementation, or the default one."""
    backend.array([0.0])
    with nullcontext() if backend.implementation == "best" else backend.using():
        yield backend


@pytest.fixture(params=[*REFERENCE, *BEST], ids=str)
def library(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield from serve(request.param)


@pytest.fixture(params=[*REFERENCE[:3], *BEST], ids=str)
def quick(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Yield each library except JAX, because JAX would compile every step again for each shape."""
    yield from serve(request.param)


# The rows that are tested with JAX.
TRACED = {
    "target masked, class weights",
    "NaN masked in another class",
    "NaN",
    "ignored NaN",
    "probability 0 outside the support",
    "two inf",
}


def third(x: float, w: float = 1.0) -> list[float]:
    e = np.exp([0.0, x])
    return list(w * e / e.sum())


# scores, target, options, loss, gradient
ROWS: dict[str, tuple[list[float], Any, dict[str, Any], float, list[float]]] = {
    "plain": ([0.0, 0.0], 0, {}, np.log(2), [-0.5, 0.5]),
    "one class": ([3.0], 0, {}, 0.0, [0.0]),
    "all -inf": ([-INF, -INF], 1, {}, INF, [0.0, 0.0]),
    "all masked": ([1.0, NAN], 1, {"where": [False, False]}, INF, [0.0, 0.0]),
    "all masked, smoothed": ([1.0, NAN], 1, {"where": [False, False], "label_smoothing": 0.5}, INF, [0.0, 0.0]),
    "target -inf": ([-INF, 0.0, 1.0], 0, {}, INF, [0.0, *third(1.0)]),
    "target masked": ([NAN, 0.0, 1.0], 0, {"where": [False, True, True]}, INF, [0.0, *third(1.0)]),
    "target masked, class weights": (
        [NAN, 0.0, 1.0], 0, {"where": [False, True, True], "weight": [2.0, 1.0, 1.0]}, INF, [0.0, *third(1.0, 2.0)]
    ),
    "target masked, of weight 0": (
        [NAN, 0.0, 1.0], 0, {"where": [False, True, True], "weight": [0.0, 1.0, 1.0]}, 0.0, [0.0, 0.0, 0.0]
    ),
    "NaN masked in another class": ([NAN, 0.0, 0.0], 1, {"where": [False, True, True]}, np.log(2), [0.0, -0.5, 0.5]),
    "smoothing over the support": ([-INF, 0.0, 0.0], 1, {"label_smoothing": 1.0}, np.log(2), [0.0, 0.0, 0.0]),
    "NaN": ([NAN, 0.0], 1, {}, NAN, [NAN, NAN]),
    "two inf": ([INF, INF, 0.0], 0, {}, np.log(2), [0.0, 0.0, 0.0]),
    "inf, in another class": ([INF, 0.0], 1, {}, INF, [0.0, 0.0]),
    "ignored NaN": ([NAN, 0.0], -100, {}, 0.0, [0.0, 0.0]),
    "ignored class": ([1.0, 0.0], 1, {"ignore_index": 1}, 0.0, [0.0, 0.0]),
    "probability outside the support": ([-INF, 0.0], [0.5, 0.5], {}, INF, [0.0, 0.5]),
    "probability 0 outside the support": ([-INF, 0.0, 0.0], [0.0, 1.0, 0.0], {}, np.log(2), [0.0, -0.5, 0.5]),
    "T < 0, inf is outside the support": ([INF, 0.0, 0.0], 1, {"temperature": -1.0}, np.log(2), [0.0, 0.5, -0.5]),
    "T = 0, target at the maximum": ([1.0, 3.0, 3.0], 1, {"temperature": 0.0}, np.log(2), [0.0, 0.0, 0.0]),
    "T = 0, target below the maximum": ([1.0, 3.0], 0, {"temperature": 0.0}, INF, [0.0, 0.0]),
    "T = inf": ([1.0, 3.0], 0, {"temperature": INF}, np.log(2), [0.0, 0.0]),
    "soft-cap of -inf": ([-INF, 0.0, 0.0], 1, {"softcap": 5.0}, np.log(2), [0.0, -0.5, 0.5]),
    "soft-cap of inf": ([INF, 5.0], 0, {"softcap": 5.0}, float(np.log1p(np.exp(5 * np.tanh(1.0) - 5))), None),  # type: ignore[dict-item]
    "z-loss of lse = 0": ([-np.log(2), -np.log(2)], 0, {"z_loss": 3.0}, np.log(2), [-0.5, 0.5]),
}  # fmt: skip


def prepared(library: Backend, name: str) -> tuple[Any, Any, dict[str, Any]]:
    if library.library == "jax" and name not in TRACED:
        pytest.skip("tested with the other libraries")
    z, target, options, _, _ = ROWS[name]
    convert = lambda x: library.array(np.asarray(x, {"f": "float32", "i": "int32"}.get(np.asarray(x).dtype.kind)))  # noqa: E731
    options = {k: convert(v) if isinstance(v, list) else v for k, v in options.items()}
    return convert([z]), convert([target]), options


@pytest.mark.parametrize("name", ROWS)
def test_edge_rows(library: Backend, name: str) -> None:
    z, target, options = prepared(library, name)
    *_, loss, gradient = ROWS[name]
    found = s.cross_entropy_and_gradient(z, target, **options, reduction="none")
    assert library.back(found.loss) == pytest.approx([loss], rel=1e-6, abs=1e-7, nan_ok=True)
    if gradient is not None:
        assert library.back(found.gradient)[0] == pytest.approx(gradient, rel=1e-6, abs=1e-7, nan_ok=True)
    alone = s.cross_entropy(z, target, **options, reduction="none")
    assert library.back(alone) == pytest.approx([loss], rel=1e-6, abs=1e-7, nan_ok=True)
    if not options.keys() & {"weight", "label_smoothing"} and not isinstance(ROWS[name][1], list):
        options = {k: v for k, v in options.items() if k != "z_loss"}
        selected = s.selected_log_softmax(z, target, **options)
        assert library.back(selected) == pytest.approx([-loss], rel=1e-6, abs=1e-7, nan_ok=True)


@pytest.mark.parametrize("name", ROWS)
def test_derivatives_of_edge_rows(library: Backend, name: str) -> None:
    """Gradients are as documented. torch uses the derivative rule, and JAX differentiates the definition."""
    if not library.differentiates:
        pytest.skip("does not differentiate")
    z, target, options = prepared(library, name)
    *_, loss, gradient = ROWS[name]
    if gradient is None or (library.library == "jax" and not np.isfinite(loss)):
        pytest.skip(
            "derivatives of infinite losses are not specified in JAX" if gradient else "no gradient in the table"
        )
    g = library.array(np.float32([1.0]))
    found = library.gradient(lambda z: s.cross_entropy(z, target, **options, reduction="none"), z, g)
    assert found[0] == pytest.approx(gradient, rel=1e-6, abs=1e-7, nan_ok=True)


def test_mean_when_no_row_counts(quick: Backend) -> None:
    z = quick.array(np.float32([[1.0, 2.0], [NAN, 1.0]]))
    ignored = quick.array(np.array([-100, -100], "int32"))
    for reduction in ("mean", "sum"):
        found = s.cross_entropy_and_gradient(z, ignored, reduction=reduction)
        assert quick.back(found.loss) == 0
        assert (quick.back(found.gradient) == 0).all()
    terms = s.cross_entropy_terms(z, ignored)
    assert all(quick.back(term) == 0 for term in terms)
    weighed = s.cross_entropy(z[:1, :], quick.array(np.array([0], "int32")), weight=quick.array(np.float32([0.0, 1.0])))
    assert quick.back(weighed) == 0
    if quick.differentiates:
        g = quick.array(np.float32(1.0))
        assert (quick.gradient(lambda z: s.cross_entropy(z, ignored), z, g) == 0).all()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (3,), (1, 1), (2, 3, 4)])
def test_shapes(quick: Backend, shape: tuple[int, ...]) -> None:
    z, target = quick.array(np.zeros(shape, "float32")), quick.array(np.zeros(shape[:-1], "int32"))
    rows = s.cross_entropy(z, target, reduction="none")
    assert rows.shape == shape[:-1]
    assert quick.back(rows) == pytest.approx(np.full(shape[:-1], np.log(shape[-1])), rel=1e-6, abs=1e-7)
    mean = s.cross_entropy(z, target)
    assert quick.back(mean) == pytest.approx(np.log(shape[-1]) if 0 not in shape else 0.0, rel=1e-6, abs=1e-7)
    assert s.cross_entropy_and_gradient(z, target).gradient.shape == shape
    h, w = quick.array(np.zeros((*shape[:-1], 2), "float32")), quick.array(np.zeros((shape[-1], 2), "float32"))
    assert quick.back(s.linear_cross_entropy(h, w, target)) == pytest.approx(quick.back(mean), rel=1e-6, abs=1e-7)
    found = s.linear_cross_entropy_and_gradient(h, w, target, reduction="none")
    assert (found.loss.shape, found.dh.shape, found.dw.shape) == (shape[:-1], h.shape, w.shape)
    assert s.distillation(z, z, reduction="none").shape == shape[:-1]


def test_any_axis(quick: Backend) -> None:
    z = np.random.default_rng(2).standard_normal((3, 4, 5)).astype("float32")
    for axis in (0, 1, -1):
        target = np.full(np.delete(z.shape, axis), 2, "int32")
        turned = np.moveaxis(z, axis, -1)
        found = s.cross_entropy_and_gradient(quick.array(z), quick.array(target), axis=axis, reduction="none")
        wanted = s.cross_entropy_and_gradient(np.ascontiguousarray(turned), target, reduction="none")
        assert quick.back(found.loss) == pytest.approx(wanted.loss, rel=1e-6)
        assert np.moveaxis(quick.back(found.gradient), axis, -1) == pytest.approx(wanted.gradient, rel=1e-5, abs=1e-8)


def test_the_small_loss_of_a_confident_row_is_accurate(quick: Backend) -> None:
    z = quick.array(np.float32([[20.0, 0.0], [0.0, 40.0]]))
    target = quick.array(np.array([0, 1], "int32"))
    loss, gradient = s.cross_entropy_and_gradient(z, target, reduction="none")
    small = np.log1p(np.exp(np.float64([-20.0, -40.0]))).astype("float32")
    assert quick.back(loss) == pytest.approx(small, rel=3e-7)
    assert quick.back(loss)[0] == pytest.approx(2.0611537e-09, rel=3e-7)
    p = np.exp([-20.0, -40.0]) / (1 + np.exp([-20.0, -40.0]))
    assert quick.back(gradient) == pytest.approx(np.array([[-p[0], p[0]], [p[1], -p[1]]]), rel=4e-7)
    if quick.library == "torch":
        g = quick.array(np.float32([1.0, 1.0]))
        found = quick.gradient(lambda z: s.cross_entropy(z, target, reduction="none"), z, g)
        assert found == pytest.approx(quick.back(gradient), rel=1e-7)


def test_several_classes_of_each_row(quick: Backend) -> None:
    """selected_log_softmax of several classes per row equals a gather from log_softmax."""
    z = np.random.default_rng(4).standard_normal((2, 3, 5))
    index = np.array([[[0, 4], [1, 1], [-100, 2]], [[3, 0], [2, 4], [0, 0]]])
    found = quick.back(s.selected_log_softmax(quick.array(z), quick.array(index), temperature=0.5))
    rows = np.take_along_axis(s.log_softmax(z, temperature=0.5), np.maximum(index, 0), axis=-1)
    assert found == pytest.approx(np.where(index == -100, 0.0, rows), rel=1e-5)
    first = quick.array(np.moveaxis(z, -1, 0)), quick.array(np.moveaxis(index, -1, 0))
    along = quick.back(s.selected_log_softmax(*first, axis=0, temperature=0.5))
    assert (np.moveaxis(along, 0, -1) == found).all()
    assert s.selected_log_softmax(first[0], first[1][:0, ...], axis=0).shape == (0, 2, 3)
    with pytest.raises(ValueError, match=r"index: expected z's shape \(2, 3, 5\) except along axis 2, got \(2, 2, 5\)"):
        s.selected_log_softmax(z, np.zeros((2, 2, 5), np.int64))
