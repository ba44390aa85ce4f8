"""The base class of layers whose classes are sorted by decreasing frequency."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from softargmax.core.signature import public
from softargmax.core.targets import IGNORE
from softargmax.core.torch_modules import one_call
from softargmax.output.torch_base import OutputLayer, Targets
from softargmax.output.torch_block_softmax import block_losses

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch.types import Device


class Part(NamedTuple):
    """A softmax over blocks of classes. Its loss is one term of the layer's loss.

    `rows` has the rows that need this term. None stands for all rows.
    """

    rows: Tensor | None
    h: Tensor
    weights: Sequence[Tensor]
    bias: Tensor | None
    target: Tensor

    def loss(self, *, total: bool, reproducible: bool) -> Tensor:
        """Return the losses of the rows, or with `total` their sum. The loss is 0 where the target is IGNORE."""
        return block_losses(self.h, self.weights, self.bias, self.target, total=total, reproducible=reproducible)


class RankedLayer(OutputLayer):
    """A layer whose classes have ranks. `order` is the class of every rank, and `ranks` is the rank of every class."""

    order: Tensor
    ranks: Tensor

    @public
    def __init__(
        self, dim: int, classes: int, *, reduction: str = "mean", ignore_index: int = IGNORE, device: Device = None
    ) -> None:
        super().__init__(dim, classes, reduction=reduction, ignore_index=ignore_index)
        self.register_buffer("order", None)
        self.register_buffer("ranks", None, persistent=False)
        self._reorder(torch.arange(self.classes, device=device))

    def reset_parameters(self) -> None:
        """Draw the vectors uniformly in +-1 / sqrt(their length), and set biases to 0.

        If `order` is invalid, it is set to 0, 1, .., K - 1.
        """
        if not _is_order(self.order, self.classes):  # `to_empty` leaves the order uninitialised
            self._reorder(torch.arange(self.classes, device=self.order.device))
        for parameter in self.parameters():
            bound = 1 / math.sqrt(parameter.shape[1]) if parameter.ndim == 2 else 0.0
            nn.init.uniform_(parameter, -bound, bound)

    # --- to be defined by subclasses ----------------------------------------------------------------------------------

    @abstractmethod
    def _parts(self, h: Tensor, y: Targets) -> Iterator[Part]:
        """Return the parts whose losses add up to the layer's loss. The targets y are ranks."""

    @abstractmethod
    def _ranked_log_p(self, h: Tensor) -> Tensor:
        """Return the log-probabilities of all ranks, (N, K)."""

    # --- computation --------------------------------------------------------------------------------------------------

    @one_call
    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        h, shape, y = self._inputs(hidden, target)
        if self.reduction == "none" or y.wrong is not None:
            return self._reduced(self._losses(h, y), shape, y)
        parts = [part.loss(total=True, reproducible=self.reproducible) for part in self._parts(h, y)]
        total = torch.stack(parts).sum()
        return total / max(1, len(h)) if self.reduction == "mean" else total

    def _losses(self, h: Tensor, y: Targets) -> Tensor:
        found = h.new_zeros(len(h))
        for part in self._parts(h, y):
            more = part.loss(total=False, reproducible=self.reproducible)
            found = found + more if part.rows is None else found.index_add(0, part.rows, more)
        return found

    def _log_p_of(self, h: Tensor, y: Targets) -> Tensor:
        return 0.0 - self._losses(h, y)

    def _log_p(self, h: Tensor) -> Tensor:
        found = self._ranked_log_p(h)
        return found if self._sorted else found.index_select(1, self.ranks)

    # --- the order of classes -----------------------------------------------------------------------------------------

    def _inputs(self, hidden: Tensor, target: Tensor) -> tuple[Tensor, tuple[int, ...], Targets]:
        """Return the checked inputs, with the targets as ranks."""
        h, shape, y = super()._inputs(hidden, target)
        return h, shape, y._replace(classes=self.ranks[y.classes])

    def _classes_of(self, ranks: Tensor) -> Tensor:
        """Return the classes of ranks, and -1 for a rank of -1."""
        return torch.where(ranks < 0, -1, self.order[ranks])

    def _reorder(self, order: Tensor) -> None:
        """Set `order` to the class of every rank, and `ranks` to the rank of every class."""
        self.order = order.to(torch.int64)
        places = torch.arange(self.classes, device=order.device)
        self.ranks = torch.empty_like(self.order).index_put((self.order,), places)
        self._sorted = order.is_meta or torch.equal(self.order, places)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        """Load a checkpoint's order together with its parameters."""
        stored = state_dict.get(f"{prefix}order")
        if isinstance(stored, Tensor) and stored.shape == self.order.shape and not stored.is_meta:
            if not _is_order(stored, self.classes):
                lists[-1].append(f"{prefix}order: expected each class from 0 to {self.classes - 1} once")
                return
            self._reorder(stored if self.order.is_meta else stored.to(self.order.device))
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *lists)


def _is_order(order: Tensor, classes: int) -> bool:
    """True if the order contains each class once, or has no values (meta tensors)."""
    return order.is_meta or torch.equal(order.sort().values.cpu(), torch.arange(classes, device="cpu"))
