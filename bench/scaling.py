"""Time steps whose classes or keys grow with the number of processes, and compare them with a model of the network.

    python -m bench.scaling              2 minutes; writes bench/results/scaling.json

Weak scaling: each process has CLASSES classes of a last layer, with one thread. A step is the forward and backward pass
of `linear_cross_entropy`. It is compared with a step of one process that has as many classes, and runs alone.

Split keys: `attention_split_kv` of one query, with a part of the keys in each process, is compared with `attention` in
one process that has all keys, and runs alone.

The constants of the model (`bench/network.py`) are measured with two processes: the time of a message of 8 bytes, the
bytes per second of 8 MB, and the speed of one process's step. Then the model computes the steps above, and those of
many more processes: with these constants, and with those of a slow network, which are assumed. If there are more
processes than cores, they share cores, and the model divides the speed by as much.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from bench.exchanges import Member, linear_cross_entropy
from bench.machine import Run
from bench.network import Model, Network
from bench.parallel import ROWS, SUM, WIDTH, WORLDS, in_processes, in_turns
from tools.measurements import RESULTS

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.parallel import Times

CLASSES = 8192  # of each process
KEYS = 8192, 16_384, 32_768, 65_536  # of all processes
HEADS, GROUPS, HEAD_WIDTH = 8, 2, 128
MODELLED = tuple(2**k for k in range(3, 13))
ORDERS = {"in order": True, "in any order": False}
SLOW = {"latency": 0.05, "bandwidth": 12e6}
"""A network between cities, assumed."""
MESSAGES = 100


def steps(group: dist.ProcessGroup) -> Times:
    """Time a step with CLASSES classes in each process, and a step of one process that has no others."""
    torch.manual_seed(0)
    h, w = torch.randn(ROWS, WIDTH), torch.randn(CLASSES, WIDTH) / WIDTH**0.5
    y = torch.randint(CLASSES * group.size(), (ROWS,))

    def step(loss: Callable[..., Any], y: torch.Tensor, **options: Any) -> Callable[[], object]:
        inputs = h.clone().requires_grad_(), w.clone().requires_grad_()
        return lambda: torch.autograd.grad(loss(*inputs, y, **options), inputs)

    of_parts = sa.parallel.linear_cross_entropy
    spread = {name: (True, step(of_parts, y, group=group, reproducible=order)) for name, order in ORDERS.items()}
    return in_turns(group, {**spread, "alone": (False, step(sa.linear_cross_entropy, y % CLASSES))})


def split_keys(group: dist.ProcessGroup) -> dict[int, Times]:
    """Time attention of one query to keys that are spread over the processes, and to all keys in one process."""
    torch.manual_seed(0)
    q, found = torch.randn(1, HEADS, 1, HEAD_WIDTH), {}
    for keys in KEYS:
        k, v = (torch.randn(1, GROUPS, keys, HEAD_WIDTH) for _ in "kv")
        mine = [x.chunk(group.size(), -2)[group.rank()].clone() for x in (k, v)]
        sides = {
            "spread": (True, lambda: sa.parallel.attention_split_kv(q, *mine, group=group)),  # noqa: B023 called here
            "alone": (False, lambda: sa.attention(q, k, v)),  # noqa: B023
        }
        found[keys] = in_turns(group, sides)
    return found


def messages(group: dist.ProcessGroup) -> Times:
    """Time messages between two processes: MESSAGES small ones, and a large one, there and back."""
    small, large = torch.zeros(1, dtype=torch.float64), torch.zeros(SUM)

    def there_and_back(x: torch.Tensor) -> None:
        for sender in range(2):
            if group.rank() == sender:
                dist.send(x, group=group, group_dst=1 - sender)
            else:
                dist.recv(x, group=group, group_src=sender)

    def many() -> None:
        for _ in range(MESSAGES):
            there_and_back(small)

    return in_turns(group, {"small": (True, many), "large": (True, lambda: there_and_back(large))})


def measured(group: dist.ProcessGroup) -> tuple[Times, dict[int, Times], Times]:
    """Return the times of steps, of attention and of messages."""
    return steps(group), split_keys(group), messages(group) if group.size() == 2 else {}


def modelled(world: int, network: Network) -> Times:
    """The times of a step by the model."""
    members = [Member(rank, (CLASSES,) * world) for rank in range(world)]
    return {
        name: Model([linear_cross_entropy(of, ROWS, WIDTH, reproducible=order) for of in members], network).seconds()
        for name, order in ORDERS.items()
    }


def main() -> int:
    """Measure, compute the model, print both, and return the exit code."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    watched = Run()
    found = {world: in_processes(world, measured) for world in WORLDS}
    here = watched.machine()
    of_steps, of_messages = {world: times for world, (times, _, _) in found.items()}, found[2][2]
    latency = of_messages["small"] / (2 * MESSAGES)
    bandwidth = 4 * SUM / (of_messages["large"] / 2 - latency)
    network = Network(latency, bandwidth, 3 * ROWS * WIDTH * CLASSES / of_steps[1]["alone"])
    slow = network._replace(**SLOW)
    shared = {world: network._replace(speed=network.speed * min(1, here["cores"] / world)) for world in WORLDS}
    record = {
        "machine": here,
        "network": network._asdict(),
        "slow network": slow._asdict(),
        "steps": of_steps,
        "modelled steps": {world: modelled(world, shared[world]) for world in WORLDS},
        "split keys": {keys: {world: times[keys] for world, (_, times, _) in found.items()} for keys in KEYS},
        "modelled": {
            world: {
                "one process": 3 * ROWS * WIDTH * CLASSES * world / network.speed,
                "network": modelled(world, network),
                "slow network": modelled(world, slow),
            }
            for world in MODELLED
        },
    }
    text = json.dumps(record, indent=1)
    print(text)
    (RESULTS / "scaling.json").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
