"""Output layers as torch modules: derivatives, sparse gradients, transforms, reproducible bits, checkpoints."""

from __future__ import annotations

import copy
import importlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
layers = importlib.import_module("tests.output.layers")

from softargmax import nn  # noqa: E402
from softargmax.output import Learned, Negatives  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning"),  # torch's forward mode warns
    pytest.mark.filterwarnings("ignore:`isinstance.*is deprecated:FutureWarning"),  # torch.compile warns
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # torch.compile warns at a graph break
]
F64, layer_of, drawn = torch.float64, layers.layer_of, layers.drawn
every = pytest.mark.parametrize("name", layers.LAYERS)


# --- derivatives ------------------------------------------------------------------------------------------------------


def losses_of(layer: Any, y: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a layer's loss as a function of h and the parameters, and copies of the parameters."""
    names = [name for name, _ in layer.named_parameters()]

    def loss(h: Any, *values: Any) -> Any:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (h, y))

    return loss, tuple(value.detach().clone().requires_grad_() for value in layer.parameters())


@pytest.mark.slow
@every
def test_derivatives(name: str) -> None:
    layer = layer_of(name, 3, 7, dtype=F64, reduction="none").eval()  # the candidates stay the same in eval mode
    layer.least_ess = 0.0  # with a larger value, the number of draws would depend on h, and the loss would jump
    loss, values = losses_of(layer, torch.tensor([6, 0, -100, 3, 0]))
    inputs = drawn(5, 3).requires_grad_(), *values
    assert torch.autograd.gradcheck(loss, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(loss, inputs)


@pytest.mark.parametrize("name", layers.SPARSE)
def test_sparse_gradients(name: str) -> None:
    dense, sparse = (layer_of(name, sparse=s).eval() for s in (False, True))
    hidden, y = drawn(6, 5, dtype=torch.float32), torch.tensor([0, 3, 3, -100, 39, 0])
    for layer in (dense, sparse):
        layer(hidden, y).backward()
    for (which, a), b in zip(dense.named_parameters(), sparse.parameters(), strict=True):
        if which in ("weight", "bias"):
            assert b.grad.layout == torch.sparse_coo, which
            assert b.grad._indices().shape[1] < len(a)
            torch.testing.assert_close(b.grad.to_dense(), a.grad)
    before = [parameter.clone() for parameter in sparse.parameters()]
    few = [p for which, p in sparse.named_parameters() if which in ("weight", "bias")]
    torch.optim.SparseAdam(few).step()
    assert not all(map(torch.equal, before, sparse.parameters()))


def test_tied_weight_gets_both_gradients() -> None:
    embedding = torch.nn.Embedding(40, 5)
    layer = nn.SampledSoftmax(5, layers.sampler(40), samples=6, weight=embedding.weight)
    layer(embedding(torch.tensor([1, 2])), torch.tensor([3, 4])).backward()
    assert layer.weight is embedding.weight
    assert embedding.weight.grad[[1, 2, 3, 4]].any(1).all()


@pytest.mark.slow
@every
def test_vmap_and_compile(name: str) -> None:
    layer, hidden, y = layer_of(name, reduction="none").eval(), drawn(6, 5, dtype=torch.float32), torch.arange(6)
    layer.least_ess = 0.0
    inputs: tuple[Any, ...] = (hidden, y)
    if hasattr(layer, "sampler"):
        inputs += (Negatives(torch.arange(8) * 3, torch.linspace(-2, 1, 8)),)
    if name == "target":
        layer.use(torch.arange(20))
    wanted = layer(*inputs)
    mapped = torch.func.vmap(layer, in_dims=(0, 0, None)[: len(inputs)])(*inputs)
    torch.testing.assert_close(mapped, wanted)
    torch._dynamo.reset()  # dynamo limits how often it recompiles a function
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), wanted)


# --- bits and state ---------------------------------------------------------------------------------------------------


