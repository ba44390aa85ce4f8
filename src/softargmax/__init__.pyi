"""Written by tools/stubs.py from the rooms. Docstrings are in the rooms.

For NumPy arrays, lists and numbers, results are NumPy arrays. For tensors they are tensors. For other arrays of the
array-API standard (such as those of JAX) and for Dask arrays they are arrays of the same type. A function that reduces
a single row to one number returns a NumPy scalar in place of a NumPy array.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, overload

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from softargmax import classify as classify
from softargmax import integrate as integrate
from softargmax import jax as jax
from softargmax import nn as nn
from softargmax import output as output
from softargmax import parallel as parallel
from softargmax import stream as stream

__version__: str
__all__ = [
    "__version__",
    "AttentionGradients",
    "AttentionStats",
    "AttentionWithLse",
    "BestConfiguration",
    "BestPath",
    "Boltzmann",
    "CategoricalWithLogprob",
    "CrossEntropyTerms",
    "FactorGraph",
    "LinearChain",
    "LinearLossAndGradient",
    "LossAndGradient",
    "SignedLog",
    "SoftmaxWithLse",
    "SpeculativeSample",
    "State",
    "Threshold",
    "attention",
    "attention_paged",
    "attention_state",
    "attention_stats",
    "attention_varlen",
    "attention_vjp",
    "attention_with_lse",
    "boltzmann",
    "boltzmann_policy",
    "categorical",
    "categorical_with_logprob",
    "cross_entropy",
    "cross_entropy_and_gradient",
    "cross_entropy_terms",
    "distillation",
    "entmax",
    "entmax_loss",
    "entropy",
    "entropy_invariant_scale",
    "factor_graph",
    "filter_scores",
    "get_num_threads",
    "gumbel",
    "gumbel_softmax",
    "hardmax",
    "kl_divergence",
    "linear_chain",
    "linear_cross_entropy",
    "linear_cross_entropy_and_gradient",
    "linear_cross_entropy_terms",
    "linear_distillation",
    "linear_selected_log_softmax",
    "log_einsum",
    "log_matmul",
    "log_softmax",
    "logcumsumexp",
    "logsumexp",
    "qk_norm",
    "renyi_entropy",
    "segment_log_softmax",
    "segment_logsumexp",
    "segment_softmax",
    "selected_log_softmax",
    "set_num_threads",
    "signed_logsumexp",
    "soft_argmax",
    "softmax",
    "softmax_jacobian",
    "softmax_with_lse",
    "softmin",
    "sparsemax",
    "sparsemax_loss",
    "spatial_soft_argmax",
    "speculative_sample",
    "threshold",
    "topk_softmax",
    "using",
]

class _ArrayAPI(Protocol):  # NumPy arrays do not match: their method accepts only some strings as `api_version`
    def __array_namespace__(self, *, api_version: str | None = None) -> Any: ...

class _Dask(Protocol):
    def compute_chunk_sizes(self) -> Any: ...

A = TypeVar("A")
_X = TypeVar("_X", bound=_ArrayAPI | _Dask)

# Lists with up to four axes. A recursive alias would accept strings, too.
_Real: TypeAlias = float | np.number[Any] | np.bool_
_Bool: TypeAlias = bool | np.bool_
_Int: TypeAlias = int | np.integer[Any]
_Row: TypeAlias = Sequence[_Real | NDArray[Any]]
_Reals: TypeAlias = _Real | _Row | Sequence[_Row] | Sequence[Sequence[_Row]] | Sequence[Sequence[Sequence[_Row]]]
_Bools: TypeAlias = _Bool | Sequence[_Bool] | Sequence[Sequence[_Bool]] | Sequence[Sequence[Sequence[_Bool]]]
_Ints: TypeAlias = _Int | Sequence[_Int] | Sequence[Sequence[_Int]] | Sequence[Sequence[Sequence[_Int]]]
_ArrayLike: TypeAlias = NDArray[Any] | _Reals | complex | Sequence[complex]

# Arguments in addition to an array of type A: an array of the same type, or values that can be converted to it.
_PerRow: TypeAlias = A | NDArray[Any] | _Reals
_Numbers: TypeAlias = A | NDArray[Any] | _Reals
_Target: TypeAlias = A | NDArray[Any] | _Reals
_Integers: TypeAlias = A | NDArray[np.integer[Any]] | _Ints
_Mask: TypeAlias = A | NDArray[np.bool_] | _Bools
_Seed: TypeAlias = int | _ArrayAPI  # or a key of jax.random
_Generator: TypeAlias = np.random.Generator | np.random.RandomState | torch.Generator

class AttentionGradients(NamedTuple, Generic[A]):
    """Result of `attention_vjp`: the gradients with respect to q, k, v, scale, bias, sink and slopes."""

    q: A
    k: A
    v: A
    scale: A | None
    bias: A | None
    sink: A | None
    slopes: A | None = None

class AttentionStats(NamedTuple, Generic[A]):
    """Result of `attention_stats`: the largest score, and statistics of p."""

    max_score: A
    entropy: A
    key_mass: A

class AttentionWithLse(NamedTuple, Generic[A]):
    """Result of `attention_with_lse`: the output (..., H, L, Dv) and lse (..., H, L). lse includes the sink."""

    output: A
    lse: A

class BestConfiguration(NamedTuple, Generic[A]):
    """Result of `FactorGraph.best`: the values of a configuration with the largest score, and its score."""

    values: A
    score: A

class BestPath(NamedTuple, Generic[A]):
    """Result of `LinearChain.best`: the tags of the best path or paths, and their scores."""

    tags: A
    score: A

class Boltzmann(NamedTuple, Generic[A]):
    """Result of `boltzmann`: p, of the energies' shape, and five quantities of the system with one number per
    row."""

    p: A
    log_partition: A
    free_energy: A
    mean_energy: A
    entropy: A
    heat_capacity: A

class CategoricalWithLogprob(NamedTuple, Generic[A]):
    """Result of `categorical_with_logprob`: draws, log-probabilities, and the number of classes that could be
    drawn."""

    index: A  # type: ignore[assignment]
    logprob: A
    support_size: A

class CrossEntropyTerms(NamedTuple, Generic[A]):
    """Result of `cross_entropy_terms`: the loss (which includes z_loss), lse, entropy and z_loss. The option
    `reduction` applies to all four."""

    loss: A
    lse: A
    entropy: A
    z_loss: A

class FactorGraph(Generic[A]):
    """The distribution of a configuration. `factor_graph` makes it and documents its arguments."""

    @property
    def log_z(self) -> A:
        """log Z, with the shape of the batch: the logarithm of the sum of e^(score / T) over all configurations."""
    def marginals(self) -> tuple[A, ...]:
        """Return the probability of each entry of each factor: an array for each factor."""
    def marginal(self, variables: str) -> A:
        """Return the joint probability of some variables, such as "ac": the axes of the batch, then these variables."""
    def entropy(self) -> A:
        """Return the entropy of the configuration in nats, with the shape of the batch: log Z minus E[score] / T."""
    def score(self, values: _Integers[A]) -> A:
        """Return the score s(x) of a configuration, with the shape of the batch."""
    def log_prob(self, values: _Integers[A]) -> A:
        """Return the log-probability of a configuration. It is -inf if no configuration is possible."""
    def best(self) -> BestConfiguration[A]:
        """Return a configuration with the largest score, and its score."""
    def sample(
        self, num_samples: int | None = None, *, seed: _Seed | None = None, stream: _Integers[A] | None = None,
        generator: _Generator | None = None,
    ) -> A:
        """Return configurations that are drawn from the distribution, shape (..., V), or (..., num_samples, V)."""

class _Finalized(NamedTuple, Generic[A]):
    """The results of a state: output = o / l (None without values) and lse = m + log l."""

    output: A | None
    lse: A

class LinearChain(Generic[A]):
    """The distribution of paths of tags. `linear_chain` makes it and documents its arguments."""

    @property
    def log_z(self) -> A:
        """log Z, shape (...): the logarithm of the sum of e^score over all paths. It is 0 for an empty sequence."""
    @property
    def positions(self) -> A:
        """The number of positions of all sequences together."""
    def marginals(self) -> A:
        """Return the probability of each tag at each position, shape (..., L, C), and 0 beyond the end."""
    def pair_marginals(self) -> A:
        """Return the probability of each pair of tags at positions t and t + 1, shape (..., L - 1, C, C)."""
    def entropy(self) -> A:
        """Return the entropy of the path in nats, shape (...): log Z minus the expected score, in float64."""
    def score(self, tags: _Integers[A]) -> A:
        """Return the score s(y) of a path, shape (...). Tags beyond the end of a sequence are ignored."""
    def log_prob(self, tags: _Integers[A]) -> A:
        """Return the log-probability of a path, s(y) - log Z, shape (...). It is -inf if no path is possible."""
    def best(self, num_paths: int | None = None) -> BestPath[A]:
        """Return a path with the largest score (Viterbi), and its score."""
    def sample(
        self, num_samples: int | None = None, *, seed: _Seed | None = None, stream: _Integers[A] | None = None,
        generator: _Generator | None = None,
    ) -> A:
        """Return paths that are drawn from the distribution, shape (..., L), or (..., num_samples, L)."""

class LinearLossAndGradient(NamedTuple, Generic[A]):
    """Result of `linear_cross_entropy_and_gradient`: the loss and its gradients. dbias is None without a bias."""

    loss: A
    dh: A
    dw: A
    dbias: A | None

class LossAndGradient(NamedTuple, Generic[A]):
    """Result of `cross_entropy_and_gradient`: the loss and its gradient, of the scores' shape and dtype."""

    loss: A
    gradient: A

