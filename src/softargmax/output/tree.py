"""Binary trees over classes: what a hierarchical softmax is made on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core import seeds
from softargmax.core.arrays import is_torch
from softargmax.output import tree_build
from softargmax.output.counts import at_least, counts_of
from softargmax.output.tree_paths import Nodes, Paths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike


__all__ = ["Paths", "Tree"]


class Tree(Nodes):
    r"""A binary tree whose K leaves are classes: K - 1 inner nodes, each with two children.

    .. math:: \sum_k 2^{-d_k} = 1

    holds for the depths d of the classes, as for every such tree: with a fair coin at each node it is a distribution.

    Parameters
    ----------
    children : array_like of int
        Shape (K - 1, 2). What hangs at each inner node: another one's number, or ``~k`` (that is, -1 - k) for class k.
        Node 0 is the root; nodes are numbered level by level, from left to right.

    Attributes
    ----------
    classes : int
        K, at least 1.
    nodes : int
        K - 1.
    depth : int
        How many nodes the longest path has.
    depths : array of int64
        Shape (K,): how many nodes each class is below.
    children : array of int64
        As given.
    levels : tuple of int
        The nodes of level d are ``range(levels[d], levels[d + 1])``.
    paths : Paths
        The way to every class: offsets (K + 1,) int64, nodes int32 and signs int8, :math:`\sum_k d_k` long. Made when
        first asked for.

    Raises
    ------
    TypeError, ValueError
        If the children are not integers of that shape, or no tree.

    Notes
    -----
    A tree does not change: its arrays are read-only. Two with the same children are equal. It can be copied and
    pickled, and `state` gives arrays to be stored. Usually it comes from one of the constructors

    - `balanced`: all classes alike, depths :math:`\lfloor\log_2 K\rfloor` and :math:`\lceil\log_2 K\rceil`;
    - `huffman`: the least expected depth under given counts;
    - `from_clusters`: what belongs together hangs together, as someone knows it;
    - `from_hidden`: the same as the vectors of a trained layer know it.

    References
    ----------
    Morin & Bengio (2005), Hierarchical probabilistic neural network language model, section 3. AISTATS. Mnih & Hinton
    (2009), A scalable hierarchical distributed language model, section 4. NeurIPS. Mikolov et al. (2013), Distributed
    representations of words and phrases and their compositionality, section 2.1. arXiv:1310.4546.

    Examples
    --------
    >>> from softargmax.output import Tree
    >>> tree = Tree.huffman([8, 4, 2, 1, 1])
    >>> tree
    Tree(classes=5, depth=4)
    >>> tree.depths
    array([1, 2, 3, 4, 4])
    >>> tree == Tree(tree.children)
    True
    """

    # --- constructors -------------------------------------------------------------------------------------------------

    @classmethod
    def balanced(cls, classes: int) -> Tree:
        r"""The tree in which all classes are equally deep, or nearly.

        .. math:: d_k \in \{\lfloor\log_2 K\rfloor, \lceil\log_2 K\rceil\}

        Parameters
        ----------
        classes : int
            K, at least 1.

        Returns
        -------
        Tree
            The first classes have the smaller depth.

        Examples
        --------
        >>> from softargmax.output import Tree
        >>> Tree.balanced(6).depths
        array([2, 2, 3, 3, 3, 3])
        """
        return cls(tree_build.balanced(at_least(classes, "classes", 1)))

    @classmethod
    def huffman(cls, counts: ArrayLike) -> Tree:
        r"""The tree of the least expected depth under counts c.

        .. math:: H(p) \le \sum_k p_k d_k < H(p) + 1, \qquad p_k = c_k / \sum_j c_j, \quad H \text{ in bits}

        Parameters
        ----------
        counts : array_like
            Shape (K,): how often each class was seen, integers or floats, not negative; zeros may be among them.

        Returns
        -------
        Tree
            Of equal counts the earlier class is at least as deep. If all are equal, the tree is balanced.

        Raises
        ------
        TypeError, ValueError
            If counts are of another kind or shape, negative, NaN or infinite.

        References
        ----------
        Huffman (1952), A method for the construction of minimum-redundancy codes. van Leeuwen (1976), On the
        construction of Huffman trees: two queues, O(K) after sorting.

        Examples
        --------
        >>> from softargmax.output import Tree
        >>> Tree.huffman([5, 1, 0, 2]).depths
        array([1, 3, 3, 2])
        """
        return cls(tree_build.numbered(tree_build.huffman(counts_of(counts))))

    @classmethod
    def from_clusters(cls, clusters: ArrayLike, *, counts: ArrayLike | None = None) -> Tree:
        """The tree in which the classes of a cluster have a node of their own.

        Parameters
        ----------
        clusters : array_like of int or nested sequence
            Shape (K,): the number of each class's cluster. Or the clusters themselves: a sequence of sequences of
            classes, which may hold sequences in their turn.
        counts : array_like, optional
            Shape (K,), as in `huffman`.

        Returns
        -------
        Tree
            Inside clusters of classes alone it is balanced; over clusters it is Huffman's tree by the clusters'
            counts, without counts balanced too.

        Raises
        ------
        TypeError, ValueError
            If a cluster is empty, if the classes are not 0 to K - 1, each once, or if counts do not fit.

        References
        ----------
        Goodman (2001), Classes for fast maximum entropy training. ICASSP. Morin & Bengio (2005), section 3.

        Examples
        --------
        >>> from softargmax.output import Tree
        >>> Tree.from_clusters([0, 0, 1, 1, 1]) == Tree.from_clusters([[0, 1], [2, 3, 4]])
        True
        >>> Tree.from_clusters([[0, 1], [[2, 3], [4]]], counts=[1, 1, 1, 1, 9]).depths
        array([2, 2, 3, 3, 2])
        """
        numbers = None if counts is None else counts_of(counts)
        children = tree_build.nested(tree_build.clusters_of(clusters), None if numbers is None else numbers.tolist())
        if numbers is not None and len(numbers) != len(children) + 1:
            raise ValueError(
                f"counts: expected one number per class, shape ({len(children) + 1},), got {numbers.shape}"
            )
        return cls(children)

    @classmethod
    def from_hidden(cls, weights: ArrayLike, seed: int | None = None) -> Tree:
        r"""The tree in which classes with similar vectors hang together: halves of halves of the cloud.

        .. math:: \min \sum_{k \in A} \lVert w_k - \bar w_A\rVert^2 + \sum_{k \in B} \lVert w_k - \bar w_B\rVert^2,
            \qquad |A| - |B| \in \{0, 1\}

        at each node, approximately: balanced two-means, from the widest direction on.

        Parameters
        ----------
        weights : array_like
            Shape (K, D): a vector for each class, say the weight of a trained last layer, or mean hidden vectors.
        seed : int, optional
            0 to 2^64 - 1: where the searches begin. Without it, one is drawn from the default generator of the
            weights' library.

        Returns
        -------
        Tree
            Depths as in `balanced`. The same weights and seed give the same tree on the same machine.

        Raises
        ------
        TypeError, ValueError
            If weights are of another kind or shape, NaN or infinite, or seed is.

        Notes
        -----
        All nodes of a level are cut at once: :math:`O(K D \log K)`, with three copies of the weights for memory.

        References
        ----------
        Mnih & Hinton (2009), section 4 (there with a mixture of two Gaussians).

        Examples
        --------
        >>> from softargmax.output import Tree
        >>> tree = Tree.from_hidden([[0.0], [9.0], [0.1], [9.1]], seed=0)
        >>> tree == Tree.from_clusters([0, 1, 0, 1]) or tree == Tree.from_clusters([1, 0, 1, 0])
        True
        """
        first = seeds.seed_of(weights if is_torch(weights) else np.empty(0), seed, None)
        return cls(tree_build.halves(tree_build.points_of(weights), int(first) % seeds.SEEDS))

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Tree:
        """The tree whose `state` this is.

        Parameters
        ----------
        state : mapping
            As `state` returns it; its arrays may be of any library.

        Returns
        -------
        Tree
            Equal to the one that was stored.

        Raises
        ------
        TypeError, ValueError
            If it holds no tree.

        Examples
        --------
        >>> from softargmax.output import Tree
        >>> tree = Tree.balanced(5)
        >>> Tree.from_state(tree.state()) == tree
        True
        """
        if "children" not in state:
            raise ValueError(f"state: expected 'children', got {', '.join(map(repr, state)) or 'nothing'}")
        return cls(state["children"])
