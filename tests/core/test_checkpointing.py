"""Every function works under activation checkpointing, which recomputes the function in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import softargmax as s  # noqa: E402

Z = torch.linspace(-2, 3, 24, dtype=torch.float64).reshape(4, 6)
W = torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(8, 6)
Y = torch.tensor([0, 3, 5, 2])
OFFSETS = torch.tensor([0, 2, 6])
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "softmax": s.softmax,
    "softmax with lse": lambda z: sum(x.sum() for x in s.softmax_with_lse(z)),
    "log_softmax": s.log_softmax,
    "logsumexp": lambda z: s.logsumexp(z, temperature=z.detach()[:, :1].abs() + z[:, :1] ** 2),
    "weighted logsumexp": lambda z: s.logsumexp(z, weights=z**2 + 1),
    "logcumsumexp": s.logcumsumexp,
    "entropy": lambda z: s.entropy(z, temperature=z[:, :1] ** 2 + 1),
    "kl_divergence": lambda z: s.kl_divergence(z, z**2),
    "soft_argmax": lambda z: s.soft_argmax(z, z[0] ** 2),
    "segment_softmax": lambda z: s.segment_softmax(z[0], OFFSETS),
    "segment_logsumexp": lambda z: s.segment_logsumexp(z[0], OFFSETS),
    "cross_entropy": lambda z: s.cross_entropy(z, Y, label_smoothing=0.1),
    "common cross_entropy": lambda z: s.cross_entropy(z.float(), Y),
    "linear_cross_entropy": lambda z: s.linear_cross_entropy(z, W, Y),
    "sparsemax": s.sparsemax,
    "entmax": lambda z: s.entmax(z, z[:, :1] ** 2 + 1.2),
    "entmax_loss": lambda z: s.entmax_loss(z, Y),
    "threshold": lambda z: s.threshold(z, 1.5).tau,
    "gumbel_softmax": lambda z: s.gumbel_softmax(z, seed=0),
    "attention": lambda z: s.attention(z[None], W[None], W[None]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_with_and_without_checkpointing_agree(name: str) -> None:
    function = FUNCTIONS[name]

    def gradient(call: Callable[[Any], Any]) -> Any:
        z = Z.clone().requires_grad_()
        return torch.autograd.grad(call(z).sum(), z)[0]

    found = gradient(lambda z: checkpoint(function, z, use_reentrant=False))
    assert torch.equal(found, gradient(function))
