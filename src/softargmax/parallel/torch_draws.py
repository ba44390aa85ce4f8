"""The public functions of parallel for draws: those of sample, for rows that are spread over processes.

Plain draws are made from the parts of a row, and the best of them is the draw of the row. Filters, log-probabilities
and draws without replacement need more of a row: its sums, in the order of one process. So rows are dealt out, and each
process draws from its rows as one process does. If the first filter tells by few numbers which scores can matter, only
these scores are sent. All others become -inf there.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from softargmax.core.arrays import last, one_axis, row_dtype
from softargmax.core.check import mask, scores
from softargmax.core.dispatch import requesting
from softargmax.core.operation import Native, row_max
from softargmax.core.processes import SpreadAxes
from softargmax.core.signature import takes_options_of
from softargmax.core.torch_processes import of_all, parts_of_all, spread_text
from softargmax.parallel.layout import bounds, dealt, in_order
from softargmax.parallel.torch_agreement import Facts
from softargmax.parallel.torch_functions import Group  # noqa: TC001 `takes_options_of` reads the types
from softargmax.parallel.torch_graphs import in_graphs
from softargmax.parallel.torch_move import transposed
from softargmax.parallel.torch_spread import Call, require_tensor
from softargmax.sample import categorical as whole_categorical
from softargmax.sample import categorical_with_logprob as whole_categorical_with_logprob
from softargmax.sample import operations
from softargmax.sample.operations import FILTERS, FilterMask
from softargmax.sample.results import CategoricalWithLogprob

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup

    from softargmax.parallel.layout import Layout

_SHAPING = ("axis", "num_samples")
"""The options that shape the results."""


@in_graphs(whole_categorical, shaping=_SHAPING, differentiable=False)
@takes_options_of(whole_categorical)
def categorical(z: Tensor, /, *, group: Group = None, **options: Any) -> Tensor:
    r"""Draw classes from the softmax of rows that are spread over the processes of a group, after filters.

    .. math:: \arg\max_i\,(\beta z_i + g_i) \sim \mathrm{softmax}(\beta z)

    Parameters
    ----------
    z, group
        As in `softargmax.parallel.softmax`.
    **options
        The options of `softargmax.categorical`. `where` is this process's part of the mask, all others are equal in all
        processes. So are the seeds that generators give.

    Returns
    -------
    Tensor of int64
        The drawn classes, numbers among all classes, in all processes: those that `softargmax.categorical` draws from
        the whole rows with the same seed.

    Raises
    ------
    NotImplementedError, RuntimeError, TypeError, ValueError
        As in `softargmax.categorical` and `softargmax.parallel.softmax`.

    Notes
    -----
    The noise of a class is a function of the seed, the row's stream and the number of the class among all classes.
    Without filters and with replacement, each process draws from its part of a row, and sends 32 bytes per draw: the
    score of the drawn class, and its noise.

    For all other draws, the rows are dealt out evenly. Each process gets whole rows and makes their draws. If top_k or
    min_p is the first filter (with order="joint": the only one), a process gets only the scores that can remain, with
    the numbers of their classes.

    There is no gradient. The log-probability of a draw is `softargmax.parallel.selected_log_softmax`.

    References
    ----------
    Gumbel (1954), Statistical theory of extreme values.

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> softargmax.parallel.categorical(torch.tensor([[1.0, 2.0, 8.0]]), top_k=2, seed=0)
    tensor([2])
    >>> dist.destroy_process_group()
    """
    return cast("Tensor", _drawn(whole_categorical, z, group, options))


@in_graphs(whole_categorical_with_logprob, shaping=_SHAPING, results=CategoricalWithLogprob, differentiable=False)
@takes_options_of(whole_categorical_with_logprob)
def categorical_with_logprob(z: Tensor, /, *, group: Group = None, **options: Any) -> CategoricalWithLogprob:
    r"""Draw as `softargmax.parallel.categorical` does, and also return log-probabilities and the number of classes.

    .. math:: \log p_i = \beta z_i - \log \sum_{j\,\mathrm{kept}} e^{\beta z_j}

    Parameters
    ----------
    z, group
        As in `softargmax.parallel.softmax`.
    **options
        As in `softargmax.parallel.categorical`.

    Returns
    -------
    CategoricalWithLogprob
        index, logprob and support_size, in all processes, with the bits of `softargmax.categorical_with_logprob` of the
        whole rows.

    Raises
    ------
    NotImplementedError, RuntimeError, TypeError, ValueError
        As in `softargmax.parallel.categorical`.

    Notes
    -----
    Rows are dealt out, as described in `softargmax.parallel.categorical`. Without filters, `categorical` and
    `softargmax.parallel.selected_log_softmax` send less, and the log-probabilities agree to rounding.

    References
    ----------
    Holtzman et al. (2020), The curious case of neural text degeneration. arXiv:1904.09751.

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> softargmax.parallel.categorical_with_logprob(torch.tensor([1.0, 1.0]), top_k=1, seed=0)
    CategoricalWithLogprob(index=tensor(0), logprob=tensor(0.), support_size=tensor(1))
    >>> dist.destroy_process_group()
    """
    return cast("CategoricalWithLogprob", _drawn(whole_categorical_with_logprob, z, group, options))


def _drawn(function: Callable[..., Any], z: Any, group: Group, options: dict[str, Any]) -> Any:
    call = _Draws(group, function.__name__)
    return call.run(functools.partial(call.draw, function), z, **options)


_KERNELS = {
    one.name: Native(one.kernel("cpu"), one.arguments, one.fields)
    for one in (operations.categorical, operations.categorical_with_logprob)
}


class _Draws(Call):
    """A call of a function of draws."""

    def draw(self, function: Callable[..., Any], z: Any, *, axis: Any = -1, where: Any = None, **options: Any) -> Any:
        """Call the function with as many scores per row as all processes have. `serve` puts this process's in."""
        z = scores(z)
        require_tensor("z", z)
        if z.ndim == 0:
            return function(z)  # it raises an error
        axis = one_axis(axis, z.ndim)
        sizes = self.sizes(Facts(z.shape[axis], [("function", self.function)]))
        self._compared = False  # only the numbers of classes
        self.part = last(z, axis)
        self.where = None if where is None else last(torch.broadcast_to(mask(where, z), z.shape), axis)
        whole = z.detach().new_zeros(()).expand(*z.shape[:axis], sum(sizes), *z.shape[axis + 1 :])
        return function(whole, axis=axis, **options)

    def serve(self, operation: Any, i: Any, first: bool, out: Any) -> Any:
        """Make draws. The record has all classes, without their scores."""
        filters = _asked(i)
        i = i._replace(z=self.part, distribution=i.distribution._replace(where=self.where, filters=filters))
        if operation is operations.categorical and i.replace and all(x is None for x in filters):
            return super().serve(operation, i, first, out)
        _, _, sizes = self.compared(operation, i, out)
        found = _of_dealt_rows(operation, i, self.group, sizes)
        return found[0] if first or len(found) == 1 else found


