"""Operations: each has types of its arguments and results, a definition, derivative rules and kernels.

    class Softmax(NamedTuple):
        z: Array
        where: Array | None
        beta: Beta
        axes: Axes
        dtype: DType

    class Probabilities(NamedTuple):
        p: Any
        lse: Any

    softmax = Operation(
        "softmax",
        Softmax,
        Probabilities(like("z", "dtype"), per_row("z", "dtype")),
        definition=reference.softmax,
        kernels={"cpu": _native.softmax},
        vjp=softmax_vjp,
        jvp=softmax_jvp,
    )

- A *record* is a NamedTuple of all arguments, here a `Softmax`, or of all results, here `Probabilities`.
- The *definition* is a function of arrays of any library. Its parameters are names of arguments, in any order, or `i`
  for the record of all arguments. It returns the results. The definition is the reference in tests. It also computes
  the results of all arrays for which there is no kernel.
- A *kernel* has names of arguments and results as its parameters, in any order: `def kernel(z, axes, p)`. It writes the
  results into memory that it receives. `serve` adds the kernel of another device by its name, "module:function".
- A kernel written in Python may have two special parameters: `i`, the record of all arguments, and `r`, the tuple of
  all results. A kernel with `i` receives results as arrays or tensors, and calls native kernels through `Native`.
- The derivative rules are functions of records in array-API Python. They return gradients by the names of arguments, or
  tangents by the names of results:

      def vjp(i: Softmax, r: Probabilities, g: Probabilities, wanted: Wanted) -> Gradients: return {"z": ..}
      def jvp(i: Softmax, r: Probabilities, t: Tangents) -> Probabilities

  The caller of a rule sums each gradient over broadcast axes, to the shape of its argument, and rounds it to the
  argument's dtype. If a vjp does not return a gradient, the gradient is computed from the definition. If there is no
  jvp, the transpose of the vjp is used.

The first array of the arguments sets the library and the device. A field may itself be a record (`of: Softmax`). In
this way a vjp operation receives the arguments of its forward operation. All arguments and results of an operation
have different names.

The code for a framework is derived from the operation when the first array of the framework arrives. For torch,
`torch_operation.py` derives it.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from softargmax.core import dispatch
from softargmax.core.arrays import is_dtensor, kind_of, namespace, row_dtype
from softargmax.core.dispatch import requested
from softargmax.core.memory import NUMPY, Memory, memory_of
from softargmax.core.native import BLOCK
from softargmax.core.processes import SpreadAxes, exchanges, over_processes, processes_of, refuse_spread
from softargmax.core.record import (
    AXES,
    OPERATIONS,
    A,
    Branch,
    Gradients,
    R,
    Tangents,
    Wanted,
    branch,
    generated,
    parameters,
    passed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from softargmax.core.jax_operation import JaxOperation
    from softargmax.core.scale import Scale
    from softargmax.core.torch_operation import TorchOperation
    from softargmax.core.vmap_rows import Batched

_row_dtype = functools.cache(row_dtype)  # the dtypes of NumPy and torch, which generated code passes, are hashable


class Together(NamedTuple):
    """A call that computes a loss and its gradients: the operation, its arguments, and the result of each gradient."""

    operation: Any
    arguments: Any
    gradients: Mapping[str, str]


# --- the operation ----------------------------------------------------------------------------------------------------


class Operation(Generic[A, R]):
    """One operation. A call returns all results. `first` and `into` compute the first result only."""

    def __init__(  # noqa: PLR0913 each is passed by name
        self,
        name: str,
        arguments: type[A],
        results: R,
        *,
        definition: Callable[..., Any],
        kernels: Mapping[str, Callable[..., Any] | str] | None = None,
        vjp: Callable[[A, R, R, Wanted], Gradients] | None = None,
        jvp: Callable[[A, R, Tangents], R] | None = None,
        saved: Wanted | Callable[[A], Wanted] | None = None,
        constant: Wanted = frozenset(),
        batch: Callable[[A, Any, int], Batched | None] | None = None,
        differentiable: bool = True,
        always_by_rule: bool = False,
        refuse: Callable[[A, Any], None] | None = None,
        mend: Callable[[A, R, Callable[[A], R]], R | None] | None = None,
        together: Callable[[A, Wanted], Together | None] | None = None,
        spreads: Mapping[str, int] | None = None,
        rows: Mapping[str, int] | None = None,
        defined_over_processes: bool = False,
        block: int = BLOCK,
    ) -> None:
        """Create an operation, and add it to OPERATIONS.

        - `saved`: the names of the arguments and results that the rules read, as a set, or as a function that returns
          the set for a record. None means all arguments and no results.
        - `constant`: the names of arguments and results without a derivative.
        - `batch`: the operation's own vmap rule, or None for the general rules of torch_vmap.py. It is a function of a
          record, of a record with the batch axis of each argument, and of the number of calls. If it returns None, it
          does not apply to these arrays.
        - `always_by_rule`: True to use the rules even for results that the definition has computed, because
          differentiating the definition would lose digits.
        - `refuse`: a function of the record and the kernel's return value, called if this value is not None. It may
          raise an error.
        - `mend`: a function of a record that the kernel refused, of the results as far as the kernel has written them,
          and of a function that runs the kernel with another record. It returns the results, with NaN or -1 in the
          wrong rows only. JAX uses it, because its programs raise no errors. Without it, or if it returns None, the
          definition computes the whole call.
        - `together`: a function of a record and names of arguments that returns how to compute the first result, which
          must be one number, and its gradients in one pass, or None if that is impossible. JAX and eager calls of torch
          use it: the backward pass then only multiplies the gradients by the incoming one.
        - `spreads`: a map from names of arguments and results to negative axes, for an operation with an argument
          `spread`: the axis along which processes have parts of the array. (If there are `axes`, processes have parts
          of all arrays with scores.)
        - `rows`: the same for an operation with an argument `by_rows`: the axis of the rows. If the argument is True,
          rows are spread in place of the scores of a row.
        - `defined_over_processes`: True if the definition computes rows that are spread over processes: its sums over
          rows are those of this module.
        - `block`: rows that are spread over processes are cut at multiples of this number of scores.
        """
        self.name, self.arguments, self.results, self.kernels = name, arguments, results, dict(kernels or {})
        self.definition, self.vjp, self.jvp = definition, vjp, jvp
        self.saved, self.constant, self.batch, self.differentiable = saved, constant, batch, differentiable
        self.always_by_rule, self.refuse, self.mend, self.together = always_by_rule, refuse, mend, together
        self.spreads, self.rows, self.block = dict(spreads or {}), dict(rows or {}), block
        self.defined_over_processes = defined_over_processes
        self.fields: tuple[str, ...] = type(results)._fields  # type: ignore[attr-defined]
        self.tree = branch(arguments)
        self.leaves = self.tree.leaves
        self._check_names()
        path = self._paths(self.tree, "")[next(leaf.name for leaf in self.leaves if leaf.kind.slots[0][1] == "Tensor")]
        self.array = attrgetter(path[1:])
        """Return the first array of a record. Its library and device select the implementation."""
        self.room = arguments.__module__.rpartition(".")[0]
        self._by_record: Callable[[A], Any] | None = None
        self._servers: defaultdict[str | None, dict[type, Callable[..., Any]]] = defaultdict(dict)
        self._launchers: defaultdict[str | None, dict[type, Callable[..., Any]]] = defaultdict(dict)
        self._torch: TorchOperation | None = None
        self._jax: JaxOperation | None = None
        OPERATIONS.append(self)

    def serve(self, device: str, kernel: str) -> None:
        """Use the kernel "module:function" for torch tensors on a device. The module is imported at the first call."""
        self.kernels[device] = kernel
        if self._torch is not None:
            self._torch.serve(device)

    def has_kernel(self, device: str) -> bool:
        """True if a kernel serves torch tensors on a device, now and here."""
        return device in self.kernels and (device != "cuda" or dispatch.cuda_serves(self.name))

    def __call__(self, i: A) -> R:
        """Return all results."""
        array = self.array(i)
        found = (self._servers[requested()].get(type(array)) or self.server(array))(i)
        return type(self.results)(*(found if len(self.fields) > 1 else (found,)))

    def first(self, i: A) -> Any:
        """Return the first result, which may take less time than all results."""
        array = self.array(i)
        return (self._servers[requested()].get(type(array)) or self.server(array))(i, True)

    def now(self, i: A) -> Any:
        """Return the first result. `_native.axes_at_once` has checked the arrays, so they are not checked again."""
        launch = self._launchers[requested()].get(type(self.array(i)))
        return self.first(i) if launch is None else launch(i, True)

    def into(self, i: A, out: Any) -> Any:
        """Write the first result into `out` and return it."""
        array = self.array(i)
        return (self._servers[requested()].get(type(array)) or self.server(array))(i, True, out)

    def gradients(self, i: A, g: R, wanted: Wanted) -> Gradients:
        """The gradients of the inner product <g, results>, for use in rules of other operations.

        The vjp must not read results.
        """
        found: Gradients = self.derived(i).vjp(i, None, g, wanted)
        return found

    def derived(self, i: A) -> TorchOperation | JaxOperation:
        """What is derived from this operation for the library of a record's arrays: rules that use the definition."""
        return self.jax if kind_of(self.array(i)) == "jax" else self.torch

    def server(self, array: Any) -> Callable[..., Any]:
        """The function (arguments, first, out) -> results for arrays of this type."""
        servers = self._servers[requested()]
        if type(array) not in servers:
            spread = requested() == dispatch.PROCESSES
            servers[type(array)] = functools.partial(over_processes, self) if spread else self._choose(array)
        return servers[type(array)]

    def _choose(self, array: Any) -> Callable[..., Any]:
        sharded = is_dtensor(array) and self.torch.sharded  # in a derivative rule of an operator of torch
        kind, name = "torch" if sharded else kind_of(array), dispatch.requested_name()
        if name is not None:
            dispatch.check_serves(name, kind)
        if self._has_no_kernel(kind, name):
            return self.jax.run_definition if kind == "jax" and self.together is not None else self.define
        if kind == "jax":
            return self.jax.run
        launchers = self._launchers[requested()]
        if kind == "numpy":
            launchers[type(array)] = self.launcher(self.kernel("cpu"), NUMPY)
            return launchers[type(array)]
        if name == "reference":
            return self.torch.run_definition
        if name == "triton" or sharded:
            return self.torch.run
        if "cpu" in self.torch.launch:
            launchers[type(array)] = self.torch.launch["cpu"]
        return self.torch.serve_eager

    def is_defined(self, i: A) -> bool:
        """True if the definition computes this call, and no operator of torch."""
        return self._has_no_kernel(kind_of(self.array(i)), dispatch.requested_name())

    def _has_no_kernel(self, kind: str, name: str | None) -> bool:
        return kind == "array-api" or (kind in ("numpy", "jax") and (name == "reference" or "cpu" not in self.kernels))

    @property
    def torch(self) -> TorchOperation:
        """The `TorchOperation` of this operation. The first use derives those of the whole room."""
        if self._torch is None:
            from softargmax.core.torch_operation import register

            register(self.room)
        return self._torch  # type: ignore[return-value]

    @property
    def jax(self) -> JaxOperation:
        """The `JaxOperation` of this operation, made at the first use."""
        if self._jax is None:
            from softargmax.core.jax_operation import JaxOperation

            self._jax = JaxOperation(self)
        return self._jax

    def _check_names(self) -> None:
        """Check that names are unique and that none begins with "_", which is reserved for names in generated code."""
        names = [slot for leaf in self.leaves for slot, _ in leaf.slots] + list(self.fields)
        wrong = [name for name in names if names.count(name) > 1 or name.startswith("_")]
        if wrong:
            raise TypeError(f"{self.name}: expected unique names that do not begin with _, got {wrong[0]}")

    def kernel(self, device: str) -> Callable[..., Any]:
        """The kernel of a device, imported if it was registered by name."""
        found = self.kernels[device]
        if isinstance(found, str):
            module, _, function = found.partition(":")
            found = self.kernels[device] = getattr(importlib.import_module(module), function)
        return found

    def define(self, i: A, first: bool = False, out: Any = None) -> Any:
        """Compute the results by the definition."""
        if self._by_record is None:
            paths = self._paths(self.tree, "_i")
            paths["i"] = "_i"
            call = ", ".join(f"{name}={paths[name]}" for name in parameters(self.definition))
            spread = [] if self.defined_over_processes else self.leaves
            lines = [f"_whole({paths[leaf.name]})" for leaf in spread if leaf.kind is AXES or leaf.name == "spread"]
            names = {"_definition": self.definition, "_whole": refuse_spread}
            self._by_record = generated("_i", [*lines, f"return _definition({call})"], **names)
        found = self._by_record(i)
        found = found[0] if first and len(self.fields) > 1 else found
        if out is None:
            return found
        out[...] = found
        return out

    def _paths(self, tree: Branch, path: str) -> dict[str, str]:
        """Return a dict: the name of each argument and each nested record, and the code that reads its value."""
        found = {}
        for one in tree.parts:
            found[one.name] = f"{path}.{one.name}"
            if isinstance(one, Branch):
                found |= self._paths(one, found[one.name])
        return found

    def launcher(
        self,
        kernel: Callable[..., Any],
        memory: Memory,
        guard: str = "",
        *,
        refuse: Callable[[Any, Any, Any], None] | None = None,
        **more: Any,
    ) -> Callable[..., Any]:
        """The function (arguments, first, out) -> results that allocates memory and calls the kernel.

        The function is generated, so that a call runs no Python loops. `guard` is a line of code that may return before
        the kernel runs. It can use the names of the arguments and of `more`. `refuse` is called in place of the
        operation's own `refuse`, with the results as a third argument.
        """
        leaves = {leaf.name: leaf for leaf in self.leaves}
        lines = [f"{self.tree.target}= _i", *[guard] * bool(guard)]
        for number, (field, spec) in enumerate(zip(self.fields, self.results, strict=True)):
            made = spec.text(field, number, leaves.keys(), memory)
            if number == 0:
                lines += [f"{field} = _out", f"if _out is None: {made}"]
            else:
                lines += [f"{field} = None", f"if not _first: {made}"] if spec.spare else [made]
        spare = {field: spec.spare for field, spec in zip(self.fields, self.results, strict=True)}
        copies, run = passed(kernel, leaves, spare, memory)
        results = self.fields[0] if len(self.fields) == 1 else f"({', '.join(self.fields)})"
        refused = "_refuse(_i, _found)" if refuse is None else f"_refuse(_i, _found, ({', '.join(self.fields)},))"
        by = refuse or self.refuse
        run_lines = [run] if by is None else [f"_found = {run}", f"if _found is not None: {refused}"]
        lines += [*copies, *run_lines, f"return {self.fields[0]} if _first else {results}"]
        names = {f"_{name}": one for name, one in memory._asdict().items()}
        shapes = {f"_shape{number}": spec.shape for number, spec in enumerate(self.results)}
        names |= {"_kernel": kernel, "_refuse": by, "_row_dtype": _row_dtype}
        return generated("_i, _first=False, _out=None", lines, **names, **shapes, **more)


