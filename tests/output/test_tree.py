"""Tests of trees: depths, paths, optimal Huffman trees, trees of clusters and of vectors, error messages."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import pickle
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from softargmax.output.tree import Tree

RNG = np.random.default_rng(3)
SIZES = [1, 2, 3, 7, 64, 1000]


@functools.cache
def words() -> NDArray[np.int64]:
    """Return the word counts of a few source files of Python's standard library."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))[:60]
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    return np.array(list(Counter(re.findall(r"\w+|[^\w\s]", text)).values()))


def entropy(counts: Any) -> float:
    p = np.asarray(counts, float)
    p = p[p > 0] / p.sum()
    return float(-np.sum(p * np.log2(p)))


def walked(tree: Tree) -> dict[int, list[tuple[int, int]]]:
    """Return the path to every class as (node, sign) pairs, found by a walk from the root."""
    found: dict[int, list[tuple[int, int]]] = {}
    stack: list[tuple[int, list[tuple[int, int]]]] = [(0 if tree.nodes else ~0, [])]
    while stack:
        code, path = stack.pop()
        if code < 0:
            found[~code] = path
            continue
        first, second = tree.children[code].tolist()
        stack += [(first, [*path, (code, 1)]), (second, [*path, (code, -1)])]
    return found


def trees(k: int) -> list[Tree]:
    counts = RNG.integers(0, 100, k) ** 3
    return [
        Tree.balanced(k),
        Tree.huffman(counts),
        Tree.from_clusters(RNG.integers(0, 5, k), counts=counts),
        Tree.from_hidden(RNG.standard_normal((k, 4)), seed=1),
    ]


@pytest.mark.parametrize("k", SIZES)
def test_depths_and_paths_equal_a_walk_from_the_root(k: int) -> None:
    for tree in trees(k):
        paths, truth = tree.paths, walked(tree)
        assert sorted(truth) == list(range(k))
        assert (tree.classes, tree.nodes, tree.depth) == (k, k - 1, max(map(len, truth.values())))
        assert tree.depths.tolist() == [len(truth[i]) for i in range(k)]
        for i in range(k):
            part = slice(paths.offsets[i], paths.offsets[i + 1])
            assert list(zip(paths.nodes[part].tolist(), paths.signs[part].tolist(), strict=True)) == truth[i]
        assert np.sum(0.5**tree.depths) == 1
        assert tree.levels[-1] == tree.nodes
        level = {node: place for path in truth.values() for place, (node, _) in enumerate(path)}
        parts = enumerate(itertools.pairwise(tree.levels))
        assert level == {node: place for place, ends in parts for node in range(*ends)}


@pytest.mark.parametrize("k", [*SIZES, 100_003])
def test_balanced_depths(k: int) -> None:
    for tree in (Tree.balanced(k), *([Tree.from_hidden(RNG.standard_normal((k, 3)), 0)] if k < 2000 else [])):
        assert set(tree.depths) <= {int(np.floor(np.log2(k))), int(np.ceil(np.log2(k)))}
    assert np.all(np.diff(Tree.balanced(k).depths) >= 0)


# --- Huffman ----------------------------------------------------------------------------------------------------------


@functools.cache
def full_trees(k: int) -> frozenset[tuple[int, ...]]:
    """Return every possible list of sorted depths of a full binary tree with k leaves."""
    if k == 1:
        return frozenset({(0,)})
    return frozenset(
        tuple(sorted([*depths[:i], depths[i] + 1, depths[i] + 1, *depths[i + 1 :]]))
        for depths in full_trees(k - 1)
        for i in range(k - 1)
    )


@given(st.lists(st.integers(0, 12), min_size=1, max_size=8))
def test_huffman_tree_is_optimal(counts: list[int]) -> None:
    depths = Tree.huffman(counts).depths
    falling = sorted(counts, reverse=True)
    costs = {d: sum(c * x for c, x in zip(falling, d, strict=True)) for d in full_trees(len(counts))}
    least = min(costs.values())
    assert np.dot(depths, counts) == least
    assert max(depths) == min(max(d) for d, cost in costs.items() if cost == least), "least deep optimal tree"
    for i, j in itertools.combinations(range(len(counts)), 2):
        assert counts[i] != counts[j] or depths[i] >= depths[j], "of two equal counts, the earlier is at least as deep"


