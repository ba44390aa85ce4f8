"""The digest of a result: a hash of its type, dtype, shape and bytes, or the name of the error that a call raises."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

DIGITS = 16
JOINED = {"slopes"}
"""Fields that were added to results after the digests were recorded. They are skipped if they are None."""


def _host(x: Any) -> tuple[str, np.ndarray[Any, Any]]:
    """Return type, dtype and shape as text, and the numbers.

    All NaN are replaced by the same NaN, because the library does not specify the bits of a NaN.
    """
    if hasattr(x, "detach"):
        kind, x = f"torch {x.dtype} {tuple(x.shape)}", x.detach().cpu().resolve_conj().resolve_neg()
        if str(x.dtype) == "torch.bfloat16":
            bits = x.contiguous().view(_int16()).numpy()
            return kind, np.where(np.isnan(x.float().numpy()), np.int16(0x7FC0), bits)
        values = x.numpy()
    else:
        kind, values = f"{type(x).__name__} {x.dtype} {x.shape}", np.asarray(x)
    if values.dtype.kind in "fc":
        values = np.where(np.isnan(values), np.array(np.nan, values.dtype), values)
    return kind, np.ascontiguousarray(values)


def _int16() -> Any:
    import torch

    return torch.int16


def _put(x: Any, into: Any) -> None:
    if getattr(x, "is_sparse", False):
        x = x.coalesce()
        _put(("sparse", x.shape, x.indices(), x.values()), into)
    elif hasattr(x, "dtype") and hasattr(x, "shape"):
        kind, values = _host(x)
        into.update(f"[{kind}]".encode() + values.tobytes())
    elif isinstance(x, (tuple, list)):
        into.update(f"({type(x).__name__}".encode())
        names = getattr(x, "_fields", None) or (None,) * len(x)
        for name, part in zip(names, x, strict=True):
            if part is not None or name not in JOINED:
                _put(part, into)
        into.update(b")")
    elif isinstance(x, Mapping):
        _put([part for key in sorted(x) for part in (key, x[key])], into)
    else:
        into.update(f"<{type(x).__name__} {x!r}>".encode())


def digest(run: Callable[[], Any]) -> str:
    """Return the digest of the result of a call, or the name of the error that it raises."""
    try:
        found = run()
    except Exception as error:  # noqa: BLE001 every error is a valid result
        return type(error).__name__
    state = hashlib.blake2b(digest_size=DIGITS // 2)
    _put(found, state)
    return state.hexdigest()
