"""An operator, an autograd Function and a fast path for torch, derived from an operation.

- torch.compile, torch.export and opcheck use the operator in `torch.ops` (schema, kernels by device, fake tensors,
  vmap, autograd). Torch's dispatcher chooses the device's kernel.
- An eager call runs the Function if its derivative is recorded, or inside a transform of torch.func, which requires a
  Function. Any other eager call runs the kernel directly. This saves the time of the Function (5 us) and of the
  dispatcher (3 us).
- On a device without a kernel the definition runs. Torch differentiates it.

Derivative rules consist of operations and array-API functions. So they can be differentiated again, in reverse and
forward mode, to any order.
"""

from __future__ import annotations

import itertools
import math
import threading
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax.core import _native, dispatch
from softargmax.core.arrays import kind_of
from softargmax.core.record import AXES, OPERATIONS, Gradients, Wanted
from softargmax.core.torch_compile import compile_whole
from softargmax.core.torch_memory import CPU, DEVICE
from softargmax.core.torch_private import (
    after_autograd,
    apply_here,
    below_autograd,
    enable_single_level_autograd_function,
    forward_mode,
    know_cuda,
    primal,
    saves_with_hooks,
    tangent_of,
    transformed,
    unwrap_dead_wrappers,
)
from softargmax.core.torch_readable import ready
from softargmax.core.torch_rules import defined_vjp, transposed
from softargmax.core.torch_schema import AT_ONCE, RECORDED, SchemaSlots
from softargmax.core.torch_sharding import shard_rows
from softargmax.core.torch_vmap import along_rows, by_batch, by_definition

if TYPE_CHECKING:
    from collections.abc import Sequence

LIBRARY: Any = torch.library.Library("softargmax", "FRAGMENT")  # type: ignore[no-untyped-call]
_KEYS = {"cpu": "CPU", "cuda": "CUDA", "xpu": "XPU", "mps": "MPS"}
# `_level.keys` contains the dispatch keys of the current transform level. `_level.inside` is True while calls must use
# operators instead of autograd Functions.
_level = threading.local()
_registering = threading.RLock()


def register(room: str) -> None:
    """Register a room with torch: its operators, and public functions as single nodes of compiled graphs.

    The functions of all rooms that have been imported are registered, because traced code of this room may call them.
    A lock is held: if two threads pass their first tensors at the same time, the second waits for the first.
    """
    with _registering:
        for operation in OPERATIONS:
            if operation.room == room and operation._torch is None:
                operation._torch = TorchOperation(operation)
        compile_whole(room, *(operation.room for operation in OPERATIONS))


