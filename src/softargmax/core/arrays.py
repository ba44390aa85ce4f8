"""Arrays of every library: their kind, namespace, dtype and axes, and conversion of arguments to one kind.

A *kind* is one of "numpy", "torch" (a tensor in CPU memory), "torch-cuda", "torch-device" (a tensor on any other
device), "jax" and "array-api" (an array of any other library).

Frameworks are looked up in `sys.modules` and never imported. If a library was not imported, no argument can be an
array of that library.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np
from numpy.exceptions import AxisError

HALVES = frozenset(("float16", "bfloat16"))
FLOATS = HALVES | {"float32", "float64"}
COMPLEX = frozenset(("complex64", "complex128"))
NUMPY = np.ndarray, np.generic
INTEGERS = frozenset(("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))))

_kinds: dict[type, str] = {np.ndarray: "numpy"}
_namespaces: dict[type, Any] = {}


def is_torch(z: Any) -> bool:
    """True if z is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(z, torch.Tensor)


def kind_of(z: Any) -> str:
    """The kind of an array. Use `as_array` first for objects that are not arrays."""
    kind = _kinds.get(type(z))
    if kind is None:
        if isinstance(z, NUMPY):
            return "numpy"
        other = "array-api" if jax_of(z) is None else "jax"
        _check_is_whole(z)
        kind = _kinds[type(z)] = "torch, by device" if is_torch(z) else other
    return kind_of_tensor(z) if kind == "torch, by device" else kind


def kind_of_tensor(z: Any) -> str:
    """The kind of a torch tensor."""
    return "torch" if z.is_cpu else "torch-cuda" if z.is_cuda else "torch-device"


def device_of(z: Any) -> Any:
    """The device of an array, or None for a JAX array that is traced or on several devices. Then JAX chooses."""
    device = getattr(z, "device", None)
    return None if hasattr(device, "device_set") else device


def namespace(z: Any) -> Any:
    """The array-API namespace of an array."""
    xp = _namespaces.get(type(z))
    if xp is None:
        _check_is_array(z)
        from array_api_compat import array_namespace

        xp = _namespaces[type(z)] = array_namespace(z)
    return xp


def mapped(x: Any, dim: int | None, size: int, to: int = 0) -> Any:
    """Move the mapped axis `dim` of vmap to the place `to`. If there is none, add one of this size."""
    xp = namespace(x)
    if dim is not None:  # torch has no vmap rule for `moveaxis`
        axes = [axis for axis in range(x.ndim) if axis != dim % x.ndim]
        axes.insert(to % x.ndim, dim % x.ndim)
        return xp.permute_dims(x, tuple(axes))
    shape = list(x.shape)
    shape.insert(to % (x.ndim + 1), size)
    return xp.broadcast_to(xp.expand_dims(x, axis=to), tuple(shape))


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of any library: "float32", "bfloat16", "int64", ..."""
    return str(getattr(dtype, "name", None) or str(dtype).rsplit(".", 1)[-1])


def row_dtype(dtype: Any) -> Any:
    """The dtype of results per row (lse, entropy, ..): the dtype of the scores, or float32 for half precision."""
    if getattr(dtype, "itemsize", None) != 2:
        return dtype
    return np.dtype(np.float32) if isinstance(dtype, np.dtype) else sys.modules["torch"].float32


def working_dtype(z: Any, xp: Any) -> Any:
    """The widest real dtype that z's library and device support: float64, or float32 if they have no float64."""
    known = xp.__array_namespace_info__().dtypes(device=device_of(z), kind="real floating")
    return known.get("float64", known["float32"])


def integer_dtype(z: Any) -> Any:
    """The default integer dtype of z's library and device: int64, or int32 in JAX without 64-bit mode."""
    return namespace(z).__array_namespace_info__().default_dtypes(device=device_of(z))["integral"]


def strided(tensor: Any) -> bool:
    """True if a tensor is dense in memory, that is, neither sparse nor nested."""
    return tensor.layout is sys.modules["torch"].strided and not tensor.is_nested


def as_number(row: Any) -> Any:
    """Return a 0-d NumPy array as a scalar, as NumPy's reductions do. Return any other array unchanged."""
    return row[()] if type(row) is np.ndarray and row.ndim == 0 else row


