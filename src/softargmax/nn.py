"""The torch modules of all subpackages, each loaded at its first use. Requires the extra `torch`."""

from __future__ import annotations

import importlib
from typing import Any

from softargmax.core.extras import install

HOME = {
    "AdaptiveSoftmax": "softargmax.output.torch_adaptive",
    "Attention": "softargmax.attend.modules",
    "CrossEntropyLoss": "softargmax.loss.modules",
    "DifferentiatedSoftmax": "softargmax.output.torch_differentiated",
    "Entmax": "softargmax.sparse.modules",
    "EntmaxLoss": "softargmax.sparse.modules",
    "FullSoftmax": "softargmax.output.torch_full",
    "GumbelSoftmax": "softargmax.sample.modules",
    "HierarchicalSoftmax": "softargmax.output.torch_hierarchical",
    "ImportanceSampledSoftmax": "softargmax.output.torch_importance",
    "KVCache": "softargmax.attend.torch_cache",
    "LinearChainCRF": "softargmax.structure.modules",
    "LinearCrossEntropyLoss": "softargmax.loss.modules",
    "LogSoftmax": "softargmax.normalize.modules",
    "NCE": "softargmax.output.torch_nce",
    "NegativeSampling": "softargmax.output.torch_nce",
    "OutputLayer": "softargmax.output.torch_base",
    "SampledSoftmax": "softargmax.output.torch_sampled",
    "Softmax": "softargmax.normalize.modules",
    "Sparsemax": "softargmax.sparse.modules",
    "SparsemaxLoss": "softargmax.sparse.modules",
    "TargetSampledSoftmax": "softargmax.output.torch_target",
    "decompositions": "softargmax.core.torch_decompositions",
}
"""The module that defines each name; tools/stubs.py writes nn.pyi from this dict."""

__all__ = [*HOME]  # noqa: PLE0604 the names are strings


def __getattr__(name: str) -> Any:
    home = HOME.get(name)
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
    return sorted({*globals(), *HOME})
