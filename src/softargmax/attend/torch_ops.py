"""Attention on torch tensors in CPU memory: the compiled core's operators and their derivatives.

`attention` gives output and lse, in float64; its rule's backward is the operator `attention_vjp`, whose own
derivatives, as the forward mode of both, are the definition's, a few queries at a time (torch_rules.py). What the core
does not serve (numbers that are not finite) is the definition's altogether.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax import attend as room
from softargmax.attend import native, reference
from softargmax.attend.mending import mend
from softargmax.attend.options import Beside, Heads, Options, Pages
from softargmax.attend.results import AttentionGradients, AttentionWithLse
from softargmax.attend.torch_rules import DIFFERENTIATED, closed, definition, gradients
from softargmax.attend.torch_sparse import Sparse
from softargmax.core.torch_bridge import Operator, all_direct, compile_whole
from softargmax.core.torch_memory import returned, shared
from softargmax.core.torch_rules import Tensors, inputs_of, keep

if TYPE_CHECKING:
    from collections.abc import Sequence


compile_whole(getattr(room, name) for name in room.__all__)

_BESIDE = "Tensor? scale, Tensor? mask, Tensor? bias, Tensor? sink, Tensor? lengths, Tensor? seeds"
_NUMBERS = "float factor, int left, int right, float softcap, float dropout"


def attention(heads: Heads, beside: Beside, options: Options) -> AttentionWithLse:
    """The output, in q's dtype, and lse (of other orders than 1: NaN)."""
    if not native.served(beside):
        return AttentionWithLse(*Sparse.apply(options, *heads, *beside))  # type: ignore[no-untyped-call]
    return AttentionWithLse(*_attention(*_arguments(heads, beside, options)))


def _arguments(heads: Heads, beside: Beside, options: Options) -> Tensors:
    """The operator's arguments."""
    scale, mask, bias, sink, _, lengths, seeds = beside
    factor = 1.0 if isinstance(scale, Tensor) else scale
    left, right = (-1 if side is None else side for side in (options.left, options.right))
    scale = scale if isinstance(scale, Tensor) else None
    numbers = factor, left, right, options.softcap or 0.0, options.dropout
    return (*heads, scale, mask, bias, sink, lengths, seeds, *numbers)


def vjp(heads: Heads, beside: Beside, options: Options, g: Tensor, g_lse: Tensor | None) -> AttentionGradients:
    """The gradients of <g, output> + <g_lse, lse>; they can be differentiated."""
    arguments = _arguments(heads, beside, options)
    found = _attention_vjp(*_attention(*arguments), g, g_lse, *arguments, beside.bias is not None)
    return AttentionGradients(*(None if x.shape == (0,) else x for x in found))


def paged(q: Tensor, pages: Pages, beside: Beside, options: Options) -> Tensor:
    """The output for keys in pages; where derivatives are taken, these are put side by side first."""
    tensors = (q, *pages, *beside)
    if native.served(beside) and all_direct(tensors):
        output = native.formed_of_pages(shared(q), Pages(*map(shared, pages)), Beside(*map(shared, beside)), options)
        if output is not None:
            return returned(output, q.dtype)
    found: Tensor = attention(reference.side_by_side(q, pages, beside), beside, options).output
    return found


def _taken(arguments: Sequence[Any]) -> tuple[list[Any], Options]:
    """An operator's arguments as the ten tensors, the scale perhaps a number, and options."""
    q, k, v, scale, mask, bias, sink, lengths, seeds, factor, left, right, softcap, dropout = arguments
    options = Options(None if left < 0 else left, None if right < 0 else right, softcap or None, dropout)
    return [q, k, v, factor if scale is None else scale, mask, bias, sink, 1.0, lengths, seeds], options


# --- the kernels ------------------------------------------------------------------------------------------------------


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    tensors, options = _taken(arguments)
    found, strange = native.formed(*closed([shared(x) for x in tensors]), options)
    whole = AttentionWithLse(returned(found.output, arguments[0].dtype), torch.from_numpy(found.lse))
    if strange is not None:
        mend(whole, strange, *closed([x.detach() if isinstance(x, Tensor) else x for x in tensors]), options)
    return tuple(whole)


