"""Attention of orders above 1 on torch tensors in CPU memory, by native_sparse.py where no order is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax.attend import native_sparse
from softargmax.attend.torch_rules import DIFFERENTIATED, Definition, closed
from softargmax.core.torch_bridge import all_direct
from softargmax.core.torch_memory import returned, shared
from softargmax.core.torch_rules import Rule, Tensors, inputs_of

if TYPE_CHECKING:
    from softargmax.attend.options import Options


class Sparse(Rule):
    """(options, the ten tensors) -> output, and lse of NaN.

    A backward that is differentiated itself, or goes to the order, is the definition's.
    """

    @staticmethod
    def forward(options: Options, *tensors: Any) -> Tensors:
        found = None
        if all_direct(tuple(x.detach() for x in tensors if isinstance(x, Tensor))):
            found = native_sparse.formed(*closed([shared(x) for x in tensors]), options)
        if found is None:
            return Definition.forward(options, *tensors)
        return returned(found.output, tensors[0].dtype), torch.from_numpy(found.lse)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, _lse: Any) -> Tensors:
        options, *tensors = inputs_of(ctx)
        needed, found = ctx.needs_input_grad[1:], None
        if g is not None and not needed[7] and not torch.is_grad_enabled() and all_direct((*tensors, g)):
            found = native_sparse.pulled(*closed([shared(x) for x in tensors]), options, shared(g))
        if found is None:
            return Definition.backward(ctx, g, None)
        gradients: list[Any] = [None] * len(tensors)
        for i, x in zip(DIFFERENTIATED, found, strict=True):
            if needed[i]:
                gradients[i] = torch.from_numpy(x).sum_to_size(tensors[i].shape).to(tensors[i].dtype)
        return None, *gradients

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensors:
        return Definition.jvp(ctx, *tangents)
