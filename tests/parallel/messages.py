"""What a process sends, recorded from torch's calls, and worlds of thousands of processes of which one exists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from bench.exchanges import Step
from torch import Tensor

from softargmax import parallel

KINDS = {"all_gather": "to all", "all_reduce": "sum", "isend": "send", "recv": "receive", "irecv": "expect"}
"""The functions of torch.distributed that the library calls, and the kinds of steps that they are."""


@contextmanager
def replaced(functions: dict[str, Any]) -> Iterator[None]:
    """Replace functions of torch.distributed inside a block."""
    original = {name: getattr(dist, name) for name in functions}
    try:
        for name, function in functions.items():
            setattr(dist, name, function)
        yield
    finally:
        for name, function in original.items():
            setattr(dist, name, function)


@contextmanager
def recorded() -> Iterator[list[Step]]:
    """The messages that this process sends and receives inside the block, in their order."""
    found: list[Step] = []

    def recording(name: str) -> Any:
        function = getattr(dist, name)

        def call(*arguments: Any, **options: Any) -> Any:
            x = arguments[name == "all_gather"]  # the first argument of all_gather is what it receives
            found.append(Step(KINDS[name], x.nbytes, options.get("group_dst", options.get("group_src"))))
            return function(*arguments, **options)

        return call

    with replaced({name: recording(name) for name in KINDS}):
        yield found


@contextmanager
def gathers_of_tensors() -> Iterator[list[Step]]:
    """What this process sends inside the block by torch's functional collectives, which serve DTensors."""
    from torch.distributed.tensor import DTensor
    from torch.utils._python_dispatch import TorchDispatchMode

    found: list[Step] = []

    class Recording(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(issubclass(one, DTensor) for one in types):
                return NotImplemented  # it calls operators with its own part, which come here
            room, _, name = function.name().partition("::")
            if room == "_c10d_functional" and name not in ("wait_tensor", "_wrap_tensor_autograd"):  # messages
                found.append(Step("to all" if name == "all_gather_into_tensor" else name, args[0].nbytes))
            return function(*args, **(kwargs or {}))

    with Recording():
        yield found


@contextmanager
def fake_world(rank: int, world: int) -> Iterator[Any]:
    """A group of `world` processes of which only this one exists. All others seem to send what it sends.

    Torch's fake backend leaves the memory of a message to one process as it is. Here zeros arrive: numbers of any bits
    could be NaN, for which attention takes another way.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def receiving(function: Any) -> Any:
        def call(x: Any, **options: Any) -> Any:
            x.zero_()
            return function(x, **options)

        return call

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        with replaced({name: receiving(getattr(dist, name)) for name in ("recv", "irecv")}):
            yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def both_passes(call: Callable[[], Any]) -> tuple[list[Step], list[Step]]:
    """The messages of a call, and those of the backward pass from its results."""
    with recorded() as found:
        results = call()
        forward = len(found)
        of_loss = [x.sum() for x in (results if isinstance(results, tuple) else [results]) if x.requires_grad]
        if of_loss:
            torch.stack(of_loss).sum().backward()
    return found[:forward], found[forward:]


def of_scores(name: str, z: Tensor, target: Tensor, group: Any) -> tuple[list[Step], list[Step]]:
    """The messages of a function in the table `OF_ROWS`, with the option in its name. z is a part of the rows."""
    function, _, option = name.partition(", ")
    z, more, options = z.detach().requires_grad_(), [], {}
    if option == "probabilities":
        more = [torch.full_like(z, 1e-4)]
    elif "cross_entropy" in function or function == "selected_log_softmax":
        more = [target]
    elif function == "kl_divergence":
        more = [torch.zeros_like(z).requires_grad_()]
    if option == "label smoothing":
        options["label_smoothing"] = 0.1
    elif option == "class weights":
        options["weight"] = torch.ones(z.shape[1])
    return both_passes(lambda: getattr(parallel, function)(z, *more, group=group, **options))


def messages(steps: Iterable[Step]) -> list[Step]:
    """The steps that are calls of torch.distributed."""
    return [step for step in steps if step.is_message]
