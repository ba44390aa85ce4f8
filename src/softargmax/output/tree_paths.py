"""The arrays of a binary tree over classes: children, levels, depths and paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core.signature import public
from softargmax.core.types import Array
from softargmax.output import tree_build
from softargmax.output.counts import counts_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class Paths(NamedTuple):
    """The paths from the root to all classes. The path to class k has the nodes `nodes[offsets[k]:offsets[k + 1]]`.

    `signs` is +1 where the path continues with the node's first child, and -1 where it continues with the second.

    Examples
    --------
    >>> from softargmax.output import Tree
    >>> paths = Tree.balanced(4).paths
    >>> paths.nodes[paths.offsets[3] : paths.offsets[4]], paths.signs[paths.offsets[3] : paths.offsets[4]]
    (array([0, 2], dtype=int32), array([-1, -1], dtype=int8))
    """

    offsets: Array
    nodes: Array
    signs: Array


class Slots(NamedTuple):
    """The place of each inner node and class below its parent: 2 * parent + side. Side 0 is the first child.

    The root has no parent, and its slot is -1.
    """

    nodes: Any
    classes: Any


class TreePaths:
    """The arrays and methods of `Tree`, except for its constructors."""

    @public
    def __init__(self, children: ArrayLike) -> None:
        self._children = _read_only(tree_build.children_of(children))
        n = len(self._children)
        below = np.concatenate([[0], np.cumsum(np.sum(self._children >= 0, axis=1))])
        levels = [0]
        while levels[-1] < n:
            levels.append(1 + int(below[levels[-1]]))
        self._levels = tuple(levels)
        flat, slots = self._children.reshape(-1), np.arange(2 * n)
        nodes, classes = np.full(n, -1), np.full(n + 1, -1)
        nodes[flat[flat >= 0]], classes[~flat[flat < 0]] = slots[flat >= 0], slots[flat < 0]
        self._slots = Slots(_read_only(nodes), _read_only(classes))
        level = np.repeat(np.arange(self.depth), np.diff(levels))
        self._depths = _read_only(level[classes >> 1] + 1 if n else np.zeros(1, np.int64))
        self._paths: Paths | None = None

    @property
    def classes(self) -> int:
        return len(self._children) + 1

    @property
    def nodes(self) -> int:
        return len(self._children)

    @property
    def depth(self) -> int:
        return len(self._levels) - 1

    @property
    def depths(self) -> NDArray[np.int64]:
        return self._depths

    @property
    def children(self) -> NDArray[np.int64]:
        return self._children

    @property
    def levels(self) -> tuple[int, ...]:
        return self._levels

    @property
    def slots(self) -> Slots:
        """For each inner node and each class, its parent and its side (see `Slots`)."""
        return self._slots

    @property
    def paths(self) -> Paths:
        if self._paths is None:
            self._paths = Paths(*map(_read_only, self._computed_paths()))
        return self._paths

    def _computed_paths(self) -> Paths:
        """Follow the paths of all classes upwards, one level at a time."""
        offsets = np.concatenate([[0], np.cumsum(self._depths)])
        nodes, signs = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.int8)
        place, slots = offsets[1:] - 1, self._slots.classes
        while slots.size and self.nodes:
            nodes[place], signs[place] = slots >> 1, 1 - 2 * (slots & 1)
            slots = self._slots.nodes[slots >> 1]
            place, slots = place[slots >= 0] - 1, slots[slots >= 0]
        return Paths(offsets, nodes, signs)

    def expected_depth(self, counts: ArrayLike) -> float:
        r"""Return the mean depth of a class, weighted by the counts.

        .. math:: \sum_k p_k d_k, \qquad p_k = c_k / \sum_j c_j

        Parameters
        ----------
        counts : array_like
            Shape (K,): how often each class occurs, at least 0 and not all 0.

        Returns
        -------
        float
            The mean depth. It is also the mean number of inner products per loss.

        Raises
        ------
        TypeError, ValueError
            If counts have a wrong type, shape or value.

        Examples
        --------
        >>> from softargmax.output import Tree
        >>> counts = [8, 4, 2, 1, 1]
        >>> Tree.huffman(counts).expected_depth(counts), Tree.balanced(5).expected_depth(counts)
        (1.875, 2.125)
        """
        found = counts_of(counts).astype(np.float64)
        if found.shape != self._depths.shape:
            raise ValueError(f"counts: expected one number per class, shape ({self.classes},), got {found.shape}")
        if not np.any(found):
            raise ValueError("counts: expected at least one above 0, got only zeros")
        p = found / np.max(found)
        return float(np.dot(p, self._depths) / np.sum(p))

    def state(self) -> dict[str, NDArray[np.int64]]:
        """Return the arrays of the tree by name. `from_state` restores the tree from them.

        Returns
        -------
        dict
            The key "children" has the children, (K - 1, 2), int64.

        Examples
        --------
        >>> from softargmax.output import Tree
        >>> Tree.balanced(3).state()
        {'children': array([[ 1, -1],
               [-2, -3]])}
        """
        return {"children": self._children}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreePaths) and np.array_equal(self._children, other.children)

    def __hash__(self) -> int:
        return hash(self._children.tobytes())

    def __reduce__(self) -> tuple[type[TreePaths], tuple[NDArray[np.int64]]]:
        return type(self), (self._children,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(classes={self.classes}, depth={self.depth})"


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array
