"""The CUDA kernels of draws and filters in Triton's interpreter: results equal those of the CPU's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import softargmax as sa
from softargmax.core import dispatch

if not dispatch.INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1: run `make test-triton`", allow_module_level=True)

import torch
import triton
import triton.language as tl

from softargmax.core.triton_launch import Block, launch
from softargmax.sample import operations, triton_filters, triton_kernels, triton_ranks
from softargmax.sample.triton_noise import surely_first, waiting_times

INF, NAN = float("inf"), float("nan")
LONG = 9000  # three blocks of a filter, and nine of a draw


def scores(*shape: int, spread: float = 1.0, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


def both(function: Callable[..., Any], z: torch.Tensor, **options: Any) -> tuple[Any, Any]:
    """The results of the CUDA kernel and of the CPU's kernel."""
    with sa.using("triton"):
        found = function(z, **options)
    with sa.using("native"):
        return found, function(z, **options)


def is_same(function: Callable[..., Any], z: torch.Tensor, **options: Any) -> bool:
    return torch.equal(*both(function, z, **options))


# --- draws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(4000, 8), (700, 17), (32, 256), (1, LONG)])
def test_draws_equal_those_of_the_cpu(shape: tuple[int, int], dtype: torch.dtype) -> None:
    for number, temperature in enumerate((1.0, 0.4)):
        z = scores(*shape, dtype=dtype, seed=number)
        assert is_same(sa.categorical, z, temperature=temperature, seed=(1 << 63) + number)


@pytest.mark.parametrize("classes", [30])
def test_options_of_draws(classes: int) -> None:
    z = scores(6, classes, spread=2.0)
    where = torch.rand(6, classes, generator=torch.Generator().manual_seed(1)) > 0.4
    t = torch.tensor([[0.5], [1.0], [3.0], [0.0], [INF], [1e-30]])
    stream = torch.tensor([5, 1 << 40, -1, 0, 7, 5])
    options: list[dict[str, Any]] = [
        {"where": where}, {"where": where[:1]}, {"temperature": t}, {"stream": stream}, {"num_samples": 3},
        {"temperature": 0.0}, {"temperature": INF}, {"temperature": t, "num_samples": 2, "where": where},
        {"stream": stream, "num_samples": 2, "replace": False},
    ]  # fmt: skip
    for one in options:
        assert is_same(sa.categorical, z, seed=4, **one), one
    assert is_same(sa.categorical, z.T, axis=0, seed=4)
    assert is_same(sa.categorical, z.reshape(2, 3, classes).transpose(0, 1), seed=4, num_samples=2)
    assert is_same(sa.categorical, torch.stack([z, z])[:, ::2, : classes - 1], seed=4)
    assert not is_same(sa.categorical, scores(200, 5), seed=None)


def test_a_row_is_drawn_in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    z = scores(2, LONG)
    z[1, 4000] = INF
    for programs, options in ((2, {}), (6, {"temperature": 0.0}), (6, {"num_samples": 2}), (1000, {"top_k": 20})):
        monkeypatch.setattr(triton_kernels, "PROGRAMS", programs)
        assert is_same(sa.categorical, z, seed=9, **options)


@pytest.mark.parametrize("classes", [12])
def test_special_rows(classes: int) -> None:
    z = scores(8, classes, spread=3.0)
    z[0, 3:9], z[1, 5], z[2], z[3, : classes - 1], z[4], z[5] = INF, NAN, -INF, -INF, 2.0, 3e38
    z[5, ::2], z[6] = -3e38, z[6] + 1e7
    for options in ({}, {"temperature": 0.0}, {"temperature": INF}, {"top_k": 4}, {"top_p": 0.6, "min_p": 0.1}):
        with sa.using("triton"):
            found = sa.categorical_with_logprob(z, seed=1, **options)
        fine = torch.tensor([0, 3, 4, 5, 6, 7])
        with sa.using("native"):
            expected = sa.categorical_with_logprob(z[fine], seed=1, stream=fine, **options)
        assert torch.equal(found.index[fine], expected.index), options
        assert torch.equal(found.support_size[fine], expected.support_size), options
        np.testing.assert_allclose(found.logprob[fine].numpy(), expected.logprob.numpy(), rtol=2e-7, atol=2e-7)
        assert found.index[[1, 2]].tolist() == [-1, -1]
        assert found.support_size[[1, 2]].tolist() == [0, 0]
        assert found.logprob[[1, 2]].isnan().all()


