r"""The softmax family on rows that are spread over the processes of a `torch.distributed` group.

A block of 4096 scores is *lifted* to its state (m, l, o). The processes exchange the states of their blocks, and each
of them merges all states from left to right, exactly as one process does with the blocks of a whole row:

.. math:: \mathrm{finalize}(\mathrm{reduce}(\mathrm{merge},\ \mathrm{map}(\mathrm{lift},\ \mathrm{blocks})))

So results and gradients have the same bits for any number of processes, wherever they cut the rows.

>>> import torch, torch.distributed as dist, softargmax
>>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
>>> softargmax.parallel.softmax(torch.tensor([1.0, 2.0, 8.0]))  # each process passes its part of the rows
tensor([9.0880e-04, 2.4704e-03, 9.9662e-01])
>>> dist.destroy_process_group()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from softargmax.core.extras import require

if TYPE_CHECKING:
    from softargmax.parallel.dask_frames import array_of_frame
    from softargmax.parallel.torch_attention import attention, attention_split_kv
    from softargmax.parallel.torch_draws import categorical, categorical_with_logprob
    from softargmax.parallel.torch_functions import entropy, kl_divergence, log_softmax, logsumexp, softmax
    from softargmax.parallel.torch_layers import VocabularyParallel
    from softargmax.parallel.torch_losses import (
        cross_entropy,
        cross_entropy_terms,
        linear_cross_entropy,
        selected_log_softmax,
    )

__all__ = [
    "VocabularyParallel",
    "array_of_frame",
    "attention",
    "attention_split_kv",
    "categorical",
    "categorical_with_logprob",
    "cross_entropy",
    "cross_entropy_terms",
    "entropy",
    "kl_divergence",
    "linear_cross_entropy",
    "log_softmax",
    "logsumexp",
    "selected_log_softmax",
    "softmax",
]

_FILES = ("torch_attention", "torch_draws", "torch_functions", "torch_losses", "torch_layers")
"""The last one imports torch's DTensors, which takes as long as all others (0.6 s)."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use. Calls with Dask arrays load this package, and they need no torch."""
    if name in __all__:
        extra, files = ("dask", ("dask_frames",)) if name == "array_of_frame" else ("torch", _FILES)
        require(f"softargmax.parallel.{name} needs", extra, **{extra: extra})
        for file in files:
            found = getattr(importlib.import_module(f"softargmax.parallel.{file}"), name, None)
            if found is not None and found.__module__.endswith(file):
                globals()[name] = found
                return found
    raise AttributeError(f"module 'softargmax.parallel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
