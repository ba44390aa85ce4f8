"""The errors of the sparse maps and their messages. Nothing is written before an error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.oracle.backends import Backend

import softargmax as s

Z = np.arange(12.0).reshape(3, 4)
BAD: dict[str, list[tuple[Any, type[Exception], str]]] = {  # argument: (value, error, words of the message)
    "alpha": [
        (-0.5, ValueError, "alpha: expected a finite number above 0, got -0.5"),
        (-math.ulp(0.0), ValueError, "above 0"),
        (-math.inf, ValueError, "above 0"),
        (math.inf, ValueError, "alpha: expected a finite number above 0, got inf"),
        (math.nan, ValueError, "alpha: expected a finite number above 0, got nan"),
        (0, ValueError, "above 0"),
        (False, ValueError, "above 0"),
        (10**400, ValueError, "alpha: expected a number in the range of float64, got an integer outside it"),
        (None, TypeError, "alpha: expected a number, or an array with one per row, got None"),
        ("1.5", TypeError, "expected a number, or an array with one per row, got '1.5'"),
        (1j, TypeError, "complex"),
        (np.array(0.0), ValueError, "above 0"),
        (np.array(math.nan), ValueError, "above 0"),
        ([1.5, 1.5, 0.0], ValueError, "expected a finite number above 0, got 0 in row (2,)"),
        ([1.5, math.nan, 2.0], ValueError, "alpha: expected a finite number above 0, got nan in row (1,)"),
        ([1.5, math.inf, 2.0], ValueError, "alpha: expected a finite number above 0, got inf in row (1,)"),
        (
            np.ones(4),
            ValueError,
            "alpha: expected a number, or a shape that broadcasts with the rows, (3,) (axes kept: (3, 1))",
        ),
        (np.ones((3, 4)), ValueError, "shape (3, 4)"),
        (np.ones((2, 3)), ValueError, "shape (2, 3)"),
        (np.array(["a"] * 3), TypeError, "dtype"),
        (np.full(3, 2j), TypeError, "complex128"),
    ],
    "axis": [
        (2, ValueError, "-2 to 1"),
        (-3, ValueError, "-2 to 1"),
        ((0, 0), ValueError, "each axis once"),
        ((0, -2), ValueError, "each axis once"),
        (1.0, TypeError, "integer"),
        ("rows", TypeError, "integer"),
    ],
    "where": [
        (np.ones(3, bool), ValueError, "(3, 4)"),
        (np.ones((1, 3, 4), bool), ValueError, "(3, 4)"),
        (np.ones(4), TypeError, "bool"),
        ([1, 0, 1, 0], TypeError, "bool"),
    ],
    "out": [
        (np.zeros((4, 3)), ValueError, "shape"),
        (np.zeros(12), ValueError, "shape"),
        (np.zeros((3, 4), np.float32), TypeError, "float64"),
        (np.zeros((3, 4), np.int64), TypeError, "float64"),
        ([[0.0] * 4] * 3, TypeError, "list"),
    ],
}
CASES = [(argument, *case) for argument, cases in BAD.items() for case in cases]


@pytest.mark.parametrize(("argument", "value", "error", "says"), CASES, ids=lambda x: str(x)[:30])
@pytest.mark.parametrize("function", [s.sparsemax, s.entmax, s.threshold], ids=lambda f: f.__name__)
def test_bad_arguments(function: Any, argument: str, value: Any, error: type[Exception], says: str) -> None:
    if (argument == "alpha" and function is s.sparsemax) or (argument == "out" and function is s.threshold):
        with pytest.raises(TypeError, match=argument):
            function(Z, **{argument: value})
        return
    out = np.full((3, 4), 7.0)
    options = {} if argument == "out" or function is s.threshold else {"out": out}
    for more in ({}, options):
        with pytest.raises(error, match=rf"^{argument}: ") as caught:
            function(Z, **{argument: value, **more})
        assert says in str(caught.value)
    assert (out == 7).all()


def test_order_1_raises_the_same_errors() -> None:
    """Order 1, for which entmax calls softmax, raises the same errors as other orders."""
    for argument, value, error, _ in CASES:
        if argument != "alpha":
            with pytest.raises(error, match=f"^{argument}: "):
                s.entmax(Z, 1.0, **{argument: value})


@pytest.mark.parametrize("z", [np.array(["a"]), np.array([None]), "word", {"a": 1}, None, np.array([1j])])
def test_scores_of_a_wrong_type(z: Any) -> None:
    for function in (s.sparsemax, s.entmax, s.threshold):
        with pytest.raises(TypeError, match=r"^z: .*float32"):
            function(z)
    with pytest.raises(ValueError, match=r"^z: "):
        s.sparsemax([[1.0, 2.0], [3.0]])


def test_out_must_not_overlap_other_arguments() -> None:
    """`out` may be z itself, but not a shifted view of z, and not the mask."""
    base = np.linspace(0, 1, 13)
    z = base[:12].reshape(3, 4)
    wanted = s.entmax(z.copy())
    for out in (base[1:].reshape(3, 4), np.broadcast_to(np.zeros(4), (3, 4))):
        with pytest.raises(ValueError, match=r"^out: "):
            s.entmax(z, out=out)
    assert (base == np.linspace(0, 1, 13)).all()
    mask = np.zeros((3, 4, 8), bool)
    with pytest.raises(ValueError, match=r"^out: "):
        s.entmax(z, where=mask[..., 0], out=mask.view(np.float64)[..., 0])
    orders = np.full((3, 4), 1.5)  # entmax copies the orders before it writes p, so `out` may overlap the orders
    assert (s.entmax(z.copy(), orders[:, 0], out=orders) == wanted).all()
    frozen = np.zeros((3, 4))
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out: .*read-only|^out: .*writ"):
        s.entmax(z, out=frozen)
    assert s.entmax(z, out=z) is z
    assert (z == wanted).all()


def test_arguments_of_another_array_library(quick: Backend) -> None:
    """Orders may be lists. `out` must be of z's library. A tensor of orders is refused for NumPy scores."""
    z = quick.array(Z)
    listed = s.entmax(z, [1.5, 2.0, 3.0])
    assert (quick.back(listed) == quick.back(s.entmax(z, quick.array([1.5, 2.0, 3.0])))).all()
    if quick.library == "torch":
        with pytest.raises(TypeError, match=r"^out: expected z's kind, Tensor, got ndarray"):
            s.entmax(z, out=np.zeros((3, 4)))
        torch = pytest.importorskip("torch")
        with pytest.raises(TypeError, match=r"^alpha: expected ndarray, a number or a list, got Tensor"):
            s.entmax(Z, torch.tensor([1.5, 2.0, 3.0]))


