"""The errors of the losses and their messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import softargmax as s

Z, Y = [[1.0, 2.0], [3.0, 1.0]], [0, 1]
OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"reduction": "avg"}, ValueError, r"reduction: expected one of 'none', 'mean', 'sum', got 'avg'"),
    ({"ignore_index": 1.0}, TypeError, "ignore_index: expected an integer, got 1.0"),
    ({"ignore_index": True}, TypeError, "ignore_index: expected an integer, got True"),
    ({"label_smoothing": 1.5}, ValueError, "label_smoothing: expected a number from 0 to 1, got 1.5"),
    ({"label_smoothing": -0.1}, ValueError, "label_smoothing: expected a number from 0 to 1, got -0.1"),
    ({"label_smoothing": float("nan")}, ValueError, "label_smoothing: expected a number from 0 to 1, got nan"),
    ({"label_smoothing": "a"}, TypeError, "label_smoothing: expected a number from 0 to 1, got 'a'"),
    ({"z_loss": -1}, ValueError, "z_loss: expected a finite number of at least 0, got -1"),
    ({"z_loss": float("inf")}, ValueError, "z_loss: expected a finite number of at least 0, got inf"),
    ({"softcap": 0}, ValueError, "softcap: expected a finite number above 0, got 0"),
    ({"softcap": "x"}, TypeError, "softcap: expected a number above 0, got 'x'"),
    ({"weight": [1.0]}, ValueError, r"weight: expected one number per class, shape \(2,\), got \(1,\)"),
    ({"weight": [1.0, -1.0]}, ValueError, "weight: expected 0 or positive numbers, got some negative"),
    (
        {"weight": [1j, 1.0]},
        TypeError,
        "weight: expected dtype float16, bfloat16, float32, float64, an integer or bool, got complex128",
    ),
    (
        {"temperature": float("nan")},
        ValueError,
        "temperature: expected any number except NaN, got nan",
    ),
    (
        {"temperature": [1.0, 2.0, 3.0]},
        ValueError,
        r"temperature: expected a number, or a shape that broadcasts .*got shape \(3,\)",
    ),
    ({"where": [1, 0]}, TypeError, "where: expected dtype bool, got int64"),
    (
        {"where": [True] * 3},
        ValueError,
        r"where: expected a shape that broadcasts with scores of \(2, 2\), got \(3,\)",
    ),
    (
        {"dtype": "int32"},
        TypeError,
        "dtype: expected numpy's float16, bfloat16, float32 or float64, or its name, got 'int32'",
    ),
    ({"foo": 1}, TypeError, "foo"),
]
TARGETS: list[tuple[Any, type[Exception], str]] = [
    ([0, 2], IndexError, r"target: expected 0 to 1, or -100 \(ignored\), got 2 at \(1,\)"),
    ([-1, 2], IndexError, r"target: expected 0 to 1, or -100 \(ignored\), got -1 at \(0,\)"),
    (
        [0.5, 0.0],
        TypeError,
        r"target: expected integers of shape \(2,\), or probabilities .*got dtype float64, shape \(2,\)",
    ),
    (
        [True, False],
        TypeError,
        r"target: expected integers of shape \(2,\), or probabilities .*got dtype bool, shape \(2,\)",
    ),
    ([0, 1, 1], ValueError, r"target: expected the rows' shape, \(2,\), got \(3,\)"),
    (
        [[0, 1], [1, 0]],
        ValueError,
        (
            r"target: expected the rows' shape, \(2,\), got \(2, 2\); "
            r"pass one-hot targets and other probabilities as floats$"
        ),
    ),
    (np.array([200, 0], "uint8"), IndexError, r"target: expected 0 to 1, or -100 \(ignored\), got 200 at \(0,\)"),
]
FUNCTIONS = {
    "cross_entropy": lambda y, **o: s.cross_entropy(Z, y, **o),
    "terms": lambda y, **o: s.cross_entropy_terms(Z, y, **o),
    "and_gradient": lambda y, **o: s.cross_entropy_and_gradient(Z, y, **o),
    "linear": lambda y, **o: s.linear_cross_entropy(Z, np.eye(2), y, **o),
    "linear_terms": lambda y, **o: s.linear_cross_entropy_terms(Z, np.eye(2), y, **o),
    "linear_and_gradient": lambda y, **o: s.linear_cross_entropy_and_gradient(Z, np.eye(2), y, **o),
}
each = pytest.mark.parametrize("name", FUNCTIONS)


@each
@pytest.mark.parametrize(("options", "error", "says"), OPTIONS, ids=lambda x: str(x)[:40])
def test_options(name: str, options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says if "foo" in options else f"^{says}"):
        FUNCTIONS[name](Y, **options)


@each
@pytest.mark.parametrize(("target", "error", "says"), TARGETS, ids=lambda x: str(x)[:40])
def test_targets(name: str, target: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=f"^{says}"):
        FUNCTIONS[name](target)


def test_class_axis_as_in_torch() -> None:
    """For z (N, K, d) and target (N, d) the error names the axis to pass. With that axis the loss equals torch's."""
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((2, 5, 7)), rng.integers(0, 5, (2, 7))
    for function in (s.cross_entropy, s.cross_entropy_terms, s.sparsemax_loss, s.selected_log_softmax):
        with pytest.raises(
            ValueError,
            match=r"expected the rows' shape, \(2, 5\), got \(2, 7\); "
            r"use axis=1 if the classes are along axis 1, as in torch",
        ):
            function(z, y)
    torch = pytest.importorskip("torch")
    wanted = torch.nn.functional.cross_entropy(torch.from_numpy(z), torch.from_numpy(y))
    assert s.cross_entropy(z, y, axis=1) == pytest.approx(float(wanted), rel=1e-14)


