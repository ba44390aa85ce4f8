"""Attention whose sequences or heads are spread over the processes of a group.

A head of keys, with the heads of queries that share it, needs no other head. So processes exchange parts of sequences
for whole heads, compute the heads as one process does, and exchange the results back. Derivatives go the same way.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax.attend import attention as whole_attention
from softargmax.attend import operations
from softargmax.core.processes import SpreadAxes, spreading
from softargmax.core.signature import public
from softargmax.core.torch_processes import along, spread_text
from softargmax.parallel.layout import bounds, dealt
from softargmax.parallel.torch_agreement import Facts, agreed, facts_of, process_group
from softargmax.parallel.torch_move import transposed
from softargmax.parallel.torch_spread import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from softargmax.parallel.layout import Layout

LENGTHS, HEADS = -2, -3
"""The axes that may be spread."""
_OF_KEYS = ("k", "v")
_OF_QUERIES = ("q", "scale", "mask", "bias", "alpha")
"""Arguments of which each process has the part of its queries."""
_OF_HEADS = (*_OF_KEYS, *_OF_QUERIES, "sink", "slopes")
"""Arguments of which each process has the part of its heads."""


@public
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    /,
    *,
    group: ProcessGroup | DeviceMesh | None = None,
    axis: int = LENGTHS,
    **options: Any,
) -> Tensor:
    r"""Return this process's part of the attention of sequences or heads that are spread over the processes of a group.

    .. math:: o_i = \sum_{j \text{ visible to } i} p_{ij} v_j

    Parameters
    ----------
    q, k, v : Tensor, in CPU memory
        This process's part of the queries (..., H, L, D), keys (..., G, K, D) and values (..., G, K, Dv). Along `axis`,
        the parts of all processes follow each other in the order of their ranks. They may have any lengths, also 0.
    group : ProcessGroup or DeviceMesh, optional
        As in `softargmax.parallel.softmax`.
    axis : int
        What is spread: -2, the sequences (context parallelism), or -3, the heads. A process that has heads of queries
        has the heads of keys that they use.
    **options
        The options of `softargmax.attention`, for the whole sequences. With axis=-2, `mask` and `bias`, and an array
        `scale` or `alpha`, are those of this process's queries: a mask has all keys along its last axis. All others are
        equal in all processes. With axis=-3, options with one number per head are those of this process's heads.

    Returns
    -------
    Tensor, shape (..., H, L, Dv)
        The output of this process's queries, with the bits of `softargmax.attention` of the whole sequences and heads.

    Raises
    ------
    NotImplementedError
        If q is on a device, for dropout with axis=-3, whose noise depends on the numbers of all heads, or for the
        gradient of a scale, alpha or bias that all queries share with axis=-2.
    RuntimeError, TypeError, ValueError
        As in `softargmax.attention` and `softargmax.parallel.softmax`.

    Notes
    -----
    With axis=-2, processes exchange their parts of the sequences for whole heads. There are B G heads of keys in a
    batch of B entries, and process r of W computes those from B G r // W. So with more than B G processes, some
    compute nothing. A process sends its part of q, k, v and of the result, except the heads that it computes: about
    (W - 1) / W of them. A mask or bias is sent for every head. The whole sequences of a process's heads are in its
    memory.

    With axis=-3, processes compare their arguments and exchange nothing else.

    Gradient: as in `softargmax.attention`. Those of q, k and v have the same bits. With axis=-2, those of sink and
    slopes are sums over all processes, in every process, and agree to rounding. So do those of a bias that heads share.

    References
    ----------
    Jacobs et al. (2023), DeepSpeed Ulysses. arXiv:2309.14509.

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> q, k = torch.zeros(1, 1, 2), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> softargmax.parallel.attention(q, k, k)
    tensor([[[0.5000, 0.5000]]])
    >>> dist.destroy_process_group()
    """
    return (_of_heads if axis == HEADS else _of_lengths)(process_group(group), q, k, v, axis, options)


def _layout(group: ProcessGroup, facts: Callable[[], Facts]) -> Layout:
    """Compare facts (`agreed`). An error that finding them raises is raised in all processes."""
    try:
        found: Facts | Exception = facts()
    except Exception as error:  # noqa: BLE001 it is raised below
        found = error
    return agreed(group, found)


def _checked(q: Any, k: Any, v: Any, axis: Any, given: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    if axis not in (LENGTHS, HEADS):
        raise ValueError(f"axis: expected -2 (sequences) or -3 (heads), got {axis!r}")
    refuse("attention", (q, k, v, *given.values()))
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a torch tensor in CPU memory, got {type(x).__name__}")
        if x.ndim < -HEADS:
            raise ValueError(f"{name}: expected at least 3 axes (heads, length, width), got {x.ndim}")
    return _record(q, k, v, options)


def _refuse_shared(queries: int, given: Mapping[str, Any]) -> None:
    """Raise for a trained array that all queries share: the gradient would be that of this process's queries only."""
    for name, axis in (("scale", -1), ("alpha", -1), ("bias", LENGTHS)):
        x = given.get(name)
        if queries == 1 or not isinstance(x, Tensor) or not x.requires_grad:
            continue
        if x.ndim < -axis or x.shape[axis] == 1:
            raise NotImplementedError(
                f"{name}: queries that are spread over processes have no gradient for an array that all of them share; "
                "expand it to this process's queries, and add up its gradients"
            )


