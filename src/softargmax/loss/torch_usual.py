"""The call that training makes most: scores in CPU memory, classes, a mean or a sum, and no other option.

One autograd node from the scores to the number, one call of the kernel each way. Of 4096 x 1000 scores, whose losses
take 0.7 ms, the checks and nodes of the general way took another 0.6: they find the caches swept by the scores.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softargmax.core import _native
from softargmax.core.torch_bridge import direct
from softargmax.core.torch_memory import fresh_like, view
from softargmax.core.torch_rules import by_definition
from softargmax.loss.of_scores import general_loss

DTYPES = frozenset((torch.float32, torch.bfloat16, torch.float16))
KINDS = (Tensor, torch.nn.Parameter)


def usual_loss(z: Any, target: Any, reduction: Any, ignore_index: Any) -> Tensor | None:
    """The loss, or None where the general way has to be taken.

    A class out of range is an IndexError of the kernel, which knows its row, not its place.
    """
    if not (
        type(z) in KINDS
        and type(target) is Tensor
        and z.dtype in DTYPES
        and target.dtype is torch.int64
        and z.ndim > 0
        and target.shape == z.shape[:-1]
        and type(reduction) is str
        and reduction in ("mean", "sum")
        and type(ignore_index) is int
        and -(1 << 63) <= ignore_index < 1 << 63
        and z.layout is torch.strided
        and direct(target)
        and direct(z.detach())
    ):
        return None
    loss: Tensor = _Loss.apply(z, target, reduction, ignore_index)  # type: ignore[no-untyped-call]
    return loss


class _Loss(torch.autograd.Function):
    """(z, target, reduction, ignore_index) -> loss; a backward that will be differentiated goes the general way."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, target: Tensor, reduction: str, ignore_index: int) -> Tensor:
        rows, states = (z.new_empty((*target.shape, *more), dtype=torch.float64) for more in ((), (3,)))
        counted = _run(z, target, states, ignore_index=ignore_index, loss=view(rows))
        ctx.asked = {"reduction": reduction, "ignore_index": ignore_index}
        ctx.counted = max(counted, 1) if reduction == "mean" else 1
        ctx.save_for_backward(z, target, states)
        mean: Tensor = rows.sum() / ctx.counted
        return mean.float()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        z, target, states = ctx.saved_tensors
        again = torch.is_grad_enabled()
        if again or not direct(g):
            found = by_definition(lambda z: general_loss(z, target, ctx.asked), (z,), (True,), g, again=again)
            return *found, None, None, None
        gradient, seed = fresh_like(z, z.dtype), g.double() / ctx.counted
        asked = {"ignore_index": ctx.asked["ignore_index"], "out": view(gradient), "seed": view(seed)}
        _run(z, target, states, given=True, **asked)
        return gradient, None, None, None


def _run(z: Tensor, target: Tensor, states: Tensor, **asked: Any) -> int:
    classes = target.contiguous().view(-1).numpy()
    counted: int = _native.cross_entropy(view(z), classes, view(states), (z.ndim - 1,), **asked)
    return counted