@each
def test_probabilities_have_no_ignored_class(name: str) -> None:
    with pytest.raises(ValueError, match=r"^ignore_index: expected -100, as the targets are probabilities, got 1"):
        FUNCTIONS[name](np.full((2, 2), 0.5), ignore_index=1)


@pytest.mark.parametrize("index", [[0, 2], [0.5, 0.0], np.full((2, 2), 0.5), [0]])
def test_index(index: Any) -> None:
    error = {0.5: TypeError, 2: IndexError}.get(np.max(index), ValueError)
    for call in (s.selected_log_softmax, lambda z, i: s.linear_selected_log_softmax(z, np.eye(2), i)):
        with pytest.raises(error, match=r"^index: "):
            call(np.array(Z), index)


def test_the_error_names_the_first_position() -> None:
    with pytest.raises(IndexError, match=r"^target: expected 0 to 3, or -100 \(ignored\), got 7 at \(1, 0, 2\)"):
        s.cross_entropy(np.zeros((2, 1, 3, 4)), [[[0, 1, 2]], [[3, 0, 7]]])
    with pytest.raises(
        IndexError, match=r"^target: expected -100 \(ignored\), as there are no classes, got 0 at \(0,\)"
    ):
        s.cross_entropy(np.zeros((1, 0)), [0])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "says"),
    [
        ((1.0, 0), {}, ValueError, "z: expected at least one axis, for the classes, got a 0-d array"),
        (
            (["a"], 0),
            {},
            TypeError,
            "z: expected dtype float16, bfloat16, float32, float64, an integer or bool, got <U1",
        ),
        ((Z, Y), {"axis": 2}, ValueError, "axis: expected from -2 to 1, got 2, which is out of range for 2 dimensions"),
        ((Z, Y), {"axis": (0, 1)}, TypeError, "axis: "),
    ],
)
def test_scores(arguments: Any, options: dict[str, Any], error: type[Exception], says: str) -> None:
    for function in (s.cross_entropy, s.cross_entropy_terms, s.cross_entropy_and_gradient, s.selected_log_softmax):
        with pytest.raises(error, match=f"^{says}"):
            function(*arguments, **options)


@pytest.mark.parametrize(
    ("h", "w", "bias", "says"),
    [
        (1.0, np.eye(2), None, r"h: expected hidden vectors of shape \(..., D\), got a 0-d array"),
        (Z, np.eye(3), None, r"w: expected shape \(K, 2\), with the width of h, got \(3, 3\)"),
        (Z, np.ones(2), None, r"w: expected shape \(K, 2\), with the width of h, got \(2,\)"),
        (Z, np.eye(2), [1.0], r"bias: expected one number per class, shape \(2,\), got \(1,\)"),
    ],
)
def test_layers(h: Any, w: Any, bias: Any, says: str) -> None:
    for function in (s.linear_cross_entropy, s.linear_cross_entropy_and_gradient, s.linear_selected_log_softmax):
        with pytest.raises(ValueError, match=f"^{says}"):
            function(h, w, Y, bias=bias)
    with pytest.raises(TypeError, match=r"^linear_cross_entropy\(\) has no argument axis; it takes "):
        s.linear_cross_entropy(Z, np.eye(2), Y, axis=0)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"divergence": "KL"}, ValueError, "divergence: expected one of 'forward', 'reverse', 'js', got 'KL'"),
        ({"reduction": "batchmean"}, ValueError, "reduction: "),
        ({"temperature": 0.0}, ValueError, "temperature: expected a finite number other than 0"),
        (
            {"temperature": float("inf")},
            ValueError,
            "temperature: expected a finite number other than 0",
        ),
        ({"softcap": -1}, ValueError, "softcap: "),
        ({"where": [1.0, 0.0]}, TypeError, "where: "),
    ],
)
def test_distillation(options: dict[str, Any], error: type[Exception], says: str) -> None:
    for call in (
        lambda **o: s.distillation(Z, Z, **o),
        lambda **o: s.linear_distillation(Z, np.eye(2), Z, np.eye(2), **o),
    ):
        with pytest.raises(error, match=f"^{says}"):
            call(**options)


