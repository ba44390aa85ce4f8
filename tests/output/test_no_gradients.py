"""Where no gradient is recorded none is made: losses of layers under `no_grad`, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

SCRIPT = """
import sys, torch, softargmax
from bench.peak import peak_of
from softargmax import nn, output

classes, dim = 200_000, 64  # of weights: 51 MB
h, y = torch.randn(8, dim, requires_grad=True), torch.arange(8) * 1000
layer = {
    "function": lambda: torch.nn.Linear(dim, classes, bias=False),
    "full": lambda: nn.FullSoftmax(dim, classes),
    "adaptive": lambda: nn.AdaptiveSoftmax(dim, classes, [1000], div_value=1.0),
    "differentiated": lambda: nn.DifferentiatedSoftmax(dim, [classes], [dim]),
    "hierarchical": lambda: nn.HierarchicalSoftmax(dim, output.Tree.balanced(classes)),
    "negative": lambda: nn.NegativeSampling(dim, output.Uniform(classes), samples=50),
}[sys.argv[1]]().eval()
weights = max(layer.parameters(), key=torch.numel)
def loss(h):
    return softargmax.linear_cross_entropy(h, weights, y) if sys.argv[1] == "function" else layer(h, y)

with torch.no_grad():
    loss(h[:1].repeat(8, 1))  # what is made once
    before, peak, found = peak_of(lambda: loss(h))
print((peak - before) / weights.nbytes)
assert found.requires_grad is False
tracked = loss(h)
assert torch.equal(tracked, found), (tracked, found)
before, peak, _ = peak_of(lambda: loss(h).backward())
print((peak - before) / weights.nbytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("layer", ["function", "full", "adaptive", "differentiated", "hierarchical", "negative"])
def test_memory_under_no_grad(layer: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, layer], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    without, with_gradients = map(float, done.stdout.split())
    assert without < 0.2
    assert with_gradients > 0.9, "the check has to see a gradient of the weights"
