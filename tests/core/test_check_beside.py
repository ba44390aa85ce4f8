"""Checks of arguments other than the scores: device, library, byte order and size. Each error names the argument."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import softargmax

Z = np.arange(12.0).reshape(3, 4)


def on_meta(torch: Any) -> dict[str, Any]:
    one = {"device": "meta"}
    return {
        "where": lambda z: softargmax.softmax(z, where=torch.ones(4, dtype=torch.bool, **one)),
        "temperature": lambda z: softargmax.softmax(z, temperature=torch.ones(3, **one)),
        "weights": lambda z: softargmax.logsumexp(z, weights=torch.ones(4, **one)),
        "offsets": lambda z: softargmax.segment_softmax(z, torch.tensor([0, 3], **one)),
        "values": lambda z: softargmax.soft_argmax(z, torch.ones(4, **one)),
        "z_q": lambda z: softargmax.kl_divergence(z, torch.ones(4, **one)),
        "scores": lambda z: softargmax.State.empty(3, like=z).fold(torch.ones((3, 4), **one)),
    }


@pytest.mark.parametrize("name", ["where", "temperature", "weights", "offsets", "values", "z_q", "scores"])
@pytest.mark.parametrize("implementation", ["native", "reference"])
def test_tensors_on_another_device(name: str, implementation: str) -> None:
    torch = pytest.importorskip("torch")
    call = on_meta(torch)[name]
    with (
        softargmax.using(implementation),
        pytest.raises(ValueError, match=f"^{name}: expected an array on cpu, got one on meta"),
    ):
        call(torch.ones(3, 4))


def test_a_0d_temperature_may_be_in_cpu_memory() -> None:
    torch = pytest.importorskip("torch")
    z = torch.ones((3, 4), device="meta")
    assert softargmax.softmax(z, temperature=torch.tensor(2.0)).device.type == "meta"
    with pytest.raises(ValueError, match=r"^temperature: expected an array on meta, got one on cpu"):
        softargmax.softmax(z, temperature=torch.ones(3))
    with pytest.raises(ValueError, match=r"^temperature: expected an array on cpu, got one on meta"):
        softargmax.softmax(torch.ones(3), temperature=torch.tensor(2.0, device="meta"))


@pytest.mark.parametrize("dtype", [">f4", ">f8", "<f4", np.dtype(">f2")])
def test_a_requested_foreign_byte_order_becomes_native(dtype: Any) -> None:
    for function in (softargmax.softmax, softargmax.log_softmax, softargmax.logsumexp):
        found = function(Z, dtype=dtype)
        expected = function(Z, dtype=np.dtype(dtype).newbyteorder("="))
        assert found.dtype == expected.dtype
        assert (found == expected).all()
    with pytest.raises(TypeError, match=r"^out: expected dtype float64, got >f8; dtype= selects another"):
        softargmax.softmax(Z, out=np.empty((3, 4), ">f8"))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: softargmax.softmax(Z, temperature=10**400),
            ValueError,
            "temperature: expected a number in the range of float64, got an integer outside it",
        ),
        (
            lambda: softargmax.softmax(Z, temperature=-(10**5000)),
            ValueError,
            "temperature: expected a number in the range of float64, got an integer outside it",
        ),
        (
            lambda: softargmax.softmax(Z, base=10**400),
            ValueError,
            "base: expected a number in the range of float64, got an integer outside it",
        ),
        (
            lambda: softargmax.boltzmann(Z, 1.0, k=10**400),
            ValueError,
            "k: expected a number in the range of float64, got an integer outside it",
        ),
        (
            lambda: softargmax.softmax(Z, temperature=np.array("a")),
            TypeError,
            "temperature: expected dtype float16, bfloat16, float32, float64, an integer or bool, got <U1",
        ),
        (
            lambda: softargmax.softmax(Z, temperature=np.array("2")),
            TypeError,
            "temperature: expected dtype float16, bfloat16, float32, float64, an integer or bool, got <U1",
        ),
        (
            lambda: softargmax.softmax(Z, temperature=np.array(1j)),
            TypeError,
            "temperature: expected dtype float16, bfloat16, float32, float64, an integer or bool",
        ),
        (
            lambda: softargmax.softmax(Z, temperature=np.array(None)),
            TypeError,
            "temperature: expected dtype float16, bfloat16, float32, float64, an integer or bool, got object",
        ),
        (
            lambda: softargmax.softmax(Z, out=np.ma.zeros((3, 4))),
            TypeError,
            "out: expected a plain array, got a masked array; pass its data",
        ),
        (
            lambda: softargmax.softmax(Z, dtype=np.int32),
            TypeError,
            "dtype: expected numpy's float16, bfloat16, float32 or float64, or its name",
        ),
    ],
)
def test_bad_calls(call: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match="^" + re.escape(says)):
        call()


def test_errors_name_libraries_as_their_users_do() -> None:
    with pytest.raises(
        TypeError, match=r"dtype: expected numpy's float16, bfloat16, float32 or float64, or its name, got 'floaty'$"
    ):
        softargmax.softmax(Z, dtype="floaty")


def test_lists_that_a_library_refuses() -> None:
    torch = pytest.importorskip("torch")
    for weights in (["a"] * 4, [10**400] * 4, [[1.0], [1.0, 2.0]]):
        with pytest.raises(
            (TypeError, ValueError), match=r"^weights: expected an array, got list, which cannot be converted"
        ):
            softargmax.logsumexp(torch.ones(3, 4), weights=weights)


def test_errors_use_the_arguments_own_name_for_scores() -> None:
    for says, options in {
        "where": {"where": [True] * 3},
        "weights": {"weights": [1.0] * 3},
        "axis": {"axis": 7},
    }.items():
        with pytest.raises((ValueError, IndexError), match=f"^{says}: ") as caught:
            softargmax.boltzmann(Z, 1.0, **options)
        assert not re.search(r"\bz\b", str(caught.value))


def test_values_of_no_width() -> None:
    for z in (Z, np.full((3, 4), np.nan), np.zeros((3, 0))):
        assert softargmax.soft_argmax(z, np.zeros((z.shape[1], 0))).shape == (3, 0)
    assert softargmax.soft_argmax(Z, np.zeros((3, 0)), axis=0).shape == (4, 0)
    assert softargmax.soft_argmax(Z.astype("f4"), np.zeros((12, 0)), axis=None).dtype == np.float32


def test_values_of_no_width_on_each_library(backend: Any) -> None:
    z, values = backend.array(Z, "float32"), backend.array(np.zeros((4, 0)), "float32")
    assert tuple(softargmax.soft_argmax(z, values).shape) == (3, 0)


def test_float16_with_bfloat16_gives_float32() -> None:
    half = pytest.importorskip("ml_dtypes").bfloat16
    p, q = Z.astype(np.float16), (Z[::-1] / 4).astype(half)
    expected = softargmax.kl_divergence(p.astype(np.float32), q.astype(np.float32))
    assert (softargmax.kl_divergence(p, q) == expected).all()
    assert softargmax.kl_divergence(q, p).dtype == np.float32


class Lazy:
    """A lazy array like those of Dask."""

    shape, ndim = (3, 4), 2

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the lazy array was computed")

    def __dask_graph__(self) -> dict[str, Any]:
        return {}


def test_lazy_arrays_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^z: expected an array in memory, got a lazy Lazy;"):
        softargmax.softmax(Lazy())
    with pytest.raises(TypeError, match=r"^z_p: expected an array in memory, got a lazy Lazy;"):
        softargmax.kl_divergence(Lazy(), Z)
    with pytest.raises(TypeError, match=r"^where: expected an array in memory, got a lazy Lazy;"):
        softargmax.softmax(Z, where=Lazy())
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"^weights: expected an array in memory, got a lazy Lazy;"):
        softargmax.logsumexp(torch.ones(3, 4), weights=Lazy())


BAD_OFFSETS = (
    ([0, 4], "expected bounds from 0 to 3, the length of z, got 0 to 4"),
    ([1, 3], "expected bounds from 0 to 3, the length of z, got 1 to 3"),
    ([0, 2, 1, 3], "expected non-decreasing numbers, got some that decrease"),
    ([0, -1, 3], "expected non-decreasing numbers, got some that decrease"),
)


@pytest.mark.parametrize(("offsets", "says"), BAD_OFFSETS)
def test_lists_of_offsets_are_checked_for_any_array(offsets: list[int], says: str, backend: Any) -> None:
    with pytest.raises(ValueError, match=f"^offsets: {says}"):
        softargmax.segment_softmax(backend.array(Z, "float32"), offsets)
    with pytest.raises(ValueError, match=f"^offsets: {says}"):
        softargmax.segment_softmax(backend.array(Z, "float32"), [np.int64(one) for one in offsets])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int16", "int32"])
def test_offsets_of_tensors_of_every_integer_type(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    z = torch.arange(8.0, requires_grad=True)
    given = torch.tensor([0, 3, 8]).to(getattr(torch, dtype))
    for name in ("native", "reference"):
        with softargmax.using(name):
            (grad,) = torch.autograd.grad(softargmax.segment_logsumexp(z, given).sum(), z)
            assert grad.sum().item() == pytest.approx(2)
            with pytest.raises(ValueError, match=r"^offsets: expected non-decreasing numbers, got some that decrease"):
                softargmax.segment_softmax(z, torch.tensor([0, 5, 3, 8]).to(getattr(torch, dtype)))


def test_numpy_options_for_arrays_of_any_library(backend: Any) -> None:
    """For scores of any library, masks, targets, temperatures and weights may be NumPy arrays of any layout.

    The test uses read-only, strided and byte-swapped arrays.
    """
    z = backend.array(Z, "float32")
    mask, target = np.array([[True, False, True, True]] * 3), np.array([3, 0, 2])
    mask.flags.writeable = False
    calls: list[tuple[Any, np.ndarray[Any, Any]]] = [
        (lambda z, values: softargmax.softmax(z, where=values), mask),
        (lambda z, values: softargmax.softmax(z, temperature=values), np.arange(1.0, 4.0)[::-1]),
        (lambda z, values: softargmax.logsumexp(z, weights=values), np.arange(8.0)[::-2].astype(">f8")),
        (softargmax.soft_argmax, np.arange(4.0)),
        (softargmax.segment_softmax, np.array([0, 1, 3])),
        (softargmax.cross_entropy, target),
    ]
    for call, values in calls:
        native = values.astype(values.dtype.newbyteorder("="))
        own = backend.array(native, "int32" if values.dtype.kind == "i" else None)
        found, expected = call(z, values), call(z, own)
        assert type(found) is type(expected)
        assert np.array_equal(backend.back(found), backend.back(expected))


def test_lists_of_offsets_are_checked_for_a_device() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"^offsets: expected non-decreasing numbers, got some that decrease"):
        softargmax.segment_softmax(torch.ones(3, device="meta"), (0, 2, 1, 3))


def test_values_in_strict_arrays_are_checked() -> None:
    strict = pytest.importorskip("array_api_strict")
    z = strict.ones((3, 4))
    for offsets, says in BAD_OFFSETS:
        with pytest.raises(ValueError, match=f"^offsets: {says}"):
            softargmax.segment_softmax(z, strict.asarray(offsets))
    with pytest.raises(
        ValueError, match=r"^weights: expected 0 or positive numbers, got some negative; signed_logsumexp accepts them"
    ):
        softargmax.logsumexp(z, weights=strict.asarray([1.0, -1.0, 1.0, 1.0]))
    with pytest.raises(ValueError, match=r"^temperature: expected any number except NaN, got nan in row \(1,\)"):
        softargmax.softmax(z, temperature=strict.asarray([1.0, np.nan, 1.0]))


@pytest.mark.parametrize("strides", [(8, 8), (8, 16), (24, 16)])
def test_an_out_that_overlaps_itself(strides: tuple[int, int]) -> None:
    """An `out` is refused if its elements overlap or might overlap, even if `out` is z itself."""
    z = np.arange(12.0).reshape(4, 3)
    out = np.lib.stride_tricks.as_strided(np.zeros(64), (4, 3), strides)
    for scores in (z, out):
        with pytest.raises(
            ValueError, match=r"^out: expected elements with separate memory, got an array whose elements share memory"
        ):
            softargmax.softmax(scores, out=out)
    torch = pytest.importorskip("torch")
    with pytest.raises(
        ValueError, match=r"^out: expected elements with separate memory, got an array whose elements share memory"
    ):
        softargmax.softmax(torch.from_numpy(z), out=torch.zeros(64).double().as_strided((4, 3), (1, 1)))
    for good in (np.empty((3, 4)).T, np.empty((8, 9))[::-2, ::3], np.empty((4, 3, 2))[:, :, 1]):
        assert softargmax.softmax(z, out=good) is good


def test_negated_views_with_out() -> None:
    torch = pytest.importorskip("torch")
    z = torch.tensor([1 + 2j, 2 - 1j]).conj().imag
    assert z.is_neg()
    assert torch.equal(softargmax.softmax(z, out=torch.zeros(2)), softargmax.softmax(z.clone()))
    with pytest.raises(
        ValueError, match=r"^out: expected a tensor whose memory contains its values, got a lazily negated view"
    ):
        softargmax.softmax(torch.zeros(2), out=z)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_tangents_are_not_lost_in_out() -> None:
    torch = pytest.importorskip("torch")
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        dual = forward.make_dual(torch.ones(3), torch.ones(3))
        with pytest.raises(TypeError, match=r"^out: z carries a forward-mode tangent"):
            softargmax.softmax(dual, out=torch.zeros(3))
        with pytest.raises(TypeError, match=r"^out: out carries a forward-mode tangent"):
            softargmax.softmax(torch.ones(3), out=dual)


@pytest.mark.filterwarnings("ignore")
def test_torch_jit_trace_records_the_operation() -> None:
    torch = pytest.importorskip("torch")
    z = torch.tensor([1.0, 2.0, 3.0])
    for name in ("softmax", "log_softmax", "logsumexp", "hardmax", "logcumsumexp"):
        function = getattr(softargmax, name)
        traced = torch.jit.trace(lambda x, function=function: function(x), torch.ones(3))
        assert torch.equal(traced(z), function(z)), name


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch warns about tensors that it converts to numbers
def test_lists_of_tensors_are_refused() -> None:
    torch = pytest.importorskip("torch")
    one = torch.tensor(2.0, requires_grad=True)
    z, row = torch.ones(2, 3), torch.ones(3, requires_grad=True)
    says = r"expected one tensor, got a (list|tuple) of tensors; stack them"
    for listed in ([row, row], (row, row), [one, 1.0], [[one], [one]], [row, [1.0, 2.0, 3.0]]):
        for function in (softargmax.softmax, softargmax.logsumexp, softargmax.hardmax):
            with pytest.raises(TypeError, match=f"^z: {says}"):
                function(listed)
    for scores in (z, z.numpy()):
        with pytest.raises(TypeError, match=f"^temperature: {says}"):
            softargmax.softmax(scores, temperature=[one, one])
        with pytest.raises(TypeError, match=f"^weights: {says}"):
            softargmax.logsumexp(scores, weights=[one, one, one])
    with pytest.raises(TypeError, match=f"^like: {says}"):
        softargmax.State.empty(like=[one, one])
    assert (softargmax.softmax([one.detach(), one.detach()]) == 0.5).all()


def test_errors_of_array_conversion_are_kept() -> None:
    class Broken:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("the file is gone")

    with pytest.raises(RuntimeError, match="the file is gone"):
        softargmax.softmax(Broken())


@pytest.mark.parametrize("temperature", [None, b"1", object(), {}], ids=lambda t: type(t).__name__)
def test_a_temperature_that_is_not_a_number_is_a_type_error(temperature: Any, backend: Any) -> None:
    z = backend.array(Z, "float32")
    calls = (
        lambda: softargmax.softmax(z, temperature=temperature),
        lambda: softargmax.logsumexp(z, temperature=temperature),
        lambda: softargmax.boltzmann(z, temperature),
        lambda: softargmax.segment_softmax(z, [0, 3], temperature=temperature),
        lambda: softargmax.stream.softmax(Z, temperature=temperature),
    )
    for call in calls:
        with pytest.raises(TypeError, match=r"^temperature: expected "):
            call()


@pytest.mark.parametrize(
    "call", [lambda w: softargmax.logsumexp(Z, weights=w), lambda w: softargmax.boltzmann(Z, 1.0, weights=w)]
)
def test_the_hint_for_negative_weights(call: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^weights: expected 0 or positive numbers, got some negative; signed_logsumexp accepts them"
    ):
        call([-1.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("implementation", ["native", "reference"])
def test_out_inside_vmap(implementation: str) -> None:
    torch = pytest.importorskip("torch")
    z, out, flat = torch.ones(2, 3), torch.zeros(2, 3), torch.zeros(3)
    calls = {
        "z": lambda row, _: softargmax.softmax(row, out=flat),
        "out": lambda _, to: softargmax.log_softmax(torch.ones(3), out=to),
        "both": lambda row, to: softargmax.softmin(row, out=to),
        "where": lambda row, _: softargmax.softmax(torch.ones(3), where=row > 0, out=flat),
        "temperature": lambda row, _: softargmax.softmax(torch.ones(3), temperature=row[0], out=flat),
    }
    for call in calls.values():
        with (
            softargmax.using(implementation),
            pytest.raises(TypeError, match=r"^out: expected None inside torch.func.vmap"),
        ):
            torch.func.vmap(call)(z, out)
    assert not out.any()
    assert not flat.any()