def _asked(i: Any) -> Any:
    """The filters without those that keep all scores, such as a top_k of all classes."""
    keeps_all = {"top_k": i.z.shape[-1], "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "epsilon": 0.0, "eta": 0.0}
    filters = i.distribution.filters
    off = [name for name, x in filters._asdict().items() if isinstance(x, float) and x == keeps_all[name]]
    return filters._replace(**dict.fromkeys(off))


def _of_dealt_rows(operation: Any, i: Any, group: ProcessGroup, sizes: Layout) -> tuple[Tensor, ...]:
    """Deal the rows out, draw from this process's rows, and return the draws of all rows."""
    shape = i.z.shape[:-1]
    of_flat_rows = _flat(operation, i)
    layout = dealt(of_flat_rows.z.shape[0], group.size())
    start, stop = bounds(layout)[group.rank()]
    with requesting(None):
        z = _dealt(of_flat_rows, group, sizes, layout)
    mine = _some_rows(operation, of_flat_rows, start, stop)._replace(z=z)
    dtypes = torch.int64, row_dtype(z.dtype), torch.int64
    widths = i.draws, i.draws, 1
    results = [z.new_empty(stop - start, n, dtype=d) for _, n, d in zip(operation.fields, widths, dtypes, strict=False)]
    status = torch.zeros(stop - start, 1, dtype=torch.uint8)
    problem = _KERNELS[operation.name](mine, *results)
    if problem is not None:
        status[problem[0]] = problem[1]
    status, *found = _of_all_rows([status, *results], group, layout)
    if status.any():
        row = int(status[:, 0].nonzero()[0])
        operation.refuse(i, (row, int(status[row])))
    return tuple(x.reshape(*shape, x.shape[-1]) for x in found)


def _flat(operation: Any, i: Any) -> Any:
    """The record with one axis of rows. Scores outside the mask are -inf, and streams are the numbers of the rows."""
    *shape, columns = i.z.shape
    z, where = i.z.detach(), i.distribution.where
    z = (z if where is None else z.masked_fill(~where, -math.inf)).reshape(math.prod(shape), columns)
    stream = torch.arange(z.shape[0]).reshape(*shape, 1) if i.stream is None else i.stream

    def flat(x: Any) -> Any:
        return torch.broadcast_to(x, (*shape, 1)).reshape(-1, 1) if isinstance(x, Tensor) and x.ndim else x

    plain = i._replace(z=None, distribution=i.distribution._replace(where=None), stream=stream, axes=(1,))
    return operation.torch.unflatten(*map(flat, operation.torch.flatten(plain)))._replace(z=z)


def _some_rows(operation: Any, i: Any, start: int, stop: int) -> Any:
    """The arguments of some rows."""
    slots = operation.torch.flatten(i)
    return operation.torch.unflatten(*(x[start:stop] if isinstance(x, Tensor) and x.ndim else x for x in slots))


def _of_all_rows(of_mine: list[Tensor], group: ProcessGroup, layout: Layout) -> list[Tensor]:
    """The results for all rows, from the results of each process for its rows, of one axis of numbers each."""
    numbers = torch.cat([x.view(torch.uint8) for x in of_mine], 1)
    whole = torch.cat(parts_of_all(group, numbers, layout))
    found = []
    for part, x in zip(torch.split(whole, [x.shape[1] * x.dtype.itemsize for x in of_mine], 1), of_mine, strict=True):
        aligned = part.clone(memory_format=torch.contiguous_format).flatten()
        found.append(aligned.view(x.dtype).reshape(len(whole), x.shape[1]))
    return found


# --- scores for the process that draws --------------------------------------------------------------------------------

_PAIR = 16
"""Bytes of the number of a class and its score, each in float64."""


def _dealt(i: Any, group: ProcessGroup, sizes: Layout, layout: Layout) -> Tensor:
    """The rows that this process draws from. Scores that cannot matter may be -inf."""
    z: Tensor = i.z
    columns = sum(sizes)
    kept = _candidates(i, SpreadAxes((1,), spread_text(group, sizes)))
    if kept is None:
        return transposed(z, 1, 0, group, in_order(sizes), in_order(layout))
    row, column = kept.nonzero(as_tuple=True)
    counts = torch.bincount(row, minlength=len(z))
    most = max(int(x) for x in of_all(group, counts.max() if len(counts) else torch.zeros((), dtype=torch.int64)))
    if most * group.size() * _PAIR >= columns * z.itemsize:
        return transposed(z, 1, 0, group, in_order(sizes), in_order(layout))
    pairs = torch.full((len(z), most, 2), -math.inf, dtype=torch.float64)
    pairs[..., 0] = columns  # a class behind the last one, up to the same number of pairs in all rows
    place = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]
    pairs[row, place, 0] = (column + bounds(sizes)[group.rank()][0]).double()
    pairs[row, place, 1] = z[row, column].double()
    classes, found = transposed(pairs, 1, 0, group, in_order((most,) * group.size()), in_order(layout)).unbind(-1)
    of_all_classes = z.new_full((len(found), columns + 1), -math.inf)
    return of_all_classes.scatter_(1, classes.long(), found.to(z.dtype))[:, :columns]


def _candidates(i: Any, axes: SpreadAxes) -> Tensor | None:
    """A mask of the scores that remain after the first filter, or None if the filter needs sums of whole rows.

    With the scores of the mask alone, all filters give the same result: none sees the others.
    """
    filters = i.distribution.filters
    asked = [name for name in FILTERS if getattr(filters, name) is not None]
    name = asked[0] if asked else ""
    if name not in ("top_k", "min_p") or (i.distribution.joint and len(asked) > 1):
        return None
    z, value = i.z, getattr(filters, name)
    if name == "min_p":  # the largest score of the row stands beside this process's scores
        z = torch.cat([z, row_max(z, axes)], 1)
    else:
        most = max(z.shape[1], 1)
        value = min(value, float(most)) if isinstance(value, float) else value.clamp(max=most)
    alone = i.distribution._replace(filters=filters._replace(**{**dict.fromkeys(FILTERS), name: value}), joint=False)
    kept: Tensor = operations.filter_mask.first(FilterMask(z, alone, (1,)))
    return kept[:, : i.z.shape[1]]
