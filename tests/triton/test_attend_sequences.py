"""Packed sequences and pages by the CUDA kernels of attention, in Triton's interpreter.

The kernels for single sequences were compared with the definition in test_attend.py. Here bits are compared with
theirs, and gradients of options, which are sums over sequences, with the definition.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

import softargmax as sa
from softargmax.core import check, dispatch

if not dispatch.INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1: run `make test-triton`", allow_module_level=True)

import torch
from tests.triton.attend_truth import BF16, F32, kernels_only
from torch import Tensor

from softargmax.attend import operations, triton_kernels
from softargmax.attend.arguments import Packed
from softargmax.attend.check_options import attention_of

CU_Q, CU_K = [0, 40, 40, 41, 63], [0, 50, 57, 57, 90]
"""A long sequence, one without queries, one without keys, and one whose tiles begin within tiles of the whole."""


@pytest.fixture(autouse=True)
def one_order_of_sums(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few queries are added in the order of many, as in packed sequences, and no call is left to the definition."""
    monkeypatch.setattr(triton_kernels, "FEW", 0)
    with kernels_only():
        yield


def packed(dtype: torch.dtype, heads: int = 2, groups: int = 1, width: int = 16, seed: int = 0) -> list[Tensor]:
    """Random q, k, v and g of packed sequences."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (CU_Q[-1], heads), (CU_K[-1], groups), (CU_K[-1], groups), (CU_Q[-1], heads)
    return [torch.randn(*shape, width, generator=generator).to(dtype) for shape in shapes]


def differentiated(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Any) -> dict[str, Tensor]:
    """The output of packed sequences, and the gradients of <g, output> with respect to q, k, v and options."""
    learned = {name: x for name, x in options.items() if isinstance(x, Tensor)}
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v, *learned.values())]
    own = options | dict(zip(learned, leaves[3:], strict=True))
    output = sa.attention_varlen(*leaves[:3], CU_Q, CU_K, **own)
    found = torch.autograd.grad(output, leaves, g)
    return {"output": output.detach()} | dict(zip(("q", "k", "v", *learned), found, strict=True))


def options_of(name: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    sink, scale = torch.randn(2, generator=generator), torch.rand(2, CU_Q[-1], generator=generator)
    return {
        "plain": {}, "causal": {"causal": True}, "window": {"window": (9, 3)},
        "all": {"causal": True, "softcap": 3.0, "sink": sink, "slopes": sink.abs(), "scale": scale},
    }[name]  # fmt: skip


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("name", ["plain", "causal", "window", "all"])
def test_packed_sequences_have_the_bits_of_each_alone(name: str, dtype: torch.dtype) -> None:
    q, k, v, g = packed(dtype)
    options = options_of(name)
    with sa.using("triton"):
        found = differentiated(q, k, v, g, **options)
        for (a, b), (c, d) in zip(pairwise(CU_Q), pairwise(CU_K), strict=True):
            if a == b or c == d:
                empty = torch.cat([found["output"][a:b].flatten(), found["q"][a:b].flatten()])
                assert not torch.cat([empty, found["k"][c:d].flatten(), found["v"][c:d].flatten()]).any()
                continue
            own = options | ({"scale": options["scale"][:, a:b]} if "scale" in options else {})
            turned = [x.transpose(0, 1) for x in (q[a:b], k[c:d], v[c:d], g[a:b])]
            alone = sa.attention_vjp(*turned, **own)
            assert torch.equal(found["output"][a:b], sa.attention(*turned[:3], **own).transpose(0, 1))
            for key, (first, last) in {"q": (a, b), "k": (c, d), "v": (c, d)}.items():
                assert torch.equal(found[key][first:last], getattr(alone, key).transpose(0, 1)), key
            if "scale" in options:
                torch.testing.assert_close(found["scale"][:, a:b], alone.scale, rtol=0.0, atol=0.0)


def test_gradients_of_options_are_sums_over_sequences() -> None:
    q, k, v, g = packed(F32)
    options = options_of("all")
    with sa.using("triton"):
        ours = differentiated(q, k, v, g, **options)
    with sa.using("reference"):
        wide = {name: x.double() if isinstance(x, Tensor) else x for name, x in options.items()}
        theirs = differentiated(q.double(), k.double(), v.double(), g.double(), **wide)
    for name, x in theirs.items():
        torch.testing.assert_close(ours[name].double(), x, rtol=1e-4, atol=2e-5, msg=name)


def test_bits_do_not_depend_on_other_sequences_layout_or_run() -> None:
    q, k, v, g = packed(BF16)
    with sa.using("triton"):
        found, again = (differentiated(q, k, v, g, causal=True) for _ in range(2))
        strided = [x.mT.contiguous().mT for x in (q, k, v, g)]
        other = differentiated(*strided, causal=True)
        a, c = CU_Q[3], CU_K[3]
        last = sa.attention_varlen(q[a:], k[c:], v[c:], [0, CU_Q[-1] - a], [0, CU_K[-1] - c], causal=True)
    for name, x in found.items():
        assert torch.equal(x, again[name]), name
        assert torch.equal(x, other[name]), name
    assert torch.equal(found["output"][a:], last)


def test_nan_and_inf_stay_in_their_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernels, "AT_ONCE", 16)
    q, k, v, g = packed(F32)
    clean = [x.clone() for x in (q, k, v, g)]
    k[CU_K[3] + 5, 0, 2], v[CU_K[3] + 7, 0, 1], g[20, 1, 3] = float("nan"), float("inf"), float("nan")
    with sa.using("triton"):
        before, ours = differentiated(*clean, causal=True), differentiated(q, k, v, g, causal=True)
    theirs = differentiated(*(x.double() for x in (q, k, v, g)), causal=True)  # on the CPU
    for name, x in theirs.items():
        torch.testing.assert_close(ours[name].double(), x, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name)
    assert torch.equal(ours["output"][: CU_Q[3]], before["output"][: CU_Q[3]])
    assert torch.equal(ours["v"][CU_K[1] : CU_K[3]], before["v"][CU_K[1] : CU_K[3]])


def test_opcheck_of_packed_sequences() -> None:
    q, k, v, _ = packed(F32)
    leaves = [x.transpose(0, 1).requires_grad_() for x in (q, k, v)]
    i = Packed(attention_of(*leaves, {"causal": True}), torch.tensor(CU_Q), torch.tensor(CU_K))
    with sa.using("triton"):
        torch.library.opcheck(
            operations.attention_varlen.torch.overload, operations.attention_varlen.torch.flatten(i),
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )  # fmt: skip


@pytest.mark.parametrize("wrong", [[0, 2, 4], [1, 2, 5], [0, 9, 5], [0, -5, 5], [0, 2, 99]])
def test_wrong_bounds_that_cannot_be_read_give_nan(wrong: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "inspectable", lambda _: False)
    monkeypatch.setattr("softargmax.core.offsets.inspectable", lambda _: False)
    monkeypatch.setattr(triton_kernels, "AT_ONCE", 16)
    q, k, v, g = (x[:5] for x in packed(F32))
    with sa.using("triton"):
        leaves = [x.requires_grad_() for x in (q, k, v)]
        output = sa.attention_varlen(*leaves, torch.tensor(wrong), torch.tensor([0, 3, 5]))
        assert output.isnan().all()
        assert all(x.isnan().all() for x in torch.autograd.grad(output, leaves, g))


def test_bounds_that_begin_behind_a_tile_give_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softargmax.core.offsets.inspectable", lambda _: False)
    monkeypatch.setattr(triton_kernels, "AT_ONCE", 16)
    cu_q, cu_k = [40, 40, 63], [60, 57, 90]
    q, k, v, g = packed(F32)
    with sa.using("triton"):
        leaves = [x.requires_grad_() for x in (q, k, v)]
        output = sa.attention_varlen(*leaves, torch.tensor(cu_q), torch.tensor(cu_k))
        assert output.isnan().all()
        assert all(x.isnan().all() for x in torch.autograd.grad(output, leaves, g))


def test_no_sequences_for_some_queries_raise_before_bounds_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softargmax.core.offsets.inspectable", lambda _: False)
    q, k, v, _ = packed(F32)
    none = torch.tensor([0])
    with sa.using("triton"):
        with pytest.raises(ValueError, match="cu_q: expected bounds from 0 to 63, the length of q, got no sequences"):
            sa.attention_varlen(q, k, v, none, none)
        with pytest.raises(ValueError, match=r"cu_k: .* got no sequences"):
            sa.attention_varlen(q[:0], k, v, none, none)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_narrow_bounds(dtype: torch.dtype) -> None:
    q, k, v, _ = packed(BF16)
    with sa.using("triton"):
        wide = sa.attention_varlen(q, k, v, CU_Q, CU_K)
        narrow = sa.attention_varlen(q, k, v, torch.tensor(CU_Q, dtype=dtype), torch.tensor(CU_K, dtype=dtype))
    assert torch.equal(narrow, wide)


def test_one_sequence_and_many_short_ones() -> None:
    q, k, v, _ = packed(BF16)
    with sa.using("triton"):
        whole = sa.attention_varlen(q, k, v, [0, len(q)], [0, len(k)])
        assert torch.equal(whole, sa.attention(*(x.transpose(0, 1) for x in (q, k, v))).transpose(0, 1))
        bounds = list(range(len(q) + 1))
        single = sa.attention_varlen(q, k[: len(q)], v[: len(q)], bounds, bounds)
    torch.testing.assert_close(single, v[: len(q)].expand_as(single), rtol=2.0**-7, atol=0.0)  # each sees one key


# --- pages ------------------------------------------------------------------------------------------------------------


def in_pages(x: Tensor, table: Tensor, pages: int, size: int) -> Tensor:
    """Store keys (batch, heads, keys, width) in the pages of a table. Other pages have NaN."""
    found = x.new_full((pages, size, x.shape[1], x.shape[3]), float("nan"))
    for entry, row in zip(x, table, strict=True):
        for number, at in zip(row.tolist(), range(0, x.shape[2], size), strict=True):
            found[number] = entry[:, at : at + size].transpose(0, 1)
    return found


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize(("queries", "size"), [(1, 16), (3, 5), (20, 16), (20, 48), (1, 1)])
def test_pages_have_the_bits_of_one_array(
    queries: int, size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_kernels, "FEW", 16)
    monkeypatch.setattr(triton_kernels, "SPLIT", 64)
    generator = torch.Generator().manual_seed(1)
    each, lengths = -(-96 // size), torch.tensor([0, 1, 47, 96])
    table = torch.randperm(4 * each + 3, generator=generator)[: 4 * each].reshape(4, each)
    draw = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
    q, k, v = draw(4, 4, queries, 16), draw(4, 2, each * size, 16), draw(4, 2, each * size, 24)
    k_pages, v_pages = (in_pages(x, table, 4 * each + 3, size) for x in (k, v))
    unused = torch.arange(each) * size >= lengths[:, None]
    table = torch.where(unused, -7, table)
    sink, slopes = torch.randn(4, generator=generator), torch.rand(4, generator=generator)
    for options in ({}, {"causal": True, "window": (40, None), "softcap": 2.0, "sink": sink, "slopes": slopes}):
        with sa.using("triton"):
            found = sa.attention_paged(q, k_pages, v_pages, table, lengths, **options)
            wanted = sa.attention(q, k, v, key_lengths=lengths, **options)
            narrow = sa.attention_paged(q, k_pages, v_pages, table.int(), lengths.int(), **options)
        assert torch.equal(found, wanted)
        assert torch.equal(found, narrow)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_narrow_tables_and_lengths(dtype: torch.dtype) -> None:
    """The number of pages and the number of keys of the table are above what the dtype holds."""
    q, pages = torch.randn(2, 2, 20, 8), torch.randn(300, 80, 1, 8)
    table, lengths = torch.tensor([[100, 7, 3, 2], [5, 120, 0, 1]]), torch.tensor([25, 90])
    with sa.using("triton"):
        wide = sa.attention_paged(q, pages, pages, table, lengths)
        assert torch.equal(sa.attention_paged(q, pages, pages, table.to(dtype), lengths.to(dtype)), wide)


@pytest.mark.parametrize("queries", [1, 20])
def test_nan_and_inf_in_pages(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernels, "FEW", 16)
    monkeypatch.setattr(triton_kernels, "AT_ONCE", 16)
    generator = torch.Generator().manual_seed(1)
    table = torch.tensor([[3, 0, 4], [1, 5, 2]])
    q, k, v = (torch.randn(2, 2, n, 8, generator=generator) for n in (queries, 24, 24))
    k[0, 1, 9, 2], v[1, 0, 23, 3] = float("inf"), float("nan")
    with sa.using("triton"):
        pages = [in_pages(x, table, 6, 8) for x in (k, v)]
        found = sa.attention_paged(q, *pages, table, [24, 23], causal=True)
        wanted = sa.attention(q, k, v, key_lengths=[24, 23], causal=True)
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=0.0, equal_nan=True)
    assert found[1].isfinite().all()  # key 23 of the second entry does not exist


def test_wrong_pages_that_cannot_be_read_give_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "inspectable", lambda _: False)
    q, pages = torch.randn(5, 2, 1, 8), torch.randn(4, 8, 2, 8)
    table = torch.tensor([[0, 1], [2, 4], [-1, 0], [3, 9], [0, 1]])
    with sa.using("triton"):
        found = sa.attention_paged(q, pages, pages, table, torch.tensor([16, 16, 3, 8, 17]))
    assert found[[0, 3]].isfinite().all()
    assert found[[1, 2, 4]].isnan().all()


def test_pages_differentiate_by_the_definition() -> None:
    table, lengths = torch.tensor([[1, 0]]), torch.tensor([7])
    leaves = [torch.randn(*s, requires_grad=True) for s in ((1, 2, 20, 8), (2, 4, 1, 8), (2, 4, 1, 8))]
    given = [leaf.detach().double().requires_grad_() for leaf in leaves]
    with sa.using("triton"):
        ours = torch.autograd.grad(sa.attention_paged(*leaves, table, lengths).sum(), leaves)
    theirs = torch.autograd.grad(sa.attention_paged(*given, table, lengths).sum(), given)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)
