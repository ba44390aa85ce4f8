"""Output layers whose classes are spread over processes: results and gradients have the bits of one process."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from tests.output.layers import DISTRIBUTIONS, LAYERS, layer_of
from tests.parallel.cases import same
from tests.parallel.messages import recorded
from tests.parallel.test_bits import WORLDS
from tests.parallel.workers import Workers
from torch import nn

import softargmax
from softargmax.parallel import VocabularyParallel

D, CLASSES = 24, 9001
SMALL = 3  # on four processes: 1, 1, 1 and 0


def layers(group: Any, classes: int = CLASSES, **options: Any) -> tuple[Any, Any]:
    """A layer, and its copy whose classes are spread over the processes of a group."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import parallelize_module

    torch.manual_seed(0)
    one = softargmax.nn.FullSoftmax(D, classes, **options)
    with torch.no_grad():
        one.weight.mul_(20.0)
        if one.bias is not None:
            one.bias.normal_()
    return one, parallelize_module(copy.deepcopy(one), DeviceMesh.from_group(group, "cpu"), VocabularyParallel())


def inputs(classes: int = CLASSES, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden vectors of (5, 8) rows, and their targets, of which some are ignored."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(5, 8, D, generator=generator, dtype=torch.float64).to(dtype)
    target = torch.randint(0, classes, (5, 8), generator=generator)
    target[1, ::3] = -100
    return hidden, target


def whole(x: Any) -> Any:
    from torch.distributed.tensor import DTensor

    return x.full_tensor() if isinstance(x, DTensor) else x


def same_gradients(of: nn.Module, expected: nn.Module) -> None:
    for (name, one), other in zip(of.named_parameters(), expected.parameters(), strict=True):
        assert one.grad is not None, name
        assert other.grad is not None
        assert one.shape == other.shape
        same(whole(one.grad), other.grad)


def same_step(spread: nn.Module, one: nn.Module, hidden: torch.Tensor, y: torch.Tensor) -> None:
    """Losses and all gradients of a layer over processes have the bits of the layer in one process."""
    h, h_ = (hidden.clone().requires_grad_() for _ in range(2))
    expected, found = one(h, y), spread(h_, y)
    same(found, expected)
    for layer, losses in ((one, expected), (spread, found)):
        layer.zero_grad()
        losses.sum().backward()
    assert h.grad is not None
    assert h_.grad is not None
    same(h_.grad, h.grad)
    same_gradients(spread, one)


# --- losses -----------------------------------------------------------------------------------------------------------


def loss(group: Any, classes: int, dtype: torch.dtype, options: dict[str, Any]) -> None:
    from torch.distributed.tensor import DTensor, Shard

    one, spread = layers(group, classes, **options)
    assert isinstance(spread.weight, DTensor)
    assert spread.weight.placements == (Shard(0),)
    hidden, target = inputs(classes, dtype)
    h, h_ = (hidden.clone().requires_grad_() for _ in range(2))
    expected, found = one(h, target), spread(h_, target)
    assert not isinstance(found, DTensor)
    same(found, expected)
    g = torch.linspace(0.5, 2.0, expected.numel(), dtype=expected.dtype).reshape(expected.shape)
    expected.backward(g)
    found.backward(g)
    assert h.grad is not None
    assert h_.grad is not None
    same(h_.grad, h.grad)
    same_gradients(spread, one)


@pytest.mark.parametrize("classes", [CLASSES, SMALL])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"reduction": "sum"}, {"reduction": "none"}])
def test_losses(workers: Workers, options: dict[str, Any], classes: int) -> None:
    for world in WORLDS:
        workers.run(world, loss, classes, torch.float32, options)


def test_dtypes(workers: Workers) -> None:
    workers.run(3, loss, CLASSES, torch.float64, {})
    workers.run(3, loss, CLASSES, torch.bfloat16, {"dtype": torch.bfloat16})
    workers.run(3, loss, CLASSES, torch.float32, {"dtype": torch.float64})


