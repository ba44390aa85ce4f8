"""Every public function: nothing in some processes or in all, groups of some processes, and wrong calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from tests.parallel.cases import cuts, part, same
from tests.parallel.workers import Workers
from torch import Tensor

import softargmax
from softargmax import parallel


class Case(NamedTuple):
    """A call for a number of rows, and a number of columns that are spread: classes, keys, or places of a sequence."""

    arrays: Callable[[int, int], Sequence[Tensor]]
    axes: tuple[int | None, ...]
    """The axis of each array along which processes have parts."""
    options: dict[str, Any] = {}  # noqa: RUF012 a named tuple has no field that changes
    whole: str = ""
    """The name of the function of whole rows, if it differs."""
    like: int | None = None
    """The axis along which the result is spread."""


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def z(rows: int, columns: int) -> tuple[Tensor]:
    return (drawn(rows, columns),)


def classes(rows: int, columns: int) -> Tensor:
    """Targets, of which all are ignored if there are no classes."""
    return torch.arange(rows) % columns if columns else torch.full((rows,), -100)


def z_and_classes(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    return drawn(rows, columns), classes(rows, columns)


def sequences(rows: int, columns: int) -> tuple[Tensor, ...]:
    return drawn(rows, 2, columns, 4), drawn(rows, 1, columns, 4), drawn(rows, 1, columns, 4)


def keys(rows: int, columns: int) -> tuple[Tensor, ...]:
    return drawn(2, 2, rows, 4), drawn(2, 1, columns, 4), drawn(2, 1, columns, 4)


CASES = {
    "softmax": Case(z, (-1,), like=-1),
    "log_softmax": Case(z, (-1,), like=-1),
    "logsumexp": Case(z, (-1,)),
    "entropy": Case(z, (-1,)),
    "kl_divergence": Case(lambda n, k: (drawn(n, k), drawn(n, k) ** 2), (-1, -1)),
    "cross_entropy": Case(z_and_classes, (-1, None), {"label_smoothing": 0.1}),
    "cross_entropy_terms": Case(z_and_classes, (-1, None), {"z_loss": 0.1}),
    "selected_log_softmax": Case(z_and_classes, (-1, None)),
    "linear_cross_entropy": Case(lambda n, k: (drawn(n, 4), drawn(k, 4), classes(n, k)), (None, 0, None)),
    "categorical": Case(z, (-1,), {"seed": 3, "num_samples": 2}),
    "categorical_with_logprob": Case(z, (-1,), {"seed": 3, "top_k": 2}),
    "attention": Case(sequences, (-2, -2, -2), {"causal": True}, like=-2),
    "attention_split_kv": Case(keys, (None, -2, -2), {"causal": True}, whole="attention"),
}


def outcome(call: Callable[..., Any], arrays: Sequence[Tensor], options: dict[str, Any]) -> Any:
    """The results and gradients of a call, or the text of its error."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in arrays]
    try:
        found = call(*leaves, **options)
    except (ValueError, IndexError) as error:
        return str(error).removeprefix("process 0: ")
    results = found if isinstance(found, tuple) else (found,)
    trained = [x for x in results if x.requires_grad]
    wanted = [x for x in leaves if x.requires_grad]
    ones = [torch.ones_like(x) for x in trained]
    return results, torch.autograd.grad(trained, wanted, ones) if trained else ()


def compared(group: Any, name: str, rows: int, columns: int, kind: str) -> None:
    case, bounds = CASES[name], cuts(kind, group.size(), columns)
    arrays = case.arrays(rows, columns)

    def mine(x: Tensor, axis: int | None) -> Tensor:
        return x if axis is None else part(group, x, bounds, axis)

    parts = [mine(x, axis) for x, axis in zip(arrays, case.axes, strict=True)]
    expected = outcome(getattr(softargmax, case.whole or name), arrays, case.options)
    found = outcome(getattr(parallel, name), parts, {**case.options, "group": group})
    if isinstance(expected, str):
        assert found == expected
        return
    assert not isinstance(found, str), found
    for one, other in zip(found[0], expected[0], strict=True):
        same(one, mine(other, case.like))
    trained = [axis for x, axis in zip(arrays, case.axes, strict=True) if x.is_floating_point()]
    for one, other, axis in zip(found[1], expected[1], trained, strict=False):  # draws have no gradients
        same(one, mine(other, axis))


