"""Layers with scores h W^T + b: their base class, and the full softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor, nn

from softargmax.core.signature import public
from softargmax.core.targets import IGNORE
from softargmax.core.torch_modules import one_call
from softargmax.core.torch_spreadable import full
from softargmax.loss import linear_cross_entropy, linear_selected_log_softmax
from softargmax.normalize import log_softmax
from softargmax.output.torch_base import OutputLayer, Targets, float_dtype, of_rows
from softargmax.output.torch_class_scores import in_any_order, scores

if TYPE_CHECKING:
    from torch.types import Device


__all__ = ["FullSoftmax", "LinearLayer"]


class LinearKeywords(TypedDict, total=False):
    """Keyword arguments of all layers with linear scores."""

    bias: bool
    weight: nn.Parameter | None
    reduction: str
    ignore_index: int
    device: Device
    dtype: torch.dtype | None


class LinearLayer(OutputLayer):
    """Base class of layers whose scores are <h, w_k> + b_k. Subclasses define the training loss."""

    bias: nn.Parameter | None
    spreads = ("weight", "bias")

    @public
    def __init__(
        self,
        dim: int,
        classes: int,
        *,
        bias: bool = True,
        weight: nn.Parameter | None = None,
        reduction: str = "mean",
        ignore_index: int = IGNORE,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, classes, reduction=reduction, ignore_index=ignore_index)
        if weight is None:
            weight = nn.Parameter(torch.empty(self.classes, self.dim, device=device, dtype=float_dtype(dtype)))
            _reset_uniform(weight, self.dim)
        elif not isinstance(weight, nn.Parameter):
            raise TypeError(f"weight: expected a Parameter, for example an embedding's, got {type(weight).__name__}")
        elif tuple(weight.shape) != (self.classes, self.dim):
            raise ValueError(f"weight: expected shape ({self.classes}, {self.dim}), got {tuple(weight.shape)}")
        self.weight = weight
        kind = float_dtype(dtype) or weight.dtype
        zeros = torch.zeros(self.classes, device=device or weight.device, dtype=kind) if bias else None
        self.register_parameter("bias", None if zeros is None else nn.Parameter(zeros))

    def reset_parameters(self) -> None:
        """Draw the weight uniformly in +-1 / sqrt(D), as `torch.nn.Linear` does, and set the bias to 0.

        A weight that is shared with another module is also drawn again.
        """
        _reset_uniform(self.weight, self.dim)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def scores(self, hidden: Tensor) -> Tensor:
        """Return the unnormalised scores of all classes, (..., K)."""
        h, rows = self._rows(hidden)
        return of_rows(scores(h, self.weight, self.bias), rows)

    def _log_p(self, h: Tensor) -> Tensor:
        found: Tensor = log_softmax(scores(h, self.weight, self.bias))
        return found

    def _log_p_of(self, h: Tensor, y: Targets) -> Tensor:
        if not self.reproducible:
            return in_any_order("linear_selected_log_softmax", h, self.weight, y.classes, bias=self.bias)
        found: Tensor = full(linear_selected_log_softmax(h, self.weight, y.classes, bias=self.bias))
        return found

    def extra_repr(self) -> str:
        return f"{self.dim}, {self.classes}, bias={self.bias is not None}, reduction={self.reduction!r}"


def _reset_uniform(weight: Tensor, dim: int) -> None:
    nn.init.uniform_(weight, -1 / math.sqrt(dim), 1 / math.sqrt(dim))


class FullSoftmax(LinearLayer):
    r"""The softmax over all classes, computed in blocks. It is the baseline for the approximate layers.

    .. math:: p(y \mid h) = \frac{e^{s_y}}{\sum_k e^{s_k}}, \qquad s_k = \langle h, w_k \rangle + b_k

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    classes : int
        K, the number of classes.
    bias : bool
        If True, each class has a bias b_k.
    weight : Parameter, optional
        W, (K, D): a parameter to share, for example the weight of an embedding. By default the layer creates a new
        parameter.
    reduction : {"mean", "sum", "none"}
        A call returns the mean or the sum of the losses of the rows that are not ignored, or one loss per row.
    ignore_index : int
        Rows with this target are ignored.
    device, dtype : optional
        Device and dtype of the parameters that the layer creates. They default to the device and dtype of `weight` if
        it is passed, and otherwise to torch's defaults.

    Attributes
    ----------
    weight : Parameter
        W, (K, D); initialised uniformly in :math:`\pm 1 / \sqrt D`.
    bias : Parameter or None
        b, (K,); initialised to 0.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    The module is called with hidden vectors (..., D) and integer targets (...), and returns the loss :math:`-\log p(y
    \mid h)`. It calls `softargmax.linear_cross_entropy`, which computes the scores (N, K) a block at a time and never
    stores them all. The other methods are `scores`, `log_prob`, `log_prob_of`, `topk` and `sample`. Half-precision
    inputs are converted to float32, the dtype of the results. If all rows are ignored, the mean is 0. A target out of
    range raises IndexError. Under tracing, and on devices other than the CPU, the result for its row is NaN instead.

    Parameters may be DTensors, of which each process has the classes of its own
    (`softargmax.parallel.VocabularyParallel`).

    With :math:`dz = p - e_y`, the gradients are :math:`dh = dz\,W`, :math:`dW = dz^T h` and :math:`db = \sum dz`.

    References
    ----------
    Bridle (1990), Probabilistic interpretation of feedforward classification network outputs. Press & Wolf (2017),
    Using the output embedding to improve language models (shared weights). EACL. arXiv:1608.05859. Wijmans et al.
    (2025), Cut your losses in large-vocabulary language models. arXiv:2411.09009.

    See Also
    --------
    softargmax.nn.LinearCrossEntropyLoss : the loss alone, with options such as label smoothing and z-loss.

    Examples
    --------
    >>> import torch, softargmax
    >>> embedding = torch.nn.Embedding(10, 4)
    >>> layer = softargmax.nn.FullSoftmax(4, 10, weight=embedding.weight)
    >>> loss = layer(torch.zeros(2, 4), torch.tensor([3, 9]))
    >>> loss, torch.tensor(10.0).log()
    (tensor(2.3026, grad_fn=<...>), tensor(2.3026))
    """

    @one_call
    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        h, shape, y = self._inputs(hidden, target)
        if self.reduction == "none" or y.wrong is not None:
            return self._reduced(self._losses(h, y), shape, y)
        options: Any = {"bias": self.bias, "reduction": self.reduction}
        if not self.reproducible:
            return in_any_order("linear_cross_entropy", h, self.weight, y.classes, **options)
        loss: Tensor = full(linear_cross_entropy(h, self.weight, y.classes, **options))
        return loss

    def _losses(self, h: Tensor, y: Targets) -> Tensor:
        return 0.0 - self._log_p_of(h, y)
