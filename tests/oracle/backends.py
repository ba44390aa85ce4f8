"""The backends on which every operation is tested: pairs of an array library and an implementation."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import softargmax
from softargmax.core import dispatch


@dataclass(frozen=True)
class Backend:
    """A library and an implementation.

    `array` converts NumPy values to arrays of the library, and `back` converts results to NumPy arrays.
    """

    library: str
    implementation: str
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.implementation}-{self.library}"

    @property
    def differentiates(self) -> bool:
        return self.library in ("torch", "jax")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Return the floating dtypes to test.

        For JAX this is only float32, because JAX compiles for each dtype, and has float64 only in its 64-bit mode.
        """
        return {
            "numpy": ("float16", "float32", "float64"),
            "array_api_strict": ("float32", "float64"),
            "torch": ("float16", "bfloat16", "float32", "float64"),
            "jax": ("float32",),
        }[self.library]

    def dtype(self, name: str) -> Any:
        return np.dtype(name) if self.library == "numpy" else getattr(self._module(), name)

    def array(self, values: Any, dtype: str | None = None) -> Any:
        if self.library == "numpy":
            return np.array(values, dtype=dtype)
        xp = self._module()
        if dtype is None:
            values = np.asarray(values)
            dtype = "float32" if self.library == "jax" and values.dtype == np.float64 else values.dtype.name
        values = np.array(values, dtype if dtype != "bfloat16" else "float64")
        array = xp.asarray(values.astype("float32") if self.library == "jax" and values.dtype == np.float64 else values)
        array = array.to(self.device) if self.library == "torch" else array
        return array if str(array.dtype).endswith(dtype) else self._cast(array, dtype)

    def back(self, array: Any) -> np.ndarray:
        if self.library == "torch":
            array = array.detach().cpu()
            return (array.float() if str(array.dtype) == "torch.bfloat16" else array).numpy()
        out = np.asarray(array)
        return out.astype(np.float32) if out.dtype.name == "bfloat16" else out

    def gradient(self, function: Callable[[Any], Any], z: Any, g: Any) -> np.ndarray:
        """Return the gradient of <g, function(z)> with respect to z."""
        if self.library == "torch":
            z = z.clone().requires_grad_()
            function(z).backward(g)
            return self.back(z.grad)
        jax = importlib.import_module("jax")
        return self.back(jax.vjp(function, z)[1](g)[0])

    def _module(self) -> Any:
        return pytest.importorskip({"jax": "jax.numpy"}.get(self.library, self.library))

    def _cast(self, array: Any, dtype: str) -> Any:
        kind = getattr(self._module(), dtype)
        return array.to(kind) if self.library == "torch" else array.astype(kind)

    def using(self) -> Any:
        """Request the implementation by name, so that no other one can run."""
        return softargmax.using(self.implementation)


def _backends() -> tuple[Backend, ...]:
    if dispatch.INTERPRETED:  # `make test-triton`
        return (Backend("torch", "triton"),)
    if os.environ.get("SOFTARGMAX_TEST_CUDA"):  # tools/gpu_run.sh
        return (Backend("torch", "triton", "cuda"),)
    return (
        Backend("numpy", "native"),
        Backend("torch", "native"),
        Backend("numpy", "reference"),
        Backend("array_api_strict", "reference"),
        Backend("torch", "reference"),
        Backend("jax", "native"),
        Backend("jax", "reference"),
    )


BACKENDS = _backends()
DIFFERENTIATING = tuple(backend for backend in BACKENDS if backend.differentiates)
