"""Options of a function, declared once: a TypedDict has their names and types, a table the defaults other than None."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

F = TypeVar("F", bound="Callable[..., Any]")


def takes(keywords: Any, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """A function that takes these options: it refuses others, and its signature shows them with their defaults."""
    kind = inspect.Parameter.KEYWORD_ONLY
    shown = [
        inspect.Parameter(name, kind, default=defaults.get(name), annotation=hint)
        for name, hint in get_type_hints(keywords).items()
    ]

    def of(function: F) -> F:
        signature = inspect.signature(function)
        own = [x for x in signature.parameters.values() if x.kind is not x.VAR_KEYWORD]
        allowed = {x.name for x in (*own, *shown)}

        @functools.wraps(function)
        def checked(*arguments: Any, **options: Any) -> Any:
            if not options.keys() <= allowed:
                name = min(options.keys() - allowed)
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
            return function(*arguments, **options)

        checked.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
        return cast("F", checked)

    return of