class _NormalizedQK(NamedTuple, Generic[A]):
    """Result of `qk_norm`: normalized queries and keys."""

    q: A
    k: A

class SignedLog(NamedTuple, Generic[A]):
    """Result of `signed_logsumexp`: the sum of each row, as its sign and the logarithm of its magnitude."""

    log_abs: A
    sign: A

class SoftmaxWithLse(NamedTuple, Generic[A]):
    """Result of `softmax_with_lse`: p, of the scores' shape, and lse = log sum exp(beta z), one number per row."""

    p: A
    lse: A

class SpeculativeSample(NamedTuple, Generic[A]):
    """Result of `speculative_sample`: the tokens, padded with -1, and the number of accepted guesses."""

    tokens: A
    accepted: A

class State(NamedTuple, Generic[A]):
    """The softmax state of all scores folded so far. It can be passed on between batches, files and machines."""

    m: A
    r: A
    o: A | None = None
    @property
    def l(self) -> A:
        """The sum of exp(z_i - m): 0 (empty) or at least 1."""
    @overload
    @classmethod
    def empty(
        cls, shape: int | tuple[int, ...] = (), width: int | None = None, like: _ArrayLike | None = None,
    ) -> State[NDArray[Any]]:
        """Return the empty state, which contains no scores."""
    @overload
    @classmethod
    def empty(cls, shape: int | tuple[int, ...] = (), width: int | None = None, *, like: Tensor) -> State[Tensor]: ...
    @overload
    @classmethod
    def empty(cls, shape: int | tuple[int, ...] = (), width: int | None = None, *, like: _X) -> State[_X]: ...
    def fold(self, scores: _Numbers[A], values: _Numbers[A] | None = None, axis: int = -1) -> State[A]:
        """Return the state with a block of scores added."""
    def merge(self, *others: State[A]) -> State[A]:
        """Merge this state with others, from left to right. The result describes the scores of all of them."""
    def finalize(self) -> _Finalized[A]:
        """Return the results: output = o / l, the softmax-weighted mean of the values, and lse = m + log l."""

class Threshold(NamedTuple, Generic[A]):
    """Result of `threshold`: for each row, tau and the number of probabilities above 0."""

    tau: A
    support_size: A

@overload
def attention(
    q: _ArrayLike, k: _ArrayLike, v: _ArrayLike, *, scale: _PerRow[NDArray[Any]] | None = None,
    causal: bool = False, window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[NDArray[Any]] | None = None, mask: _Mask[NDArray[Any]] | None = None,
    bias: _Numbers[NDArray[Any]] | None = None, key_lengths: _Integers[NDArray[Any]] | None = None,
    sink: _Numbers[NDArray[Any]] | None = None, dropout: float = 0.0, seed: _Seed | None = None,
    stream: _Integers[NDArray[Any]] | None = None, alpha: _PerRow[NDArray[Any]] = 1.0,
) -> NDArray[Any]:
    """Return attention: each query's average of the values, weighted by the softmax of its scores."""
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: _PerRow[Tensor] | None = None, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[Tensor] | None = None, mask: _Mask[Tensor] | None = None, bias: _Numbers[Tensor] | None = None,
    key_lengths: _Integers[Tensor] | None = None, sink: _Numbers[Tensor] | None = None, dropout: float = 0.0,
    seed: _Seed | None = None, stream: _Integers[Tensor] | None = None, alpha: _PerRow[Tensor] = 1.0,
) -> Tensor: ...
@overload
def attention(
    q: _X, k: _X, v: _X, *, scale: _PerRow[_X] | None = None, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[_X] | None = None, mask: _Mask[_X] | None = None, bias: _Numbers[_X] | None = None,
    key_lengths: _Integers[_X] | None = None, sink: _Numbers[_X] | None = None, dropout: float = 0.0,
    seed: _Seed | None = None, stream: _Integers[_X] | None = None, alpha: _PerRow[_X] = 1.0,
) -> _X: ...

@overload
def attention_paged(
    q: _ArrayLike, k_pages: _ArrayLike, v_pages: _ArrayLike, page_table: _Integers[NDArray[Any]],
    lengths: _Integers[NDArray[Any]], *, scale: _PerRow[NDArray[Any]] | None = None, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[NDArray[Any]] | None = None, sink: _Numbers[NDArray[Any]] | None = None,
    alpha: _PerRow[NDArray[Any]] = 1.0,
) -> NDArray[Any]:
    """Return attention to keys and values in pages. Key j of a batch entry is in the entry's page number j // P."""
@overload
def attention_paged(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: _Integers[Tensor], lengths: _Integers[Tensor], *,
    scale: _PerRow[Tensor] | None = None, causal: bool = False, window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None, slopes: _Numbers[Tensor] | None = None, sink: _Numbers[Tensor] | None = None,
    alpha: _PerRow[Tensor] = 1.0,
) -> Tensor: ...
@overload
def attention_paged(
    q: _X, k_pages: _X, v_pages: _X, page_table: _Integers[_X], lengths: _Integers[_X], *,
    scale: _PerRow[_X] | None = None, causal: bool = False, window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None, slopes: _Numbers[_X] | None = None, sink: _Numbers[_X] | None = None,
    alpha: _PerRow[_X] = 1.0,
) -> _X: ...

@overload
def attention_state(
    q: _ArrayLike, k: _ArrayLike, v: _ArrayLike, *, scale: _PerRow[NDArray[Any]] | None = None,
    causal: bool = False, window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[NDArray[Any]] | None = None, mask: _Mask[NDArray[Any]] | None = None,
    bias: _Numbers[NDArray[Any]] | None = None, key_lengths: _Integers[NDArray[Any]] | None = None,
) -> State[NDArray[Any]]:
    """Return the state of attention over a part of the keys. The states of all parts merge to the state of all
    keys."""
@overload
def attention_state(
    q: Tensor, k: Tensor, v: Tensor, *, scale: _PerRow[Tensor] | None = None, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[Tensor] | None = None, mask: _Mask[Tensor] | None = None, bias: _Numbers[Tensor] | None = None,
    key_lengths: _Integers[Tensor] | None = None,
) -> State[Tensor]: ...
@overload
def attention_state(
    q: _X, k: _X, v: _X, *, scale: _PerRow[_X] | None = None, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[_X] | None = None, mask: _Mask[_X] | None = None, bias: _Numbers[_X] | None = None,
    key_lengths: _Integers[_X] | None = None,
) -> State[_X]: ...

@overload
def attention_stats(
    q: _ArrayLike, k: _ArrayLike, *, scale: _PerRow[NDArray[Any]] | None = None, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[NDArray[Any]] | None = None, mask: _Mask[NDArray[Any]] | None = None,
    bias: _Numbers[NDArray[Any]] | None = None, key_lengths: _Integers[NDArray[Any]] | None = None,
    sink: _Numbers[NDArray[Any]] | None = None, alpha: _PerRow[NDArray[Any]] = 1.0,
) -> AttentionStats[NDArray[Any]]:
    """Return the largest score and the entropy of each query, and the sum of p for each key, without storing
    scores."""
@overload
def attention_stats(
    q: Tensor, k: Tensor, *, scale: _PerRow[Tensor] | None = None, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[Tensor] | None = None, mask: _Mask[Tensor] | None = None, bias: _Numbers[Tensor] | None = None,
    key_lengths: _Integers[Tensor] | None = None, sink: _Numbers[Tensor] | None = None,
    alpha: _PerRow[Tensor] = 1.0,
) -> AttentionStats[Tensor]: ...
@overload
def attention_stats(
    q: _X, k: _X, *, scale: _PerRow[_X] | None = None, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[_X] | None = None, mask: _Mask[_X] | None = None, bias: _Numbers[_X] | None = None,
    key_lengths: _Integers[_X] | None = None, sink: _Numbers[_X] | None = None, alpha: _PerRow[_X] = 1.0,
) -> AttentionStats[_X]: ...

@overload
def attention_varlen(
    q: _ArrayLike, k: _ArrayLike, v: _ArrayLike, cu_q: _Integers[NDArray[Any]], cu_k: _Integers[NDArray[Any]], *,
    scale: _PerRow[NDArray[Any]] | None = None, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[NDArray[Any]] | None = None, sink: _Numbers[NDArray[Any]] | None = None,
    alpha: _PerRow[NDArray[Any]] = 1.0,
) -> NDArray[Any]:
    """Return attention for packed sequences, which are stored one after another without padding."""
