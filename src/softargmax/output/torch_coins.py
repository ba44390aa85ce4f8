"""Losses of coins: of every row, how likely all that it meets fell as they should.

    x_p = <h_row(p), w_node(p)> + b + shift_p        loss = sum -log sigma(s_p x_p)        s_p = 1, -1, or 0: no coin

    d loss / d x_p = slope_p = -s_p sigma(-s_p x_p)        dh = sum slope_p w_p        dw = sum slope_p h_p

One pass over the vectors that are met gives a row's loss, its slopes and its gradient to h, which waits for the
gradient to the loss that it is multiplied by.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from softargmax.core import _native
from softargmax.core.torch_bridge import direct
from softargmax.core.torch_memory import view
from softargmax.core.torch_rules import by_definition, without_autocast
from softargmax.output.torch_rows import Pairs, pair_scores, quick, starts_of, to_table


def coin_losses(
    h: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pairs: Pairs,
    signs: Tensor,
    *,
    shift: Tensor | None = None,
    sparse: bool,
) -> Tensor:
    """The loss of every row, (N,) in the dtype of h; signs and shift (P,), the rest as of `pair_scores`."""
    with without_autocast(h):
        if not quick(h, weight, bias, shift, signs, *pairs):
            return _definition(h, weight, bias, shift, signs, *pairs)
        found: Tensor = _CoinLosses.apply(sparse, h.contiguous(), weight, bias, shift, signs, *pairs)  # type: ignore[no-untyped-call]
    return found


def _definition(
    h: Tensor, weight: Tensor, bias: Tensor | None, shift: Tensor | None, signs: Tensor, *places: Tensor
) -> Tensor:
    pairs = Pairs(*places)
    x = pair_scores(h, weight, bias, pairs, sparse=False)
    terms = torch.where(signs == 0, 0, functional.logsigmoid((x if shift is None else x + shift) * signs))
    return 0.0 - h.new_zeros(h.shape[0]).index_add(0, pairs.rows, terms)


class _CoinLosses(torch.autograd.Function):
    """(sparse, h, weight, bias, shift, signs, nodes, rows, offsets) -> the losses of rows."""

    @staticmethod
    def forward(
        ctx: Any,
        sparse: bool,
        h: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        shift: Tensor | None,
        signs: Tensor,
        *places: Tensor,
    ) -> Tensor:
        nodes, _, offsets = places
        ctx.sparse = sparse
        loss, signs = h.new_empty(len(h)), signs.to(torch.int8)
        slopes = h.new_empty(len(nodes)) if any(ctx.needs_input_grad) else None
        dh = torch.empty_like(h) if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(h, weight, bias, shift, signs, *places, slopes, dh)
        numbers = weight.contiguous(), bias, None if shift is None else shift.contiguous(), loss, slopes, dh
        table, offset, added, to, slope, step = (None if x is None else view(x) for x in numbers)
        starts = starts_of(offsets, nodes).numpy()
        _native.coin_losses(view(h), table, offset, nodes.numpy(), starts, signs.numpy(), added, to, slope, step)
        return loss

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        *inputs, slopes, dh = ctx.saved_tensors
        h, weight, bias, _, _, nodes, rows, _ = inputs
        wanted, again = ctx.needs_input_grad[1:], torch.is_grad_enabled()
        if again or not direct(g):
            return None, *by_definition(_definition, tuple(inputs), wanted, g, again=again)
        slopes = slopes * g.index_select(0, rows)
        dw, db = to_table(h, slopes, rows, nodes, weight, bias, sparse=ctx.sparse, wanted=wanted[1:3])
        dh = None if dh is None else dh * g[:, None]
        return None, dh, dw, db, slopes if wanted[3] else None, None, None, None, None
