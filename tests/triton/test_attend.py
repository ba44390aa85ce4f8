"""The CUDA kernels of attention in Triton's interpreter: results, bits, NaN and inf, and calls left to the definition.

`make test-triton` runs these tests in a process of its own, because Triton looks at TRITON_INTERPRET when it compiles.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest

import softargmax as sa
from softargmax.core import check, dispatch

if not dispatch.INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1: run `make test-triton`", allow_module_level=True)

import torch
from tests.triton.attend_truth import BF16, F16, F32, cases, compare, found, inputs, truth

from softargmax.attend import operations, triton_kernels
from softargmax.attend.arguments import Packed, PackedVjp
from softargmax.attend.check_options import attention_of
from softargmax.core.triton_launch import define

SMALL = {name: (given, options) for name, given, options in cases("cpu", small=True, widths=(16,))}


@pytest.mark.parametrize("name", SMALL)
def test_results_are_near_the_definition(name: str) -> None:
    given, options = SMALL[name]
    compare(found(*given, **options), truth(*given, **options))


@pytest.mark.parametrize("queries", [34, 3])
def test_bits_do_not_depend_on_batch_queries_or_run(queries: int) -> None:
    for dtype in (BF16, F32):
        q, k, v, g = inputs(2, 2, 1, queries, 50, 16, 16, dtype)
        whole, again = found(q, k, v, g, causal=True), found(q, k, v, g, causal=True)
        one = found(q[1:], k[1:], v[1:], g[1:], causal=True)
        rows = slice(queries // 2, None) if queries < 20 else slice(17, None)
        last = found(q[:, :, rows], k, v, g[:, :, rows], causal=True)
        for name, x in whole.items():
            assert torch.equal(x, again[name]), name
            assert torch.equal(x[1:], one[name]), name
        for name in ("output", "lse", "dq"):
            assert torch.equal(whole[name][:, :, rows], last[name]), name


def test_parts_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernels, "SPLIT", 64)
    given = inputs(2, 2, 1, 3, 130, 16, 24, F16)
    for options in ({}, {"causal": True, "window": (70, None)}, {"key_lengths": torch.tensor([0, 65])}):
        compare(found(*given, **options), truth(*given, **options))


@functools.lru_cache
def of_finite(rows: int) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Inputs without NaN and inf, and their results."""
    given = inputs(1, 2, 2, rows, 18, 8, 8, F32)
    return given, found(*given, causal=True)


@pytest.mark.parametrize("rows", [5, 3])
@pytest.mark.parametrize(
    ("which", "value"), [*((x, y) for x in "qkvg" for y in ("nan", "inf")), ("k", "-inf"), ("q", "1e30")]
)
def test_nan_inf_and_overflow_change_what_depends_on_them(
    which: str, value: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_kernels, "FEW", 3)  # five rows are many
    clean, before = of_finite(rows)
    given = [x.clone() for x in clean]
    given["qkvg".index(which)][0, 1, 2, 3] = float(value)
    if (which, value, rows) != ("g", "nan", 3):  # the interpreter takes a second for each key
        monkeypatch.setattr(triton_kernels, "AT_ONCE", 16)
    ours = found(*given, causal=True)
    with sa.using("reference"):
        wide = [x.double() for x in given]
        theirs = dict(zip(("output", "lse"), sa.attention_with_lse(*wide[:3], causal=True), strict=True))
        gradients = sa.attention_vjp(*wide, causal=True)
    theirs |= {"dq": gradients.q, "dk": gradients.k, "dv": gradients.v}
    if value == "1e30":  # delta in float32 is off by 2^-24. dk is off by as much times |q|, as for all other q
        torch.testing.assert_close(ours["dk"][..., 3].double(), theirs["dk"][..., 3], rtol=1e-4, atol=1e-5 * 1e30)
        ours["dk"], theirs["dk"] = (x["dk"][..., [0, 1, 2, 4, 5, 6, 7]] for x in (ours, theirs))
        before = before | {"dk": before["dk"][..., [0, 1, 2, 4, 5, 6, 7]]}
    for name, x in theirs.items():
        torch.testing.assert_close(ours[name].double(), x, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name)
        assert torch.equal(ours[name][0, 0], before[name][0, 0]), name  # another head keeps its bits
    if which == "q":
        assert torch.equal(ours["output"][0, 1, :2], before["output"][0, 1, :2])