def test_parameters_out_of_range_give_no_draw() -> None:
    z, bad = scores(2, 7), torch.tensor([[NAN], [1.0]], dtype=torch.float64)
    index = torch.empty(2, 1, dtype=torch.int64)
    distribution = triton_filters_of(z, temperature=1.0)
    for filters in ({"top_p": bad}, {"min_p": bad}, {"top_k": torch.tensor([[-2], [3]])}):
        given = distribution._replace(filters=distribution.filters._replace(**filters))
        i = operations.Categorical(z, given, torch.tensor(3), None, (1,), 1, True)
        triton_kernels.categorical(i, (index,))
        assert index[0] == -1
        assert index[1] >= 0


def triton_filters_of(z: torch.Tensor, temperature: float) -> Any:
    from softargmax.sample.check_options import options_of

    return options_of(z, 1, temperature, None, "top_k_first")


@pytest.mark.parametrize("dtype", [torch.float32])
def test_close_scores_are_compared_in_float64(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    # If no draw of the first kernel is sure, the second kernel makes all draws.
    launched: list[Any] = []

    def counted(kernel: Any, tile: Any, **named: Any) -> None:
        launched.append(kernel.__name__)
        if kernel is triton_kernels.draw_rows:
            named["index"].fill_(-2)
            return
        launch(kernel, tile, **named)

    monkeypatch.setattr(triton_kernels, "launch", counted)
    for options in ({}, {"temperature": 0.0}, {"top_k": 5}):
        assert is_same(sa.categorical, scores(10, 60, dtype=dtype), seed=2, **options)
    assert launched == ["draw_rows", "draw_again"] * 3


# --- draws without replacement ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "draws"), [((300, 8), 3), ((40, 17), 17), ((3, 1500), 40), ((1, LONG), 5)])
def test_draws_without_replacement_equal_those_of_the_cpu(
    shape: tuple[int, int], draws: int, dtype: torch.dtype
) -> None:
    z = scores(*shape, spread=2.0, dtype=dtype)
    assert is_same(sa.categorical, z, seed=(1 << 63) + 7, num_samples=draws, replace=False)
    found, expected = both(sa.categorical_with_logprob, z, seed=3, num_samples=draws, replace=False, temperature=0.4)
    assert torch.equal(found.index, expected.index)
    assert torch.equal(found.support_size, expected.support_size)
    assert all(len(set(row)) == draws for row in found.index.tolist())
    np.testing.assert_allclose(found.logprob.float().numpy(), expected.logprob.float().numpy(), rtol=3e-7, atol=1e-30)


def test_options_of_draws_without_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_ranks, "PART", 8)
    z = scores(5, 30, spread=2.0)
    where = torch.rand(5, 30, generator=torch.Generator().manual_seed(1)) > 0.4
    t = torch.tensor([[0.5], [1.0], [3.0], [INF], [1e-30]])
    stream = torch.tensor([5, 1 << 40, -1, 0, 5])
    options: list[dict[str, Any]] = [
        {"where": where}, {"temperature": t}, {"stream": stream}, {"temperature": INF, "where": where},
        {"top_k": 6}, {"temperature": 0.7},
        {"top_p": 0.95, "temperature": INF}, {"top_k": 20, "min_p": 1e-6, "stream": stream},
    ]  # fmt: skip
    for one in options:
        assert is_same(sa.categorical, z, seed=4, num_samples=4, replace=False, **one), one
    assert is_same(sa.categorical, z.T, axis=0, seed=4, num_samples=4, replace=False)
    assert is_same(sa.categorical, z, seed=4, num_samples=30, replace=False)
    # Scores so far from the maximum that noise does not change their sums, which are equal.
    assert is_same(sa.categorical, z.round(), seed=4, num_samples=30, replace=False, temperature=1e-30)


