"""Calls of public functions for one part of each row, whose exchanges with the other parts are calls of their own.

A kernel of rows that are spread over processes gathers bytes from all parts, such as the states of their blocks, and
merges them from left to right (core/processes.py). Processes do so at the same time. Without processes, a call for a
part ends where the kernel gathers bytes for the first time, and returns those of the part (`sent`). `join` joins the
bytes of neighbours, until those of all parts are together. A second call is given them, and ends where the kernel
gathers bytes again, and so on.

A last call for one more part, which has no scores, merges the bytes of all parts. It computes results with numbers per
row (`result_of_rows`), or the states of the rows (`states`, `losses_of_rows`), from which each part of a softmax or of
a gradient is computed (`result_of_part`, `gradient_of_part`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core import check, error_free, native
from softargmax.core.arrays import row_dtype, row_shape
from softargmax.core.dispatch import requesting
from softargmax.core.loss_reduction import row_weights
from softargmax.core.processes import SpreadAxes, spreading, standing_in
from softargmax.core.targets import in_range
from softargmax.loss.operations import cross_entropy, cross_entropy_and_gradient, cross_entropy_vjp
from softargmax.loss.results import CrossEntropyTerms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


class Call(NamedTuple):
    """A call of a public function, without its arrays."""

    function: Callable[..., Any]
    options: Mapping[str, Any]
    """The arguments that are not arrays, by name."""
    by_position: tuple[str, ...]
    """The names of the arguments that the function takes by position."""
    names: tuple[str, ...]
    """The names of the arrays, in the order in which the functions below take them."""
    along: tuple[int | None, ...]
    """For each array, which of its axes is the axis of a row, or None."""
    implementation: str | None
    """The implementation that was requested by name."""

    def __call__(self, *arrays: Any) -> Any:
        """Call the function."""
        given = {**self.options, **dict(zip(self.names, arrays, strict=True))}
        by_position = [given.pop(name) for name in self.by_position]
        return self.function(*by_position, **given)


class Sent(NamedTuple):
    """What a part, or several neighbours, send to all others in one exchange."""

    found: bytes
    sizes: tuple[int, ...]
    """The number of scores per row in each part. They are sent in the first exchange."""
    of_rows: tuple[Any, ...]
    """The arrays of the part, without scores. Only the first part sends them, in the first exchange."""


def result(call: Call, *arrays: Any) -> Any:
    """The result for whole rows."""
    with requesting(call.implementation):
        return call(*map(block, arrays))


def with_gradient(call: Call, *arguments: Any) -> Any:
    """The losses of whole rows, and their gradient. The arguments are the arrays, and the divisor of the gradient."""
    *arrays, divisor = map(block, arguments)

    def serve(operation: Any, i: Any, _first: bool, _out: Any) -> Any:
        options = i.of.options
        if call.implementation == "reference" and options.target is not None:  # kernels look at classes themselves
            in_range(options.target, i.of.z.shape, i.of.axes[0], options.ignore_index, options.named)
        with requesting(call.implementation):
            return operation(i._replace(g=_factors(i.of, divisor)))

    with spreading(serve):
        return call(*arrays)


def of_layer(call: Call, *arrays: Any) -> Any:
    """The losses of a layer for whole rows, and its gradients, which are not rounded to half precision yet.

    They are divided and added up first, and might overflow before.
    """
    given = dict(zip(call.names, map(block, arrays), strict=True))
    scores = {name: check.scores(given[name]) for name in ("h", "w", "bias") if name in given}
    given |= {name: x.astype(row_dtype(x.dtype), copy=False) for name, x in scores.items()}
    return result(call, *given.values())


def of_one_chunk(place: int, ndim: int, results: Any) -> Any:
    """One of the results for the rows of a chunk, with axes for the place of the chunk."""
    return block(results)[place][(None,) * ndim]


def added(chunks: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    """The sum of nested lists of arrays of the same shape, in float64. Their leading axes are places of chunks."""
    total: Any = 0.0
    for one in _arrays(chunks):
        total = np.add(total, one, dtype=np.float64, out=total if isinstance(total, np.ndarray) else None)
    return total if keepdims else np.squeeze(total, axis)


def _arrays(nested: Any) -> Iterator[Any]:
    if isinstance(nested, list):
        for one in nested:
            yield from _arrays(one)
    else:
        yield nested


def sent(call: Call, length: int, *arguments: Any) -> Sent:
    """What a part of rows of this length sends in an exchange.

    The arguments are its arrays, its place among the parts, and what all parts have sent before.
    """
    arrays, (place, *before) = arguments[: len(call.names)], arguments[len(call.names) :]
    (rank,), (first,), (size,) = place
    blocks = tuple(map(block, arrays))
    sizes = () if before else (size,)
    of_rows = tuple(map(_without_scores, blocks, call.along)) if rank == 0 and not before else ()
    # Until the first exchange, a kernel looks at the place of the part only. So those before it stand in as one.
    part = _known([*map(block, before)], rank) if before else _Part((first, size, length - first - size), 1, ())
    try:
        _of_part(call, part, blocks)
        mine = b""  # there are no rows
    except _ExchangeError as exchange:
        mine = exchange.mine
    return Sent(mine, sizes, of_rows)


def join(parts: Sequence[Sent], **_: Any) -> Sent:
    """What neighbours send. Dask passes options that say where they are."""
    found, sizes = b"".join(part.found for part in parts), tuple(n for part in parts for n in part.sizes)
    return Sent(found, sizes, parts[0].of_rows)


def result_of_rows(call: Call, *joined: Sent) -> Any:
    """A result with numbers per row, from what all parts have sent in each exchange."""
    joined = tuple(map(block, joined))
    return _of_part(call, _known(joined), tuple(map(block, joined[0].of_rows)))


class Losses(NamedTuple):
    """The losses of rows, the states from which their gradient is computed, and the sizes of the parts."""

    loss: Any
    states: Any
    sizes: tuple[int, ...]


def losses_of_rows(call: Call, *joined: Sent) -> Losses:
    """The losses of a call that also computes their gradient, from what all parts have sent in each exchange."""
    joined = tuple(map(block, joined))
    with standing_in(_known(joined)) as spread, requesting(None):
        found = cross_entropy(_losses_record(call, spread, joined[0].of_rows))
    return Losses(found.loss, found.states, joined[0].sizes)


def gradient_of_part(call: Call, *arguments: Any) -> Any:
    """A part of the gradient.

    The arguments are its arrays, its place, the divisor, the result of `losses_of_rows`, and what all parts have sent
    in the exchanges other than `exchange_of_states`.
    """
    arrays, (((rank,), _, _), divisor, rows, *joined) = arguments[: len(call.names)], arguments[len(call.names) :]
    _, states, sizes = block(rows)
    with standing_in(_Part(sizes, rank, [all_parts.found for all_parts in joined])) as spread, requesting(None):
        of = _losses_record(call, spread, arrays)
        return cross_entropy_vjp.first(cross_entropy_vjp.arguments(of, block(states), _factors(of, divisor), 0.0))


def exchange_of_states(*, weighed: bool) -> int:
    """The number of the exchange of states, if a loss has class weights. Kernels exchange those of the targets first,
    and sums over the classes last.
    """
    return int(weighed)


def _losses_record(call: Call, spread: str, arrays: Sequence[Any]) -> Any:
    """The arguments of the operation `cross_entropy`, for a call that computes losses and their gradient."""
    found = []

    def keep(_operation: Any, i: Any, _first: bool, _out: Any) -> Any:
        found.append(i.of._replace(axes=SpreadAxes(i.of.axes, spread)))
        return i.of.z, i.of.z  # nobody reads the results

    with spreading(keep):
        call(*map(block, arrays))
    return found[0]


def states(call: Call, *joined: Sent) -> native.State:
    """The states of the rows, of a call that computes a softmax, from what all parts have sent."""
    found, joined = [], tuple(map(block, joined))
    with standing_in(_known(joined)) as spread:

        def fold(_operation: Any, i: Any, _first: bool, _out: Any) -> Any:
            found.append(native.fold(i.z, SpreadAxes(i.axes, spread), i.beta, i.where))
            return i.z

        with spreading(fold):
            call(*map(block, joined[0].of_rows))
    return found[0]


def result_of_part(call: Call, *arguments: Any) -> Any:
    """A part of a softmax, or of its logarithm. The arguments are the part's arrays, and the states of the rows."""
    *arrays, of_rows = map(block, arguments)
    states = tuple(np.require(x, requirements=["A", "W"]) for x in of_rows)

    def apply(operation: Any, i: Any, _first: bool, _out: Any) -> Any:
        out = native.fresh(i.z.shape, i.dtype)
        return native.apply(operation.name, i.z, i.axes, i.beta, i.where, states, out)

    with spreading(apply):
        return call(*arrays)


