"""Derivatives of what torch could differentiate by itself, but better by a formula: autograd Functions.

A rule keeps its inputs and nothing else. Its backward is made of what torch differentiates, so that it can be
differentiated again; its forward mode is the transpose of the backward, which is linear in what comes in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers

from softargmax.core.torch_once import by_definition as by_definition  # noqa: PLC0414 rules have it from here
from softargmax.core.torch_once import without_autocast as without_autocast  # noqa: PLC0414 the same

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Tensors = tuple[Any, ...]  # in the place of a tensor there may be a number or None


class Rule(torch.autograd.Function):
    """What every rule keeps: its inputs. A rule says what its inputs' gradients are (`pulled`)."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.shapes = [(one.shape, one.dtype) for one in output]
        keep(ctx, inputs)

    @classmethod
    def pulled(cls, inputs: Tensors, wanted: Sequence[int], g: Sequence[Tensor | None]) -> list[Tensor]:
        """The gradients to the inputs at these places."""
        raise NotImplementedError


def keep(ctx: Any, values: Tensors) -> None:
    """Save tensors, and what stands in the place of one, for `inputs_of`."""
    tensors = [x if isinstance(x, Tensor) else None for x in values]
    ctx.plain = [None if isinstance(x, Tensor) else x for x in values]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def inputs_of(ctx: Any) -> Tensors:
    """What was kept; of a rule, what it was called with."""
    # A pullback of torch.func.vjp runs when its level is gone: what it wrapped is taken out.
    saved = unwrap_dead_wrappers(ctx.saved_tensors)
    return tuple(plain if x is None else x for x, plain in zip(saved, ctx.plain, strict=True))


def backward(rule: type[Rule], ctx: Any, g: Sequence[Tensor | None]) -> Tensors:
    """A rule's backward: None for what is not wanted."""
    wanted = [i for i, needed in enumerate(ctx.needs_input_grad) if needed]
    found: list[Any] = [None] * len(ctx.plain)
    g = unwrap_dead_wrappers(tuple(g))
    if wanted and any(one is not None for one in g):
        for i, gradient in zip(wanted, rule.pulled(inputs_of(ctx), wanted, g), strict=True):
            found[i] = gradient
    return tuple(found)


def pushed(rule: type[Rule], ctx: Any, tangents: Sequence[Any]) -> Tensors:
    """<gradient, t> of every output, the backward's transpose."""
    inputs = inputs_of(ctx)
    given = [i for i, t in enumerate(tangents) if t is not None]
    like = inputs[given[0]]
    start = tuple(torch.zeros(shape, dtype=dtype, device=like.device) for shape, dtype in ctx.shapes)
    _, transpose = torch.func.vjp(lambda *g: tuple(rule.pulled(inputs, given, g)), *start)  # type: ignore[misc]
    found: Tensors = transpose(tuple(tangents[i].to(inputs[i].dtype) for i in given))
    return found


def pull(f: Callable[..., Tensors], inputs: Tensors, wanted: Sequence[int], g: Sequence[Tensor | None]) -> list[Any]:
    """The gradients of <g, f(inputs)> as torch finds them; they can be differentiated again."""

    def of(*values: Tensor) -> Tensors:
        full = list(inputs)
        for i, value in zip(wanted, values, strict=True):
            full[i] = value
        return f(*full)

    values, pull = torch.func.vjp(of, *(inputs[i] for i in wanted))  # type: ignore[misc]
    return list(pull(tuple(torch.zeros_like(x) if one is None else one for x, one in zip(values, g, strict=True))))