def test_special_rows_without_replacement() -> None:
    z = scores(7, 12, spread=3.0)
    z[0, 3:9], z[1, 5], z[2], z[3, 2:], z[4], z[5] = INF, NAN, -INF, -INF, 2.0, 3e38
    z[5, ::2] = -3e38
    for options, wrong in (({}, [1, 2, 3]), ({"temperature": 0.0}, [*range(7)]), ({"top_k": 2}, [*range(7)])):
        fine = [row for row in range(7) if row not in wrong]
        with sa.using("triton"):
            found = sa.categorical_with_logprob(z, seed=1, num_samples=4, replace=False, **options)
        assert (found.index[wrong] == -1).all()
        assert found.logprob[wrong].isnan().all()
        assert (found.support_size[wrong] == 0).all()
        if not fine:
            continue
        with sa.using("native"):
            expected = sa.categorical_with_logprob(
                z[fine], seed=1, stream=torch.tensor(fine), num_samples=4, replace=False, **options
            )
        assert torch.equal(found.index[fine], expected.index)
        np.testing.assert_allclose(found.logprob[fine].numpy(), expected.logprob.numpy(), rtol=3e-7, atol=1e-30)


@triton.jit
def bounds(w1, time, sure, N: tl.constexpr):
    n = tl.arange(0, N)
    w = tl.load(w1 + n).to(tl.uint32)
    found = waiting_times(w)
    tl.store(time + n, found)
    tl.store(sure + n, surely_first(found, found * 1.001, w).to(tl.int32))


def test_waiting_times_are_lower_bounds() -> None:
    generator = np.random.default_rng(0)
    w1 = np.concatenate([generator.integers(0, 1 << k, 250) for k in range(1, 33)] + [2**32 - 1 - np.arange(192)])
    words = torch.from_numpy(w1.astype(np.int64))
    time, sure = torch.empty(len(w1)), torch.empty(len(w1), dtype=torch.int32)
    launch(bounds, Block((1,), 1, {"N": len(w1)}), w1=words, time=time, sure=sure)
    least, most = (-np.log1p(-(w1 + part) * 2.0**-32) / np.log(2) for part in (0.0, 1.0 - 2.0**-20))
    far = w1 >= (1 - 2.0**-12) * 2**32
    found = time.numpy().astype(np.float64)
    assert (found[~far] <= least[~far] * (1 + 2.0**-13)).all()
    near = ~far & (w1 > 0)
    assert (found[near] * (1 + 2.0**-13 + 2.0 / w1[near]) >= most[near]).all()
    assert (found[far] <= most[far]).all()
    assert not sure.numpy()[far].any()
    assert sure.numpy()[(w1 > 1 << 13) & ~far].all()
    assert not sure.numpy()[w1 < 1000].any()


# --- filters ----------------------------------------------------------------------------------------------------------

