"""Derivative rules of operations on JAX arrays that follow from the definition, or from the vjp.

The argument `of` is the operation's JaxOperation. torch_rules.py has the same functions for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from jax import numpy as jnp

if TYPE_CHECKING:
    from softargmax.core.record import Gradients, Tangents, Wanted


def defined_vjp(of: Any, i: Any, _r: Any, g: Any, wanted: Wanted) -> Gradients:
    """The gradients of <g, definition>. They can be differentiated again."""
    names = [name for name in of.places if name in wanted]
    f, x = _of_named(of, i, names)
    found, pullback = jax.vjp(f, *x)
    incoming = [getattr(g, field) for field in of.varying]
    full = tuple(jnp.zeros_like(y) if one is None else one.astype(y.dtype)
                 for y, one in zip(found, incoming, strict=True))  # fmt: skip
    return dict(zip(names, pullback(full), strict=True))


def defined_jvp(of: Any, i: Any, t: Tangents) -> Any:
    """The tangents of the definition."""
    f, x = _of_named(of, i, list(t))
    _, tangents = jax.jvp(f, x, tuple(t[name].astype(one.dtype) for name, one in zip(t, x, strict=True)))
    return of.results(dict(zip(of.varying, tangents, strict=True)))


def transposed(of: Any, i: Any, r: Any, t: Tangents) -> Any:
    """The tangents of the results: the transpose of the vjp, which is linear in the incoming gradient."""
    _, x = _of_named(of, i, list(t))

    def gradients(*g: Any) -> tuple[Any, ...]:
        found = of.vjp(i, r, of.results(dict(zip(of.varying, g, strict=True))), frozenset(t))
        return tuple(fitted(found[name], one.shape, one.dtype) for name, one in zip(t, x, strict=True))

    likes = [getattr(r, field) for field in of.varying]
    _, transpose = jax.vjp(gradients, *(jnp.zeros(like.shape, like.dtype) for like in likes))
    tangents = transpose(tuple(t[name].astype(one.dtype) for name, one in zip(t, x, strict=True)))
    return of.results(dict(zip(of.varying, tangents, strict=True)))


def fitted(gradient: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Sum a gradient over the broadcast axes of its argument, and round it once."""
    if gradient.shape != tuple(shape):
        gradient = gradient.astype(dtype if dtype.itemsize > 2 else jnp.float32)
        gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
        axes = [k for k, (n, own) in enumerate(zip(gradient.shape, shape, strict=True)) if n != own]
        gradient = gradient.sum(axis=tuple(axes), keepdims=True)
    return gradient.astype(dtype)


def _of_named(of: Any, i: Any, names: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the varying results as a function of the named arguments, by the definition, and the arguments."""
    flat = of.flatten(i)
    places = [of.places[name] for name in names]

    def definition(*x: Any) -> tuple[Any, ...]:
        every = list(flat)
        for place, value in zip(places, x, strict=True):
            every[place] = value
        found = of.operation.define(of.unflatten(*every))
        results = dict(zip(of.fields, found if len(of.fields) > 1 else (found,), strict=True))
        return tuple(results[field] for field in of.varying)

    return definition, tuple(jnp.asarray(flat[place]) for place in places)
