"""Importance-sampled softmax: a loss whose log Z is estimated from random draws of classes."""

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

    Here S are n draws from the sampler's distribution q, with replacement.

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    sampler : Sampler
        The distribution q over the K classes.
    samples : int
        n, the initial number of draws.
    least_ess : float
        The effective sample size that every row must reach. While any row has less, n is doubled for all rows of the
        call. With 0, n does not grow.
    most : int, optional
        The largest n; defaults to 16 times `samples`.
    shared : bool
        If True, all rows of a call share their draws, and the scores are computed by one matrix product. If False, each
        row has its own draws.
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
    ess : Tensor
        The effective sample size :math:`(\sum r)^2 / \sum r^2` of each row that was not ignored in the last call.
        Only calls on the CPU that are not traced (`torch.compile`, `torch.func`) update `ess` and let n grow.
    drawn : int
        The number of draws, after all doublings, of the last call that updated `ess`.
    step : Tensor
        The number of calls in training mode, as in `SampledSoftmax`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    The module is called like `SampledSoftmax`. If negatives are passed, n is their number and does not grow. The other
    methods use the softmax over all classes.

    The sum over S is an unbiased estimate of Z. So the mean loss is below the loss of the full softmax, and tends to it
    as n grows. The loss can be negative, because the draws need not include the target. Once the model is too confident
    for n draws, training diverges. The scores of targets grow, this loss falls, and the true loss rises. With
    `softargmax train-words`, 32,768 classes and 1024 draws, this happens after 20 seconds. `SampledSoftmax` includes
    the target exactly and does not diverge this way.

    The gradient is :math:`\sum_{j \in S} r_j s'_j / \sum_{j \in S} r_j - s'_y`, where s' is the gradient of a score.
    This is the estimator of Bengio & Senécal.

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
    >>> loss, layer.drawn, layer.ess.round()  # log 1000, since all scores are 0; all draws have equal weight
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
            raise ValueError(f"most: expected at least {self.samples} (samples), got {self.most}")
        self.ess, self.drawn = torch.empty(0), 0

    def _losses(self, h: Tensor, y: Targets, drawn: Candidates | None = None) -> Tensor:
        provided, can_read, n = drawn, readable(h), self.samples
        while True:
            drawn = self._drawn_for(h, y, n) if provided is None else provided
            own, s = self._scored(h, y, drawn.index)
            log_r = s - drawn.log_expected
            log_z = logsumexp(log_r)
            if can_read:
                self.ess = (2 * log_z.detach() - logsumexp(2 * log_r.detach())).exp()
                self.drawn = drawn.index.shape[-1]
            if provided is not None or not can_read or n == self.most or not bool((self.ess < self.least_ess).any()):
                break
            n = min(2 * n, self.most)
        loss: Tensor = log_z - own
        return loss
