"""How an operation of any room becomes a torch operator with every derivative.

An operation is one `Operator`: a schema, a kernel for CPU memory, the shapes and dtypes of its results (`fake`), and
one `torch.autograd.Function`, its *rule*, that holds `setup_context`, `backward` and `jvp`. With that,

- the operator stands in `torch.ops.softargmax`, so that `torch.compile`, `torch.export` and `opcheck` see it;
- its rule is the kernel of its Autograd key, so that compiled graphs differentiate it;
- eager code calls the rule itself: functorch's transforms (`vmap`, `jacrev`, `jvp`, ...) want to meet a Function;
- eager code that needs no derivative calls the kernel, without a Function (5 us) and without the dispatcher (3 us).

A rule's `backward` and `jvp` are made of operators that have rules of their own and of torch's functions, so that they
can be differentiated again, in either mode, as often as one likes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function, unwrap_dead_wrappers
from torch.autograd import forward_ad

_dispatched = threading.local()  # inside: below an operator that transforms were applied to, rules call operators too
LIBRARY: Any = torch.library.Library("softargmax", "DEF")  # type: ignore[no-untyped-call]

Kernel = Callable[..., Any]
Result = TypeVar("Result")

# torch has no public question for the next four; they answer in 0.03 us to 0.3 us.
_transformed: Callable[[], bool] = torch._C._are_functorch_transforms_active
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_recording: Callable[[], Any] = torch._C._get_tracing_state  # by torch.jit.trace, which sees operators only
_keys: Callable[[Tensor], Any] = torch._C._dispatch_keys
_compiling: Callable[[], bool] = torch.compiler.is_compiling
_unpack_dual: Callable[[Tensor], Any] = forward_ad.unpack_dual  # public, but untyped


def _plain() -> frozenset[int]:
    """The dispatch keys of memory that a kernel may read.

    Not those of a lazy negation, of a batch, of a subclass, of a sparse tensor, of another device.
    """
    ordinary = torch.empty(0, device="cpu")
    with torch.inference_mode():
        return frozenset((_keys(ordinary).raw_repr(), _keys(torch.empty(0, device="cpu")).raw_repr()))


_PLAIN = _plain()


def direct(tensor: Tensor, out: Tensor | None = None) -> bool:
    """Whether a kernel may be called on this tensor as it is: eager, in CPU memory, with no derivative to record.

    `out`, which has been checked to be one without a gradient, has to be memory of the same kind.
    """
    return not (
        _compiling()
        or _transformed()
        or _modes()
        or _recording() is not None
        or forward_ad._current_level >= 0
        or (tensor.requires_grad and torch.is_grad_enabled())
        or _keys(tensor).raw_repr() not in _PLAIN
        or (out is not None and _keys(out).raw_repr() not in _PLAIN)
    )


def carries_tangent(tensor: Tensor) -> bool:
    """Whether a derivative is being taken along this tensor, in forward mode."""
    return forward_ad._current_level >= 0 and _unpack_dual(tensor).tangent is not None


def may_be_differentiated(tensor: Tensor) -> bool:
    """Whether a derivative is being taken along this tensor, or a transform hides whether one is."""
    return tensor.requires_grad or _transformed() or carries_tangent(tensor)


def all_direct(arguments: tuple[Any, ...]) -> bool:
    """Whether a kernel may be called on every tensor among the arguments as it is."""
    return all(direct(argument) for argument in arguments if isinstance(argument, Tensor))


class Operator(Generic[Result]):
    """One operator of `torch.ops.softargmax`, called with positional arguments.

    Without a rule it has no derivative. `batch` makes its vmap (see `batch_rows`).
    """

    def __init__(
        self,
        schema: str,
        rule: type[torch.autograd.Function] | None,
        *,
        kernel: Callable[..., Result],
        fake: Kernel,
        batch: Kernel | None = None,
    ) -> None:
        self.name = LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        self.kernel = kernel
        self.overload: Any = getattr(torch.ops.softargmax, self.name).default
        self._apply: Callable[..., Result] = self.overload
        self._apply_here: Callable[..., Result] = self.overload
        LIBRARY.impl(self.name, kernel, "CPU")
        torch.library.register_fake(f"softargmax::{self.name}", fake, lib=LIBRARY)
        if batch is not None:
            vmap: Kernel = lambda info, dims, *args: batch(self, info.batch_size, dims, args)  # noqa: E731
            torch.library.register_vmap(f"softargmax::{self.name}", vmap, lib=LIBRARY)
            if rule is not None:
                rule.vmap = staticmethod(vmap)  # type: ignore[method-assign]
        if rule is not None:
            self._obey(rule)

    def _obey(self, rule: Any) -> None:
        rule.forward = staticmethod(self._forward)
        rule.jvp = staticmethod(_nested(rule.jvp))
        rule.backward = staticmethod(_unpacking(rule.backward))
        self._below = threading.local()
        self._apply = rule.apply
        self._apply_here = super(torch.autograd.Function, rule).apply  # type: ignore[misc]
        LIBRARY.impl(self.name, self._autograd, "Autograd", with_keyset=True)

    def __call__(self, *arguments: Any) -> Result:
        if _compiling() or getattr(_dispatched, "inside", False):
            traced: Result = self.overload(*arguments)
            return traced
        if all_direct(arguments):
            return self.kernel(*arguments)
        if _transformed():
            return self._apply(*arguments)
        # Function.apply reads the signature of `forward` at every call, for defaults that rules do not have: 20 us. The
        # rest of it is needed: a pullback of torch.func.vjp brings wrappers of a level that is gone.
        return self._apply_here(*unwrap_dead_wrappers(arguments))

    def _autograd(self, keys: Any, *arguments: Any) -> Any:
        """The kernel of the Autograd key.

        Inside functorch's transforms (a compiled `jacrev` comes here) it serves one level of them. Then the forward has
        to go on to the levels below it, with their derivatives, in place of skipping them all.
        """
        if not _transformed():
            return self._apply_here(*arguments)
        outside = getattr(_dispatched, "inside", False)
        _dispatched.inside, self._below.keys = True, keys & torch._C._after_autograd_keyset
        try:
            with enable_single_level_autograd_function():
                return self._apply_here(*arguments)
        finally:
            _dispatched.inside, self._below.keys = outside, None

    def _forward(self, *arguments: Any) -> Any:
        keys = getattr(self._below, "keys", None)
        if keys is not None:
            self._below.keys = None
            with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
                return self.overload.redispatch(keys, *arguments)
        if all_direct(arguments):
            return self.kernel(*arguments)
        with torch._C._AutoDispatchBelowAutograd():
            return self.overload(*arguments)


class _Saved:
    """A rule's context beside what was saved, which it says as often as it is asked."""

    def __init__(self, ctx: Any, saved_tensors: tuple[Any, ...]) -> None:
        self._ctx, self.saved_tensors = ctx, saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def _unpacking(backward: Kernel) -> Kernel:
    """A rule's backward that unpacks what was saved once: activation checkpointing refuses a second time."""
    return lambda ctx, *g: backward(_Saved(ctx, ctx.saved_tensors), *g)


