"""Calls of public functions whose rows are spread over the processes of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from softargmax.core.arrays import is_dtensor
from softargmax.core.dispatch import requested_name, requesting
from softargmax.core.processes import spreading
from softargmax.core.torch_private import outside_transforms, tangent_of, transformed
from softargmax.core.torch_processes import spread_text
from softargmax.parallel.layout import whole_blocks
from softargmax.parallel.torch_agreement import Facts, agreed, facts_of, process_group, spread_axes
from softargmax.parallel.torch_move import moved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from softargmax.parallel.layout import Layout


def spread(
    function: Callable[..., Any], *arguments: Any, group: ProcessGroup | DeviceMesh | None = None, **options: Any
) -> Tensor:
    """Call a public function. Each process passes its part of every row.

    Results that are laid out like the scores are spread like them. All other results are the same in all processes.
    """
    return cast("Tensor", Call(group, function.__name__).run(function, *arguments, **options))


def refuse(function: str, arguments: Iterable[Any]) -> None:
    """Raise if the processes cannot compute a call."""
    arguments = tuple(arguments)
    if any(map(is_dtensor, arguments)):
        raise TypeError(f"expected this process's parts, got DTensors; call softargmax.{function}")
    if transformed() or any(isinstance(x, torch.Tensor) and tangent_of(x) is not None for x in arguments):
        raise NotImplementedError(
            f"{function}: torch.func and forward mode are not supported for rows that are spread over processes; call "
            "it outside of grad, vmap and jvp: torch.autograd.grad computes gradients, and more axes hold a batch"
        )
    if requested_name() not in (None, "native"):
        raise RuntimeError(
            f"implementation {requested_name()!r} was requested, but rows that are spread over processes are computed "
            "by 'native'"
        )


def require_tensor(name: str, x: Any) -> None:
    """Raise if an array is not a torch tensor."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected a torch tensor in CPU memory, got {type(x).__name__}")


def _is_computed(name: str, spec: Any, i: Any) -> bool:
    """True if the kernel computes a result. The gradients of a layer are those whose letters are in `forms`."""
    return not spec.when or name.removeprefix("d") in i.forms


class Call:
    """A call of a public function: it checks this process's arguments, then computes one operation or several.

    `also` names arguments that no operation has, and that must be the same in all processes. `reproducible`: True for
    sums in the order of the processes.
    """

    def __init__(
        self, group: ProcessGroup | DeviceMesh | None, function: str, *, reproducible: bool = True, **also: Any
    ) -> None:
        self.group, self.function, self.in_order = process_group(group), function, reproducible
        self._compared = False  # the arguments of the operation that is being computed
        self._has_compared = False  # those of any operation
        self._also = [(name, str(x)) for name, x in {"reproducible": reproducible, **also}.items()]

    def run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function. An error before the processes have compared its next arguments is raised in all of them."""
        try:
            refuse(self.function, (*arguments, *options.values()))
            with spreading(self.serve):
                found = function(*arguments, **options)
        except Exception as error:
            if not self._compared:
                with outside_transforms():
                    agreed(self.group, error)
            raise
        if not self._has_compared:  # this function has computed no operation, but those of other processes may have
            self.sizes(Facts(0, [("function", self.function)]))
        return found

    def sizes(self, facts: Facts) -> Layout:
        """Compare the facts of all processes, and return how many scores per row each has."""
        self._compared = self._has_compared = True
        return agreed(self.group, facts._replace(named=[*facts.named, *self._also]))

    def slots(self, operation: Any, i: Any) -> list[Any]:
        """The slots of a record, whose first array must be a tensor."""
        require_tensor(operation.leaves[0].name, operation.array(i))
        return list(operation.torch.flatten(i))

    def axes(self, operation: Any, i: Any, slots: Sequence[Any]) -> dict[str, int]:  # noqa: ARG002
        """The arguments and results of which each process has a part, and the negative axis of the parts."""
        return spread_axes(operation, slots)

    def layout(self, operation: Any, have: Layout) -> Layout:
        """The layout that the kernel needs."""
        return whole_blocks(have, operation.block)

    def compared(self, operation: Any, i: Any, out: Any) -> tuple[list[Any], dict[str, int], Layout]:
        """Compare the arguments of all processes. Return the slots, the spread axes, and the scores of each process."""
        if out is not None:
            raise TypeError("out: not supported for rows that are spread over processes")
        slots = self.slots(operation, i)
        axes = self.axes(operation, i, slots)
        return slots, axes, self.sizes(facts_of(operation, slots, axes, self.function))

    def serve(self, operation: Any, i: Any, first: bool, out: Any) -> Any:
        """Compute an operation whose arguments are this process's part of the rows."""
        slots, axes, have = self.compared(operation, i, out)
        want, of = self.layout(operation, have), operation.torch.slots
        for place, (name, x) in enumerate(zip(of.names, slots, strict=True)):
            if name in axes and isinstance(x, torch.Tensor):
                slots[place] = moved(x, axes[name], self.group, have, want)
        place = of.slots.index("axes_spread" if "axes_spread" in of.slots else "spread")
        slots[place] = spread_text(self.group, want, in_order=self.in_order)
        record = operation.torch.unflatten(*slots)
        with requesting(None):
            found = operation.first(record) if first else operation(record)
        results = [
            moved(x, axes[name], self.group, want, have) if name in axes and _is_computed(name, spec, i) else x
            for x, name, spec in zip((found,) if first else found, operation.fields, operation.results, strict=False)
        ]
        self._compared = False  # a function may compute several operations
        return results[0] if len(results) == 1 else tuple(results)