def of_dtensors(group: Any, layout: str) -> None:
    """Hidden vectors that are DTensors, or this process's part of the sequences."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import parallelize_module

    mesh = DeviceMesh.from_group(group, "cpu")
    one, spread = layers(group)
    hidden, target = inputs()
    h = hidden.clone().requires_grad_()
    expected = one(h, target)
    expected.backward()
    place = Replicate() if layout == "r" else Shard(1)
    h_ = distribute_tensor(hidden, mesh, [place]).requires_grad_()
    found = spread(h_, distribute_tensor(target, mesh, [place]))
    found.backward()
    same(found, expected)
    assert isinstance(h_.grad, DTensor)
    assert h.grad is not None
    same(h_.grad.full_tensor(), h.grad)
    same(spread.log_prob_of(h_, target), one.log_prob_of(h, target))
    assert torch.equal(spread.sample(h_, 3), one.sample(h, 3))
    if layout == "r":
        return
    part = distribute_tensor(hidden, mesh, [Shard(1)]).to_local().requires_grad_()
    spread = parallelize_module(copy.deepcopy(one), mesh, VocabularyParallel(input_layouts=Shard(1)))
    found = spread(part, target)
    found.backward()
    same(found, expected)
    assert part.grad is not None
    same(part.grad, distribute_tensor(h.grad, mesh, [Shard(1)]).to_local())


def of_ragged_parts(group: Any, by_name: bool) -> None:
    """Parts of the sequences with different lengths, of which one may be 0. The embedding gets parts of the text."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import parallelize_module

    mesh, style = DeviceMesh.from_group(group, "cpu"), VocabularyParallel(input_layouts=Shard(1))
    one, _ = layers(group)
    spread = parallelize_module(copy.deepcopy(one), mesh, style)
    hidden, target = inputs()
    h = hidden.clone().requires_grad_()
    expected = one(h, target)
    expected.backward()
    cuts = [0, 1, 6, 6, 8]
    mine = slice(cuts[group.rank()], cuts[group.rank() + 1] if group.rank() + 1 < group.size() else 8)
    part = hidden[:, mine].clone().requires_grad_()
    found = spread(hidden=part, target=target) if by_name else spread(part, target)
    found.backward()
    same(found, expected)
    assert part.grad is not None
    assert h.grad is not None
    same(part.grad, h.grad[:, mine])
    same_gradients(spread, one)
    table, text = nn.Embedding(CLASSES, D), target.clamp(min=0)
    embed = parallelize_module(copy.deepcopy(table), mesh, style)
    found = embed(input=text[:, mine]) if by_name else embed(text[:, mine])
    same(found, table(text))


@pytest.mark.parametrize("by_name", [False, True])
def test_parts_of_sequences_of_any_lengths(workers: Workers, by_name: bool) -> None:
    for world in (2, 4):
        workers.run(world, of_ragged_parts, by_name)


def test_dtensors_are_imported_with_the_style() -> None:
    """They take as long to import as all the rest."""
    loaded = "'torch.distributed.tensor' in sys.modules"
    code = f"import sys; from softargmax import parallel; print({loaded}, parallel.VocabularyParallel, {loaded})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False <class 'softargmax.parallel.torch_layers.VocabularyParallel'> True\n"


def of_two_meshes(group: Any) -> None:
    """A weight of two modules that are spread over different meshes."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import parallelize_module

    meshes = [DeviceMesh.from_group(group, "cpu", mesh_dim_names=(name,)) for name in "ab"]
    one, _ = layers(group)
    modules = [copy.copy(one), copy.copy(one)]
    for module in modules:
        module._parameters = dict(one._parameters)
    spread = [parallelize_module(x, mesh, VocabularyParallel()) for x, mesh in zip(modules, meshes, strict=True)]
    assert [x.weight.device_mesh.mesh_dim_names for x in spread] == [("a",), ("b",)]


def test_a_weight_on_two_meshes(workers: Workers) -> None:
    workers.run(2, of_two_meshes)


@pytest.mark.parametrize("layout", ["r", "1"])
def test_hidden_vectors_that_are_dtensors(workers: Workers, layout: str) -> None:
    for world in (2, 4):
        workers.run(world, of_dtensors, layout)


def of_a_dtensor(group: Any, place: str) -> None:
    """A layer that is made with a DTensor as its weight, without the style. The bias is no DTensor."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    one, _ = layers(group)
    places = [Replicate() if place == "r" else Shard(0)]
    parts = distribute_tensor(one.weight.detach(), DeviceMesh.from_group(group, "cpu"), places)
    spread = softargmax.nn.FullSoftmax(D, CLASSES, weight=nn.Parameter(parts))
    hidden, target = inputs()
    with torch.no_grad():
        spread.bias.copy_(one.bias)
    expected, found = one(hidden, target), spread(hidden, target)
    same(found, expected)
    expected.backward()
    found.backward()
    same_gradients(spread, one)
    same(whole(spread.log_prob(hidden)), one.log_prob(hidden))
    assert torch.equal(spread.topk(hidden, 5).index, one.topk(hidden, 5).index)
    assert torch.equal(spread.sample(hidden, 5), one.sample(hidden, 5))


@pytest.mark.parametrize("place", ["r", "0"])
def test_a_layer_made_of_a_dtensor(workers: Workers, place: str) -> None:
    for world in (2, 3):
        workers.run(world, of_a_dtensor, place)