def exchanges_of(call: Call, length: int, arrays: Sequence[Any]) -> tuple[int, Any]:
    """The number of exchanges of a call, and its result for one row. The arrays have one row, without scores."""
    part = _Part((length, 0), 1, None)
    found = _of_part(call, part, arrays)
    return part.exchanges, found


def sums_of(call: Call, task: Callable[..., Any], *arguments: Any) -> Any:
    """The sums of the losses that a task returns. The last arguments are the classes of the rows, and class weights."""
    *arrays, target, weight = arguments
    return sums(call.options["ignore_index"], task(*arrays), target, weight)


def sums_of_rows(call: Call, counted: bool, *arguments: Any) -> Any:
    """The sums of the losses of rows, from what all parts have sent in each exchange, and class weights.

    Rows count by the weights of their classes if `counted`, and otherwise all the same.
    """
    *joined, weight = arguments
    target = block(joined[0]).of_rows[call.names.index("target")] if counted else None
    return sums(call.options["ignore_index"], result_of_rows(call, *joined), target, weight)


def sums(ignore_index: int, losses: Any, target: Any, weight: Any) -> Any:
    """The sums of the losses of some rows, and of their weights: two pairs of numbers (core/error_free.py).

    If there is no target, all rows have the same weight. If there are no losses, their sum is 0. Each of
    `CrossEntropyTerms` has these four numbers. They are in a last axis, after axes for the place of the rows.
    """
    if isinstance(losses, CrossEntropyTerms):
        weights = weight, None, None, weight
        each = [sums(ignore_index, one, target, its) for one, its in zip(losses, weights, strict=True)]
        return np.concatenate(each, axis=-1)
    target, found = block(target), list[float]()
    like = target if losses is None else losses
    count = np.ones(like.shape) if target is None else row_weights(np.asarray(target), ignore_index, block(weight))
    for x in (np.zeros(0) if losses is None else losses, count):
        found += _pair(np.asarray(x, np.float64).reshape(-1))
    return np.array(found).reshape((1,) * like.ndim + (4,))


