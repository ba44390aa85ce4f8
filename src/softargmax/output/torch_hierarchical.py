"""The hierarchical softmax as a torch module: binary decisions on the path to a class in place of K scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from softargmax.core.arrays import readable
from softargmax.core.signature import public
from softargmax.core.targets import IGNORE
from softargmax.core.torch_spreadable import alike, full
from softargmax.output import torch_tree_search
from softargmax.output.arguments import Pairs
from softargmax.output.torch_base import OutputLayer, Targets, TopK, float_dtype
from softargmax.output.torch_class_scores import coin_losses, of_pairs, scores
from softargmax.output.tree import Tree
from softargmax.output.tree_paths import Paths, Slots

if TYPE_CHECKING:
    from torch.types import Device

    from softargmax.core import seeds

__all__ = ["HierarchicalSoftmax"]

_TABLES = ("offsets", "path_nodes", "path_signs", "node_slots", "class_slots")


class HierarchicalSoftmax(OutputLayer):
    r"""A distribution over K classes, by binary decisions at the inner nodes of a tree.

    .. math:: p(y \mid h) = \prod_{n\ \text{above}\ y} \sigma\left(\pm(\langle h, w_n\rangle + b_n)\right)

    The sign is + where the path to y continues with the node's first child, and - where it continues with the second.
    The probabilities of all classes sum to 1. The probability of class y needs only the :math:`d_y` nodes on its path.
    So it costs :math:`O(d_y D)` instead of :math:`O(K D)`.

    Parameters
    ----------
    dim : int
        D, the length of the hidden vectors h.
    tree : Tree
        A tree over the K classes. `Tree.huffman(counts)` with the counts of the classes has the shortest mean path.
    bias : bool
        If True, each node has a bias b.
    sparse : bool
        If True, the gradients to weight and bias are sparse tensors of the nodes on the paths, for
        `torch.optim.SparseAdam` and SGD. Gradients with ``create_graph=True`` and gradients of `log_prob` are dense.
    reduction : {"mean", "sum", "none"}
        A call returns the mean or the sum of the losses of the rows that are not ignored, or one loss per row.
    ignore_index : int
        Rows with this target are ignored.
    device, dtype : optional
        Device and dtype of the parameters; default to torch's default device and dtype.

    Attributes
    ----------
    weight : Parameter
        The vectors of the nodes, shape (K - 1, D).
    bias : Parameter or None
        The biases of the nodes, shape (K - 1,).
    tree : Tree
        The tree. Loading a checkpoint with the same K replaces it.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    The module is called with hidden vectors (..., D) and integer targets (...), and returns the loss :math:`-\log p(y
    \mid h)`. Half-precision inputs are converted to float32, the dtype of the results. If all rows are ignored, the
    mean is 0. The other methods are `log_prob` (one matrix product for all nodes, one sweep over the levels),
    `log_prob_of` (along the path), `topk` and `sample`.

    `topk` visits few classes. It searches all rows together, one level of the tree at a time. It expands only nodes
    that may be as probable as the k-th best class. The flatter the distribution of a row, the more nodes are expanded.
    Equally probable classes are sorted by their number. `sample` descends from the root with one random decision at
    each node.

    Parameters are initialised to 0. Then class y has probability :math:`2^{-d_y}`, which for a Huffman tree is close to
    the distribution of the counts.

    The loss stores the nodes, signs and derivatives along the path of each row. These are :math:`O(N d)` numbers, where
    d is the length of a path. No array of shape (N, K) or (N, d, D) is stored.

    Let :math:`x = \pm(\langle h, w_n\rangle + b_n)`. Each pair of a row and a node n on its path adds
    :math:`\mp\sigma(-x)\,w_n` to the gradient of h, and :math:`\mp\sigma(-x)\,h` to the gradient of :math:`w_n`. These
    gradients can be differentiated again.

    A target out of range raises IndexError. Under tracing, and on devices other than the CPU, the result for its row is
    NaN instead.

    Parameters may be DTensors (`softargmax.parallel.VocabularyParallel`).

    References
    ----------
    Morin & Bengio (2005), Hierarchical probabilistic neural network language model, section 3. AISTATS. Mnih & Hinton
    (2009), A scalable hierarchical distributed language model, section 4. NeurIPS. Mikolov et al. (2013), Distributed
    representations of words and phrases and their compositionality, section 2.1. arXiv:1310.4546.

    See Also
    --------
    softargmax.output.Tree : constructors of trees.

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

    spreads = ("weight", "bias")
    bias: nn.Parameter | None
    tree_children: Tensor
    offsets: Tensor
    path_nodes: Tensor
    path_signs: Tensor
    node_slots: Tensor
    class_slots: Tensor

    @public
    def __init__(
        self,
        dim: int,
        tree: Tree,
        *,
        bias: bool = True,
        sparse: bool = False,
        reduction: str = "mean",
        ignore_index: int = IGNORE,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(tree, Tree):
            raise TypeError(f"tree: expected a Tree, got {type(tree).__name__}")
        super().__init__(dim, tree.classes, reduction=reduction, ignore_index=ignore_index)
        self.sparse, dtype = sparse, float_dtype(dtype)
        self.weight = nn.Parameter(torch.zeros(tree.nodes, self.dim, device=device, dtype=dtype))
        begin = torch.zeros(tree.nodes, device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", None if begin is None else nn.Parameter(begin))
        self._set_tree(tree, self.weight.device)

    def reset_parameters(self) -> None:
        """Set all parameters to 0, and rebuild the tree's tables, which `to_empty` leaves uninitialised."""
        self._set_tree(self.tree, self.weight.device)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    # --- computation --------------------------------------------------------------------------------------------------

    def _losses(self, h: Tensor, y: Targets) -> Tensor:
        paths = Paths(self.offsets, self.path_nodes, self.path_signs)
        pairs, signs = pairs_of(paths, y.classes, y.counted, self.tree.depth)
        table, pairs = of_pairs(self.weight, self.bias, pairs, sparse=self.sparse)
        return coin_losses(h, table, pairs, signs)

    def _log_p(self, h: Tensor) -> Tensor:
        """Return log p of all classes, by one matrix product for all nodes and one sweep over the levels."""
        z = full(scores(h, self.weight, self.bias))
        return torch_tree_search.sweep(z, self.tree.levels, Slots(self.node_slots, self.class_slots))

    def _log_p_of(self, h: Tensor, y: Targets) -> Tensor:
        return 0.0 - self._losses(h, y)

    def _likeliest(self, h: Tensor, k: int) -> TopK:
        alike(self.weight, "topk", hidden=h, k=k)
        return torch_tree_search.likeliest(h, self._splits(), k)

    def _drawn(self, h: Tensor, source: seeds.Source) -> Tensor:
        alike(self.weight, "sample", hidden=h, seed=source.seed, stream=source.stream)
        return torch_tree_search.descend(h, self._splits(), self.tree.depth, source, compact=readable(h))

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"{self.dim}, {self.tree}, bias={bias}, sparse={self.sparse}, reduction={self.reduction!r}"

    # --- the tree -----------------------------------------------------------------------------------------------------

    def _splits(self) -> torch_tree_search.Splits:
        return torch_tree_search.Splits(self.weight, self.bias, self.tree_children)

    def _set_tree(self, tree: Tree, device: Any) -> None:
        """Store the tree, and store the tables derived from it as buffers."""
        self.tree = tree
        self.register_buffer("tree_children", torch.tensor(tree.children, device=device))
        for name, table in zip(_TABLES, (*tree.paths, *tree.slots), strict=True):
            self.register_buffer(name, torch.tensor(table, device=device), persistent=False)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        """Load a checkpoint's tree together with its parameters."""
        stored = state_dict.get(f"{prefix}tree_children")
        if isinstance(stored, Tensor) and stored.shape == self.tree_children.shape and not stored.is_meta:
            try:
                self._set_tree(Tree(stored), stored.device if self.weight.is_meta else self.weight.device)
            except (TypeError, ValueError) as error:
                lists[-1].append(f"{prefix}tree_children: {error}")
                return
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *lists)


# --- the nodes on a path ----------------------------------------------------------------------------------------------
#
# A row's loss is a sum over the nodes on its target's path:
#
#     x = +-(<h, w> + b)        loss = sum -log sigma(x)        d loss = sum -sigma(-x) d x


def pairs_of(paths: Paths, target: Tensor, counted: Tensor, depth: int) -> tuple[Pairs, Tensor]:
    """Return the pairs of a row and a node on its target's path, and their signs. Ignored rows have no pairs.

    Under tracing, and on devices other than the CPU, every row instead has as many pairs as the longest path has nodes.
    A sign of 0 marks an unused pair.
    """
    n = len(target)
    if readable(target):
        return _pairs_in_memory(paths, target, counted)
    target = torch.where(counted, target, 0)
    begin = paths.offsets[target]
    lengths = torch.where(counted, paths.offsets[target + 1] - begin, 0)
    rows = torch.arange(n + 1, device=target.device)
    step = torch.arange(depth, device=target.device)
    there = step < lengths[:, None]
    place = torch.where(there, begin[:, None] + step, 0).reshape(-1)
    signs = torch.where(there.reshape(-1), paths.signs[place], 0) if depth else place
    nodes = paths.nodes[place].long() if depth else place
    return Pairs(nodes, rows[:-1].repeat_interleave(depth), rows * depth), signs


def _pairs_in_memory(paths: Paths, target: Tensor, counted: Tensor) -> tuple[Pairs, Tensor]:
    """Return the result of `pairs_of`, by NumPy. For a few rows, this takes half the time of the same code in torch."""
    offsets, nodes, signs = (x.numpy() for x in paths)
    y = np.where(counted.numpy(), target.numpy(), 0)
    begin = offsets[y]
    lengths = np.where(counted.numpy(), offsets[y + 1] - begin, 0)
    starts = np.zeros(len(y) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    place = np.arange(starts[-1]) + np.repeat(begin - starts[:-1], lengths)
    pairs = nodes[place].astype(np.int64), np.repeat(np.arange(len(y)), lengths), starts
    return Pairs(*map(torch.from_numpy, pairs)), torch.from_numpy(signs[place])