def of_local_parts(spread: Any, h: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The loss of this process's parts, whose gradients become those of the DTensors."""
    parts = {"w": spread.weight.to_local(), "bias": spread.bias.to_local()}
    of_mesh = spread.weight.device_mesh.get_group()
    return softargmax.parallel.linear_cross_entropy(h, target=target, **parts, group=of_mesh, reproducible=False)


def in_any_order(group: Any, name: str, how: str, reduction: str) -> None:
    """The loss, and the gradients of W and b, have the bits of one process. That of h is added up by all-reduces."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import parallelize_module

    one, mesh = layer_of(name, D, 9001, dtype=torch.float32, reduction=reduction), DeviceMesh.from_group(group, "cpu")
    spread = parallelize_module(copy.deepcopy(one), mesh, VocabularyParallel(reproducible=how == "parts"))
    hidden, target = inputs()
    h, h_ = (hidden.clone().requires_grad_() for _ in range(2))
    expected = one(h, target)
    expected.sum().backward()
    with recorded() as messages:
        found = of_local_parts(spread, h_, target) if how == "parts" else spread(h_, target)
        found.sum().backward()
    same(found, expected)
    assert any(step.kind == "sum" for step in messages)
    if name == "full":
        same_gradients(spread, one)
    assert h.grad is not None
    assert h_.grad is not None
    torch.testing.assert_close(h_.grad, h.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "how", "reduction"),
    [
        ("full", "parts", "mean"),
        ("full", "style", "mean"),
        ("full", "style", "none"),
        ("adaptive", "style", "sum"),
        ("adaptive", "style", "none"),
    ],
)
def test_sums_in_any_order(workers: Workers, name: str, how: str, reduction: str) -> None:
    for world in (2, 4):
        workers.run(world, in_any_order, name, how, reduction)


def test_the_order_of_sums_is_true_or_false() -> None:
    with pytest.raises(TypeError, match="reproducible: expected True or False, got 0"):
        VocabularyParallel(reproducible=0)  # type: ignore[arg-type]


# --- the other methods ------------------------------------------------------------------------------------------------


def methods(group: Any, classes: int, size: int | None) -> None:
    from torch.distributed.tensor import DTensor, Shard

    from softargmax.output import torch_base

    before = torch_base._SIZE
    torch_base._SIZE = before if size is None else size
    one, spread = layers(group, classes)
    hidden, target = inputs(classes)
    for rows in (slice(None), 2, slice(0, 0)):
        h, y = hidden[rows], target[rows]
        for name in ("log_prob", "scores"):
            for grad in (True, False):
                with torch.set_grad_enabled(grad):
                    found, expected = (getattr(layer, name)(h) for layer in (spread, one))
                assert isinstance(found, DTensor)
                assert found.placements == (Shard(h.ndim - 1),)
                assert found.shape == expected.shape
                same(found.full_tensor(), expected)
        same(spread.log_prob_of(h, y), one.log_prob_of(h, y))
        for k in {1, min(7, classes), min(700, classes)}:
            found, expected = spread.topk(h, k), one.topk(h, k)
            same(found.values, expected.values)
            assert torch.equal(found.index, expected.index)
        stream = torch.arange(y.numel()).reshape(y.shape) * 7 + 3
        for seed in range(3):
            assert torch.equal(spread.sample(h, seed), one.sample(h, seed))
            assert torch.equal(spread.sample(h, seed, stream=stream), one.sample(h, seed, stream=stream))
    torch_base._SIZE = before


@pytest.mark.parametrize(("classes", "size"), [(CLASSES, None), (SMALL, None), (CLASSES, 20_000)])
def test_methods(workers: Workers, classes: int, size: int | None) -> None:
    for world in WORLDS:
        workers.run(world, methods, classes, size)


def ties(group: Any) -> None:
    """Equal probabilities in all processes, classes of probability 0, and rows with NaN."""
    from torch.distributed.tensor import distribute_tensor

    one, spread = layers(group, 40)
    with torch.no_grad():
        one.weight.sign_()
        one.bias.zero_()
        one.bias[::3] = -torch.inf
        for name, parameter in spread.named_parameters():
            x = one.get_parameter(name).detach()
            parameter.copy_(distribute_tensor(x, parameter.device_mesh, parameter.placements))
    hidden = torch.zeros(4, D)
    hidden[1, 0] = 1.0
    hidden[2, 3] = torch.nan
    hidden[3, :2] = 1.0
    for k in (1, 5, 30, 40):
        found, expected = spread.topk(hidden, k), one.topk(hidden, k)
        same(found.values, expected.values)
        assert torch.equal(found.index, expected.index)
    found = spread.topk(hidden, 30)
    assert found.index[0].tolist() == [n for n in range(40) if n % 3] + [0, 3, 6, 9]
    assert (found.index[2] == -1).all()


def test_ties_and_nan(workers: Workers) -> None:
    for world in WORLDS:
        workers.run(world, ties)


def gradients_of_all(group: Any) -> None:
    from torch.distributed.tensor import distribute_tensor

    one, spread = layers(group, dtype=torch.float64)
    hidden, _ = inputs(dtype=torch.float64)
    h, h_ = (hidden.clone().requires_grad_() for _ in range(2))
    expected, found = one.log_prob(h), spread.log_prob(h_)
    g = torch.randn(expected.shape, dtype=expected.dtype)
    expected.backward(g)
    found.backward(distribute_tensor(g, found.device_mesh, found.placements))
    same(whole(spread.weight.grad), one.weight.grad)
    for mine, other in ((h_.grad, h.grad), (whole(spread.bias.grad), one.bias.grad)):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_gradients_of_all_log_probabilities(workers: Workers) -> None:
    for world in (2, 3):
        workers.run(world, gradients_of_all)


# --- layers that sample their classes ---------------------------------------------------------------------------------

SAMPLED = [name for name in LAYERS if name not in ("full", "adaptive", "differentiated", "hierarchical")]


def sampled(group: Any, name: str, options: dict[str, Any]) -> None:
    """Every process draws the same candidates, and sends the vectors of those that it has."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import parallelize_module

    one = layer_of(name, dtype=torch.float32, **options)
    spread: Any = parallelize_module(copy.deepcopy(one), DeviceMesh.from_group(group, "cpu"), VocabularyParallel())
    assert isinstance(spread.weight, DTensor)
    hidden = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[1, -100, 7, 7], [39, 0, -100, 3], [20, 21, 22, 1]])
    for y in (target, target, torch.full((3, 4), -100)):  # each step has its own draws
        same_step(spread, one, hidden, y)
    same(spread.scores(hidden).full_tensor(), one.scores(hidden))
    if name in DISTRIBUTIONS:
        same(spread.log_prob(hidden).full_tensor(), one.log_prob(hidden))
        same(spread.log_prob_of(hidden, target), one.log_prob_of(hidden, target))
        assert torch.equal(spread.topk(hidden, 4).index, one.topk(hidden, 4).index)


