"""Contractions of tables of scores in the log semiring, two tables at a time.

(x (x) y) = (1 / beta) log sum exp(beta (x + y))      the sum runs over the labels that are not kept
"""

from __future__ import annotations

import math
import operator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from softargmax.core.arrays import device_of, namespace
from softargmax.core.extras import require
from softargmax.normalize import logsumexp
from softargmax.structure.log_matmul import log_matmul
from softargmax.structure.reference_chain import plus

if TYPE_CHECKING:
    from collections.abc import Iterable


class Table(NamedTuple):
    """Scores with one label, a letter, per axis. No label occurs twice."""

    scores: Any
    labels: str

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each label."""
        return dict(zip(self.labels, self.scores.shape, strict=True))


class Semiring(NamedTuple):
    """The temperature, the base of the exponentials, and the zero: -inf, or +inf for T < 0."""

    temperature: Any
    base: float | None
    zero: Any


class Step(NamedTuple):
    """One step of a plan: the tables that it takes, one or two, and the labels of its result."""

    operands: tuple[int, ...]
    labels: str


class Plan(NamedTuple):
    """The labels of each operand and of the result, the size of each label, and the steps.

    Tables are numbered in order: first the operands, then the results of the steps. `shapes` are those of the operands
    without the axes of size 1 that "..." broadcasts.
    """

    inputs: tuple[str, ...]
    output: str
    sizes: dict[str, int]
    steps: tuple[Step, ...]
    shapes: tuple[tuple[int, ...], ...]

    def without_broadcast_axes(self, operands: list[Any]) -> list[Any]:
        """Return the operands with the axes that belong to `inputs`."""
        return [namespace(x).reshape(x, shape) for x, shape in zip(operands, self.shapes, strict=True)]


# --- plans ------------------------------------------------------------------------------------------------------------


def shapes_of(operands: list[Any]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of arrays. In a graph with dynamic shapes, a plan makes the sizes constant."""
    return tuple(tuple(operator.index(size) for size in x.shape) for x in operands)


def plan_of(subscripts: str, shapes: tuple[tuple[int, ...], ...], variables: str | None = None) -> Plan:
    """Parse subscripts and choose the order of the products. It does not depend on the sizes of batch axes.

    Labels of the result that are not `variables` belong to the batch. If `variables` is None, only labels that occur in
    all operands do.
    """
    if not isinstance(subscripts, str):
        raise TypeError(f"subscripts: expected a string such as 'ab,bc->ac', got {type(subscripts).__name__}")
    return _plan_of(subscripts, shapes, variables)


@lru_cache(maxsize=256)
def _plan_of(subscripts: str, shapes: tuple[tuple[int, ...], ...], variables: str | None) -> Plan:
    require("contractions need", "structure", opt_einsum="opt_einsum")
    from opt_einsum import contract_path

    try:
        info = contract_path(subscripts, *shapes, shapes=True, optimize=[tuple(range(len(shapes)))])[1]
    except ValueError as error:
        message = f"subscripts: expected one label per axis, as in 'ab,bc->ac', got {subscripts!r}: {error}"
        raise ValueError(message) from None
    every, output = info.input_subscripts.split(","), info.output_subscript
    sizes = {label: int(size) for label, size in info.size_dict.items()}
    kept = [
        [(label, size) for label, size in zip(labels, shape, strict=True) if size == sizes[label]]
        for labels, shape in zip(every, shapes, strict=True)
    ]
    for labels, own in zip(every, kept, strict=True):
        wrong = set(labels).intersection(subscripts).difference(label for label, _ in own)
        if wrong:
            label = min(wrong)
            raise ValueError(f"subscripts: expected one size for {label!r}, got 1 and {sizes[label]} in {subscripts!r}")
    inputs = tuple("".join(label for label, _ in own) for own in kept)
    batch = set(output).intersection(*inputs) if variables is None else set(output).difference(variables)
    costs = [tuple(1 if label in batch else sizes[label] for label in labels) for labels in inputs]
    path = contract_path(f"{','.join(inputs)}->{output}", *costs, shapes=True, optimize="auto")[0]
    return Plan(inputs, output, sizes, _steps(inputs, output, path), tuple(tuple(n for _, n in own) for own in kept))


def _steps(inputs: tuple[str, ...], output: str, path: Iterable[tuple[int, ...]]) -> tuple[Step, ...]:
    """Return the steps of a path. Before a product, each table is summed over the labels that no other table needs."""
    tables = ["".join(dict.fromkeys(labels)) for labels in inputs]
    live = list(range(len(tables)))
    steps: list[Step] = []

    def add(operands: tuple[int, ...], labels: str) -> int:
        steps.append(Step(operands, labels))
        tables.append(labels)
        return len(tables) - 1

    def reduced(one: int, needed: set[str]) -> int:
        labels = "".join(label for label in tables[one] if label in needed)
        return one if labels == tables[one] else add((one,), labels)

    for positions in path:
        taken = [live.pop(position) for position in sorted(positions, reverse=True)]
        result = taken.pop()
        while taken:
            other = taken.pop()
            needed = set(output).union(*(tables[one] for one in (*live, *taken)))
            x, y = reduced(result, needed | set(tables[other])), reduced(other, needed | set(tables[result]))
            labels = dict.fromkeys(tables[x] + tables[y])
            result = add((x, y), "".join(label for label in labels if label in needed))
        live.append(result)
    reduced(live[0], set(output))
    return tuple(steps)


