"""Binary trees over classes, for the hierarchical softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core import seeds
from softargmax.core.arrays import is_torch
from softargmax.output import tree_build
from softargmax.output.counts import at_least, counts_of
from softargmax.output.tree_paths import Paths, TreePaths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike


__all__ = ["Paths", "Tree"]


class Tree(TreePaths):
    r"""A binary tree with the K classes as leaves and with K - 1 inner nodes, each of which has two children.

    .. math:: \sum_k 2^{-d_k} = 1

    Here :math:`d_k` is the depth of class k. The equation holds because a descent that takes each child with
    probability 1/2 ends at class k with probability :math:`2^{-d_k}`.

    Parameters
    ----------
    children : array_like of int
        Shape (K - 1, 2). The two children of each inner node. A child is the number of another inner node, or ``~k``
        (that is, -1 - k) for class k. Node 0 is the root. Nodes are numbered level by level, from left to right.

    Attributes
    ----------
    classes : int
        K, at least 1.
    nodes : int
        K - 1.
    depth : int
        The number of inner nodes on the longest path.
    depths : array of int64
        Shape (K,): the number of inner nodes above each class.
    children : array of int64
        The children, shape (K - 1, 2), as under Parameters.
    levels : tuple of int
        The nodes of level d are ``range(levels[d], levels[d + 1])``.
    paths : Paths
        The path from the root to every class: offsets (K + 1,) int64, nodes int32 and signs int8. Nodes and signs have
        the length :math:`\sum_k d_k`. The paths are computed at first use.

    Raises
    ------
    TypeError, ValueError
        If the children are not integers of shape (K - 1, 2), or do not form a tree.

    Notes
    -----
    A tree is immutable: its arrays are read-only. Two trees with the same children are equal. A tree can be copied and
    pickled, and `state` returns arrays for storing it. The constructors build the common trees:

    - `balanced`: all classes have the depth :math:`\lfloor\log_2 K\rfloor` or :math:`\lceil\log_2 K\rceil`;
    - `huffman`: the expected depth for the counts of the classes is minimal;
    - `from_clusters`: the classes of each given cluster form a subtree;
    - `from_hidden`: classes with similar vectors in a trained layer share a subtree.

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
        r"""Return the balanced tree, in which the depths of the classes differ by at most 1.

        .. math:: d_k \in \{\lfloor\log_2 K\rfloor, \lceil\log_2 K\rceil\}

        Parameters
        ----------
        classes : int
            K, at least 1.

        Returns
        -------
        Tree
            If depths differ, the first classes have the smaller depth.

        Examples
        --------
        >>> from softargmax.output import Tree
        >>> Tree.balanced(6).depths
        array([2, 2, 3, 3, 3, 3])
        """
        return cls(tree_build.balanced(at_least(classes, "classes", 1)))

    @classmethod
    def huffman(cls, counts: ArrayLike) -> Tree:
        r"""Return the tree with the smallest expected depth for the counts c.

        .. math:: H(p) \le \sum_k p_k d_k < H(p) + 1, \qquad p_k = c_k / \sum_j c_j, \quad H \text{ in bits}

        Parameters
        ----------
        counts : array_like
            Shape (K,): how often each class occurs, integers or floats, at least 0.

        Returns
        -------
        Tree
            Among classes with equal counts, an earlier class is at least as deep as a later one. If all counts are
            equal, the tree is balanced.

        Raises
        ------
        TypeError, ValueError
            If counts have the wrong type or shape, or one is negative, NaN or infinite.

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
        """Return the tree in which the classes of each cluster form a subtree.

        Parameters
        ----------
        clusters : array_like of int or nested sequence
            Either the cluster number of each class, shape (K,), or a list of clusters. A cluster is a list of classes,
            of smaller clusters, or of both.
        counts : array_like, optional
            Shape (K,): how often each class occurs, at least 0.

        Returns
        -------
        Tree
            A cluster that contains only classes becomes a balanced subtree. Above the clusters, the tree is a Huffman
            tree of the total counts of the clusters, or a balanced tree if no counts are passed.

        Raises
        ------
        TypeError, ValueError
            If a cluster is empty, if the clusters do not contain each class from 0 to K - 1 once, or if the length of
            counts is not K.

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
        r"""Return a tree that recursively splits the classes into two halves, each with similar vectors.

        .. math:: \min \sum_{k \in A} \lVert w_k - \bar w_A\rVert^2 + \sum_{k \in B} \lVert w_k - \bar w_B\rVert^2,
            \qquad |A| - |B| \in \{0, 1\}

        Here A and B are the two halves, and :math:`\bar w_A` is the mean vector of A. At each node, this minimum is
        approximated by balanced two-means, which starts from the direction of largest variance.

        Parameters
        ----------
        weights : array_like
            Shape (K, D): a vector for each class, for example the weight of a trained last layer, or the mean hidden
            vector of each class.
        seed : int, optional
            Seed of the start vectors, from 0 to 2^64 - 1. By default it is drawn from the default generator of the
            weights' library.

        Returns
        -------
        Tree
            As in `balanced`, the depths of the classes differ by at most 1. The same weights and seed give the same
            tree on the same machine.

        Raises
        ------
        TypeError, ValueError
            If weights have the wrong type or shape or contain NaN or infinity, or if seed has the wrong type or is out
            of range.

        Notes
        -----
        All nodes of a level are split together. The time is :math:`O(K D \log K)`, and the memory is three copies of
        the weights.

        References
        ----------
        Mnih & Hinton (2009), section 4 (they fit a mixture of two Gaussians).

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
        """Restore a tree from the result of its `state`.

        Parameters
        ----------
        state : mapping
            The result of `state`, with arrays of any library.

        Returns
        -------
        Tree
            A tree equal to the stored one.

        Raises
        ------
        TypeError, ValueError
            If the state does not describe a tree.

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