# --- native kernels inside kernels written in Python -----------------------------------------------------------------


class Native:
    """A native kernel as a function of a record and the results' memory. Results after the first may be None."""

    def __init__(self, kernel: Callable[..., Any], record: type[Any], results: tuple[str, ...]) -> None:
        self._kernel, self._tree, self._results = kernel, branch(record), results
        self._made: dict[type, Callable[..., Any]] = {}

    def __call__(self, i: Any, *results: Any) -> Any:
        """Run the kernel and return its result."""
        return (self._made.get(type(results[0])) or self._make(results[0]))(i, *results)

    def _make(self, array: Any) -> Callable[..., Any]:
        leaves = {leaf.name: leaf for leaf in self._tree.leaves}
        memory = memory_of(array)
        copies, call = passed(self._kernel, leaves, dict.fromkeys(self._results, True), memory)
        lines = [f"{self._tree.target}= _i", *copies, f"return {call}"]
        names = {f"_{name}": one for name, one in memory._asdict().items()}
        made = generated(f"_i, {', '.join(self._results)}", lines, _kernel=self._kernel, **names)
        self._made[type(array)] = made
        return made


# --- functions for derivative rules. The rules ignore everything outside the support ----------------------------------
#
# Letters in the rules: x = beta z, <a, b> is the sum of a b over a row, g and h are incoming gradients, t is a tangent.
# Arrays with one number per row keep the reduced axes, with size 1.


