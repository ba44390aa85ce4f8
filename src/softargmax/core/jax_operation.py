"""Operations on JAX arrays: the kernels for NumPy arrays, inside of XLA's programs.

Every operation has two primitives. Their operands are the arrays of the record `i`, and `static` has all other slots.

    call:      arrays of i                       -> results
    tangent:   arrays of i, results, tangents    -> tangents of the results

On CPUs the call is a custom call of XLA (jax_call.py), on other devices the definition. Its derivative is the tangent,
which is linear in the tangents: forward mode computes it by the jvp rule, and reverse mode transposes it by the vjp
rule. Both rules consist of operations and of jax.numpy, so JAX can differentiate them again.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad, mlir

from softargmax.core import check, jax_rules, jax_vmap
from softargmax.core.dispatch import requested, requested_name, requesting
from softargmax.core.jax_call import BFLOAT16, GIVEN, SHAPES, TARGET, array_at, ffi, given, text_of
from softargmax.core.jax_rows import has_typed_axes
from softargmax.core.jax_rules import (
    defined_jvp,
    defined_vjp,
    fitted,
    inner_product,
    jvp_of,
    primitive,
    transposed,
)
from softargmax.core.memory import NUMPY
from softargmax.core.record import BETA, ROWWISE, SEED, flattener, generated, is_compiled, unflattener

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax.extend.core import Primitive

    from softargmax.core.record import Gradients, Wanted

    Static = tuple[Any, ...]


class JaxOperation:
    """The primitives of an operation, and its calls with JAX arrays."""

    def __init__(self, operation: Any) -> None:
        self.operation, self.fields = operation, operation.fields
        self.flatten, self.unflatten = flattener(operation.tree), unflattener(operation.tree)
        slots = [(leaf, name, kind) for leaf in operation.leaves for name, kind in leaf.slots]
        self.kinds, self._may_be_array = [leaf.kind for leaf, _, _ in slots], ["Tensor" in kind for *_, kind in slots]
        self._slots, names = [name for _, name, _ in slots], [leaf.name for leaf, _, _ in slots]
        self.places = {leaf.name: names.index(leaf.name) for leaf in operation.leaves
                       if leaf.kind.arrays and leaf.name not in operation.constant}  # fmt: skip
        """The slot of each argument that can have a tangent."""
        self.varying = [field for field in self.fields if field not in operation.constant]
        """The results that can have a tangent."""
        self.defined_vjp, self.transposed = partial(defined_vjp, self), partial(transposed, self)
        self._shapes = operation.launcher(lambda: None, SHAPES)
        if "cpu" in operation.kernels:
            kernel = operation.kernel("cpu")
            self._at_once = operation.launcher(kernel, NUMPY, refuse=_refuse)
            self._into_given = operation.launcher(kernel, GIVEN, refuse=_refuse)
            self._anyway = operation.launcher(kernel, NUMPY, refuse=lambda *_: None)
        self._compiled: dict[Any, Any] = {}
        self._vmap = jax_vmap.rule_of(self)
        self._call, self._tangent = self._make_call(), self._make_tangent()

    def run(self, i: Any, first: bool = False) -> Any:
        """Return all results, or the first one."""
        found = self.bind(self.flatten(i), first)
        return found[0] if first or len(self.fields) == 1 else tuple(found)

    def run_definition(self, i: Any, first: bool = False) -> Any:
        """Return all results, or the first one, by the definition, with the derivatives of the rules.

        The derivatives of the definition itself lose digits in confident rows. They serve arrays with typed axes.
        """
        arrays, static = self._split(self.flatten(i))

        def define(*arrays: Any) -> list[Any]:
            return self._define(*arrays, static=static, first=first)

        def with_tangents(primals: Any, tangents: Any) -> Any:
            with requesting("reference"):
                if any(map(has_typed_axes, primals)):
                    return jvp_of(define, primals, tangents)
                found, changes = self._with_tangents(self._define, primals, tangents, static, first)
                return found, [*map(ad.instantiate_zeros, changes)]

        defined = jax.custom_jvp(define)
        defined.defjvp(with_tangents, symbolic_zeros=True)
        found = defined(*arrays)
        return found[0] if first or len(self.fields) == 1 else tuple(found)

    def bind(self, flat: Sequence[Any], first: bool = False) -> list[Any]:
        """Call the operation with the slots of a record."""
        arrays, static = self._split(flat)
        if all(map(_is_here, arrays)):  # the same as by `bind`, in 20 us less
            return self._eager(*arrays, static=static, first=first)
        if any(map(has_typed_axes, arrays)):
            self.refuse_native()
            return list(self._jitted(self._define, static, first)(*arrays))
        found: list[Any] = self._call.bind(*arrays, static=static, first=first)
        return found

    def _split(self, flat: Sequence[Any]) -> tuple[list[Any], Static]:
        """Return the arrays of a record's slots, and all other slots."""
        places = self.arrays_of(flat)
        static = tuple(... if place in places else _hashable(x) for place, x in enumerate(flat))
        return [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in map(flat.__getitem__, places)], static

    def arrays_of(self, flat: Sequence[Any]) -> list[int]:
        """Return the places of the slots that have arrays. (dtypes also have a shape.)"""
        return [k for k, x in enumerate(flat) if self._may_be_array[k] and hasattr(x, "shape")]

    def vjp(self, i: Any, r: Any, g: Any, wanted: Wanted) -> Gradients:
        """The gradients by the operation's rule. Those that it does not return follow from the definition."""
        rule = self.operation.vjp
        found = {} if rule is None else dict(rule(i, r, g, wanted))
        missing = frozenset(name for name in wanted if found.get(name) is None)
        return {**found, **self.defined_vjp(i, r, g, missing)} if missing else found

    def results(self, given: dict[str, Any]) -> Any:
        """A record of results, with None for those that are not given."""
        return type(self.operation.results)(**{**dict.fromkeys(self.fields), **given})

    def _all(self, found: Any, first: bool) -> list[Any]:
        return [found] if first or len(self.fields) == 1 else list(found)

    def _record(self, arrays: Sequence[Any], static: Static) -> Any:
        return self.unflatten(*_slots(arrays, static))

    # --- the call -----------------------------------------------------------------------------------------------------

    def _make_call(self) -> Primitive:
        call = primitive(
            f"softargmax_{self.operation.name}",
            run=self._known,
            abstract=self._abstract,
            jvp=self._jvp,
            batch=self._batch,
            lower=self._lower_definition,
        )
        mlir.register_lowering(call, self._lower, platform="cpu")
        return call

    def _abstract(self, *avals: Any, static: Static, first: bool) -> list[Any]:
        found = self._all(self._shapes(self._record(avals, static), first), first)
        return [jax.core.ShapedArray(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)) for x in found]

    def _known(self, *arrays: Any, static: Static, first: bool) -> list[Any]:
        """Run a call whose values are known, but may be on other devices or on several."""
        if all(map(_is_here, arrays)):
            return self._eager(*arrays, static=static, first=first)
        return list(self._jitted(self._call.bind, static, first)(*arrays))

    def _eager(self, *arrays: Any, static: Static, first: bool) -> list[Any]:
        """Run the kernel at once. All values are in the memory of this process."""
        with jax.transfer_guard("allow"):  # nothing is copied between devices
            views = [*map(np.asarray, arrays)]
            for place, widen in self._widenings(static, [x.dtype for x in views]):
                views[place] = widen(views[place])
            i = self._record(views, static)
            try:
                found = self._all(self._at_once(i, first), first)
            except (_RefusedError, ValueError) as error:
                found = self._refused(error, i, first)
            device = next((x.device for x in arrays if isinstance(x, jax.Array)), None)  # constants are NumPy arrays
            if device is None or device == _default_device():
                return [*map(jnp.asarray, found)]
            return [jax.device_put(x, device) for x in found]

    def _jitted(self, function: Callable[..., Any], static: Static, first: bool) -> Any:
        """Return a compiled function, for arrays on other devices or on several. The last 64 are kept."""
        key = function.__name__, static, first
        if key not in self._compiled:
            if len(self._compiled) == 64:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[key] = jax.jit(partial(function, static=static, first=first))
        return self._compiled[key]

    def _lower_definition(self, ctx: Any, *operands: Any, **how: Any) -> Any:
        self.refuse_native()

        def define(*arrays: Any) -> list[Any]:
            return _shaped_like(self._define(*arrays, **how), ctx.avals_out, jnp)

        return mlir.lower_fun(define, multiple_results=True)(ctx, *operands)

    def refuse_native(self) -> None:
        """Raise an error if kernels are requested."""
        if requested_name() == "native":
            raise RuntimeError(
                "implementation 'native' was requested, but kernels serve JAX arrays on one CPU only; use 'reference'"
            )

    def _define(self, *arrays: Any, static: Static, first: bool) -> list[Any]:
        # The operations in the definition are definitions, too, in one program of XLA. jax_vmap.by_definition and
        # jax_rules._of_named call them as operations, because JAX may differentiate those, which is to be by rule.
        with requesting("reference"):
            return self._all(self.operation.define(self._record(arrays, static), first), first)

    def _lower(self, ctx: Any, *operands: Any, static: Static, first: bool) -> Any:
        if _is_partitioned(ctx.module_context.axis_context):
            # XLA would gather all operands of a custom call on each device. Inside of a shard_map it does not.
            return self._lower_definition(ctx, *operands, static=static, first=first)
        made = self._all(self._shapes(self._record(ctx.avals_in, static), first), first)
        direct = len(made) == 1 and made[0].dtype == ctx.avals_out[0].dtype
        dtypes = [x.dtype for x in (*ctx.avals_in, *ctx.avals_out)]
        text = text_of(self, {"static": static, "first": first, "direct": direct, "dtypes": dtypes})
        return ffi.ffi_lowering(TARGET)(ctx, *operands, call=text)

    def prepared(
        self, static: Static, first: bool, direct: bool, dtypes: Sequence[Any]
    ) -> tuple[Callable[[Any, Any], None], bool]:
        """Return the function (arguments, results) that runs the kernel, and True if it takes views.

        Otherwise it takes NumPy arrays, in which bfloat16 comes as its bits. If `direct`, the kernel writes its only
        result in the result's dtype.
        """
        arrays = [slot for slot, x in zip(self._slots, static, strict=True) if x is ...]
        slots = [
            slot if x is ... else f"_static[{k}]" for k, (slot, x) in enumerate(zip(self._slots, static, strict=True))
        ]
        wide = dict(self._widenings(static, dtypes))
        takes_views = direct and not wide and self._can_take_views(static)
        lines = [f"{', '.join(arrays)}, = _arguments"]
        if takes_views:
            write = partial(self._write_view, static, first)
        else:
            write = partial(self._write, first, direct)
            results = [f"_results[{k}]" for k in range(len(dtypes) - len(arrays))]
            halves = [x for x, dtype in zip((*arrays, *results), dtypes, strict=True) if dtype == BFLOAT16]
            lines += [f"{x} = {x}.view(_half)" for x in halves]
            lines += [f"{arrays[place]} = _wide[{place}]({arrays[place]})" for place in wide]
        lines += [f"_write(_of({', '.join(slots)}), _results)"]
        names = {"_static": static, "_half": BFLOAT16, "_wide": wide, "_of": self.unflatten}
        return generated("_arguments, _results", lines, **names, _write=write), takes_views

    def _can_take_views(self, static: Static) -> bool:
        """True if the compiled core reads every array itself, and no memory is allocated beside the first result."""
        kernel, results = self.operation.kernel("cpu"), self.operation.results
        kinds = [kind for kind, x in zip(self.kinds, static, strict=True) if x is ...]
        plain = all(not kind.dense and "_numpy" not in kind.native for kind in kinds)
        return plain and is_compiled(kernel) and all(result.spare for result in results[1:])

    def _write_view(self, static: Static, first: bool, i: Any, results: list[Any]) -> None:
        try:
            self._at_once(i, True, results[0])
        except (_RefusedError, ValueError) as error:
            views = [x for x, known in zip(self.flatten(i), static, strict=True) if known is ...]
            arrays = [array_at(results[0])]
            if isinstance(error, _RefusedError):
                error = _RefusedError(arrays)
            self._write_refused(error, self._record([*map(array_at, views)], static), first, arrays)

    def _write(self, first: bool, direct: bool, i: Any, results: list[Any]) -> None:
        try:
            if direct:
                self._at_once(i, first, results[0])
            else:
                with given(results):
                    self._into_given(i, first)
        except (_RefusedError, ValueError) as error:
            self._write_refused(error, i, first, results)

    def _write_refused(self, error: Exception, i: Any, first: bool, results: list[Any]) -> None:
        for result, made in zip(results, self._refused(error, i, first), strict=True):
            result[...] = made

    def _refused(self, error: Exception, i: Any, first: bool) -> list[Any]:
        """Return the results for a call whose kernel raised `error`: NaN or -1 in place of an error, always."""
        mend = self.operation.mend
        if isinstance(error, _RefusedError) and mend is not None:
            found = mend(i, self._of_fields(error.written), partial(self._run_anyway, first))
            if found is not None:
                return list(found)[: 1 if first else None]
        likes = self._all(self._shapes(i, first), first)
        with check.values_unread():
            return _shaped_like(self._all(self.operation.define(i, first), first), likes, np)

    def _run_anyway(self, first: bool, i: Any) -> Any:
        return self._of_fields(self._all(self._anyway(i, first), first))

    def _of_fields(self, found: Sequence[Any]) -> Any:
        return self.results(dict(zip(self.fields, found, strict=False)))

    def _widenings(self, static: Static, dtypes: Sequence[Any]) -> list[tuple[int, Callable[[Any], Any]]]:
        """Return the arrays that kernels take in another dtype, and the functions that convert them."""
        kinds = [kind for kind, x in zip(self.kinds, static, strict=True) if x is ...]
        found = [_widening(kind, dtype) for kind, dtype in zip(kinds, dtypes, strict=False)]
        return [(place, widen) for place, widen in enumerate(found) if widen is not None]

    def _batch(self, arrays: Any, dims: Any, *, static: Static, first: bool) -> tuple[list[Any], list[Any]]:
        size = next(x.shape[dim] for x, dim in zip(arrays, dims, strict=True) if dim is not None)
        places = [x if static[place] is ... else None for place, x in enumerate(_slots(dims, static))]
        found, axis = self._vmap(self, _slots(arrays, static), places, size)
        shown = found[:1] if first else found
        return shown, [None if x.shape == (0,) else axis % x.ndim for x in shown]

    def _jvp(self, primals: Any, tangents: Any, *, static: Static, first: bool) -> tuple[list[Any], list[Any]]:
        return self._with_tangents(self._call.bind, primals, tangents, static, first)

    def _with_tangents(
        self, compute: Callable[..., list[Any]], primals: Any, tangents: Any, static: Static, first: bool
    ) -> tuple[list[Any], list[Any]]:
        """Return the results, which `compute` computes, and their tangents, which the rules compute."""
        given = {name: t for name, t in zip(self.places, self._of_places(tangents, static), strict=True)
                 if t is not None and not isinstance(t, ad.Zero | SymbolicZero)}  # fmt: skip
        together = self.operation.together
        if first and together is not None and together(self._record(primals, static), frozenset(given)) is not None:
            loss, gradients = jax_rules.loss_and_gradients(self, _slots(primals, static), tuple(given))
            return [loss], [inner_product(gradients, tuple(given.values()), loss.dtype)]
        found = compute(*primals, static=static, first=False)
        changes: dict[str, Any] = dict.fromkeys(self.fields)
        if given and self.operation.differentiable:
            how: dict[str, Any] = {"static": static, "names": tuple(given), "by": requested()}
            change = self._tangents if self.operation.vjp is None else self._tangent.bind
            changes |= zip(self.varying, change(*primals, *found, *given.values(), **how), strict=True)
        shown = list(zip(self.fields, found, strict=True))[: 1 if first else None]
        return [x for _, x in shown], [_no_change(x) if changes[name] is None else changes[name] for name, x in shown]

    def _of_places(self, arrays: Any, static: Static) -> list[Any]:
        slots = _slots(arrays, static)
        return [slots[place] if static[place] is ... else None for place in self.places.values()]

    # --- its tangent --------------------------------------------------------------------------------------------------

    def _make_tangent(self) -> Primitive:
        return primitive(
            f"softargmax_{self.operation.name}_tangent",
            run=self._tangents,
            abstract=self._abstract_tangents,
            jvp=self._jvp_of_tangents,
            batch=self._batch_tangents,
            transpose=self._transposed,
        )

    def _parts(self, flat: Sequence[Any], static: Static) -> tuple[Any, Any, Sequence[Any]]:
        """Return the arguments, the results and the tangents."""
        count = sum(x is ... for x in static)
        end = count + len(self.fields)
        return self._record(flat[:count], static), type(self.operation.results)(*flat[count:end]), flat[end:]

    def _abstract_tangents(self, *avals: Any, static: Static, **_: Any) -> list[Any]:
        results = self._parts(avals, static)[1]
        return [getattr(results, field) for field in self.varying]

    def _tangents(self, *flat: Any, static: Static, names: tuple[str, ...], by: str | None) -> list[Any]:
        """`by` is the implementation that was requested when the call was traced."""
        i, r, tangents = self._parts([*map(jnp.asarray, flat)], static)
        t, operation = dict(zip(names, tangents, strict=True)), self.operation
        with requesting(by):
            if operation.jvp is not None:
                found = operation.jvp(i, r, t)
            else:
                found = defined_jvp(self, i, t) if operation.vjp is None else self.transposed(i, r, t)
        return [getattr(found, field).astype(getattr(r, field).dtype) for field in self.varying]

    def _jvp_of_tangents(self, primals: Any, tangents: Any, **how: Any) -> Any:
        return jvp_of(partial(self._tangents, **how), primals, tangents)

    def _batch_tangents(self, flat: Any, dims: Any, **how: Any) -> tuple[list[Any], list[int]]:
        found = jax.vmap(partial(self._tangents, **how), list(dims))(*flat)
        return found, [0] * len(found)

    def _transposed(
        self, cotangents: Any, *flat: Any, static: Static, names: tuple[str, ...], by: str | None
    ) -> list[Any]:
        count = len(flat) - len(names)
        i, r, _ = self._parts([*map(jnp.asarray, flat[:count])], static)
        g = {f: None if isinstance(x, ad.Zero) else x for f, x in zip(self.varying, cotangents, strict=True)}
        with requesting(by):
            found = self.vjp(i, r, self.results(g), frozenset(names))
        of_tangents = [fitted(found[name], t.aval.shape, t.aval.dtype)
                       for name, t in zip(names, flat[count:], strict=True)]  # fmt: skip
        return [*[None] * count, *of_tangents]