@np.errstate(all="ignore")
def _pair(x: Any) -> tuple[float, float]:
    high, low = (float(part[0]) for part in error_free.total(x)) if x.size else (0.0, 0.0)
    return (high, low) if math.isfinite(high) else (float(x.sum()), 0.0)


def joined_sums(chunks: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    """The sums of several chunks of rows."""
    all_sums = np.array([one.reshape(-1, 2) for one in _arrays(chunks)])
    found = np.array([_pair(pairs.reshape(-1)) for pairs in all_sums.transpose(1, 2, 0)]).reshape(-1)
    return found.reshape((*[1] * len(axis), -1)) if keepdims else found


@np.errstate(all="ignore")
def reduced(dtype: Any, mean: bool, term: int, of_rows: Any) -> Any:
    """The sum or mean of the losses of all rows, or of one of their terms, from their sums."""
    own = of_rows[4 * term : 4 * term + 4]
    total = own[0] + own[1]
    return np.asarray(total / total_weight(own) if mean else total, dtype)[()]


def total_weight(of_rows: Any) -> Any:
    """The weight of all rows, or infinity if no row counts, so that a mean and its gradient are 0."""
    return of_rows[2] + of_rows[3] or np.float64(math.inf)


def block(x: Any) -> Any:
    """An array as kernels take it. Those from other machines may not be aligned.

    Dask passes a list of one array if the result does not have all axes of the array.
    """
    while isinstance(x, list):
        (x,) = x
    return np.require(x, requirements="A") if isinstance(x, np.ndarray) else x


def _without_scores(x: Any, axis: int | None) -> Any:
    return x if axis is None or x.shape[axis] == 1 else np.empty((*x.shape[:axis], 0, *x.shape[axis + 1 :]), x.dtype)


class _ExchangeError(Exception):
    """Ends a call at an exchange whose bytes are not known."""

    def __init__(self, mine: bytes) -> None:
        super().__init__("an exchange between parts of rows")
        self.mine = mine


class _Part:
    """One part of each row, and the bytes of all parts in each exchange. They are zeros if `found` is None.

    It takes the place of `Processes` (core/torch_processes.py).
    """

    def __init__(self, sizes: tuple[int, ...], rank: int, found: Sequence[bytes] | None) -> None:
        self.sizes, self.rank, self._found = sizes, rank, found
        self.first, self.exchanges = sum(sizes[:rank]), 0

    @property
    def is_known(self) -> bool:
        return self._found is None or self.exchanges < len(self._found)

    def gather(self, mine: bytes, lengths: Sequence[int]) -> bytes:
        if self._found is None:
            found = bytes(sum(lengths))
        elif self.is_known:
            found = self._found[self.exchanges]
            found += mine if len(found) < sum(lengths) else b""  # of the part without scores, which is the last one
        else:
            raise _ExchangeError(mine)
        self.exchanges += 1
        return found


def _known(joined: Sequence[Sent], rank: int | None = None) -> _Part:
    """A part, or one more part without scores, after exchanges in which all parts have sent something."""
    sizes, found = joined[0].sizes, [all_parts.found for all_parts in joined]
    return _Part((*sizes, 0), len(sizes), found) if rank is None else _Part(sizes, rank, found)


def _factors(of: Any, divisor: Any) -> Any:
    """The factor of each row's gradient: 1 / divisor, or 1 if there is no divisor, because the losses have no mean."""
    return np.full(row_shape(of.z.shape, of.axes), 1.0 if divisor is None else 1.0 / divisor)


def _of_part(call: Call, part: _Part, arrays: Sequence[Any]) -> Any:
    with standing_in(part) as spread:

        def of_part(i: Any) -> Any:
            return i._replace(axes=SpreadAxes(i.axes, spread))

        def serve(operation: Any, i: Any, first: bool, _out: Any) -> Any:
            record = i._replace(of=of_part(i.of)) if operation is cross_entropy_and_gradient else of_part(i)
            with requesting(None):
                found = operation.first(record) if first else operation(record)
            return found if first else found[0] if len(found) == 1 else tuple(found)

        with spreading(serve):
            return call(*arrays)