@pytest.mark.parametrize("which", ["words", "zipf", "floats", "some zeros", "one only"])
def test_huffman_expected_depth_is_within_1_of_the_entropy(which: str) -> None:
    counts = {
        "words": words(),
        "zipf": (1e6 / np.arange(1, 100_004)).astype(int),
        "floats": RNG.random(5000).astype(np.float32),
        "some zeros": RNG.integers(0, 3, 1000),
        "one only": np.eye(1, 50, dtype=int)[0],
    }[which]
    tree = Tree.huffman(counts)
    h, expected = entropy(counts), tree.expected_depth(counts)
    assert h - 1e-9 <= expected <= h + 1
    assert expected <= Tree.balanced(len(counts)).expected_depth(counts)
    np.testing.assert_allclose(expected, np.average(tree.depths, weights=counts))
    if which == "words":
        assert len(counts) > 10_000, "the text has enough words"
        assert expected < 0.75 * Tree.balanced(len(counts)).expected_depth(counts)


def test_huffman_of_equal_or_extreme_counts() -> None:
    assert Tree.huffman(np.zeros(6)).depths.tolist() == [3, 3, 3, 3, 2, 2]
    assert Tree.huffman([1 << 62] * 4).depths.tolist() == [2, 2, 2, 2], "the sum is beyond 64 bits"
    assert Tree.huffman([1e308] * 4).depths.tolist() == [2, 2, 2, 2]
    assert Tree.huffman([1e308] * 4).expected_depth([1e308] * 4) == 2
    assert Tree.huffman(2.0 ** np.arange(300)).depth == 299
    assert Tree.huffman([True, False, True]).depth == 2
    assert Tree.huffman(words()) == Tree.huffman(words().tolist()) == Tree.huffman(words().astype(float))


# --- clusters ---------------------------------------------------------------------------------------------------------


def below(tree: Tree, classes: list[int]) -> bool:
    """True if some node has exactly these classes below it."""
    nodes: dict[int, set[int]] = {}
    for k, path in walked(tree).items():
        for node, _ in path:
            nodes.setdefault(node, set()).add(k)
    return set(classes) in nodes.values() or len(classes) == 1


def test_each_cluster_is_a_subtree() -> None:
    labels = RNG.integers(0, 12, 200) * 5 - 7
    for counts in (None, RNG.integers(0, 50, 200)):
        tree = Tree.from_clusters(labels, counts=counts)
        assert all(below(tree, np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist()))
    nest = [[0, 1, 2], [[3, 4], [5, [6, 7, 8]]], 9]
    tree = Tree.from_clusters(nest)
    assert all(below(tree, part) for part in ([0, 1, 2], [3, 4], [6, 7, 8], [5, 6, 7, 8], [3, 4, 5, 6, 7, 8]))
    assert tree.depths[9] == 2
    assert Tree.from_clusters(np.arange(6).reshape(2, 3)) == Tree.from_clusters([range(3), (3, 4, 5)])


def test_counts_determine_the_tree_above_clusters() -> None:
    counts = np.array([1, 1, 1, 1, 50, 50, 3, 3])
    labels = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    by_counts, plain = Tree.from_clusters(labels, counts=counts), Tree.from_clusters(labels)
    assert by_counts.depths.tolist() == [4, 4, 4, 4, 2, 2, 3, 3]
    assert plain.depths.tolist() == [3] * 8
    assert by_counts.expected_depth(counts) < plain.expected_depth(counts)
    single = Tree.from_clusters(np.arange(len(words())), counts=words())
    assert single.expected_depth(words()) == Tree.huffman(words()).expected_depth(words())
    deep: list[Any] = [0]
    for k in range(1, 3000):  # nested deeper than Python's recursion limit
        deep = [deep, k]
    assert Tree.from_clusters(deep).depth == 2999