def _widening(kind: Any, dtype: Any) -> Callable[[Any], Any] | None:
    """Return the function that converts an argument for kernels: without 64-bit mode, JAX has no int64 and float64."""
    if kind is SEED:
        return _joined
    wide = np.int64 if dtype.kind in "iu" else np.float64 if kind in (BETA, ROWWISE) else dtype
    return None if wide == dtype else partial(np.asarray, dtype=wide)


def _joined(words: Any) -> Any:
    """Return seeds of 64 bits, each of two words of 32 bits."""
    return np.ascontiguousarray(words).view(np.int64)[..., 0]


class _RefusedError(Exception):
    """A kernel refused a value. `written` has the results, as far as the kernel has written them."""

    def __init__(self, written: Sequence[Any]) -> None:
        super().__init__("a kernel refused a value")
        self.written = written


def _refuse(_i: Any, _why: Any, written: Sequence[Any]) -> None:
    raise _RefusedError(written)


def _slots(arrays: Sequence[Any], static: Static) -> list[Any]:
    """Return all slots of a record."""
    rest = iter(arrays)
    return [next(rest) if x is ... else x for x in static]


def _hashable(x: Any) -> Any:
    if isinstance(x, type):
        return np.dtype(x)
    return tuple(x) if isinstance(x, list) else x


