"""Scores and cross-entropy of a softmax whose classes are in blocks, each of which uses its own columns of h.

    z = (h_1 W_1^T, h_2 W_2^T, ..) + b        h = (h_1, h_2, ..)

The vector h_i is as wide as W_i. With one block, this is an ordinary last layer. The loss stores the scores of only a
few rows at a time. If the losses are summed, the forward pass also computes the gradients from these scores. A row's
loss and its gradient with respect to h have the same bits in every batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax.core import _native
from softargmax.core.arrays import trained
from softargmax.core.native import fresh
from softargmax.core.products import layer_scores, sound
from softargmax.core.targets import IGNORE
from softargmax.core.torch_memory import shared, view
from softargmax.core.torch_readable import as_they_are
from softargmax.core.torch_spreadable import full
from softargmax.loss import (
    cross_entropy,
    cross_entropy_and_gradient,
    linear_cross_entropy,
    linear_cross_entropy_terms,
)
from softargmax.normalize import logsumexp
from softargmax.output.torch_base import blocks
from softargmax.output.torch_class_scores import in_any_order, scores

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def block_scores(h: Tensor, weights: Sequence[Tensor], bias: Tensor | None) -> Tensor:
    """Return the scores of all classes, (N, K), in the dtype of h.

    The weight W_i has shape (K_i, D_i), where the sum of all K_i is K, and the sum of all D_i is D.
    """
    return torch.cat([scores(*one) for one in _by_block(h, weights, bias)], 1)


def block_losses(
    h: Tensor, weights: Sequence[Tensor], bias: Tensor | None, y: Tensor, *, total: bool, reproducible: bool = True
) -> Tensor:
    """Return the cross-entropy of every row, (N,), or with `total` the sum over all rows.

    A row whose target y is IGNORE has loss 0. With `total`, the gradient is faster, because the scores are computed
    only once.

    h is float32 or float64. The weights and the bias can have half precision. `reproducible`: as in `OutputLayer`, for
    one weight.
    """
    if len(weights) == 1:
        options: dict[str, Any] = {"ignore_index": IGNORE, "reduction": "sum" if total else "none"}
        if not reproducible:
            return in_any_order("linear_cross_entropy", h, weights[0], y, bias=bias, **options)
        of_one: Tensor = full(linear_cross_entropy(h, weights[0], y, bias=bias, **options))
        return of_one
    if not as_they_are(h, *weights, bias, y):
        return _definition(total, y, h, bias, *weights)
    wanted = [trained(x) for x in (h, bias, *weights)]  # computed here because grad mode is off inside `forward`
    found: Tensor = _Losses.apply(total, wanted, y, h, bias, *weights)  # type: ignore[no-untyped-call]
    return found


def _by_block(
    h: Tensor, weights: Sequence[Tensor], bias: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Return h_i, W_i and b_i of every block."""
    biases = [None] * len(weights) if bias is None else bias.split_with_sizes([len(w) for w in weights])
    return zip(h.split_with_sizes([w.shape[1] for w in weights], 1), weights, biases, strict=True)


def _definition(total: bool, y: Tensor, h: Tensor, bias: Tensor | None, *weights: Tensor) -> Tensor:
    """Return losses that are differentiable to any order.

    The loss of a row is the loss in the target's block + (lse of the row - lse of the target's block).
    """
    terms, own, begin = [], torch.zeros_like(y), 0
    for x, w, b in _by_block(h, weights, bias):
        there = torch.where(y == IGNORE, y, (y - begin).clamp(0, len(w) - 1))
        terms.append(linear_cross_entropy_terms(x, w, there, bias=b, ignore_index=IGNORE, reduction="none"))
        begin += len(w)
        own = own + (y >= begin)
    loss, lse, entropy = (torch.stack([getattr(x, name) for x in terms], 1) for name in ("loss", "lse", "entropy"))
    rows = _combined(loss.gather(1, own[:, None]), lse, entropy, own[:, None])
    rows = torch.where(y == IGNORE, 0, rows)
    return rows.sum() if total else rows


def _combined(loss: Tensor, lse: Tensor, entropy: Tensor, own: Tensor) -> Tensor:
    """Return the loss of every row, from the loss in its target's block and the lse and entropy of every block.

    If a row has scores of +inf, only these scores are in the support of the row. The lse of each block is then replaced
    by the log of the number of +inf scores in the block. This log is the block's entropy, or -inf if the number is 0.
    The row has no gradient.
    """
    top = lse == torch.inf
    flat = top.any(1, keepdim=True) & ~lse.isnan().any(1, keepdim=True)
    loss = torch.where(flat, loss.detach(), loss)
    lse = torch.where(flat, torch.where(top, entropy, -torch.inf).detach(), lse)
    mine = lse.gather(1, own)
    unseen = mine == -torch.inf  # the target's block has empty support
    more = logsumexp(torch.where(unseen, lse, lse - mine), keepdims=True)
    more = torch.where(more == -torch.inf, 0, more)  # the support of the row is empty
    return torch.where(unseen, more + torch.inf, loss + more)[:, 0]


