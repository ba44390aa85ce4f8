"""The base class of the output layers: their interface, checks of rows and targets, and reductions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from softargmax.core import arrays, check, seeds
from softargmax.core.arrays import readable
from softargmax.core.check import integer, one_of
from softargmax.core.signature import public
from softargmax.core.targets import IGNORE, REDUCTIONS, in_range
from softargmax.core.torch_modules import one_call
from softargmax.core.torch_operation import register
from softargmax.core.torch_spreadable import full, spreadable, telling
from softargmax.core.types import Generator, Integers, Seed
from softargmax.output.counts import at_least
from softargmax.sample import categorical

if TYPE_CHECKING:
    from collections.abc import Iterator

for _room in ("normalize", "loss", "sample", "output"):
    register(f"softargmax.{_room}")  # so that torch.compile can trace a layer that has not been called yet

_SIZE = 1 << 23
"""The maximum number of scores in a block of rows. The rows of a block are normalised, searched or sampled together."""


class TopK(NamedTuple):
    """Result of a layer's `topk`: the largest log-probabilities in decreasing order, and their classes.

    Examples
    --------
    >>> import torch, softargmax
    >>> from softargmax.output import Tree
    >>> layer = softargmax.nn.HierarchicalSoftmax(4, Tree.balanced(3))
    >>> layer.topk(torch.zeros(1, 4), 2).index
    tensor([[0, 1]])
    """

    values: Tensor
    index: Tensor  # type: ignore[assignment]  # tuples have a method `index`


class Targets(NamedTuple):
    """The checked targets: `classes` has the target of each row, and `counted` is True if the row counts in the loss.

    A row does not count if its target is ignored or out of range.

    On the CPU and without tracing, ignored rows are removed, `wrong` is None, and a target out of range raises
    IndexError. `rows` has the positions of the remaining rows among all `total` rows, or is None if no row was removed.

    Under tracing, and on other devices, no row is removed, and `rows` is None. `wrong` is then True for targets out of
    range, and `classes` is 0 where `counted` is False.
    """

    classes: Tensor
    counted: Tensor
    wrong: Tensor | None
    rows: Tensor | None
    total: int


def blocks(n: int, width: int) -> Iterator[slice]:
    """Yield slices of rows. A slice has at most `_SIZE` numbers, or only one row. A row has `width` numbers."""
    step = max(1, _SIZE // max(1, width))
    return (slice(start, start + step) for start in range(0, n, step))


class OutputLayer(nn.Module, ABC):
    r"""The interface of every output layer.

    .. math:: \text{layer}(h, y) = \text{loss}, \qquad \log p(\cdot \mid h), \qquad \log p(y \mid h)

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    classes : int
        K, the number of classes.
    reduction : {"mean", "sum", "none"}
        A call returns the mean or the sum of the losses of the rows that are not ignored, or one loss per row.
    ignore_index : int
        Rows with this target are ignored.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    A layer is called with hidden vectors (..., D) and integer targets (...), and returns the loss. The other methods
    are `log_prob`, `log_prob_of`, `topk` and `sample`. Half-precision inputs are converted to float32, the dtype of the
    results. If all rows are ignored, the mean is 0. A target out of range raises IndexError. Under tracing, and on
    devices other than the CPU, the result for its row is NaN instead.

    References
    ----------
    Chen, Grangier & Auli (2016), Strategies for training large vocabulary neural language models, section 2. ACL.
    arXiv:1512.04906.

    Examples
    --------
    >>> import torch, softargmax
    >>> isinstance(softargmax.nn.FullSoftmax(4, 10), softargmax.nn.OutputLayer)
    True
    """

    spreads: ClassVar[tuple[str, ...]] = ()
    """The parameters that may be DTensors, whose rows are spread over processes (`softargmax.parallel`)."""
    reproducible = True
    """False if these processes may add up the loss's gradient of h in any order. It is set by the style that spreads
    the parameters.
    """

    @public
    def __init__(self, dim: int, classes: int, *, reduction: str = "mean", ignore_index: int = IGNORE) -> None:
        super().__init__()
        self.dim, self.classes = at_least(dim, "dim", 1), at_least(classes, "classes", 1)
        self.reduction = one_of(reduction, "reduction", REDUCTIONS)
        self.ignore_index = integer(ignore_index, "ignore_index")

    # --- to be defined by subclasses ----------------------------------------------------------------------------------

    @abstractmethod
    def _losses(self, h: Tensor, y: Targets) -> Tensor:
        """Return the loss of every row, (N,). The loss of an ignored row can be any number."""

    @abstractmethod
    def _log_p(self, h: Tensor) -> Tensor:
        """Return the log-probabilities of all classes, (N, K)."""

    @abstractmethod
    def _log_p_of(self, h: Tensor, y: Targets) -> Tensor:
        """Return log p of one class per row, (N,). The value of an ignored row can be any number."""

    # --- computation --------------------------------------------------------------------------------------------------

    @one_call
    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        h, shape, y = self._inputs(hidden, target)
        return self._reduced(self._losses(h, y), shape, y)

    if TYPE_CHECKING:

        def __call__(self, hidden: Tensor, target: Tensor) -> Tensor: ...

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Return the log-probabilities of all classes, (..., K)."""
        h, rows = self._rows(hidden)
        parts = [slice(None)]
        if not torch.is_grad_enabled() and readable(h):
            parts = list(blocks(len(h), 4 * self.classes)) or parts
        return of_rows(torch.cat([self._log_p(h[part]) for part in parts]), rows)

    def log_prob_of(self, hidden: Tensor, target: Tensor) -> Tensor:
        """Return the log-probability of the target of each row, (...). It is 0 where the target is ignored."""
        h, shape, y = self._inputs(hidden, target)
        return restore_rows(self._log_p_of(h, y), shape, y)

    @torch.no_grad()
    def topk(self, hidden: Tensor, k: int) -> TopK:
        """Return the k most probable classes of each row and their log-probabilities.

        Parameters
        ----------
        hidden : Tensor
            Hidden vectors, (..., D).
        k : int
            The number of classes, from 1 to K.

        Returns
        -------
        TopK
            values and index, (..., k), by decreasing probability. A row with NaN has the values NaN and the index -1.
            Of equal probabilities, those of the lowest classes come first, unless the layer has a search of its own.
            The values have no gradient. For a gradient, use `log_prob_of`.
        """
        h, rows = self._rows(hidden)
        with telling(next(self.parameters())):
            n = integer(k, "k")
            if not 1 <= n <= self.classes:
                raise ValueError(f"k: expected 1 to {self.classes}, got {n}")
        return TopK(*(x.reshape(*rows, n) for x in self._likeliest(h, n)))

    @torch.no_grad()
    def sample(
        self,
        hidden: Tensor,
        seed: Seed | None = None,
        *,
        stream: Integers | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Draw a class for each row, (...).

        Parameters
        ----------
        hidden : Tensor
            Hidden vectors, (..., D).
        seed, stream, generator
            As in `softargmax.categorical`. The draw of a row depends only on the row's h and stream and on the seed.

        Returns
        -------
        Tensor
            The drawn classes, (...), int64.

        Raises
        ------
        ValueError
            If the probabilities of a row are NaN. The error names the row. Under tracing, and on devices other than the
            CPU, there is no error, and the row has class -1.
        """
        h, rows = self._rows(hidden)
        with telling(next(self.parameters())):
            source = seeds.source(h, rows, seed, stream, generator)
        drawn = self._drawn(h, source)
        if readable(h) and bool((drawn < 0).any()):
            row = int((drawn < 0).nonzero()[0])
            raise ValueError(f"hidden: expected vectors without NaN probabilities, got NaN in row {row}")
        return drawn.reshape(rows)

    # --- default methods, computed from the log-probabilities of all classes ------------------------------------------

    def _likeliest(self, h: Tensor, k: int) -> TopK:
        values, index = h.new_empty(len(h), k), torch.empty(len(h), k, dtype=torch.int64, device=h.device)
        for part in blocks(len(h), self.classes):
            values[part], index[part] = best(self._log_p(h[part]), k)
        return TopK(values, index)

    def _drawn(self, h: Tensor, source: seeds.Source) -> Tensor:
        """Return a class drawn for every row, or -1 if the row has NaN."""
        drawn = torch.empty(len(h), dtype=torch.int64, device=h.device)
        seed = int(source.seed) % seeds.SEEDS
        for part in blocks(len(h), self.classes):
            stream = torch.arange(len(h), device=h.device) if source.stream is None else source.stream
            drawn[part] = draw_columns(self._log_p(h[part]), seed, stream[part])
        return drawn

    # --- arguments ----------------------------------------------------------------------------------------------------

    def _reduced(self, losses: Tensor, shape: tuple[int, ...], y: Targets) -> Tensor:
        if self.reduction == "none":
            return restore_rows(losses, shape, y)
        total = _masked(losses, y).sum()
        return total / y.counted.sum().clamp(min=1) if self.reduction == "mean" else total

    def _inputs(self, hidden: Tensor, target: Tensor) -> tuple[Tensor, tuple[int, ...], Targets]:
        """Return hidden vectors, the rows' shape, and targets.

        Ignored rows are removed. Under tracing, and on devices other than the CPU, they stay, and their vectors are 0.
        """
        h, shape = self._rows(hidden)
        y = self._targets(target, h, shape)
        if y.wrong is not None:
            return torch.where(y.counted[:, None], h, 0), shape, y
        return h if y.rows is None else h[y.rows], shape, y

    def _targets(self, target: Tensor, h: Tensor, shape: tuple[int, ...]) -> Targets:
        with telling(next(self.parameters())):
            return targets_of(full(target), h.detach(), shape, self.classes, self.ignore_index)

    def _rows(self, hidden: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """Return the hidden vectors (N, D) in float32 or float64, and the shape of the rows."""
        own = next(self.parameters())
        with telling(own):
            h = check.scores(full(hidden), "hidden")
            if not isinstance(h, Tensor):
                raise TypeError(f"hidden: expected a tensor, got {type(hidden).__name__}")
            if not h.ndim or h.shape[-1] != self.dim:
                raise ValueError(f"hidden: expected shape (..., {self.dim}), got {tuple(h.shape)}")
            if h.device != own.device:
                raise ValueError(f"hidden: expected a tensor on {own.device}, got one on {h.device}")
        wide = torch.float64 if torch.float64 in (h.dtype, own.dtype) else torch.float32
        rows = tuple(h.shape[:-1])
        return h.reshape(-1, self.dim).to(wide), rows


def targets_of(target: Any, like: Tensor, rows: tuple[int, ...], classes: int, ignore_index: int) -> Targets:
    """Check the targets and return them."""
    target = arrays.like(target, like, "target")
    if arrays.dtype_name(target.dtype) not in arrays.INTEGERS - {"bool"}:
        raise TypeError(f"target: expected integers, one per row, got dtype {target.dtype}")
    if tuple(target.shape) != rows:
        raise ValueError(f"target: expected the rows' shape, {rows}, got {tuple(target.shape)}")
    y = target.to(torch.int64).reshape(-1)
    ignored = y == ignore_index
    outside = ((y < 0) | (y >= classes)) & ~ignored
    counted = ~(ignored | outside)
    if not (readable(y) and y.is_cpu):
        return Targets(torch.where(counted, y, 0), counted, outside, None, len(y))
    in_range(target, (*target.shape, classes), target.ndim, ignore_index, "target")
    if bool(counted.all()):
        return Targets(y, counted, None, None, len(y))
    (kept,) = counted.nonzero(as_tuple=True)
    return Targets(y[kept], counted[kept], None, kept, len(y))


def _masked(found: Tensor, y: Targets) -> Tensor:
    """Set values to 0 where a row is ignored, and to NaN where its target is out of range."""
    return found if y.wrong is None else torch.where(y.counted, found, torch.where(y.wrong, torch.nan, 0))


def restore_rows(found: Tensor, shape: tuple[int, ...], y: Targets) -> Tensor:
    """Return one number for each row of the input, with 0 for the rows that were removed."""
    if y.rows is not None:
        found = found.new_zeros(math.prod(shape)).index_put((y.rows,), found)
    return _masked(found, y).reshape(shape)


@spreadable
def of_rows(found: Tensor, rows: tuple[int, ...]) -> Tensor:
    """Give an array (N, K) the shape of the rows, (..., K)."""
    return found.reshape(*rows, found.shape[1])


@spreadable
def draw_columns(log_p: Tensor, seed: int, stream: Tensor) -> Tensor:
    """Draw a column for every row of log-probabilities. The result is -1 for a row with NaN."""
    sound = ~log_p.isnan().any(1)
    found = categorical(torch.where(sound[:, None], log_p, 0), seed=seed, stream=stream)
    return torch.where(sound, found, -1)


@spreadable
def best(log_p: Tensor, k: int) -> TopK:
    """Return the k largest numbers of every row. Of equal ones, those with the lowest columns come first."""
    columns = log_p.shape[1]
    values, index = log_p.topk(min(k + 1, columns), 1)
    next_one, values, index = values[:, k:], values[:, :k], index[:, :k]
    last = values[:, k - 1 :]
    if not readable(log_p) or bool((next_one == last).any()):  # torch has taken any of the columns that tie
        ties = torch.where(log_p == last, columns - torch.arange(columns, device=log_p.device), 0).topk(k, 1).indices
        larger = values > last
        place = torch.arange(k, device=log_p.device) - larger.sum(1, keepdim=True)
        index = torch.where(larger, index, ties.gather(1, place.clamp(min=0)))
    index = index.sort(1).values
    values, order = log_p.gather(1, index).sort(dim=1, descending=True, stable=True)
    has_nan = log_p.isnan().any(1, keepdim=True)
    return TopK(torch.where(has_nan, math.nan, values), torch.where(has_nan, -1, index.gather(1, order)))


def float_dtype(dtype: Any) -> torch.dtype | None:
    """Return dtype. Raise TypeError unless it is a floating dtype or None."""
    if dtype is not None and arrays.dtype_name(dtype) not in arrays.FLOATS:
        raise TypeError(f"dtype: expected float16, bfloat16, float32 or float64, got {dtype}")
    found: torch.dtype | None = dtype
    return found
