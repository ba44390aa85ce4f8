"""Calls with CUDA tensors, on a GPU: no call waits for the device, and results equal those on the CPU.

These tests need a GPU (`tools/gpu_run.sh`). All others in this folder run without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

import softargmax as sa

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

N, K, D = 6, 50, 16


@pytest.fixture(params=["automatic", "triton"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Calls run kernels that have run on a GPU before, or all kernels."""
    with nullcontext() if request.param == "automatic" else sa.using("triton"):
        yield


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


Z, OTHER, H, W = numbers(N, K), numbers(N, K, seed=1), numbers(N, D, seed=2), numbers(K, D, seed=3)
TARGET = torch.arange(N) * 7 % K
MASK = torch.arange(N * K).reshape(N, K) % 5 > 0
Q, KEYS = numbers(2, 4, 9, D, seed=4), numbers(2, 2, 13, D, seed=5)
VALUES = numbers(2, 2, 13, D, seed=6)
SEGMENTS = torch.arange(N) // 2

CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "softmax": (sa.softmax, (Z,), {}),
    "softmax where": (sa.softmax, (Z,), {"where": MASK}),
    "softmax temperature": (sa.softmax, (Z,), {"temperature": 0.5}),
    "softmax temperatures": (sa.softmax, (Z,), {"temperature": torch.linspace(0.5, 2, N)[:, None]}),
    "log_softmax": (sa.log_softmax, (Z,), {}),
    "softmax_with_lse": (sa.softmax_with_lse, (Z,), {}),
    "logsumexp": (sa.logsumexp, (Z,), {}),
    "logsumexp weights": (sa.logsumexp, (Z,), {"weights": OTHER.abs()}),
    "logcumsumexp": (sa.logcumsumexp, (Z,), {}),
    "entropy": (sa.entropy, (Z,), {}),
    "kl_divergence": (sa.kl_divergence, (Z, OTHER), {}),
    "hardmax": (sa.hardmax, (Z,), {}),
    "softmin": (sa.softmin, (Z,), {}),
    "soft_argmax": (sa.soft_argmax, (Z,), {}),
    "boltzmann": (sa.boltzmann, (Z, 0.7), {}),
    "segment_softmax": (sa.segment_softmax, (Z[:, 0],), {"index": SEGMENTS, "num_segments": 3}),
    "segment_logsumexp": (sa.segment_logsumexp, (Z[:, 0],), {"index": SEGMENTS, "num_segments": 3}),
    "cross_entropy": (sa.cross_entropy, (Z, TARGET), {}),
    "cross_entropy options": (sa.cross_entropy, (Z, TARGET), {"label_smoothing": 0.1, "z_loss": 1e-3}),
    "cross_entropy softcap": (sa.cross_entropy, (Z, TARGET), {"softcap": 5.0}),
    "cross_entropy temperatures": (sa.cross_entropy, (Z, TARGET), {"temperature": torch.linspace(0.5, 2, N)[:, None]}),
    "cross_entropy probabilities": (sa.cross_entropy, (Z, OTHER.softmax(-1)), {}),
    "cross_entropy_and_gradient": (sa.cross_entropy_and_gradient, (Z, TARGET), {}),
    "cross_entropy_terms": (sa.cross_entropy_terms, (Z, TARGET), {}),
    "selected_log_softmax": (sa.selected_log_softmax, (Z, TARGET), {}),
    "linear_cross_entropy": (sa.linear_cross_entropy, (H, W, TARGET), {}),
    "linear_cross_entropy softcap": (sa.linear_cross_entropy, (H, W, TARGET), {"softcap": 5.0}),
    "linear_cross_entropy_terms": (sa.linear_cross_entropy_terms, (H, W, TARGET), {}),
    "linear_selected_log_softmax": (sa.linear_selected_log_softmax, (H, W, TARGET), {}),
    "distillation": (sa.distillation, (Z, OTHER), {}),
    "linear_distillation": (sa.linear_distillation, (H, W, H * 1.1, W), {}),
    "entmax": (sa.entmax, (Z,), {}),
    "entmax 1.3": (sa.entmax, (Z, 1.3), {}),
    "sparsemax": (sa.sparsemax, (Z,), {}),
    "topk_softmax": (sa.topk_softmax, (Z, 5), {}),
    "entmax_loss": (sa.entmax_loss, (Z, TARGET), {}),
    "sparsemax_loss": (sa.sparsemax_loss, (Z, TARGET), {}),
    "gumbel_softmax": (sa.gumbel_softmax, (Z,), {"seed": 3}),
    "attention": (sa.attention, (Q, KEYS, VALUES), {}),
    "attention causal": (sa.attention, (Q, KEYS, VALUES), {"causal": True, "softcap": 10.0}),
    "attention_with_lse": (sa.attention_with_lse, (Q, KEYS, VALUES), {}),
    "entmax attention": (sa.attention, (Q, KEYS, VALUES), {"alpha": 1.5}),
    "log_matmul": (sa.log_matmul, (Z, OTHER.T.contiguous()), {}),
}
DRAWS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "categorical": (sa.categorical, (Z,), {"seed": 3}),
    "categorical filters": (sa.categorical, (Z,), {"seed": 3, "top_k": 9, "top_p": 0.9}),
    "categorical with logprob": (sa.categorical_with_logprob, (Z,), {"seed": 3}),
    "categorical many": (sa.categorical, (Z,), {"seed": 3, "num_samples": 4}),
    "filter_scores": (sa.filter_scores, (Z,), {"top_p": 0.7, "min_p": 0.01}),
}


