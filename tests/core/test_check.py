"""Bad arguments of NumPy, torch and JAX calls: each raises one clear error that names the argument."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.oracle.backends import Backend

import softargmax

Z = np.arange(12.0).reshape(3, 4)
ELEMENTWISE = (softargmax.softmax, softargmax.log_softmax, softargmax.softmin)
ROWWISE = (*ELEMENTWISE, softargmax.logsumexp, softargmax.entropy, softargmax.softmax_with_lse)

BAD = {  # argument: (invalid value, error type, text that the message must contain)
    "axis": [
        (2, (ValueError, IndexError), "-2 to 1"),
        (-3, IndexError, "-2 to 1"),
        ((0, 0), ValueError, "each axis once"),
        ((0, -2), ValueError, "each axis once"),
        (1.0, TypeError, "integer"),
        ("rows", TypeError, "integer"),
    ],
    "temperature": [
        (float("nan"), ValueError, "NaN"),
        ("hot", TypeError, "number"),
        (np.array([1.0, np.nan, 1.0]), ValueError, "NaN"),
        (np.ones(4), ValueError, "(3,)"),
        (np.ones((2, 3)), ValueError, "(3,)"),
        (np.ones((3, 4)), ValueError, "(3,)"),
        (None, TypeError, "temperature: expected a number, or an array with one per row, got None"),
        (1j, TypeError, "complex"),
    ],
    "where": [
        (np.ones(3, bool), ValueError, "(3, 4)"),
        (np.ones((1, 3, 4), bool), ValueError, "(3, 4)"),
        (np.ones(4), TypeError, "bool"),
        ([1, 0, 1, 0], TypeError, "bool"),
    ],
    "base": [
        (0.0, ValueError, "above 0"),
        (-2.0, ValueError, "above 0"),
        (float("nan"), ValueError, "above 0"),
        (float("inf"), ValueError, "finite"),
        ("e", TypeError, "number"),
    ],
    "dtype": [
        (np.int64, TypeError, "float32"),
        (np.complex64, TypeError, "float32"),
        ("floaty", TypeError, "dtype"),
    ],
}
CASES = [(argument, *case) for argument, cases in BAD.items() for case in cases]


@pytest.mark.parametrize(("argument", "value", "error", "says"), CASES)
@pytest.mark.parametrize("function", ROWWISE, ids=lambda f: f.__name__)
def test_bad_options(function: Any, argument: str, value: Any, error: Any, says: str) -> None:
    if argument == "dtype" and function is softargmax.entropy:
        pytest.skip("entropy has no dtype")
    with pytest.raises(error, match=f"^{argument}: ") as caught:
        function(Z, **{argument: value})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "z", [np.array(["a"]), np.array([object()]), np.array([None]), "word", {"a": 1}, None, np.array([1j])]
)
@pytest.mark.parametrize("function", ELEMENTWISE, ids=lambda f: f.__name__)
def test_scores_of_the_wrong_type(function: Any, z: Any) -> None:
    with pytest.raises(TypeError, match=r"^z: .*float32"):
        function(z)


def test_scores_that_are_ragged() -> None:
    with pytest.raises(ValueError, match=r"^z: "):
        softargmax.softmax([[1.0, 2.0], [3.0]])


def test_masked_arrays_are_pointed_to_where() -> None:
    with pytest.raises(TypeError, match=r"^z: expected a plain array, got a masked array; .*where="):
        softargmax.softmax(np.ma.masked_less(Z, 3))


def frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


OUTS = [
    (np.empty((4, 3)), ValueError, "shape"),
    (np.empty((3, 4), np.float32), TypeError, "float64"),
    (frozen(np.empty((3, 4))), ValueError, "read-only"),
    ([[0.0] * 4] * 3, TypeError, "ndarray"),
    (np.lib.stride_tricks.as_strided(np.zeros(4), (3, 4), (0, 8)), ValueError, "elements share memory"),
]


@pytest.mark.parametrize(("out", "error", "says"), OUTS)
@pytest.mark.parametrize("function", ELEMENTWISE, ids=lambda f: f.__name__)
def test_bad_out(function: Any, out: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=r"^out: ") as caught:
        function(Z, out=out)
    assert says in str(caught.value)


@pytest.mark.parametrize("shift", [1, 4, 11])
def test_out_that_overlaps_z_in_part(shift: int) -> None:
    memory = np.arange(40.0)
    z, out = memory[:12].reshape(3, 4), memory[shift : shift + 12].reshape(3, 4)
    with pytest.raises(
        ValueError, match=r"^out: expected z itself or separate memory, got an array that overlaps a part of z"
    ):
        softargmax.softmax(z, out=out)
    assert (memory == np.arange(40.0)).all(), "softmax wrote to out before checking it"


def test_out_that_is_z_reversed() -> None:
    memory = np.arange(16.0).reshape(4, 4)
    with pytest.raises(
        ValueError, match=r"^out: expected z itself or separate memory, got an array that overlaps a part of z"
    ):
        softargmax.softmax(memory, out=memory.T)


def test_out_that_overlaps_where() -> None:
    memory = np.zeros(96, np.uint8)
    where = memory[:12].view(bool).reshape(3, 4)
    with pytest.raises(ValueError, match=r"^out: expected memory separate from that of `where`, got an array"):
        softargmax.softmax(Z, where=where, out=memory.view(np.float64).reshape(3, 4))


@pytest.mark.parametrize("function", ELEMENTWISE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("implementation", ["native", "reference"])
def test_valid_out(function: Any, implementation: str) -> None:
    with softargmax.using(implementation):
        expected = function(Z)
        interleaved = np.zeros((3, 8))
        for z, out in ((Z, np.empty((3, 4))), (Z, np.empty((4, 3)).T), (Z, interleaved[:, ::2])):
            assert function(z, out=out) is out
            assert (out == expected).all()
        inplace = Z.copy()
        assert function(inplace, out=inplace) is inplace
        assert (inplace == expected).all()
        interleaved[:, ::2] = Z
        assert (function(interleaved[:, ::2], out=interleaved[:, 1::2]) == expected).all()
        narrow = np.empty((3, 4), np.float32)
        assert function(Z, dtype=np.float32, out=narrow) is narrow
        assert (narrow == function(Z, dtype=np.float32)).all()


def test_out_of_tensors() -> None:
    torch = pytest.importorskip("torch")
    z = torch.arange(12.0).reshape(3, 4)
    out = torch.empty(3, 4)
    assert softargmax.softmax(z, out=out) is out
    assert (out == softargmax.softmax(z)).all()
    bad = (
        (torch.empty(3, 4, requires_grad=True), TypeError, "requires grad"),
        (torch.empty(4, 3), ValueError, "shape"),
        (torch.empty(3, 4, dtype=torch.float64), TypeError, "float32"),
        (np.empty((3, 4), np.float32), TypeError, "Tensor"),
        (torch.empty(3, 4, device="meta"), ValueError, "device"),
    )
    for out_, error, says in bad:
        with pytest.raises(error, match=r"^out: ") as caught:
            softargmax.softmax(z, out=out_)
        assert says in str(caught.value)
    with pytest.raises(TypeError, match=r"^out: z requires grad"):
        softargmax.softmax(z.clone().requires_grad_(), out=torch.empty(3, 4))
    memory = torch.arange(20.0)
    with pytest.raises(
        ValueError, match=r"^out: expected z itself or separate memory, got an array that overlaps a part of z"
    ):
        softargmax.softmax(memory[:12].view(3, 4), out=memory[4:16].view(3, 4))


def test_out_of_jax() -> None:
    jnp = pytest.importorskip("jax.numpy")
    with pytest.raises(TypeError, match=r"^out: .*cannot be written"):
        softargmax.softmax(jnp.ones(3), out=jnp.ones(3))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: softargmax.logsumexp(Z, weights=[-1.0, 1, 1, 1]),
            ValueError,
            "weights: expected 0 or positive numbers, got some negative; signed_logsumexp accepts them",
        ),
        (
            lambda: softargmax.logsumexp(Z, weights=np.ones(3)),
            ValueError,
            "weights: expected a shape that broadcasts with scores of (3, 4), got (3,)",
        ),
        (
            lambda: softargmax.logsumexp(Z, weights=["a"] * 4),
            TypeError,
            "weights: expected dtype float16, bfloat16, float32, float64, an integer or bool, got <U1",
        ),
        (lambda: softargmax.boltzmann(Z, 1.0, weights=[-1.0, 1, 1, 1]), ValueError, "weights: "),
        (lambda: softargmax.boltzmann(Z, 1.0, k=0.0), ValueError, "k: "),
        (lambda: softargmax.boltzmann(Z, 1.0, k="k"), TypeError, "k: "),
        (lambda: softargmax.boltzmann(Z, 1.0, k=np.inf), ValueError, "k: "),
        (lambda: softargmax.boltzmann(Z, float("nan")), ValueError, "temperature: "),
        (
            lambda: softargmax.signed_logsumexp(Z, np.ones(3)),
            ValueError,
            "weights: expected a shape that broadcasts with scores of (3, 4), got (3,)",
        ),
        (
            lambda: softargmax.kl_divergence(Z, np.ones(3)),
            ValueError,
            "z_q: expected a shape that broadcasts with (3, 4), got (3,)",
        ),
        (
            lambda: softargmax.kl_divergence(Z, "a"),
            TypeError,
            "z_q: expected dtype float16, bfloat16, float32, float64, an integer or bool, got <U1",
        ),
        (
            lambda: softargmax.kl_divergence("a", Z),
            TypeError,
            "z_p: expected dtype float16, bfloat16, float32, float64, an integer or bool, got <U1",
        ),
        (lambda: softargmax.soft_argmax(Z, np.ones(3)), ValueError, "values: expected shape (4,) or (4, D), got "),
        (
            lambda: softargmax.soft_argmax(Z, np.ones((4, 1, 1))),
            ValueError,
            "values: expected shape (4,) or (4, D), got ",
        ),
        (lambda: softargmax.logcumsumexp(Z, axis=(0, 1)), TypeError, "axis: "),
        (lambda: softargmax.logcumsumexp(Z, axis=None), TypeError, "axis: "),
        (lambda: softargmax.logcumsumexp(Z, axis=2), IndexError, "axis: "),
        (lambda: softargmax.softmax_jacobian(Z, axis=(0, 1)), TypeError, "axis: "),
        (
            lambda: softargmax.segment_softmax(Z, [0, 4]),
            ValueError,
            "offsets: expected bounds from 0 to 3, the length of z, got 0 to 4",
        ),
        (
            lambda: softargmax.segment_softmax(Z, [1, 3]),
            ValueError,
            "offsets: expected bounds from 0 to 3, the length of z, got 1 to 3",
        ),
        (
            lambda: softargmax.segment_softmax(Z, [0, 2, 1, 3]),
            ValueError,
            "offsets: expected non-decreasing numbers, got some that decrease",
        ),
        (
            lambda: softargmax.segment_softmax(Z, [0, -1, 3]),
            ValueError,
            "offsets: expected non-decreasing numbers, got some that decrease",
        ),
        (
            lambda: softargmax.segment_softmax(Z, [0.0, 3.0]),
            TypeError,
            "offsets: expected an integer type, got dtype float64",
        ),
        (
            lambda: softargmax.segment_softmax(Z, [[0, 3]]),
            ValueError,
            "offsets: expected shape (S + 1,) for S segments",
        ),
        (
            lambda: softargmax.segment_softmax(Z, np.zeros(0, int)),
            ValueError,
            "offsets: expected shape (S + 1,) for S segments",
        ),
        (lambda: softargmax.segment_softmax(5.0, [0, 1]), ValueError, "z: expected at least one axis, got a 0-d array"),
        (
            lambda: softargmax.segment_logsumexp(Z, [0, 3], temperature=np.ones(3)),
            ValueError,
            "temperature: expected a number, or a shape that broadcasts with the segments, (1, 4)",
        ),
        (lambda: softargmax.logsumexp(Z + 0j, dtype=np.complex64), TypeError, "dtype: "),
    ],
)
def test_bad_calls(call: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=r"^" + re.escape(says)):
        call()


def test_arrays_of_two_libraries_are_not_mixed(backend: Backend) -> None:
    if backend.library == "numpy":
        pytest.skip("this test mixes NumPy arrays with those of another library")
    z = backend.array(Z)
    with pytest.raises(TypeError, match=r"^where: "):
        softargmax.softmax(Z, where=backend.array(np.ones(4, bool)))
    listed = softargmax.softmax(z, where=[True, False, True, True], temperature=[1.0, 2.0, 3.0])
    assert backend.back(listed)[:, 1].tolist() == [0.0] * 3


def test_bad_weights_of_tensors_raise() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"^weights: "):
        softargmax.logsumexp(torch.ones(3), weights=torch.tensor([1.0, -1.0, 1.0]))
    with pytest.raises(ValueError, match=r"^temperature: "):
        softargmax.softmax(torch.ones(3), temperature=torch.tensor(float("nan")))
    with pytest.raises(ValueError, match=r"^offsets: "):
        softargmax.segment_softmax(torch.ones(3), torch.tensor([0, 4]))


def tensors_that_are_not_dense() -> list[Any]:
    """Return tensors whose elements are not plain numbers in strided memory."""
    torch = pytest.importorskip("torch")
    z = torch.arange(6.0).reshape(2, 3)
    tensors = [z.to_sparse(), z.to_sparse_csr(), z.to_mkldnn(), torch.quantize_per_tensor(z, 0.1, 0, torch.quint8)]
    return [
        *tensors,
        torch.nested.nested_tensor([z[0], z[1, :2]]),
        torch.nested.as_nested_tensor(z, layout=torch.jagged),
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch warns that some of these layouts are prototypes
@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("function", [*ROWWISE, softargmax.hardmax, softargmax.logcumsumexp], ids=lambda f: f.__name__)
def test_tensors_that_are_not_dense(function: Any, implementation: str) -> None:
    torch = pytest.importorskip("torch")
    with softargmax.using(implementation):
        function(torch.zeros(2, 3))  # this call caches the implementation for float32 tensors
        for z in tensors_that_are_not_dense():
            with pytest.raises(TypeError, match=r"^z: .*(strided|float32)"):
                function(z)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_options_that_are_not_dense() -> None:
    torch = pytest.importorskip("torch")
    z = torch.zeros(2, 3)
    options = {"weights": z.to_sparse(), "where": (z > 1).to_sparse(), "temperature": z[:, 0].to_sparse()}
    for name, value in options.items():
        with pytest.raises(TypeError, match=f"^{name}: .*strided"):
            softargmax.logsumexp(z, **{name: value})
    with pytest.raises(TypeError, match=r"^z_q: .*strided"):
        softargmax.kl_divergence(z, z.to_sparse())
    with pytest.raises(TypeError, match=r"^offsets: .*strided"):
        softargmax.segment_softmax(z, torch.tensor([0, 2]).to_sparse())
    for out in (z.to_sparse(), z.to_mkldnn()):
        with pytest.raises(TypeError, match=r"^out: .*strided"):
            softargmax.softmax(z, out=out)
