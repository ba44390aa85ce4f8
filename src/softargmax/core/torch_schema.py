"""Convert the arguments of an operation to the parameters of its torch schema, called slots, and back.

This module also saves the values that the backward pass needs.

The functions are generated once per operation, so that a call runs no loops.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from softargmax.core.record import UNFLATTENED, flattener, generated, packing, unflattener
from softargmax.core.torch_private import EAGER, PLAIN_TENSOR, READY_NAMES

ELSEWHERE, RECORDED, AT_ONCE = "elsewhere", "recorded", "at once"
"""The paths of a call.

ELSEWHERE: by torch's dispatcher or a transform. RECORDED: by a kernel, and the derivative is recorded. AT_ONCE: by a
kernel, without a derivative.
"""


class Like(NamedTuple):
    """The shape and dtype of an argument or a result that was not saved."""

    shape: Any
    dtype: Any


class SchemaSlots:
    """The slots of an operation's arguments.

    - `flatten(record)` returns the slots, `unflatten(*slots)` the record.
    - `stage(record)` tells how an eager call runs: AT_ONCE, RECORDED or ELSEWHERE.
    - `save` saves the arrays that the rules read, and only the shape and dtype of other arrays. It takes slots.
    - `save_record` does the same for a record.
    - `needed(record)` tells for each array that may have a gradient whether the call needs it.
    - `of_varying(record)` returns the arrays that may have a gradient.
    - `restore` returns (record, results, arrays that may have a gradient).
    """

    def __init__(self, operation: Any) -> None:
        self._operation = operation
        slots = [(leaf.name, slot, kind) for leaf in operation.leaves for slot, kind in leaf.slots]
        self.names = [name for name, _, _ in slots]
        self.slots = [slot for _, slot, _ in slots]
        self.kinds = [leaf.kind for leaf in operation.leaves for _ in leaf.slots]
        self.arrays = [slot for _, slot, kind in slots if "Tensor" in kind]
        self.schema = ", ".join(f"{kind} {slot}" for _, slot, kind in slots)
        # The names of the array arguments that may have a gradient, and the index of the first slot of each. This slot
        # gets the gradient.
        varying = [leaf.name for leaf in operation.leaves if leaf.kind.arrays and leaf.name not in operation.constant]
        self.varying, self.places = varying, [self.names.index(name) for name in varying]
        self.gradients = list(zip(self.varying, self.places, strict=True))
        names: dict[str, Any] = {**UNFLATTENED, "_Results": type(operation.results), "_Like": Like}
        names["_saved"] = operation.saved
        packed = packing(operation.tree, names)
        self.flatten, self.unflatten = flattener(operation.tree), unflattener(operation.tree)
        self._generate_stage()
        self._generate_save(packed, names)

    def _generate_stage(self) -> None:
        operation, unpacked = self._operation, f"{self._operation.tree.target}= _i"
        tests: list[str] = []
        derived: list[str] = []  # for each array that may have a gradient, the condition that the call needs it
        for leaf in operation.leaves:
            absent = [f"{leaf.name} is None"] * leaf.optional
            absent += [leaf.kind.number.format(leaf.name)] * bool(leaf.kind.number)
            arrays = [array.format(leaf.name) for array in leaf.kind.arrays]
            if arrays:
                tests.append(f"({' or '.join((*absent, ' and '.join(map(PLAIN_TENSOR.format, arrays))))})")
                tracked = f"({' or '.join(f'{array}.requires_grad' for array in arrays)})"
                if leaf.name in self.varying:
                    derived.append(" and ".join((*(f"not ({one})" for one in absent), tracked)))
        plain = " and ".join((*tests, EAGER))
        recorded = f"_grad() and ({' or '.join(derived)})" if operation.differentiable else "False"
        lines = [unpacked, f"if not ({plain}): return _ELSEWHERE", f"return _RECORDED if {recorded} else _AT_ONCE"]
        stages = {"_ELSEWHERE": ELSEWHERE, "_RECORDED": RECORDED, "_AT_ONCE": AT_ONCE}
        self.stage = generated("_i", lines, **READY_NAMES, **stages)
        self.needed = generated("_i", [unpacked, f"return ({''.join(f'{one}, ' for one in derived)})"])

    def _generate_save(self, packed: str, names: dict[str, Any]) -> None:
        operation = self._operation
        results, every = ", ".join(operation.fields), [*self.arrays, *operation.fields]
        numbers = "".join(f"{slot}, " for slot in self.slots if slot not in self.arrays)
        owners = dict(zip(self.slots, self.names, strict=True)) | {field: field for field in operation.fields}
        dynamic, read = callable(operation.saved), self.names if operation.saved is None else operation.saved
        saved = [name for name in every if dynamic or owners[name] in read]
        others = [name for name in every if dynamic or owners[name] not in read]
        likes = "".join(f"None if {name} is None else _Like({name}.shape, {name}.dtype), " for name in others)
        keep = ["_ctx.set_materialize_grads(False)", f"{results} = _output"]
        keep += [f"_ctx.numbers = ({numbers})", f"_ctx.likes = ({likes})"]
        if dynamic:
            keep.append(f"_wanted = _saved({packed})")
            keep += [f"if {owners[name]!r} not in _wanted: {name} = None" for name in every]
        keep.append(f"_ctx.save_for_backward({', '.join(saved)})")
        forward = f"_ctx.save_for_forward({', '.join(saved)})"
        self.save = generated(
            "_ctx, _inputs, _output", [f"{', '.join(self.slots)}, = _inputs", *keep, forward], **names
        )
        unpack = [
            f"{', '.join(slot for slot, _ in leaf.slots)}, = {leaf.kind.flatten.format(leaf.name).removeprefix('*')}"
            for leaf in operation.leaves
            if leaf.kind.flatten != "{0}"
        ]
        record = [f"{operation.tree.target}= _i", *unpack]
        self.save_record = generated("_ctx, _i, _output", [*record, *keep], **names)
        again = [f"{', '.join(saved)}, = _kept"] * bool(saved) + [f"{numbers}= _numbers"] * bool(numbers)
        again += [f"if {name} is None: {name} = _likes[{place}]" if dynamic else f"{name} = _likes[{place}]"
                  for place, name in enumerate(others)]  # fmt: skip
        slots = "".join(f"{self.slots[slot]}, " for slot in self.places)
        self.restore = generated(
            "_kept, _numbers, _likes", [*again, f"return {packed}, _Results({results}), ({slots})"], **names
        )
        self.of_varying = generated("_i", [*record, f"return ({slots})"], **names)