def frozen(array: Any) -> Any:
    """The array as a constant, with no derivative."""
    if is_torch(array):
        return array.detach()
    jax = jax_of(array)
    return array if jax is None else jax.lax.stop_gradient(array)


def jax_of(array: Any) -> Any:
    """The JAX module for a JAX array, and None for other arrays."""
    jax = sys.modules.get("jax")
    return jax if jax is not None and isinstance(array, jax.Array) else None


def is_traced(array: Any) -> bool:
    """True for an array of a JAX transformation, for example jit or grad."""
    jax = jax_of(array)
    return jax is not None and isinstance(array, jax.core.Tracer)


def shown(value: Any) -> str:
    """A value in an error message, for an argument that is no array."""
    if any(map(is_traced, value if isinstance(value, (list, tuple)) else (value,))):
        return "a value that JAX traces; pass a Python value (jax.jit: static_argnames)"
    return repr(value)


# --- arguments as arrays ----------------------------------------------------------------------------------------------


def as_array(z: Any, name: str = "z") -> Any:
    """Return an array unchanged. Convert numbers, sequences and subclasses of ndarray to a plain NumPy array."""
    if type(z) in _kinds:
        return z
    _check_is_whole(z)
    if is_torch(z):
        return z
    _check_is_array(z)
    if isinstance(z, np.ma.MaskedArray):
        raise TypeError(f"{name}: expected a plain array, got a masked array; pass its data, and where=~mask")
    if hasattr(z, "__array_namespace__") and not isinstance(z, NUMPY):
        return z
    refuse_lazy(z, name)
    try:
        return np.asarray(z)
    except (ValueError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: expected an array, got {z!r:.60}, which cannot be converted: {error}") from None


class StandInError(TypeError):
    """An error for an argument that stands for a tensor, such as a `torch.fx` proxy.

    `public` (signature.py) catches this error and lets torch handle the call.
    """

    def __init__(self, argument: Any) -> None:
        super().__init__(f"expected an array, got {type(argument).__name__}, an object in place of a tensor")
        self.argument = argument


class SpreadArrayError(TypeError):
    """An error for an array whose parts are not in one memory.

    `public` (signature.py) catches this error and lets the file `served_by` of the room `parallel` handle the call.
    """

    served_by = ""


class SpreadTensorError(SpreadArrayError):
    """An error for a DTensor, whose parts are in several processes."""

    served_by = "torch_tensors"


class LazyArrayError(SpreadArrayError):
    """An error for a Dask array, whose parts are computed later, perhaps on other machines."""

    served_by = "dask_arrays"


def is_dtensor(x: Any) -> bool:
    """True for a DTensor of torch."""
    dtensors = sys.modules.get("torch.distributed.tensor")
    return dtensors is not None and isinstance(x, dtensors.DTensor)


def is_dask(x: Any) -> bool:
    """True for a Dask array."""
    dask = sys.modules.get("dask.array")
    return dask is not None and isinstance(x, dask.Array)


def _check_is_whole(x: Any) -> None:
    """Raise SpreadArrayError for a DTensor and for a Dask array."""
    if is_dtensor(x):
        raise SpreadTensorError("expected a tensor that is whole in this process, got a DTensor; pass x.to_local()")
    if is_dask(x):
        raise LazyArrayError("expected an array in memory, got a Dask array; pass x.compute()")


def _check_is_array(z: Any) -> None:
    """Raise StandInError for an object that is not a tensor but overrides torch's functions."""
    if hasattr(type(z), "__torch_function__") and not is_torch(z):
        raise StandInError(z)


def is_lazy(x: Any) -> bool:
    """True for a collection of Dask, and for an object that holds one. Converting it would start its computation."""
    graph = getattr(x, "__dask_graph__", None)
    return callable(graph) and graph() is not None


def refuse_lazy(z: Any, name: str) -> None:
    """Refuse a lazy array, such as a Dask array."""
    if is_lazy(z):
        raise TypeError(
            f"{name}: expected an array in memory, got a lazy {type(z).__name__}; pass its blocks one by one, "
            f"or {name}.compute()"
        )


def array_of(values: Any, name: str) -> Any:
    """Return `as_array(values)`, with a clear error for a list of tensors that NumPy cannot convert."""
    try:
        return as_array(values, name)
    except RuntimeError as error:
        if not isinstance(values, (list, tuple)):
            raise
        raise _unstacked(values, name) from error


def _unstacked(values: Any, name: str) -> TypeError:
    return TypeError(f"{name}: expected one tensor, got a {type(values).__name__} of tensors; stack them (torch.stack)")


def dense(z: Any, name: str) -> Any:
    """Return the array unchanged. Raise TypeError for sparse and nested tensors."""
    if is_torch(z) and not strided(z):
        what = "a nested tensor" if z.is_nested else f"a tensor of layout {z.layout}"
        raise TypeError(f"{name}: expected a dense tensor, of layout torch.strided, got {what}")
    return z


def like(values: Any, z: Any, name: str) -> Any:
    """Return an argument as an array of z's kind on z's device. Numbers, sequences and NumPy arrays are converted."""
    if kind_of(z) == "numpy":
        values = array_of(values, name)
    elif isinstance(values, NUMPY) or not (is_torch(values) or hasattr(values, "__array_namespace__")):
        values = _converted(values, z, name)
    if namespace(values) is not namespace(z):
        own = dict.fromkeys((type(z).__name__, "ndarray"))
        raise TypeError(f"{name}: expected {', '.join(own)}, a number or a list, got {type(values).__name__}")
    if is_torch(z) and values.device != z.device:
        if values.ndim or not values.is_cpu:
            raise ValueError(f"{name}: expected an array on {z.device}, got one on {values.device}")
        values = values.to(z.device)  # torch, too, combines a 0-d CPU tensor with tensors on a device
    return dense(values, name)


def _converted(values: Any, z: Any, name: str) -> Any:
    """Convert a number, a sequence or a NumPy array to an array of z's library."""
    refuse_lazy(values, name)
    if _any_requires_grad(values):
        raise _unstacked(values, name)  # torch would convert tensors in a list to numbers and lose their gradients
    xp, typed = namespace(z), isinstance(values, NUMPY)
    if typed:  # torch accepts no negative strides and no foreign byte order, and warns about read-only arrays
        values = np.require(as_array(values, name), values.dtype.newbyteorder("="), ["C", "W"])
    try:
        found = xp.asarray(values, device=device_of(z))
        if typed or dtype_name(found.dtype) not in FLOATS:
            return found
        # Python floats become float64 if the library has it, even if the library's default is float32.
        return xp.asarray(values, dtype=working_dtype(z, xp), device=device_of(z))
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        wrong = isinstance(error, TypeError) or not isinstance(values, (Number, Sequence))
        kind = TypeError if wrong else ValueError
        got = f"{type(values).__name__}, which cannot be converted: {error}"
        raise kind(f"{name}: expected an array, got {got}") from None


def _any_requires_grad(values: Any) -> bool:
    if isinstance(values, (list, tuple)):
        return any(map(_any_requires_grad, values))
    return is_torch(values) and values.requires_grad


# --- axes -------------------------------------------------------------------------------------------------------------


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes as a sorted tuple of non-negative integers. For a 0-d array (a single score) it is empty."""
    if axis is None:
        return tuple(range(ndim))
    try:
        indices = [operator.index(one) for one in axis] if isinstance(axis, (tuple, list)) else [operator.index(axis)]
    except TypeError:
        raise TypeError(f"axis: expected an integer, a tuple of integers or None, got {shown(axis)}") from None
    limit = max(ndim, 1)
    for one in indices:
        if not -limit <= one < limit:
            allowed = f"from {-limit} to {limit - 1}"
            raise AxisError(f"axis: expected {allowed}, got {axis}, which is out of range for {ndim} dimensions")
    axes = sorted(one % limit for one in indices)
    if len(set(axes)) < len(axes):
        raise ValueError(f"axis: expected each axis once, got {axis}")
    return tuple(axes) if ndim else ()


def one_axis(axis: Any, ndim: int) -> int:
    """Return a single axis as a non-negative integer. Raise TypeError for a tuple or None."""
    if axis is None or isinstance(axis, (tuple, list)):
        raise TypeError(f"axis: expected one integer, got {shown(axis)}")
    return (*axes_of(axis, ndim), 0)[0]


def row_shape(shape: Any, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an array with one number per row: the scores' shape without the axes of a row."""
    if axes == (len(shape) - 1,):
        return tuple(shape[:-1])
    return tuple([n for axis, n in enumerate(shape) if axis not in axes])


def kept_shape(shape: Any, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an array with one number per row, with the reduced axes kept as 1."""
    return tuple([1 if axis in axes else n for axis, n in enumerate(shape)])


def last(x: Any, axis: int) -> Any:
    """x with the given axis moved to the end. `moveaxis` is not used, because torch cannot vmap it."""
    if axis == x.ndim - 1:
        return x
    return namespace(x).permute_dims(x, (*(k for k in range(x.ndim) if k != axis), axis))


def back(x: Any, axis: int) -> Any:
    """x with its last axis moved to position `axis`. This is the inverse of `last`."""
    if axis == x.ndim - 1:
        return x
    places = list(range(x.ndim - 1))
    places.insert(axis, x.ndim - 1)
    return namespace(x).permute_dims(x, tuple(places))


def squeezed(row: Any, axes: tuple[int, ...], keepdims: bool = False) -> Any:
    """Remove the reduced axes from an array with one number per row, unless `keepdims`.

    A NumPy result that has no axes left becomes a scalar.
    """
    if keepdims:
        return as_number(row)
    if type(row) is np.ndarray:
        return row.squeeze(axes)[()]
    return namespace(row).squeeze(row, axis=axes) if axes else row


# --- can values be read, and are derivatives recorded? ----------------------------------------------------------------


def is_strict(z: Any) -> bool:
    """True if z is an array of array-api-strict, which stores its values in a NumPy array."""
    return type(z).__module__.startswith("array_api_strict")


def readable(array: Any) -> bool:
    """True if the values are in CPU memory and may be read now: no trace, transform or mode of torch is active."""
    kind = kind_of(array)
    if kind != "torch":
        return kind == "numpy"
    torch = sys.modules["torch"]
    if torch.compiler.is_compiling():
        return False
    # The three functions below are private. If this version of torch lacks one of them, no tensor counts as readable.
    core = torch._C  # noqa: SLF001
    transformed = getattr(core, "_are_functorch_transforms_active", lambda: True)
    faking = getattr(core, "_len_torch_dispatch_stack", lambda: 1)
    # Batched gradients (is_grads_batched) use an older vmap, which can only be detected by the tensor's dispatch keys.
    keys = getattr(core, "_dispatch_keys", lambda _: "Batched")
    return not transformed() and not faking() and "Batched" not in str(keys(array))


def recorded(array: Any) -> bool:
    """True for a tensor while torch's gradient mode is on, even if the tensor itself does not require grad."""
    return is_torch(array) and sys.modules["torch"].is_grad_enabled()


def trained(array: Any) -> bool:
    """True if a later backward pass needs the gradient of this array."""
    return recorded(array) and array.requires_grad


def followed(*arrays: Any) -> bool:
    """True if results computed from these arrays now may be differentiated, in reverse or forward mode."""
    if any(map(is_traced, arrays)):
        return True
    return any(map(is_torch, arrays)) and (sys.modules["torch"].is_grad_enabled() or _in_transform())


def differentiated(*arrays: Any) -> bool:
    """True if results computed from any of these arrays may be differentiated. None and numbers are ignored.

    If a transform or forward mode is active, the result is True for any tensor, even one that the transform does not
    act on. It is True for any array of a JAX transformation.
    """
    tensors = [x for x in arrays if is_torch(x)]
    if not tensors:
        return any(map(is_traced, arrays))
    return _in_transform() or (sys.modules["torch"].is_grad_enabled() and any(x.requires_grad for x in tensors))


def _in_transform() -> bool:
    """True if a functorch transform or torch's forward mode is active."""
    torch = sys.modules["torch"]
    core, forward = torch._C, torch.autograd.forward_ad  # noqa: SLF001 these queries have no public API
    transformed = getattr(core, "_are_functorch_transforms_active", lambda: True)
    return bool(transformed()) or getattr(forward, "_current_level", 0) >= 0