def moved(x: Any) -> Any:
    return x.cuda() if isinstance(x, torch.Tensor) else x


def tensors(found: Any) -> list[torch.Tensor]:
    return [x for x in (found if isinstance(found, tuple) else (found,)) if isinstance(x, torch.Tensor)]


@contextmanager
def without_waiting() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def run(function: Callable[..., Any], given: list[Any], options: dict[str, Any]) -> list[torch.Tensor]:
    """The results, and the gradients of the sum of floating results, each times another number."""
    leaves = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]
    results = tensors(function(*given, **options))
    sums = [x.sum() * (n + 1) for n, x in enumerate(results) if x.requires_grad]
    gradients = torch.autograd.grad(sum(sums), leaves, allow_unused=True) if sums else ()
    return [*results, *(x for x in gradients if x is not None)]


def prepared(arguments: tuple[Any, ...], move: Callable[[Any], Any]) -> list[Any]:
    """Fresh arguments, of which floating tensors require gradients."""
    fresh = [move(x.detach().clone()) if isinstance(x, torch.Tensor) else x for x in arguments]
    return [x.requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in fresh]


def both(name: str, calls: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The results and gradients on the CPU, and those on the GPU, of a call that may not wait."""
    function, arguments, options = calls[name]
    with sa.using("native"):
        cpu = run(function, prepared(arguments, lambda x: x), options)
    given, options = prepared(arguments, moved), {key: moved(x) for key, x in options.items()}
    run(function, given, options)  # compiles kernels and fills caches, which may wait
    with without_waiting():
        cuda = run(function, given, options)
    return cpu, cuda


@pytest.mark.parametrize("name", CALLS)
def test_no_call_waits_and_results_equal_those_of_the_cpu(name: str) -> None:
    cpu, cuda = both(name, CALLS)
    assert len(cpu) == len(cuda)
    for one, other in zip(cpu, cuda, strict=True):
        assert other.is_cuda
        torch.testing.assert_close(one, other.cpu(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_the_cpu(name: str) -> None:
    cpu, cuda = both(name, DRAWS)
    for one, other in zip(cpu, cuda, strict=True):
        if one.is_floating_point():
            torch.testing.assert_close(one, other.cpu(), rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(one, other.cpu())


LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "full": lambda: sa.nn.FullSoftmax(D, K),
    "adaptive": lambda: sa.nn.AdaptiveSoftmax(D, K, [10, 25]),
    "hierarchical": lambda: sa.nn.HierarchicalSoftmax(D, sa.output.Tree.huffman(torch.arange(1, K + 1))),
    "sampled": lambda: sa.nn.SampledSoftmax(D, sa.output.Uniform(K), samples=10),
    "nce": lambda: sa.nn.NCE(D, sa.output.Uniform(K), samples=10),
    "negative": lambda: sa.nn.NegativeSampling(D, sa.output.Uniform(K), samples=10),
    "differentiated": lambda: sa.nn.DifferentiatedSoftmax(D, [10, 40], [8, 8]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_output_layers_run_on_the_gpu_without_waiting(name: str) -> None:
    layer = LAYERS[name]().cuda()
    h, y = H.cuda().requires_grad_(), TARGET.cuda()

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        loss = layer(h, y)
        loss = loss if isinstance(loss, torch.Tensor) else loss.loss
        return loss, torch.autograd.grad(loss, h)[0]

    run()
    with without_waiting():
        loss, gradient = run()
    assert loss.isfinite()
    assert gradient.isfinite().all()
    if name == "negative":
        return  # it has no distribution
    with torch.no_grad(), without_waiting():
        log_p = layer.log_prob(h)
    torch.testing.assert_close(log_p.exp().sum(-1).cpu(), torch.ones(N), rtol=1e-4, atol=1e-4)


CAPTURED = ("softmax", "log_softmax", "logsumexp", "cross_entropy", "linear_cross_entropy", "entmax", "attention")


@pytest.mark.parametrize("name", CAPTURED)
def test_cuda_graphs_capture_forward_and_backward(name: str) -> None:
    function, arguments, options = CALLS[name]
    given = prepared(arguments, moved)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        expected = [x.clone() for x in run(function, given, options)]
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(function, given, options)
    graph.replay()
    assert all(map(torch.equal, found, expected))


def test_a_tensor_on_another_device_is_a_clear_error() -> None:
    for call in (lambda: sa.softmax(Z.cuda(), where=MASK), lambda: sa.cross_entropy(Z.cuda(), TARGET),
                 lambda: sa.linear_cross_entropy(H.cuda(), W, TARGET.cuda())):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match="cuda"):
            call()