def _defined_gradients(
    total: bool, inputs: Sequence[Any], wanted: Sequence[bool], g: Tensor, *, again: bool
) -> list[Tensor | None]:
    """The gradients of <g, _definition(inputs)> with respect to the wanted inputs, for use in a backward pass.

    With `again`, the gradients can be differentiated.

    They are computed with respect to aliases of the inputs. Gradients with respect to the inputs themselves would run
    the inputs' hooks twice. They would also count a part of the gradient twice if one input is computed from another
    (tied weights).
    """
    with torch.enable_grad():
        aliases = [x.view_as(x) if needed else x for x, needed in zip(inputs, wanted, strict=True)]
        value = _definition(total, *aliases)
    requested = [x for x, needed in zip(aliases, wanted, strict=True) if needed]
    found = iter(torch.autograd.grad(value, requested, g, create_graph=again))
    return [next(found) if needed else None for needed in wanted]


class _Losses(torch.autograd.Function):
    """Autograd function of (total, wanted, y, h, bias, *weights): the losses of rows, or with `total` their sum.

    With `total`, the forward pass already computes the required gradients of the sum. The first backward pass
    multiplies these gradients by the gradient of the output, which is one number, and returns them.
    """

    @staticmethod
    def forward(
        ctx: Any, total: bool, wanted: list[bool], y: Tensor, h: Tensor, bias: Tensor | None, *weights: Tensor
    ) -> Tensor:
        ctx.total = total
        ctx.save_for_backward(y, h, bias, *weights)
        computed = total and any(wanted)
        rows, gradients = _losses_and_gradients(
            y, h, bias, *weights, wanted=wanted if computed else [False] * len(wanted)
        )
        ctx.gradients = gradients if computed else None
        return rows.sum() if total else rows

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        inputs = ctx.saved_tensors
        wanted, again = ctx.needs_input_grad[2:], torch.is_grad_enabled()
        computed, ctx.gradients = ctx.gradients, None
        if again or not as_they_are(g):
            return None, None, *_defined_gradients(ctx.total, inputs, wanted, g, again=again)
        if computed is None:
            _, computed = _losses_and_gradients(*inputs, wanted=wanted[1:], seed=None if ctx.total else g)
        if ctx.total and g != 1:
            computed = [x if x is None else x.mul_(g) for x in computed]
        gradients = (x if x is None else x.to(of.dtype) for x, of in zip(computed, inputs[1:], strict=True))
        return None, None, None, *gradients


def _losses_and_gradients(
    y: Tensor,
    h: Tensor,
    bias: Tensor | None,
    *weights: Tensor,
    wanted: Sequence[bool],
    seed: Tensor | None = None,
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the losses of rows, and the required gradients with respect to h, bias and weights.

    The gradients of row r are multiplied by seed[r].
    """
    sizes, widths = ([w.shape[axis] for w in weights] for axis in (0, 1))
    shapes = h.shape, (1, sum(sizes)), *(w.shape for w in weights)
    dh, db, *dws = (_memory(h, *shape) if it else None for shape, it in zip(shapes, wanted, strict=True))
    parts = list(blocks(len(h), 2 * sum(sizes))) or [slice(0, 0)]
    rows, memory = h.new_empty(len(h)), _memory(h, len(h[parts[0]]), sum(sizes))
    to_h = [sound(w, view) for w in weights] if dh is not None else weights
    to_w = h if all(dw is None for dw in dws) else sound(h, view)
    for part in parts:
        z, later = memory[: len(h[part])], part.start > 0
        for (x, w, b), into in zip(_by_block(h[part], weights, bias), z.split_with_sizes(sizes, 1), strict=True):
            layer_scores(shared(x), shared(w), shared(b), into.numpy())
        if not any(wanted):
            rows[part] = cross_entropy(z, y[part], ignore_index=IGNORE, reduction="none")
            continue
        rows[part], dz = cross_entropy_and_gradient(z, y[part], ignore_index=IGNORE, reduction="none")
        if seed is not None:
            dz *= seed[part, None]
        if db is not None:
            _product(dz.new_ones(1, len(dz)), dz, db, adds=later)
        dxs = [None] * len(sizes) if dh is None else dh[part].split_with_sizes(widths, 1)
        xs = to_w[part].split_with_sizes(widths, 1)
        for x, w, ds, dx, dw in zip(xs, to_h, dz.split_with_sizes(sizes, 1), dxs, dws, strict=True):
            if dx is not None:
                _product(ds, w, dx)
            if dw is not None:
                _product(ds.mT, x, dw, adds=later)
    return rows, [dh, None if db is None else db[0], *dws]


def _product(a: Tensor, b: Tensor, out: Tensor, *, adds: bool = False) -> None:
    _native.product(view(a), view(b), view(out), None, adds)


def _memory(like: Tensor, *shape: int) -> Tensor:
    return torch.from_numpy(fresh(shape, str(like.dtype).removeprefix("torch.")))
