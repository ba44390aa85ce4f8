"""The options of losses that the tests of several processes and of Dask arrays share."""

from __future__ import annotations

from typing import Any


def loss_options(weight: Any, mask: Any) -> dict[str, dict[str, Any]]:
    """Options of cross_entropy by name, with weights of classes and a mask as arrays or tensors."""
    return {
        "plain": {},
        "none": {"reduction": "none"},
        "sum": {"reduction": "sum"},
        "smooth": {"label_smoothing": 0.1},
        "weight": {"weight": weight},
        "smooth, weight": {"label_smoothing": 0.1, "weight": weight, "reduction": "none"},
        "z-loss": {"z_loss": 0.01},
        "soft-cap": {"softcap": 5.0},
        "all": {
            "label_smoothing": 0.2,
            "weight": weight,
            "z_loss": 0.01,
            "softcap": 7.0,
            "temperature": 1.5,
            "where": mask,
        },
    }
