"""Every option changes the result, dtypes are as documented, and defaults are the same everywhere."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from tests.oracle.backends import Backend

import softargmax as s
from softargmax.loss.check_options import DEFAULTS, Keywords

RNG = np.random.default_rng(8)
Z, ZT = RNG.standard_normal((4, 4)) * 3, RNG.standard_normal((4, 4)) * 3
H, W = RNG.standard_normal((4, 3)), RNG.standard_normal((4, 3))
HT, WT = RNG.standard_normal((4, 2)), RNG.standard_normal((4, 2))
Y = np.array([0, 3, 1, 2])
SHARED: dict[str, Any] = {
    "ignore_index": 3,
    "softcap": 2.0,
    "temperature": 2.0,
    "where": np.array([True, True, False, True]),
    "dtype": "float32",
}
LOSS = SHARED | {
    "reduction": "sum",
    "weight": np.array([1.0, 2.0, 3.0, 4.0]),
    "label_smoothing": 0.3,
    "z_loss": 0.1,
}
DISTIL = {k: v for k, v in SHARED.items() if k != "ignore_index"} | {
    "reduction": "sum",
    "divergence": "reverse",
    "scale": False,
}
AXIS = {"axis": 0}
BIAS = {"bias": np.array([1.0, -1.0, 0.5, 2.0])}
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "cross_entropy": ((Z, Y), LOSS | AXIS),
    "cross_entropy_terms": ((Z, Y), LOSS | AXIS),
    "cross_entropy_and_gradient": ((Z, Y), LOSS | AXIS),
    "selected_log_softmax": ((Z, Y), SHARED | AXIS),
    "linear_cross_entropy": ((H, W, Y), LOSS | BIAS),
    "linear_cross_entropy_terms": ((H, W, Y), LOSS | BIAS),
    "linear_cross_entropy_and_gradient": ((H, W, Y), LOSS | BIAS),
    "linear_selected_log_softmax": ((H, W, Y), SHARED | BIAS),
    "distillation": ((Z, ZT), DISTIL | AXIS),
    "linear_distillation": (
        (H, W, HT, WT),
        DISTIL | {"bias_student": BIAS["bias"], "bias_teacher": BIAS["bias"]},
    ),
}
CASES = [(name, option) for name, (_, options) in CALLS.items() for option in options]
LIBRARIES = [Backend(library, "reference") for library in ("numpy", "array_api_strict", "torch")]


@pytest.fixture(params=LIBRARIES, ids=str)
def library(request: pytest.FixtureRequest) -> Any:
    request.param.array([0.0])
    return request.param


def called(library: Backend, name: str, **options: Any) -> list[np.ndarray]:
    arguments, _ = CALLS[name]
    for key, value in options.items():
        if isinstance(value, np.ndarray):
            options[key] = library.array(value)
    if "dtype" in options:
        options["dtype"] = library.dtype(options["dtype"])
    result = getattr(s, name)(*(library.array(x) for x in arguments), **options)
    return [library.back(x) for x in (result if isinstance(result, tuple) else (result,)) if x is not None]


@pytest.mark.parametrize(("name", "option"), CASES)
def test_every_option_changes_the_result(library: Backend, name: str, option: str) -> None:
    more = {"temperature": 2.0} if option == "scale" else {}  # at temperature 1 the factor T^2 is 1
    plain = called(library, name, **more)
    changed = called(library, name, **more, **{option: CALLS[name][1][option]})
    differ = [
        a.dtype != b.dtype or a.shape != b.shape or not np.array_equal(a, b)
        for a, b in zip(plain, changed, strict=False)
    ]
    assert any(differ) or len(plain) != len(changed)


def test_defaults_are_the_same_everywhere() -> None:
    shared = defaults(s.cross_entropy)
    assert shared.keys() == Keywords.__optional_keys__
    assert DEFAULTS.items() <= shared.items()
    for function in (s.selected_log_softmax, s.linear_selected_log_softmax, s.linear_cross_entropy):
        own = {name: default for name, default in defaults(function).items() if name not in ("bias", "exact")}
        assert own.items() <= shared.items()


def defaults(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {x.name: x.default for x in parameters if x.kind is x.KEYWORD_ONLY}


def test_dtypes(library: Backend) -> None:
    y = library.array(np.array([0, 1]))
    for dtype in library.dtypes:
        wide = "float32" if "16" in dtype else dtype
        z, h, w = (library.array(x[:2], dtype) for x in (Z, H, W))
        found = s.cross_entropy_and_gradient(z, y)
        assert str(found.loss.dtype).endswith(wide)
        assert str(found.gradient.dtype).endswith(dtype)
        assert str(s.selected_log_softmax(z, y).dtype).endswith(wide)
        assert str(s.distillation(z, z).dtype).endswith(wide)
        linear = s.linear_cross_entropy_and_gradient(h, w, y)
        assert [str(x.dtype).rsplit(".", 1)[-1] for x in linear[:3]] == [wide, dtype, dtype]
        assert str(s.cross_entropy(z, y, dtype=library.dtype("float64")).dtype).endswith("float64")


def test_half_precision_is_computed_in_float32(library: Backend) -> None:
    y = library.array(np.array([0, 1, 2, 3]))
    for dtype in library.dtypes:
        if "16" in dtype:
            z, h, w = (library.array(x, dtype) for x in (Z, H, W))
            z64, h64, w64 = (library.array(library.back(x), "float64") for x in (z, h, w))
            loss, wide = s.cross_entropy(z, y), s.cross_entropy(z64, y)
            assert library.back(loss) == library.back(wide).astype("float32")
            linear, exact = s.linear_cross_entropy(h, w, y), s.linear_cross_entropy(h64, w64, y)
            assert library.back(linear) == pytest.approx(library.back(exact), rel=1e-6)


def test_integers_and_lists() -> None:
    assert s.cross_entropy([[1, 2], [3, 1]], [0, 1]) == s.cross_entropy([[1.0, 2.0], [3.0, 1.0]], [0, 1])
    for dtype in ("uint8", "int8", "int16", "uint64"):
        assert s.cross_entropy(Z, np.array([0, 3, 1, 2], dtype)) == s.cross_entropy(Z, [0, 3, 1, 2])
    assert s.cross_entropy(Z, Y, ignore_index=np.int64(3)) == s.cross_entropy(Z, Y, ignore_index=3)
    assert s.cross_entropy(Z, Y, weight=[1, 2, 3, 4]) == s.cross_entropy(Z, Y, weight=LOSS["weight"])


def test_mixed_layers() -> None:
    found = s.linear_cross_entropy_and_gradient(H.astype("float16"), W.astype("float32"), Y, bias=BIAS["bias"])
    assert [x.dtype.name for x in found] == ["float64", "float16", "float32", "float64"]