def test_layouts() -> None:
    q, k, v, g = inputs(2, 4, 2, 20, 33, 16, 16, F32)
    expected = found(q, k, v, g, causal=True)
    other = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)] + [g.mT.contiguous().mT]
    for name, x in found(*other, causal=True).items():
        assert torch.equal(x, expected[name]), name
    deep = found(*(x.unflatten(0, (2, 1)) for x in (q, k, v, g)), causal=True)
    for name, x in deep.items():
        assert torch.equal(x.flatten(0, 1), expected[name]), name


def test_autograd_and_opcheck() -> None:
    q, k, v, g = inputs(1, 2, 1, 20, 24, 16, 16, F32)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    with sa.using("triton"):
        sa.attention(*leaves, causal=True).backward(g)
        i = sa.attend.check_options.plain_attention_of(*leaves, True)
        torch.library.opcheck(operations.attention.torch.overload, operations.attention.torch.flatten(i))
    expected = found(q, k, v, g, causal=True)
    for name, x in zip("qkv", leaves, strict=True):
        assert torch.equal(x.grad, expected[f"d{name}"])


def test_the_definition_serves_what_no_kernel_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    monkeypatch.setattr(triton_kernels, "launch", lambda *_a, **_k: launched.append(1))
    q, k, v, _ = inputs(1, 2, 1, 20, 24, 16, 16, F32)
    with sa.using("triton"):
        assert sa.attention(q, k, v, alpha=1.3).isfinite().all()
        assert sa.attention(q, k, v, alpha=torch.full((2, 1), 1.5)).isfinite().all()
        assert sa.attention(q.double(), k.double(), v.double()).isfinite().all()
        wide = inputs(1, 1, 1, 2, 3, 300, 300, BF16)
        assert sa.attention_vjp(*wide).q.isfinite().all()
    assert not launched


