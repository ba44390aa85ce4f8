"""Calls of public functions whose rows are spread over the processes of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softargmax.core.arrays import kind_of
from softargmax.core.dispatch import requesting
from softargmax.core.processes import spreading
from softargmax.core.torch_processes import spread_text
from softargmax.parallel.layout import whole_blocks
from softargmax.parallel.torch_agreement import agreed, facts_of, process_group, spread_axes
from softargmax.parallel.torch_move import moved

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


def spread(
    group: ProcessGroup | DeviceMesh | None, function: Callable[..., Any], *arguments: Any, **options: Any
) -> Tensor:
    """Call a public function. Each process passes its part of every row.

    Results that are laid out like the scores are spread like them. All other results are the same in all processes.
    """
    call = _Call(process_group(group), function.__name__)
    try:
        with spreading(call.serve):
            found: Tensor = function(*arguments, **options)
            return found
    except Exception as error:
        if not call.compared:
            agreed(call.group, error)  # raises the error in all processes
        raise


class _Call:
    """A call of a public function: it checks this process's arguments, then computes one operation or several."""

    def __init__(self, group: ProcessGroup, function: str) -> None:
        self.group, self.function, self.compared = group, function, False

    def serve(self, operation: Any, i: Any, first: bool, out: Any) -> Any:
        """Compute an operation whose arguments are this process's part of the rows."""
        if kind_of(operation.array(i)) != "torch":
            raise TypeError(f"z: expected a torch tensor in CPU memory, got {type(operation.array(i)).__name__}")
        if out is not None:
            raise TypeError("out: not supported for rows that are spread over processes")
        self.compared = False
        slots, of = list(operation.torch.flatten(i)), operation.torch.slots
        axes = spread_axes(operation, slots)
        facts = facts_of(operation, slots, axes, self.function)
        self.compared = True
        have = agreed(self.group, facts)
        want = whole_blocks(have)
        for place, (name, x) in enumerate(zip(of.names, slots, strict=True)):
            if name in axes and x is not None:
                slots[place] = moved(x, axes[name], self.group, have, want)
        slots[of.slots.index("spread" if operation.spreads else "axes_spread")] = spread_text(self.group, want)
        record = operation.torch.unflatten(*slots)
        with requesting(None):
            found = operation.first(record) if first else operation(record)
        results = [
            moved(x, axes[name], self.group, want, have) if name in axes and x.shape != (0,) else x
            for x, name in zip((found,) if first else found, operation.fields, strict=False)
        ]
        return results[0] if len(results) == 1 else tuple(results)
