"""Attention with entmax of orders 1.5 and 2 by the CUDA kernels, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest

import softargmax as sa
from softargmax.core import dispatch

if not dispatch.INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1: run `make test-triton`", allow_module_level=True)

import torch
from tests.triton.attend_truth import BF16, F32, compare, entmax_found, entmax_truth, inputs
from torch import Tensor

from softargmax.attend import triton_kernels

QUERIES, KEYS = 19, 45


def options_of(name: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "plain": {}, "window": {"causal": True, "window": (20, None)},
        "mask": {"mask": draw(2, 1, QUERIES, KEYS) > 0.0},
        "dropout": {"dropout": 0.25, "seed": 3, "causal": True},
        "lengths": {"key_lengths": torch.tensor([KEYS // 3, KEYS]), "causal": True},
        "all": {"causal": True, "softcap": 3.0, "sink": draw(2), "slopes": draw(2).abs(), "scale": draw(2, QUERIES),
                "mask": draw(QUERIES, KEYS) > -1.0, "dropout": 0.5, "seed": 9},
    }[name]  # fmt: skip


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("name", ["plain", "window", "mask", "dropout", "lengths", "all"])
def test_results_are_near_the_definition(name: str, dtype: torch.dtype, alpha: float) -> None:
    given = inputs(2, 2, 1, QUERIES, KEYS, 16, 24, dtype)
    given[0] = 3.0 * given[0]  # few keys are in the support
    options = options_of(name) | {"alpha": alpha}
    compare(entmax_found(*given, **options), entmax_truth(*given, **options))


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_p_is_within_1e6_of_the_largest(alpha: float) -> None:
    """With unit vectors as values, the output of attention is p."""
    q, k, _, _ = inputs(1, 2, 1, 20, 96, 32, 32, F32)
    v = torch.eye(96).expand(1, 1, 96, 96)
    for scale in (0.02, 0.2, 2.0):
        with sa.using("triton"):
            ours = sa.attention(q, k, v, alpha=alpha, scale=scale)
        theirs = sa.attention(q.double(), k.double(), v.double(), alpha=alpha, scale=scale)
        error = (ours - theirs).abs().amax(-1)
        # a score has an error of 2^-24 times the sum of the sizes of its products
        of_scores = 2.0**-22 * scale * (q.abs() @ k.mT.abs()).amax(-1).double()
        assert (error <= (1e-6 + of_scores) * theirs.amax(-1).clamp(min=1e-3) ** (2.0 - alpha)).all()


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("queries", [40, 3])
def test_bits_do_not_depend_on_batch_queries_layout_or_run(queries: int, alpha: float) -> None:
    q, k, v, g = inputs(2, 2, 1, queries, 50, 16, 16, BF16)
    options = {"causal": True, "alpha": alpha}
    whole, again = entmax_found(q, k, v, g, **options), entmax_found(q, k, v, g, **options)
    one = entmax_found(q[1:], k[1:], v[1:], g[1:], **options)
    other = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)] + [g.mT.contiguous().mT]
    strided = entmax_found(*other, **options)
    rows = slice(queries // 2 + 1, None)
    last = entmax_found(q[:, :, rows], k, v, g[:, :, rows], **options)
    for name, x in whole.items():
        assert torch.equal(x, again[name]), name
        assert torch.equal(x[1:], one[name]), name
        assert torch.equal(x, strided[name]), name
    for name in ("output", "dq"):
        assert torch.equal(whole[name][:, :, rows], last[name]), name


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_an_infinite_value_of_a_dropped_key_of_the_support_gives_nan(
    alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The definition multiplies inf by 0."""
    monkeypatch.setattr(triton_kernels, "AT_ONCE", 16)
    q, k, v, g = inputs(1, 1, 1, 5, 18, 8, 8, F32)
    options = {"alpha": alpha, "dropout": 0.5, "seed": 5, "scale": 0.02}  # all keys are in the support
    eye = torch.eye(18, dtype=torch.float64)[None, None]
    weights = sa.attention(q.double(), k.double(), eye, **options)
    key = int((weights[0, 0] == 0.0).sum(0).argmax())
    dropped = weights[0, 0, :, key] == 0.0
    v[0, 0, key, 3] = float("inf")
    ours = entmax_found(q, k, v, g, **options)
    wide = [x.double().requires_grad_(at < 3) for at, x in enumerate((q, k, v, g))]
    found = torch.autograd.grad(sa.attention(*wide[:3], **options), wide[:3], wide[3])
    assert dropped.any()
    assert found[0][0, 0, dropped].isnan().all()
    for name, x in zip(("dq", "dk", "dv"), found, strict=True):
        assert torch.equal(ours[name].isnan(), x.isnan()), name


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize(
    ("which", "value"),
    [("q", "nan"), ("k", "inf"), ("k", "-inf"), ("v", "inf"), ("v", "nan"), ("g", "inf"), ("q", "1e30")],
)
def test_nan_inf_and_overflow_change_what_depends_on_them(
    which: str, value: str, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_kernels, "AT_ONCE", 16)
    given = inputs(1, 2, 2, 5, 18, 8, 8, F32)
    before = entmax_found(*given, causal=True, alpha=alpha)
    given["qkvg".index(which)][0, 1, 2, 3] = float(value)
    ours = entmax_found(*given, causal=True, alpha=alpha)
    wide = [x.double().requires_grad_(at < 3) for at, x in enumerate(given)]
    output = sa.attention(*wide[:3], causal=True, alpha=alpha)
    found = torch.autograd.grad(output, wide[:3], wide[3])
    theirs = {"output": output.detach()} | dict(zip(("dq", "dk", "dv"), found, strict=True))
    if value == "nan" and which == "q":  # on CPUs, gradients of order 2 are finite
        theirs["dq"][0, 1, 2] = theirs["dk"][0, 1, : 18 - 5 + 2 + 1] = torch.nan
    for name, x in theirs.items():
        assert torch.equal(ours[name][0, 0], before[name][0, 0]), name  # another head keeps its bits
        if value == "1e30" and name == "dk":
            continue  # of one key, dk is as large as q
        torch.testing.assert_close(ours[name].double(), x, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_mended_rows_with_a_soft_cap(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernels, "AT_ONCE", 16)
    given, options = inputs(1, 1, 1, 5, 10, 8, 8, F32), {"alpha": alpha, "softcap": 3.0}
    given[0][0, 0, 2, 3] = 1e20  # the scores of this query are at the cap
    ours = entmax_found(*given, **options)
    wide = [x.double().requires_grad_(at < 3) for at, x in enumerate(given)]
    output = sa.attention(*wide[:3], **options)
    found = torch.autograd.grad(output, wide[:3], wide[3])
    theirs = {"output": output.detach()} | dict(zip(("dq", "dk", "dv"), found, strict=True))
    for name, x in theirs.items():
        assert x.isfinite().all()
        torch.testing.assert_close(ours[name].double(), x, rtol=1e-4, atol=1e-5, msg=name)
    given[2][0, 0, 3, 1] = float("inf")
    output = sa.attention(*(x.double() for x in given[:3]), **options)
    torch.testing.assert_close(entmax_found(*given, **options)["output"].double(), output, rtol=1e-4, atol=1e-5)


def test_queries_without_keys_and_ties() -> None:
    q, k, v, g = inputs(1, 1, 1, 20, 40, 16, 16, F32)
    nothing = torch.zeros(20, 40, dtype=torch.bool)
    nothing[5:, :7] = True
    for alpha in (1.5, 2.0):
        found = entmax_found(q * 0.0, k, v, g, mask=nothing, alpha=alpha)
        assert not found["output"][0, 0, :5].any()
        assert not found["dq"][0, 0, :5].any()
        mean = v[0, 0, :7].double().mean(0).float().expand(15, 16)
        torch.testing.assert_close(found["output"][0, 0, 5:], mean, rtol=1e-6, atol=1e-6)
        assert not found["dv"][0, 0, 7:].any()
        with_sink = entmax_found(q, k, v, g, mask=nothing, sink=torch.tensor([2.0]), alpha=alpha)
        assert not with_sink["output"][0, 0, :5].any()
        assert with_sink["dsink"].isfinite().all()


def test_packed_sequences_and_pages_with_entmax(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, g = (x[0].transpose(0, 1) for x in inputs(1, 2, 1, 40, 48, 16, 16, BF16))
    with sa.using("triton"):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        output = sa.attention_varlen(*leaves, [0, 23, 40], [0, 30, 48], causal=True, alpha=1.5)
        of_q, of_k, _of_v = torch.autograd.grad(output, leaves, g)
        alone = [x[a:].transpose(0, 1)[None] for x, a in ((q, 23), (k, 30), (v, 30), (g, 23))]
        found = entmax_found(*alone, causal=True, alpha=1.5)
        pages = [x[:48].reshape(6, 8, 1, 16) for x in (k, v)]
        table = torch.tensor([[0, 1, 2, 3, 4, 5]])
        paged = sa.attention_paged(q.transpose(0, 1)[None], *pages, table, [43], alpha=2.0)
        plain = sa.attention(*(x.transpose(0, 1)[None] for x in (q, k[:43], v[:43])), alpha=2.0)
    assert torch.equal(output[23:], found["output"][0].transpose(0, 1))
    assert torch.equal(of_q[23:], found["dq"][0].transpose(0, 1))
    assert torch.equal(of_k[30:], found["dk"][0].transpose(0, 1))
    assert torch.equal(paged, plain)
