"""What torch is doing at this moment: questions for which it has no public names, all in this file."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function, unwrap_dead_wrappers
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

from softargmax.core import _native

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

__all__ = [
    "AS_IT_IS",
    "READY",
    "READY_NAMES",
    "STILL",
    "after_autograd",
    "apply_here",
    "below_autograd",
    "enable_single_level_autograd_function",
    "forward_mode",
    "primal",
    "tangent_of",
    "transformed",
    "unwrap_dead_wrappers",
    "without_autocast",
    "wrapped",
]

# They answer in 0.03 us to 0.3 us.
transformed: Callable[[], bool] = torch._C._are_functorch_transforms_active
dispatch_keys: Callable[[Tensor], Any] = torch._C._dispatch_keys
wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
below_autograd: Callable[[], Any] = torch._C._AutoDispatchBelowAutograd
# The third one: by torch.jit.trace, which sees operators only.
_native.know_torch(transformed, torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state, forward_ad)
_unpack_dual: Callable[[Tensor], Any] = forward_ad.unpack_dual  # public, but untyped


def _plain() -> frozenset[int]:
    """The dispatch keys of CPU memory as it is.

    Not those of a lazy negation, of a batch, of a subclass, of a sparse tensor, of another device.
    """
    with _disable_current_modes():  # this file may be imported in the midst of a trace
        ordinary = torch.empty(0, device="cpu")
        with torch.inference_mode():
            inference = torch.empty(0, device="cpu")
    return frozenset((dispatch_keys(ordinary).raw_repr(), dispatch_keys(inference).raw_repr()))


PLAIN = _plain()

# Three questions as code, for the functions that are made of operation records: a call of a function is 0.1 us.
STILL = "_still()"
"""Whether nobody but the caller sees what is computed: no transform, no mode, no trace, no forward mode."""
_OF_PLAIN_KEYS = "_keys({0}).raw_repr() in _PLAIN"  # 0.4 us; the core answers for most tensors in 0.2 us
AS_IT_IS = f"(_in_memory({{0}}) or {_OF_PLAIN_KEYS})"
"""Whether a kernel may read this tensor as it is."""
READY = f"(_ready({{0}}) or (not ({{0}}.requires_grad and _grad()) and {_OF_PLAIN_KEYS}))"
"""The same, with no derivative to record."""
_NAMED = hasattr(Tensor, "names")  # they have a key, too
READY_NAMES = {
    "_still": _native.still,
    "_in_memory": (lambda _: False) if _NAMED else _native.in_memory,
    "_ready": (lambda _: False) if _NAMED else _native.ready,
    "_keys": dispatch_keys,
    "_PLAIN": PLAIN,
    "_grad": torch.is_grad_enabled,
}


def without_autocast(like: Tensor) -> AbstractContextManager[Any]:
    """Products are computed in the dtype they have here, whatever autocast says."""
    kind = like.device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if on else nullcontext()


def tangent_of(tensor: Tensor) -> Any:
    """The tangent along which a derivative is being taken in forward mode, or None."""
    return _unpack_dual(tensor).tangent if forward_ad._current_level >= 0 else None


def forward_mode() -> Any:
    """A context in which forward mode is on; torch switches it off around rules."""
    return forward_ad._set_fwd_grad_enabled(True)


def primal(tensor: Tensor) -> Tensor:
    """A tensor without its tangent of the level that is being served.

    Not forward_ad.unpack_dual: it goes by a count of levels that compiled graphs do not keep.
    """
    found: Tensor = torch._VF._unpack_dual(tensor, level=0)[0]
    return found


def after_autograd(keys: Any) -> Any:
    """The dispatch keys that come after those of autograd."""
    return keys & torch._C._after_autograd_keyset


def apply_here(rule: type[torch.autograd.Function]) -> Callable[..., Any]:
    """The rule's `apply` where no transform is active.

    Function.apply reads the signature of `forward` at every call, for defaults that rules do not have: 20 us.
    """
    found: Callable[..., Any] = super(torch.autograd.Function, rule).apply  # type: ignore[misc]
    return found
