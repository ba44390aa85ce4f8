"""Losses of a last layer on torch tensors in CPU memory: `native_linear` on the same memory, and its derivative."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax.core.reduce import counts, factor
from softargmax.core.torch_bridge import all_direct, direct
from softargmax.core.torch_memory import shared
from softargmax.core.torch_rules import by_definition
from softargmax.loss import native_linear, torch_reference
from softargmax.loss.layer import Flat
from softargmax.loss.results import LinearLossAndGradient
from softargmax.loss.torch_rules import closed, opened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from softargmax.loss.options import Beside, Options

Tensors = tuple[Any, ...]  # h, w, bias, target, weight, hi, lo, where; a tensor, a number or None each
_NOTHING = (False, False, False)


class _LinearLoss(torch.autograd.Function):
    """(options, *tensors) -> the losses of rows. A backward that is itself to be differentiated is the definition's.

    Where the rows will be reduced, every row's incoming gradient is one number, known but for a factor: the gradients
    are formed in the forward, while the scores are there, and handed over by the first backward. A second one makes
    them anew: where the factor is no power of two, it may differ from the first in the last bit.
    """

    @staticmethod
    def forward(ctx: Any, options: Options, *tensors: Any) -> Tensor:
        ctx.options, ctx.seed, ctx.formed = options, 0.0, None
        ctx.plain = [None if isinstance(x, Tensor) else x for x in tensors]
        ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in tensors))
        wanted = ctx.needs_input_grad[1:4]
        if options.reduction != "none" and any(wanted):
            beside = _taken_apart(tensors)[1]
            ctx.seed = float(factor(counts(beside, options), options))
        formed = native_linear.formed(*_shared(tensors), options, ctx.seed, wanted if ctx.seed else _NOTHING)
        if ctx.seed:
            ctx.formed = formed[1:]
        return torch.from_numpy(formed[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        tensors = tuple(plain if x is None else x for x, plain in zip(ctx.saved_tensors, ctx.plain, strict=True))
        wanted, again = ctx.needs_input_grad[1:], torch.is_grad_enabled()
        formed, ctx.formed = ctx.formed, None
        if again or not direct(g):

            def rows(*tensors: Any) -> Tensor:
                return torch_reference.linear_loss(*_taken_apart(tensors), ctx.options)

            return None, *by_definition(rows, tensors, wanted, g, again=again)
        gradients = None if formed is None else _scaled(formed, g, ctx.seed)
        if gradients is None:
            seed = g.double().unsqueeze(1).numpy()
            gradients = native_linear.formed(*_shared(tensors), ctx.options, seed, wanted[:3])[1:]
        given = (
            x if x is None else torch.from_numpy(x).to(of.dtype) for x, of in zip(gradients, tensors, strict=False)
        )
        return None, *given, *(None,) * 5


def _scaled(formed: Sequence[Any], g: Tensor, seed: float) -> Sequence[Any] | None:
    """The gradients that the forward formed with a seed, for this g instead, if that is one number for all rows."""
    if not len(g) or not bool((g == g[0]).all()):
        return None
    ratio = float(g[0]) / seed
    if not math.isfinite(ratio):
        return None
    for one in formed:
        if one is not None and ratio != 1.0:
            torch.from_numpy(one).mul_(ratio)
    return formed


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
    wanted = (True, True, layer.bias is not None)
    found = native_linear.formed(*_shared(tensors), options, seed.numpy(), wanted)
    rows, *gradients = (None if x is None else torch.from_numpy(x) for x in found)
    return LinearLossAndGradient(
        rows, *(x if x is None else x.to(of.dtype) for x, of in zip(gradients, layer, strict=True))
    )


def _served(tensors: Tensors) -> bool:
    """Whether these tensors are plain memory of finite numbers, derivatives to be recorded or not."""
    given = tuple(x.detach() for x in tensors if isinstance(x, Tensor))
    return all_direct(given) and native_linear.finite(_shared(tensors)[0])


def _taken_apart(tensors: Tensors) -> tuple[Flat, Beside]:
    return Flat(*tensors[:3]), closed(*tensors[3:])


def _shared(tensors: Tensors) -> tuple[Flat, Beside]:
    """The same memory as NumPy's arrays; of bfloat16 the bits."""
    return _taken_apart(tuple(map(shared, tensors)))
