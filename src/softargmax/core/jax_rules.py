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

from softargmax.core.arrays import mapped
from softargmax.core.dispatch import requested, requesting

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
# A primitive, because its derivative in the gradients counts where they are 0, and because its transpose must be g
# times the gradients, and no more: XLA removes a product with g = 1.


def _product(*arrays: Any, dtype: Any, kept: int) -> Any:
    """Return <gradients, tangents>, for each index along the `kept` first axes, which vmap has added.

    A tangent counts as 0 where the gradient is 0, even if it is NaN.
    """
    pairs = zip(arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :], strict=True)
    terms = [jnp.where(a == 0, 0, a * t.astype(a.dtype)).astype(jnp.promote_types(a.dtype, dtype)) for a, t in pairs]
    sums = (jnp.sum(x, axis=tuple(range(kept, x.ndim))) for x in terms)
    return sum(sums, jnp.zeros(arrays[0].shape[:kept])).astype(dtype)


def _product_transposed(g: Any, *arrays: Any, **_: Any) -> list[Any]:
    half = len(arrays) // 2
    others = (*arrays[half:], *arrays[:half])
    return [_scaled(other, g) if ad.is_undefined_primal(x) else None for x, other in zip(arrays, others, strict=True)]


@partial(jax.jit, inline=True)
def _scaled(a: Any, g: Any) -> Any:
    """Return g a, in the dtype of a. A g of NaN or inf counts as 0 where a is 0."""
    g = jnp.expand_dims(g, tuple(range(g.ndim, a.ndim)))
    return (a * jnp.where((a == 0) & ~jnp.isfinite(g), 0, g)).astype(a.dtype)


def _product_jvp(primals: Any, tangents: Any, **how: Any) -> Any:
    """The product is linear in the gradients, and in the tangents."""
    half, terms = len(primals) // 2, []
    for part in (slice(half), slice(half, None)):
        if not all(isinstance(t, ad.Zero) for t in tangents[part]):
            moved = list(primals)
            moved[part] = map(ad.instantiate_zeros, tangents[part])
            terms.append(_inner.bind(*moved, **how))
    return _inner.bind(*primals, **how), sum(terms[1:], terms[0])


def _product_batched(arrays: Any, dims: Any, *, dtype: Any, kept: int) -> tuple[Any, int]:
    size = next(x.shape[dim] for x, dim in zip(arrays, dims, strict=True) if dim is not None)
    of_calls = (mapped(x, dim, size) for x, dim in zip(arrays, dims, strict=True))
    return _inner.bind(*of_calls, dtype=dtype, kept=kept + 1), 0


_inner = primitive(
    "softargmax_inner_product",
    run=_product,
    abstract=lambda *arrays, dtype, kept: jax.core.ShapedArray(arrays[0].shape[:kept], dtype),
    jvp=_product_jvp,
    batch=_product_batched,
    transpose=_product_transposed,
    many=False,
)


def inner_product(gradients: tuple[Any, ...], tangents: tuple[Any, ...], dtype: Any) -> Any:
    """The tangent of a loss."""
    return _inner.bind(*gradients, *tangents, dtype=dtype, kept=0)


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