@overload
def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_q: _Integers[Tensor], cu_k: _Integers[Tensor], *,
    scale: _PerRow[Tensor] | None = None, causal: bool = False, window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None, slopes: _Numbers[Tensor] | None = None, sink: _Numbers[Tensor] | None = None,
    alpha: _PerRow[Tensor] = 1.0,
) -> Tensor: ...
@overload
def attention_varlen(
    q: _X, k: _X, v: _X, cu_q: _Integers[_X], cu_k: _Integers[_X], *, scale: _PerRow[_X] | None = None,
    causal: bool = False, window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[_X] | None = None, sink: _Numbers[_X] | None = None, alpha: _PerRow[_X] = 1.0,
) -> _X: ...

@overload
def attention_vjp(
    q: _ArrayLike, k: _ArrayLike, v: _ArrayLike, g: _ArrayLike, *, g_lse: _Numbers[NDArray[Any]] | None = None,
    scale: _PerRow[NDArray[Any]] | None = None, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[NDArray[Any]] | None = None, mask: _Mask[NDArray[Any]] | None = None,
    bias: _Numbers[NDArray[Any]] | None = None, key_lengths: _Integers[NDArray[Any]] | None = None,
    sink: _Numbers[NDArray[Any]] | None = None, dropout: float = 0.0, seed: _Seed | None = None,
    stream: _Integers[NDArray[Any]] | None = None,
) -> AttentionGradients[NDArray[Any]]:
    """Return the gradients of :math:`\\langle g, o \\rangle + \\langle g_{\\mathrm{lse}}, \\mathrm{lse}
    \\rangle`."""
@overload
def attention_vjp(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, g_lse: _Numbers[Tensor] | None = None,
    scale: _PerRow[Tensor] | None = None, causal: bool = False, window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None, slopes: _Numbers[Tensor] | None = None, mask: _Mask[Tensor] | None = None,
    bias: _Numbers[Tensor] | None = None, key_lengths: _Integers[Tensor] | None = None,
    sink: _Numbers[Tensor] | None = None, dropout: float = 0.0, seed: _Seed | None = None,
    stream: _Integers[Tensor] | None = None,
) -> AttentionGradients[Tensor]: ...
@overload
def attention_vjp(
    q: _X, k: _X, v: _X, g: _X, *, g_lse: _Numbers[_X] | None = None, scale: _PerRow[_X] | None = None,
    causal: bool = False, window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[_X] | None = None, mask: _Mask[_X] | None = None, bias: _Numbers[_X] | None = None,
    key_lengths: _Integers[_X] | None = None, sink: _Numbers[_X] | None = None, dropout: float = 0.0,
    seed: _Seed | None = None, stream: _Integers[_X] | None = None,
) -> AttentionGradients[_X]: ...

@overload
def attention_with_lse(
    q: _ArrayLike, k: _ArrayLike, v: _ArrayLike, *, scale: _PerRow[NDArray[Any]] | None = None,
    causal: bool = False, window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[NDArray[Any]] | None = None, mask: _Mask[NDArray[Any]] | None = None,
    bias: _Numbers[NDArray[Any]] | None = None, key_lengths: _Integers[NDArray[Any]] | None = None,
    sink: _Numbers[NDArray[Any]] | None = None, dropout: float = 0.0, seed: _Seed | None = None,
    stream: _Integers[NDArray[Any]] | None = None,
) -> AttentionWithLse[NDArray[Any]]:
    """Return attention and the logsumexp of each query's scores."""
@overload
def attention_with_lse(
    q: Tensor, k: Tensor, v: Tensor, *, scale: _PerRow[Tensor] | None = None, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[Tensor] | None = None, mask: _Mask[Tensor] | None = None, bias: _Numbers[Tensor] | None = None,
    key_lengths: _Integers[Tensor] | None = None, sink: _Numbers[Tensor] | None = None, dropout: float = 0.0,
    seed: _Seed | None = None, stream: _Integers[Tensor] | None = None,
) -> AttentionWithLse[Tensor]: ...
@overload
def attention_with_lse(
    q: _X, k: _X, v: _X, *, scale: _PerRow[_X] | None = None, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    slopes: _Numbers[_X] | None = None, mask: _Mask[_X] | None = None, bias: _Numbers[_X] | None = None,
    key_lengths: _Integers[_X] | None = None, sink: _Numbers[_X] | None = None, dropout: float = 0.0,
    seed: _Seed | None = None, stream: _Integers[_X] | None = None,
) -> AttentionWithLse[_X]: ...

@overload
def boltzmann(
    energies: _ArrayLike, /, temperature: _PerRow[NDArray[Any]], *, k: float = 1.0,
    weights: _Numbers[NDArray[Any]] | None = None, where: _Mask[NDArray[Any]] | None = None,
    axis: int | tuple[int, ...] | None = -1,
) -> Boltzmann[NDArray[Any]]:
    """Return the Boltzmann distribution over states of given energies, and its thermodynamic quantities."""
@overload
def boltzmann(
    energies: Tensor, /, temperature: _PerRow[Tensor], *, k: float = 1.0, weights: _Numbers[Tensor] | None = None,
    where: _Mask[Tensor] | None = None, axis: int | tuple[int, ...] | None = -1,
) -> Boltzmann[Tensor]: ...
@overload
def boltzmann(
    energies: _X, /, temperature: _PerRow[_X], *, k: float = 1.0, weights: _Numbers[_X] | None = None,
    where: _Mask[_X] | None = None, axis: int | tuple[int, ...] | None = -1,
) -> Boltzmann[_X]: ...

@overload
def boltzmann_policy(
    values: _ArrayLike, /, *, temperature: _PerRow[NDArray[Any]], epsilon: _PerRow[NDArray[Any]] = 0.0,
    axis: int = -1, where: _Mask[NDArray[Any]] | None = None,
) -> NDArray[Any]:
    """Return a policy over actions: the softmax of their values, mixed with uniform exploration."""
@overload
def boltzmann_policy(
    values: Tensor, /, *, temperature: _PerRow[Tensor], epsilon: _PerRow[Tensor] = 0.0, axis: int = -1,
    where: _Mask[Tensor] | None = None,
) -> Tensor: ...
@overload
def boltzmann_policy(
    values: _X, /, *, temperature: _PerRow[_X], epsilon: _PerRow[_X] = 0.0, axis: int = -1,
    where: _Mask[_X] | None = None,
) -> _X: ...

@overload
def categorical(
    z: _ArrayLike, /, *, axis: int = -1, temperature: _PerRow[NDArray[Any]] = 1.0,
    top_k: _PerRow[NDArray[Any]] | None = None, top_p: _PerRow[NDArray[Any]] | None = None,
    min_p: _PerRow[NDArray[Any]] | None = None, typical_p: _PerRow[NDArray[Any]] | None = None,
    epsilon: _PerRow[NDArray[Any]] | None = None, eta: _PerRow[NDArray[Any]] | None = None,
    where: _Mask[NDArray[Any]] | None = None, num_samples: int | None = None, replace: bool = True,
    seed: _Seed | None = None, stream: _Integers[NDArray[Any]] | None = None, generator: _Generator | None = None,
    order: str = "top_k_first",
) -> NDArray[Any]:
    """Draw classes from the softmax of scores, after filters."""
@overload
def categorical(
    z: Tensor, /, *, axis: int = -1, temperature: _PerRow[Tensor] = 1.0, top_k: _PerRow[Tensor] | None = None,
    top_p: _PerRow[Tensor] | None = None, min_p: _PerRow[Tensor] | None = None,
    typical_p: _PerRow[Tensor] | None = None, epsilon: _PerRow[Tensor] | None = None,
    eta: _PerRow[Tensor] | None = None, where: _Mask[Tensor] | None = None, num_samples: int | None = None,
    replace: bool = True, seed: _Seed | None = None, stream: _Integers[Tensor] | None = None,
    generator: _Generator | None = None, order: str = "top_k_first",
) -> Tensor: ...
@overload
def categorical(
    z: _X, /, *, axis: int = -1, temperature: _PerRow[_X] = 1.0, top_k: _PerRow[_X] | None = None,
    top_p: _PerRow[_X] | None = None, min_p: _PerRow[_X] | None = None, typical_p: _PerRow[_X] | None = None,
    epsilon: _PerRow[_X] | None = None, eta: _PerRow[_X] | None = None, where: _Mask[_X] | None = None,
    num_samples: int | None = None, replace: bool = True, seed: _Seed | None = None,
    stream: _Integers[_X] | None = None, generator: _Generator | None = None, order: str = "top_k_first",
) -> _X: ...

@overload
def categorical_with_logprob(
    z: _ArrayLike, /, *, axis: int = -1, temperature: _PerRow[NDArray[Any]] = 1.0,
    top_k: _PerRow[NDArray[Any]] | None = None, top_p: _PerRow[NDArray[Any]] | None = None,
    min_p: _PerRow[NDArray[Any]] | None = None, typical_p: _PerRow[NDArray[Any]] | None = None,
    epsilon: _PerRow[NDArray[Any]] | None = None, eta: _PerRow[NDArray[Any]] | None = None,
    where: _Mask[NDArray[Any]] | None = None, num_samples: int | None = None, replace: bool = True,
    seed: _Seed | None = None, stream: _Integers[NDArray[Any]] | None = None, generator: _Generator | None = None,
    order: str = "top_k_first",
) -> CategoricalWithLogprob[NDArray[Any]]:
    """Draw as `categorical` does, and also return log-probabilities and the number of remaining classes."""
