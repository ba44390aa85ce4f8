"""Losses of a last layer on torch tensors in CPU memory: `native_linear` on the same memory, and its derivative."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax.core.torch_bridge import all_direct, direct
from softargmax.loss import native_linear, torch_reference
from softargmax.loss.layer import Flat
from softargmax.loss.results import LinearLossAndGradient
from softargmax.loss.torch_rules import closed, opened

if TYPE_CHECKING:
    from softargmax.loss.options import Beside, Options

Tensors = tuple[Any, ...]  # h, w, bias, target, weight, hi, lo, where; a tensor, a number or None each


class _LinearLoss(torch.autograd.Function):
    """(options, *tensors) -> the losses of rows. A backward that is itself to be differentiated is the definition's."""

    @staticmethod
    def forward(ctx: Any, options: Options, *tensors: Any) -> Tensor:
        ctx.options = options
        ctx.plain = [None if isinstance(x, Tensor) else x for x in tensors]
        ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in tensors))
        return torch.from_numpy(native_linear.linear_loss(*_shared(tensors), options))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        tensors = tuple(plain if x is None else x for x, plain in zip(ctx.saved_tensors, ctx.plain, strict=True))
        wanted, again = ctx.needs_input_grad[1:], torch.is_grad_enabled()
        if again or not direct(g):
            with torch.enable_grad():
                rows = torch_reference.linear_loss(*_taken_apart(tensors), ctx.options)
            inputs = [x for x, needed in zip(tensors, wanted, strict=True) if needed]
            found = iter(torch.autograd.grad(rows, inputs, g, create_graph=again))
            return None, *(next(found) if needed else None for needed in wanted)
        layer, beside = _shared(tensors)
        seed = g.double().unsqueeze(1).numpy()
        gradients = native_linear.linear_loss_and_gradient(layer, seed, beside, ctx.options)[1:]
        first = (torch.from_numpy(x) if needed else None for x, needed in zip(gradients, wanted, strict=False))
        return None, *first, *(None,) * 5


def linear_loss(layer: Flat, beside: Beside, options: Options) -> Tensor:
    """The loss of every row."""
    tensors = *layer, *opened(beside)
    if not _served(tensors) or any(x.requires_grad for x in tensors[3:] if isinstance(x, Tensor)):
        return torch_reference.linear_loss(layer, beside, options)
    found: Tensor = _LinearLoss.apply(options, *tensors)  # type: ignore[no-untyped-call]
    return found


def linear_loss_and_gradient(layer: Flat, seed: Tensor, beside: Beside, options: Options) -> LinearLossAndGradient:
    """The loss of every row, and seed times its gradients; all can be differentiated."""
    tensors = *layer, *opened(beside)
    if not _served(tensors) or not all_direct((*tensors, seed)):
        return torch_reference.linear_loss_and_gradient(layer, seed, beside, options)
    layer, beside = _shared(tensors)
    found = native_linear.linear_loss_and_gradient(layer, seed.numpy(), beside, options)
    return LinearLossAndGradient(*(None if x is None else torch.from_numpy(x) for x in found))


def _served(tensors: Tensors) -> bool:
    """Whether these tensors are plain memory that NumPy knows, derivatives to be recorded or not."""
    given = tuple(x.detach() for x in tensors if isinstance(x, Tensor))
    return all_direct(given) and all(x.dtype != torch.bfloat16 for x in given)


def _taken_apart(tensors: Tensors) -> tuple[Flat, Beside]:
    return Flat(*tensors[:3]), closed(*tensors[3:])


def _shared(tensors: Tensors) -> tuple[Flat, Beside]:
    """The same memory as NumPy's arrays."""
    return _taken_apart(tuple(x.detach().numpy() if isinstance(x, Tensor) else x for x in tensors))
