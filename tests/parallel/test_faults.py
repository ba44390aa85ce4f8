"""Wrong arguments raise one error in all processes, and a process that does not answer is named. Nothing hangs."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
from tests.parallel.workers import Workers

import softargmax
from softargmax.parallel.torch_agreement import with_checksum


def softmax(group: Any, arguments: list[tuple[tuple[int, ...], dict[str, Any]]]) -> Any:
    """The softmax of zeros. Each process has its own shape and options."""
    shape, options = arguments[group.rank()]
    return softargmax.parallel.softmax(torch.zeros(shape), group=group, **options)


def cross_entropy(group: Any, targets: list[Any], **options: Any) -> Any:
    return softargmax.parallel.cross_entropy(torch.zeros(2, 5), targets[group.rank()], group=group, **options)


def one_error(found: list[tuple[str, str]]) -> tuple[str, str]:
    assert len(set(found)) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (((9, 5), {}), "z: expected the same in all processes, got float32 (8, *), float32 (9, *) in processes 0 to 1"),
        (
            ((8, 5), {"temperature": 2.0}),
            "1 / temperature: expected the same in all processes, got 1.0, 0.5 in processes",
        ),
        (
            ((8, 5), {"dtype": torch.float64}),
            "dtype: expected the same in all processes, got torch.float32, torch.float",
        ),
        (
            ((8, 5), {"where": torch.ones(8, 5, dtype=torch.bool)}),
            "where: expected the same in all processes, got None",
        ),
        (((8, 5), {"temperature": float("nan")}), "process 1: temperature: expected any number except NaN, got nan"),
        (((8, 5), {"axis": 0}), "z: expected the same in all processes, got float32 (8, *), float32 (*, 5)"),
        (
            ((8, 5), {"axis": None}),
            "process 1: axis: expected one axis, along which rows are spread over processes, got 2",
        ),
    ],
)
def test_different_arguments(workers: Workers, second: Any, message: str) -> None:
    kind, text = one_error(workers.errors(2, softmax, [((8, 5), {}), second]))
    assert kind == "ValueError"
    assert message in text


def test_the_same_processes_go_on_after_an_error(workers: Workers) -> None:
    workers.errors(2, softmax, [((8, 5), {}), ((9, 5), {})])
    found = workers.run(2, softmax, [((8, 5), {}), ((8, 3), {})])
    assert [tuple(p.shape) for p in found] == [(8, 5), (8, 3)]
    assert all((p == 0.125).all() for p in found)


def test_an_error_keeps_its_type(workers: Workers) -> None:
    kind, text = one_error(workers.errors(3, cross_entropy, [torch.tensor([0, 1])] * 2 + [torch.tensor([0.0, 1.0])]))
    assert kind == "TypeError"
    assert text.startswith("process 2: target: expected integers of shape (2,)")
    kind, text = one_error(workers.errors(2, cross_entropy, [torch.tensor([0, 10])] * 2))
    assert kind == "IndexError"
    assert "10" in text


def test_different_targets(workers: Workers) -> None:
    _, text = one_error(workers.errors(2, cross_entropy, [torch.tensor([0, 1]), torch.tensor([0, 2])]))
    assert text.startswith("target: expected the same in all processes, got int64 (2) with checksum ")


def other_function(group: Any) -> Any:
    of = softargmax.parallel.softmax if group.rank() else softargmax.parallel.entropy
    return of(torch.zeros(2, 5), group=group)


def test_different_functions(workers: Workers) -> None:
    _, text = one_error(workers.errors(2, other_function))
    assert text == "function: expected the same in all processes, got entropy, softmax in processes 0 to 1"


def numpy_scores(group: Any) -> Any:
    return softargmax.parallel.softmax([1.0, 2.0], group=group)


def test_other_arrays_are_refused(workers: Workers) -> None:
    kind, text = one_error(workers.errors(2, numpy_scores))
    assert (kind, text) == ("TypeError", "process 0: z: expected a torch tensor in CPU memory, got ndarray")


def one_requires_grad(group: Any) -> Any:
    return softargmax.parallel.softmax(torch.zeros(2, 5, requires_grad=group.rank() == 1), group=group)


def by_the_definition(group: Any) -> Any:
    with softargmax.using("reference"):
        return softargmax.parallel.softmax(torch.zeros(2, 5), group=group)


def of_another_device(group: Any) -> Any:
    return softargmax.parallel.softmax(torch.zeros(2, 5, device="meta"), group=group)


def different_temperatures(group: Any) -> Any:
    t = torch.ones(2, 1) + group.rank()
    return softargmax.parallel.softmax(torch.zeros(2, 5), group=group, temperature=t)


def different_hidden_vectors(group: Any) -> Any:
    """As of a dropout with another seed in each process."""
    h, w, y = torch.zeros(2, 3) + group.rank(), torch.zeros(5, 3), torch.tensor([0, 1])
    return softargmax.parallel.linear_cross_entropy(h, w, y, group=group)


def in_different_orders(group: Any) -> Any:
    h, w, y = torch.zeros(2, 3), torch.zeros(5, 3), torch.tensor([0, 1])
    return softargmax.parallel.linear_cross_entropy(h, w, y, group=group, reproducible=group.rank() == 0)


def of_other_shapes(group: Any) -> Any:
    return softargmax.parallel.kl_divergence(torch.zeros(2, 5), torch.zeros(2, 1), group=group)


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (
            one_requires_grad,
            "ValueError",
            "z: expected the same in all processes, got float32 (2, *), float32 (2, *), req",
        ),
        (by_the_definition, "RuntimeError", "process 0: implementation 'reference' was requested, but rows that are"),
        (of_another_device, "NotImplementedError", "process 0: z: expected a tensor in CPU memory, got one on meta"),
        (
            different_temperatures,
            "ValueError",
            "1 / temperature: expected the same in all processes, got float64 (2, 1)",
        ),
        (
            different_hidden_vectors,
            "ValueError",
            "h: expected the same in all processes, got float32 (2, 3) with checksum ",
        ),
        (
            in_different_orders,
            "ValueError",
            "reproducible: expected the same in all processes, got True, False in proc",
        ),
        (of_other_shapes, "ValueError", "process 0: z_q: expected the shape of z_p"),
    ],
)
def test_what_is_refused(workers: Workers, function: Any, kind: str, message: str) -> None:
    found = one_error(workers.errors(2, function))
    assert found[0] == kind
    assert found[1].startswith(message)


def test_checksums() -> None:
    """They differ if numbers have another order, and do not depend on how a tensor lies in memory."""
    x = torch.randn(40, 101, generator=torch.Generator().manual_seed(0))
    plain, found = x.reshape(-1), {with_checksum(x)}
    swaps = [(0, 1), (0, 2), (0, 1024), (2, 1026), (5, 4039), (4038, 4039), (4035, 4036)]
    for one, other in swaps:
        y = plain.clone()
        y[[one, other]] = y[[other, one]]
        found.add(with_checksum(y.reshape(x.shape)))
    assert len(found) == 1 + len(swaps)
    assert with_checksum(x.T.contiguous().T) == with_checksum(x)
    shifted = torch.cat([x[0, :1], plain])[1:]  # not at a multiple of 8 bytes
    assert with_checksum(shifted.reshape(x.shape)) == with_checksum(x)
    for dtype in (torch.bool, torch.bfloat16, torch.int64):
        assert with_checksum(torch.ones(5000, dtype=dtype)) != with_checksum(torch.zeros(5000, dtype=dtype))
    assert with_checksum(torch.zeros(0)) == with_checksum(torch.zeros(3, 0))


def test_without_a_group() -> None:
    with pytest.raises(ValueError, match=r"group: there is no process group; call torch\.distributed"):
        softargmax.parallel.softmax(torch.zeros(3))


def dies_in_a_chain(group: Any, reproducible: bool) -> Any:
    """The last process ends when the others have sent it their sums of the gradient of h, or wait for its sums."""
    from softargmax.core.torch_processes import Processes

    if group.rank() == group.size() - 1:
        Processes.from_previous = lambda *_: os._exit(1)  # type: ignore[method-assign]
    h, w = torch.zeros(700, 8, requires_grad=True), torch.zeros(4096, 8, requires_grad=True)
    target = torch.zeros(700, dtype=torch.int64)
    return softargmax.parallel.linear_cross_entropy(h, w, target, group=group, reproducible=reproducible)


@pytest.mark.parametrize("reproducible", [True, False])
def test_a_process_that_ends_in_a_chain(reproducible: bool) -> None:
    pool = Workers(3, timeout=2.0)
    try:
        pool.run(3, softmax, [((8, 5), {})] * 3)
        pool.start(3, dies_in_a_chain, reproducible)
        begin = time.monotonic()
        for pipe in pool.pipes[:2]:
            result, (kind, text, _) = pipe.recv()
            assert result is None
            assert kind == "RuntimeError"
            assert "another process of the group did not answer" in text
        assert time.monotonic() - begin < 10.0
    finally:
        codes = pool.close()
    assert codes == [0, 0, 1]


def late(group: Any, seconds: float, dies: bool) -> Any:
    if group.rank() == 1:
        if dies:
            os._exit(1)
        time.sleep(seconds)
    return softargmax.parallel.softmax(torch.zeros(3), group=group)


@pytest.mark.parametrize("dies", [True, False], ids=["dead", "late"])
def test_a_process_that_does_not_answer(dies: bool) -> None:
    pool = Workers(2, timeout=2.0)
    try:
        pool.run(2, softmax, [((8, 5), {})] * 2)
        pool.start(2, late, 6.0, dies)
        begin = time.monotonic()
        result, (kind, text, _) = pool.pipes[0].recv()
        assert result is None
        assert time.monotonic() - begin < 5.0
        assert kind == "RuntimeError"
        assert text.startswith("process 0 of 2: another process of the group did not answer")
    finally:
        codes = pool.close()
    assert codes == [0, int(dies)]
    fresh = Workers(2)
    fresh.run(2, softmax, [((8, 5), {})] * 2)
    assert fresh.close() == [0, 0]
