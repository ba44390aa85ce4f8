"""The CUDA kernels of draws and filters on a GPU: draws and sets equal those of the CPU's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import softargmax as sa

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

DTYPES = [torch.float32, torch.bfloat16]
DRAWS: list[tuple[int, int, int, dict[str, Any]]] = [
    (1 << 22, 8, 1, {}),
    (1 << 19, 64, 16, {"temperature": 0.7}),
    (1 << 17, 128, 8, {}),
    (1 << 16, 1000, 4, {"temperature": 2.0}),
    (1 << 14, 1001, 1, {}),
    (1 << 14, 4096, 2, {"top_k": 50, "min_p": 0.02}),
    (1 << 12, 50257, 1, {}),
    (1 << 10, 128256, 4, {}),
    (4, 1 << 22, 3, {}),
    (1 << 12, 1000, 1, {"temperature": 0.0}),
    (1 << 10, 1000, 1, {"temperature": float("inf")}),
    (1 << 18, 8, 8, {"replace": False}),
    (1 << 12, 1001, 100, {"replace": False}),
    (64, 128256, 2000, {"replace": False, "temperature": 0.5}),
    (1 << 10, 50257, 20, {"replace": False, "top_k": 50}),
]
FILTERS: list[dict[str, Any]] = [
    {"top_k": 1}, {"top_k": 50}, {"top_k": 3000}, {"top_p": 0.1}, {"top_p": 0.5}, {"top_p": 0.9}, {"top_p": 0.999},
    {"top_p": 0.8, "temperature": 0.3}, {"min_p": 0.05}, {"epsilon": 3e-4}, {"eta": 2e-3},
    {"top_k": 200, "top_p": 0.9, "min_p": 0.01}, {"top_k": 200, "top_p": 0.9, "eta": 0.01, "order": "joint"},
]  # fmt: skip


def scores(rows: int, classes: int, dtype: torch.dtype, spread: float = 1.0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(rows + classes)
    return (torch.randn(rows, classes, generator=generator, device="cuda") * spread).to(dtype)


def of_gpu(function: Callable[..., Any], z: torch.Tensor, **options: Any) -> Any:
    with sa.using("triton"):
        return function(z, **options)


def of_cpu(function: Callable[..., Any], z: torch.Tensor, **options: Any) -> Any:
    given = {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    with sa.using("native"):
        return function(z.cpu(), **given)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "classes", "draws", "options"), DRAWS)
def test_draws_equal_those_of_the_cpu(
    rows: int, classes: int, draws: int, options: dict[str, Any], dtype: torch.dtype
) -> None:
    z = scores(rows, classes, dtype)
    given = {"seed": rows, "num_samples": draws, **options}
    assert torch.equal(of_gpu(sa.categorical, z, **given).cpu(), of_cpu(sa.categorical, z, **given))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "classes"), [(512, 100), (256, 5000), (128, 32000), (64, 128256), (8, 1 << 20)])
def test_sets_equal_those_of_the_cpu(rows: int, classes: int, dtype: torch.dtype) -> None:
    for number, options in enumerate(FILTERS):
        z = scores(rows, classes, dtype, (1.0, 3.0, 0.2)[number % 3])
        found = of_gpu(sa.filter_scores, z, **options).cpu() > -torch.inf
        wrong = (found != (of_cpu(sa.filter_scores, z, **options) > -torch.inf)).sum(1)
        # A set may end at another score where its mass reaches the goal within rounding errors: one row in 10^4.
        assert wrong.count_nonzero() <= (1 if options.keys() & {"top_p", "epsilon", "eta"} else 0), options


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "classes"), [(256, 100), (64, 128256)])
def test_special_rows_and_batches(rows: int, classes: int, dtype: torch.dtype) -> None:
    z = scores(rows, classes, dtype, 3.0)
    z[0, 5], z[1, 7], z[2], z[3, ::2] = torch.inf, torch.nan, -torch.inf, -torch.inf
    fine = torch.tensor([row not in (1, 2) for row in range(rows)])
    stream = torch.arange(rows)[fine]
    for options in ({}, {"top_k": 9, "temperature": 0.7}, {"min_p": 0.1}):
        given = {"seed": 7, "num_samples": 3, **options}
        index, logprob, size = (x.cpu() for x in of_gpu(sa.categorical_with_logprob, z, **given))
        expected = of_cpu(sa.categorical_with_logprob, z[fine.cuda()], stream=stream, **given)
        assert torch.equal(index[fine], expected.index)
        assert torch.equal(size[fine], expected.support_size)
        torch.testing.assert_close(logprob[fine], expected.logprob, rtol=5e-7, atol=5e-7)
        assert (index[~fine] == -1).all()
        assert logprob[~fine].isnan().all()
        again = of_gpu(sa.categorical_with_logprob, z, **given)
        assert torch.equal(again.index.cpu(), index)
        assert torch.equal(again.logprob.cpu().nan_to_num(9.0), logprob.nan_to_num(9.0))
    whole = of_gpu(sa.categorical, z, seed=3)
    for at in range(0, 28, 7):
        part = slice(at, at + 7)
        own = torch.arange(rows, device="cuda")[part]
        assert torch.equal(of_gpu(sa.categorical, z[part], seed=3, stream=own), whole[part])


def test_noise_has_the_bits_of_the_cpu() -> None:
    from softargmax.sample.operations import Noise, gumbel

    seed = torch.tensor(99)
    for dtype in (torch.float32, torch.float64):
        z = torch.zeros(300, 1001)
        found = of_gpu(lambda z: gumbel.first(Noise(z, seed.cuda(), None, (1,), dtype)), z.cuda())  # noqa: B023
        assert torch.equal(found.cpu(), of_cpu(lambda z: gumbel.first(Noise(z, seed, None, (1,), dtype)), z))  # noqa: B023


def test_a_call_does_not_wait_for_the_gpu() -> None:
    z = scores(64, 20000, torch.float32)
    for options in ({}, {"top_k": 9}, {"top_p": 0.9}):
        of_gpu(sa.categorical_with_logprob, z, **options)  # compiles
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            of_gpu(sa.categorical_with_logprob, z, **options)
        finally:
            torch.cuda.set_sync_debug_mode("default")
