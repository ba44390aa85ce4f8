"""Layers with a tree, or with clusters, that are spread over processes: results have the bits of one process."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.output.layers import layer_of
from tests.parallel.cases import same
from tests.parallel.test_bits import WORLDS
from tests.parallel.test_layers import same_step
from tests.parallel.workers import Workers

from softargmax import nn
from softargmax.parallel import VocabularyParallel

NAMES = ("adaptive", "hierarchical")
D = 5


def layers(group: Any, name: str, k: int, **options: Any) -> tuple[Any, Any]:
    """A layer, and its copy whose classes or nodes are spread over the processes of a group."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import parallelize_module

    one = layer_of(name, D, k, **options)
    spread: Any = parallelize_module(copy.deepcopy(one), DeviceMesh.from_group(group, "cpu"), VocabularyParallel())
    assert isinstance(next(spread.parameters()), DTensor)
    return one, spread


def inputs(k: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden vectors of (3, 4) rows, and their targets, of which some are ignored."""
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(0, k, (3, 4), generator=generator)
    target[1, ::2] = -100
    return torch.randn(3, 4, D, generator=generator, dtype=torch.float64).to(dtype), target


def steps(group: Any, name: str, k: int, dtype: torch.dtype, options: dict[str, Any]) -> None:
    one, spread = layers(group, name, k, dtype=dtype, **options)
    hidden, target = inputs(k, dtype)
    for y in (target, torch.full((3, 4), -100)):
        same_step(spread, one, hidden, y)


BIASES = {"adaptive": {"head_bias": True, "tail_bias": True}, "hierarchical": {}}
WITHOUT = {"adaptive": {"reduction": "sum"}, "hierarchical": {"bias": False, "reduction": "sum"}}


@pytest.mark.parametrize("name", NAMES)
def test_losses(workers: Workers, name: str) -> None:
    for world in WORLDS:
        workers.run(world, steps, name, 9001, torch.float32, BIASES[name])
    for k in (3, 40):
        workers.run(4, steps, name, k, torch.float32, {"reduction": "none"})
    workers.run(3, steps, name, 200, torch.float64, WITHOUT[name])
    workers.run(3, steps, name, 200, torch.bfloat16, {})


def methods(group: Any, name: str, k: int) -> None:
    one, spread = layers(group, name, k, dtype=torch.float32, **BIASES[name])
    hidden, target = inputs(k)
    for rows in (slice(None), 2, slice(0, 0)):
        h, y = hidden[rows], target[rows]
        same(spread.log_prob(h), one.log_prob(h))
        same(spread.log_prob_of(h, y), one.log_prob_of(h, y))
        for n in {1, min(7, k), min(700, k)}:
            found, expected = spread.topk(h, n), one.topk(h, n)
            same(found.values, expected.values)
            assert torch.equal(found.index, expected.index)
        stream = torch.arange(y.numel()).reshape(y.shape) * 7 + 3
        for seed in range(3):
            assert torch.equal(spread.sample(h, seed), one.sample(h, seed))
            assert torch.equal(spread.sample(h, seed, stream=stream), one.sample(h, seed, stream=stream))


@pytest.mark.parametrize("name", NAMES)
def test_methods(workers: Workers, name: str) -> None:
    for world in WORLDS:
        workers.run(world, methods, name, 1000)
    workers.run(4, methods, name, 3)


def gradients_of_all(group: Any, name: str) -> None:
    """Gradients of all log-probabilities. Those of vectors of all processes agree to rounding."""
    one, spread = layers(group, name, 300, dtype=torch.float64, **BIASES[name])
    hidden, _ = inputs(300, torch.float64)
    h, h_ = (hidden.clone().requires_grad_() for _ in range(2))
    expected, found = one.log_prob(h), spread.log_prob(h_)
    g = torch.randn(expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(4))
    expected.backward(g)
    found.backward(g)
    assert h.grad is not None
    assert h_.grad is not None
    torch.testing.assert_close(h_.grad, h.grad, rtol=1e-12, atol=1e-12)
    for mine, of_one in zip(spread.parameters(), one.parameters(), strict=True):
        whole = mine.grad.full_tensor() if hasattr(mine.grad, "full_tensor") else mine.grad
        torch.testing.assert_close(whole, of_one.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_all_log_probabilities(workers: Workers, name: str) -> None:
    workers.run(3, gradients_of_all, name)


# --- errors -----------------------------------------------------------------------------------------------------------


def wrong(group: Any, name: str, what: str) -> None:
    _, spread = layers(group, name, 40, dtype=torch.float32, **({"sparse": True} if what == "sparse" else {}))
    hidden, target = inputs(40)
    last = group.rank() == group.size() - 1
    if what == "target" and last:
        target[0, 0] = 40
    if what == "k":
        spread.topk(hidden, 3 + last)
    elif what == "seed":
        spread.sample(hidden, 3 + last)
    elif what == "stream":
        spread.sample(hidden, 3, stream=torch.arange(12).reshape(3, 4) + last)
    elif what == "values":
        spread.topk(hidden + last, 3)
    else:
        spread(hidden, target)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("target", "process 1: target: expected 0 to 39, or -100 (ignored), got 40 at"),
        ("k", "k: expected the same in all processes, got 3, 4 in processes 0 to 1"),
        ("seed", "seed: expected the same in all processes"),
        ("stream", "stream: expected the same in all processes"),
        ("values", "hidden: expected the same in all processes"),
    ],
)
def test_one_error_in_all_processes(workers: Workers, name: str, what: str, message: str) -> None:
    found = workers.errors(2, wrong, name, what)
    assert len(set(found)) == 1, found
    assert found[0][1].startswith(message), found
    workers.run(2, steps, name, 40, torch.float32, {})  # the group can be used again


def test_sparse_gradients_are_refused(workers: Workers) -> None:
    for kind, text in workers.errors(2, wrong, "hierarchical", "sparse"):
        assert kind == "NotImplementedError"
        assert text == "sparse: expected False, as gradients of DTensors are dense, got True"


def test_the_differentiated_layer_is_refused() -> None:
    mesh: Any = None
    with pytest.raises(TypeError, match=r"an output layer of softargmax.nn other than .*, got DifferentiatedSoftmax"):
        VocabularyParallel()._apply(nn.DifferentiatedSoftmax(2, [3], [2]), mesh)
