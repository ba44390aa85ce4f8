"""The loss of a last layer on CUDA: products of torch's library, and a kernel for losses and the scores' gradients.

    z = h W^T + b        dh = dz W        dW = dz^T h        db = sum dz

Rows are visited a few at a time, so that most scores are never in memory. The last rows are filled up with zeros: every
product then has the same shape, and the library adds the terms of a row in the same order for every number of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch.nn.functional import pad

from softargmax.core.products import finite
from softargmax.core.triton_launch import Block, cdiv, define, launch
from softargmax.core.triton_math import INF
from softargmax.core.triton_state import any_of, row_sum
from softargmax.loss import linear_operations as operations
from softargmax.loss import reference, reference_linear
from softargmax.loss.arguments import CrossEntropy
from softargmax.loss.triton_kernels import is_served, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from softargmax.loss.arguments import Layer, LinearCrossEntropy

ROWS = 1024
"""Rows of dz in memory. dW, in float32, is read and written once for this many rows. With 512 rows, and vectors of 4096
numbers, that would take as long as the product itself."""
SCORES = 512
"""Rows of float32 scores in memory, beside the dz of half-precision vectors, which take as much memory."""
_CLASSES = 1024
_COLUMNS = 8
_WARPS = 4


# --- kernels ----------------------------------------------------------------------------------------------------------


@triton.jit
def add_bias(z, bias, classes, CLASSES: tl.constexpr):
    """Add a number per class to scores. Infinite scores stay unchanged."""
    k = tl.program_id(1) * CLASSES + tl.arange(0, CLASSES)
    at = z + tl.program_id(0).to(tl.int64) * classes + k
    x = tl.load(at, mask=k < classes, other=0.0)
    b = tl.load(bias + k, mask=k < classes, other=0.0).to(tl.float32)
    tl.store(at, tl.where(tl.abs(x) == INF, x, x + b), mask=k < classes)


@triton.jit
def mend(dh, dz, w, losses, scale, classes, width, w_k, w_i, CLASSES: tl.constexpr, COLUMNS: tl.constexpr):
    """Compute the entries of dh once more that are not finite, with 0 for the entries of W that are not finite.

    The product adds 0 inf = NaN where a class without a gradient has such an entry. Other entries of dh are right. Rows
    whose loss is NaN keep their NaN.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    exists = column < width
    loss = tl.load(losses + row + tl.zeros_like(column))
    found = tl.load(dh + row * width + column, mask=exists, other=0.0)
    wrong = exists & ~(tl.abs(found) < INF) & (loss == loss)
    if any_of(wrong):
        total = tl.zeros([COLUMNS], tl.float32)
        for first in range(0, classes, CLASSES):
            k = first + tl.arange(0, CLASSES)
            slope = tl.load(dz + row * classes + k, mask=k < classes, other=0.0).to(tl.float32)
            at = w + column[:, None].to(tl.int64) * w_i + k[None, :].to(tl.int64) * w_k
            factor = tl.load(at, mask=exists[:, None] & (k < classes)[None, :], other=0.0).to(tl.float32)
            factor = tl.where(tl.abs(factor) < INF, factor, 0.0)
            total += row_sum(factor * slope[None, :], 1, tl.float32)
        tl.store(dh + row * width + column, total * scale, mask=wrong)


# --- the kernels of the operations ------------------------------------------------------------------------------------


def linear_cross_entropy(i: LinearCrossEntropy, r: Any) -> None:
    """Compute the loss, and the gradients that `forms` names."""
    loss, *gradients = r
    if not _served(i):
        define(operations.linear_cross_entropy, i, r)
        return
    rows = _visit(i, i.forms, gradients)
    loss.copy_(reference.reduced_losses(rows, i.options, (1,), i.kept, i.mean, i.dtype))


def linear_cross_entropy_vjp(i: Any, r: Any) -> None:
    """Compute g times the gradients that `to` names."""
    if not _served(i.of):
        define(operations.linear_cross_entropy_vjp, i, r)
        return
    _visit(i.of, i.to, r, i.g)
    if not i.of.kept:
        for gradient in r:
            gradient.mul_(i.g)


def _served(i: LinearCrossEntropy) -> bool:
    """True if h and W have one dtype, and the kernel of the loss serves the options."""
    h, w, bias = i.layer
    products = h.dtype is torch.float32 or not h.is_cuda or hasattr(torch.ops.aten.addmm, "dtype_out")
    return products and h.dtype is w.dtype and is_served(i.options, h, w, bias)


