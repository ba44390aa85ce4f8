"""How the definition on torch tensors is differentiated: as autograd Functions whose gradients are formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax.core.scale import Scale
from softargmax.core.torch_rules import Rule, Tensors, backward, pull, pushed, without_autocast
from softargmax.loss import reference_linear, reference_rows
from softargmax.loss.layer import Flat
from softargmax.loss.options import Beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def opened(beside: Beside) -> Tensors:
    """The arrays one by one: target, weight, hi, lo, where."""
    target, weight, scale, where = beside
    return target, weight, scale.hi, scale.lo, where


def closed(target: Any, weight: Any, hi: Any, lo: Any, where: Any) -> Beside:
    """What `opened` took apart."""
    return Beside(target, weight, Scale(hi, lo), where)


class _Rows(Rule):
    """(compute, options, z, target, weight, hi, lo, where) -> rows' numbers.

    The gradient to z is the formula, those to the others are torch's.
    """

    @staticmethod
    def forward(compute: Any, options: Any, *tensors: Any) -> Tensors:
        found: Tensors = compute(options, *tensors)
        return found

    @classmethod
    def pulled(cls, inputs: Tensors, wanted: Sequence[int], g: Sequence[Tensor | None]) -> list[Tensor]:
        compute, options, z, *beside = inputs
        rest = [i for i in wanted if i != 2]
        found = pull(compute, inputs[1:], [i - 1 for i in rest], g) if rest else []
        if len(rest) < len(wanted):
            seeds = [None if one is None else one.unsqueeze(options.axis) for one in g]
            seeds += [None] * (4 - len(seeds))
            found = [reference_rows.gradient(z, seeds, closed(*beside), options), *found]
        return found

    @staticmethod
    def backward(ctx: Any, *g: Tensor | None) -> Tensors:
        return backward(_Rows, ctx, g)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensors:
        return pushed(_Rows, ctx, tangents)


def rows(compute: Callable[..., Tensors], options: Any, *tensors: Any) -> Tensors:
    """compute(options, z, target, weight, hi, lo, where) with the formula's gradient to z."""
    found: Tensors = _Rows.apply(compute, options, *tensors)  # type: ignore[no-untyped-call]
    return found


class Product(Rule):
    """(h, w, bias) -> scores. Vectors that are not finite meet a gradient of 0, or of NaN."""

    @staticmethod
    def forward(h: Tensor, w: Tensor, bias: Tensor | None) -> Tensors:
        return (reference_linear.product(Flat(h, w, bias)),)

    @classmethod
    def pulled(cls, inputs: Tensors, wanted: Sequence[int], g: Sequence[Tensor | None]) -> list[Tensor]:
        h, w, _ = inputs
        (dz,) = g
        if dz is None:
            return [torch.zeros_like(inputs[i]) for i in wanted]
        with without_autocast(h):
            found = (*cls.gradients(dz, h, w), dz.sum(0))
        return [found[i].to(inputs[i].dtype) for i in wanted]

    @staticmethod
    def gradients(dz: Tensor, h: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """dz W and dz^T h."""
        times, finite = reference_linear.times, reference_linear.finite
        return times(dz, finite(w)), times(dz.mT, finite(h))

    @staticmethod
    def backward(ctx: Any, *g: Tensor | None) -> Tensors:
        return backward(Product, ctx, g)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensors:
        return pushed(Product, ctx, tangents)


def product(h: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """The scores h W^T + b, in float32 at least whatever autocast says."""
    with without_autocast(h):
        scores: Tensor = Product.apply(h, w, bias)[0]  # type: ignore[no-untyped-call]
        return scores


class _Parted(Rule):
    """(compute, sliced, options, *tensors) -> rows' numbers, a few rows at a time; of `sliced` tensors a row each.

    Its backward makes the scores anew. Where that will be differentiated itself, all rows are taken at once.
    """

    @staticmethod
    def forward(compute: Any, sliced: Any, options: Any, *tensors: Any) -> Tensors:
        found = [compute(options, *_cut(tensors, sliced, part)) for part in _parts(tensors)]
        return tuple(torch.cat(each) for each in zip(*found, strict=True))

    @classmethod
    def pulled(cls, inputs: Tensors, wanted: Sequence[int], g: Sequence[Tensor | None]) -> list[Tensor]:
        compute, sliced, options, *tensors = inputs
        places = [i - 3 for i in wanted]
        found: list[list[Tensor]] = [[] for _ in places]
        for part in _parts(tensors):
            piece = _cut(tensors, sliced, part)
            g_part = [one if one is None else one[part] for one in g]
            pulled = pull(compute, (options, *piece), [i + 1 for i in places], g_part)
            for i, total, one in zip(places, found, pulled, strict=True):
                if total and not _by_row(tensors[i], i, sliced):
                    total[0] += one
                else:
                    total.append(one)
        return [total[0] if len(total) == 1 else torch.cat(total) for total in found]

    @staticmethod
    def backward(ctx: Any, *g: Tensor | None) -> Tensors:
        return backward(_Parted, ctx, g)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensors:
        return pushed(_Parted, ctx, tangents)


def parted(compute: Callable[..., Tensors], sliced: tuple[int, ...], options: Any, *tensors: Any) -> Tensors:
    """compute(options, *tensors) a few rows at a time, of the tensors at the places `sliced`."""
    found: Tensors = _Parted.apply(compute, sliced, options, *tensors)  # type: ignore[no-untyped-call]
    return found


def _parts(tensors: Sequence[Any]) -> Iterator[slice]:
    return reference_linear.parts(Flat(*tensors[:3]), tensors)


def _cut(tensors: Sequence[Any], sliced: Sequence[int], part: slice) -> list[Any]:
    return [x[part] if _by_row(x, i, sliced) else x for i, x in enumerate(tensors)]


def _by_row(tensor: Any, place: int, sliced: Sequence[int]) -> bool:
    return place in sliced and isinstance(tensor, Tensor) and tensor.shape[0] > 1
