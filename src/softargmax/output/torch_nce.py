"""Losses that tell the target from noise: noise-contrastive estimation, and negative sampling."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from softargmax.core.signature import public
from softargmax.output.counts import finite
from softargmax.output.torch_base import back
from softargmax.output.torch_class_scores import scores
from softargmax.output.torch_sampled_base import Candidates, SampledKeywords, SamplingLayer

if TYPE_CHECKING:
    from softargmax.output.sampler_base import Sampler
    from softargmax.output.torch_base import Targets

__all__ = ["NCE", "NegativeSampling"]

_LOG_Z = ("learned", "context")


class NCE(SamplingLayer):
    r"""Noise-contrastive estimation: a softmax that is trained to tell targets from noise.

    .. math:: \text{loss} = -\log \sigma(\Delta_y) - \sum_{j \in S} \log \sigma(-\Delta_j), \qquad
        \Delta_k = s_k - \log Z - \log E\,\#k, \qquad s_k = \langle h, w_k \rangle + b_k

    where S are n draws of noise and :math:`E\,\#k` is how often class k is expected among them, n q_k.

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    sampler : Sampler
        Of the noise, over the K classes. A class that it never draws is never told from noise: as a target it adds 0.
    samples : int
        n, how much noise is drawn.
    log_z : float or {"learned", "context"}
        log Z: a fixed number, 0 trains scores that normalise themselves; one that is learned; or one for each h
        (:math:`\langle h, u \rangle + c`, learned). It, or where it is fixed the bias (if there is one), begins such
        that scores of 0 are normalised. Gradients to what is learned are dense, whatever `sparse` says.
    unique : bool
        Whether draws are distinct.
    shared : bool
        Whether all rows of a call have the same noise, which makes its scores one product; or each its own.
    seed, sparse
        As of `SampledSoftmax`.
    bias, weight, reduction, ignore_index, device, dtype
        As of `FullSoftmax`.

    Attributes
    ----------
    weight : Parameter
        W, (K, D).
    bias : Parameter or None
        b, (K,).
    log_z : Parameter or float
        log Z, (), if it is no function of h.
    context : torch.nn.Linear or None
        u and c where it is one.
    step : Tensor
        As of `SampledSoftmax`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of a wrong kind or out of its range.

    Notes
    -----
    The module is called as `SampledSoftmax` is. `log_prob`, `log_prob_of`, `topk` and `sample` are exact: they sum over
    all classes. `log_score_of` does not: it is s_y - log Z, which training makes tend to log p(y | h).

    At any n the expected loss is least where :math:`e^{s_k} / Z = p(k \mid h)`, so that the estimate is consistent.
    Where the scores are normalised already, the gradient tends to that of maximum likelihood as n grows; elsewhere it
    also pulls at their sum.

    Beside negatives that are given, n is their number and :math:`E\,\#y` that of n draws of the sampler.

    Gradients: every s_k of the target and the noise has :math:`\sigma(\Delta_k)`, that of the target less 1; log Z has
    minus their sum.

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
        self._begin()

    def reset_parameters(self) -> None:
        """As of `FullSoftmax`, and log Z, or where it is fixed the bias, such that scores of 0 are normalised."""
        super().reset_parameters()
        self._begin()

    def _begin(self) -> None:
        if self.context is not None:
            nn.init.zeros_(self.context.weight)
            nn.init.constant_(self.context.bias, log(self.classes))
        elif isinstance(self.log_z, nn.Parameter):
            nn.init.constant_(self.log_z, log(self.classes))
        elif self.bias is not None:
            nn.init.constant_(self.bias, self.log_z - log(self.classes))

    def log_score_of(self, hidden: Tensor, target: Tensor) -> Tensor:
        """The score of one class of each row less log Z, (...): log p as far as it has been learned to be one."""
        h, shape, y = self._given(hidden, target)
        own, _ = self._scored(h, y, y.classes.new_empty(len(h), 0))
        return back(own - self._log_z(h), shape, y)

    def _log_z(self, h: Tensor) -> Tensor:
        """(), or (N,)."""
        if self.context is None:
            return torch.as_tensor(self.log_z, dtype=h.dtype, device=h.device)
        return scores(h, self.context.weight, self.context.bias)[:, 0]

    def _losses(self, h: Tensor, y: Targets, drawn: Candidates | None = None) -> Tensor:
        drawn = self._drawn_for(h, y, self.samples) if drawn is None else drawn
        expected = self._expected(self.sampler, y.classes, drawn.index.shape[-1], unique=self.unique).log().to(h.dtype)
        z = self._log_z(h)
        if drawn.index.ndim > 1:
            both = torch.cat([expected[:, None], drawn.log_expected], 1)
            return self._told_apart(h, y, drawn.index, 0.0 - z[..., None] - both)
        own, s = self._scored(h, y, drawn.index)
        own = own - z - expected
        return 0.0 - logsigmoid(own) - logsigmoid(z[..., None] + drawn.log_expected - s).sum(1)


class NegativeSampling(SamplingLayer):
    r"""word2vec's loss: targets are told from negatives, without asking how likely these were.

    .. math:: \text{loss} = -\log \sigma(s_y) - \sum_{j \in S} \log \sigma(-s_j), \qquad
        s_k = \langle h, w_k \rangle + b_k

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    sampler : Sampler
        Of the negatives, over the K classes: `Unigram` of their counts, usually.
    samples : int
        n, how many negatives are drawn.
    unique : bool
        Whether draws are distinct.
    shared : bool
        Whether all rows of a call have the same negatives, which makes their scores one product; or each its own.
    seed, sparse
        As of `SampledSoftmax`.
    bias, weight, reduction, ignore_index, device, dtype
        As of `FullSoftmax`.

    Attributes
    ----------
    weight : Parameter
        W, (K, D).
    bias : Parameter or None
        b, (K,).
    step : Tensor
        As of `SampledSoftmax`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of a wrong kind or out of its range.

    Notes
    -----
    The module is called as `SampledSoftmax` is. It learns embeddings and no distribution: at its best
    :math:`s_k = \log p(k \mid h) - \log q_k - \log n`. So `log_prob`, `log_prob_of`, `topk` and `sample` raise
    NotImplementedError; `scores` ranks.

    Draws of the target itself count as negatives, as in the definition.

    Gradients: every s_k of the target and the negatives has :math:`\sigma(s_k)`, that of the target less 1.

    References
    ----------
    Mikolov, Sutskever, Chen, Corrado & Dean (2013), Distributed representations of words and phrases and their
    compositionality, section 2.2. NeurIPS. arXiv:1310.4546. Levy & Goldberg (2014), Neural word embedding as implicit
    matrix factorization, section 3.1 (what is best). NeurIPS.

    See Also
    --------
    NCE : the same with a distribution.

    Examples
    --------
    >>> import torch, softargmax
    >>> from softargmax.output import Unigram
    >>> layer = softargmax.nn.NegativeSampling(4, Unigram([5, 3, 2, 1]), samples=5)
    >>> layer(torch.zeros(2, 4), torch.tensor([0, 3])) / torch.tensor(2.0).log()  # of 6 coins
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
            return self._told_apart(h, y, drawn.index)
        own, s = self._scored(h, y, drawn.index)
        return 0.0 - logsigmoid(own) - logsigmoid(-s).sum(1)

    def _log_p(self, h: Tensor) -> Tensor:
        raise NotImplementedError("NegativeSampling defines no distribution; `scores` ranks, NCE has log_prob")

    def _log_p_of(self, h: Tensor, y: Targets) -> Tensor:  # noqa: ARG002 a target makes no difference
        return self._log_p(h)