def _visit(i: LinearCrossEntropy, to: str, gradients: Sequence[Tensor], g: Tensor | None = None) -> Tensor:
    """Compute the losses of the rows, and the gradients that `to` names. If the loss is one number, g counts as 1.

    dz of a mean is computed without a power of two near 1 / n, so that it does not underflow in float16, but times 2^14
    at most, so that it does not overflow. The products are multiplied by the power of two, which is exact.
    """
    h, w, _ = i.layer
    n, half = h.shape[0], h.dtype.itemsize == 2
    losses = h.new_empty(n, dtype=torch.float64)
    lift = 2.0 ** min(n.bit_length(), 14) if i.mean and not i.kept else 1.0
    seed = reference_linear.seed_of(i, losses.new_full((), lift) if g is None or not i.kept else g) if to else None
    dz = h.new_empty((ROWS, w.shape[0])) if to else None
    z = h.new_empty((SCORES, w.shape[0]), dtype=torch.float32) if half or dz is None else dz
    for start in range(0, n, ROWS):
        part = slice(start, min(start + ROWS, n))
        layer = i.layer._replace(h=pad(h[part], (0, 0, 0, start + ROWS - part.stop)))
        _losses(i._replace(layer=layer), part, z, losses, seed, dz)
        if dz is not None:
            _add_gradients(layer, dz, part, losses, 1.0 / lift, to, gradients)
    return losses


def _losses(
    i: LinearCrossEntropy, rows: slice, z: Tensor, losses: Tensor, seed: Tensor | None, dz: Tensor | None
) -> None:
    """Compute the losses of some rows, and dz if there is memory for it. z is memory for the scores."""
    step, (hidden, w, bias) = z.shape[0], i.layer
    for start in range(rows.start, rows.stop, step):
        part = slice(start, min(start + step, rows.stop))
        here = slice(part.start - rows.start, part.stop - rows.start)
        _multiply(hidden[here.start : here.start + step], w.t(), z)
        if bias is not None:
            tile = Block((step, cdiv(w.shape[0], _CLASSES)), _WARPS, {"CLASSES": _CLASSES})
            launch(add_bias, tile, z=z, bias=bias.contiguous(), classes=w.shape[0])
        options = reference_linear.options_of_rows(i.options, part)
        of = CrossEntropy(z[: part.stop - start], options, (1,), 1, False, i.dtype)
        seeds = None if seed is None else reference_linear.rows_of(seed, part)
        found = run(of, seeds, None if dz is None else dz[here], fast=hidden.dtype.itemsize == 2)
        losses[part] = found.reshape(-1)


def _add_gradients(
    layer: Layer, dz: Tensor, rows: slice, losses: Tensor, scale: float, to: str, gradients: Sequence[Tensor]
) -> None:
    """Write dh of some rows, and add their share to dW and db."""
    (hidden, w, _), (dh, dw, db), count = layer, gradients, rows.stop - rows.start
    dz[count:] = 0
    if "h" in to:
        whole = dh[rows] if count == ROWS else dh.new_empty(ROWS, dh.shape[1])
        _multiply(dz, w, whole, scale)
        tile = Block((count, cdiv(w.shape[1], _COLUMNS)), _WARPS, {"CLASSES": _CLASSES, "COLUMNS": _COLUMNS})
        named = {"classes": w.shape[0], "width": w.shape[1], "w_k": w.stride(0), "w_i": w.stride(1)}
        launch(mend, tile, dh=whole, dz=dz, w=w, losses=losses[rows], scale=scale, **named)
        if count < ROWS:
            dh[rows] = whole[:count]
    if "w" in to:
        _multiply(dz.t(), finite(hidden), dw, scale, add=rows.start > 0)
    if "b" in to:
        share = dz.sum(0, dtype=torch.float32).mul_(scale)
        db.copy_(share) if rows.start == 0 else db.add_(share)


def _multiply(a: Tensor, b: Tensor, to: Tensor, scale: float = 1.0, *, add: bool = False) -> None:
    """Write, or add, the float32 product of two matrices of one dtype, times a number."""
    if a.is_cuda and a.dtype is not torch.float32:
        torch.addmm(to, a, b, torch.float32, beta=float(add), alpha=scale, out=to)
    else:
        torch.addmm(to, a.float(), b.float(), beta=float(add), alpha=scale, out=to)