def _shapes(q: Tensor, _k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(q.shape[:-1], dtype=torch.float64)


def _vjp(output: Tensor, lse: Tensor, g: Tensor, g_lse: Tensor | None, *arguments: Any) -> Tensors:
    *arguments_, to_bias = arguments
    tensors, options = _taken(arguments_)
    wanted = [i for i in DIFFERENTIATED if isinstance(tensors[i], Tensor) and (i != 5 or to_bias)]
    state = AttentionWithLse(shared(output), shared(lse))
    memory = closed([shared(x) for x in tensors])
    found = native.pulled(*memory, options, state, shared(g), shared(g_lse), to_bias=to_bias)
    if found is None:
        formula = reference.vjp(*closed(tensors), options, g, g_lse)
        cast = (
            x.to(tensors[i].dtype) if i in wanted else _nothing(g) for i, x in zip(DIFFERENTIATED, formula, strict=True)
        )
        return tuple(x.contiguous() for x in cast)
    result = [returned(x, g.dtype) for x in found[:3]]
    for i, x in zip(DIFFERENTIATED[3:], (found.scale, found.bias, found.sink), strict=True):
        like = tensors[i]
        result.append(torch.from_numpy(x).sum_to_size(like.shape).to(like.dtype) if i in wanted else _nothing(g))
    return tuple(result)


def _nothing(like: Tensor) -> Tensor:
    return like.new_empty(0)


def _gradient_shapes(_output: Tensor, _lse: Tensor, g: Tensor, _g_lse: Any, *arguments: Any) -> Tensors:
    tensors, _ = _taken(arguments[:-1])
    there = [isinstance(tensors[i], Tensor) and (i != 5 or arguments[-1]) for i in DIFFERENTIATED]
    return tuple(
        tensors[i].new_empty(tensors[i].shape) if here else _nothing(g)
        for i, here in zip(DIFFERENTIATED, there, strict=True)
    )


# --- vmap -------------------------------------------------------------------------------------------------------------


def _batched(operator: Operator[Any], size: int, dims: Sequence[int | None], arguments: Sequence[Any]) -> Any:
    """A batch more in front of the tensors; sinks, which are the heads' own, are taken one entry after the other."""
    first = 4 if operator is _attention_vjp else 0
    if arguments[first + 6] is not None and (first or dims[first + 6] is not None):
        each = [operator(*(_entry(x, dim, i) for x, dim in zip(arguments, dims, strict=True))) for i in range(size)]
        found = tuple(map(torch.stack, zip(*each, strict=True)))
        return found, (0,) * len(found)
    rank = arguments[first].ndim - (dims[first] is not None)
    moved = []
    for i, (x, dim) in enumerate(zip(arguments, dims, strict=True)):
        if isinstance(x, Tensor) and i != first + 6:
            front = x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
            lacks = 0 if i < first else rank + 1 - front.ndim
            front = front[(slice(None), *(None,) * lacks)]
            moved.append(front.expand(size, *front.shape[1:]))
        else:
            moved.append(x)
    found = operator(*moved)
    return found, tuple(None if x.shape == (0,) else 0 for x in found)


def _entry(x: Any, dim: int | None, index: int) -> Any:
    return x if dim is None or not isinstance(x, Tensor) else x.select(dim, index)


# --- the rules --------------------------------------------------------------------------------------------------------


class _Attention(torch.autograd.Function):
    @staticmethod
    def setup_context(ctx: Any, inputs: Tensors, output: tuple[Tensor, Tensor]) -> None:
        keep(ctx, (*inputs, *output))

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, g_lse: Tensor | None) -> Tensors:
        *arguments, output, lse = inputs_of(ctx)
        if g is None and g_lse is None:
            return (None,) * len(arguments)
        g = torch.zeros_like(output) if g is None else g
        found = _attention_vjp(output, lse, g, g_lse, *arguments, ctx.needs_input_grad[5])
        return _placed(found, ctx.needs_input_grad, len(arguments))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensors:
        tensors, options = _taken(inputs_of(ctx)[: len(tangents)])
        given, t = _tangents(tangents)
        output, lse = definition.pushed(options, tensors, given, t)
        return output, lse.double()


def _placed(found: Sequence[Tensor], needed: Sequence[bool], count: int) -> Tensors:
    """Gradients to the tensors that are differentiated, at their places among an operator's arguments."""
    return tuple(
        found[i] if i < 4 and needed[i] else found[i - 1] if i in (5, 6) and needed[i] else None for i in range(count)
    )


def _tangents(tangents: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """Which of the ten tensors have tangents, from an operator's first arguments."""
    there = [i for i in DIFFERENTIATED if tangents[i] is not None]
    return there, [tangents[i] for i in there]


# Where the ten tensors, and what comes in for output and lse, are among the arguments of `attention_vjp`; -1: nowhere.
_AMONG = (4, 5, 6, 7, 8, 9, 10, -1, 11, 12, 2, 3)


class _AttentionVjp(torch.autograd.Function):
    """Output and lse are what the tensors make them: no derivative is taken along them."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Tensors, output: Tensors) -> None:
        keep(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, *h: Tensor | None) -> Tensors:
        parted, places, options, tensors = _second(inputs_of(ctx))
        needed = ctx.needs_input_grad
        wanted = [i for i, at in enumerate(_AMONG) if at >= 0 and needed[at]]
        found: list[Any] = [None] * len(needed)
        seeds = [h[i] for i in places]
        if any(one is not None for one in seeds):
            for i, gradient in zip(wanted, parted.pulled(options, tensors, wanted, seeds), strict=True):
                found[_AMONG[i]] = gradient
        return tuple(found)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensors:
        inputs = inputs_of(ctx)
        parted, places, options, tensors = _second(inputs)
        given = [i for i, at in enumerate(_AMONG) if at >= 0 and tangents[at] is not None]
        pushed = parted.pushed(options, tensors, given, [tangents[_AMONG[i]] for i in given])
        found = [_nothing(inputs[2]) for _ in DIFFERENTIATED]
        for i, one in zip(places, pushed, strict=True):
            found[i] = one
        return tuple(found)


def _second(arguments: Sequence[Any]) -> tuple[Any, list[int], Options, list[Any]]:
    """The gradients as a function, which results of the operator they are, options, and the tensors."""
    _, lse, g, g_lse, *rest, to_bias = arguments
    tensors, options = _taken(rest)
    places = [n for n, i in enumerate(DIFFERENTIATED) if isinstance(tensors[i], Tensor) and (i != 5 or to_bias)]
    g_lse = torch.zeros_like(lse, dtype=torch.float64) if g_lse is None else g_lse
    return gradients([DIFFERENTIATED[n] for n in places]), places, options, [*tensors, g, g_lse]


_attention = Operator(
    f"attention(Tensor q, Tensor k, Tensor v, {_BESIDE}, {_NUMBERS}) -> (Tensor, Tensor)",
    _Attention,
    kernel=_forward,
    fake=_shapes,
    batch=_batched,
)
_attention_vjp = Operator(
    f"attention_vjp(Tensor output, Tensor lse, Tensor g, Tensor? g_lse, Tensor q, Tensor k, Tensor v, {_BESIDE}, "
    f"{_NUMBERS}, bool to_bias) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _AttentionVjp,
    kernel=_vjp,
    fake=_gradient_shapes,
    batch=_batched,
)