def test_from_hidden_splits_into_nearby_points() -> None:
    centres = RNG.standard_normal((8, 16)) * 5
    labels = RNG.permutation(np.repeat(np.arange(8), 50))
    x = centres[labels] + RNG.standard_normal((400, 16)) * 0.1 + 100
    tree = Tree.from_hidden(x, seed=0)
    assert all(below(tree, np.flatnonzero(labels == label).tolist()) for label in range(8))
    assert not below(Tree.balanced(400), np.flatnonzero(labels == 0).tolist())
    assert tree == Tree.from_hidden(x, seed=0), "the same seed gives the same tree"
    assert tree == Tree.from_hidden(x.tolist(), 0)
    noise = RNG.standard_normal((300, 5))
    assert Tree.from_hidden(noise, seed=0) != Tree.from_hidden(noise, seed=1)
    np.random.seed(5)  # noqa: NPY002 the default generator
    assert Tree.from_hidden(noise) != Tree.from_hidden(noise)
    for same in (np.zeros((9, 4)), np.ones((9, 0)), np.full((9, 2), 1e38), np.float16([[1], [3], [2]] * 3)):
        assert set(Tree.from_hidden(same, 0).depths) == {3, 4}


# --- as an object -----------------------------------------------------------------------------------------------------


def test_trees_are_immutable_and_can_be_stored() -> None:
    tree = Tree.huffman(words()[:500])
    for array in (tree.children, tree.depths, *tree.paths, *tree.slots):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        tree.depths = 1  # type: ignore[misc,assignment]
    source = tree.children.copy()
    twin = Tree(source)
    source[0] = 7
    copies = [pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree), Tree.from_state(tree.state()), twin]
    for other in copies:
        assert other == tree
        assert hash(other) == hash(tree)
        assert not other.children.flags.writeable
    assert tree != Tree.balanced(500)
    assert tree != "tree"
    assert repr(tree) == f"Tree(classes=500, depth={tree.depth})"


