"""Written by tools/stubs.py from the rooms. Docstrings are in the room."""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from softargmax import CategoricalWithLogprob, CrossEntropyTerms, _Generator, _Integers, _Mask, _Numbers, _PerRow, _Seed
from softargmax.parallel.dask_frames import array_of_frame as array_of_frame
from softargmax.parallel.torch_functions import Group
from softargmax.parallel.torch_layers import VocabularyParallel as VocabularyParallel

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

def attention(
    q: Tensor, k: Tensor, v: Tensor, /, *, group: Group = None, axis: int = -2, by: str | None = None,
    zigzag: bool = False, scale: _PerRow[Tensor] | None = None, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[Tensor] | None = None, mask: _Mask[Tensor] | None = None, bias: _Numbers[Tensor] | None = None,
    key_lengths: _Integers[Tensor] | None = None, sink: _Numbers[Tensor] | None = None, dropout: float = 0.0,
    seed: _Seed | None = None, stream: _Integers[Tensor] | None = None, alpha: _PerRow[Tensor] = 1.0,
) -> Tensor:
    """Return this process's part of the attention of sequences or heads that are spread over the processes of a
    group."""

def attention_split_kv(
    q: Tensor, k: Tensor, v: Tensor, /, *, group: Group = None, scale: _PerRow[Tensor] | None = None,
    causal: bool = False, window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[Tensor] | None = None, mask: _Mask[Tensor] | None = None, bias: _Numbers[Tensor] | None = None,
    key_lengths: _Integers[Tensor] | None = None, sink: _Numbers[Tensor] | None = None, dropout: float = 0.0,
    seed: _Seed | None = None, stream: _Integers[Tensor] | None = None,
) -> Tensor:
    """Return attention to keys and values that are spread over the processes of a group, as in split-KV
    decoding."""

def categorical(
    z: Tensor, /, *, group: Group = None, axis: int = -1, temperature: _PerRow[Tensor] = 1.0,
    top_k: _PerRow[Tensor] | None = None, top_p: _PerRow[Tensor] | None = None,
    min_p: _PerRow[Tensor] | None = None, typical_p: _PerRow[Tensor] | None = None,
    epsilon: _PerRow[Tensor] | None = None, eta: _PerRow[Tensor] | None = None, where: _Mask[Tensor] | None = None,
    num_samples: int | None = None, replace: bool = True, seed: _Seed | None = None,
    stream: _Integers[Tensor] | None = None, generator: _Generator | None = None, order: str = "top_k_first",
) -> Tensor:
    """Draw classes from the softmax of rows that are spread over the processes of a group, after filters."""

def categorical_with_logprob(
    z: Tensor, /, *, group: Group = None, axis: int = -1, temperature: _PerRow[Tensor] = 1.0,
    top_k: _PerRow[Tensor] | None = None, top_p: _PerRow[Tensor] | None = None,
    min_p: _PerRow[Tensor] | None = None, typical_p: _PerRow[Tensor] | None = None,
    epsilon: _PerRow[Tensor] | None = None, eta: _PerRow[Tensor] | None = None, where: _Mask[Tensor] | None = None,
    num_samples: int | None = None, replace: bool = True, seed: _Seed | None = None,
    stream: _Integers[Tensor] | None = None, generator: _Generator | None = None, order: str = "top_k_first",
) -> CategoricalWithLogprob[Tensor]:
    """Draw as `softargmax.parallel.categorical` does, and also return log-probabilities and the number of
    classes."""

def cross_entropy(
    z: Tensor, /, target: Tensor, *, group: Group = None, axis: int = -1, reduction: str = "mean",
    ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None,
    temperature: _PerRow[Tensor] = 1.0, weight: _Numbers[Tensor] | None = None, where: _Mask[Tensor] | None = None,
    dtype: torch.dtype | str | None = None,
) -> Tensor:
    """Return the cross-entropy of scores whose classes are spread over the processes of a group."""

def cross_entropy_terms(
    z: Tensor, /, target: Tensor, *, group: Group = None, axis: int = -1, reduction: str = "mean",
    ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None,
    temperature: _PerRow[Tensor] = 1.0, weight: _Numbers[Tensor] | None = None, where: _Mask[Tensor] | None = None,
    dtype: torch.dtype | str | None = None,
) -> CrossEntropyTerms[Tensor]:
    """Return the cross-entropy with lse, entropy and z-loss of scores whose classes are spread over processes."""

def entropy(
    z: Tensor, /, *, group: ProcessGroup | DeviceMesh | None = None, axis: int = -1,
    temperature: float | Tensor = 1.0, base: float | None = None, where: Tensor | None = None,
    keepdims: bool = False,
) -> Tensor:
    """Return the entropy, in nats, of the softmax of rows that are spread over the processes of a group."""

def kl_divergence(
    z_p: Tensor, z_q: Tensor, /, *, group: ProcessGroup | DeviceMesh | None = None, axis: int = -1,
    temperature: float | Tensor = 1.0, base: float | None = None, where: Tensor | None = None,
    keepdims: bool = False,
) -> Tensor:
    """Return the divergence between two softmaxes of rows that are spread over the processes of a group."""

def linear_cross_entropy(
    h: Tensor, w: Tensor, target: Tensor, *, group: Group = None, bias: Tensor | None = None, by: str = "classes",
    reproducible: bool = True, exact: bool = False, reduction: str = "mean", ignore_index: int = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None,
    temperature: _PerRow[Tensor] = 1.0, weight: _Numbers[Tensor] | None = None, where: _Mask[Tensor] | None = None,
    dtype: torch.dtype | str | None = None,
) -> Tensor:
    """Return the cross-entropy of a last layer whose classes or rows are spread over the processes of a group."""

def log_softmax(
    z: Tensor, /, *, group: ProcessGroup | DeviceMesh | None = None, axis: int = -1,
    temperature: float | Tensor = 1.0, base: float | None = None, where: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return this process's part of the log-softmax of rows that are spread over the processes of a group."""

def logsumexp(
    z: Tensor, /, *, group: ProcessGroup | DeviceMesh | None = None, axis: int = -1,
    temperature: float | Tensor = 1.0, base: float | None = None, where: Tensor | None = None,
    keepdims: bool = False, weights: Tensor | None = None, dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the logarithm of the sum of exponentials of rows that are spread over the processes of a group."""

def selected_log_softmax(
    z: Tensor, /, index: Tensor, *, group: Group = None, axis: int = -1, ignore_index: int = -100,
    softcap: float | None = None, temperature: _PerRow[Tensor] = 1.0, where: _Mask[Tensor] | None = None,
    dtype: torch.dtype | str | None = None,
) -> Tensor:
    """Return log-probabilities of one or several classes of rows that are spread over the processes of a group."""

def softmax(
    z: Tensor, /, *, group: ProcessGroup | DeviceMesh | None = None, axis: int = -1,
    temperature: float | Tensor = 1.0, base: float | None = None, where: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return this process's part of the softmax of rows that are spread over the processes of a group."""
