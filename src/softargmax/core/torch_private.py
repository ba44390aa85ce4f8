"""Queries of torch's current state (transforms, modes, traces) through torch's private names."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside_transforms
from torch._functorch.utils import enable_single_level_autograd_function, unwrap_dead_wrappers
from torch._library.effects import EffectType
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

from softargmax.core import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

__all__ = [
    "EAGER",
    "PLAIN_TENSOR",
    "READY",
    "READY_NAMES",
    "after_autograd",
    "apply_here",
    "below_autograd",
    "enable_single_level_autograd_function",
    "forward_mode",
    "in_order",
    "is_batched",
    "know_cuda",
    "outside_transforms",
    "primal",
    "recording",
    "register_sharding",
    "saves_with_hooks",
    "tangent_of",
    "transformed",
    "unwrap_dead_wrappers",
    "without_autocast",
    "wrapped",
]

# A call of one of these functions takes 0.03 us to 0.3 us.
transformed: Callable[[], bool] = torch._C._are_functorch_transforms_active
dispatch_keys: Callable[[Tensor], Any] = torch._C._dispatch_keys
wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
below_autograd: Callable[[], Any] = torch._C._AutoDispatchBelowAutograd
# _get_tracing_state detects torch.jit.trace, which records calls of operators but not of kernels.
_native.know_torch(transformed, torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state, forward_ad)
_unpack_dual: Callable[[Tensor], Any] = forward_ad.unpack_dual  # public, but untyped


def _plain(device: str) -> set[int]:
    """The dispatch keys of plain tensors on a device.

    Lazily negated, batched and sparse tensors, subclasses, and tensors on other devices have additional keys.
    """
    with _disable_current_modes():  # this function may be called during a trace
        ordinary = torch.empty(0, device=device)
        with torch.inference_mode():
            inference = torch.empty(0, device=device)
    return {dispatch_keys(ordinary).raw_repr(), dispatch_keys(inference).raw_repr()}


PLAIN = _plain("cpu")
"""The dispatch keys of tensors whose memory a kernel may use directly."""


@cache
def know_cuda() -> None:
    """Add the keys of CUDA tensors to PLAIN. It is called for the first CUDA tensor, because it starts CUDA."""
    if torch.cuda.is_available():
        PLAIN.update(_plain("cuda"))


# Three conditions as source code. Generated functions contain them inline, because a function call takes 0.1 us.
EAGER = "_eager()"
"""True if no transform, mode, trace or forward mode is active."""
# This check of the dispatch keys takes 0.4 us. The compiled checks `_in_memory` and `_ready` come first, because they
# take 0.2 us and accept most plain tensors. `_wrapped` is needed besides the keys: a tensor that is left over from an
# ended torch.func transform has the same keys as a plain tensor.
_OF_PLAIN_KEYS = "(_keys({0}).raw_repr() in _PLAIN and not _wrapped({0}))"
PLAIN_TENSOR = f"(_in_memory({{0}}) or {_OF_PLAIN_KEYS})"
"""True if a kernel may read the tensor's memory."""
READY = f"(_ready({{0}}) or (not ({{0}}.requires_grad and _grad()) and {_OF_PLAIN_KEYS}))"
"""True if a kernel may read the tensor's memory and there is no derivative to record."""
_NAMED = hasattr(Tensor, "names")  # this torch has named tensors, which only `_keys` recognises
READY_NAMES = {
    "_eager": _native.still,
    "_in_memory": (lambda _: False) if _NAMED else _native.in_memory,
    "_ready": (lambda _: False) if _NAMED else _native.ready,
    "_keys": dispatch_keys,
    "_PLAIN": PLAIN,
    "_wrapped": wrapped,
    "_grad": torch.is_grad_enabled,
}


def without_autocast(like: Tensor) -> AbstractContextManager[Any]:
    """A context in which products are computed in their operands' dtype, even under autocast."""
    kind = like.device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if on else nullcontext()


def tangent_of(tensor: Tensor) -> Any:
    """The tensor's tangent in forward mode, or None."""
    return _unpack_dual(tensor).tangent if forward_ad._current_level >= 0 else None


def is_batched(tensor: Tensor) -> bool:
    """True for a batch that an older vmap maps over, as in is_grads_batched. Only the dispatch keys show it."""
    return "Batched" in str(dispatch_keys(tensor))


def forward_mode() -> Any:
    """A context with forward mode switched on. Torch switches it off while a derivative rule runs."""
    return forward_ad._set_fwd_grad_enabled(True)


def primal(tensor: Tensor) -> Tensor:
    """The tensor without its forward-mode tangent at level 0.

    forward_ad.unpack_dual cannot be used, because it needs a count of levels that compiled graphs do not update.
    """
    found: Tensor = torch._VF._unpack_dual(tensor, level=0)[0]
    return found


def after_autograd(keys: Any) -> Any:
    """The dispatch keys that follow the autograd keys."""
    return keys & torch._C._after_autograd_keyset


def apply_here(rule: type[torch.autograd.Function]) -> Callable[..., Any]:
    """The rule's `apply` for use outside transforms.

    Function.apply reads the signature of `forward` at every call, to fill in defaults. Rules have no defaults, so the
    returned function omits this step. A call takes 20 us less.
    """
    found: Callable[..., Any] = super(torch.autograd.Function, rule).apply  # type: ignore[misc]
    return found


def saves_with_hooks() -> bool:
    """True inside torch.utils.checkpoint, save_on_cpu and other contexts that store saved tensors in their own way."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def in_order(library: Any, operator: str) -> None:
    """Tell compilers that an operator has an effect: they keep all such operators, and their order."""
    library._register_effectful_op(operator, EffectType.ORDERED)


_RECORDING = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.ADInplaceOrView
)


@contextmanager
def recording() -> Iterator[None]:
    """Record derivatives inside the kernel of an operator, where torch may have switched them off."""
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(include, exclude - _RECORDING), torch.enable_grad():
        yield


def register_sharding(operator: Any, rule: Callable[[Sequence[Any]], list[tuple[list[Any], list[Any]]]]) -> None:
    """Register the sharding rule of an operator, as `register_sharding` of torch.distributed.tensor.experimental does.

    That module imports flex attention, and its cache does not distinguish calls with other axes.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import OpStrategy, RuntimeSchemaInfo
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    def strategy(schema: Any) -> Any:
        flat = [x.strategies[0].output_spec if isinstance(x, OpStrategy) else x for x in schema.args_schema]
        found = [[*results, *slots] for results, slots in rule(flat)]
        count = len(schema.op._schema.returns)
        return expand_to_full_mesh_op_strategy(schema.get_mesh_from_args(), schema, found, input_index=count)

    distinguished = RuntimeSchemaInfo(static_argnum=0, needs_pytree=True)
    DTensor._op_dispatcher.sharding_propagator.register_op_strategy(operator, strategy, distinguished)
