"""The adaptive softmax: frequent classes in a head, rare classes in clusters that are computed only when needed."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from softargmax.core import check, seeds
from softargmax.core.signature import public
from softargmax.core.targets import IGNORE
from softargmax.core.torch_spreadable import alike, full
from softargmax.normalize import log_softmax
from softargmax.output.adaptive_cutoffs import BATCH, adaptive_cutoffs, integers, ranked, widths
from softargmax.output.torch_base import Targets, TopK, blocks, draw_columns, float_dtype
from softargmax.output.torch_class_scores import scores
from softargmax.output.torch_frequency_sorted import Part, RankedLayer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike
    from torch.types import Device

__all__ = ["AdaptiveSoftmax"]


class AdaptiveSoftmax(RankedLayer):
    r"""A softmax over frequent classes and one token per cluster, and a softmax within each cluster of rare classes.

    .. math:: p(y \mid h) = \mathrm{softmax}(W_0 h + b_0)_y \ \text{for the frequent}, \qquad
        p(y \mid h) = \mathrm{softmax}(W_0 h + b_0)_{\text{token}(i)}\ \mathrm{softmax}(W_i P_i h + b_i)_y
        \ \text{in cluster } i

    The softmax of :math:`W_0 h + b_0` is the head. Its last entries are the tokens: token(i) stands for cluster i. The
    loss of a row needs only the head and, if the row's target is rare, the target's cluster. :math:`P_i` projects h to
    :math:`D / v^i` dimensions, so the many rare classes have short vectors.

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    classes : int
        K, the number of classes. Class 0 is the most frequent, class K - 1 the rarest. `from_counts` accepts classes in
        any order.
    cutoffs : sequence of int
        The first class of each cluster, increasing, from 1 to K - 1. The classes below the first cut-off are in the
        head. Without cut-offs, all classes are in the head, and the layer is the full softmax.
    div_value : float
        v, above 0. The vectors of the first cluster are v times shorter than h, and those of each later cluster are v
        times shorter than those of the cluster before it.
    head_bias, tail_bias : bool
        If `head_bias` is True, the head has biases. If `tail_bias` is True, the clusters have biases.
    reduction : {"mean", "sum", "none"}
        A call returns the mean or the sum of the losses of the rows that are not ignored, or one loss per row.
    ignore_index : int
        Rows with this target are ignored.
    device, dtype : optional
        Device and dtype of the parameters; default to torch's default device and dtype.

    Attributes
    ----------
    head : Parameter
        :math:`W_0`, (frequent + clusters, D): a vector for each frequent class, then one for each cluster.
    projections, tails : ParameterList
        :math:`P_i`, (:math:`D_i`, D), and :math:`W_i`, (classes of the cluster, :math:`D_i`), with :math:`D_i = \max(1,
        \lfloor D / v^i \rfloor)`. All vectors are initialised uniformly in :math:`\pm 1 / \sqrt{d}`, where d is their
        length.
    head_bias, tail_bias : Parameter or None
        :math:`b_0`, and the biases of all clusters, concatenated; initialised to 0.
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

    Each cluster processes only the rows whose targets are in the cluster. Under tracing, and on devices other than the
    CPU, it instead processes all rows and ignores the targets of other clusters. The losses of the head, and of each
    cluster, are those of `softargmax.linear_cross_entropy`, which stores the scores of a few rows at a time. All
    parameters have a gradient. A cluster without targets has gradients of 0.

    `topk` is exact. Each row visits the clusters by decreasing probability. No class is more probable than its cluster.
    So the row stops at a cluster that is less probable than the k-th best class found so far. `sample` draws from the
    head. If the draw is a token, `sample` also draws from the token's cluster, with other random numbers.

    Gradients can be differentiated again.

    Parameters may be DTensors (`softargmax.parallel.VocabularyParallel`).

    References
    ----------
    Grave, Joulin, Cissé, Grangier & Jégou (2017), Efficient softmax approximation for GPUs, section 4. ICML.
    arXiv:1609.04309.

    See Also
    --------
    softargmax.output.adaptive_cutoffs : chooses the cut-offs of `from_counts`.

    Examples
    --------
    >>> import torch, softargmax
    >>> layer = softargmax.nn.AdaptiveSoftmax(8, 1000, [20, 200])
    >>> [tuple(tail.shape) for tail in layer.tails]
    [(180, 2), (800, 1)]
    >>> hidden = torch.randn(5, 8)
    >>> bool(layer.log_prob(hidden).exp().sum(1).allclose(torch.ones(5)))
    True
    >>> layer(hidden, torch.tensor([3, 19, 20, 500, 999])).shape
    torch.Size([])
    """

    spreads = ("head", "head_bias", "tails")
    head_bias: nn.Parameter | None
    tail_bias: nn.Parameter | None

    @public
    def __init__(  # noqa: PLR0913 the options are keyword-only
        self,
        dim: int,
        classes: int,
        cutoffs: Sequence[int],
        *,
        div_value: float = 4.0,
        head_bias: bool = False,
        tail_bias: bool = False,
        reduction: str = "mean",
        ignore_index: int = IGNORE,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, classes, reduction=reduction, ignore_index=ignore_index, device=device)
        self.cutoffs, self.div_value = integers(cutoffs, "cutoffs"), check.positive(div_value, "div_value")
        frequent, *sizes = (end - begin for begin, end in pairwise((0, *self.cutoffs, self.classes)))
        if min(frequent, *sizes, 1) < 1:
            raise ValueError(f"cutoffs: expected increasing numbers from 1 to {classes - 1}, got {self.cutoffs}")
        cluster_widths, dtype = widths(self.dim, self.div_value, len(sizes)), float_dtype(dtype)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

        self.head = parameter(frequent + len(sizes), self.dim)
        self.register_parameter("head_bias", parameter(len(self.head)) if head_bias else None)
        self.projections = nn.ParameterList(parameter(width, self.dim) for width in cluster_widths)
        self.tails = nn.ParameterList(map(parameter, sizes, cluster_widths))
        self.register_parameter("tail_bias", parameter(sum(sizes)) if tail_bias else None)
        self.reset_parameters()

    # --- constructors -------------------------------------------------------------------------------------------------

    @classmethod
    def from_counts(
        cls,
        dim: int,
        counts: ArrayLike,
        *,
        cutoffs: Sequence[int] | None = None,
        clusters: int | None = None,
        batch: int = BATCH,
        **options: Any,
    ) -> AdaptiveSoftmax:
        """Return a layer for classes in any order, with cut-offs chosen from their counts.

        Parameters
        ----------
        dim : int
            D, the length of the hidden vectors.
        counts : array_like
            How often each class occurs, at least 0. Shape (K,).
        cutoffs : sequence of int, optional
            The first rank of each cluster. By default `softargmax.output.adaptive_cutoffs` chooses them.
        clusters, batch : int, optional
            The number of clusters and the number of rows of a step, as in `softargmax.output.adaptive_cutoffs`.
        **options
            The other arguments of `AdaptiveSoftmax`.

        Raises
        ------
        ValueError
            If a count is negative, NaN or infinite, if all counts are 0, or if an argument is out of range.
        TypeError
            If an argument has the wrong type.

        Examples
        --------
        >>> import softargmax
        >>> layer = softargmax.nn.AdaptiveSoftmax.from_counts(64, [1, 9, 0, 90], clusters=1)
        >>> layer.cutoffs, layer.order
        ((3,), tensor([3, 1, 0, 2]))
        """
        order = torch.from_numpy(ranked(counts).order)
        if cutoffs is None:
            cutoffs = adaptive_cutoffs(counts, dim=dim, clusters=clusters, batch=batch)
        elif clusters is not None:
            raise ValueError(f"clusters: expected None if cutoffs are passed, got {clusters}")
        layer = cls(dim, len(order), cutoffs, **options)
        layer._reorder(order)
        return layer

    @classmethod
    def from_torch(cls, module: nn.AdaptiveLogSoftmaxWithLoss, **options: Any) -> AdaptiveSoftmax:
        """Return a layer that copies the weights of torch's adaptive softmax and gives the same results.

        Parameters
        ----------
        module : torch.nn.AdaptiveLogSoftmaxWithLoss
            The module to copy. The methods have other names: call `layer(h, y)` for `module(h, y).loss`,
            `layer.log_prob_of(h, y)` for `module(h, y).output`, and `layer.topk(h, 1).index` for `module.predict(h)`.
        **options
            The arguments `reduction` and `ignore_index` of `AdaptiveSoftmax`.

        Raises
        ------
        TypeError
            If module has another type.

        Examples
        --------
        >>> import torch, softargmax
        >>> module = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 100, [10, 40])
        >>> layer = softargmax.nn.AdaptiveSoftmax.from_torch(module)
        >>> hidden, y = torch.randn(3, 16), torch.tensor([0, 20, 99])
        >>> bool(layer(hidden, y).isclose(module(hidden, y).loss))
        True
        """
        if not isinstance(module, nn.AdaptiveLogSoftmaxWithLoss):
            raise TypeError(f"module: expected a torch.nn.AdaptiveLogSoftmaxWithLoss, got {type(module).__name__}")
        like = module.head.weight
        layer = cls(
            module.in_features,
            module.n_classes,
            module.cutoffs[:-1],
            div_value=module.div_value,
            head_bias=module.head_bias,
            device=like.device,
            dtype=like.dtype,
            **options,
        )
        ours = [layer.head, *layer.projections, *layer.tails]
        tails: list[Any] = list(module.tail)
        theirs = [module.head.weight, *(tail[i].weight for i in (0, 1) for tail in tails)]
        with torch.no_grad():
            for to, source in zip(ours, theirs, strict=True):
                # torch's module can have a cluster of width 0. In this layer, such a cluster has width 1 and weights 0.
                to.zero_()[: source.shape[0], : source.shape[1]] = source
            if layer.head_bias is not None:
                layer.head_bias.copy_(module.head.bias)
        return layer.train(module.training)

    # --- computation --------------------------------------------------------------------------------------------------

    def _clusters(self) -> Clusters:
        sizes = [len(tail) for tail in self.tails]
        biases = [None] * len(sizes) if self.tail_bias is None else self.tail_bias.split_with_sizes(sizes)
        bounds = pairwise((*self.cutoffs, self.classes))
        every = zip(bounds, self.projections, self.tails, biases, strict=True)
        return Clusters(self.head, self.head_bias, [Cluster(*bound, *tensors) for bound, *tensors in every])

    def _parts(self, h: Tensor, y: Targets) -> Iterator[Part]:
        clusters, rank = self._clusters(), y.classes
        place = rank
        for i, cluster in enumerate(clusters.below):
            place = torch.where(rank >= cluster.begin, self.cutoffs[0] + i, place)
        yield Part(None, h, (self.head,), self.head_bias, place)
        for cluster in clusters.below:
            inside, target = (rank >= cluster.begin) & (rank < cluster.end), rank - cluster.begin
            if y.wrong is None:
                (rows,) = inside.nonzero(as_tuple=True)
                yield Part(rows, cluster.projected(h[rows]), (cluster.weight,), cluster.bias, target[rows])
            else:
                target = torch.where(inside, target, IGNORE)
                yield Part(None, cluster.projected(h), (cluster.weight,), cluster.bias, target)

    def _ranked_log_p(self, h: Tensor) -> Tensor:
        return all_log_p(h, self._clusters())

    def _likeliest(self, h: Tensor, k: int) -> TopK:
        alike(self.head, "topk", hidden=h, k=k)
        parts = list(blocks(len(h), self.classes)) or [slice(None)]
        found = (likeliest(h[part], self._clusters(), k) for part in parts)
        values, ranks = (torch.cat(each) for each in zip(*found, strict=True))
        return TopK(values, self._classes_of(ranks))

    def _drawn(self, h: Tensor, source: seeds.Source) -> Tensor:
        alike(self.head, "sample", hidden=h, seed=source.seed, stream=source.stream)
        ranks = torch.empty(len(h), dtype=torch.int64, device=h.device)
        stream = torch.arange(len(h), device=h.device) if source.stream is None else source.stream
        for part in blocks(len(h), self.classes):
            ranks[part] = descend(h[part], self._clusters(), int(source.seed) % seeds.SEEDS, stream[part])
        return self._classes_of(ranks)

    def extra_repr(self) -> str:
        biases = f"head_bias={self.head_bias is not None}, tail_bias={self.tail_bias is not None}"
        shape = f"{self.dim}, {self.classes}, {list(self.cutoffs)}, div_value={self.div_value:g}"
        return f"{shape}, {biases}, reduction={self.reduction!r}"


# --- the head and the clusters ----------------------------------------------------------------------------------------
#
#     log p(r) = log p_head(r)                           for a frequent class
#     log p(r) = log p_head(token) + log p_cluster(r)    for a class of a cluster
#
# The token of a cluster is an entry of the head, after the frequent classes. Classes are numbered by rank: first the
# frequent classes, from 0 on, then the classes of each cluster.


class Cluster(NamedTuple):
    """The cluster of the ranks begin to end - 1: projection (D_i, D), weight (end - begin, D_i), bias or None."""

    begin: int
    end: int
    projection: Tensor
    weight: Tensor
    bias: Tensor | None

    def projected(self, h: Tensor) -> Tensor:
        """Return P h, (N, D_i)."""
        return scores(h, self.projection, None)

    def log_p(self, h: Tensor) -> Tensor:
        """Return the log-probabilities of the cluster's classes, given the cluster."""
        found: Tensor = full(log_softmax(scores(self.projected(h), self.weight, self.bias)))
        return found


