"""torch.compile of calls over processes: whole graphs, with the bits of eager calls. torch.func is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.output.layers import layer_of as layer_with_parameters
from tests.parallel.cases import cuts, part, same
from tests.parallel.messages import recorded
from tests.parallel.workers import Workers

import softargmax
from softargmax import parallel

COLUMNS = 9001
TARGET = torch.tensor([17, 4096, 8191, 0, 9000, -100])


def layer_of(group: Any, kind: str = "even") -> dict[str, torch.Tensor]:
    """Scores, and a last layer, of which this process has a part of the classes."""
    torch.manual_seed(3)
    bounds = cuts(kind, group.size(), COLUMNS)
    z, w, h = torch.randn(6, COLUMNS), torch.randn(COLUMNS, 16), torch.randn(6, 16)
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    mine = {"z": part(group, z, bounds), "w": part(group, w, bounds, 0)}
    return {**mine, "h": h, "t": torch.rand(6, 1) + 0.5, "q": q, "k": k, "v": v}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda z, group: parallel.softmax(z, group=group),
    "log_softmax": lambda z, t, group: parallel.log_softmax(z, temperature=t, group=group),
    "logsumexp": lambda z, group: parallel.logsumexp(z, keepdims=True, group=group),
    "entropy": lambda z, group: parallel.entropy(z, where=z > -1, group=group),
    "kl_divergence": lambda z, group: parallel.kl_divergence(z, z.flip(0), group=group),
    "cross_entropy": lambda z, group: parallel.cross_entropy(2 * z, TARGET, label_smoothing=0.1, group=group),
    "losses": lambda z, group: parallel.cross_entropy(z, TARGET, reduction="none", dtype=torch.float64, group=group),
    "terms": lambda z, group: parallel.cross_entropy_terms(z, TARGET, z_loss=0.1, group=group),
    "selected": lambda z, group: parallel.selected_log_softmax(z, TARGET.clamp(0), group=group),
    "layer": lambda h, w, group: 3 * parallel.linear_cross_entropy(2 * h, w, TARGET, group=group),
    "halves": lambda h, w, group: parallel.linear_cross_entropy(h.half(), w.half(), TARGET, group=group),
    "draws": lambda z, group: parallel.categorical(z, seed=3, num_samples=4, top_k=7, group=group),
    "draws with logprob": lambda z, group: parallel.categorical_with_logprob(z, seed=3, group=group),
    "attention": lambda q, k, v, group: parallel.attention(q, k, v, causal=True, window=(3, None), group=group),
    "split keys": lambda q, k, v, group: parallel.attention_split_kv(q, k, v, group=group),
    "visiting keys": lambda q, k, v, group: parallel.attention(q, k, v, causal=True, by="parts", group=group),
    "zigzag": lambda q, k, v, group: parallel.attention(q, k, v, causal=True, by="parts", zigzag=True, group=group),
    "two calls": lambda z, h, w, group: (
        parallel.linear_cross_entropy(h, w, TARGET, group=group) + parallel.cross_entropy(z, TARGET, group=group)
    ),
}


def names_of(name: str) -> list[str]:
    """The arrays that a function takes."""
    code = FUNCTIONS[name].__code__
    return [x for x in code.co_varnames[: code.co_argcount] if x != "group"]


def compiled(group: Any, name: str, backend: str, kind: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    f, names = FUNCTIONS[name], names_of(name)
    given = [layer_of(group, kind)[of] for of in names]
    for of in (group, init_device_mesh("cpu", (group.size(),)) if group.size() == 4 else group):
        found = []
        for call in (f, torch.compile(f, fullgraph=True, backend=backend)):
            leaves = [x.clone().requires_grad_() for x in given]
            o = call(**dict(zip(names, leaves, strict=True)), group=of)
            results = o if isinstance(o, tuple) else (o,)
            torch.manual_seed(5)
            trained = [(x, torch.randn_like(x)) for x in results if x.requires_grad]
            if trained:
                torch.autograd.backward(*zip(*trained, strict=True))
            found.append((type(o), [*results, *(x.grad for x in leaves)], [x.requires_grad for x in results]))
        assert found[0][::2] == found[1][::2]
        for one, other in zip(found[0][1], found[1][1], strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                same(other, one)
        torch._dynamo.reset()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(workers: Workers, name: str) -> None:
    workers.run(2, compiled, name, "aot_eager", "ragged")


def test_a_mesh(workers: Workers) -> None:
    workers.run(4, compiled, "softmax", "aot_eager", "empty")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two calls", "softmax", "draws with logprob", "visiting keys"])
def test_inductor(workers: Workers, name: str) -> None:
    workers.run(2, compiled, name, "inductor", "even")


def sizes(group: Any) -> None:
    """Several numbers of rows, and of columns."""
    torch._dynamo.reset()

    def loss(z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return parallel.cross_entropy(z, target, group=group)

    call = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for rows, columns in ((3, 7), (5, 7), (9, 8), (4, 11), (6, 30)):
        found = []
        for function in (loss, call):
            torch.manual_seed(rows)
            z = torch.randn(rows, columns + group.rank()).requires_grad_()
            o = function(z, torch.arange(rows))
            o.backward()
            found.append((o, z.grad))
        for one, other in zip(*found, strict=True):
            same(other, one)
    torch._dynamo.reset()


def test_sizes_may_change(workers: Workers) -> None:
    workers.run(2, sizes)


def steps(group: Any) -> None:
    """Two forward passes before their backward passes, and errors, which all processes raise."""
    torch._dynamo.reset()
    call = torch.compile(lambda z: parallel.softmax(2 * z, group=group), fullgraph=True, backend="aot_eager")
    found = []
    for function in (lambda z: parallel.softmax(2 * z, group=group), call):
        torch.manual_seed(group.rank())
        leaves = [torch.randn(3, 5).requires_grad_() for _ in range(2)]
        outputs = [function(x) for x in leaves]
        for x in outputs:
            x.square().sum().backward()
        found.append([*outputs, *(x.grad for x in leaves)])
    for one, other in zip(*found, strict=True):
        assert one is not None
        same(other, one)
    torch._dynamo.reset()


def test_two_steps_at_once(workers: Workers) -> None:
    workers.run(2, steps)


def wrong(group: Any) -> Any:
    torch._dynamo.reset()
    targets = torch.tensor([0, group.rank()])
    return torch.compile(lambda z: parallel.cross_entropy(z, targets, group=group), backend="aot_eager")(
        torch.zeros(2, 5)
    )


def test_one_error(workers: Workers) -> None:
    for _, text in workers.errors(2, wrong):
        assert "target: expected the same in all processes, got int64 (2) with checksum " in text


def in_some(group: Any, name: str, compiles: list[bool]) -> None:
    """A step of a function or of a layer. Some processes compile it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    torch._dynamo.reset()
    if name in FUNCTIONS:
        f = functools.partial(FUNCTIONS[name], group=group)
        given = layer_of(group)
        arrays = [given[of].requires_grad_() for of in names_of(name)]
    else:
        mesh = init_device_mesh("cpu", (group.size(),))
        f = parallelize_module(layer_with_parameters(name, dtype=torch.float32), mesh, parallel.VocabularyParallel())
        arrays = [torch.ones(3, 5, requires_grad=True), torch.tensor([0, 39, -100])]
    call = torch.compile(f, fullgraph=True, backend="aot_eager") if compiles[group.rank()] else f
    try:
        found = call(*arrays)
        trained = [x.sum() for x in (found if isinstance(found, tuple) else (found,)) if x.requires_grad]
        if trained:
            torch.stack(trained).sum().backward()
    finally:
        torch._dynamo.reset()


