"""The gradient of log Z by importance sampling, with as many draws as it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from softargmax.core.arrays import readable
from softargmax.core.check import between, integer
from softargmax.core.signature import public
from softargmax.normalize import logsumexp
from softargmax.output.torch_sampled_base import Candidates, SampledKeywords, SamplingLayer

if TYPE_CHECKING:
    from softargmax.output.sampler_base import Sampler
    from softargmax.output.torch_base import Targets

__all__ = ["ImportanceSampledSoftmax"]


class ImportanceSampledSoftmax(SamplingLayer):
    r"""A softmax whose log Z is estimated by self-normalised importance sampling.

    .. math:: \text{loss} = \log \sum_{j \in S} r_j - s_y, \qquad r_j = \frac{e^{s_j}}{n\, q_j}, \qquad
        s_k = \langle h, w_k \rangle + b_k

    where S are n draws from the sampler's distribution q, with replacement.

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    sampler : Sampler
        q, over the K classes.
    samples : int
        n, how many classes are drawn at first.
    least_ess : float
        The effective sample size that every row is to have: as long as one has less, n is doubled, for all rows where
        they share their draws. 0: n stays.
    most : int, optional
        What n may grow to; without it, 16 times `samples`.
    shared : bool
        Whether all rows of a call have the same draws, which makes their scores one product; or each its own.
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
    ess : Tensor
        The effective sample sizes :math:`(\sum r)^2 / \sum r^2` of the rows of the last call that counted (on
        devices of all rows). Where calls are traced (`torch.compile`, `torch.func`) it stays what it was, and n does
        not grow.
    drawn : int
        The n that the last such call came to.
    step : Tensor
        As of `SampledSoftmax`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of a wrong kind or out of its range.

    Notes
    -----
    The module is called as `SampledSoftmax` is; with negatives that are given, n is their number and does not grow. The
    other methods are those of the softmax over all classes.

    The sum over S is an unbiased estimate of Z, so the loss tends to the full softmax's as n grows, from below in the
    mean. It can be negative: the target need not be among the draws. Once a model is surer than n draws can tell, that
    has no end: scores of targets grow, the loss falls, and the true one rises (`softargmax train-words`, 32,768 classes
    and 1024 draws: after 20 seconds). `SampledSoftmax` counts the target as it is, and does not do that.

    Gradients: :math:`\sum_{j \in S} r_j s'_j / \sum_{j \in S} r_j - s'_y`, the estimator of the reference.

    References
    ----------
    Bengio & Senécal (2008), Adaptive importance sampling to accelerate training of a neural probabilistic language
    model, sections III and IV. IEEE Transactions on Neural Networks 19. Kong (1992), A note on importance sampling
    using standardized weights (the effective sample size).

    See Also
    --------
    SampledSoftmax

    Examples
    --------
    >>> import torch, softargmax
    >>> from softargmax.output import Uniform
    >>> layer = softargmax.nn.ImportanceSampledSoftmax(4, Uniform(1000), samples=50, least_ess=150)
    >>> loss = layer(torch.zeros(2, 4), torch.tensor([3, 9]))
    >>> loss, layer.drawn, layer.ess.round()  # log 1000: all scores are 0, every draw counts in full
    (tensor(6.9078, grad_fn=<...>), 200, tensor([200., 200.]))
    """

    @public
    def __init__(
        self,
        dim: int,
        sampler: Sampler,
        *,
        samples: int,
        least_ess: float = 0.0,
        most: int | None = None,
        shared: bool = True,
        **options: Unpack[SampledKeywords],
    ) -> None:
        super().__init__(dim, sampler, samples=samples, unique=False, shared=shared, **options)
        self.least_ess = between(least_ess, "least_ess", float("inf"))
        self.most = 16 * self.samples if most is None else integer(most, "most")
        if self.most < self.samples:
            raise ValueError(f"most: expected at least samples, {self.samples}, got {self.most}")
        self.ess, self.drawn = torch.empty(0), 0

    def _losses(self, h: Tensor, y: Targets, drawn: Candidates | None = None) -> Tensor:
        given, looks, n = drawn, readable(h), self.samples
        while True:
            drawn = self._drawn_for(h, y, n) if given is None else given
            own, s = self._scored(h, y, drawn.index)
            log_r = s - drawn.log_expected
            log_z = logsumexp(log_r)
            if looks:
                self.ess = (2 * log_z.detach() - logsumexp(2 * log_r.detach())).exp()
                self.drawn = drawn.index.shape[-1]
            if given is not None or not looks or n == self.most or not bool((self.ess < self.least_ess).any()):
                break
            n = min(2 * n, self.most)
        loss: Tensor = log_z - own
        return loss