class TorchOperation:
    """The operator, autograd Function and fast path derived from one operation."""

    def __init__(self, operation: Any) -> None:
        self.operation = operation
        self.many = len(operation.fields) > 1
        self.slots = SchemaSlots(operation)
        self.flatten, self.unflatten, self.stage = self.slots.flatten, self.slots.unflatten, self.slots.stage
        self.constant = [field in operation.constant for field in operation.fields]
        self.constant = self.constant if any(self.constant) else []
        self.launch: dict[str, Any] = {}
        self.serve_eager = self.run
        if "cpu" in operation.kernels:
            kernel = operation.kernel("cpu")
            self.launch["cpu"] = operation.launcher(kernel, CPU)
            # The common call has its own function, because choosing the path in `run` would take 0.6 us of its 8 us.
            guard = "if _out is not None or not _at_once(_i): return _run(_i, _first, _out)"
            self.serve_eager = operation.launcher(kernel, CPU, guard, _run=self.run, _at_once=_native.at_once)
        self._wanted = cache(lambda needed: frozenset(itertools.compress(self.slots.varying, needed)))
        self._allocate = operation.launcher(lambda: None, DEVICE)
        self.rule: Any = None
        self.sharded = False
        self.defined_vjp = partial(defined_vjp, self)
        self.transposed = partial(transposed, self)
        self.vjp: Any = self._completed if operation.vjp else self.defined_vjp
        self._jvp_rule: Any = operation.jvp or self.transposed
        self.rule_of_definition: Any = None
        if operation.always_by_rule:
            members: dict[str, Any] = {"forward": self._forward_definition, "setup_context": self._set_up}
            members |= {"backward": self._backward, "jvp": self._jvp}
            self.rule_of_definition = _function(f"{operation.name}_defined", members, generate_vmap_rule=True)
            self._apply_definition = apply_here(self.rule_of_definition)
        if operation.kernels:
            self._define()

    # --- calls --------------------------------------------------------------------------------------------------------

    def run(self, i: Any, first: bool = False, out: Tensor | None = None) -> Any:
        """Return the results, or only the first one, by the path that `stage` selects."""
        if out is not None:
            return self._into(i, out)
        array = self.operation.array(i)
        if array.is_cuda:
            know_cuda()
        stage = self.stage(i)
        if not self._served(i):
            return self.run_definition(i, first)
        if stage is AT_ONCE:
            return self.launcher(array.device.type)(i, first)
        if stage is RECORDED:
            if first and self.operation.together and not saves_with_hooks():
                both = self.operation.together(i, self._wanted(self.slots.needed(i)))
                if both is not None:
                    return self._apply_together(i, both, *self.slots.of_varying(i))
            found = self._apply_recorded(i, *self.slots.of_varying(i))
            return found[0] if first and self.many else found
        flat = self.flatten(i)
        if not self.operation.differentiable:
            flat = tuple(x.detach() if isinstance(x, Tensor) else x for x in flat)
        found = self.apply(flat)
        return found[0] if first and self.many else found

    def run_definition(self, i: Any, first: bool = False, out: Tensor | None = None) -> Any:
        """Compute the results by the definition, with the operation's derivative rules if it has any."""
        if out is not None or self.rule_of_definition is None or getattr(_level, "inside", False):
            return self.operation.define(i, first, out)
        flat = self.flatten(i)
        found = (
            self.rule_of_definition.apply(*flat)
            if transformed()
            else self._apply_definition(*unwrap_dead_wrappers(flat))
        )
        return found[0] if first and self.many else found

    def _served(self, i: Any) -> bool:
        """True if there is a kernel. Raise if the requested implementation does not serve the device."""
        array, name = self.operation.array(i), dispatch.requested_name()
        device = "cuda" if name == "triton" else array.device.type
        if name is not None:
            dispatch.check_serves(name, kind_of(array))
        return bool(self.operation.has_kernel(device))

    def launcher(self, device: str) -> Any:
        """The function (arguments, first, out) -> results of a device's kernel, which is imported at the first call.

        Under `using("triton")`, tensors in CPU memory are served by Triton's interpreter.
        """
        device = "cuda" if dispatch.requested() == "triton" else device
        if not self.operation.has_kernel(device):
            return self.operation.define
        if device not in self.launch:
            self.launch[device] = self.operation.launcher(self.operation.kernel(device), DEVICE)
        return self.launch[device]

    def _into(self, i: Any, out: Tensor) -> Tensor:
        """Write the first result into `out`. The result has no derivative."""
        if not self._served(i):
            self.operation.define(i, True, out)
        elif self.stage(i) is AT_ONCE and ready(out):
            self.launcher(out.device.type)(i, True, out)
            torch.autograd.graph.increment_version(out)
        else:
            for name, tensor in (("out", out), *zip(self.slots.names, self.flatten(i), strict=True)):
                if isinstance(tensor, Tensor):
                    _refuse_derivative(name, tensor)
            self.overload_out(out, *self.flatten(i))
        return out

    def apply(self, flat: tuple[Any, ...]) -> Any:
        """Call the Function. While compiling, or if the operation has no derivative, call the operator."""
        if self.rule is None or getattr(_level, "inside", False) or torch.compiler.is_compiling():
            return self.overload(*flat)
        if transformed():
            return self.rule.apply(*flat)
        # The pullback of torch.func.vjp passes wrappers of a transform level that has already ended.
        return self._apply_here(*unwrap_dead_wrappers(flat))

    # --- the operator -------------------------------------------------------------------------------------------------

    def _define(self) -> None:
        operation, tags = self.operation, (torch.Tag.pt2_compliant_tag,)
        name = f"softargmax::{operation.name}"
        results = ", ".join("Tensor" for _ in operation.fields)
        LIBRARY.define(
            f"{operation.name}({self.slots.schema}) -> {f'({results})' if self.many else results}", tags=tags
        )
        LIBRARY.define(f"{operation.name}_out(Tensor(a!) out, {self.slots.schema}) -> ()", tags=tags)
        self.overload: Any = getattr(torch.ops.softargmax, operation.name).default
        self.overload_out: Any = getattr(torch.ops.softargmax, f"{operation.name}_out").default
        for device in dict.fromkeys((*operation.kernels, *["cpu"] * dispatch.INTERPRETED)):
            self._implement(device)
        torch.library.register_fake(name, lambda *flat: self._allocate(self.unflatten(*flat)), lib=LIBRARY)
        torch.library.register_fake(f"{name}_out", lambda *_flat: None, lib=LIBRARY)
        along_axes = AXES in [leaf.kind for leaf in operation.leaves]
        vmap = partial(by_batch if operation.batch else along_rows if along_axes else by_definition, self)
        torch.library.register_vmap(name, vmap, lib=LIBRARY)
        self.sharded = shard_rows(self)
        if not operation.differentiable:
            return
        members: dict[str, Any] = {"forward": self._forward, "setup_context": self._set_up, "vmap": vmap}
        members |= {"backward": self._backward, "jvp": self._jvp}
        self.rule = _function(operation.name, members)
        self._apply_here = apply_here(self.rule)
        recorded = {"forward": self._forward_recorded, "backward": self._backward_recorded}
        self._apply_recorded = apply_here(_function(f"{operation.name}_recorded", recorded))
        if operation.together:
            both = {"forward": self._forward_together, "backward": self._backward_together}
            self._apply_together = apply_here(_function(f"{operation.name}_together", both))
        LIBRARY.impl(operation.name, self._autograd, "Autograd", with_keyset=True)

    def serve(self, device: str) -> None:
        """Register the kernel of another device with torch's dispatcher."""
        if len(self.operation.kernels) == 1:
            self._define()
        else:
            self._implement(device)

    def _implement(self, device: str) -> None:
        """Register the kernel of a device with torch's dispatcher."""

        def kernel(*flat: Any) -> Any:
            return self.launcher(device)(self.unflatten(*flat))

        def kernel_out(out: Tensor, *flat: Any) -> None:
            self.launcher(device)(self.unflatten(*flat), True, out)
            torch.autograd.graph.increment_version(out)

        LIBRARY.impl(self.operation.name, kernel, _KEYS[device])
        LIBRARY.impl(f"{self.operation.name}_out", kernel_out, _KEYS[device])

    # --- the derivative -----------------------------------------------------------------------------------------------

    def _autograd(self, keys: Any, *flat: Any) -> Any:
        """The kernel of the Autograd key.

        Inside functorch's transforms, for example in a compiled `jacrev`, this kernel handles one transform level. The
        Function's forward must call the operator at the lower levels, so that these levels record derivatives, too. By
        default the forward would skip all lower levels.
        """
        if not transformed():
            return self._apply_here(*flat)
        before = getattr(_level, "inside", False), getattr(_level, "keys", None)
        _level.inside, _level.keys = True, after_autograd(keys)
        try:
            with enable_single_level_autograd_function():
                return self._apply_here(*flat)
        finally:
            _level.inside, _level.keys = before

    def _forward(self, *flat: Any) -> Any:
        keys = getattr(_level, "keys", None)
        if keys is not None:
            _level.keys = None
            with torch.enable_grad(), forward_mode():
                return self.overload.redispatch(keys, *flat)
        i = self.unflatten(*flat)
        if self.stage(i) is AT_ONCE and self._served(i):
            return self.launcher(self.operation.array(i).device.type)(i)
        with below_autograd():
            return self.overload(*flat)

    def _forward_definition(self, *flat: Any) -> Any:
        found = self.operation.define(self.unflatten(*flat))
        return tuple(found) if self.many else found  # torch's vmap accepts tuples, but no NamedTuple

    def decomposed(self, *flat: Any) -> Any:
        """Compute the operator's results by the definition. A result that only the kernel computes is empty."""
        found = self.operation.define(self.unflatten(*flat))
        if not self.many:
            return found
        return tuple(torch.empty(0, device=found[0].device) if x is None else x for x in found)

    def _set_up(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        self.slots.save(ctx, inputs, output)
        self._mark(ctx, output)
        ctx.requested = dispatch.requested()

    def _mark(self, ctx: Any, output: Any) -> None:
        if self.constant:
            ctx.mark_non_differentiable(*itertools.compress(output if self.many else (output,), self.constant))

    def _forward_recorded(self, ctx: Any, i: Any, *_varying: Any) -> Any:
        """Run the kernel for an eager call that autograd records. The record of the arguments is passed as one object.

        The general Function receives the 22 arguments of a loss one by one, which doubles the time of forward and
        backward.
        """
        found = self.launcher(self.operation.array(i).device.type)(i)
        self.slots.save_record(ctx, i, found)
        self._mark(ctx, found)
        ctx.requested = dispatch.requested()
        return found

    def _backward_recorded(self, ctx: Any, *g: Any) -> Any:
        return None, *self._run_vjp(ctx, g, ctx.needs_input_grad[1:])

    def _forward_together(self, ctx: Any, i: Any, both: Any, *_varying: Any) -> Any:
        """Compute the loss and its gradients, for an eager call of which only the loss is returned.

        No other code has references to these gradients. So the backward pass may scale them in place and return them,
        and needs no memory for a second gradient.
        """
        found = both.operation.torch.launcher(self.operation.array(i).device.type)(both.arguments)
        named = dict(zip(both.operation.fields, found, strict=True))
        ctx.forward_gradients = [named.get(both.gradients.get(name)) for name in self.slots.varying]
        self.slots.save_record(ctx, i, (found[0], *[None] * (len(self.operation.fields) - 1)))
        ctx.requested = dispatch.requested()
        return found[0]

    def _backward_together(self, ctx: Any, g: Tensor | None) -> Any:
        """Return the gradients that the forward computed, scaled in place, or run the rule if they cannot be used.

        A gradient of 0 stays 0 whatever g is, so a g that is not finite cannot be a factor. Torch rounds a gradient to
        the dtype of its argument.
        """
        gradients, ctx.forward_gradients = ctx.forward_gradients, None
        if g is None or gradients is None or torch.is_grad_enabled() or (g.is_cpu and not math.isfinite(g.item())):
            missing = [None] * (len(self.operation.fields) - 1)
            gradients = self._run_vjp(ctx, (g, *missing), ctx.needs_input_grad[2:])
        elif not g.is_cpu:
            arrays = self.slots.restore(ctx.saved_tensors, ctx.numbers, ctx.likes)[2]
            gradients = [x if x is None else _times(x, g, of.dtype) for x, of in zip(gradients, arrays, strict=True)]
        elif g.item() != 1.0:
            gradients = [x if x is None else x.mul_(g) for x in gradients]
        return None, None, *gradients

    def _backward(self, ctx: Any, *g: Any) -> Any:
        flat: list[Any] = [None] * len(self.slots.slots)
        needed = ctx.needs_input_grad
        for (_, slot), gradient in zip(
            self.slots.gradients, self._run_vjp(ctx, g, [needed[k] for k in self.slots.places]), strict=True
        ):
            flat[slot] = gradient
        return tuple(flat)

    def _run_vjp(self, ctx: Any, g: tuple[Any, ...], needed: Sequence[bool]) -> list[Any]:
        """The gradients of the differentiable arguments, or None for arguments that need no gradient.

        Torch runs backward passes on a device in threads of its own, outside of the `using` block of the forward pass.
        """
        if ctx.requested is None or dispatch.requested() is not None:
            return self._gradients(ctx, g, needed)
        with dispatch.using(ctx.requested):
            return self._gradients(ctx, g, needed)

    def _gradients(self, ctx: Any, g: tuple[Any, ...], needed: Sequence[bool]) -> list[Any]:
        if g[0] is None and all(one is None for one in g):
            return [None] * len(needed)
        # Unpack the saved tensors only once, because activation checkpointing does not allow a second time.
        i, r, arrays = self.slots.restore(ctx.saved_tensors, ctx.numbers, ctx.likes)
        found = self.vjp(i, r, r.__class__(*g), self._wanted(tuple(needed)))
        return [
            self.fitted(found[name], of.shape, of.dtype) if need and found[name] is not None else None
            for name, of, need in zip(self.slots.varying, arrays, needed, strict=True)
        ]

    def _jvp(self, ctx: Any, *tangents: Any) -> Any:
        if not transformed():
            return self._run_jvp(ctx, ctx.saved_tensors, tangents)
        # torch switches forward mode off for all transform levels while it runs `jvp`. Without this context
        # `jacfwd(jacfwd(f))` silently drops terms (torch 2.13, for every Function).
        with forward_mode():
            return self._run_jvp(ctx, [x if x is None else primal(x) for x in ctx.saved_tensors], tangents)

    def _run_jvp(self, ctx: Any, saved: Any, tangents: Any) -> Any:
        i, r, _ = self.slots.restore(saved, ctx.numbers, ctx.likes)
        inputs = {name: tangents[slot] for name, slot in self.slots.gradients if isinstance(tangents[slot], Tensor)}
        found = zip(self.operation.fields, self._jvp_rule(i, r, inputs), r, strict=True)
        outputs = [None if x is None or name in self.operation.constant else x.to(of.dtype) for name, x, of in found]
        return tuple(outputs) if self.many else outputs[0]

    def _completed(self, i: Any, r: Any, g: Any, wanted: Wanted) -> Gradients:
        """The gradients by the operation's vjp. Gradients that it does not return are computed from the definition."""
        found: Gradients = self.operation.vjp(i, r, g, wanted)
        if found.keys() == wanted:
            return found
        if not found.keys() <= set(self.slots.names):
            wrong = min(found.keys() - set(self.slots.names))
            raise TypeError(f"{self.operation.name}: expected a vjp that returns gradients of arguments, got {wrong}")
        missing = wanted - found.keys()
        return {**found, **self.defined_vjp(i, r, g, missing)} if missing else found

    @staticmethod
    def fitted(gradient: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Sum a gradient over the broadcast axes of its argument, and round it once."""
        if gradient.shape != shape:
            gradient = gradient.to(dtype if dtype.itemsize > 2 else torch.float32).sum_to_size(shape)
        return gradient if gradient.dtype is dtype else gradient.to(dtype)


def _function(name: str, members: dict[str, Any], **more: Any) -> Any:
    """An autograd Function with these static methods."""
    return type(name, (torch.autograd.Function,), {key: staticmethod(one) for key, one in members.items()} | more)


def _times(gradient: Tensor, g: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient times the number g on a device, in `dtype`, and in the gradient's own memory if it has this dtype.

    The value of g is not read, because that would wait for the device.
    """
    return torch.mul(gradient, g, out=gradient if gradient.dtype is dtype else torch.empty_like(gradient, dtype=dtype))


def _refuse_derivative(name: str, tensor: Tensor) -> None:
    if tensor.requires_grad or tangent_of(tensor) is not None:
        what = "requires grad" if tensor.requires_grad else "carries a forward-mode tangent"
        raise TypeError(f"out: {name} {what}, but results that are written into out have no derivative")