def _is_here(x: Any) -> bool:
    """True if the values are known, in the memory of this process, and not on another device or on several."""
    if isinstance(x, jax.core.Tracer):
        return False
    devices = x.devices() if hasattr(x, "devices") else ()  # constants of a program are NumPy arrays
    return len(devices) < 2 and all(device.platform == "cpu" for device in devices)


@cache
def _first_device() -> Any:
    return jax.local_devices()[0]


def _default_device() -> Any:
    """The device of results of jnp.asarray."""
    return jax.config.jax_default_device or _first_device()  # type: ignore[attr-defined]


def _is_partitioned(context: Any) -> bool:
    """True if XLA decides where parts of arrays are: on several devices, but for a shard_map over all axes."""
    axes = set(getattr(getattr(context, "mesh", None), "axis_names", ()))
    return getattr(context, "num_devices", 1) > 1 or not axes <= set(getattr(context, "manual_axes", axes))


def _shaped_like(found: Sequence[Any], likes: Sequence[Any], xp: Any) -> list[Any]:
    """Return the definition's results in the shapes and dtypes of the kernel's. Those that only kernels make are 0."""
    return [xp.zeros(like.shape, like.dtype) if x is None or x.shape != like.shape else x.astype(like.dtype)
            for x, like in zip(found, likes, strict=True)]  # fmt: skip


def _no_change(x: Any) -> Any:
    """The tangent 0 of a result."""
    aval = x.aval
    return ad.Zero(aval.to_tangent_aval() if hasattr(aval, "to_tangent_aval") else aval.at_least_vspace())