@pytest.mark.parametrize("wrong", [[0, 40, 40, 41, 62], [1, 40, 40, 41, 63], [0, 50, 40, 41, 63], [0]])
def test_the_definition_refuses_wrong_bounds(wrong: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the bounds, so that it never returns memory without results."""
    monkeypatch.setattr("softargmax.core.offsets.inspectable", lambda _: False)
    q = torch.randn(2, 63, 16)
    right = torch.tensor([0] if wrong == [0] else [0, 40, 40, 41, 63])
    options = attention_of(q, q, q, {"alpha": 1.5 if wrong == [0] else 1.3})
    i, lse = Packed(options, torch.tensor(wrong), right), torch.zeros(2, 63, dtype=torch.float64)
    with sa.using("triton"):
        with pytest.raises(ValueError, match="cu_q: expected"):
            operations.attention_varlen(i)
        with pytest.raises(ValueError, match="cu_q: expected"):
            operations.attention_varlen_vjp(PackedVjp(q, None, i, q, lse))


def test_results_of_another_shape_than_their_memory_raise() -> None:
    operation = SimpleNamespace(name="some", fields=("a", "b"), define=lambda _: (torch.ones(2), torch.zeros(0)))
    memory = torch.zeros(2), torch.zeros(3)
    define(operation, None, memory)
    assert memory[0].all()
    with pytest.raises(ValueError, match="some: expected a result of shape"):
        define(operation, None, (torch.zeros(3), None))


@pytest.mark.parametrize("alpha", [1.3, 3.0, torch.full((2, 1), 1.5)], ids=str)
def test_gradients_of_orders_without_kernels_are_those_of_the_definition(
    alpha: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v, g = inputs(1, 2, 1, 20, 24, 16, 16, F32)

    def gradients(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = [x.clone().requires_grad_() for x in given]
        return torch.autograd.grad(sa.attention(*leaves, alpha=alpha), leaves, g.to(leaves[0].dtype))

    theirs = gradients(q.double(), k.double(), v.double())
    monkeypatch.setattr(operations, "kind_of", lambda _: "torch-cuda")
    monkeypatch.setattr(operations.kernels, "serves_entmax", lambda _: False)
    with sa.using("triton"):
        i = attention_of(q, k, v, {"alpha": alpha})
        with torch.no_grad():
            assert not operations._served_by_vjp(i, {"q"})
            assert operations._served_by_vjp(i._replace(options=i.options._replace(alpha=2.0)), {"q"})
        monkeypatch.undo()
        ours = gradients(q, k, v)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


def test_entries_whose_number_of_keys_is_out_of_range_are_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    # Lengths on a GPU are not read before the call. Here they are hidden from the check.
    monkeypatch.setattr(check, "inspectable", lambda _: False)
    q, k, v, g = inputs(3, 2, 1, 5, 20, 16, 16, F32)
    lengths = torch.tensor([20, -1, 21])
    ours = found(q, k, v, g, key_lengths=lengths)
    for name, x in ours.items():
        assert x[1:].isnan().all(), name
    for name, x in found(q[:1], k[:1], v[:1], g[:1]).items():
        assert torch.equal(x, ours[name][:1]), name


# --- dropout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queries", [21, 5])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_drops_are_those_of_the_cpu(dtype: torch.dtype, queries: int) -> None:
    """With unit vectors as values, the output of attention is p."""
    keys = 70
    q, k, _, _ = inputs(2, 4, 2, queries, keys, 16, 16, dtype)
    v = torch.eye(keys, dtype=dtype).expand(2, 2, keys, keys)
    g = torch.ones(2, 4, queries, keys, dtype=dtype)
    for options in ({"seed": 7}, {"seed": (1 << 64) - 1, "stream": torch.tensor([1 << 40, -1])}):
        for rate in (0.1, 0.75):
            ours, theirs = found(q, k, v, g, dropout=rate, **options), sa.attention(q, k, v, dropout=rate, **options)
            assert torch.equal(ours["output"] == 0.0, theirs == 0.0)
            dropped = (theirs == 0.0).double().mean()
            assert abs(float(dropped) - rate) < 4.0 * (rate * (1.0 - rate) / theirs.numel()) ** 0.5
            never = (theirs == 0.0).unflatten(1, (2, 2)).all(3).all(2)  # keys that all queries of a group drop
            assert torch.equal(ours["dv"] == 0.0, never[..., None].expand_as(v))
    rare = found(q, k, v, g, dropout=1e-12, seed=7)
    assert (rare["output"] > 0.0).all()


@pytest.mark.parametrize("queries", [34, 3])
def test_bits_of_dropout_depend_on_the_stream_only(queries: int) -> None:
    q, k, v, g = inputs(3, 2, 1, queries, 50, 16, 16, BF16)
    options = {"dropout": 0.3, "seed": 11, "causal": True}
    whole = found(q, k, v, g, **options)
    one = found(q[2:], k[2:], v[2:], g[2:], stream=[2], **options)
    other = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)] + [g.mT.contiguous().mT]
    strided = found(*other, **options)
    for name, x in whole.items():
        assert torch.equal(x[2:], one[name]), name
        assert torch.equal(x, strided[name]), name
    assert not torch.equal(whole["output"], found(q, k, v, g, **options | {"seed": 12})["output"])


@pytest.mark.parametrize("rows", [5, 3])
@pytest.mark.parametrize(("which", "value"), [("v", "inf"), ("v", "nan"), ("g", "inf"), ("k", "nan")])
def test_nan_and_inf_under_dropout(which: str, value: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An infinite value changes the output of all queries that see it, also of those that drop it."""
    monkeypatch.setattr(triton_kernels, "FEW", 3)
    monkeypatch.setattr(triton_kernels, "AT_ONCE", 16)
    given, options = inputs(1, 2, 2, rows, 18, 8, 8, F32), {"dropout": 0.5, "seed": 5}
    given["qkvg".index(which)][0, 1, 2, 3] = float(value)
    ours = found(*given, **options)
    with sa.using("reference"):
        wide = [x.double() for x in given]
        theirs = dict(zip(("output", "lse"), sa.attention_with_lse(*wide[:3], **options), strict=True))
        gradients = sa.attention_vjp(*wide, **options)
    theirs |= {"dq": gradients.q, "dk": gradients.k, "dv": gradients.v}
    for name, x in theirs.items():
        torch.testing.assert_close(ours[name].double(), x, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name)