@every
def test_a_row_has_the_same_bits_in_every_batch(name: str) -> None:
    layer, hidden, y = layer_of(name, 67, 300, 0.3, reduction="none").eval(), drawn(40, 67).float(), torch.arange(40)
    if name == "target":
        layer.use(y)
    negatives = (Negatives(np.arange(64) * 4, np.linspace(-2, 1, 64)),) if hasattr(layer, "sampler") else ()
    hidden.requires_grad_()

    def all_of(part: Any) -> list[Any]:
        loss = layer(hidden[part], y[part], *negatives)
        (dh,) = torch.autograd.grad(loss.sum(), hidden)
        found = [loss, dh[part]]
        if name in layers.DISTRIBUTIONS:
            found += [layer.log_prob(hidden[part]), *layer.topk(hidden[part], 5)]
        return found

    whole = all_of(slice(None))
    threads = torch.get_num_threads()
    for part in (slice(7, 8), slice(30, None), torch.arange(39, -1, -1)):
        torch.set_num_threads(1 if part == slice(7, 8) else 2)
        try:
            found = all_of(part)
        finally:
            torch.set_num_threads(threads)
        assert all(torch.equal(ours, x[part]) for ours, x in zip(found, whole, strict=True))


@every
def test_checkpoint_continues_with_the_same_draws(name: str) -> None:
    hidden, y = drawn(6, 5, dtype=torch.float32), torch.arange(6)
    layer, twin = layer_of(name), layers.LAYERS[name](5, 40)
    layer(hidden, y)
    twin.load_state_dict(pickle.loads(pickle.dumps(layer.state_dict())))
    for _ in range(3):
        assert torch.equal(layer(hidden, y), twin(hidden, y)), "the restored layer makes the same draws"
    assert torch.equal(copy.deepcopy(layer)(hidden, y), layer(hidden, y))
    for dim, k in ((5, 41), (6, 40)):
        with pytest.raises(RuntimeError, match="size mismatch for "):
            layers.LAYERS[name](dim, k).load_state_dict(layer.state_dict())


@every
def test_layers_from_the_meta_device(name: str) -> None:
    """A layer created on the meta device works after each of three ways to allocate its parameters.

    The ways: a checkpoint with ``assign=True``, `to_empty` with a checkpoint, and `to_empty` with `reset_parameters`.
    """
    layer, hidden, y = layer_of(name).eval(), drawn(6, 5, dtype=torch.float32), torch.arange(6)
    wanted = layer(hidden, y)
    assigned = layers.LAYERS[name](5, 40, device="meta").eval()
    assigned.load_state_dict(layer.state_dict(), assign=True)
    assert torch.equal(assigned(hidden, y), wanted)
    emptied = layers.LAYERS[name](5, 40, device="meta").to_empty(device="cpu").eval()
    emptied.load_state_dict(layer.state_dict())
    assert torch.equal(emptied(hidden, y), wanted)
    with torch.device("meta"):
        begun = layers.LAYERS[name](5, 40)
    begun.to_empty(device="cpu")
    for buffer in begun.buffers():
        if buffer.dtype == torch.int64:
            buffer.fill_(-(1 << 62))  # stands for uninitialised memory
    begun.reset_parameters()
    assert begun.eval()(hidden, y).isfinite()


def test_checkpoint_contains_learned_counts() -> None:
    layer, twin = (nn.SampledSoftmax(5, Learned(40), samples=6) for _ in range(2))
    hidden, y = drawn(3, 5, dtype=torch.float32), torch.tensor([7, -100, 7])
    layer(hidden, y)
    assert layer.sampler.counts[7] == 2
    assert layer.sampler.counts.sum() == 2
    layer.eval()(hidden, y)
    assert layer.sampler.counts.sum() == 2, "eval mode does not count targets"
    twin.load_state_dict(layer.state_dict())
    assert np.array_equal(twin.sampler.counts, layer.sampler.counts)
    with pytest.raises(RuntimeError, match=r"Missing key.*sampler\.counts"):
        twin.load_state_dict({name: x for name, x in layer.state_dict().items() if "counts" not in name})
    with pytest.raises(RuntimeError, match=r"state\['counts'\]: expected 40 classes, got 39"):
        twin.load_state_dict({**layer.state_dict(), "sampler.counts": torch.ones(39)})