OPTIONS: list[dict[str, Any]] = [
    {"top_k": 1}, {"top_k": 7}, {"top_k": 70}, {"top_p": 0.9}, {"top_p": 0.3, "temperature": 0.5},
    {"top_p": 1.0 - 2.0**-53}, {"min_p": 0.1}, {"min_p": 1.0}, {"epsilon": 1e-3}, {"eta": 3e-3},
    {"top_k": 50, "top_p": 0.8, "min_p": 0.02}, {"top_k": 50, "top_p": 0.8, "eta": 0.02, "order": "joint"},
    {"top_p": 0.7, "temperature": 0.0}, {"top_p": 0.7, "top_k": 30, "temperature": INF}, {"typical_p": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("name", ["normal", "wide", "rounded", "bfloat16", "equal", "infinite"])
@pytest.mark.parametrize("classes", [100, LONG])
def test_sets_equal_those_of_the_cpu(classes: int, name: str) -> None:
    z = scores(1, classes, spread=4.0 if name in ("wide", "rounded") else 1.0, seed=len(name))
    z = {"rounded": z.round(), "bfloat16": z.bfloat16(), "equal": 0.0 * z}.get(name, z)
    if name == "infinite":
        z[:, 5:40:3], z[:, 50] = INF, -INF
    for options in OPTIONS if classes == 100 and len(name) > 5 else OPTIONS[len(name) % 3 :: 3]:
        assert is_same(sa.filter_scores, z, **options), options


def test_parameters_per_row_and_masks() -> None:
    z, k, p = scores(3, 60), torch.tensor([[5], [60], [1]]), torch.tensor([[0.5], [1.0], [0.2]])
    where = torch.rand(3, 60, generator=torch.Generator().manual_seed(1)) > 0.5
    one = torch.tensor([[0.5]])
    assert is_same(sa.filter_scores, z, top_p=one, temperature=one)
    for options in ({"top_k": k}, {"top_p": p}, {"top_k": k, "top_p": p, "temperature": p}, {"top_p": p, "eta": 0.01}):
        assert is_same(sa.filter_scores, z, where=where, **options), options
        assert is_same(sa.categorical, z, where=where, seed=2, num_samples=2, **options), options
    assert is_same(sa.filter_scores, z.T, axis=0, top_k=k.T, top_p=0.7)


def test_zeros_of_both_signs_are_equal() -> None:
    z = torch.tensor([[0.0, -0.0, 1.0, -0.0, 0.0, -1.0]])
    for k in range(1, 7):
        assert is_same(sa.filter_scores, z, top_k=k)


@pytest.mark.parametrize("classes", [100, LONG])
def test_log_probabilities_and_sizes(classes: int) -> None:
    z = scores(2, classes, spread=3.0)
    z[1, 0] = 60.0  # a confident row
    for options in ({}, {"top_k": 9, "temperature": 0.7}, {"top_p": 0.9}, {"min_p": 0.05, "num_samples": 3}):
        found, expected = both(sa.categorical_with_logprob, z, seed=5, **options)
        assert torch.equal(found.index, expected.index)
        assert torch.equal(found.support_size, expected.support_size)
        np.testing.assert_allclose(found.logprob.numpy(), expected.logprob.numpy(), rtol=3e-7, atol=1e-30)


def test_the_list_is_not_needed_for_equal_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    # More equal scores than a list has places.
    monkeypatch.setattr(triton_filters, "LIST", 64)
    z = torch.zeros(1, 500)
    z[0, ::3] = 1.0
    for options in ({"top_k": 100}, {"top_k": 300}, {"top_p": 0.2}, {"top_p": 0.9}):
        assert is_same(sa.filter_scores, z, **options)
    assert is_same(sa.filter_scores, scores(1, 500), top_p=0.5)


# --- noise ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_the_bits_of_the_cpu(dtype: torch.dtype) -> None:
    seed = torch.tensor(-5)
    for z, axis in ((torch.zeros(3, 70), 1), (torch.zeros(2, 5, 6), 0), (torch.zeros(1, 1100), 1)):
        i = operations.Noise(z, seed, None, (axis,), dtype)
        stream = torch.arange(z.numel() // z.shape[axis]).reshape(
            [1 if d == axis else n for d, n in enumerate(z.shape)]
        )
        for one in (i, i._replace(stream=stream * 7 - 3)):
            assert torch.equal(*both(lambda _z, one=one: operations.gumbel.first(one), z))


def test_vmap_draws_as_without() -> None:
    batches = scores(2, 3, 9)
    with sa.using("triton"):
        found = torch.vmap(lambda z: sa.categorical(z, seed=3))(batches)
        assert torch.equal(found, torch.stack([sa.categorical(z, seed=3) for z in batches]))


@pytest.mark.parametrize("operation", [operations.categorical, operations.filter_mask, operations.gumbel])
def test_the_operators_pass_opcheck(operation: Any) -> None:
    z = scores(3, 5)
    distribution = triton_filters_of(z, 1.0)
    arguments = {
        "categorical": operations.Categorical(z, distribution, torch.tensor(3), None, (1,), 2, True),
        "filter_mask": operations.FilterMask(z, distribution, (1,)),
        "gumbel": operations.Noise(z, torch.tensor(3), None, (1,), torch.float32),
    }
    with sa.using("triton"):
        torch.library.opcheck(operation.torch.overload, operation.torch.flatten(arguments[operation.name]))


def test_the_definitions_serve_what_no_kernel_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    for module in (triton_kernels, triton_filters, triton_ranks):
        monkeypatch.setattr(module, "launch", lambda *_a, **_k: launched.append(1))
    z = scores(3, 8)
    assert is_same(sa.categorical, z.double(), seed=1)
    assert is_same(sa.categorical, z, num_samples=4, replace=False, typical_p=0.9, seed=1)
    assert is_same(sa.filter_scores, z, typical_p=0.5)
    assert is_same(sa.categorical, torch.empty(0, 4), seed=1)
    assert not launched
    with sa.using("triton"):
        sa.categorical(z, num_samples=4, replace=False, seed=1)
    assert len(launched) == 3  # filters that count, and two kernels that rank
