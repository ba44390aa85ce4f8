"""Training with a vocabulary that is spread over processes: tied embeddings, FSDP2, checkpoints, clipping."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.parallel.cases import same
from tests.parallel.test_bits import WORLDS
from tests.parallel.test_layers import CLASSES, D, same_gradients, whole
from tests.parallel.workers import Workers
from torch import nn

import softargmax
from softargmax.parallel import VocabularyParallel


class Model(nn.Module):
    """The smallest language model: it predicts a token from the one before."""

    def __init__(self, *, tied: bool, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, D, dtype=dtype)
        self.body = nn.Sequential(nn.Linear(D, D, dtype=dtype), nn.Tanh())
        weight: Any = self.embed.weight if tied else None
        self.head = softargmax.nn.FullSoftmax(D, CLASSES, weight=weight, dtype=dtype)

    def forward(self, text: torch.Tensor) -> Any:
        return self.head(self.body(self.embed(text[:, :-1])), text[:, 1:])


PLAN: Any = {"embed": VocabularyParallel(), "head": VocabularyParallel()}


def texts(rows: int = 6) -> torch.Tensor:
    return torch.randint(0, CLASSES, (rows, 9), generator=torch.Generator().manual_seed(3))


def models(group: Any, *, tied: bool = True) -> list[tuple[Any, Any]]:
    """A model, and its copy whose vocabulary is spread over the processes of a group, with their optimizers."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import parallelize_module

    torch.manual_seed(0)
    one = Model(tied=tied)
    spread = parallelize_module(copy.deepcopy(one), DeviceMesh.from_group(group, "cpu"), PLAN)
    return [(model, torch.optim.AdamW(model.parameters(), 0.01)) for model in (one, spread)]


def step(model: Any, optimizer: Any) -> Any:
    optimizer.zero_grad()
    found = model(texts())
    found.backward()
    optimizer.step()
    return found


def same_models(spread: nn.Module, one: nn.Module) -> None:
    for mine, other in zip(spread.parameters(), one.parameters(), strict=True):
        same(whole(mine), other)


def trained(group: Any, tied: bool) -> None:
    (one, of_one), (spread, of_spread) = models(group, tied=tied)
    assert (spread.head.weight is spread.embed.weight) == tied
    assert len([*spread.parameters()]) == len([*one.parameters()])
    for _ in range(3):
        same(step(spread, of_spread), step(one, of_one))
        same_gradients(spread, one)
        same_models(spread, one)


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings(workers: Workers, tied: bool) -> None:
    for world in WORLDS:
        workers.run(world, trained, tied)


# --- FSDP2, checkpoints, clipping -------------------------------------------------------------------------------------


def with_fsdp(group: Any, tied: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    one = Model(tied=tied, dtype=torch.float64)
    spread: Any = parallelize_module(copy.deepcopy(one), mesh["tp"], PLAN)
    fully_shard(spread, mesh=mesh["dp"])
    assert isinstance(spread.head.weight, DTensor)
    assert spread.head.weight.device_mesh.ndim == 2
    optimizers = [torch.optim.AdamW(model.parameters(), 0.01) for model in (one, spread)]
    first = 3 * mesh.get_local_rank("dp")
    part = texts()[first : first + 3]
    same(spread(part), one(part))
    for _ in range(2):
        for model, optimizer, text in zip((one, spread), optimizers, (texts(), part), strict=True):
            optimizer.zero_grad()
            model(text).backward()
        for mine, other in zip(spread.parameters(), one.parameters(), strict=True):
            assert mine.grad is not None
            torch.testing.assert_close(whole(mine.grad), other.grad, rtol=1e-12, atol=1e-14)
        for model, optimizer in zip((one, spread), optimizers, strict=True):
            nn.utils.clip_grad_norm_(model.head.parameters(), 0.1)
            optimizer.step()
    hidden = torch.randn(4, D, dtype=torch.float64, generator=torch.Generator().manual_seed(first))
    found, expected = spread.head.topk(hidden, 5), one.head.topk(hidden, 5)
    assert torch.equal(found.index, expected.index)


@pytest.mark.parametrize("tied", [True, False])
def test_fully_shard(workers: Workers, tied: bool) -> None:
    workers.run(4, with_fsdp, tied)


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def saved(group: Any, folder: str) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    _, spread = models(group)
    for _ in range(2):
        step(*spread)
    save(state_of(*spread), checkpoint_id=folder, process_group=group)


def loaded(group: Any, folder: str) -> None:
    from torch.distributed.checkpoint.state_dict_loader import load

    one, spread = models(group)
    step(*spread)  # now the optimizer has numbers, in whose places those of the checkpoint are loaded
    state = state_of(*spread)
    load(state, checkpoint_id=folder, process_group=group)
    for to, part in zip(spread, state.values(), strict=True):
        to.load_state_dict(part)
    for _ in range(2):
        step(*one)
    same_models(spread[0], one[0])
    same(step(*spread), step(*one))
    same_models(spread[0], one[0])


def test_a_checkpoint_of_four_processes_in_two(workers: Workers, tmp_path: Any) -> None:
    workers.run(4, saved, str(tmp_path))
    for world in (2, 3, 1):
        workers.run(world, loaded, str(tmp_path))


def clipped(group: Any) -> None:
    """The norm of all gradients, by the recipe of docs/parallel.md."""
    from torch.distributed.tensor import DTensor

    (one, _), (spread, _) = models(group)
    for model in (one, spread):
        model(texts()).backward()
    expected = nn.utils.clip_grad_norm_(one.parameters(), 0.1)
    parts = [[p for p in spread.parameters() if isinstance(p, DTensor) == spreads] for spreads in (True, False)]
    norms = [whole(nn.utils.get_total_norm([p.grad for p in part])) for part in parts]
    total = torch.stack(norms).norm()
    for part in parts:
        nn.utils.clip_grads_with_norm_(part, 0.1, total)
    torch.testing.assert_close(total, expected)
    for mine, other in zip(spread.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(whole(mine.grad), other.grad)


def test_clipping(workers: Workers) -> None:
    workers.run(4, clipped)


def clipped_together(_group: Any, meshes: int) -> None:
    """Torch only: the norm of two parameters together, of which one or both are DTensors."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parameters = [nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Shard(0), Shard(0)]))]
    other = torch.ones(4)
    parameters.append(nn.Parameter(distribute_tensor(other, mesh["dp"], [Shard(0)]) if meshes == 2 else other))
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    nn.utils.clip_grad_norm_(parameters, 0.1)


@pytest.mark.parametrize(
    ("meshes", "message"), [(1, "got mixed torch.Tensor and DTensor"), (2, "must have the same mesh")]
)
def test_clipping_together_what_torch_refuses(workers: Workers, meshes: int, message: str) -> None:
    for _, text in workers.errors(4, clipped_together, meshes):
        assert message in text
    pytest.skip(f"torch 2.13, clip_grad_norm_: {message}")
