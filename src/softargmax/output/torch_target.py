"""Target sampling: a softmax over the targets of a part of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor

from softargmax.core.signature import public
from softargmax.output.counts import classes_of
from softargmax.output.torch_sampled_base import CandidateKeywords, CandidateLayer, against_others

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from softargmax.output.torch_base import Targets

__all__ = ["TargetSampledSoftmax"]


class TargetSampledSoftmax(CandidateLayer):
    r"""A softmax that is trained on the classes that occur as targets in a part of the data.

    .. math:: \text{loss} = -\log \frac{e^{s_y}}{\sum_{j \in V \cup \{y\}} e^{s_j}}, \qquad
        s_k = \langle h, w_k \rangle + b_k

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    classes : int
        K.
    sparse : bool
        As of `SampledSoftmax`.
    bias, weight, reduction, ignore_index, device, dtype
        As of `FullSoftmax`.

    Attributes
    ----------
    weight : Parameter
        W, (K, D).
    bias : Parameter or None
        b, (K,).
    candidates : Tensor or None
        V, (n,), as `use` has set it; None: the distinct targets of each call. It is in no checkpoint.

    Raises
    ------
    TypeError, ValueError
        If an argument is of a wrong kind or out of its range.

    Notes
    -----
    The data are cut into parts of few distinct targets (`softargmax.output.partitions`); before each, `use` sets V to
    its targets. That is importance sampling by a distribution that is uniform over V, so that no correction is left.
    The candidates are no draws: the same part has the same ones in every epoch. The other methods, `scores`,
    `log_prob`, `log_prob_of`, `topk` and `sample`, are those of the softmax over all classes.

    Where V holds all K classes it is the full softmax. If V is smaller, classes outside it are not pushed down, and the
    gradient is biased.

    Gradients: those of a softmax over V and y.

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
        """Set the candidates.

        Parameters
        ----------
        classes : array_like of int, optional
            V, (n,), one or more, repeated ones count once. None: the distinct targets of each call.

        Raises
        ------
        IndexError
            If one is not from 0 to K - 1.
        TypeError, ValueError
            If they are no integers, or not (n,).
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
        return against_others(own, torch.where(left_out, -torch.inf, s))

    def _distinct(self, y: Targets) -> tuple[Tensor, Tensor | None]:
        """The targets of rows that count, once each; where their number may not be asked, and which are there again."""
        if y.wrong is None:
            return torch.unique(y.classes), None
        index = torch.where(y.counted, y.classes, self.classes).sort().values
        again = torch.cat([index[:1] == self.classes, (index[1:] == index[:-1]) | (index[1:] == self.classes)])
        return torch.where(again, 0, index), again