@overload
def categorical_with_logprob(
    z: Tensor, /, *, axis: int = -1, temperature: _PerRow[Tensor] = 1.0, top_k: _PerRow[Tensor] | None = None,
    top_p: _PerRow[Tensor] | None = None, min_p: _PerRow[Tensor] | None = None,
    typical_p: _PerRow[Tensor] | None = None, epsilon: _PerRow[Tensor] | None = None,
    eta: _PerRow[Tensor] | None = None, where: _Mask[Tensor] | None = None, num_samples: int | None = None,
    replace: bool = True, seed: _Seed | None = None, stream: _Integers[Tensor] | None = None,
    generator: _Generator | None = None, order: str = "top_k_first",
) -> CategoricalWithLogprob[Tensor]: ...
@overload
def categorical_with_logprob(
    z: _X, /, *, axis: int = -1, temperature: _PerRow[_X] = 1.0, top_k: _PerRow[_X] | None = None,
    top_p: _PerRow[_X] | None = None, min_p: _PerRow[_X] | None = None, typical_p: _PerRow[_X] | None = None,
    epsilon: _PerRow[_X] | None = None, eta: _PerRow[_X] | None = None, where: _Mask[_X] | None = None,
    num_samples: int | None = None, replace: bool = True, seed: _Seed | None = None,
    stream: _Integers[_X] | None = None, generator: _Generator | None = None, order: str = "top_k_first",
) -> CategoricalWithLogprob[_X]: ...