OF_EACH_KIND = ("softmax", "cross_entropy", "terms", "layer", "draws", "attention", "visiting keys", "nce", "adaptive")


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_some_processes_compile(workers: Workers, name: str) -> None:
    """Their backward passes would exchange other messages, so the call is refused. Then the group works again."""
    for compiles in ([True, False, False, True], [False, True, True, True]):
        found = workers.errors(4, in_some, name, compiles)
        got = f"got {str(compiles)[1:-1]} in processes 0 to 3; compile the call in all processes, or in none"
        assert set(found) == {("ValueError", f"compiled: expected the same in all processes, {got}")}
    for compiles in ([True] * 4, [False] * 4):
        workers.run(4, in_some, name, compiles)


def tensors(group: Any, name: str, placement: int) -> None:
    """DTensors in whole graphs: by rows, and by classes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch._dynamo.reset()
    mesh, places = init_device_mesh("cpu", (4,)), [Shard(placement)]
    torch.manual_seed(0)
    z, target = torch.randn(6, COLUMNS), torch.arange(6)
    f = softargmax.softmax if name == "softmax" else lambda z: softargmax.cross_entropy(z, target)
    found = []
    for call in (f, torch.compile(f, fullgraph=True, backend="aot_eager")):
        x = distribute_tensor(z, mesh, places).requires_grad_()
        o = call(x)
        o.square().sum().backward()
        assert x.grad is not None
        found.append((o.placements, o.full_tensor(), x.grad.full_tensor()))
    assert found[0][0] == found[1][0]
    for one, other in zip(found[0][1:], found[1][1:], strict=True):
        same(other, one)
    torch._dynamo.reset()


@pytest.mark.parametrize("placement", [0, 1])
@pytest.mark.parametrize("name", ["softmax", "cross_entropy"])
def test_dtensors(workers: Workers, name: str, placement: int) -> None:
    workers.run(4, tensors, name, placement)


def attention_of_tensors(group: Any, placement: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch._dynamo.reset()
    mesh = init_device_mesh("cpu", (4,))
    torch.manual_seed(0)
    arrays = torch.randn(3, 4, 4, 20, 8)
    f = lambda q, k, v: softargmax.attention(q, k, v, causal=True)  # noqa: E731 dynamo traces a function
    found = []
    for call in (f, torch.compile(f, fullgraph=True, backend="aot_eager")):
        leaves = [distribute_tensor(x, mesh, [Shard(placement)]).requires_grad_() for x in arrays]
        o = call(*leaves)
        o.square().sum().backward()
        found.append([o, *(x.grad for x in leaves)])
    for one, other in zip(*found, strict=True):
        assert one.placements == other.placements
        same(other.full_tensor(), one.full_tensor())
    torch._dynamo.reset()


@pytest.mark.parametrize("placement", [0, 1, 2])
def test_attention_of_dtensors(workers: Workers, placement: int) -> None:
    """Processes have parts of the batch, of the heads, or of sequences."""
    workers.run(4, attention_of_tensors, placement)


def step_of_layer(group: Any, reproducible: bool) -> None:
    """A step of a compiled layer over processes has the bits of the compiled layer of one process. If processes may add
    in any order, dh agrees to rounding.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import parallelize_module

    found = []
    for spread in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        layer: Any = softargmax.nn.FullSoftmax(16, 9000)
        if spread:
            style = parallel.VocabularyParallel(reproducible=reproducible)
            layer = parallelize_module(layer, init_device_mesh("cpu", (4,)), style)
        torch.manual_seed(1)
        h, target = torch.randn(8, 16, requires_grad=True), torch.tensor([0, 8999, -100, 3, 4, 5, 6, 7])
        with recorded() as messages:
            loss = torch.compile(layer, fullgraph=True, backend="aot_eager")(h, target)
            loss.backward()
        assert any(step.kind == "sum" for step in messages) == (spread and not reproducible)
        of_w = layer.weight.grad
        found.append((loss, of_w.full_tensor() if isinstance(of_w, DTensor) else of_w, h.grad))
    (*of_one, dh), (*of_many, dh_) = found
    for one, other in zip(of_one, of_many, strict=True):
        assert one is not None
        same(other, one)
    if reproducible:
        same(dh_, dh)
    torch.testing.assert_close(dh_, dh)
    torch._dynamo.reset()