def test_tensors_are_accepted() -> None:
    torch = pytest.importorskip("torch")
    counts = torch.tensor([5, 1, 0, 2])
    assert Tree.huffman(counts) == Tree.huffman([5, 1, 0, 2]) == Tree.huffman(counts.bfloat16())
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert Tree.from_hidden(x, 0) == Tree.from_hidden(x.detach().numpy(), 0)
    assert Tree.from_clusters(torch.tensor([0, 1, 0])) == Tree.from_clusters([0, 1, 0])
    assert Tree.from_state({"children": torch.tensor(Tree.balanced(4).children)}) == Tree.balanced(4)
    torch.manual_seed(0)
    assert Tree.from_hidden(x) == (torch.manual_seed(0), Tree.from_hidden(x))[1], "seed from torch's default generator"


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: Tree.balanced(0), ValueError, "classes: expected 1 or more, got 0"),
        (lambda: Tree.balanced(2.5), TypeError, "classes"),
        (lambda: Tree.huffman([1, -2]), ValueError, "counts: expected a finite number, 0 or above, got -2 for class 1"),
        (
            lambda: Tree.huffman([1, np.nan]),
            ValueError,
            "counts: expected a finite number, 0 or above, got nan for class 1",
        ),
        (
            lambda: Tree.huffman([np.nan, np.nan]),
            ValueError,
            "counts: expected a finite number, 0 or above, got nan for class 0",
        ),
        (
            lambda: Tree.huffman([1, np.inf]),
            ValueError,
            "counts: expected a finite number, 0 or above, got inf for class 1",
        ),
        (
            lambda: Tree.huffman([]),
            ValueError,
            r"counts: expected shape \(K,\), one per class, K from 1 to 2\^31 - 1, got \(0,\)",
        ),
        (
            lambda: Tree.huffman([[1, 2]]),
            ValueError,
            r"counts: expected shape \(K,\), one per class, K from 1 to 2\^31 - 1, got \(1, 2\)",
        ),
        (lambda: Tree.huffman(["a"]), TypeError, "counts: expected integers or floats, got dtype <U1"),
        (lambda: Tree.huffman([1j]), TypeError, "counts: expected integers or floats, got dtype complex128"),
        (
            lambda: Tree.balanced(3).expected_depth([1, 2]),
            ValueError,
            r"counts: expected one number per class, shape \(3,\), got \(2,\)",
        ),
        (
            lambda: Tree.balanced(3).expected_depth([0, 0, 0]),
            ValueError,
            "counts: expected at least one above 0, got only zeros",
        ),
        (
            lambda: Tree.from_clusters([0.5, 1]),
            TypeError,
            r"clusters: expected integers, one per class, or a nested .*got dtype float64, shape \(2,\)",
        ),
        (lambda: Tree.from_clusters([]), TypeError, "clusters"),
        (lambda: Tree.from_clusters(3), TypeError, "clusters"),
        (lambda: Tree.from_clusters([[0, 1], []]), ValueError, "empty"),
        (lambda: Tree.from_clusters([[0, 1], [1]]), ValueError, "missing or repeated"),
        (lambda: Tree.from_clusters([[0, 2]]), ValueError, "missing or repeated"),
        (lambda: Tree.from_clusters([[0, -1]]), ValueError, "clusters: expected classes from 0 on, got -1"),
        (
            lambda: Tree.from_clusters([[0, 1.5]]),
            TypeError,
            r"clusters: expected integers \(classes\) and clusters, got 1.5",
        ),
        (
            lambda: Tree.from_clusters([[0], [True]]),
            TypeError,
            r"clusters: expected integers \(classes\) and clusters, got True",
        ),
        (
            lambda: Tree.from_clusters([0, 1], counts=[1]),
            ValueError,
            r"counts: expected one number per class, shape \(2,\), got \(1,\)",
        ),
        (
            lambda: Tree.from_clusters([0, 1], counts=[1, -1]),
            ValueError,
            "counts: expected a finite number, 0 or above, got -1 for class 1",
        ),
        (
            lambda: Tree.from_hidden([1.0]),
            ValueError,
            r"weights: expected shape \(K, D\), a vector for each class, got \(1,\)",
        ),
        (lambda: Tree.from_hidden(np.empty((0, 3))), ValueError, "weights"),
        (lambda: Tree.from_hidden([[np.nan]]), ValueError, "infinite or NaN"),
        (
            lambda: Tree.from_hidden([[1j]]),
            TypeError,
            "weights: expected dtype float16, bfloat16, float32, float64, an integer or bool, got complex128",
        ),
        (lambda: Tree.from_hidden([[1.0]], seed=-1), ValueError, "seed"),
        (lambda: Tree.from_hidden([[1.0]], seed=1.5), TypeError, "seed"),
        (
            lambda: Tree([[0.5, 1]]),
            TypeError,
            r"children: expected integers of shape \(K - 1, 2\), got dtype float64, shape \(1, 2\)",
        ),
        (lambda: Tree([1, 2]), ValueError, r"children: .* shape \(2,\)"),
        (lambda: Tree([[0, -1]]), ValueError, "as a child once"),
        (lambda: Tree([[1, -1], [1, -2]]), ValueError, "as a child once"),
        (lambda: Tree([[-1, -2], [1, -3]]), ValueError, "as a child once"),
        (lambda: Tree([[-1, -1]]), ValueError, "each class k from 0 to 1"),
        (lambda: Tree([[-1, -3]]), ValueError, "each class"),
        (lambda: Tree.from_state({}), ValueError, "state: expected 'children', got nothing"),
        (lambda: Tree.from_state({"x": 1}), ValueError, "state: expected 'children', got 'x'"),
    ],
)
def test_errors(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()