@overload
def cross_entropy(
    z: _ArrayLike, /, target: _Target[NDArray[Any]], *, axis: int = -1, reduction: str = "mean",
    ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None,
    temperature: _PerRow[NDArray[Any]] = 1.0, weight: _Numbers[NDArray[Any]] | None = None,
    where: _Mask[NDArray[Any]] | None = None, dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return the cross-entropy between targets and the softmax of scores, in nats."""
@overload
def cross_entropy(
    z: Tensor, /, target: _Target[Tensor], *, axis: int = -1, reduction: str = "mean", ignore_index: int = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None,
    temperature: _PerRow[Tensor] = 1.0, weight: _Numbers[Tensor] | None = None, where: _Mask[Tensor] | None = None,
    dtype: torch.dtype | str | None = None,
) -> Tensor: ...
@overload
def cross_entropy(
    z: _X, /, target: _Target[_X], *, axis: int = -1, reduction: str = "mean", ignore_index: int = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None, temperature: _PerRow[_X] = 1.0,
    weight: _Numbers[_X] | None = None, where: _Mask[_X] | None = None, dtype: object | None = None,
) -> _X: ...

@overload
def cross_entropy_and_gradient(
    z: _ArrayLike, /, target: _Target[NDArray[Any]], *, axis: int = -1, reduction: str = "mean",
    ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None,
    temperature: _PerRow[NDArray[Any]] = 1.0, weight: _Numbers[NDArray[Any]] | None = None,
    where: _Mask[NDArray[Any]] | None = None, dtype: DTypeLike | None = None,
) -> LossAndGradient[NDArray[Any]]:
    """Return the cross-entropy and its gradient with respect to the scores, computed in one pass."""
@overload
def cross_entropy_and_gradient(
    z: Tensor, /, target: _Target[Tensor], *, axis: int = -1, reduction: str = "mean", ignore_index: int = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None,
    temperature: _PerRow[Tensor] = 1.0, weight: _Numbers[Tensor] | None = None, where: _Mask[Tensor] | None = None,
    dtype: torch.dtype | str | None = None,
) -> LossAndGradient[Tensor]: ...
@overload
def cross_entropy_and_gradient(
    z: _X, /, target: _Target[_X], *, axis: int = -1, reduction: str = "mean", ignore_index: int = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None, temperature: _PerRow[_X] = 1.0,
    weight: _Numbers[_X] | None = None, where: _Mask[_X] | None = None, dtype: object | None = None,
) -> LossAndGradient[_X]: ...

@overload
def cross_entropy_terms(
    z: _ArrayLike, /, target: _Target[NDArray[Any]], *, axis: int = -1, reduction: str = "mean",
    ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None,
    temperature: _PerRow[NDArray[Any]] = 1.0, weight: _Numbers[NDArray[Any]] | None = None,
    where: _Mask[NDArray[Any]] | None = None, dtype: DTypeLike | None = None,
) -> CrossEntropyTerms[NDArray[Any]]:
    """Return the cross-entropy together with the lse, the entropy and the z-loss of the same softmax."""
@overload
def cross_entropy_terms(
    z: Tensor, /, target: _Target[Tensor], *, axis: int = -1, reduction: str = "mean", ignore_index: int = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None,
    temperature: _PerRow[Tensor] = 1.0, weight: _Numbers[Tensor] | None = None, where: _Mask[Tensor] | None = None,
    dtype: torch.dtype | str | None = None,
) -> CrossEntropyTerms[Tensor]: ...
@overload
def cross_entropy_terms(
    z: _X, /, target: _Target[_X], *, axis: int = -1, reduction: str = "mean", ignore_index: int = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None, temperature: _PerRow[_X] = 1.0,
    weight: _Numbers[_X] | None = None, where: _Mask[_X] | None = None, dtype: object | None = None,
) -> CrossEntropyTerms[_X]: ...

@overload
def distillation(
    z_student: _ArrayLike, z_teacher: _ArrayLike, *, axis: int = -1, temperature: _PerRow[NDArray[Any]] = 1.0,
    divergence: str = "forward", scale: bool = True, reduction: str = "mean", softcap: float | None = None,
    where: _Mask[NDArray[Any]] | None = None, dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return the divergence between a student's softmax q and a teacher's softmax p, times :math:`T^2`, in nats."""
@overload
def distillation(
    z_student: Tensor, z_teacher: Tensor, *, axis: int = -1, temperature: _PerRow[Tensor] = 1.0,
    divergence: str = "forward", scale: bool = True, reduction: str = "mean", softcap: float | None = None,
    where: _Mask[Tensor] | None = None, dtype: torch.dtype | str | None = None,
) -> Tensor: ...
@overload
def distillation(
    z_student: _X, z_teacher: _X, *, axis: int = -1, temperature: _PerRow[_X] = 1.0, divergence: str = "forward",
    scale: bool = True, reduction: str = "mean", softcap: float | None = None, where: _Mask[_X] | None = None,
    dtype: object | None = None,
) -> _X: ...

@overload
def entmax(
    z: _ArrayLike, /, alpha: _PerRow[NDArray[Any]] = 1.5, *, axis: int | tuple[int, ...] | None = -1,
    temperature: _PerRow[NDArray[Any]] = 1.0, base: float | None = None, where: _Mask[NDArray[Any]] | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return the entmax: sparse probabilities that interpolate softmax (order 1) and sparsemax (order 2)."""
@overload
def entmax(
    z: Tensor, /, alpha: _PerRow[Tensor] = 1.5, *, axis: int | tuple[int, ...] | None = -1,
    temperature: _PerRow[Tensor] = 1.0, base: float | None = None, where: _Mask[Tensor] | None = None,
    out: Tensor | None = None,
) -> Tensor: ...
@overload
def entmax(
    z: _X, /, alpha: _PerRow[_X] = 1.5, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[_X] = 1.0,
    base: float | None = None, where: _Mask[_X] | None = None, out: _X | None = None,
) -> _X: ...

@overload
def entmax_loss(
    z: _ArrayLike, /, target: _Target[NDArray[Any]], alpha: _PerRow[NDArray[Any]] = 1.5, *, axis: int = -1,
    reduction: str = "mean", ignore_index: int = -100, weight: _Numbers[NDArray[Any]] | None = None,
    label_smoothing: float = 0.0, temperature: _PerRow[NDArray[Any]] = 1.0,
    where: _Mask[NDArray[Any]] | None = None, dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return the Fenchel-Young loss of entmax: convex in the scores, and 0 where p equals the target."""
@overload
def entmax_loss(
    z: Tensor, /, target: _Target[Tensor], alpha: _PerRow[Tensor] = 1.5, *, axis: int = -1, reduction: str = "mean",
    ignore_index: int = -100, weight: _Numbers[Tensor] | None = None, label_smoothing: float = 0.0,
    temperature: _PerRow[Tensor] = 1.0, where: _Mask[Tensor] | None = None, dtype: torch.dtype | str | None = None,
) -> Tensor: ...
@overload
def entmax_loss(
    z: _X, /, target: _Target[_X], alpha: _PerRow[_X] = 1.5, *, axis: int = -1, reduction: str = "mean",
    ignore_index: int = -100, weight: _Numbers[_X] | None = None, label_smoothing: float = 0.0,
    temperature: _PerRow[_X] = 1.0, where: _Mask[_X] | None = None, dtype: object | None = None,
) -> _X: ...

@overload
def entropy(
    z: _ArrayLike, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[NDArray[Any]] = 1.0,
    base: float | None = None, where: _Mask[NDArray[Any]] | None = None, keepdims: bool = False,
) -> NDArray[Any]:
    """Return the Shannon entropy of the softmax, in nats."""
@overload
def entropy(
    z: Tensor, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[Tensor] = 1.0,
    base: float | None = None, where: _Mask[Tensor] | None = None, keepdims: bool = False,
) -> Tensor: ...
@overload
def entropy(
    z: _X, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[_X] = 1.0, base: float | None = None,
    where: _Mask[_X] | None = None, keepdims: bool = False,
) -> _X: ...

@overload
def entropy_invariant_scale(n: int, d: int, /, kappa: float = 1.0) -> float:  # type: ignore[overload-overlap]
    """Return a scale for attention scores that keeps the entropy of p about the same for any number of keys."""
@overload
def entropy_invariant_scale(
    n: _Integers[NDArray[Any]], d: int, /, kappa: _Numbers[NDArray[Any]] = 1.0,
) -> NDArray[Any]: ...
@overload
def entropy_invariant_scale(n: Tensor, d: int, /, kappa: _Numbers[Tensor] = 1.0) -> Tensor: ...
@overload
def entropy_invariant_scale(n: _Integers[Tensor], d: int, /, kappa: Tensor) -> Tensor: ...
@overload
def entropy_invariant_scale(n: _X, d: int, /, kappa: _Numbers[_X] = 1.0) -> _X: ...
@overload
def entropy_invariant_scale(n: _Integers[_X], d: int, /, kappa: _X) -> _X: ...

@overload
def factor_graph(
    subscripts: str, /, *factors: _ArrayLike, temperature: _PerRow[NDArray[Any]] = 1.0,
) -> FactorGraph[NDArray[Any]]:
    """Return the distribution of a configuration x of discrete variables, a softmax over all configurations."""
@overload
def factor_graph(
    subscripts: str, /, *factors: Tensor, temperature: _PerRow[Tensor] = 1.0,
) -> FactorGraph[Tensor]: ...
@overload
def factor_graph(subscripts: str, /, *factors: _X, temperature: _PerRow[_X] = 1.0) -> FactorGraph[_X]: ...

@overload
def filter_scores(
    z: _ArrayLike, /, *, temperature: _PerRow[NDArray[Any]] = 1.0, top_k: _PerRow[NDArray[Any]] | None = None,
    top_p: _PerRow[NDArray[Any]] | None = None, min_p: _PerRow[NDArray[Any]] | None = None,
    typical_p: _PerRow[NDArray[Any]] | None = None, epsilon: _PerRow[NDArray[Any]] | None = None,
    eta: _PerRow[NDArray[Any]] | None = None, where: _Mask[NDArray[Any]] | None = None, order: str = "top_k_first",
    axis: int = -1,
) -> NDArray[Any]:
    """Return the scores, with -inf for every class that the filters remove."""
@overload
def filter_scores(
    z: Tensor, /, *, temperature: _PerRow[Tensor] = 1.0, top_k: _PerRow[Tensor] | None = None,
    top_p: _PerRow[Tensor] | None = None, min_p: _PerRow[Tensor] | None = None,
    typical_p: _PerRow[Tensor] | None = None, epsilon: _PerRow[Tensor] | None = None,
    eta: _PerRow[Tensor] | None = None, where: _Mask[Tensor] | None = None, order: str = "top_k_first",
    axis: int = -1,
) -> Tensor: ...
@overload
def filter_scores(
    z: _X, /, *, temperature: _PerRow[_X] = 1.0, top_k: _PerRow[_X] | None = None, top_p: _PerRow[_X] | None = None,
    min_p: _PerRow[_X] | None = None, typical_p: _PerRow[_X] | None = None, epsilon: _PerRow[_X] | None = None,
    eta: _PerRow[_X] | None = None, where: _Mask[_X] | None = None, order: str = "top_k_first", axis: int = -1,
) -> _X: ...

def get_num_threads() -> int:
    """The number of threads used for large inputs."""

@overload
def gumbel(
    shape: int | tuple[int, ...], *, like: _ArrayLike | None = None, seed: _Seed | None = None,
    generator: _Generator | None = None,
) -> NDArray[Any]:
    """Return standard Gumbel noise."""
@overload
def gumbel(
    shape: int | tuple[int, ...], *, like: Tensor, seed: _Seed | None = None, generator: _Generator | None = None,
) -> Tensor: ...
@overload
def gumbel(
    shape: int | tuple[int, ...], *, like: _X, seed: _Seed | None = None, generator: _Generator | None = None,
) -> _X: ...

@overload
def gumbel_softmax(
    z: _ArrayLike, /, *, temperature: _PerRow[NDArray[Any]] = 1.0, hard: bool = False, axis: int = -1,
    where: _Mask[NDArray[Any]] | None = None, seed: _Seed | None = None,
    stream: _Integers[NDArray[Any]] | None = None, generator: _Generator | None = None,
) -> NDArray[Any]:
    """Return a relaxed draw from the softmax: a point of the simplex that gradients can flow through."""
@overload
def gumbel_softmax(
    z: Tensor, /, *, temperature: _PerRow[Tensor] = 1.0, hard: bool = False, axis: int = -1,
    where: _Mask[Tensor] | None = None, seed: _Seed | None = None, stream: _Integers[Tensor] | None = None,
    generator: _Generator | None = None,
) -> Tensor: ...
@overload
def gumbel_softmax(
    z: _X, /, *, temperature: _PerRow[_X] = 1.0, hard: bool = False, axis: int = -1, where: _Mask[_X] | None = None,
    seed: _Seed | None = None, stream: _Integers[_X] | None = None, generator: _Generator | None = None,
) -> _X: ...

@overload
def hardmax(
    z: _ArrayLike, /, *, axis: int | tuple[int, ...] | None = -1, where: _Mask[NDArray[Any]] | None = None,
) -> NDArray[Any]:
    """Return the limit of softmax as T -> 0+: the arg max as a distribution, in which ties share the
    probability."""
@overload
def hardmax(
    z: Tensor, /, *, axis: int | tuple[int, ...] | None = -1, where: _Mask[Tensor] | None = None,
) -> Tensor: ...
@overload
def hardmax(z: _X, /, *, axis: int | tuple[int, ...] | None = -1, where: _Mask[_X] | None = None) -> _X: ...

@overload
def kl_divergence(
    z_p: _ArrayLike, z_q: _ArrayLike, /, *, axis: int | tuple[int, ...] | None = -1,
    temperature: _PerRow[NDArray[Any]] = 1.0, base: float | None = None, where: _Mask[NDArray[Any]] | None = None,
    keepdims: bool = False,
) -> NDArray[Any]:
    """Return the Kullback-Leibler divergence of two softmaxes from their scores, in nats."""
@overload
def kl_divergence(
    z_p: Tensor, z_q: Tensor, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[Tensor] = 1.0,
    base: float | None = None, where: _Mask[Tensor] | None = None, keepdims: bool = False,
) -> Tensor: ...
@overload
def kl_divergence(
    z_p: _X, z_q: _X, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[_X] = 1.0,
    base: float | None = None, where: _Mask[_X] | None = None, keepdims: bool = False,
) -> _X: ...

@overload
def linear_chain(
    emissions: _ArrayLike, transitions: _Numbers[NDArray[Any]], /, *,
    lengths: _Integers[NDArray[Any]] | None = None, start: _Numbers[NDArray[Any]] | None = None,
    end: _Numbers[NDArray[Any]] | None = None,
) -> LinearChain[NDArray[Any]]:
    """Return the distribution of paths of tags y, whose probability is a softmax over all paths."""
@overload
def linear_chain(
    emissions: Tensor, transitions: _Numbers[Tensor], /, *, lengths: _Integers[Tensor] | None = None,
    start: _Numbers[Tensor] | None = None, end: _Numbers[Tensor] | None = None,
) -> LinearChain[Tensor]: ...
@overload
def linear_chain(
    emissions: _X, transitions: _Numbers[_X], /, *, lengths: _Integers[_X] | None = None,
    start: _Numbers[_X] | None = None, end: _Numbers[_X] | None = None,
) -> LinearChain[_X]: ...

@overload
def linear_cross_entropy(
    h: _ArrayLike, w: _ArrayLike, target: _Target[NDArray[Any]], *, bias: _Numbers[NDArray[Any]] | None = None,
    exact: bool = False, reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0.0,
    z_loss: float = 0.0, softcap: float | None = None, temperature: _PerRow[NDArray[Any]] = 1.0,
    weight: _Numbers[NDArray[Any]] | None = None, where: _Mask[NDArray[Any]] | None = None,
    dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return the cross-entropy of a last layer's scores, without storing the scores."""
@overload
def linear_cross_entropy(
    h: Tensor, w: Tensor, target: _Target[Tensor], *, bias: _Numbers[Tensor] | None = None, exact: bool = False,
    reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    softcap: float | None = None, temperature: _PerRow[Tensor] = 1.0, weight: _Numbers[Tensor] | None = None,
    where: _Mask[Tensor] | None = None, dtype: torch.dtype | str | None = None,
) -> Tensor: ...
@overload
def linear_cross_entropy(
    h: _X, w: _X, target: _Target[_X], *, bias: _Numbers[_X] | None = None, exact: bool = False,
    reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    softcap: float | None = None, temperature: _PerRow[_X] = 1.0, weight: _Numbers[_X] | None = None,
    where: _Mask[_X] | None = None, dtype: object | None = None,
) -> _X: ...

@overload
def linear_cross_entropy_and_gradient(
    h: _ArrayLike, w: _ArrayLike, target: _Target[NDArray[Any]], *, bias: _Numbers[NDArray[Any]] | None = None,
    exact: bool = False, reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0.0,
    z_loss: float = 0.0, softcap: float | None = None, temperature: _PerRow[NDArray[Any]] = 1.0,
    weight: _Numbers[NDArray[Any]] | None = None, where: _Mask[NDArray[Any]] | None = None,
    dtype: DTypeLike | None = None,
) -> LinearLossAndGradient[NDArray[Any]]:
    """Return the cross-entropy of a last layer's scores and its gradients with respect to h, w and bias."""
@overload
def linear_cross_entropy_and_gradient(
    h: Tensor, w: Tensor, target: _Target[Tensor], *, bias: _Numbers[Tensor] | None = None, exact: bool = False,
    reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    softcap: float | None = None, temperature: _PerRow[Tensor] = 1.0, weight: _Numbers[Tensor] | None = None,
    where: _Mask[Tensor] | None = None, dtype: torch.dtype | str | None = None,
) -> LinearLossAndGradient[Tensor]: ...
@overload
def linear_cross_entropy_and_gradient(
    h: _X, w: _X, target: _Target[_X], *, bias: _Numbers[_X] | None = None, exact: bool = False,
    reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    softcap: float | None = None, temperature: _PerRow[_X] = 1.0, weight: _Numbers[_X] | None = None,
    where: _Mask[_X] | None = None, dtype: object | None = None,
) -> LinearLossAndGradient[_X]: ...

@overload
def linear_cross_entropy_terms(
    h: _ArrayLike, w: _ArrayLike, target: _Target[NDArray[Any]], *, bias: _Numbers[NDArray[Any]] | None = None,
    reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    softcap: float | None = None, temperature: _PerRow[NDArray[Any]] = 1.0,
    weight: _Numbers[NDArray[Any]] | None = None, where: _Mask[NDArray[Any]] | None = None,
    dtype: DTypeLike | None = None,
) -> CrossEntropyTerms[NDArray[Any]]:
    """Return loss, lse, entropy and z-loss of a last layer's scores, without storing the scores."""
@overload
def linear_cross_entropy_terms(
    h: Tensor, w: Tensor, target: _Target[Tensor], *, bias: _Numbers[Tensor] | None = None, reduction: str = "mean",
    ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None,
    temperature: _PerRow[Tensor] = 1.0, weight: _Numbers[Tensor] | None = None, where: _Mask[Tensor] | None = None,
    dtype: torch.dtype | str | None = None,
) -> CrossEntropyTerms[Tensor]: ...
@overload
def linear_cross_entropy_terms(
    h: _X, w: _X, target: _Target[_X], *, bias: _Numbers[_X] | None = None, reduction: str = "mean",
    ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None,
    temperature: _PerRow[_X] = 1.0, weight: _Numbers[_X] | None = None, where: _Mask[_X] | None = None,
    dtype: object | None = None,
) -> CrossEntropyTerms[_X]: ...

@overload
def linear_distillation(
    h_student: _ArrayLike, w_student: _ArrayLike, h_teacher: _ArrayLike, w_teacher: _ArrayLike, *,
    bias_student: _Numbers[NDArray[Any]] | None = None, bias_teacher: _Numbers[NDArray[Any]] | None = None,
    temperature: _PerRow[NDArray[Any]] = 1.0, divergence: str = "forward", scale: bool = True,
    reduction: str = "mean", softcap: float | None = None, where: _Mask[NDArray[Any]] | None = None,
    dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return the distillation loss of two last layers, without storing the scores of either model."""
@overload
def linear_distillation(
    h_student: Tensor, w_student: Tensor, h_teacher: Tensor, w_teacher: Tensor, *,
    bias_student: _Numbers[Tensor] | None = None, bias_teacher: _Numbers[Tensor] | None = None,
    temperature: _PerRow[Tensor] = 1.0, divergence: str = "forward", scale: bool = True, reduction: str = "mean",
    softcap: float | None = None, where: _Mask[Tensor] | None = None, dtype: torch.dtype | str | None = None,
) -> Tensor: ...
@overload
def linear_distillation(
    h_student: _X, w_student: _X, h_teacher: _X, w_teacher: _X, *, bias_student: _Numbers[_X] | None = None,
    bias_teacher: _Numbers[_X] | None = None, temperature: _PerRow[_X] = 1.0, divergence: str = "forward",
    scale: bool = True, reduction: str = "mean", softcap: float | None = None, where: _Mask[_X] | None = None,
    dtype: object | None = None,
) -> _X: ...

@overload
def linear_selected_log_softmax(
    h: _ArrayLike, w: _ArrayLike, index: _Integers[NDArray[Any]], *, bias: _Numbers[NDArray[Any]] | None = None,
    ignore_index: int = -100, softcap: float | None = None, temperature: _PerRow[NDArray[Any]] = 1.0,
    where: _Mask[NDArray[Any]] | None = None, dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return the log-probability of one class per row of a last layer's scores, without storing the scores."""
@overload
def linear_selected_log_softmax(
    h: Tensor, w: Tensor, index: _Integers[Tensor], *, bias: _Numbers[Tensor] | None = None,
    ignore_index: int = -100, softcap: float | None = None, temperature: _PerRow[Tensor] = 1.0,
    where: _Mask[Tensor] | None = None, dtype: torch.dtype | str | None = None,
) -> Tensor: ...
@overload
def linear_selected_log_softmax(
    h: _X, w: _X, index: _Integers[_X], *, bias: _Numbers[_X] | None = None, ignore_index: int = -100,
    softcap: float | None = None, temperature: _PerRow[_X] = 1.0, where: _Mask[_X] | None = None,
    dtype: object | None = None,
) -> _X: ...

@overload
def log_einsum(
    subscripts: str, /, *operands: _ArrayLike, temperature: _PerRow[NDArray[Any]] = 1.0, base: float | None = None,
) -> NDArray[Any]:
    """Return a contraction in the log semiring: `numpy.einsum` of exponentials, as logarithms."""
@overload
def log_einsum(
    subscripts: str, /, *operands: Tensor, temperature: _PerRow[Tensor] = 1.0, base: float | None = None,
) -> Tensor: ...
@overload
def log_einsum(
    subscripts: str, /, *operands: _X, temperature: _PerRow[_X] = 1.0, base: float | None = None,
) -> _X: ...

@overload
def log_matmul(
    a: _ArrayLike, b: _ArrayLike, /, *, temperature: _PerRow[NDArray[Any]] = 1.0, base: float | None = None,
    where_a: _Mask[NDArray[Any]] | None = None, where_b: _Mask[NDArray[Any]] | None = None,
) -> NDArray[Any]:
    """Return the product of two matrices in the log semiring: a matrix product of exponentials, as logarithms."""
@overload
def log_matmul(
    a: Tensor, b: Tensor, /, *, temperature: _PerRow[Tensor] = 1.0, base: float | None = None,
    where_a: _Mask[Tensor] | None = None, where_b: _Mask[Tensor] | None = None,
) -> Tensor: ...
@overload
def log_matmul(
    a: _X, b: _X, /, *, temperature: _PerRow[_X] = 1.0, base: float | None = None, where_a: _Mask[_X] | None = None,
    where_b: _Mask[_X] | None = None,
) -> _X: ...

@overload
def log_softmax(
    z: _ArrayLike, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[NDArray[Any]] = 1.0,
    base: float | None = None, where: _Mask[NDArray[Any]] | None = None, dtype: DTypeLike | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return the natural logarithm of the softmax, computed without the softmax itself."""
@overload
def log_softmax(
    z: Tensor, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[Tensor] = 1.0,
    base: float | None = None, where: _Mask[Tensor] | None = None, dtype: torch.dtype | str | None = None,
    out: Tensor | None = None,
) -> Tensor: ...
@overload
def log_softmax(
    z: _X, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[_X] = 1.0, base: float | None = None,
    where: _Mask[_X] | None = None, dtype: object | None = None, out: _X | None = None,
) -> _X: ...

@overload
def logcumsumexp(
    z: _ArrayLike, /, *, axis: int = -1, temperature: _PerRow[NDArray[Any]] = 1.0, base: float | None = None,
    where: _Mask[NDArray[Any]] | None = None,
) -> NDArray[Any]:
    """Return the smooth maximum of every prefix of a row, in the unit of the scores."""
@overload
def logcumsumexp(
    z: Tensor, /, *, axis: int = -1, temperature: _PerRow[Tensor] = 1.0, base: float | None = None,
    where: _Mask[Tensor] | None = None,
) -> Tensor: ...
@overload
def logcumsumexp(
    z: _X, /, *, axis: int = -1, temperature: _PerRow[_X] = 1.0, base: float | None = None,
    where: _Mask[_X] | None = None,
) -> _X: ...

@overload
def logsumexp(
    z: _ArrayLike, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[NDArray[Any]] = 1.0,
    base: float | None = None, weights: _Numbers[NDArray[Any]] | None = None,
    where: _Mask[NDArray[Any]] | None = None, keepdims: bool = False, dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return the smooth maximum: the logarithm of the sum of exponentials, in the unit of the scores."""
@overload
def logsumexp(
    z: Tensor, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[Tensor] = 1.0,
    base: float | None = None, weights: _Numbers[Tensor] | None = None, where: _Mask[Tensor] | None = None,
    keepdims: bool = False, dtype: torch.dtype | str | None = None,
) -> Tensor: ...
@overload
def logsumexp(
    z: _X, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[_X] = 1.0, base: float | None = None,
    weights: _Numbers[_X] | None = None, where: _Mask[_X] | None = None, keepdims: bool = False,
    dtype: object | None = None,
) -> _X: ...

@overload
def qk_norm(
    q: _ArrayLike, k: _ArrayLike, *, gain: _Numbers[NDArray[Any]] = 1.0, eps: float = 1e-06,
) -> _NormalizedQK[NDArray[Any]]:
    """Return queries and keys divided by their root mean squares, so that scores are bounded."""
@overload
def qk_norm(q: Tensor, k: Tensor, *, gain: _Numbers[Tensor] = 1.0, eps: float = 1e-06) -> _NormalizedQK[Tensor]: ...
@overload
def qk_norm(q: _X, k: _X, *, gain: _Numbers[_X] = 1.0, eps: float = 1e-06) -> _NormalizedQK[_X]: ...

@overload
def renyi_entropy(
    z: _ArrayLike, /, order: _PerRow[NDArray[Any]], *, axis: int | tuple[int, ...] | None = -1,
    temperature: _PerRow[NDArray[Any]] = 1.0, base: float | None = None, where: _Mask[NDArray[Any]] | None = None,
    keepdims: bool = False, dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return the Rényi entropy of the softmax, in nats: a measure of how many classes have a notable
    probability."""
@overload
def renyi_entropy(
    z: Tensor, /, order: _PerRow[Tensor], *, axis: int | tuple[int, ...] | None = -1,
    temperature: _PerRow[Tensor] = 1.0, base: float | None = None, where: _Mask[Tensor] | None = None,
    keepdims: bool = False, dtype: torch.dtype | str | None = None,
) -> Tensor: ...
@overload
def renyi_entropy(
    z: _X, /, order: _PerRow[_X], *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[_X] = 1.0,
    base: float | None = None, where: _Mask[_X] | None = None, keepdims: bool = False, dtype: object | None = None,
) -> _X: ...

@overload
def segment_log_softmax(
    z: _ArrayLike, /, offsets: _Integers[NDArray[Any]] | None = None, *,
    index: _Integers[NDArray[Any]] | None = None, num_segments: int | None = None,
    temperature: _PerRow[NDArray[Any]] = 1.0, where: _Mask[NDArray[Any]] | None = None,
) -> NDArray[Any]:
    """Return the natural logarithm of `segment_softmax`, computed without the softmax itself."""
@overload
def segment_log_softmax(
    z: Tensor, /, offsets: _Integers[Tensor] | None = None, *, index: _Integers[Tensor] | None = None,
    num_segments: int | None = None, temperature: _PerRow[Tensor] = 1.0, where: _Mask[Tensor] | None = None,
) -> Tensor: ...
@overload
def segment_log_softmax(
    z: _X, /, offsets: _Integers[_X] | None = None, *, index: _Integers[_X] | None = None,
    num_segments: int | None = None, temperature: _PerRow[_X] = 1.0, where: _Mask[_X] | None = None,
) -> _X: ...

@overload
def segment_logsumexp(
    z: _ArrayLike, /, offsets: _Integers[NDArray[Any]] | None = None, *,
    index: _Integers[NDArray[Any]] | None = None, num_segments: int | None = None,
    temperature: _PerRow[NDArray[Any]] = 1.0, where: _Mask[NDArray[Any]] | None = None,
) -> NDArray[Any]:
    """Return the smooth maximum of each segment of z's first axis."""
@overload
def segment_logsumexp(
    z: Tensor, /, offsets: _Integers[Tensor] | None = None, *, index: _Integers[Tensor] | None = None,
    num_segments: int | None = None, temperature: _PerRow[Tensor] = 1.0, where: _Mask[Tensor] | None = None,
) -> Tensor: ...
@overload
def segment_logsumexp(
    z: _X, /, offsets: _Integers[_X] | None = None, *, index: _Integers[_X] | None = None,
    num_segments: int | None = None, temperature: _PerRow[_X] = 1.0, where: _Mask[_X] | None = None,
) -> _X: ...

@overload
def segment_softmax(
    z: _ArrayLike, /, offsets: _Integers[NDArray[Any]] | None = None, *,
    index: _Integers[NDArray[Any]] | None = None, num_segments: int | None = None,
    temperature: _PerRow[NDArray[Any]] = 1.0, where: _Mask[NDArray[Any]] | None = None,
) -> NDArray[Any]:
    """Return the softmax of each segment of z's first axis."""
@overload
def segment_softmax(
    z: Tensor, /, offsets: _Integers[Tensor] | None = None, *, index: _Integers[Tensor] | None = None,
    num_segments: int | None = None, temperature: _PerRow[Tensor] = 1.0, where: _Mask[Tensor] | None = None,
) -> Tensor: ...
@overload
def segment_softmax(
    z: _X, /, offsets: _Integers[_X] | None = None, *, index: _Integers[_X] | None = None,
    num_segments: int | None = None, temperature: _PerRow[_X] = 1.0, where: _Mask[_X] | None = None,
) -> _X: ...

@overload
def selected_log_softmax(
    z: _ArrayLike, /, index: _Integers[NDArray[Any]], *, axis: int = -1, ignore_index: int = -100,
    softcap: float | None = None, temperature: _PerRow[NDArray[Any]] = 1.0,
    where: _Mask[NDArray[Any]] | None = None, dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return the log-probability of one or several classes of each row, without computing those of all classes."""
@overload
def selected_log_softmax(
    z: Tensor, /, index: _Integers[Tensor], *, axis: int = -1, ignore_index: int = -100,
    softcap: float | None = None, temperature: _PerRow[Tensor] = 1.0, where: _Mask[Tensor] | None = None,
    dtype: torch.dtype | str | None = None,
) -> Tensor: ...
@overload
def selected_log_softmax(
    z: _X, /, index: _Integers[_X], *, axis: int = -1, ignore_index: int = -100, softcap: float | None = None,
    temperature: _PerRow[_X] = 1.0, where: _Mask[_X] | None = None, dtype: object | None = None,
) -> _X: ...

def set_num_threads(n: int) -> None:
    """Limit this process to n threads from now on."""

@overload
def signed_logsumexp(
    z: _ArrayLike, /, weights: _Numbers[NDArray[Any]], *, axis: int | tuple[int, ...] | None = -1,
    where: _Mask[NDArray[Any]] | None = None, keepdims: bool = False,
) -> SignedLog[NDArray[Any]]:
    """Return the sum of exponentials with weights of either sign, as a sign and a logarithm."""
@overload
def signed_logsumexp(
    z: Tensor, /, weights: _Numbers[Tensor], *, axis: int | tuple[int, ...] | None = -1,
    where: _Mask[Tensor] | None = None, keepdims: bool = False,
) -> SignedLog[Tensor]: ...
@overload
def signed_logsumexp(
    z: _X, /, weights: _Numbers[_X], *, axis: int | tuple[int, ...] | None = -1, where: _Mask[_X] | None = None,
    keepdims: bool = False,
) -> SignedLog[_X]: ...

@overload
def soft_argmax(
    z: _ArrayLike, /, values: _Numbers[NDArray[Any]] | None = None, *, axis: int | tuple[int, ...] | None = -1,
    temperature: _PerRow[NDArray[Any]] = 1.0, where: _Mask[NDArray[Any]] | None = None, keepdims: bool = False,
) -> NDArray[Any]:
    """Return the mean of positions, or of any values, under the softmax: a differentiable arg max."""
@overload
def soft_argmax(
    z: Tensor, /, values: _Numbers[Tensor] | None = None, *, axis: int | tuple[int, ...] | None = -1,
    temperature: _PerRow[Tensor] = 1.0, where: _Mask[Tensor] | None = None, keepdims: bool = False,
) -> Tensor: ...
@overload
def soft_argmax(
    z: _X, /, values: _Numbers[_X] | None = None, *, axis: int | tuple[int, ...] | None = -1,
    temperature: _PerRow[_X] = 1.0, where: _Mask[_X] | None = None, keepdims: bool = False,
) -> _X: ...

@overload
def softmax(
    z: _ArrayLike, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[NDArray[Any]] = 1.0,
    base: float | None = None, where: _Mask[NDArray[Any]] | None = None, dtype: DTypeLike | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return the softmax: probabilities proportional to the exponentials of the scores."""
@overload
def softmax(
    z: Tensor, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[Tensor] = 1.0,
    base: float | None = None, where: _Mask[Tensor] | None = None, dtype: torch.dtype | str | None = None,
    out: Tensor | None = None,
) -> Tensor: ...
@overload
def softmax(
    z: _X, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[_X] = 1.0, base: float | None = None,
    where: _Mask[_X] | None = None, dtype: object | None = None, out: _X | None = None,
) -> _X: ...

@overload
def softmax_jacobian(
    z: _ArrayLike, /, *, axis: int = -1, temperature: _PerRow[NDArray[Any]] = 1.0, base: float | None = None,
) -> NDArray[Any]:
    """Return the Jacobian matrix of the softmax."""
@overload
def softmax_jacobian(
    z: Tensor, /, *, axis: int = -1, temperature: _PerRow[Tensor] = 1.0, base: float | None = None,
) -> Tensor: ...
@overload
def softmax_jacobian(
    z: _X, /, *, axis: int = -1, temperature: _PerRow[_X] = 1.0, base: float | None = None,
) -> _X: ...

@overload
def softmax_with_lse(
    z: _ArrayLike, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[NDArray[Any]] = 1.0,
    base: float | None = None, where: _Mask[NDArray[Any]] | None = None, dtype: DTypeLike | None = None,
) -> SoftmaxWithLse[NDArray[Any]]:
    """Return the softmax and the logarithm of its denominator, computed in one pass."""
@overload
def softmax_with_lse(
    z: Tensor, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[Tensor] = 1.0,
    base: float | None = None, where: _Mask[Tensor] | None = None, dtype: torch.dtype | str | None = None,
) -> SoftmaxWithLse[Tensor]: ...
@overload
def softmax_with_lse(
    z: _X, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[_X] = 1.0, base: float | None = None,
    where: _Mask[_X] | None = None, dtype: object | None = None,
) -> SoftmaxWithLse[_X]: ...

@overload
def softmin(
    z: _ArrayLike, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[NDArray[Any]] = 1.0,
    base: float | None = None, where: _Mask[NDArray[Any]] | None = None, dtype: DTypeLike | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return the softmin: the softmax at the negated temperature, which favours small scores."""
@overload
def softmin(
    z: Tensor, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[Tensor] = 1.0,
    base: float | None = None, where: _Mask[Tensor] | None = None, dtype: torch.dtype | str | None = None,
    out: Tensor | None = None,
) -> Tensor: ...
@overload
def softmin(
    z: _X, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[_X] = 1.0, base: float | None = None,
    where: _Mask[_X] | None = None, dtype: object | None = None, out: _X | None = None,
) -> _X: ...

@overload
def sparsemax(
    z: _ArrayLike, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[NDArray[Any]] = 1.0,
    base: float | None = None, where: _Mask[NDArray[Any]] | None = None, out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return the sparsemax: the point of the probability simplex that is nearest to the scores."""
@overload
def sparsemax(
    z: Tensor, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[Tensor] = 1.0,
    base: float | None = None, where: _Mask[Tensor] | None = None, out: Tensor | None = None,
) -> Tensor: ...
@overload
def sparsemax(
    z: _X, /, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[_X] = 1.0, base: float | None = None,
    where: _Mask[_X] | None = None, out: _X | None = None,
) -> _X: ...

@overload
def sparsemax_loss(
    z: _ArrayLike, /, target: _Target[NDArray[Any]], *, axis: int = -1, reduction: str = "mean",
    ignore_index: int = -100, weight: _Numbers[NDArray[Any]] | None = None, label_smoothing: float = 0.0,
    temperature: _PerRow[NDArray[Any]] = 1.0, where: _Mask[NDArray[Any]] | None = None,
    dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return the loss of sparsemax. The loss is 0 if the target's score is higher than all others by T or more."""
@overload
def sparsemax_loss(
    z: Tensor, /, target: _Target[Tensor], *, axis: int = -1, reduction: str = "mean", ignore_index: int = -100,
    weight: _Numbers[Tensor] | None = None, label_smoothing: float = 0.0, temperature: _PerRow[Tensor] = 1.0,
    where: _Mask[Tensor] | None = None, dtype: torch.dtype | str | None = None,
) -> Tensor: ...
@overload
def sparsemax_loss(
    z: _X, /, target: _Target[_X], *, axis: int = -1, reduction: str = "mean", ignore_index: int = -100,
    weight: _Numbers[_X] | None = None, label_smoothing: float = 0.0, temperature: _PerRow[_X] = 1.0,
    where: _Mask[_X] | None = None, dtype: object | None = None,
) -> _X: ...

@overload
def spatial_soft_argmax(
    z: _ArrayLike, /, *, axis: int | tuple[int, ...] | None = (-2, -1), temperature: _PerRow[NDArray[Any]] = 1.0,
    where: _Mask[NDArray[Any]] | None = None,
) -> NDArray[Any]:
    """Return the mean position under the softmax of an image or grid: one coordinate per axis."""
@overload
def spatial_soft_argmax(
    z: Tensor, /, *, axis: int | tuple[int, ...] | None = (-2, -1), temperature: _PerRow[Tensor] = 1.0,
    where: _Mask[Tensor] | None = None,
) -> Tensor: ...
@overload
def spatial_soft_argmax(
    z: _X, /, *, axis: int | tuple[int, ...] | None = (-2, -1), temperature: _PerRow[_X] = 1.0,
    where: _Mask[_X] | None = None,
) -> _X: ...

@overload
def speculative_sample(
    target: _ArrayLike, draft: _ArrayLike, tokens: _Integers[NDArray[Any]], /, *,
    temperature: _PerRow[NDArray[Any]] = 1.0, top_k: _PerRow[NDArray[Any]] | None = None,
    top_p: _PerRow[NDArray[Any]] | None = None, min_p: _PerRow[NDArray[Any]] | None = None,
    seed: _Seed | None = None, stream: _Integers[NDArray[Any]] | None = None, generator: _Generator | None = None,
    order: str = "top_k_first",
) -> SpeculativeSample[NDArray[Any]]:
    """Verify a chain of guessed tokens. The returned tokens have the distribution of the target model."""
@overload
def speculative_sample(
    target: Tensor, draft: Tensor, tokens: _Integers[Tensor], /, *, temperature: _PerRow[Tensor] = 1.0,
    top_k: _PerRow[Tensor] | None = None, top_p: _PerRow[Tensor] | None = None,
    min_p: _PerRow[Tensor] | None = None, seed: _Seed | None = None, stream: _Integers[Tensor] | None = None,
    generator: _Generator | None = None, order: str = "top_k_first",
) -> SpeculativeSample[Tensor]: ...
@overload
def speculative_sample(
    target: _X, draft: _X, tokens: _Integers[_X], /, *, temperature: _PerRow[_X] = 1.0,
    top_k: _PerRow[_X] | None = None, top_p: _PerRow[_X] | None = None, min_p: _PerRow[_X] | None = None,
    seed: _Seed | None = None, stream: _Integers[_X] | None = None, generator: _Generator | None = None,
    order: str = "top_k_first",
) -> SpeculativeSample[_X]: ...

@overload
def threshold(
    z: _ArrayLike, /, alpha: _PerRow[NDArray[Any]] = 1.5, *, axis: int | tuple[int, ...] | None = -1,
    temperature: _PerRow[NDArray[Any]] = 1.0, base: float | None = None, where: _Mask[NDArray[Any]] | None = None,
) -> Threshold[NDArray[Any]]:
    """Return the threshold of `entmax` and the number of positive probabilities."""
@overload
def threshold(
    z: Tensor, /, alpha: _PerRow[Tensor] = 1.5, *, axis: int | tuple[int, ...] | None = -1,
    temperature: _PerRow[Tensor] = 1.0, base: float | None = None, where: _Mask[Tensor] | None = None,
) -> Threshold[Tensor]: ...
@overload
def threshold(
    z: _X, /, alpha: _PerRow[_X] = 1.5, *, axis: int | tuple[int, ...] | None = -1, temperature: _PerRow[_X] = 1.0,
    base: float | None = None, where: _Mask[_X] | None = None,
) -> Threshold[_X]: ...

@overload
def topk_softmax(
    z: _ArrayLike, /, k: _PerRow[NDArray[Any]], *, axis: int = -1, temperature: _PerRow[NDArray[Any]] = 1.0,
    where: _Mask[NDArray[Any]] | None = None,
) -> NDArray[Any]:
    """Return the softmax over the k largest scores of each row, and 0 elsewhere."""
@overload
def topk_softmax(
    z: Tensor, /, k: _PerRow[Tensor], *, axis: int = -1, temperature: _PerRow[Tensor] = 1.0,
    where: _Mask[Tensor] | None = None,
) -> Tensor: ...
@overload
def topk_softmax(
    z: _X, /, k: _PerRow[_X], *, axis: int = -1, temperature: _PerRow[_X] = 1.0, where: _Mask[_X] | None = None,
) -> _X: ...

def using(name: str) -> AbstractContextManager[None]:
    """Select an implementation by name inside a `with` block. A call that it does not support raises
    RuntimeError."""
