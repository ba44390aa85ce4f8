"""Inclusive prefix reduction along the last axis, in ceil(log2 n) steps of static shapes (Hillis & Steele 1986)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softargmax.core.arrays import namespace

if TYPE_CHECKING:
    from collections.abc import Callable

Parts = tuple[Any, ...]


def scan(merge: Callable[[Parts, Parts], Parts], parts: Parts, identity: tuple[float, ...], ids: Any = None) -> Parts:
    """Merge each element with all earlier elements. `ids`, of shape (n,), limits this to elements with the same id."""
    xp = namespace(parts[0])
    n = parts[0].shape[-1]
    step = 1
    while step < n:
        earlier = tuple(
            xp.concat([xp.full_like(part[..., :step], unit), part[..., :-step]], axis=-1)
            for part, unit in zip(parts, identity, strict=True)
        )
        if ids is not None:
            same = xp.concat([xp.zeros_like(ids[:step], dtype=xp.bool), ids[step:] == ids[:-step]], axis=-1)
            earlier = tuple(xp.where(same, part, unit) for part, unit in zip(earlier, identity, strict=True))
        parts = merge(earlier, parts)
        step *= 2
    return parts
