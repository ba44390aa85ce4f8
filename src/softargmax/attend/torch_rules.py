"""How the definition of attention on torch tensors is differentiated: a few queries at a time, scores made anew.

A *part* is a function of the tensors of some queries. Its results are those queries' (joined along an axis), or sums
over all queries (added up). Letters: g an incoming gradient, t a tangent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax.attend import reference
from softargmax.attend.options import Beside, Heads, Options
from softargmax.attend.reference_parts import parts, some
from softargmax.core.torch_rules import Rule, Tensors, inputs_of, pull
from softargmax.core.torch_rules import backward as rule_backward

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCORES = 1 << 20
"""Scores to a part: some temporaries of 8 MiB."""

OF_QUERIES = (-2, None, None, -2, -2, -2, None, -2, None, None)
"""Along which axis queries lie in the ten tensors: q, k, v, scale, mask, bias, sink, alpha, lengths and seeds."""

DIFFERENTIATED = (0, 1, 2, 3, 5, 6)
"""Which of them the core's gradients go to."""


def closed(tensors: Sequence[Any]) -> tuple[Heads, Beside]:
    """What q, k, v and what stands beside them are part of."""
    return Heads(*tensors[:3]), Beside(*tensors[3:])


def forward(options: Options, part: slice, length: int, tensors: Tensors) -> Tensors:
    """Output and lse of a part."""
    return tuple(some(*closed(tensors), options, part.start, length))


def backward(wanted: Sequence[int], options: Options, part: slice, length: int, tensors: Tensors) -> Tensors:
    """The gradients to the wanted among the ten tensors, from these and an incoming gradient to output and lse."""
    *given, g, g_lse = tensors
    return tuple(pull(lambda *x: forward(options, part, length, x), tuple(given), wanted, (g, g_lse)))


class Parted:
    """A part function, and along which axes queries lie in its tensors and its results (None: in none).

    `like`: which tensors the results have the shapes of, if any.
    """

    def __init__(
        self,
        f: Callable[..., Tensors],
        axes: Sequence[int | None],
        results: Sequence[int | None],
        like: Sequence[int] | None = None,
    ) -> None:
        self.f, self.axes, self.results, self.like = f, axes, results, like

    def pulled(self, options: Options, tensors: Sequence[Any], wanted: Sequence[int], g: Sequence[Any]) -> list[Tensor]:
        """The gradients of <g, results> to the wanted tensors."""
        count, length = len(tensors), tensors[0].shape[-2]

        def run(part: slice, piece: Tensors) -> Sequence[Tensor]:
            f: Any = lambda *x: self.f(options, part, length, x)  # noqa: E731
            return pull(f, piece[:count], wanted, piece[count:])

        given = (*tensors, *g)
        return self._each(tensors, given, (*self.axes, *self.results), [self.axes[i] for i in wanted], run, wanted)

    def pushed(self, options: Options, tensors: Sequence[Any], given: Sequence[int], t: Sequence[Any]) -> list[Tensor]:
        """The results' tangents: the transpose of `pulled`, which is linear in g."""
        count, length = len(tensors), tensors[0].shape[-2]

        def run(part: slice, piece: Tensors) -> Sequence[Tensor]:
            f: Any = lambda *x: self.f(options, part, length, x)  # noqa: E731
            with torch.no_grad():
                start = [torch.zeros_like(x) for x in f(*piece[:count])]
            push: Any = lambda *g: tuple(pull(f, piece[:count], given, g))  # noqa: E731
            vjp: Any = torch.func.vjp
            tangents: Sequence[Tensor] = vjp(push, *start)[1](piece[count:])
            return tangents

        cast = [x.to(tensors[i].dtype) for i, x in zip(given, t, strict=True)]
        axes = (*self.axes, *(self.axes[i] for i in given))
        return self._each(tensors, (*tensors, *cast), axes, self.results, run, self.like)

    @staticmethod
    def _each(
        tensors: Sequence[Any],
        given: Sequence[Any],
        axes: Sequence[int | None],
        results: Sequence[int | None],
        run: Callable[[slice, Tensors], Sequence[Tensor]],
        like: Sequence[int] | None = None,
    ) -> list[Tensor]:
        """run(part, its tensors) for every part, its results joined or added up."""
        length = tensors[0].shape[-2]
        found = [
            run(part, tuple(_cut(x, axis, part, length) for x, axis in zip(given, axes, strict=True)))
            for part in parts(Heads(*tensors[:3]), SCORES)
        ]
        whole = []
        for i, (axis, each) in enumerate(zip(results, zip(*found, strict=True), strict=True)):
            shared = like is not None and not _has_queries(tensors[like[i]], axis, length)
            whole.append(sum(each[1:], each[0]) if axis is None or shared else torch.cat(each, axis))
        return whole


def _has_queries(x: Any, axis: int | None, length: int) -> bool:
    """Whether a tensor has a slice per query, not one for all."""
    return isinstance(x, Tensor) and axis is not None and x.ndim >= -axis and (x.shape[axis] == length)


def _cut(x: Any, axis: int | None, part: slice, length: int) -> Any:
    if axis is None or not _has_queries(x, axis, length):
        return x
    return x.narrow(axis, part.start, part.stop - part.start)


definition = Parted(forward, OF_QUERIES, (-2, -1))


def gradients(wanted: Sequence[int]) -> Parted:
    """The gradients to the wanted, as a function of the ten tensors and of what comes in for output and lse."""
    f = lambda *x: backward(wanted, *x)  # noqa: E731
    return Parted(f, (*OF_QUERIES, -2, -1), [OF_QUERIES[i] for i in wanted], wanted)


class Definition(Rule):
    """(options, the ten tensors) -> output and lse by the definition, whose scores are never kept."""

    @staticmethod
    def forward(options: Options, *tensors: Any) -> Tensors:
        return tuple(reference.attention(*closed(tensors), options))

    @classmethod
    def pulled(cls, inputs: Tensors, wanted: Sequence[int], g: Sequence[Tensor | None]) -> list[Tensor]:
        options, *tensors = inputs
        return definition.pulled(options, tensors, [i - 1 for i in wanted], g)

    @staticmethod
    def backward(ctx: Any, *g: Tensor | None) -> Tensors:
        return rule_backward(Definition, ctx, g)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensors:
        options, *tensors = inputs_of(ctx)
        given = [i for i, t in enumerate(tangents[1:]) if t is not None]
        return tuple(definition.pushed(options, tensors, given, [tangents[i + 1] for i in given]))
