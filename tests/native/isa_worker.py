"""Compute every operation on the instruction set that SOFTARGMAX_ISA names, and print one digest per result.

SOFTARGMAX_ISA=baseline python tests/native/isa_worker.py
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from tests.native.operations import have_torch, row_operations, scores, segments
from tests.native.vectors import everything

import softargmax
from softargmax.core import _native, native

SHAPES = ((4096, 7), (200, 33), (50, 1000), (2, 20_001), (1, 300_007))
DTYPES = ("float16", "float32", "float64")


def digest(a: Any) -> str:
    """Return a digest of bytes, dtype and shape. All NaNs count as equal, because the compiler chooses their sign."""
    a = np.ascontiguousarray(a)
    if np.issubdtype(a.dtype, np.floating):
        a = np.where(np.isnan(a), np.array(np.nan, a.dtype), a)
    return hashlib.blake2b(a.tobytes() + str((a.dtype, a.shape)).encode(), digest_size=8).hexdigest()


def bfloat16_results(shape: tuple[int, int]) -> dict[str, Any]:
    """Return results for bfloat16 tensors, and the gradient of a softmax."""
    import torch

    z = torch.from_numpy(scores(shape, "float32")).bfloat16()
    leaf = z.clone().requires_grad_()
    softargmax.softmax(leaf).backward(torch.ones_like(z) * 0.3 + z.nan_to_num(0, 0, 0))
    return {
        "softmax": softargmax.softmax(z).view(torch.int16).numpy(),
        "log_softmax": softargmax.log_softmax(z).view(torch.int16).numpy(),
        "logsumexp": softargmax.logsumexp(z).numpy(),
        "sparsemax": softargmax.sparsemax(z).view(torch.int16).numpy(),
        "entmax 1.25": softargmax.entmax(z, 1.25).view(torch.int16).numpy(),
        "softmax vjp": leaf.grad.view(torch.int16).numpy(),  # type: ignore[union-attr]
    }


def layer_results() -> dict[str, Any]:
    """Return products of several chunks of depth and many rows, and gradients of several parts."""
    rng = np.random.default_rng(0)
    found = {}
    for rows, depth, cols in ((60, 1100, 70), (30, 1030, 600), (1100, 513, 40)):
        for dtype in DTYPES:
            a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((rows, depth), (depth, cols)))
            out = np.empty((rows, cols), "float64" if dtype == "float64" else "float32")
            _native.product(a, b, out)
            found[f"product {dtype} {rows} x {depth} x {cols}"] = out
    h, w, y = rng.standard_normal((450, 20)), rng.standard_normal((5000, 20)), rng.integers(0, 5000, 450)
    for dtype in ("float32", "float64"):
        loss, dh, dw, _ = softargmax.linear_cross_entropy_and_gradient(h.astype(dtype), w.astype(dtype), y)
        found |= {f"layer {dtype} {name}": x for name, x in (("loss", loss), ("dh", dh), ("dw", dw))}
    return found


def main() -> None:
    """Print the instruction set and the digests as JSON."""
    found = {}
    with softargmax.using("native"), np.errstate(all="ignore"):
        for shape in SHAPES:
            for dtype in DTYPES:
                z = scores(shape, dtype)
                for name, operation in row_operations().items():
                    found[f"{name} {dtype} {shape}"] = digest(operation(z))
                    if shape[0] > 1:
                        found[f"{name} {dtype} {shape} axis 0"] = digest(operation(np.asfortranarray(z)))
                for name, result in segments(scores((shape[0] * shape[1],), dtype)).items():
                    found[f"{name} {dtype} {shape}"] = digest(result)
            if have_torch():
                found |= {f"{name} bfloat16 {shape}": digest(a) for name, a in bfloat16_results(shape).items()}
        for dtype in ("float32", "float64"):
            found |= {name: digest(result) for name, result in everything(dtype).items()}
        found |= {name: digest(result) for name, result in layer_results().items()}
    sys.stdout.write(json.dumps({"isa": native.info()["isa"], "digests": found}))


if __name__ == "__main__":
    main()