def test_models_with_mismatched_shapes() -> None:
    with pytest.raises(ValueError, match=r"^z_teacher: expected a shape that broadcasts with \(2, 2\), got \(3,\)"):
        s.distillation(Z, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"^h_teacher, w_teacher: expected scores of the student"):
        s.linear_distillation(Z, np.eye(2), Z, np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"^w_teacher: expected shape \(K, 2\), with the width of h, got \(3, 3\)"):
        s.linear_distillation(Z, np.eye(2), Z, np.ones((3, 3)))


def test_arguments_of_other_libraries() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"^target: expected ndarray, a number or a list, got Tensor"):
        s.cross_entropy(np.zeros((2, 2)), torch.tensor([0, 1]))
    with pytest.raises(TypeError, match=r"^w: expected ndarray, a number or a list, got Tensor"):
        s.linear_cross_entropy(np.zeros((2, 2)), torch.eye(2), [0, 1])


def test_a_class_out_of_range_is_nan_under_tracing() -> None:
    torch = pytest.importorskip("torch")
    z = torch.zeros(2, 3, 2)
    wrong = torch.tensor([[0, 1, -100], [0, 2, -1]])
    with (
        pytest.raises(IndexError, match=r"target: expected 0 to 1, or -100 \(ignored\), got 2 at \(1, 1\)"),
        s.using("native"),
    ):  # the operator receives CPU tensors, and checks the classes
        torch.func.vmap(lambda z, y: s.cross_entropy(z, y, reduction="none"))(z, wrong)
    with s.using("reference"):
        _rows_are_nan(torch, z, wrong)


def _rows_are_nan(torch: Any, z: Any, wrong: Any) -> None:
    found = torch.func.vmap(lambda z, y: s.cross_entropy(z, y, reduction="none"))(z, wrong)
    assert found.isnan().tolist() == [[False, False, False], [False, True, True]]
    assert found[0, 2] == 0
    gradient = torch.func.vmap(torch.func.grad(lambda z, y: s.cross_entropy(z, y, reduction="sum")))(z, wrong)
    assert gradient.isnan().all(-1).tolist() == [[False, False, False], [False, True, True]]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (
            {"label_smoothing": 10**400},
            ValueError,
            "label_smoothing: expected a number in the range of float64, got an integer outside it",
        ),
        (
            {"reduction": np.array(["mean"])},
            ValueError,
            r"reduction: expected one of 'none', 'mean', 'sum', got array\(\['mean'\], dtype='<U4'\)",
        ),
        ({"ignore_index": -100.0}, TypeError, "ignore_index: expected an integer, got -100.0"),
    ],
)
def test_modules_raise_the_same_errors(options: dict[str, Any], error: type[Exception], says: str) -> None:
    torch = pytest.importorskip("torch")
    z, y = torch.zeros(2, 3), torch.tensor([0, 1])
    for call in (lambda: s.cross_entropy(z, y, **options), lambda: s.nn.CrossEntropyLoss(**options)(z, y)):
        with pytest.raises(error, match=f"^{says}"):
            call()
    for reduction in ("mean", "none"):
        with pytest.raises(
            TypeError, match=r"^target: expected a dense tensor, .*got a tensor of layout torch\.sparse_coo"
        ):
            s.cross_entropy(z, y.to_sparse(), reduction=reduction)


def test_a_layer_in_place_of_its_weight() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(
        TypeError, match=r"^w: expected an array, got the layer Linear; pass its weight as w and its bias as bias"
    ):
        s.linear_cross_entropy(torch.ones(2, 4), torch.nn.Linear(4, 3), torch.tensor([0, 1]))
