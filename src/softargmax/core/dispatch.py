"""What kind of array this is, and what serves it.

A *kind* says whose memory an array is: "numpy", "torch" (CPU memory), "torch-device" (any other device), "array-api".
An *implementation* is "native", the kernels of the compiled core, or "reference", the definitions. Frameworks are
looked up in `sys.modules`, never imported: what the user has not imported cannot have come in.

Without a name the kernel serves where there is one. `using(name)` or the environment variable
SOFTARGMAX_IMPLEMENTATION ask for one by name, and then nothing else serves: if it cannot, that is an error.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVES = {
    "native": ("numpy", "torch"),
    "reference": ("numpy", "torch", "torch-device", "array-api"),
}
"""The kinds of arrays that each implementation serves."""

_asked: ContextVar[str | None] = ContextVar("softargmax implementation", default=None)
asked = _asked.get
"""The name that a `using` block asks for, if any."""
_from_environment = os.environ.get("SOFTARGMAX_IMPLEMENTATION") or None
_kinds: dict[type, str] = {np.ndarray: "numpy"}
_namespaces: dict[type, Any] = {}


@contextmanager
def using(name: str) -> Iterator[None]:
    """Ask for an implementation by name inside a `with` block; one that cannot serve raises.

    Parameters
    ----------
    name : {"native", "reference"}
        "native" is the compiled core for CPU memory, "reference" the definition in array-API Python.

    Notes
    -----
    Blocks nest, and each thread (or asynchronous task) has its own. The environment variable SOFTARGMAX_IMPLEMENTATION
    asks for the whole process.

    Examples
    --------
    >>> import softargmax
    >>> with softargmax.using("reference"):
    ...     softargmax.softmax([1.0, 2.0, 8.0]).round(3)
    array([0.001, 0.002, 0.997])
    """
    token = _asked.set(_known(name, "using(name)"))
    try:
        yield
    finally:
        _asked.reset(token)


def _known(name: str, source: str) -> str:
    if name not in SERVES:
        choices = ", ".join(repr(known) for known in SERVES)
        raise ValueError(f"{source}: there is no implementation {name!r}; it may be {choices}")
    return name


def check_serves(name: str, kind: str) -> None:
    """Check that an implementation that was asked for by name serves a kind of arrays."""
    if kind not in SERVES[name]:
        able = " or ".join(repr(known) for known, kinds in SERVES.items() if kind in kinds)
        raise RuntimeError(f"implementation {name!r} was asked for: it does not serve {kind} arrays, {able} does")


def asked_for() -> str | None:
    """The name that an implementation was asked for by, if any."""
    asked = _asked.get()
    if asked is None and _from_environment is not None:
        asked = _known(_from_environment, "SOFTARGMAX_IMPLEMENTATION")
    return asked


def is_native(z: Any) -> bool:
    """Whether kernels of the compiled core serve an array."""
    return kind_of(z) in ("numpy", "torch") and asked_for() != "reference"


def is_torch(z: Any) -> bool:
    """Whether z is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(z, torch.Tensor)


def kind_of(z: Any) -> str:
    """The kind of an array (`as_array` makes one of what is not)."""
    kind = _kinds.get(type(z))
    if kind is None:
        if isinstance(z, (np.ndarray, np.generic)):
            return "numpy"
        kind = _kinds[type(z)] = "torch, by device" if is_torch(z) else "array-api"
    if kind == "torch, by device":
        return "torch" if z.is_cpu else "torch-device"
    return kind


def as_array(z: Any, name: str = "z") -> Any:
    """The array itself if it is one; subclasses of ndarray, numbers and sequences as plain NumPy arrays."""
    if type(z) in _kinds or is_torch(z):
        return z
    if isinstance(z, np.ma.MaskedArray):
        raise TypeError(f"{name}: a masked array; give its data, and where=~mask for the entries that count")
    if hasattr(z, "__array_namespace__") and not isinstance(z, (np.ndarray, np.generic)):
        return z
    refuse_lazy(z, name)
    try:
        return np.asarray(z)
    except (ValueError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: {z!r:.60} cannot be made an array: {error}") from None


def as_number(row: Any) -> Any:
    """One row's number: of a 0-d NumPy array what is in it, as NumPy's reductions give it; else the array itself."""
    return row[()] if type(row) is np.ndarray and row.ndim == 0 else row


def refuse_lazy(z: Any, name: str) -> None:
    """Refuse what stands for a computation, a Dask array say: made an array, it would be computed unasked."""
    graph = getattr(z, "__dask_graph__", None)
    if callable(graph) and graph() is not None:
        raise TypeError(
            f"{name}: {type(z).__name__}, not computed yet; give its blocks one by one, or {name}.compute()"
        )


def readable(array: Any) -> bool:
    """Whether the values lie in CPU memory and may be looked at now, without tracing or waiting."""
    kind = kind_of(array)
    if kind != "torch":
        return kind == "numpy"
    torch = sys.modules["torch"]
    if torch.compiler.is_compiling():
        return False
    core = torch._C  # noqa: SLF001 torch has no public question for the two below; were one to disappear, nothing is read
    transformed = getattr(core, "_are_functorch_transforms_active", lambda: True)
    faking = getattr(core, "_len_torch_dispatch_stack", lambda: 1)
    # Gradients of a batch (is_grads_batched) come by an older kind of vmap, of which only the tensor's keys tell.
    keys = getattr(core, "_dispatch_keys", lambda _: "Batched")
    return not transformed() and not faking() and "Batched" not in str(keys(array))


def recorded(array: Any) -> bool:
    """Whether torch may be asked for derivatives of what is computed with this array now."""
    return is_torch(array) and sys.modules["torch"].is_grad_enabled()


def followed(array: Any) -> bool:
    """Whether a derivative, in either mode, may be asked for of what is computed with this array now."""
    return is_torch(array) and (sys.modules["torch"].is_grad_enabled() or _in_a_level())


def differentiated(*arrays: Any) -> bool:
    """Whether a derivative along one of these arrays, in either mode, may be asked for now; None and numbers are none.

    Which of them a transform, or forward mode, is at work on is not asked.
    """
    tensors = [x for x in arrays if is_torch(x)]
    if not tensors:
        return False
    return _in_a_level() or (sys.modules["torch"].is_grad_enabled() and any(x.requires_grad for x in tensors))


def _in_a_level() -> bool:
    """Whether a transform of torch, or its forward mode, is at work."""
    torch = sys.modules["torch"]
    core, forward = torch._C, torch.autograd.forward_ad  # noqa: SLF001 as in `readable`
    transformed = getattr(core, "_are_functorch_transforms_active", lambda: True)
    return bool(transformed()) or getattr(forward, "_current_level", 0) >= 0


def device_of(z: Any) -> Any:
    """The device of an array, or None where only its library knows (a traced JAX array)."""
    return getattr(z, "device", None)


def namespace(z: Any) -> Any:
    """The array-API namespace of an array."""
    xp = _namespaces.get(type(z))
    if xp is None:
        from array_api_compat import array_namespace

        xp = _namespaces[type(z)] = array_namespace(z)
    return xp


def frozen(array: Any) -> Any:
    """The array as a constant: no derivative is taken along it."""
    if is_torch(array):
        return array.detach()
    jax = sys.modules.get("jax")
    return jax.lax.stop_gradient(array) if jax is not None and isinstance(array, jax.Array) else array
