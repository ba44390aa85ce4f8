"""The CUDA kernels of attention on a GPU: results, and bits over batches, numbers of queries and runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.triton.attend_truth import (
    BF16,
    F16,
    F32,
    cases,
    compare,
    entmax_found,
    entmax_truth,
    found,
    inputs,
    kernels_only,
    truth,
)

import softargmax as sa

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

CASES = {name: (given, options) for name, given, options in cases("cuda", small=False)}


@pytest.mark.parametrize("name", CASES)
def test_results_are_near_the_definition(name: str) -> None:
    given, options = CASES[name]
    compare(found(*given, **options), truth(*given, **options))


def test_many_keys() -> None:
    given = inputs(1, 4, 1, 4096, 4096, 128, 128, BF16, "cuda")
    compare(found(*given, causal=True), truth(*given, causal=True))


@pytest.mark.parametrize(("dtype", "width"), [(BF16, 64), (BF16, 128), (F16, 128), (F32, 64)])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": (300, None)}], ids=str)
def test_bits_do_not_depend_on_batch_queries_or_run(dtype: torch.dtype, width: int, options: dict[str, Any]) -> None:
    q, k, v, g = inputs(3, 4, 2, 700, 900, width, width, dtype, "cuda")
    whole, again = found(q, k, v, g, **options), found(q, k, v, g, **options)
    one = found(q[1:2], k[1:2], v[1:2], g[1:2], **options)
    last = found(q[:, :, 500:], k, v, g[:, :, 500:], **options)
    for name, x in whole.items():
        assert torch.equal(x, again[name]), name
        assert torch.equal(x[1:2], one[name]), name
    for name in ("output", "lse", "dq"):
        assert torch.equal(whole[name][:, :, 500:], last[name]), name
    few, first = (found(q[:, :, :n], k, v, g[:, :, :n])["output"] for n in (2, 1))
    assert torch.equal(few[:, :, :1], first)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize(("dtype", "width"), [(BF16, 128), (F32, 64)])
@pytest.mark.parametrize("options", [{}, {"causal": True, "dropout": 0.25, "seed": 3}], ids=str)
def test_entmax(dtype: torch.dtype, width: int, alpha: float, options: dict[str, Any]) -> None:
    given = inputs(2, 4, 2, 333, 520, width, width, dtype, "cuda")
    ours = entmax_found(*given, alpha=alpha, **options)
    compare(ours, entmax_truth(*given, alpha=alpha, **options))
    again = entmax_found(*(x[1:] for x in given), alpha=alpha, **options | {"stream": [1]} if options else {})
    for name, x in ours.items():
        assert torch.equal(x[1:], again[name]), name


def test_drops_are_those_of_the_cpu() -> None:
    q, k, _, _ = inputs(2, 4, 2, 150, 200, 64, 64, F32)
    v = torch.eye(200).expand(2, 2, 200, 200)
    with sa.using("triton"), kernels_only():
        ours = sa.attention(*(x.cuda() for x in (q, k, v)), dropout=0.3, seed=5)
    assert torch.equal(ours.cpu() == 0.0, sa.attention(q, k, v, dropout=0.3, seed=5) == 0.0)


def test_packed_sequences_and_pages() -> None:
    q, k, v, g = inputs(1, 4, 2, 700, 900, 64, 64, BF16, "cuda")
    packed = [x[0].transpose(0, 1).clone().requires_grad_() for x in (q, k, v)]
    cu_q, cu_k = [0, 300, 300, 700], [0, 500, 520, 900]
    pages = [x[0].transpose(0, 1)[:896].reshape(14, 64, 2, 64).flip(0) for x in (k, v)]
    table = torch.arange(13, -1, -1, device="cuda")[None]
    with sa.using("triton"), kernels_only():
        output = sa.attention_varlen(*packed, cu_q, cu_k, causal=True)
        gradients = torch.autograd.grad(output, packed, g[0].transpose(0, 1))
        of_pages = sa.attention_paged(q, *pages, table, [890], causal=True)
        few = sa.attention_paged(q[:, :, -1:], *pages, table, [890])
        for a, b, c, d in ((0, 300, 0, 500), (300, 700, 520, 900)):
            alone = found(q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], g[:, :, a:b], causal=True)
            assert torch.equal(output[a:b], alone["output"][0].transpose(0, 1))
            for x, name, (first, last) in zip(gradients, ("dq", "dk", "dv"), ((a, b), (c, d), (c, d)), strict=True):
                assert torch.equal(x[first:last], alone[name][0].transpose(0, 1)), name
        assert torch.equal(of_pages, sa.attention(q, k[:, :, :890], v[:, :, :890], causal=True))
        assert torch.equal(few, sa.attention(q[:, :, -1:], k[:, :, :890], v[:, :, :890]))