@pytest.mark.parametrize("reproducible", [True, False])
def test_a_step_of_a_layer(workers: Workers, reproducible: bool) -> None:
    workers.run(4, step_of_layer, reproducible)


def steps_of_layer(group: Any, name: str, backend: str) -> None:
    """Steps of a compiled layer over processes have the bits of those of one process, and the draws of an eager one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    found = []
    for spread, compiles in ((False, True), (True, True), (True, False)):
        torch._dynamo.reset()
        layer: Any = layer_with_parameters(name, dtype=torch.float32)
        if spread:
            layer = parallelize_module(layer, init_device_mesh("cpu", (4,)), parallel.VocabularyParallel())
        torch.manual_seed(1)
        h, target = torch.randn(8, 5, requires_grad=True), torch.tensor([0, 39, -100, 3, 4, 5, 6, 7])
        call = torch.compile(layer, fullgraph=True, backend=backend) if compiles else layer
        losses = [call(h, target) for _ in range(2)]  # each step has its own draws
        torch.stack(losses).sum().backward()
        gradients = [x.grad for x in layer.parameters()]
        found.append([*losses, h.grad, *(x.full_tensor() if hasattr(x, "full_tensor") else x for x in gradients)])
    of_one, of_many, eager = found
    for one, other, plain in zip(of_one, of_many, eager, strict=True):
        same(other, one)
        torch.testing.assert_close(plain, one)
    torch._dynamo.reset()


LAYERS_OF_ALL_KINDS = ("sampled", "distinct of rows", "nce", "negative", "hierarchical", "adaptive")


@pytest.mark.parametrize("name", LAYERS_OF_ALL_KINDS)
def test_steps_of_layers(workers: Workers, name: str) -> None:
    workers.run(4, steps_of_layer, name, "aot_eager")


@pytest.mark.slow
def test_inductor_of_a_layer(workers: Workers) -> None:
    workers.run(4, steps_of_layer, "nce", "inductor")


def transformed(group: Any, name: str) -> Any:
    z = torch.randn(3, 5)

    def loss(z: torch.Tensor) -> torch.Tensor:
        return parallel.cross_entropy(z, torch.arange(3), group=group)

    if name == "grad":
        return torch.func.grad(loss)(z)
    if name == "vmap":
        return torch.func.vmap(lambda z: parallel.softmax(z, group=group))(z)
    if name == "jvp":
        return torch.func.jvp(loss, (z,), (z,))
    with torch.autograd.forward_ad.dual_level():
        return loss(torch.autograd.forward_ad.make_dual(z, z))


@pytest.mark.parametrize("name", ["grad", "vmap", "jvp", "forward mode"])
def test_transforms_are_refused(workers: Workers, name: str) -> None:
    for kind, text in workers.errors(2, transformed, name):
        assert kind == "NotImplementedError"
        assert "torch.func and forward mode are not supported for rows that are spread over processes; call it" in text


def batch_of_gradients(group: Any, kind: str) -> None:
    bounds = cuts(kind, group.size(), COLUMNS)
    z = layer_of(group, kind)["z"].requires_grad_()
    p = parallel.softmax(z, group=group)
    g = part(group, torch.randn(2, 6, COLUMNS, generator=torch.Generator().manual_seed(1)), bounds)
    (found,) = torch.autograd.grad(p, z, g, is_grads_batched=True, retain_graph=True)
    for one, of in zip(found, g, strict=True):
        same(one, torch.autograd.grad(p, z, of, retain_graph=True)[0])


def test_batches_of_gradients(workers: Workers) -> None:
    """Torch's older vmap runs an operator once for each entry. It cannot exchange parts of blocks."""
    workers.run(2, batch_of_gradients, "blocks")
    for kind, text in workers.errors(2, batch_of_gradients, "ragged"):
        assert kind == "NotImplementedError"
        assert text.startswith("is_grads_batched: not supported for rows that are spread over processes")
