"""Losses that classify targets against noise: noise-contrastive estimation and negative sampling."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from softargmax.core.signature import public
from softargmax.output.counts import finite
from softargmax.output.torch_base import restore_rows
from softargmax.output.torch_class_scores import scores
from softargmax.output.torch_sampled_base import Candidates, SampledKeywords, SamplingLayer

if TYPE_CHECKING:
    from softargmax.output.sampler_base import Sampler
    from softargmax.output.torch_base import Targets

__all__ = ["NCE", "NegativeSampling"]

_LOG_Z = ("learned", "context")


class NCE(SamplingLayer):
    r"""Noise-contrastive estimation: a softmax trained to distinguish targets from noise.

    .. math:: \text{loss} = -\log \sigma(\Delta_y) - \sum_{j \in S} \log \sigma(-\Delta_j), \qquad
        \Delta_k = s_k - \log Z - \log E\,\#k, \qquad s_k = \langle h, w_k \rangle + b_k

    Here S are n draws of noise, and :math:`E\,\#k = n q_k` is the expected count of class k among them.

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    sampler : Sampler
        Distribution of the noise over the K classes. A target that the sampler never draws adds 0 to the loss.
    samples : int
        n, the number of noise draws.
    log_z : float or {"learned", "context"}
        log Z. A float is a fixed value, and 0 trains self-normalised scores. "learned" is one learned number. "context"
        is a learned function of h, :math:`\langle h, u \rangle + c`. A learned log Z is initialised so that scores of 0
        are normalised. If log Z is fixed, the bias is initialised so that scores equal to the bias are normalised.
        Gradients to a learned log Z are always dense.
    unique : bool
        If True, the draws are distinct. Then :math:`E\,\#k` is the probability that class k is drawn.
    shared : bool
        If True, all rows of a call share their noise, and the scores are computed by one matrix product. If False, each
        row has its own noise.
    seed, sparse : int, bool
        As in `SampledSoftmax`: the seed of the draws, and whether gradients to weight and bias are sparse.
    bias, weight, reduction, ignore_index, device, dtype
        Options of the scores and the loss, as in `FullSoftmax`.

    Attributes
    ----------
    weight : Parameter
        W, (K, D).
    bias : Parameter or None
        b, (K,).
    log_z : Parameter or float
        log Z, shape (). It is 0.0 and unused if log Z is a function of h.
    context : torch.nn.Linear or None
        The weight u and the bias c of ``log_z="context"``.
    step : Tensor
        The number of calls in training mode, as in `SampledSoftmax`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    The module is called like `SampledSoftmax`. `log_prob`, `log_prob_of`, `topk` and `sample` are exact: they sum over
    all classes. `log_score_of` avoids this sum: it returns s_y - log Z, which tends to log p(y | h) in training.

    For any n, the expected loss is smallest where :math:`e^{s_k} / Z = p(k \mid h)`, so the estimate is consistent. If
    the scores are already normalised, the gradient tends to that of maximum likelihood as n grows. Otherwise the
    gradient also changes :math:`\sum_k e^{s_k}`.

    If negatives are passed to the call, n is their number, and :math:`E\,\#y` is the expected count of y in n draws of
    the sampler.

    The gradient is :math:`\sigma(\Delta_y) - 1` with respect to the target's score, and :math:`\sigma(\Delta_j)` with
    respect to the score of noise draw j. The gradient with respect to log Z is minus the sum of all these gradients.

    References
    ----------
    Gutmann & Hyvärinen (2012), Noise-contrastive estimation of unnormalized statistical models, section 2. JMLR 13.
    Mnih & Teh (2012), A fast and simple algorithm for training neural probabilistic language models, section 3 (log Z
    fixed at 0). ICML. arXiv:1206.6426.

    See Also
    --------
    SampledSoftmax, NegativeSampling

    Examples
    --------
    >>> import torch, softargmax
    >>> from softargmax.output import Unigram
    >>> layer = softargmax.nn.NCE(4, Unigram([5, 3, 2, 1]), samples=8, log_z=0.0)
    >>> h, y = torch.zeros(2, 4), torch.tensor([0, 3])
    >>> layer(h, y).backward()
    >>> layer.log_score_of(h, y).exp()
    tensor([0.2500, 0.2500], grad_fn=<...>)
    """

    log_z: nn.Parameter | float

    @public
    def __init__(
        self,
        dim: int,
        sampler: Sampler,
        *,
        samples: int,
        log_z: str | float = 0.0,
        unique: bool = False,
        shared: bool = True,
        **options: Unpack[SampledKeywords],
    ) -> None:
        if isinstance(log_z, str) and log_z not in _LOG_Z:
            raise ValueError(f"log_z: expected 'learned', 'context' or a number, got {log_z!r}")
        fixed = None if isinstance(log_z, str) else finite(log_z, "log_z")
        super().__init__(dim, sampler, samples=samples, unique=unique, shared=shared, **options)
        kind: dict[str, Any] = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.context = nn.Linear(self.dim, 1, **kind) if log_z == "context" else None
        if fixed is None:
            self.log_z = nn.Parameter(torch.zeros((), **kind)) if self.context is None else 0.0
        else:
            self.log_z = fixed
        self._init_log_z()

    def reset_parameters(self) -> None:
        """Reset the parameters as `FullSoftmax` does, then log Z.

        A learned log Z is set so that scores of 0 are normalised. If log Z is fixed, the bias is set so that scores
        equal to the bias are normalised.
        """
        super().reset_parameters()
        self._init_log_z()

    def _init_log_z(self) -> None:
        if self.context is not None:
            nn.init.zeros_(self.context.weight)
            nn.init.constant_(self.context.bias, log(self.classes))
        elif isinstance(self.log_z, nn.Parameter):
            nn.init.constant_(self.log_z, log(self.classes))
        elif self.bias is not None:
            nn.init.constant_(self.bias, self.log_z - log(self.classes))

    def log_score_of(self, hidden: Tensor, target: Tensor) -> Tensor:
        """Return s_y - log Z of one class per row, an estimate of log p(y | h). The shape is (...)."""
        h, shape, y = self._inputs(hidden, target)
        own, _ = self._scored(h, y, y.classes.new_empty(len(h), 0))
        return restore_rows(own - self._log_z(h), shape, y)

    def _log_z(self, h: Tensor) -> Tensor:
        """Return log Z, shape () or (N,)."""
        if self.context is None:
            return torch.as_tensor(self.log_z, dtype=h.dtype, device=h.device)
        return scores(h, self.context.weight, self.context.bias)[:, 0]

    def _losses(self, h: Tensor, y: Targets, drawn: Candidates | None = None) -> Tensor:
        drawn = self._drawn_for(h, y, self.samples) if drawn is None else drawn
        expected = self._expected(self.sampler, y.classes, drawn.index.shape[-1], unique=self.unique).log().to(h.dtype)
        z = self._log_z(h)
        if drawn.index.ndim > 1:
            both = torch.cat([expected[:, None], drawn.log_expected], 1)
            return self._binary_losses(h, y, drawn.index, 0.0 - z[..., None] - both)
        own, s = self._scored(h, y, drawn.index)
        own = own - z - expected
        return 0.0 - logsigmoid(own) - logsigmoid(z[..., None] + drawn.log_expected - s).sum(1)


class NegativeSampling(SamplingLayer):
    r"""The loss of word2vec, which classifies targets against negatives and ignores the negatives' probabilities.

    .. math:: \text{loss} = -\log \sigma(s_y) - \sum_{j \in S} \log \sigma(-s_j), \qquad
        s_k = \langle h, w_k \rangle + b_k

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    sampler : Sampler
        Distribution of the negatives over the K classes; commonly `Unigram` of the counts of the classes.
    samples : int
        n, the number of negatives.
    unique : bool
        If True, the draws are distinct.
    shared : bool
        If True, all rows of a call share their negatives, and the scores are computed by one matrix product. If False,
        each row has its own negatives.
    seed, sparse : int, bool
        As in `SampledSoftmax`: the seed of the draws, and whether gradients to weight and bias are sparse.
    bias, weight, reduction, ignore_index, device, dtype
        Options of the scores and the loss, as in `FullSoftmax`.

    Attributes
    ----------
    weight : Parameter
        W, (K, D).
    bias : Parameter or None
        b, (K,).
    step : Tensor
        The number of calls in training mode, as in `SampledSoftmax`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    The module is called like `SampledSoftmax`. The module learns embeddings, not a distribution: the optimum is
    :math:`s_k = \log p(k \mid h) - \log q_k - \log n`. So `log_prob`, `log_prob_of`, `topk` and `sample` raise
    NotImplementedError. Use `scores` for ranking.

    Draws of the target itself count as negatives, as in the reference by Mikolov et al.

    The gradient is :math:`\sigma(s_y) - 1` with respect to the target's score, and :math:`\sigma(s_j)` with respect to
    the score of negative j.

    References
    ----------
    Mikolov, Sutskever, Chen, Corrado & Dean (2013), Distributed representations of words and phrases and their
    compositionality, section 2.2. NeurIPS. arXiv:1310.4546. Levy & Goldberg (2014), Neural word embedding as implicit
    matrix factorization, section 3.1 (the optimum). NeurIPS.

    See Also
    --------
    NCE : corrects for the probability of the noise, and so learns a distribution.

    Examples
    --------
    >>> import torch, softargmax
    >>> from softargmax.output import Unigram
    >>> layer = softargmax.nn.NegativeSampling(4, Unigram([5, 3, 2, 1]), samples=5)
    >>> layer(torch.zeros(2, 4), torch.tensor([0, 3])) / torch.tensor(2.0).log()  # 6 binary losses of log 2
    tensor(6., grad_fn=<DivBackward0>)
    """

    @public
    def __init__(
        self,
        dim: int,
        sampler: Sampler,
        *,
        samples: int,
        unique: bool = False,
        shared: bool = False,
        **options: Unpack[SampledKeywords],
    ) -> None:
        super().__init__(dim, sampler, samples=samples, unique=unique, shared=shared, **options)

    def _losses(self, h: Tensor, y: Targets, drawn: Candidates | None = None) -> Tensor:
        drawn = self._drawn_for(h, y, self.samples) if drawn is None else drawn
        if drawn.index.ndim > 1:
            return self._binary_losses(h, y, drawn.index)
        own, s = self._scored(h, y, drawn.index)
        return 0.0 - logsigmoid(own) - logsigmoid(-s).sum(1)

    def _log_p(self, h: Tensor) -> Tensor:
        raise NotImplementedError("NegativeSampling has no distribution; rank by `scores`, or use NCE for log_prob")

    def _log_p_of(self, h: Tensor, y: Targets) -> Tensor:  # noqa: ARG002 raises for every target
        return self._log_p(h)