def only(support: Any, x: Any) -> Any:
    """x inside the support and exactly 0 outside, even if x is NaN or inf there. Half precision becomes float32."""
    xp = namespace(support)
    return xp.where(support, xp.astype(x, row_dtype(x.dtype), copy=False), 0.0)


# If rows are spread over processes, a number per row is the same in all of them, and so is its full gradient. A rule
# wraps such a number in `along` where it meets scores, because its gradient there is a sum over all processes.


def row_sum(x: Any, axes: tuple[int, ...]) -> Any:
    """<1, x>, the sum over a row."""
    found = namespace(x).sum(x, axis=tuple(axes), keepdims=True) if axes else x
    return exchanges().total(found, axes) if isinstance(axes, SpreadAxes) else found


def row_max(x: Any, axes: tuple[int, ...]) -> Any:
    """The largest number of a row, or -inf in an empty row."""
    xp = namespace(x)
    found = xp.max(x, axis=tuple(axes), keepdims=True) if math.prod(x.shape) else row_sum(x, tuple(axes)) - math.inf
    return exchanges().largest(found, axes) if isinstance(axes, SpreadAxes) else found


def along(row: Any, axes: tuple[int, ...]) -> Any:
    """A number per row, for use in a formula with the scores."""
    return exchanges().along(row, axes) if isinstance(axes, SpreadAxes) else row


def sum_along(x: Any, axes: tuple[int, ...]) -> Any:
    """The sum over a row, for use in a formula with the scores."""
    return along(row_sum(x, axes), axes)


def first_place(axes: tuple[int, ...]) -> int:
    """The place of this process's first score in the row."""
    return int(processes_of(axes.spread).first) if isinstance(axes, SpreadAxes) else 0


def slope(beta: Scale) -> Any:
    """beta as a factor in derivatives: 0 in the limit |beta| = inf, where softmax is constant between jumps."""
    if isinstance(beta.hi, float):
        return 0.0 if math.isinf(beta.hi) else beta.hi
    xp = namespace(beta.hi)
    return xp.where(xp.isinf(beta.hi), 0.0, beta.hi)


def is_number(beta: Scale) -> bool:
    """True if all rows share one beta. Such a beta has no derivative."""
    return isinstance(beta.hi, float)


def finite_or_zero(beta: Any, value: Any) -> Any:
    """A derivative with respect to beta, with 0 where `beta` is infinite."""
    xp = namespace(value)
    return xp.where(xp.isinf(beta), 0.0, value)
