"""Every accepted argument changes the result. All shapes, layouts and dtypes are supported."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.oracle.backends import Backend
from tests.oracle.truth import family_truth, ulp_error

import softargmax as s

Z = np.random.default_rng(5).standard_normal((3, 4, 5)) * 4
MASK = np.random.default_rng(6).random((4, 5)) < 0.7
OPTIONS: dict[str, dict[str, Any]] = {  # for each function, options that each change the result
    "softmax": {"axis": 1, "temperature": 2.0, "base": 2.0, "where": MASK},
    "log_softmax": {"axis": (0, 2), "temperature": 2.0, "base": 2.0, "where": MASK},
    "softmin": {"axis": None, "temperature": 2.0, "base": 2.0, "where": MASK},
    "hardmax": {"axis": 0, "where": MASK},
    "softmax_with_lse": {"axis": 1, "temperature": 2.0, "base": 2.0, "where": MASK},
    "logsumexp": {
        "axis": 1,
        "temperature": 2.0,
        "base": 2.0,
        "where": MASK,
        "weights": [1.0, 2.0, 0.0, 1.0, 3.0],
        "keepdims": True,
    },
    "logcumsumexp": {"axis": 1, "temperature": 2.0, "base": 2.0, "where": MASK},
    "entropy": {"axis": 1, "temperature": 2.0, "base": 2.0, "where": MASK, "keepdims": True},
    "renyi_entropy": {"axis": 1, "temperature": 2.0, "base": 2.0, "where": MASK, "keepdims": True},
    "softmax_jacobian": {"axis": 1, "temperature": 2.0, "base": 2.0},
    "soft_argmax": {
        "axis": 1,
        "temperature": 2.0,
        "where": MASK,
        "values": [3.0, 1.0, 4.0, 1.0, 5.0],
        "keepdims": True,
    },
    "spatial_soft_argmax": {"axis": (0, 1), "temperature": 2.0, "where": MASK},
    "boltzmann": {"axis": 1, "k": 2.0, "weights": [1.0, 2.0, 0.0, 1.0, 3.0], "where": MASK},
    "signed_logsumexp": {"axis": 1, "where": MASK, "keepdims": True},
    "kl_divergence": {"axis": 1, "temperature": 2.0, "base": 2.0, "where": MASK, "keepdims": True},
}
LEADING = {
    "boltzmann": (1.5,),
    "renyi_entropy": (1.5,),
    "signed_logsumexp": (np.array([1.0, -2.0, 0.0, 1.0, 3.0]),),
    "kl_divergence": (np.cos(Z),),
}
CASES = [(name, option) for name, options in OPTIONS.items() for option in options]


@pytest.mark.parametrize(("name", "option"), CASES)
def test_every_option_changes_the_result(quick: Backend, name: str, option: str) -> None:
    function, value = getattr(s, name), OPTIONS[name][option]
    leading = [quick.array(x) if isinstance(x, np.ndarray) else x for x in LEADING.get(name, ())]
    arrays = isinstance(value, (np.ndarray, list))
    z = quick.array(Z)
    plain = parts(quick, function(z, *leading))
    changed = parts(quick, function(z, *leading, **{option: quick.array(value) if arrays else value}))
    assert any(a.shape != b.shape or not np.allclose(a, b, equal_nan=True) for a, b in zip(plain, changed, strict=True))


def parts(backend: Backend, result: Any) -> list[np.ndarray]:
    return [backend.back(part) for part in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin", "softmax_with_lse", "logsumexp"])
def test_dtype(quick: Backend, name: str) -> None:
    for given_dtype in quick.dtypes:
        for requested in quick.dtypes:
            result = getattr(s, name)(quick.array(Z, given_dtype), dtype=quick.dtype(requested))
            first = result[0] if isinstance(result, tuple) else result
            assert str(first.dtype).endswith(requested)


def test_dtype_of_results_for_each_dtype_of_scores(quick: Backend) -> None:
    for dtype in quick.dtypes:
        z = quick.array(Z, dtype)
        wide = "float32" if "16" in dtype else dtype
        for result in (s.softmax(z), s.log_softmax(z), s.hardmax(z), s.softmax_jacobian(z), s.boltzmann(z, 1.0).p):
            assert str(result.dtype).endswith(dtype)
        for result in (
            s.logsumexp(z),
            s.entropy(z),
            s.renyi_entropy(z, 2.0),
            s.kl_divergence(z, z),
            s.logcumsumexp(z),
            s.soft_argmax(z),
            *s.boltzmann(z, 1.0)[1:],
        ):
            assert str(result.dtype).endswith(wide), dtype


def test_half_precision_results_are_rounded_float32_results(quick: Backend) -> None:
    for dtype in quick.dtypes:
        if "16" in dtype:
            z = quick.array(Z, dtype)
            wide = quick.array(quick.back(z), "float32")
            for function in (s.softmax, s.log_softmax):
                assert ulp_error(quick.back(function(z)), quick.back(function(wide)), dtype=dtype).max() <= 0.51


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64"])
def test_integers_become_the_default_float(quick: Backend, dtype: str) -> None:
    values = np.array([[0, 1, 1], [1, 0, 1]])
    result = s.softmax(quick.array(values, dtype))
    assert str(result.dtype).endswith("float64" if quick.library in ("numpy", "array_api_strict") else "float32")
    assert quick.back(result) == pytest.approx(np.exp(values) / np.exp(values).sum(-1, keepdims=True), rel=1e-6)


@pytest.mark.parametrize("shape", [(), (3,), (1, 3), (3, 1), (3, 5)])
def test_temperature_per_row(quick: Backend, shape: tuple[int, ...]) -> None:
    t = np.array(np.resize([0.5, 0.0, -2.0, math.inf, 3.7, 1.0, -0.0], shape))
    if shape not in ((), (3, 1), (3, 5), (1, 3)):
        pytest.skip("does not broadcast with these rows")
    z = Z if shape != (1, 3) else Z[:, :3].transpose(0, 2, 1)
    axis = 1
    rows = tuple(np.delete(z.shape, axis))
    if shape == (1, 3):
        axis, rows = 1, (3, 3)
    for function in (s.softmax, s.log_softmax):
        found = quick.back(function(quick.array(z), axis=axis, temperature=quick.array(t)))
        each = np.broadcast_to(t, rows)
        for i in np.ndindex(rows):
            row = z[i[0], :, i[1]]
            alone = quick.back(function(quick.array(row), temperature=float(each[i])))
            same = found[i[0], :, i[1]]
            assert (ulp_error(same, alone) <= 4).all(), (each[i], same, alone)


def test_temperature_keeping_the_axis(quick: Backend) -> None:
    z, t = quick.array(Z), np.array([0.5, 2.0, 3.0])
    kept = s.softmax(z, axis=(1, 2), temperature=quick.array(t.reshape(3, 1, 1)))
    assert (quick.back(kept) == quick.back(s.softmax(z, axis=(1, 2), temperature=quick.array(t)))).all()


@pytest.mark.parametrize("axis", [0, 1, 2, -2, (0, 1), (2, 0), (1, 2), None, ()])
def test_axes(quick: Backend, axis: Any) -> None:
    axes = tuple(range(3)) if axis is None else tuple(a % 3 for a in (axis if isinstance(axis, tuple) else (axis,)))
    m = Z.max(axes, keepdims=True)
    w = np.exp(Z - m)
    expected = w / w.sum(axes, keepdims=True)
    tolerance = {"rel": 1e-13}
    z = quick.array(Z)
    assert quick.back(s.softmax(z, axis=axis)) == pytest.approx(expected, **tolerance)
    assert quick.back(s.log_softmax(z, axis=axis)) == pytest.approx(np.log(expected), **tolerance)
    lse = np.log(w.sum(axes)) + m.reshape(w.sum(axes).shape)
    assert quick.back(s.logsumexp(z, axis=axis)) == pytest.approx(lse, **tolerance)
    assert s.logsumexp(z, axis=axis, keepdims=True).shape == m.shape
    p, with_lse = s.softmax_with_lse(z, axis=axis)
    assert quick.back(p) == pytest.approx(expected, **tolerance)
    assert quick.back(with_lse) == pytest.approx(lse, **tolerance)
    entropy = -(expected * np.log(expected)).sum(axes)
    assert quick.back(s.entropy(z, axis=axis)) == pytest.approx(entropy, abs=1e-14, **tolerance)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (2, 0, 3), (0, 0), (1,), (1, 1, 1)])
def test_empty_and_tiny_shapes(quick: Backend, shape: tuple[int, ...]) -> None:
    z = quick.array(np.zeros(shape))
    for function in (s.softmax, s.log_softmax, s.softmin, s.hardmax, s.logcumsumexp):
        assert function(z).shape == shape
    for function in (s.logsumexp, s.entropy, s.soft_argmax):
        result = function(z)
        assert result.shape == shape[:-1]
        empty = {s.logsumexp: -math.inf, s.entropy: 0.0, s.soft_argmax: 0.0}[function]
        assert (quick.back(result) == (empty if shape[-1:] == (0,) else 0.0)).all()
        assert function(z, axis=None).shape == ()
    assert s.softmax_jacobian(z).shape == (shape + shape[-1:] if shape else (1, 1))
    assert s.kl_divergence(z, z).shape == shape[:-1]
    assert s.renyi_entropy(z, 0.5).shape == shape[:-1]
    assert s.boltzmann(z, 1.0).heat_capacity.shape == shape[:-1]


@st.composite
def layouts(draw: Any) -> tuple[np.ndarray, int]:
    """Draw an array of any shape, axis order and strides, and one of its axes. Some scores are -inf."""
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=9))
    elements = st.one_of(st.floats(-1e4, 1e4, width=32), st.sampled_from([-math.inf, 0.0, float(np.float32(1e-38))]))
    z = draw(hnp.arrays(dtype, shape, elements=elements))
    z = np.transpose(z, draw(st.permutations(range(len(shape)))))
    z = z[tuple(slice(None, None, draw(st.sampled_from([1, 2, -1, -3]))) for _ in shape)]
    return z, draw(st.integers(-z.ndim, z.ndim - 1))


@given(layouts(), st.sampled_from([1.0, 3.7, -0.5]), st.sampled_from(["native", "reference"]))
def test_any_layout_is_right(case: tuple[np.ndarray, int], temperature: float, name: str) -> None:
    z, axis = case
    rows = np.moveaxis(z, axis, -1)
    truth = family_truth(np.ascontiguousarray(rows).reshape(-1, rows.shape[-1]), temperature)
    bound = 3 if z.dtype == np.float32 else 4
    back = lambda p: np.moveaxis(p, axis, -1).reshape(-1, rows.shape[-1])  # noqa: E731
    with s.using(name):
        # For T < 0 the scaled score of -inf is +inf. test_edges.py tests such rows.
        if not (np.isinf(z) & (temperature < 0)).any():
            assert ulp_error(back(s.softmax(z, axis=axis, temperature=temperature)), *truth.softmax).max() <= bound
            assert (
                ulp_error(back(s.log_softmax(z, axis=axis, temperature=temperature)), *truth.log_softmax).max() <= bound
            )
            lse = s.logsumexp(z, axis=axis, temperature=temperature).reshape(-1)
            assert ulp_error(lse, *truth.logsumexp, at=truth.largest).max() <= bound


@given(layouts(), st.sampled_from(["native", "reference"]))
def test_layout_does_not_change_bits(case: tuple[np.ndarray, int], name: str) -> None:
    z, axis = case
    with s.using(name):
        for function in (s.softmax, s.log_softmax, s.logsumexp):
            packed = np.ascontiguousarray(np.moveaxis(z, axis, -1))
            whole = function(z, axis=axis)
            other = function(packed)
            same = np.moveaxis(whole, axis, -1) if whole.ndim == z.ndim else whole
            assert np.array_equal(same, other, equal_nan=True)


@pytest.mark.parametrize("axis", [1, (0, -1), None])
def test_kept_axes_have_size_1(quick: Backend, axis: Any) -> None:
    z = quick.array(Z)
    axes = range(3) if axis is None else [one % 3 for one in np.atleast_1d(axis)]
    shape = tuple(1 if i in axes else n for i, n in enumerate(Z.shape))
    values = np.outer(np.arange(Z.size // np.prod(shape)), [1.0, 2.0])
    for function in (
        s.logsumexp,
        s.entropy,
        s.soft_argmax,
        lambda z, **options: s.renyi_entropy(z, 2.0, **options),
        lambda z, **options: s.kl_divergence(z, 2.0 * z, **options),
        lambda z, **options: s.soft_argmax(z, quick.array(values), **options),
    ):
        plain, kept = (quick.back(function(z, axis=axis, keepdims=keep)) for keep in (False, True))
        assert kept.shape[:3] == shape
        assert np.array_equal(np.reshape(kept, np.shape(plain)), plain)


@pytest.mark.parametrize("axis", [(0, 1), (1, 0), (-2, -1), (-1,), 1, None])
def test_coordinates_of_grids(quick: Backend, axis: Any) -> None:
    """The result has one number per axis, in the order of `axis`: the mean position under the softmax of the grid."""
    axes = (0, 1, 2) if axis is None else tuple(int(a) % 3 for a in np.atleast_1d(axis))
    p = np.asarray(s.softmax(Z, axis=axis, temperature=0.7), np.float64)
    found = quick.back(s.spatial_soft_argmax(quick.array(Z), axis=axis, temperature=0.7))
    places = np.indices(Z.shape)
    expected = np.stack([np.sum(p * places[a], axis=axes) for a in axes], axis=-1)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6 if quick.library == "jax" else 1e-14)
    both = quick.back(s.spatial_soft_argmax(quick.array(Z), axis=None, temperature=[0.7, 2.0]))
    assert both.shape == (2, 3)
    assert np.array_equal(both[0], quick.back(s.spatial_soft_argmax(quick.array(Z), axis=None, temperature=0.7)))


@pytest.mark.parametrize(("z", "axis"), [(Z, ()), (0.0, None)])
def test_a_grid_has_axes(z: Any, axis: Any) -> None:
    expected = r"axis: expected at least one axis, got (\(\) for scores of 3|None for scores of 0) dimensions"
    with pytest.raises(ValueError, match=expected):
        s.spatial_soft_argmax(z, axis=axis)


def test_gradients_of_coordinates() -> None:
    torch = pytest.importorskip("torch")
    z = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: s.spatial_soft_argmax(z, temperature=0.5), z)
    assert torch.autograd.gradgradcheck(lambda z: s.spatial_soft_argmax(z, temperature=0.5), z)