def _record(q: Any, k: Any, v: Any, options: Mapping[str, Any]) -> Any:
    """The checked arguments of a call, which is not computed."""
    found: list[Any] = []
    with spreading(lambda *call: found.append(call[1])):
        whole_attention(q, k, v, **{"causal": False, **options})  # without options, it could be computed at once
    return found[0]


def _facts(i: Any, axis: int, parts: Collection[str], *, without: Collection[str] = ()) -> tuple[Facts, Any]:
    """The facts of a record of which each process has `parts` along an axis, and the record with parts of one shape."""
    operation = operations.attention
    slots = [
        None if name in without else x
        for name, x in zip(operation.torch.slots.names, operation.torch.flatten(i), strict=True)
    ]
    facts = facts_of(operation, slots, dict.fromkeys(parts, axis), f"attention, axis={axis}")
    return facts, operation.torch.unflatten(*slots)


def _of_heads(group: ProcessGroup, q: Any, k: Any, v: Any, axis: int, given: Mapping[str, Any]) -> Tensor:
    i: Any = None

    def facts() -> Facts:
        nonlocal i
        i = _checked(q, k, v, axis, given, given)
        if i.options.dropout:
            raise NotImplementedError("dropout: its noise depends on the numbers of all heads; use axis=-2")
        of_keys, _ = _facts(i, axis, _OF_KEYS, without=(*_OF_QUERIES, "sink", "slopes"))
        of_queries, _ = _facts(i, axis, _OF_HEADS, without=_OF_KEYS)
        return Facts(of_queries.columns, of_queries.named + of_keys.named)

    _layout(group, facts)
    found: Tensor = operations.attention.first(i)
    return found


def _of_lengths(group: ProcessGroup, q: Any, k: Any, v: Any, axis: int, given: Mapping[str, Any]) -> Tensor:
    i: Any = None

    def facts_of_keys() -> Facts:
        nonlocal i
        i = _checked(q, k, v, axis, given, {})
        return _facts(i, axis, _OF_KEYS, without=("q",))[0]

    def facts_of_queries() -> Facts:
        nonlocal i
        _refuse_shared(i.q.shape[LENGTHS], given)
        k, v = (x.new_zeros(()).expand(*x.shape[:-2], sum(keys), x.shape[-1]) for x in (i.k, i.v))  # all keys
        facts, found = _facts(_record(i.q, k, v, given), axis, _OF_QUERIES, without=_OF_KEYS)
        i = found._replace(k=i.k, v=i.v)
        return facts

    keys = _layout(group, facts_of_keys)
    queries = _layout(group, facts_of_queries)
    return _exchanged(group, i, queries, keys)


def _exchanged(group: ProcessGroup, i: Any, queries: Layout, keys: Layout) -> Tensor:
    """Compute some of the heads for all queries. Return all heads for this process's queries."""
    *batch, groups, _, _ = i.k.shape
    heads, units = i.q.shape[-3], math.prod(batch) * groups
    layout = dealt(units, group.size())
    first, last = bounds(layout)[group.rank()]
    each = heads // max(groups, 1)
    axes = SpreadAxes((), spread_text(group, queries))

    def of_units(x: Tensor, count: int) -> Tensor:
        """x with one entry of the batch for each head of keys."""
        whole = torch.broadcast_to(x, (*batch, groups * count, *x.shape[-2:]))
        return whole.reshape(units, count, *x.shape[-2:])

    def moved(name: str, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if name in _OF_KEYS:
            return transposed(of_units(x, 1), 2, 0, group, keys, layout)
        if name in _OF_QUERIES:
            return transposed(of_units(x, each), 2, 0, group, queries, layout)
        if name == "lengths":
            return of_units(torch.broadcast_to(x, (*batch, groups, 1, 1)), 1)[first:last]
        return of_units(along(x, axes), each)[first:last]

    options = i.options._replace(**{name: moved(name, x) for name, x in i.options._asdict().items()})
    of_mine = {name: moved(name, getattr(i, name)) for name in ("q", "k", "v")}
    found = operations.attention.first(i._replace(**of_mine, options=options))
    return transposed(found, 0, 2, group, layout, queries).reshape(*i.q.shape[:-1], i.v.shape[-1])