class Clusters(NamedTuple):
    """The weight (frequent + tokens, D) and the bias of the head, and the cluster of each token."""

    weight: Tensor
    bias: Tensor | None
    below: Sequence[Cluster]

    def head(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the frequent classes and the log-probabilities of the tokens."""
        found: Tensor = full(log_softmax(scores(h, self.weight, self.bias)))
        return found[:, : found.shape[1] - len(self.below)], found[:, found.shape[1] - len(self.below) :]


def all_log_p(h: Tensor, clusters: Clusters) -> Tensor:
    """Return the log-probabilities of all ranks, (N, K)."""
    frequent, tokens = clusters.head(h)
    below = (tokens[:, i, None] + cluster.log_p(h) for i, cluster in enumerate(clusters.below))
    return torch.cat([frequent, *below], 1)


def likeliest(h: Tensor, clusters: Clusters, k: int) -> TopK:
    """Return the k most probable ranks of every row and their log-probabilities.

    A row with NaN has the ranks -1 and the log-probabilities NaN.

    Each row visits the clusters in the order of decreasing probability. The probability of a cluster is that of the
    cluster's token in the head. No rank is more probable than its cluster. So the row stops at a cluster that is less
    probable than the k-th best rank found so far.
    """
    frequent, tokens = clusters.head(h)
    sound = ~(frequent.isnan().any(1) | tokens.isnan().any(1))
    known = frequent.topk(min(k, frequent.shape[1]), 1)
    room = 0, k - known.values.shape[1]
    values, ranks = pad(known.values, room, value=-math.inf), pad(known.indices, room, value=-1)
    tokens, order = tokens.sort(1, descending=True)
    for token, which in zip(tokens.unbind(1), order.unbind(1), strict=True):
        searched = sound & (token >= values[:, -1])
        for i, cluster in enumerate(clusters.below):
            (rows,) = (searched & (which == i)).nonzero(as_tuple=True)
            log_p = token[rows, None] + cluster.log_p(h[rows])
            sound[rows] = ~log_p.isnan().any(1)
            more = log_p.topk(min(k, log_p.shape[1]), 1)
            both = torch.cat([more.values, values[rows]], 1)
            # Unused places have -inf. The stable sort puts them after classes of probability 0, which also have -inf.
            places = both.argsort(dim=1, descending=True, stable=True)[:, :k]
            values[rows] = both.gather(1, places)
            ranks[rows] = torch.cat([more.indices + cluster.begin, ranks[rows]], 1).gather(1, places)
    return TopK(torch.where(sound[:, None], values, math.nan), torch.where(sound[:, None], ranks, -1))


def descend(h: Tensor, clusters: Clusters, seed: int, stream: Tensor) -> Tensor:
    """Return a rank drawn for every row, or -1 if the row has NaN.

    The first draw is from the head. If it is the token that stands for a cluster, a second draw is from this cluster.
    """
    head = torch.cat(clusters.head(h), 1)
    place = draw_columns(head, seed, stream)
    rank, size = place.clone(), head.shape[1]
    for i, cluster in enumerate(clusters.below):
        (rows,) = (place == size - len(clusters.below) + i).nonzero(as_tuple=True)
        # The random numbers of a draw depend on the column. The padding shifts the columns of the cluster beyond those
        # of the head, so the two draws have different random numbers.
        columns = pad(cluster.log_p(h[rows]), (size, 0), value=-math.inf)
        inside = draw_columns(columns, seed, stream[rows])
        rank[rows] = torch.where(inside < 0, -1, inside - size + cluster.begin)
    return rank
