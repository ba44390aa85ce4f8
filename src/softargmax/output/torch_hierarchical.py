"""The hierarchical softmax as a torch module: K - 1 coins on a tree in place of K scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from softargmax.core import arrays, check, seeds
from softargmax.core.dispatch import readable
from softargmax.core.targets import IGNORE, REDUCTIONS, integer, one_of
from softargmax.output import torch_descent
from softargmax.output.nodes import Paths, Slots
from softargmax.output.torch_descent import TopK
from softargmax.output.torch_paths import pairs_of, path_loss, targets_of
from softargmax.output.tree import Tree

__all__ = ["HierarchicalSoftmax", "TopK"]

_TABLES = ("offsets", "path_nodes", "path_signs", "node_slots", "class_slots")


class HierarchicalSoftmax(nn.Module):
    r"""A distribution over K classes as coins on the inner nodes of a binary tree.

    .. math:: p(y \mid h) = \prod_{n\ \text{above}\ y} \sigma\left(\pm(\langle h, w_n\rangle + b_n)\right)

    with + where the way to y goes on with the node's first child. The probabilities of all classes sum to 1, and that
    of one class needs its path alone: :math:`O(d_y D)` in place of :math:`O(K D)`.

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    tree : Tree
        Over the K classes. `Tree.huffman` of the classes' counts has the shortest paths.
    bias : bool
        Whether nodes have a b.
    sparse : bool
        Whether the gradients to weight and bias are sparse tensors of the nodes that were met: for
        `torch.optim.SparseAdam` and SGD. A gradient that is itself to be differentiated is dense, and so are those of
        `log_prob`.
    reduction : {"mean", "sum", "none"}
        The loss is the mean over the rows that count, their sum, or one number per row.
    ignore_index : int
        Rows with this target count nothing.
    device, dtype
        Of the parameters.

    Attributes
    ----------
    weight : Parameter
        Shape (K - 1, D).
    bias : Parameter or None
        Shape (K - 1,).
    tree : Tree
        The tree. A checkpoint brings its own, if K is the same.

    Raises
    ------
    TypeError, ValueError
        If an argument is of a wrong kind or out of its range.

    Notes
    -----
    The module is called with hidden vectors (..., D) and targets (...), integers, and returns the loss
    :math:`-\log p(y \mid h)`. Halves are computed in float32 and give float32. If nothing counts, the mean is 0. The
    other methods are `log_prob`, `log_prob_of`, `topk` and `sample`.

    Parameters begin at 0, where every class has probability :math:`2^{-d_y}`: of a Huffman tree the distribution that
    the counts had, nearly.

    Memory of the loss: :math:`O(N d)` numbers beside the nodes that are touched; neither (N, K) nor (N, d, D).

    Gradients, with :math:`x = \pm(\langle h, w_n\rangle + b_n)`: every pair of a row and a node on its path adds
    :math:`\mp\sigma(-x)\,w_n` to that of h, :math:`\mp\sigma(-x)\,h` to that of :math:`w_n`. They can be
    differentiated again.

    A target out of range is an IndexError; where nobody may look (devices, tracing), its row is NaN.

    References
    ----------
    Morin & Bengio (2005), Hierarchical probabilistic neural network language model, section 3. AISTATS. Mnih & Hinton
    (2009), A scalable hierarchical distributed language model, section 4. NeurIPS. Mikolov et al. (2013), Distributed
    representations of words and phrases and their compositionality, section 2.1. arXiv:1310.4546.

    See Also
    --------
    softargmax.output.Tree : the trees.

    Examples
    --------
    >>> import torch, softargmax
    >>> from softargmax.output import Tree
    >>> layer = softargmax.nn.HierarchicalSoftmax(4, Tree.huffman([8, 4, 2, 1, 1]))
    >>> hidden = torch.tensor([[1.0, 0.0, -1.0, 2.0], [0.5, 1.0, 0.0, 0.0]])
    >>> layer(hidden, torch.tensor([0, 4]))
    tensor(1.73, grad_fn=<DivBackward0>)
    >>> layer.log_prob(hidden).exp()[0]
    tensor([0.5000, 0.2500, 0.1250, 0.0625, 0.0625], grad_fn=<SelectBackward0>)
    """

    bias: nn.Parameter | None
    tree_children: Tensor
    offsets: Tensor
    path_nodes: Tensor
    path_signs: Tensor
    node_slots: Tensor
    class_slots: Tensor

    def __init__(
        self,
        dim: int,
        tree: Tree,
        *,
        bias: bool = True,
        sparse: bool = False,
        reduction: str = "mean",
        ignore_index: int = IGNORE,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim = integer(dim, "dim")
        if self.dim < 1:
            raise ValueError(f"dim: {dim}; it may be 1 or more")
        if not isinstance(tree, Tree):
            raise TypeError(f"tree: {type(tree).__name__}; it may be a Tree")
        if dtype is not None and arrays.dtype_name(dtype) not in arrays.FLOATS:
            raise TypeError(f"dtype: {dtype}; it may be float16, bfloat16, float32 or float64")
        self.sparse = sparse
        self.reduction = one_of(reduction, "reduction", REDUCTIONS)
        self.ignore_index = integer(ignore_index, "ignore_index")
        self.weight = nn.Parameter(torch.zeros(tree.nodes, self.dim, device=device, dtype=dtype))
        begin = torch.zeros(tree.nodes, device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", None if begin is None else nn.Parameter(begin))
        self.register_buffer("tree_children", torch.tensor(tree.children, device=device))
        self._grow(tree)

    def reset_parameters(self) -> None:
        """All parameters 0 again."""
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    # --- what it computes ---------------------------------------------------------------------------------------------

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        loss, counted = self._losses(hidden, target)
        if self.reduction == "none":
            return loss
        return loss.sum() / counted.sum().clamp(min=1) if self.reduction == "mean" else loss.sum()

    def log_prob(self, hidden: Tensor) -> Tensor:
        """The log-probabilities of all classes, (..., K): one product for all nodes, one sweep over the levels."""
        h, rows = self._rows(hidden)
        slots = Slots(self.node_slots, self.class_slots)
        parts = [slice(None)]
        if not torch.is_grad_enabled() and readable(h):
            parts = list(torch_descent.blocks(len(h), 4 * self.tree.classes)) or parts
        found = (torch_descent.scores(h[part], self.weight, self.bias) for part in parts)
        log_p = [torch_descent.sweep(z, self.tree.levels, slots) for z in found]
        return torch.cat(log_p).reshape(*rows, self.tree.classes)

    def log_prob_of(self, hidden: Tensor, target: Tensor) -> Tensor:
        """The log-probability of one class of each row, (...), along its path; 0 where the target is ignored."""
        return 0.0 - self._losses(hidden, target)[0]

    @torch.no_grad()
    def topk(self, hidden: Tensor, k: int) -> TopK:
        """The k likeliest classes of each row, found without a look at the others, and their log-probabilities.

        Parameters
        ----------
        hidden : Tensor
            (..., D).
        k : int
            From 1 to K.

        Returns
        -------
        TopK
            values and index, (..., k): the largest first, of equal ones the lowest class first. In a row that meets
            NaN they are NaN and -1. No gradient: `log_prob_of` has one.

        Notes
        -----
        Only nodes are opened that are as likely as a class found before (best first, of all rows a level at a time):
        the flatter a distribution, the more there are.
        """
        h, rows = self._rows(hidden)
        n = integer(k, "k")
        if not 1 <= n <= self.tree.classes:
            raise ValueError(f"k: {n}; it may be from 1 to {self.tree.classes}")
        found = torch_descent.likeliest(h, self._splits(), n)
        return TopK(*(x.reshape(*rows, n) for x in found))

    @torch.no_grad()
    def sample(
        self,
        hidden: Tensor,
        seed: int | None = None,
        *,
        stream: Any = None,
        generator: Any = None,
    ) -> Tensor:
        """A class drawn for each row, (...): from the root down, one coin at each node.

        Parameters
        ----------
        hidden : Tensor
            (..., D).
        seed, stream, generator
            As in `softargmax.categorical`: a row's draw depends on its h, the seed and its stream, on nothing else.

        Returns
        -------
        Tensor
            int64.

        Raises
        ------
        ValueError
            If a row meets NaN (it is named); where nobody may look, its class is -1.
        """
        h, rows = self._rows(hidden)
        source = seeds.source(hidden, rows, seed, stream, generator)
        looks = readable(h)
        drawn = torch_descent.descend(h, self._splits(), self.tree.depth, source, compact=looks)
        if looks and bool((drawn < 0).any()):
            row = int((drawn < 0).nonzero()[0])
            raise ValueError(f"hidden: row {row} meets NaN; there is no distribution to draw from")
        return drawn.reshape(rows)

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"{self.dim}, {self.tree}, bias={bias}, sparse={self.sparse}, reduction={self.reduction!r}"

    # --- arguments ----------------------------------------------------------------------------------------------------

    def _losses(self, hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of every row, 0 where it is ignored; which rows count."""
        h, rows = self._rows(hidden)
        y, counted, wrong = targets_of(target, h.detach(), rows, self.tree.classes, self.ignore_index)
        if wrong is not None:
            h = torch.where(counted[:, None], h, 0)  # what a row holds that does not count, is not to be met
        paths = Paths(self.offsets, self.path_nodes, self.path_signs)
        pairs = pairs_of(paths, y, counted, self.tree.depth, h.dtype)
        loss = path_loss(h, self.weight, self.bias, pairs, sparse=self.sparse)
        if wrong is not None:
            loss = torch.where(wrong, torch.nan, loss)
        return loss.reshape(rows), counted

    def _rows(self, hidden: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """Hidden vectors (N, D), in float32 at least, and the rows' shape."""
        if not isinstance(hidden, Tensor):
            raise TypeError(f"hidden: {type(hidden).__name__}; it may be a tensor")
        h = check.scores(hidden, "hidden")
        if not h.ndim or h.shape[-1] != self.dim:
            raise ValueError(f"hidden: shape {tuple(h.shape)}; it may be (..., {self.dim})")
        if h.device != self.weight.device:
            raise ValueError(f"hidden: on {h.device}; here it may be on {self.weight.device}")
        wide = torch.float64 if torch.float64 in (h.dtype, self.weight.dtype) else torch.float32
        rows = tuple(h.shape[:-1])
        return h.reshape(-1, self.dim).to(wide), rows

    # --- the tree -----------------------------------------------------------------------------------------------------

    def _splits(self) -> torch_descent.Splits:
        return torch_descent.Splits(self.weight, self.bias, self.tree_children)

    def _grow(self, tree: Tree) -> None:
        """Hold the tree, and as buffers what follows from it."""
        self.tree = tree
        for name, table in zip(_TABLES, (*tree.paths, *tree.slots), strict=True):
            self.register_buffer(name, torch.tensor(table, device=self.weight.device), persistent=False)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        """A checkpoint's tree comes with its parameters."""
        given = state_dict.get(f"{prefix}tree_children")
        if isinstance(given, Tensor) and given.shape == self.tree_children.shape and not given.is_meta:
            try:
                self._grow(Tree(given))
            except (TypeError, ValueError) as error:
                lists[-1].append(f"{prefix}tree_children: {error}")
                return
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *lists)