@pytest.mark.parametrize("name", SAMPLED)
def test_layers_that_sample(workers: Workers, name: str) -> None:
    for world in (2, 4):
        workers.run(world, sampled, name, {"reduction": "none"})
    workers.run(3, sampled, name, {"bias": False})


# --- errors -----------------------------------------------------------------------------------------------------------


def wrong(group: Any, what: str) -> None:
    _, spread = layers(group, 40)
    hidden, target = inputs(40)
    last = group.rank() == group.size() - 1
    if what == "target" and last:
        target[0, 0] = 40
    if what == "hidden" and last:
        hidden = hidden[..., 1:]
    if what == "rows" and last:
        hidden, target = hidden[1:], target[1:]
    if what == "k":
        spread.topk(hidden, 3 + last)
    elif what == "seed":
        spread.sample(hidden, 3 + last)
    elif what == "values":
        spread.log_prob(hidden + last)
    elif what == "values of a loss":
        spread(hidden + last, target)
    elif what == "nan":
        hidden[2, 3] = torch.nan
        spread.sample(hidden, 0)
    else:
        spread(hidden, target)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("target", "process 1: target: expected 0 to 39, or -100 (ignored), got 40 at"),
        ("hidden", "process 1: hidden: expected shape (..., 24), got (5, 8, 23)"),
        ("rows", "h: expected the same in all processes, got float32 (37, 24) with checksum "),
        ("k", "k: expected the same in all processes, got 3, 4 in processes 0 to 1"),
        ("seed", "seed: expected the same in all processes"),
        ("values", "hidden: expected the same in all processes"),
        ("values of a loss", "h: expected the same in all processes"),
        ("nan", "hidden: expected vectors without NaN probabilities, got NaN in row 19"),
    ],
)
def test_one_error_in_all_processes(workers: Workers, what: str, message: str) -> None:
    found = workers.errors(2, wrong, what)
    assert len(set(found)) == 1, found
    assert found[0][1].startswith(message), found
    workers.run(2, loss, SMALL, torch.float32, {})  # the group can be used again


def test_other_modules_are_refused() -> None:
    mesh: Any = None
    with pytest.raises(TypeError, match=r"expected an embedding, or an output layer of softargmax.nn .*, got Linear"):
        VocabularyParallel()._apply(nn.Linear(2, 3), mesh)
