"""Sampled softmax: the sum over all classes is estimated from some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from softargmax.core.signature import public
from softargmax.output.adaptive_unigram import Learned
from softargmax.output.sampler_base import Sampler
from softargmax.output.torch_sampled_base import Candidates, SampledKeywords, SamplingLayer, against_others

if TYPE_CHECKING:
    from softargmax.output.torch_base import Targets

__all__ = ["SampledSoftmax"]


class SampledSoftmax(SamplingLayer):
    r"""A softmax that is trained on the target and some negatives, drawn anew at each step.

    .. math:: \text{loss} = -\log \frac{e^{s_y}}{e^{s_y} + \sum_{j \in S,\, j \ne y} e^{s_j} / E\,\#j}, \qquad
        s_k = \langle h, w_k \rangle + b_k

    where :math:`E\,\#j` is how often class j is expected among the negatives S.

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    sampler : Sampler
        Of the K classes: `softargmax.output.LogUniform`, `Unigram`, `Learned`, .. A `Learned` one observes the targets
        when training, and its counts are in the state_dict.
    samples : int
        n, how many negatives are drawn.
    unique : bool
        Whether they are distinct.
    shared : bool
        Whether all rows of a call have the same negatives, which makes their scores one product; or each its own, that
        depend on its place in the call. Distinct ones are then drawn row by row, 0.7 ms each at K = 100,003.
    in_batch : Sampler, optional
        How the targets are distributed (`Unigram` of their counts with power=1, say, or `Learned`): then the other
        rows' targets are negatives, too. Among both together a class is expected :math:`E\,\#j + (N - 1)\, p_j` times,
        N being the number of rows that count.
    seed : int
        Of the draws: those of a step are a function of seed and step. Processes that train one model together want
        different seeds. It is in no checkpoint.
    sparse : bool
        Whether the gradients to weight and bias are sparse tensors of the classes that were met: for
        `torch.optim.SparseAdam` and SGD. A gradient that is itself to be differentiated is dense.
    bias, weight, reduction, ignore_index, device, dtype
        As of `FullSoftmax`.

    Attributes
    ----------
    weight : Parameter
        W, (K, D).
    bias : Parameter or None
        b, (K,).
    step : Tensor
        How many calls there were in training mode: a buffer, so that a checkpoint goes on with the next draws.

    Raises
    ------
    TypeError, ValueError
        If an argument is of a wrong kind or out of its range.

    Notes
    -----
    The module is called with hidden vectors (..., D) and targets (...), and returns the loss; a third argument,
    `softargmax.output.Negatives` of shapes (n,) or (..., n), is used in place of all that is drawn or mixed in. In eval
    mode the draws stay those of the step. Under activation checkpointing, which calls it again for the backward, it
    wants negatives that are given, or eval mode. `torch.compile` takes it whole (``fullgraph=True``), and compiled it
    draws what it draws uncompiled: the same classes for the same sampler, seed and step. The other methods, `scores`,
    `log_prob`, `log_prob_of`, `topk` and `sample`, are those of the softmax over all classes, which is what the layer
    is trained for.

    Draws of the target itself are removed, and its own score is not corrected: so the sum under the fraction is right
    in the mean, and the gradient tends to that of the full softmax as n grows. With distinct negatives and n = K it is
    the full softmax. At finite n the gradient is biased, the less the nearer the sampler is to the softmax itself.

    Memory: :math:`O(N n + (N + n) D)`; of negatives of their own :math:`O(N n)`.

    Gradients: those of a softmax over y and S.

    References
    ----------
    Bengio & Senécal (2008), Adaptive importance sampling to accelerate training of a neural probabilistic language
    model. IEEE Transactions on Neural Networks 19. Jean, Cho, Memisevic & Bengio (2015), section 3. arXiv:1412.2007.
    Blanc & Rendle (2018), Adaptive sampled softmax with kernel based sampling, section 2 (which scores are to be
    corrected). ICML. arXiv:1712.00527.

    See Also
    --------
    FullSoftmax, ImportanceSampledSoftmax, TargetSampledSoftmax, NCE

    Examples
    --------
    >>> import torch, softargmax
    >>> from softargmax.output import LogUniform
    >>> layer = softargmax.nn.SampledSoftmax(4, LogUniform(1000), samples=50, sparse=True)
    >>> loss = layer(torch.zeros(2, 4), torch.tensor([3, 9]))
    >>> loss.backward()
    >>> layer.weight.grad.coalesce().values().shape[0] <= 52  # rows that were met
    True
    >>> layer.log_prob(torch.zeros(4)).shape
    torch.Size([1000])
    """

    @public
    def __init__(
        self,
        dim: int,
        sampler: Sampler,
        *,
        samples: int,
        unique: bool = True,
        shared: bool = True,
        in_batch: Sampler | None = None,
        **options: Unpack[SampledKeywords],
    ) -> None:
        super().__init__(dim, sampler, samples=samples, unique=unique, shared=shared, **options)
        if in_batch is not None:
            if not isinstance(in_batch, Sampler):
                raise TypeError(f"in_batch: expected a Sampler, got {type(in_batch).__name__}")
            if in_batch.classes != self.classes:
                raise ValueError(
                    f"in_batch: expected a sampler of {self.classes} classes, got one of {in_batch.classes}"
                )
            if not shared:
                raise ValueError("in_batch: expected None, as shared is False, got a sampler")
        self.in_batch = in_batch

    def _losses(self, h: Tensor, y: Targets, drawn: Candidates | None = None) -> Tensor:
        drawn = self._mixed(self._drawn_for(h, y, self.samples), y) if drawn is None else drawn
        own, s = self._scored(h, y, drawn.index)
        return against_others(own, torch.where(drawn.index == y.classes[:, None], -torch.inf, s - drawn.log_expected))

    def _mixed(self, drawn: Candidates, y: Targets) -> Candidates:
        """The draws and the targets of all rows that count; each row's own is removed with the other draws of it.

        A class that none of both ever gives is no negative.
        """
        if self.in_batch is None:
            return drawn
        index = torch.cat([drawn.index, y.classes])
        others = (y.counted.sum() - 1) * self._expected(self.in_batch, index, 1, unique=False)
        expected = others + self._expected(self.sampler, index, self.samples, unique=self.unique)
        counts = torch.cat([torch.ones_like(drawn.index, dtype=torch.bool), y.counted]) & (expected > 0)
        log_expected = torch.where(counts, torch.where(counts, expected, 1).log(), torch.inf)
        return Candidates(index, log_expected.to(drawn.log_expected.dtype))

    def _learned(self) -> dict[str, Learned]:
        own = {"in_batch": self.in_batch} if isinstance(self.in_batch, Learned) else {}
        return super()._learned() | ({} if self.in_batch is self.sampler else own)
