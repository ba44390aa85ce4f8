"""The graphs of calls with Dask arrays: the number of tasks, and the inputs of a task."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode
from dask.core import get_dependencies
from tests.parallel.dask_cases import graph_of, same

import softargmax
from softargmax.parallel.dask_tasks import LIKE_Z, NAMES, OF_LAYERS, PER_ROW, WITH_GRADIENT

SPREAD = (*LIKE_Z, *PER_ROW, WITH_GRADIENT, "categorical")
"""Functions whose tasks have parts of rows."""


def call(name: str, z: Any) -> Any:
    """Call a function with scores, or with the inputs of a last layer."""
    rows, columns = z.shape
    classes, numbers = np.zeros(rows, int), np.ones(columns, np.float32)
    more: dict[str, tuple[Any, ...]] = {
        "renyi_entropy": (np.full(rows, 3.0),),
        "kl_divergence": (z + 1,),
        "soft_argmax": (numbers,),
        "topk_softmax": (3,),
        **dict.fromkeys(("cross_entropy", "cross_entropy_terms", "cross_entropy_and_gradient"), (classes,)),
        **dict.fromkeys(("selected_log_softmax", "sparsemax_loss", "entmax_loss"), (classes,)),
        **dict.fromkeys(OF_LAYERS, (np.ones((50, columns), np.float32), classes)),
    }
    options: dict[str, dict[str, Any]] = {
        **{key: {"weight": numbers} for key in ("cross_entropy", "cross_entropy_terms", "cross_entropy_and_gradient")},
        "linear_cross_entropy_and_gradient": {"bias": np.ones(50, np.float32)},
        "filter_scores": {"top_k": 2},
        "gumbel_softmax": {"seed": 3},
        "categorical": {"seed": 3},
        "categorical_with_logprob": {"seed": 3, "top_p": 0.9},
    }
    return getattr(softargmax, name)(z, *more.get(name, ()), **options.get(name, {}))


def counts(name: str, shape: tuple[int, int], chunks: tuple[int, int]) -> tuple[int, int]:
    """The number of tasks of a call, and the largest number of inputs of one of them."""
    z = da.zeros(shape, chunks=chunks, dtype=np.float32)
    graph = graph_of(call(name, z))
    return len(graph), max(len(get_dependencies(graph, key)) for key in graph)


def grows_linearly(numbers: list[int]) -> bool:
    """True if numbers for n, 2n and 4n chunks grow at most linearly, up to a few tasks where a tree gets higher."""
    return all(more <= 2 * few + 8 for few, more in pairwise(numbers))


@pytest.mark.parametrize("name", NAMES)
def test_chunks_of_rows(name: str) -> None:
    with dask.config.set(split_every=3):
        found = [counts(name, (2 * n, 64), (2, 64)) for n in (10, 20, 40)]
    tasks, inputs = ([one[k] for one in found] for k in (0, 1))
    assert grows_linearly(tasks), tasks
    assert inputs[0] == inputs[2] <= 9, inputs


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_LAYERS])
def test_chunks_that_cut_rows(name: str) -> None:
    """Only functions that need whole rows bring all chunks of a row together."""
    with dask.config.set(split_every=3):
        found = [counts(name, (2, 4096 * n), (2, 4096)) for n in (10, 20, 40)]
    tasks, inputs = ([one[k] for one in found] for k in (0, 1))
    assert grows_linearly(tasks), tasks
    if name in SPREAD:
        assert inputs[0] == inputs[2] <= 9, inputs


@pytest.mark.parametrize("name", SPREAD)
def test_chunks_of_both_axes(name: str) -> None:
    found = [counts(name, (2 * n, 4096 * n), (2, 4096)) for n in (4, 8)]
    assert found[1][0] <= 4 * found[0][0] + 8, found
    assert found[1][1] <= 16, found


@pytest.mark.parametrize("name", SPREAD)
def test_bytes_of_a_graph_grow_linearly(name: str) -> None:
    """They would not if each task had the sizes of all chunks."""
    sizes = []
    for columns in (40, 80, 160):
        graph = graph_of(call(name, da.zeros((3, 4096 * columns), chunks=(1, 4096))))
        tasks = [task for task in graph.values() if not isinstance(task, DataNode)]  # not weights in memory
        sizes.append(sum(len(cloudpickle.dumps(task)) for task in tasks))
    assert sizes[2] - sizes[1] < 2.1 * (sizes[1] - sizes[0])


def test_parts_of_a_gradient_are_given_merged_states() -> None:
    """Not those of all parts, which each task would merge again. Class weights are sums, and come from all parts."""
    z = da.zeros((2, 4096 * 5), chunks=(2, 4096), dtype=np.float32)
    for options, sent in ({}, 0), ({"weight": np.ones(4096 * 5)}, 1), ({"label_smoothing": 0.1}, 1):
        found = softargmax.cross_entropy_and_gradient(z, np.zeros(2, int), reduction="none", **options).gradient
        needs = found.dask.dependencies[found.name]
        assert sum("-of-rows-" in name for name in needs) == 1
        assert sum("-joined-" in name for name in needs) == sent


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "cross_entropy_and_gradient"])
def test_states_of_a_row_are_merged_by_one_task(name: str) -> None:
    """Dask does not fuse this task with those of the parts, also if nobody asks for the loss."""
    found = call(name, da.zeros((2, 4096 * 5), chunks=(1, 4096), dtype=np.float32))
    for arrays in (found, (found.gradient,)) if isinstance(found, tuple) else (found,):
        graph = graph_of(arrays)
        tasks = [key for key in graph if any(of in str(key) for of in ("-states-", "-of-rows-"))]
        parts = [sum(key in get_dependencies(graph, other) for other in graph) for key in tasks]
        assert sum(count >= 5 for count in parts) == 2, parts


def test_a_tree_that_grows_too_fast_is_noticed() -> None:
    assert grows_linearly([10, 20, 40])
    assert not grows_linearly([10 * 10, 20 * 20, 40 * 40])
    assert not grows_linearly([10 * 3, 20 * 4, 40 * 5])  # n log n


@pytest.mark.parametrize("name", ["softmax", "logsumexp", "entropy"])
def test_tasks_grow_linearly(name: str) -> None:
    function = getattr(softargmax, name)
    for per_row in (1, 4):
        tasks = [len(graph_of(function(da.zeros((4 * n, 4096 * per_row), chunks=(4, 4096))))) for n in (2, 4, 8)]
        assert tasks[2] - tasks[1] == 2 * (tasks[1] - tasks[0])
    wide = [len(graph_of(function(da.zeros((4, 4096 * n), chunks=(4, 4096))))) for n in (4, 8, 16)]
    assert wide[2] - wide[1] == 2 * (wide[1] - wide[0])


@pytest.mark.parametrize("name", ["softmax", "logsumexp", "entropy"])
def test_no_task_has_many_inputs(name: str) -> None:
    z = np.random.default_rng(0).standard_normal(70 * 4096).astype(np.float32)
    for every in (16, 3):
        with dask.config.set(split_every=every):
            found = getattr(softargmax, name)(da.from_array(z, chunks=4096))
        graph = graph_of(found)
        assert max(len(get_dependencies(graph, key)) for key in graph) <= every
        same(found.compute(), getattr(softargmax, name)(z))


@pytest.mark.parametrize("columns", [4096, 4096 * 3], ids=["whole rows", "cut rows"])
def test_a_mean_is_one_task_more(columns: int) -> None:
    """Tasks that compute losses also add them up, so a mean takes one task more than numbers of rows."""
    z, target = da.from_array(np.zeros((8, 4096 * 3)), (2, columns)), da.from_array(np.zeros(8, int), chunks=2)
    tasks = {
        name: sum(not isinstance(task, Alias | DataNode) for task in graph_of(found).values())
        for name, found in {
            "rows": softargmax.logsumexp(z),
            "mean": softargmax.cross_entropy(z, target),
            "sum": softargmax.cross_entropy(z, target, reduction="sum", ignore_index=3),
        }.items()
    }
    assert tasks["mean"] == tasks["sum"] == tasks["rows"] + 1, tasks


@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy_and_gradient", "linear_cross_entropy_and_gradient"])
def test_no_task_has_all_rows(name: str) -> None:
    """Losses of all rows, and their weights, are added up by a tree of tasks."""
    z, w, weight = np.random.default_rng(0).standard_normal((120, 5)), np.ones((5, 5)), np.arange(5.0)
    more = [w, np.arange(120) % 5] if "linear" in name else [np.arange(120) % 5]
    with dask.config.set(split_every=3):
        found = getattr(softargmax, name)(da.from_array(z, chunks=(2, 5)), *more, weight=weight)
    graph = graph_of(found)
    assert max(len(get_dependencies(graph, key)) for key in graph) <= 5  # a chunk's task has up to five arrays
    expected = getattr(softargmax, name)(z, *more, weight=weight)
    same(
        (found[0] if isinstance(found, tuple) else found).compute(),
        expected[0] if isinstance(found, tuple) else expected,
    )