def _nested(jvp: Kernel) -> Kernel:
    """A rule's jvp that is itself seen by the functorch levels around it.

    torch runs `jvp` with forward mode switched off, and does not switch it on again for the other levels: without this,
    `jacfwd(jacfwd(f))` drops terms and says nothing (torch 2.13, for every Function).
    """

    def nested(ctx: Any, *tangents: Any) -> Any:
        if not _transformed():
            return jvp(ctx, *tangents)
        with forward_ad._set_fwd_grad_enabled(True):
            # What was saved loses its tangent of the level that is being served. Not forward_ad.unpack_dual: it goes by
            # a count of levels that compiled graphs do not keep.
            saved = (x if x is None else torch._VF._unpack_dual(x, level=0)[0] for x in ctx.saved_tensors)
            return jvp(_Saved(ctx, tuple(saved)), *tangents)

    return nested


def write_into(operator: Operator[None], out: Tensor, arguments: tuple[Any, ...], names: Sequence[str]) -> Tensor:
    """Write an operator's result into `out`; nothing of this can be differentiated, the named arguments neither."""
    for name, tensor in zip(("out", *names), (out, *arguments), strict=False):
        if tensor is not None and (tensor.requires_grad or carries_tangent(tensor)):
            what = "requires grad" if tensor.requires_grad else "carries a forward-mode tangent"
            raise TypeError(
                f"out: {name} {what}; with out= neither may, as results written in place have no derivative"
            )
    operator(out, *arguments)
    return out


def batch_rows(
    function: Operator[Any], size: int, dims: Sequence[int | None], arguments: Sequence[Any]
) -> tuple[Any, Any]:
    """The vmap of an operator along rows: the batch becomes the first axis of every tensor, so `axes` move up by one.

    The tensors have to broadcast with the first among them, and the axes have to be the only sequence.
    """
    rank = arguments[0].ndim - (dims[0] is not None)
    moved: list[Any] = []
    for argument, dim in zip(arguments, dims, strict=True):
        if isinstance(argument, Tensor):
            front = argument.unsqueeze(0) if dim is None else argument.movedim(dim, 0)
            front = front[(slice(None),) + (None,) * (rank + 1 - front.ndim)]
            moved.append(front.expand(size, *front.shape[1:]))
        elif isinstance(argument, (list, tuple)):
            moved.append([axis + 1 for axis in argument])
        else:
            moved.append(argument)
    result = function(*moved)
    return result, (0,) * len(result) if isinstance(result, tuple) else 0
