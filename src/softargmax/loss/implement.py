"""Which implementation serves an array in this room."""

from __future__ import annotations

from typing import Any

from softargmax.core import dispatch
from softargmax.loss import reference


def implementation(z: Any) -> Any:
    """The module whose primitives serve z; of tensors, the reference with derivatives that are formulas too."""
    found = dispatch.implementation("loss", z)
    if found is reference and dispatch.is_torch(z):
        from softargmax.loss import torch_reference

        return torch_reference
    return found
