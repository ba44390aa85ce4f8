"""Sampling layers compiled with fullgraph have the draws, losses and gradients of eager code."""

from __future__ import annotations

import copy
import importlib
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
layers = importlib.import_module("tests.output.layers")

from softargmax import nn  # noqa: E402
from softargmax.output import Learned  # noqa: E402
from softargmax.output.sampler_base import SAMPLERS  # noqa: E402
from softargmax.output.torch_sampler import draw_classes, expected_counts, observe_classes  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.*is deprecated:FutureWarning")  # torch.compile warns
Y = torch.tensor([3, 4, -100, 3, 8, 9, 0])


def layer_of(name: str) -> Any:
    if name == "learned":
        layer = nn.NCE(5, Learned(40), samples=6)
        layer.weight.data = layers.drawn(40, 5, dtype=torch.float32)
        return layer
    return layers.layer_of(name)


def trained(layer: Any, call: Any) -> list[Any]:
    """Return the losses and gradients of three training steps."""
    found: list[Any] = []
    for step in range(3):
        h = layers.drawn(len(Y), 5, dtype=torch.float32, seed=step).requires_grad_()
        loss = call(h, Y)
        loss.backward()
        found += [loss.detach(), h.grad, *(p.grad.clone() for p in layer.parameters())]
    return found


@pytest.mark.parametrize(
    "name",
    [
        "in batch",
        "learned",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "sampled",
                "sampled of rows",
                "distinct of rows",
                "importance",
                "target",
                "nce",
                "nce of rows",
                "negative",
            )
        ),
    ],
)
def test_training_steps(name: str) -> None:
    eager, layer = layer_of(name), layer_of(name)
    # Under tracing, importance sampling does not add draws, so the eager layer must not add any either.
    eager.most = eager.samples = getattr(eager, "samples", None)
    torch._dynamo.reset()
    found = trained(layer, torch.compile(layer, fullgraph=True, backend="aot_eager"))
    torch.testing.assert_close(found, trained(eager, eager), rtol=1e-5, atol=1e-6)
    if name != "target":
        assert layer.step == 3
    if name == "learned":
        assert layer.sampler.counts.tolist() == eager.sampler.counts.tolist() != [0] * 40


def test_draws_depend_only_on_seed_and_step() -> None:
    layer = layer_of("distinct of rows")
    call = lambda seed, step: draw_classes(  # noqa: E731
        layer.sampler.number, seed, torch.tensor(step), 4, True, 3, torch.tensor([0, 2]), torch.float32
    )
    assert torch.equal(call(5, 1)[0], call(5, 1)[0])
    assert not torch.equal(call(5, 1)[0], call(5, 2)[0])
    assert not torch.equal(call(5, 1)[0], call(6, 1)[0])
    assert nn.SampledSoftmax(5, layer.sampler, samples=4, seed=(1 << 63) - 1)(torch.zeros(1, 5), Y[:1]).isfinite()


@pytest.mark.parametrize("total", [None, 5])
@pytest.mark.parametrize("unique", [False, True])
def test_opcheck(total: int | None, unique: bool) -> None:
    sampler, step = Learned(9), torch.tensor(3)
    rows = None if total is None else torch.tensor([1, 4])
    torch.library.opcheck(draw_classes, (sampler.number, 7, step, 4, unique, total, rows, torch.float32))
    torch.library.opcheck(expected_counts, (sampler.number, step, torch.tensor([[0, 8]]), 4, unique))
    counted = torch.tensor([True, False])
    torch.library.opcheck(observe_classes, ([sampler.number], step, torch.tensor([1, 2]), counted, torch.ones(2)))
    assert sampler.counts[1] > 0 == sampler.counts[2]


def test_sampler_numbers_are_unique() -> None:
    sampler = Learned(4)
    copies = [copy.copy(sampler), copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))]
    numbers = [one.number for one in (sampler, *copies)]
    assert len(set(numbers)) == 4
    assert [SAMPLERS[number] for number in numbers] == [sampler, *copies]
    del sampler, copies
    assert not any(number in SAMPLERS for number in numbers)
