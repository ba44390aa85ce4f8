"""Sampled softmax: the loss of the target among random negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from softargmax.core.signature import public
from softargmax.output.adaptive_unigram import Learned
from softargmax.output.sampler_base import Sampler
from softargmax.output.torch_sampled_base import Candidates, SampledKeywords, SamplingLayer, candidate_loss

if TYPE_CHECKING:
    from softargmax.output.torch_base import Targets

__all__ = ["SampledSoftmax"]


class SampledSoftmax(SamplingLayer):
    r"""A softmax trained on the target and on negatives that are drawn at each step.

    .. math:: \text{loss} = -\log \frac{e^{s_y}}{e^{s_y} + \sum_{j \in S,\, j \ne y} e^{s_j} / E\,\#j}, \qquad
        s_k = \langle h, w_k \rangle + b_k

    Here :math:`E\,\#j` is the expected count of class j among the negatives S.

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    sampler : Sampler
        Distribution of the negatives over the K classes, for example `softargmax.output.LogUniform`, `Unigram` or
        `Learned`. A `Learned` sampler counts the targets during training, and its counts are in the state_dict.
    samples : int
        n, the number of negatives.
    unique : bool
        If True, the negatives are distinct.
    shared : bool
        If True, all rows of a call share their negatives, and the scores are computed by one matrix product. If False,
        each row has its own negatives, which depend on its position in the call. Distinct negatives are then drawn row
        by row, which takes 0.7 ms per row at K = 100,003.
    in_batch : Sampler, optional
        Distribution p of the targets, for example `Unigram` of their counts with power=1, or `Learned`. If passed, the
        targets of the other rows are also negatives. They add :math:`(N - 1)\, p_j` to :math:`E\,\#j`, where N is
        the number of rows that are not ignored.
    seed : int
        Seed of the draws. The draws of a step depend only on the sampler, the seed and the step. Processes that train
        one model together need different seeds. Checkpoints do not contain the seed.
    sparse : bool
        If True, the gradients to weight and bias are sparse tensors of the classes in the call, for
        `torch.optim.SparseAdam` and SGD. A gradient with ``create_graph=True`` is dense.
    bias, weight, reduction, ignore_index, device, dtype
        Options of the scores and the loss, as in `FullSoftmax`.

    Attributes
    ----------
    weight : Parameter
        W, (K, D).
    bias : Parameter or None
        b, (K,).
    step : Tensor
        The number of calls in training mode that drew negatives. It is a buffer, so a model from a checkpoint continues
        with the next draws.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    The module is called with hidden vectors (..., D) and targets (...), and returns the loss. A third argument,
    `softargmax.output.Negatives` of shapes (n,) or (..., n), replaces the drawn negatives and, with `in_batch`, the
    targets of the other rows. In eval mode the step does not advance, so the draws repeat. Activation checkpointing
    calls the layer again in the backward pass, and in training mode the second call draws other negatives. So with
    activation checkpointing, pass negatives or use eval mode. `torch.compile` supports the layer with
    ``fullgraph=True``. A compiled layer draws the same classes for the same sampler, seed and step. The other methods,
    `scores`, `log_prob`, `log_prob_of`, `topk` and `sample`, use the softmax over all classes, which the training
    approximates.

    Draws of the target itself are removed, and the target's score is not corrected. So the denominator is unbiased, and
    the gradient tends to the gradient of the full softmax as n grows. With distinct negatives and n = K, the loss is
    the loss of the full softmax. At finite n the gradient is biased. The closer the sampler is to the softmax itself,
    the smaller the bias.

    The memory is :math:`O(N n + (N + n) D)` with shared negatives, and :math:`O(N n)` otherwise.

    The gradients are those of a softmax over y and S.

    References
    ----------
    Bengio & Senécal (2008), Adaptive importance sampling to accelerate training of a neural probabilistic language
    model. IEEE Transactions on Neural Networks 19. Jean, Cho, Memisevic & Bengio (2015), section 3. arXiv:1412.2007.
    Blanc & Rendle (2018), Adaptive sampled softmax with kernel based sampling, section 2 (which scores to correct).
    ICML. arXiv:1712.00527.

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
    >>> layer.weight.grad.coalesce().values().shape[0] <= 52  # rows of the classes in the call
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
                raise ValueError("in_batch: expected None if shared is False, got a sampler")
        self.in_batch = in_batch

    def _losses(self, h: Tensor, y: Targets, drawn: Candidates | None = None) -> Tensor:
        drawn = self._mixed(self._drawn_for(h, y, self.samples), y) if drawn is None else drawn
        own, s = self._scored(h, y, drawn.index)
        return candidate_loss(own, torch.where(drawn.index == y.classes[:, None], -torch.inf, s - drawn.log_expected))

    def _mixed(self, drawn: Candidates, y: Targets) -> Candidates:
        """Return candidates for all rows: the draws and, with `in_batch`, the targets of rows that are not ignored.

        The caller removes each row's own target. A class with expected count 0 is not a candidate.
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
