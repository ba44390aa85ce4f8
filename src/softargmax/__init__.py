"""softargmax: the softmax family for NumPy, PyTorch and every array-API library.

Every public name is here, and loaded when it is first asked for; `_HOME` says where each one lives.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softargmax.attend import AttentionGradients as AttentionGradients
    from softargmax.attend import AttentionStats as AttentionStats
    from softargmax.attend import AttentionWithLse as AttentionWithLse
    from softargmax.attend import attention as attention
    from softargmax.attend import attention_paged as attention_paged
    from softargmax.attend import attention_state as attention_state
    from softargmax.attend import attention_stats as attention_stats
    from softargmax.attend import attention_varlen as attention_varlen
    from softargmax.attend import attention_vjp as attention_vjp
    from softargmax.attend import attention_with_lse as attention_with_lse
    from softargmax.attend import entropy_invariant_scale as entropy_invariant_scale
    from softargmax.attend import qk_norm as qk_norm
    from softargmax.core.dispatch import using as using
    from softargmax.core.native import get_num_threads as get_num_threads
    from softargmax.core.native import set_num_threads as set_num_threads
    from softargmax.core.state import State as State
    from softargmax.loss import CrossEntropyTerms as CrossEntropyTerms
    from softargmax.loss import LinearLossAndGradient as LinearLossAndGradient
    from softargmax.loss import LossAndGradient as LossAndGradient
    from softargmax.loss import cross_entropy as cross_entropy
    from softargmax.loss import cross_entropy_and_gradient as cross_entropy_and_gradient
    from softargmax.loss import cross_entropy_terms as cross_entropy_terms
    from softargmax.loss import distillation as distillation
    from softargmax.loss import linear_cross_entropy as linear_cross_entropy
    from softargmax.loss import linear_cross_entropy_and_gradient as linear_cross_entropy_and_gradient
    from softargmax.loss import linear_cross_entropy_terms as linear_cross_entropy_terms
    from softargmax.loss import linear_distillation as linear_distillation
    from softargmax.loss import linear_selected_log_softmax as linear_selected_log_softmax
    from softargmax.loss import selected_log_softmax as selected_log_softmax
    from softargmax.normalize import Boltzmann as Boltzmann
    from softargmax.normalize import SignedLog as SignedLog
    from softargmax.normalize import SoftmaxWithLse as SoftmaxWithLse
    from softargmax.normalize import boltzmann as boltzmann
    from softargmax.normalize import entropy as entropy
    from softargmax.normalize import hardmax as hardmax
    from softargmax.normalize import kl_divergence as kl_divergence
    from softargmax.normalize import log_softmax as log_softmax
    from softargmax.normalize import logcumsumexp as logcumsumexp
    from softargmax.normalize import logsumexp as logsumexp
    from softargmax.normalize import renyi_entropy as renyi_entropy
    from softargmax.normalize import segment_log_softmax as segment_log_softmax
    from softargmax.normalize import segment_logsumexp as segment_logsumexp
    from softargmax.normalize import segment_softmax as segment_softmax
    from softargmax.normalize import signed_logsumexp as signed_logsumexp
    from softargmax.normalize import soft_argmax as soft_argmax
    from softargmax.normalize import softmax as softmax
    from softargmax.normalize import softmax_jacobian as softmax_jacobian
    from softargmax.normalize import softmax_with_lse as softmax_with_lse
    from softargmax.normalize import softmin as softmin
    from softargmax.normalize import spatial_soft_argmax as spatial_soft_argmax
    from softargmax.sample import CategoricalWithLogprob as CategoricalWithLogprob
    from softargmax.sample import SpeculativeSample as SpeculativeSample
    from softargmax.sample import boltzmann_policy as boltzmann_policy
    from softargmax.sample import categorical as categorical
    from softargmax.sample import categorical_with_logprob as categorical_with_logprob
    from softargmax.sample import filter_scores as filter_scores
    from softargmax.sample import gumbel as gumbel
    from softargmax.sample import gumbel_softmax as gumbel_softmax
    from softargmax.sample import speculative_sample as speculative_sample
    from softargmax.sparse import Threshold as Threshold
    from softargmax.sparse import entmax as entmax
    from softargmax.sparse import entmax_loss as entmax_loss
    from softargmax.sparse import sparsemax as sparsemax
    from softargmax.sparse import sparsemax_loss as sparsemax_loss
    from softargmax.sparse import threshold as threshold
    from softargmax.sparse import topk_softmax as topk_softmax

__version__ = "0.1.0"

_HOME = {
    "softargmax.attend": (
        "AttentionGradients",
        "AttentionStats",
        "AttentionWithLse",
        "attention",
        "attention_paged",
        "attention_state",
        "attention_stats",
        "attention_varlen",
        "attention_vjp",
        "attention_with_lse",
        "entropy_invariant_scale",
        "qk_norm",
    ),
    "softargmax.core.dispatch": ("using",),
    "softargmax.core.native": ("get_num_threads", "set_num_threads"),
    "softargmax.core.state": ("State",),
    "softargmax.loss": (
        "CrossEntropyTerms",
        "LinearLossAndGradient",
        "LossAndGradient",
        "cross_entropy",
        "cross_entropy_and_gradient",
        "cross_entropy_terms",
        "distillation",
        "linear_cross_entropy",
        "linear_cross_entropy_and_gradient",
        "linear_cross_entropy_terms",
        "linear_distillation",
        "linear_selected_log_softmax",
        "selected_log_softmax",
    ),
    "softargmax.normalize": (
        "Boltzmann",
        "SignedLog",
        "SoftmaxWithLse",
        "boltzmann",
        "entropy",
        "hardmax",
        "kl_divergence",
        "log_softmax",
        "logcumsumexp",
        "logsumexp",
        "renyi_entropy",
        "segment_log_softmax",
        "segment_logsumexp",
        "segment_softmax",
        "signed_logsumexp",
        "soft_argmax",
        "softmax",
        "softmax_jacobian",
        "softmax_with_lse",
        "softmin",
        "spatial_soft_argmax",
    ),
    "softargmax.sparse": (
        "Threshold",
        "entmax",
        "entmax_loss",
        "sparsemax",
        "sparsemax_loss",
        "threshold",
        "topk_softmax",
    ),
    "softargmax.sample": (
        "CategoricalWithLogprob",
        "SpeculativeSample",
        "boltzmann_policy",
        "categorical",
        "categorical_with_logprob",
        "filter_scores",
        "gumbel",
        "gumbel_softmax",
        "speculative_sample",
    ),
}
_MODULES = ("classify", "nn", "output", "stream")
_home_of = {name: home for home, names in _HOME.items() for name in names}

__all__ = ["__version__", *sorted(_home_of)]  # noqa: PLE0604 the names are strings


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"softargmax.{name}")
    home = _home_of.get(name)
    if home is None:
        raise AttributeError(f"module 'softargmax' has no attribute {name!r}")
    room = importlib.import_module(home)
    if "torch" in sys.modules and hasattr(room, "__path__"):
        # torch hears of the room's operators and functions before the first one is traced, not in its midst.
        from softargmax.core.torch_operation import register

        register(home)
    value = globals()[name] = getattr(room, name)  # the next access comes straight here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_home_of, *_MODULES})
