"""torch modules of every room, loaded when they are first asked for (needs the extra `torch`)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from softargmax.core.extras import install

if TYPE_CHECKING:
    from softargmax.attend.modules import Attention
    from softargmax.attend.torch_cache import KVCache
    from softargmax.core.torch_decompositions import decompositions
    from softargmax.loss.modules import CrossEntropyLoss, LinearCrossEntropyLoss
    from softargmax.normalize.modules import LogSoftmax, Softmax
    from softargmax.output.torch_adaptive import AdaptiveSoftmax
    from softargmax.output.torch_contrast import NCE, NegativeSampling
    from softargmax.output.torch_differentiated import DifferentiatedSoftmax
    from softargmax.output.torch_full import FullSoftmax
    from softargmax.output.torch_hierarchical import HierarchicalSoftmax
    from softargmax.output.torch_importance import ImportanceSampledSoftmax
    from softargmax.output.torch_layer import OutputLayer
    from softargmax.output.torch_sampled import SampledSoftmax
    from softargmax.output.torch_target import TargetSampledSoftmax
    from softargmax.sample.modules import GumbelSoftmax
    from softargmax.sparse.modules import Entmax, EntmaxLoss, Sparsemax, SparsemaxLoss

_HOME = {
    "softargmax.attend.modules": ("Attention",),
    "softargmax.attend.torch_cache": ("KVCache",),
    "softargmax.core.torch_decompositions": ("decompositions",),
    "softargmax.loss.modules": ("CrossEntropyLoss", "LinearCrossEntropyLoss"),
    "softargmax.normalize.modules": ("LogSoftmax", "Softmax"),
    "softargmax.sparse.modules": ("Entmax", "EntmaxLoss", "Sparsemax", "SparsemaxLoss"),
    "softargmax.output.torch_adaptive": ("AdaptiveSoftmax",),
    "softargmax.output.torch_contrast": ("NCE", "NegativeSampling"),
    "softargmax.output.torch_differentiated": ("DifferentiatedSoftmax",),
    "softargmax.output.torch_full": ("FullSoftmax",),
    "softargmax.output.torch_hierarchical": ("HierarchicalSoftmax",),
    "softargmax.output.torch_importance": ("ImportanceSampledSoftmax",),
    "softargmax.output.torch_layer": ("OutputLayer",),
    "softargmax.output.torch_sampled": ("SampledSoftmax",),
    "softargmax.output.torch_target": ("TargetSampledSoftmax",),
    "softargmax.sample.modules": ("GumbelSoftmax",),
}
_home_of = {name: home for home, names in _HOME.items() for name in names}

__all__ = [
    "NCE",
    "AdaptiveSoftmax",
    "Attention",
    "CrossEntropyLoss",
    "DifferentiatedSoftmax",
    "Entmax",
    "EntmaxLoss",
    "FullSoftmax",
    "GumbelSoftmax",
    "HierarchicalSoftmax",
    "ImportanceSampledSoftmax",
    "KVCache",
    "LinearCrossEntropyLoss",
    "LogSoftmax",
    "NegativeSampling",
    "OutputLayer",
    "SampledSoftmax",
    "Softmax",
    "Sparsemax",
    "SparsemaxLoss",
    "TargetSampledSoftmax",
    "decompositions",
]


def __getattr__(name: str) -> Any:
    home = _home_of.get(name)
    if home is None:
        raise AttributeError(f"module 'softargmax.nn' has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise ImportError(f"softargmax.nn needs PyTorch: {install('torch')}") from missing
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_home_of})
