"""The CUDA kernels of attention on a GPU: results, and bits over batches, numbers of queries and runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.triton.attend_truth import BF16, F16, F32, cases, compare, found, inputs, truth

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
