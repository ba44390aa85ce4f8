"""The model of a network gives the times that follow from its constants by hand."""

from __future__ import annotations

import math

import pytest
from bench.exchanges import Member, Step, layer_by_rows, linear_cross_entropy
from bench.network import Model, Network

FREE = Network(latency=0.0, bandwidth=math.inf, speed=1.0)
ROWS, WIDTH, CLASSES = 1000, 64, 4096
PRODUCT = ROWS * WIDTH * CLASSES  # the seconds of a product of all rows


def step(world: int, network: Network, *, reproducible: bool = True) -> float:
    members = [Member(rank, (CLASSES,) * world) for rank in range(world)]
    steps = [linear_cross_entropy(of, ROWS, WIDTH, reproducible=reproducible) for of in members]
    return Model(steps, network).seconds()


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_a_chain_takes_as_long_as_dh_of_all_classes(world: int) -> None:
    """The scores of a part are needed by all, so the last process's dh of the part before is waited for."""
    assert step(world, FREE) == pytest.approx(PRODUCT * (1 + max(2, world)))


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_a_sum_in_any_order_takes_as_long_as_the_classes_of_a_process(world: int) -> None:
    assert step(world, FREE, reproducible=False) == pytest.approx(3 * PRODUCT)


def test_rows_of_a_layer_are_added_up_one_process_after_the_other() -> None:
    """The scores and dh of all processes are computed at the same time. dW is computed in four parts of the classes, to
    which the processes add in turns.
    """
    members = [Member(rank, (512,) * 3) for rank in range(3)]
    product = 512 * WIDTH * CLASSES
    for reproducible, products in ((True, 3 + 2 / 4), (False, 3)):
        steps = [layer_by_rows(of, WIDTH, CLASSES, reproducible=reproducible) for of in members]
        assert Model(steps, FREE).seconds() == pytest.approx(products * product)


def test_messages() -> None:
    """The second message waits for the first to leave. Both arrive later by the latency."""
    network = Network(latency=10.0, bandwidth=2.0, speed=4.0)
    first = [Step("compute", 8), Step("send", 6, 1), Step("send", 4, 1), Step("compute", 4)]
    second = [Step("expect", 6, 0), Step("receive", 6, 0), Step("arrive", 4, 0)]
    model = Model([first, second], network)
    assert model.seconds() == 2 + 3 + 2 + 10
    assert model.times == [3.0, 17.0]


def test_messages_to_all() -> None:
    """All wait for the last. A ring of three has two rounds, and that of a sum four with a third of the bytes."""
    network = Network(latency=1.0, bandwidth=3.0, speed=1.0)
    steps = [[Step("compute", k), Step("to all", 6)] for k in range(3)]
    assert Model(steps, network).seconds() == 2 + 2 * (1 + 2)
    steps = [[Step("sum", 9), Step("compute", 1), Step("sums")] for _ in range(3)]
    assert Model(steps, network).seconds() == 4 * (1 + 1)
    steps = [[Step("sum", 9), Step("compute", 20), Step("sums")] for _ in range(3)]
    assert Model(steps, network).seconds() == 20


def test_a_message_that_never_comes_is_no_time() -> None:
    with pytest.raises(RuntimeError, match=r"processes wait for messages that are not sent: \[1\]"):
        Model([[], [Step("receive", 1, 0)]], FREE).seconds()