def test_the_table_has_every_function() -> None:
    of_processes = {name for name in parallel.__all__ if name.islower()} - {"array_of_frame"}  # is of Dask
    assert {*CASES} == of_processes


@pytest.mark.parametrize("kind", ["even", "empty"])
@pytest.mark.parametrize("name", CASES)
def test_nothing_in_some_processes(workers: Workers, name: str, kind: str) -> None:
    for rows, columns in ((0, 5), (3, 0), (0, 0), (3, 1), (3, 5000)):
        for world in (1, 3):
            workers.run(world, compared, name, rows, columns, kind)


# --- groups -----------------------------------------------------------------------------------------------------------


def of_some(group: Any, names: Sequence[str]) -> list[str]:
    """Groups of processes that do not begin at 0, at the same time. Those outside are refused."""
    import torch.distributed as dist

    pairs = [dist.new_group([1, 3]), dist.new_group([0, 2])]
    mine = pairs[group.rank() % 2 == 0]
    texts = []
    for name in names:
        compared(mine, name, 3, 4100, "ragged")
        other = pairs[group.rank() % 2]
        with pytest.raises(TypeError) as error:
            getattr(parallel, name)(*CASES[name].arrays(3, 4), **CASES[name].options, group=other)
        texts.append(str(error.value))
    return texts


def test_groups_of_some_processes(workers: Workers) -> None:
    for texts in workers.run(4, of_some, [*CASES]):
        assert all(text.startswith("group: expected a process group that contains this process") for text in texts)


@pytest.mark.parametrize("name", CASES)
def test_without_a_group(name: str) -> None:
    with pytest.raises(ValueError, match="group: there is no process group; call torch"):
        getattr(parallel, name)(*CASES[name].arrays(3, 4), **CASES[name].options)


# --- calls that differ ------------------------------------------------------------------------------------------------


def differing(group: Any, name: str, how: str) -> Any:
    case, last = CASES[name], group.rank() == group.size() - 1
    arrays = list(case.arrays(3, 4))
    if last and how == "dtype":
        arrays = [x.double() if x.is_floating_point() else x for x in arrays]
    if last and how == "requires grad":
        arrays[0].requires_grad_()
    if last and how == "axes":
        arrays = [x[None] for x in arrays]
    return getattr(parallel, name)(*arrays, **case.options, group=group)


@pytest.mark.parametrize("how", ["dtype", "requires grad", "axes"])
@pytest.mark.parametrize("name", CASES)
def test_calls_that_differ(workers: Workers, name: str, how: str) -> None:
    if how == "requires grad" and name.startswith("categorical"):
        return  # draws have no gradients
    found = workers.errors(2, differing, name, how)
    assert len(set(found)) == 1, found
    workers.run(2, compared, name, 3, 5, "even")  # the group can be used again


def with_an_error_between(group: Any, name: str) -> Any:
    """One process fails between two calls, and goes on with what follows them."""
    case = CASES[name]
    if group.rank():
        return getattr(parallel, name)(*case.arrays(3, 4), **case.options, group=group)
    return parallel.softmax(torch.zeros(7, 5), group=group)


@pytest.mark.parametrize("name", [name for name in CASES if name != "softmax"])
def test_calls_out_of_step(workers: Workers, name: str) -> None:
    for _, text in workers.errors(2, with_an_error_between, name):
        assert text.startswith("function: expected the same in all processes, got softmax, ")
