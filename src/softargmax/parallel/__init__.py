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
from typing import Any

from softargmax.core.extras import require

HOME = {
    "VocabularyParallel": "torch_layers",
    "array_of_frame": "dask_frames",
    "attention": "torch_attention",
    "attention_split_kv": "torch_attention",
    "categorical": "torch_draws",
    "categorical_with_logprob": "torch_draws",
    "cross_entropy": "torch_losses",
    "cross_entropy_terms": "torch_losses",
    "entropy": "torch_functions",
    "kl_divergence": "torch_functions",
    "linear_cross_entropy": "torch_losses",
    "log_softmax": "torch_functions",
    "logsumexp": "torch_functions",
    "selected_log_softmax": "torch_losses",
    "softmax": "torch_functions",
}
"""The file of each name, which begins with the extra that it needs. tools/stubs.py writes __init__.pyi from this dict.

A file is imported at the first use of a name. Calls with Dask arrays load this package, and they need no torch. The
file torch_layers imports torch's DTensors, which takes as long as all others (0.6 s).
"""

__all__ = [*HOME]  # noqa: PLE0604 the names are strings


def __getattr__(name: str) -> Any:
    file = HOME.get(name)
    if file is None:
        raise AttributeError(f"module 'softargmax.parallel' has no attribute {name!r}")
    extra = file.partition("_")[0]
    require(f"softargmax.parallel.{name} needs", extra, **{extra: extra})
    found = globals()[name] = getattr(importlib.import_module(f"softargmax.parallel.{file}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
