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
from typing import TYPE_CHECKING

from softargmax.core.extras import require

require("softargmax.parallel needs", "torch", torch="torch")

from softargmax.parallel.torch_attention import attention, attention_split_kv  # noqa: E402 the error above comes first
from softargmax.parallel.torch_draws import categorical, categorical_with_logprob  # noqa: E402
from softargmax.parallel.torch_functions import (  # noqa: E402
    entropy,
    kl_divergence,
    log_softmax,
    logsumexp,
    softmax,
)
from softargmax.parallel.torch_losses import (  # noqa: E402
    cross_entropy,
    cross_entropy_terms,
    linear_cross_entropy,
    selected_log_softmax,
)

if TYPE_CHECKING:
    from softargmax.parallel.torch_layers import VocabularyParallel

__all__ = [
    "VocabularyParallel",
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


def __getattr__(name: str) -> object:
    if name != "VocabularyParallel":
        raise AttributeError(f"module 'softargmax.parallel' has no attribute {name!r}")
    # The style imports torch's DTensors, which takes as long as all the rest (0.6 s).
    value = globals()[name] = importlib.import_module("softargmax.parallel.torch_layers").VocabularyParallel
    return value
