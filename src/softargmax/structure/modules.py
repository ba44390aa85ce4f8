"""LinearChainCRF, a conditional random field as a torch module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from softargmax.core import check
from softargmax.core.signature import public
from softargmax.core.torch_operation import register
from softargmax.structure import linear_chain

if TYPE_CHECKING:
    from softargmax.structure.linear_chain import LinearChain

__all__ = ["LinearChainCRF"]
register("softargmax.structure")  # at import, because a model may be compiled before its first call
REDUCTIONS = ("none", "sum", "mean", "token_mean")


class LinearChainCRF(nn.Module):
    r"""A linear-chain conditional random field: learned scores of pairs of tags, after a model that scores each tag.

    .. math::
        \mathrm{loss} = \log Z - s(y), \qquad
        s(y) = a_{y_1} + \sum_t E_{t, y_t} + \sum_t T_{y_t, y_{t+1}} + b_{y_L}

    Parameters
    ----------
    num_tags : int
        C, the number of tags.
    batch_first : bool
        True if emissions have the shape (N, L, C) and tags (N, L). False for (L, N, C) and (L, N).

    Attributes
    ----------
    transitions : Parameter, shape (C, C)
        T. As the start and end scores, it is initialised uniformly between -0.1 and 0.1.
    start_transitions, end_transitions : Parameter, shape (C,)
        a and b.

    Notes
    -----
    Call the module with emissions, tags and a mask to get the loss. A mask is True for the positions of a sequence, and
    must be True for a sequence's first positions only. The arguments are those of pytorch-crf, with two differences:
    the module returns the loss, which is minus pytorch-crf's log-likelihood, and `batch_first` is True by default. A
    sequence may be empty.

    See Also
    --------
    softargmax.linear_chain : the distribution as a function, with entropies, marginals and draws.

    References
    ----------
    Lafferty, McCallum & Pereira (2001), Conditional random fields, section 3. ICML.

    Examples
    --------
    >>> import torch, softargmax
    >>> crf = softargmax.nn.LinearChainCRF(3)
    >>> emissions, tags = torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.int64)
    >>> loss = crf(emissions, tags, mask=torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool())
    >>> loss.backward()
    >>> [len(path) for path in crf.decode(emissions)]
    [4, 4]
    """

    @public
    def __init__(self, num_tags: int, *, batch_first: bool = True) -> None:
        super().__init__()
        self.num_tags = check.integer(num_tags, "num_tags")
        if self.num_tags < 1:
            raise ValueError(f"num_tags: expected an integer of at least 1, got {num_tags}")
        self.batch_first = check.flag(batch_first, "batch_first")
        self.start_transitions = nn.Parameter(torch.empty(self.num_tags))
        self.end_transitions = nn.Parameter(torch.empty(self.num_tags))
        self.transitions = nn.Parameter(torch.empty(self.num_tags, self.num_tags))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly between -0.1 and 0.1."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def extra_repr(self) -> str:
        """Return the module's options."""
        return f"{self.num_tags}" if self.batch_first else f"{self.num_tags}, batch_first=False"

    @public
    def forward(self, emissions: Tensor, tags: Tensor, mask: Tensor | None = None, reduction: str = "sum") -> Tensor:
        """Return the loss: the negative log-probability of the tags.

        `reduction` is "none", "sum", "mean" (over sequences) or "token_mean" (over all positions).
        """
        check.one_of(reduction, "reduction", REDUCTIONS)
        chain = self.chain(emissions, mask)
        losses: Tensor = -chain.log_prob(tags if self.batch_first else tags.transpose(0, 1))
        if reduction == "none":
            return losses
        total = losses.sum()
        if reduction == "sum":
            return total
        return total / (losses.numel() if reduction == "mean" else chain.positions)

    @public
    def chain(self, emissions: Tensor, mask: Tensor | None = None) -> LinearChain:
        """Return the distribution of the tags of each sequence, with marginals, entropy and draws (batch first)."""
        if emissions.ndim != 3 or emissions.shape[2] != self.num_tags:
            axes = "(N, L" if self.batch_first else "(L, N"
            raise ValueError(f"emissions: expected shape {axes}, {self.num_tags}), got {tuple(emissions.shape)}")
        ordered = emissions if self.batch_first else emissions.transpose(0, 1)
        return linear_chain(
            ordered,
            self.transitions,
            lengths=None if mask is None else self._lengths(mask, ordered),
            start=self.start_transitions,
            end=self.end_transitions,
        )

    def _lengths(self, mask: Tensor, emissions: Tensor) -> Tensor:
        if mask.dtype not in (torch.bool, torch.uint8):
            raise TypeError(f"mask: expected dtype bool or uint8, got {mask.dtype}")
        shape = tuple(emissions.shape[:2]) if self.batch_first else tuple(emissions.shape[1::-1])
        if tuple(mask.shape) != shape:
            raise ValueError(f"mask: expected one entry per position, {shape}, got {tuple(mask.shape)}")
        mask = mask if self.batch_first else mask.transpose(0, 1)
        lengths = mask.bool().sum(1)
        inside = torch.arange(mask.shape[1], device=mask.device) < lengths[:, None]
        if check.inspectable(mask) and not torch.equal(inside, mask.bool()):
            raise ValueError("mask: expected True for the first positions of each sequence only, got a gap")
        return lengths

    @public
    def decode(self, emissions: Tensor, mask: Tensor | None = None) -> list[list[int]]:
        """Return the tags of the best path of each sequence (Viterbi)."""
        with torch.no_grad():
            best = self.chain(emissions, mask).best().tags
        return [[tag for tag in path if tag >= 0] for path in best.tolist()]
