"""The differentiated softmax: a softmax over all classes, with shorter vectors for rarer classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from softargmax.core.signature import public
from softargmax.core.targets import IGNORE
from softargmax.normalize import log_softmax
from softargmax.output.adaptive_cutoffs import integers, ranked
from softargmax.output.counts import at_least
from softargmax.output.torch_base import float_dtype
from softargmax.output.torch_block_softmax import block_scores
from softargmax.output.torch_frequency_sorted import Part, RankedLayer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike
    from torch.types import Device

    from softargmax.output.torch_base import Targets

__all__ = ["DifferentiatedSoftmax"]


class DifferentiatedSoftmax(RankedLayer):
    r"""A softmax over all classes, in blocks of classes that each use their own slice of h.

    .. math:: p(y \mid h) = \frac{e^{s_y}}{\sum_k e^{s_k}}, \qquad s_k = \langle h_{(i)}, w_k \rangle + b_k
        \ \text{for } k \text{ in block } i, \qquad h = (h_{(1)}, h_{(2)}, \dots)

    The scores of a row cost :math:`\sum_i K_i D_i` multiply-adds instead of K D, because rarer classes have shorter
    vectors.

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    blocks : sequence of int
        :math:`K_i`, the number of classes in each block. The sum of all :math:`K_i` is K. The classes must be numbered
        by decreasing frequency. `from_counts` accepts classes in any order.
    widths : sequence of int
        :math:`D_i`, the length of each block's slice of h. The slices are consecutive, and the sum of their lengths is
        D.
    bias : bool
        If True, each class has a bias b_k.
    reduction : {"mean", "sum", "none"}
        A call returns the mean or the sum of the losses of the rows that are not ignored, or one loss per row.
    ignore_index : int
        Rows with this target are ignored.
    device, dtype : optional
        Device and dtype of the parameters; default to torch's default device and dtype.

    Attributes
    ----------
    weights : ParameterList
        :math:`W_i`, (:math:`K_i`, :math:`D_i`); initialised uniformly in :math:`\pm 1 / \sqrt{D_i}`.
    bias : Parameter or None
        b, (K,), by rank; initialised to 0.
    order : Tensor
        The class of each rank, (K,). Rank 0 is the most frequent class. Loading a checkpoint with the same K replaces
        the order.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    The module is called with hidden vectors (..., D) and integer targets (...), and returns the loss :math:`-\log p(y
    \mid h)`. The other methods are `log_prob`, `log_prob_of`, `topk` and `sample`. Half-precision inputs are converted
    to float32, the dtype of the results. If all rows are ignored, the mean is 0. A target out of range raises
    IndexError. Under tracing, and on devices other than the CPU, the result for its row is NaN instead.

    The loss stores at most 16 MiB of the scores (N, K) at once (32 MiB in float64).

    Let :math:`dz = p - e_y`, and let :math:`dz_{(i)}` be the columns of dz that belong to block i. The gradients are
    :math:`dh_{(i)} = dz_{(i)} W_i`, :math:`dW_i = dz_{(i)}^T h_{(i)}` and :math:`db = \sum dz`. They can be
    differentiated again.

    References
    ----------
    Chen, Grangier & Auli (2016), Strategies for training large vocabulary neural language models, section 2.3. ACL.
    arXiv:1512.04906.

    See Also
    --------
    softargmax.nn.AdaptiveSoftmax : short vectors for rare classes, and a loss that does not need all scores.

    Examples
    --------
    >>> import torch, softargmax
    >>> layer = softargmax.nn.DifferentiatedSoftmax(8, [10, 990], [6, 2])
    >>> sum(weight.numel() for weight in layer.weights), 1000 * 8
    (2040, 8000)
    >>> hidden = torch.randn(5, 8)
    >>> bool(layer.log_prob(hidden).exp().sum(1).allclose(torch.ones(5)))
    True
    """

    bias: nn.Parameter | None

    @public
    def __init__(
        self,
        dim: int,
        blocks: Sequence[int],
        widths: Sequence[int],
        *,
        bias: bool = True,
        reduction: str = "mean",
        ignore_index: int = IGNORE,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes, slices = integers(blocks, "blocks"), integers(widths, "widths")
        for name, found in (("blocks", sizes), ("widths", slices)):
            if min(found, default=0) < 1:
                raise ValueError(f"{name}: expected one or more integers, each 1 or above, got {found}")
        if len(sizes) != len(slices):
            raise ValueError(f"widths: expected {len(sizes)} numbers, one per block, got {slices}")
        super().__init__(dim, sum(sizes), reduction=reduction, ignore_index=ignore_index, device=device)
        if sum(slices) != self.dim:
            raise ValueError(
                f"widths: expected numbers whose sum is dim, {self.dim}, got {slices} with the sum {sum(slices)}"
            )
        kind: dict[str, Any] = {"device": device, "dtype": float_dtype(dtype)}
        shapes = zip(sizes, slices, strict=True)
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(*shape, **kind)) for shape in shapes)
        self.register_parameter("bias", nn.Parameter(torch.empty(self.classes, **kind)) if bias else None)
        self.reset_parameters()

    @classmethod
    def from_counts(cls, dim: int, counts: ArrayLike, *, blocks: int = 4, **options: Any) -> DifferentiatedSoftmax:
        """Return a layer for classes in any order, with blocks chosen from their counts.

        Parameters
        ----------
        dim : int
            D, the length of the hidden vectors.
        counts : array_like
            How often each class occurs, at least 0. Shape (K,).
        blocks : int
            The number of blocks, 1 or above. There are fewer blocks if K or D is too small. All blocks have about the
            same share of the counts. Each block takes half of the columns of h that are left, and the last block takes
            all that are left.
        **options
            The other arguments of `DifferentiatedSoftmax`.

        Raises
        ------
        ValueError
            If a count is negative, NaN or infinite, if all counts are 0, or if an argument is out of range.
        TypeError
            If an argument has the wrong type.

        Examples
        --------
        >>> import softargmax
        >>> layer = softargmax.nn.DifferentiatedSoftmax.from_counts(64, [1, 9, 0, 90, 0, 8], blocks=2)
        >>> [tuple(weight.shape) for weight in layer.weights], layer.order
        ([(1, 32), (5, 32)], tensor([3, 1, 5, 0, 2, 4]))
        """
        order, shares = ranked(counts)
        number = min(at_least(blocks, "blocks", 1), len(order), at_least(dim, "dim", 1).bit_length())
        ends = [0]
        widths: list[int] = []
        for i in range(1, number):
            end = int(np.searchsorted(shares, i / number))
            ends.append(min(max(end, ends[-1] + 1), len(order) - (number - i)))
            widths.append((dim - sum(widths) + 1) // 2)
        sizes = np.diff([*ends, len(order)]).tolist()
        layer = cls(dim, sizes, [*widths, dim - sum(widths)], **options)
        layer._reorder(torch.from_numpy(order))
        return layer

    def _parts(self, h: Tensor, y: Targets) -> Iterator[Part]:
        yield Part(None, h, tuple(self.weights), self.bias, y.classes)

    def _ranked_log_p(self, h: Tensor) -> Tensor:
        found: Tensor = log_softmax(block_scores(h, tuple(self.weights), self.bias))
        return found

    def extra_repr(self) -> str:
        blocks, widths = zip(*(weight.shape for weight in self.weights), strict=True)
        shape = f"{self.dim}, {list(blocks)}, {list(widths)}"
        return f"{shape}, bias={self.bias is not None}, reduction={self.reduction!r}"
