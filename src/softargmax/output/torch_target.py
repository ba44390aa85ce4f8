"""Target sampling: a softmax over the classes that occur as targets in a part of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from softargmax.core.signature import public
from softargmax.output.counts import classes_of
from softargmax.output.torch_sampled_base import CandidateKeywords, CandidateLayer, candidate_loss

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from softargmax.output.torch_base import Targets

__all__ = ["TargetSampledSoftmax"]


class TargetSampledSoftmax(CandidateLayer):
    r"""A softmax trained on the classes that occur as targets in a part of the data.

    .. math:: \text{loss} = -\log \frac{e^{s_y}}{\sum_{j \in V \cup \{y\}} e^{s_j}}, \qquad
        s_k = \langle h, w_k \rangle + b_k

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    classes : int
        K, the number of classes.
    sparse : bool
        If True, the gradients to weight and bias are sparse, as in `SampledSoftmax`.
    bias, weight, reduction, ignore_index, device, dtype
        Options of the scores and the loss, as in `FullSoftmax`.

    Attributes
    ----------
    weight : Parameter
        W, (K, D).
    bias : Parameter or None
        b, (K,).
    candidates : Tensor or None
        V, (n,), set by `use`. If None, V is the set of the targets of the current call. Checkpoints do not contain V.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    Cut the data into parts with few distinct targets (`softargmax.output.partitions`), and call `use` with the targets
    of each part before training on it. The loss is that of importance sampling from a uniform distribution over V. The
    correction for the probability of a draw is the same for all classes, so it cancels. The candidates are not random:
    a part has the same candidates in every epoch. The other methods, `scores`, `log_prob`, `log_prob_of`, `topk` and
    `sample`, use the softmax over all classes.

    If V contains all K classes, the loss is that of the full softmax. If V is smaller, the loss does not lower the
    scores of classes outside V, and the gradient is biased.

    The gradients are those of a softmax over V and y.

    References
    ----------
    Jean, Cho, Memisevic & Bengio (2015), On using very large target vocabulary for neural machine translation, section
    3. ACL. arXiv:1412.2007.

    See Also
    --------
    SampledSoftmax

    Examples
    --------
    >>> import torch, softargmax
    >>> from softargmax.output import partitions
    >>> y = torch.tensor([7, 7, 1, 7, 2, 2, 1])
    >>> layer = softargmax.nn.TargetSampledSoftmax(4, 1000)
    >>> for part in partitions(y, most=2):
    ...     layer.use(part.classes)
    ...     loss = layer(torch.zeros(part.stop - part.start, 4), y[part.start : part.stop])
    >>> loss, torch.tensor(2.0).log()
    (tensor(0.6931, grad_fn=<...>), tensor(0.6931))
    """

    candidates: Tensor | None

    @public
    def __init__(self, dim: int, classes: int, **options: Unpack[CandidateKeywords]) -> None:
        super().__init__(dim, classes, **options)
        self.register_buffer("candidates", None, persistent=False)

    def use(self, classes: ArrayLike | None) -> None:
        """Set the candidates V of the next calls.

        Parameters
        ----------
        classes : array_like of int, optional
            V, (n,), at least one class. Repeated classes have no effect. If None, V is the set of the targets of each
            call.

        Raises
        ------
        IndexError
            If a class is outside 0 to K - 1.
        TypeError, ValueError
            If classes are not integers of shape (n,).
        """
        if classes is None:
            self.candidates = None
            return
        found = torch.as_tensor(classes_of(classes, "classes", self.classes))
        if found.ndim != 1 or not len(found):
            raise ValueError(f"classes: expected shape (n,), one class or more, got {tuple(found.shape)}")
        self.candidates = torch.unique(found).to(self.weight.device)

    def _losses(self, h: Tensor, y: Targets) -> Tensor:
        index, again = self._distinct(y) if self.candidates is None else (self.candidates, None)
        own, s = self._scored(h, y, index)
        left_out = index == y.classes[:, None] if again is None else again | (index == y.classes[:, None])
        return candidate_loss(own, torch.where(left_out, -torch.inf, s))

    def _distinct(self, y: Targets) -> tuple[Tensor, Tensor | None]:
        """Return the distinct targets, and None in place of a mask.

        Under tracing, and on devices other than the CPU, return all targets in increasing order, and a mask that is
        True where a target equals the one before it or is not counted.
        """
        if y.wrong is None:
            return torch.unique(y.classes), None
        index = torch.where(y.counted, y.classes, self.classes).sort().values
        again = torch.cat([index[:1] == self.classes, (index[1:] == index[:-1]) | (index[1:] == self.classes)])
        return torch.where(again, 0, index), again
