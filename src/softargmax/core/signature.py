"""Decorators of public functions. Their errors name the argument that is wrong, their signatures list all options."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints

from softargmax.core.arrays import SpreadArrayError, StandInError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

F = TypeVar("F", bound="Callable[..., Any]")

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_OUR_NAMES = {
    "T": ("temperature",),
    "a": ("z",),
    "alibi_slopes": ("slopes",),
    "attention_mask": ("mask",),
    "attn_mask": ("mask",),
    "axis": ("dim",),
    "b": ("weights",),
    "dim": ("axis",),
    "dropout_p": ("dropout",),
    "input": ("z", "h"),
    "is_causal": ("causal",),
    "keepdim": ("keepdims",),
    "key": ("k",),
    "labels": ("target",),
    "logit_cap": ("softcap",),
    "logits": ("z",),
    "lse_square_scale": ("z_loss",),
    "mask": ("where",),
    "query": ("q",),
    "random_state": ("seed",),
    "rng": ("generator",),
    "scaling": ("scale",),
    "sinks": ("sink",),
    "size": ("num_samples", "shape"),
    "sliding_window": ("window",),
    "tau": ("temperature",),
    "value": ("v",),
    "where": ("mask",),
    "window_size": ("window",),
    "x": ("z",),
    "y": ("target",),
    "z": ("h", "values"),
}
"""Argument names of SciPy, torch, Hugging Face and FlashAttention, and our names for them.

Errors suggest the first of our names that the function has.
"""


def public(function: F, allowed: AbstractSet[str] | None = None) -> F:
    """Decorate a public function or the `__init__` of a public class.

    `allowed` contains all names that a function with **options accepts.
    """

    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        if options and allowed is not None and not options.keys() <= allowed:
            raise TypeError(_mismatch(called, arguments, options))
        try:
            return function(*arguments, **options)
        except StandInError as error:
            from torch.overrides import handle_torch_function

            return handle_torch_function(called, (error.argument,), *arguments, **options)
        except SpreadArrayError as error:
            call = importlib.import_module(f"softargmax.parallel.{error.served_by}").call
            return call(called, arguments, options)
        except TypeError:
            message = _mismatch(called, arguments, options)
            if message is None:
                raise
        raise TypeError(message)

    return cast("F", called)


def takes(keywords: Any, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Decorate a public function whose **options are a TypedDict. Unknown options are refused, and the signature shows
    all options.

    `defaults` contains the default of each option whose default is not None.
    """
    hints = get_type_hints(keywords)
    shown = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name),
            annotation=keywords.__annotations__[name].__forward_arg__,
        )
        for name in hints
    ]
    return _showing(shown, hints)


def takes_options_of(other: Callable[..., Any], without: Sequence[str] = ()) -> Callable[[F], F]:
    """Decorate a public function whose **options are those of another one. The signature shows them."""
    parameters = inspect.signature(other).parameters.values()
    shown = [x for x in parameters if x.kind is x.KEYWORD_ONLY and x.name not in without]
    return _showing(shown, {x.name: other.__annotations__[x.name] for x in shown})


def _showing(shown: Sequence[inspect.Parameter], hints: Mapping[str, Any]) -> Callable[[F], F]:
    """The decorator of a function whose **options are the parameters `shown`, with the types `hints`."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [x for x in signature.parameters.values() if x.kind is not x.VAR_KEYWORD]
        parameters = [*own, *shown]
        allowed = {x.name for x in parameters if x.kind is not x.POSITIONAL_ONLY}

        called = public(function, allowed)
        called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        named = {x.name for x in own} | {"return"}
        called.__annotations__ = {n: x for n, x in get_type_hints(function).items() if n in named} | {**hints}
        return called

    return decorate


def _mismatch(function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]) -> str | None:
    """The message for arguments that do not match the signature, or None if they match."""
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        reason = str(error)
    else:
        return None
    name, own, count = function.__name__, list(signature.parameters.values()), len(arguments)
    if name == "__init__":
        name = type(arguments[0]).__name__
    if own and own[0].name == "self":
        own, count = own[1:], count - 1
    more = [x for x in own if x.kind is x.VAR_KEYWORD]  # a layer's **options, which its base class checks
    own = [x for x in own if x not in more]
    positional = [x.name for x in own if x.kind in _BY_POSITION]
    named = [x.name for x in own if x.kind is not x.POSITIONAL_ONLY]
    if not more and (wrong := min(options.keys() - named, default=None)):
        return f"{name}() has no argument {wrong}; {_suggestion(wrong, positional, named)}"
    if count > len(positional):
        others = ", ".join(f"{x}=" for x in named if x not in positional)
        by_position = f"{len(positional)} by position ({', '.join(positional)})" if positional else "none by position"
        return f"{name}() takes {by_position}, got {count}" + f"; give the others by name: {others}" * bool(others)
    if duplicate := next((x for x in positional[:count] if x in options), None):
        return f"{name}() got {duplicate} by position and by name"
    missing = [
        x.name
        for place, x in enumerate(own)
        if x.default is x.empty and x.name not in options and (place >= count or x.kind is x.KEYWORD_ONLY)
    ]
    return f"{name}() needs {', '.join(missing)}" if missing else f"{name}(): {reason}"


def _suggestion(wrong: str, positional: Sequence[str], named: Sequence[str]) -> str:
    """The part of the message that says what to use instead of an unknown name."""
    if wrong in positional:
        return f"pass {wrong} by position"
    every = {*positional, *named}
    near = difflib.get_close_matches(wrong, sorted(every), 1, cutoff=0.7)
    found = next((x for x in (*_OUR_NAMES.get(wrong, ()), *near) if x in every), None)
    if found is None:
        return f"it takes {', '.join((*positional, *(x for x in named if x not in positional)))}"
    return f"use {found}" if found in named else f"pass {found} by position"