# --- tables -----------------------------------------------------------------------------------------------------------


def table_of(scores: Any, labels: str) -> Table:
    """Return an operand as a table. A label that occurs twice selects the diagonal."""
    xp = namespace(scores)
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            others = tuple(axis for axis in range(len(labels)) if axis not in (first, second))
            size, rest = scores.shape[first], tuple(scores.shape[axis] for axis in others)
            flat = xp.reshape(xp.permute_dims(scores, (first, second, *others)), (size * size, *rest))
            scores = flat[:: size + 1] if size else flat
            labels = label + "".join(labels[axis] for axis in others)
    return Table(scores, labels)


def arranged(x: Table, labels: str) -> Any:
    """Return the scores with their axes in the order of the labels. A label that x does not have gets a size of 1."""
    xp, present = namespace(x.scores), [label for label in labels if label in x.labels]
    scores = xp.permute_dims(x.scores, tuple(x.labels.index(label) for label in present))
    sizes = x.sizes
    return xp.reshape(scores, tuple(sizes.get(label, 1) for label in labels))


def _with_axes(x: Table, *groups: str) -> Any:
    """Return the scores with one axis for each group of labels."""
    sizes = x.sizes
    shape = tuple(math.prod([sizes[label] for label in group]) for group in groups)
    return namespace(x.scores).reshape(arranged(x, "".join(groups)), shape)


def summed(x: Table, kept: str, semiring: Semiring) -> Table:
    """Sum over the labels that are not kept."""
    axes = tuple(axis for axis, label in enumerate(x.labels) if label not in kept)
    if not axes:
        return x
    labels = "".join(label for label in x.labels if label in kept)
    total = logsumexp(x.scores, axis=axes, temperature=semiring.temperature, base=semiring.base, keepdims=True)
    shape = tuple(size for axis, size in enumerate(x.scores.shape) if axis not in axes)
    return Table(namespace(total).reshape(total, shape), labels)


def contracted(x: Table, y: Table, kept: str, semiring: Semiring) -> Table:
    """Return the product of two tables, summed over the labels that are not kept."""
    x, y = summed(x, kept + y.labels, semiring), summed(y, kept + x.labels, semiring)
    labels = "".join(dict.fromkeys(x.labels + y.labels))
    over = "".join(label for label in x.labels if label in y.labels and label not in kept)
    if not over:
        return Table(plus(arranged(x, labels), arranged(y, labels), semiring.zero), labels)
    batch = "".join(label for label in x.labels if label in y.labels and label in kept)
    rows = "".join(label for label in x.labels if label not in y.labels)
    columns = "".join(label for label in y.labels if label not in x.labels)
    a, b = _with_axes(x, batch, rows, over), _with_axes(y, batch, over, columns)
    c = log_matmul(a, b, temperature=semiring.temperature, base=semiring.base)
    sizes = x.sizes | y.sizes
    labels = batch + rows + columns
    return Table(namespace(c).reshape(c, tuple(sizes[label] for label in labels)), labels)


def contract(plan: Plan, operands: Iterable[Any], semiring: Semiring) -> list[Table]:
    """Return the tables of a plan: the operands, and the result of each step. The last one is the whole contraction."""
    tables = [table_of(scores, labels) for scores, labels in zip(operands, plan.inputs, strict=True)]
    for step in plan.steps:
        x = tables[step.operands[0]]
        if len(step.operands) == 1:
            tables.append(summed(x, step.labels, semiring))
        else:
            tables.append(contracted(x, tables[step.operands[1]], step.labels, semiring))
    return tables


def outsides(plan: Plan, tables: list[Table], semiring: Semiring) -> list[Table]:
    """Return for each table the contraction of all tables outside it. A table times its outside is its log-marginal.

    A table that has a label of the result only outside it gets this label too.
    """
    xp, whole = namespace(tables[-1].scores), tables[-1].scores
    found = [Table(xp.zeros((), dtype=whole.dtype, device=device_of(whole)), "")] * len(tables)
    for number, step in reversed(list(enumerate(plan.steps, len(plan.inputs)))):
        if len(step.operands) == 1:
            found[step.operands[0]] = found[number]
            continue
        for one, other in (step.operands, step.operands[::-1]):
            kept = tables[one].labels + plan.output
            found[one] = contracted(found[number], tables[other], kept, semiring)
    return found
