"""Derivative rules of operations on JAX arrays that follow from the definition, or from the vjp.

The argument `of` is the operation's JaxOperation. torch_rules.py has the same functions for torch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from softargmax.core.dispatch import requested, requesting
from softargmax.core.jax_rows import has_typed_axes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


def defined_loss(of: Any, i: Any, first: bool = False) -> Any:
    """The definition of a loss. Where `Operation.together` applies, one pass computes it and its gradients.

    That is so for a loss that is one number, with gradients in the scores or in a layer. The derivative of the
    definition itself, which serves all other calls, loses digits in confident rows.
    """
    flat = of.flatten(i)
    places = of.arrays_of(flat)

    def define(*x: Any) -> Any:
        with requesting("reference"):
            return of.operation.define(of.unflatten(*replaced(flat, places, x)), first)

    def with_tangents(primals: Any, tangents: Any) -> Any:
        slots, changes = replaced(flat, places, primals), dict(zip(places, tangents, strict=True))
        given = {name: changes[place] for name, place in of.places.items()
                 if place in changes and not isinstance(changes[place], SymbolicZero)}  # fmt: skip
        with requesting("reference"):
            at_once = first and not any(map(has_typed_axes, primals))
            if at_once and of.operation.together(of.unflatten(*slots), frozenset(given)) is not None:
                loss, gradients = loss_and_gradients(of, slots, tuple(given))
                return loss, inner_product(gradients, tuple(given.values()), loss.dtype)
        return jvp_of(define, primals, tangents)

    defined = jax.custom_jvp(define)
    defined.defjvp(with_tangents, symbolic_zeros=True)
    return defined(*(jnp.asarray(flat[place]) for place in places))


def loss_and_gradients(of: Any, flat: list[Any], names: tuple[str, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The loss, and its gradients from the same pass. If they are differentiated, both are computed apart."""
    likes, by = [flat[of.places[name]] for name in names], requested()
    places = of.arrays_of(flat)  # also of constants: an outer derivative may be one in them

    def record(x: tuple[Any, ...]) -> Any:
        return of.unflatten(*replaced(flat, places, x))

    def chosen(found: Any) -> tuple[Any, ...]:
        return tuple(fitted(found[name], like.shape, like.dtype) for name, like in zip(names, likes, strict=True))

    @jax.custom_jvp
    def together(*x: Any) -> Any:
        call = of.operation.together(record(x), frozenset(names))
        with requesting(by):
            found = call.operation(call.arguments)
        return found[0], chosen({name: getattr(found, field) for name, field in call.gradients.items()})

    def apart(*x: Any) -> Any:
        i = record(x)
        with requesting(by):
            r = of.operation(i)
            g = of.results({of.fields[0]: jnp.ones_like(r[0])})
            return r[0], chosen(of.vjp(i, r, g, frozenset(names)))

    together.defjvp(partial(jvp_of, apart), symbolic_zeros=True)
    found: tuple[Any, tuple[Any, ...]] = together(*(jnp.asarray(flat[place]) for place in places))
    return found


def primitive(
    name: str,
    *,
    run: Callable[..., Any],
    abstract: Callable[..., Any],
    jvp: Callable[..., Any],
    batch: Callable[..., Any],
    transpose: Callable[..., Any] | None = None,
    lower: Callable[..., Any] | None = None,
    many: bool = True,
) -> Primitive:
    """Register a primitive with its rules. By default, programs contain what `run` traces."""
    made = Primitive(name)
    made.multiple_results = many
    made.def_impl(run)
    made.def_abstract_eval(abstract)
    ad.primitive_jvps[made] = jvp
    batching.primitive_batchers[made] = batch
    if transpose is not None:
        ad.primitive_transposes[made] = transpose
    mlir.register_lowering(made, lower or mlir.lower_fun(run, multiple_results=many))
    if not hasattr(jax, "shard_map"):
        _register_replication(made)
    return made


def _register_replication(made: Primitive) -> None:
    """Before JAX 0.6, shard_map needs a rule: results are equal on all devices of an axis if all arguments are."""
    from jax.experimental import shard_map

    shard_map.register_standard_check(made)  # type: ignore[attr-defined]
    shard_map.register_standard_rewrite(made)  # type: ignore[attr-defined]


# --- the inner product of gradients and tangents ----------------------------------------------------------------------
#
# It is a primitive, because its transpose must be g times the gradient, and no more: XLA removes a product with g = 1.


def _product(*arrays: Any, dtype: Any) -> Any:
    """Return <gradients, tangents>. A tangent counts as 0 where the gradient is 0, even if it is NaN."""
    pairs = zip(arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :], strict=True)
    terms = [jnp.where(a == 0, 0, a * t.astype(a.dtype)).astype(jnp.promote_types(a.dtype, dtype)) for a, t in pairs]
    return sum((jnp.sum(x) for x in terms), jnp.zeros(())).astype(dtype)


def _product_transposed(g: Any, *arrays: Any, dtype: Any) -> list[Any]:
    del dtype
    half = len(arrays) // 2
    return [*[None] * half, *((g * a).astype(a.dtype) for a in arrays[:half])]


def _product_jvp(primals: Any, tangents: Any, *, dtype: Any) -> Any:
    half = len(primals) // 2
    if all(isinstance(t, ad.Zero) for t in tangents[:half]):  # linear in the tangents: stays a primitive
        zeros = [jnp.zeros_like(primals[k]) if isinstance(t, ad.Zero) else t for k, t in enumerate(tangents)]
        return _inner.bind(*primals, dtype=dtype), _inner.bind(*primals[:half], *zeros[half:], dtype=dtype)
    return jvp_of(partial(_product, dtype=dtype), primals, tangents)


def _product_batched(arrays: Any, dims: Any, *, dtype: Any) -> tuple[Any, int]:
    return jax.vmap(partial(_product, dtype=dtype), list(dims))(*arrays), 0


_inner = primitive(
    "softargmax_inner_product",
    run=_product,
    abstract=lambda *_arrays, dtype: jax.core.ShapedArray((), dtype),
    jvp=_product_jvp,
    batch=_product_batched,
    transpose=_product_transposed,
    many=False,
)


def inner_product(gradients: tuple[Any, ...], tangents: tuple[Any, ...], dtype: Any) -> Any:
    """The tangent of a loss."""
    return _inner.bind(*gradients, *tangents, dtype=dtype)


def replaced(values: Sequence[Any], places: Sequence[int], new: Sequence[Any]) -> list[Any]:
    """Return a list of the values with new ones at some places."""
    every = list(values)
    for place, value in zip(places, new, strict=True):
        every[place] = value
    return every


def jvp_of(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """Return f(*primals) and its tangents. Some of the given tangents may be symbolic zeros."""
    moving = [k for k, t in enumerate(tangents) if not isinstance(t, ad.Zero | SymbolicZero)]

    def of_moving(*x: Any) -> Any:
        return f(*replaced(primals, moving, x))

    return jax.jvp(of_moving, [primals[k] for k in moving], [tangents[k] for k in moving])


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
        found = of.operation.define(of.unflatten(*replaced(flat, places, x)))
        results = dict(zip(of.fields, found if len(of.fields) > 1 else (found,), strict=True))
        return tuple(results[field] for field in of.varying)

    return definition, tuple(jnp.asarray(flat[place]) for place in places)
