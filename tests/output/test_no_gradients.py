"""Losses under `no_grad` allocate no gradients. Peak memory is measured for each layer in its own process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

LAYERS = ("function", "full", "adaptive", "differentiated", "hierarchical", "negative")
# The script imports all modules once. It runs each layer in a child process, forked before torch starts threads.
SCRIPT = """
import json, os, sys, torch, softargmax
from bench.peak import peak_of
from softargmax import nn, output

def shares(name):
    classes, dim = 200_000, 64  # the weights take 51 MB
    h, y = torch.randn(8, dim, requires_grad=True), torch.arange(8) * 1000
    layer = {
        "function": lambda: torch.nn.Linear(dim, classes, bias=False),
        "full": lambda: nn.FullSoftmax(dim, classes),
        "adaptive": lambda: nn.AdaptiveSoftmax(dim, classes, [1000], div_value=1.0),
        "differentiated": lambda: nn.DifferentiatedSoftmax(dim, [classes], [dim]),
        "hierarchical": lambda: nn.HierarchicalSoftmax(dim, output.Tree.balanced(classes)),
        "negative": lambda: nn.NegativeSampling(dim, output.Uniform(classes), samples=50),
    }[name]().eval()
    weights = max(layer.parameters(), key=torch.numel)
    def loss(h):
        return softargmax.linear_cross_entropy(h, weights, y) if name == "function" else layer(h, y)

    with torch.no_grad():
        loss(h[:1].repeat(8, 1))  # so that the allocations of a first call are not measured
        before, without, found = peak_of(lambda: loss(h))
    assert found.requires_grad is False
    tracked = loss(h)
    assert torch.equal(tracked, found), (tracked, found)
    began, peak, _ = peak_of(lambda: loss(h).backward())
    return (without - before) / weights.nbytes, (peak - began) / weights.nbytes

for name in sys.argv[1:]:
    if not os.fork():
        print(json.dumps([name, *shares(name)]), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def shares() -> tuple[dict[str, list[float]], str]:
    """Return the peak memory of each layer without and with gradients, and the error output of the process.

    The unit of the peak memory is the size of the layer's weights.
    """
    done = subprocess.run([sys.executable, "-c", SCRIPT, *LAYERS], capture_output=True, text=True, check=False)
    return {name: peaks for name, *peaks in map(json.loads, done.stdout.splitlines())}, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("layer", LAYERS)
def test_no_grad_allocates_no_gradients(layer: str, shares: tuple[dict[str, list[float]], str]) -> None:
    found, printed = shares
    assert layer in found, printed
    without, with_gradients = found[layer]
    assert without < 0.2
    assert with_gradients > 0.9, "the peak includes the gradient of the weights"