def test_a_wrong_order_gives_nan_under_tracing() -> None:
    torch = pytest.importorskip("torch")
    z, orders = torch.zeros(5, 3), torch.tensor([1.5, 0.0, math.nan, math.inf, -math.inf])
    for name in ("native", "reference"):
        with s.using(name):
            p = torch.func.vmap(s.entmax)(z, orders)
            assert p.isnan().all(-1).tolist() == [False, True, True, True, True], (name, p)
            found = torch.func.vmap(s.threshold)(z, orders)
            assert found.tau.isnan().tolist() == [False, True, True, True, True], (name, found)
            assert found.support_size.tolist() == [3, -1, -1, -1, -1], (name, found)
    with pytest.raises(ValueError, match=r"^alpha: expected a finite number above 0, got 0 in row \(1,\)"):
        s.entmax(z, orders)


def test_numbers_of_every_kind_are_orders() -> None:
    """Integers, NumPy scalars, 0-d arrays and True (as 1) are accepted as orders."""
    for order in (2, np.float32(2), np.int64(2), np.array(2.0), np.array(2), [2.0], np.float16(2)):
        assert (s.entmax(Z, order) == s.sparsemax(Z)).all()
        assert (s.threshold(Z, order).tau == s.threshold(Z, 2.0).tau).all()
    assert (s.entmax(Z, 1) == s.softmax(Z)).all()
