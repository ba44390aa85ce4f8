"""A model of the time that the steps of all processes take together (`bench/exchanges.py`).

A message of n bytes arrives after latency + n / bandwidth seconds, and a process sends one byte after the other. A
product of m multiplications takes m / speed seconds. Gloo's collectives go round in a ring, so a message to all takes
W - 1 rounds for W processes, and a sum twice as many, each with the W-th part of the bytes. Nothing else takes time:
no exponentials, no Python, no other program.
"""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bench.exchanges import Step


class Network(NamedTuple):
    """The constants of the model: seconds per message, bytes per second, multiplications per second of a process."""

    latency: float
    bandwidth: float
    speed: float

    def message(self, size: float) -> float:
        """The seconds of a message."""
        return self.latency + size / self.bandwidth

    def to_all(self, size: int, world: int) -> float:
        """The seconds of a message to all processes."""
        return (world - 1) * self.message(size)

    def total(self, size: int, world: int) -> float:
        """The seconds of a sum over all processes."""
        return 2 * (world - 1) * self.message(size / world)


class Model:
    """Processes that take their steps. Each waits for messages, and for the others."""

    def __init__(self, schedules: Iterable[Iterable[Step]], network: Network) -> None:
        self.network = network
        self.steps: list[Iterator[Step]] = [iter(steps) for steps in schedules]
        self.times = [0.0] * len(self.steps)
        self._sent_until = list(self.times)
        self._arriving: dict[tuple[int, int | None], deque[float]] = defaultdict(deque)
        self._waiting: set[tuple[int | None, int]] = set()
        self._together: list[int] = []  # processes that wait for all others
        self._sums: list[list[tuple[float, int]]] = [[] for _ in self.steps]  # when each was started, and its bytes
        self._ready = deque(range(len(self.steps)))

    def seconds(self) -> float:
        """The time until all processes have taken all of their steps."""
        while self._ready:
            self._go_on(self._ready.popleft())
        if waiting := sorted({rank for _, rank in self._waiting} | {*self._together}):
            raise RuntimeError(f"processes wait for messages that are not sent: {waiting}")
        return max(self.times)

    def _go_on(self, rank: int) -> None:
        """Take the steps of a process until it must wait."""
        for step in self.steps[rank]:
            match step.kind:
                case "compute":
                    self.times[rank] += step.amount / self.network.speed
                case "send":
                    self._send(rank, step)
                case "receive" | "arrive":
                    if not self._has_arrived(rank, step):
                        return
                case "sum":
                    self._sums[rank].append((self.times[rank], step.amount))
                case "to all" | "sums":
                    if not self._are_together(rank, step):
                        return

    def _send(self, rank: int, step: Step) -> None:
        begin = max(self.times[rank], self._sent_until[rank])
        self._sent_until[rank] = begin + step.amount / self.network.bandwidth
        self._arriving[rank, step.peer].append(begin + self.network.message(step.amount))
        if (rank, step.peer) in self._waiting and step.peer is not None:
            self._waiting.remove((rank, step.peer))
            self._ready.append(step.peer)

    def _has_arrived(self, rank: int, step: Step) -> bool:
        messages = self._arriving[step.peer, rank]
        if not messages:
            self._waiting.add((step.peer, rank))
            self.steps[rank] = chain([step], self.steps[rank])
            return False
        self.times[rank] = max(self.times[rank], messages.popleft())
        return True

    def _are_together(self, rank: int, step: Step) -> bool:
        """True in the last of all processes that wait for each other. The others go on, too."""
        self._together.append(rank)
        if len(self._together) < len(self.times):
            return False
        now = max(self.times)
        end = now + self.network.to_all(step.amount, len(self.times)) if step.kind == "to all" else self._end_of_sums()
        self.times = [max(now, end)] * len(self.times)
        self._ready.extend(other for other in self._together if other != rank)
        self._together.clear()
        return True

    def _end_of_sums(self) -> float:
        """When the last sum ends. They are computed one after the other, beside products."""
        end = 0.0
        for of_each in zip(*self._sums, strict=True):
            times, sizes = zip(*of_each, strict=True)
            end = max(end, *times) + self.network.total(max(sizes), len(self.times))
        self._sums = [[] for _ in self.steps]
        return end
