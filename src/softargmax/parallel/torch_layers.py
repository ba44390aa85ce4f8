"""Layers of softargmax.nn whose classes are spread over processes: the style that spreads them, and what they compute.

The functions below those of the style are called for DTensors in place of the functions of the same names in the room
`output` (`core/torch_spreadable.py`). Their first argument is that function.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.utils.weak import WeakTensorKeyDictionary

from softargmax.core.arrays import trained
from softargmax.core.check import flag
from softargmax.core.processes import SpreadAxes
from softargmax.core.signature import public
from softargmax.core.torch_operation import LIBRARY
from softargmax.core.torch_private import without_autocast
from softargmax.core.torch_processes import along, of_all, parts_of_all, spread_text, whole
from softargmax.core.torch_spreadable import full
from softargmax.loss import linear_cross_entropy, linear_selected_log_softmax
from softargmax.output import operations
from softargmax.parallel.layout import bounds
from softargmax.parallel.torch_agreement import Facts, agreed, process_group, with_checksum
from softargmax.parallel.torch_draws import categorical
from softargmax.parallel.torch_graphs import in_graphs
from softargmax.parallel.torch_tensors import Scores, call, contiguous, of_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, MutableMapping

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

_SPREAD: MutableMapping[nn.Parameter, dict[DeviceMesh, nn.Parameter]] = WeakTensorKeyDictionary()
"""For each parameter that was spread over a mesh, the one in its place. A tied parameter so stays one parameter."""


class VocabularyParallel(ParallelStyle):
    r"""Spread the classes of an output layer, or the rows of an embedding, over the processes of a device mesh.

    It is a style for `torch.distributed.tensor.parallel.parallelize_module`. Process r of W gets the weights of the
    r-th of W equal parts of the classes:

    .. math:: p(y \mid h) = \frac{e^{s_y}}{\sum_r \sum_{k\,\mathrm{in\ part}\ r} e^{s_k}}

    Parameters
    ----------
    input_layouts : Placement, optional
        Where the first argument of the module is, if it is no DTensor: `Replicate()`, the default, if all processes
        have all of it; `Shard(1)` if each has a part of the sequences, as in sequence parallelism. The parts may have
        different lengths.
    reproducible : bool
        As in `softargmax.parallel.linear_cross_entropy`, for the gradient of h that comes from the loss or from
        `log_prob_of` of `FullSoftmax` and `AdaptiveSoftmax`. It changes nothing in other modules.

    Notes
    -----
    The style serves `torch.nn.Embedding` and the output layers of `softargmax.nn` other than `DifferentiatedSoftmax`.
    Weight and bias become DTensors with the placement `Shard(0)`, and so do the nodes of `HierarchicalSoftmax`, and
    the head and the tails of `AdaptiveSoftmax`. If two modules share a weight, apply the style to both, and they share
    the DTensor. The parts are those of torch: with K classes, each process but the last ones has ceil(K / W). If this
    is a multiple of 4096, no weights are sent in a call of `FullSoftmax`.

    In all processes of the mesh, the layer is called with the same targets. It returns the same loss in all of them: a
    tensor that is no DTensor, with the bits of one process. So are the gradients of W, b and h. `log_prob_of`, `topk`
    and `sample` return the same in all processes, too. `log_prob` and `scores` return DTensors, of which each process
    has its own classes; gradients of h and b through them agree to rounding. Those of trees and clusters return
    tensors. For `sample`, pass a seed.

    The layers that sample draw the same candidates in all processes. Each process sends the vectors of those that it
    has to all others, and so it does with the nodes on the paths of a tree. The embedding returns the same vectors in
    all processes.

    References
    ----------
    Shoeybi et al. (2019), Megatron-LM, section 3. arXiv:1909.08053.

    See Also
    --------
    softargmax.nn.FullSoftmax, softargmax.nn.SampledSoftmax, softargmax.nn.AdaptiveSoftmax

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> from torch.distributed.tensor.parallel import parallelize_module
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    >>> model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(10, 4)})
    >>> model["head"] = softargmax.nn.FullSoftmax(4, 10, weight=model["embed"].weight)
    >>> style = softargmax.parallel.VocabularyParallel()
    >>> model = parallelize_module(model, mesh, {"embed": style, "head": style})
    >>> model["head"].weight.placements, model["head"].weight is model["embed"].weight
    ((Shard(dim=0),), True)
    >>> loss = model["head"](model["embed"](torch.tensor([1, 2, 3])), torch.tensor([2, 3, 4]))
    >>> loss.backward()
    >>> dist.destroy_process_group()
    """

    @public
    def __init__(self, *, input_layouts: Placement | None = None, reproducible: bool = True) -> None:
        super().__init__()
        self.input_layouts = Replicate() if input_layouts is None else input_layouts
        self.reproducible = flag(reproducible, "reproducible")

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        spread = ("weight",) if isinstance(module, nn.Embedding) else getattr(module, "spreads", ())
        if not spread:
            expected = "an embedding, or an output layer of softargmax.nn other than DifferentiatedSoftmax"
            raise TypeError(f"VocabularyParallel: expected {expected}, got {type(module).__name__}")
        for name, parameter in list(module.named_parameters()):
            if name.partition(".")[0] in spread:
                owner, _, own = name.rpartition(".")
                module.get_submodule(owner).register_parameter(own, self._spread(parameter, device_mesh))

        if not isinstance(module, nn.Embedding):
            cast("Any", module).reproducible = self.reproducible
        first = next(iter(inspect.signature(module.forward).parameters))

        def placed(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
            if first in named:
                named = {**named, first: self._of_all(named[first], device_mesh)}
            return (*(self._of_all(x, device_mesh) for x in arguments[:1]), *arguments[1:]), named

        if isinstance(module, nn.Embedding) or self.input_layouts != Replicate():
            module.register_forward_pre_hook(placed, with_kwargs=True)
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(lambda _, __, found: found.full_tensor())
        return module

    def _of_all(self, x: Tensor, mesh: DeviceMesh) -> DTensor:
        """The first argument of the module, in all processes."""
        if isinstance(x, DTensor):
            return x.redistribute(mesh, [Replicate()])
        if isinstance(self.input_layouts, Shard):
            group, axis = mesh.get_group(), self.input_layouts.dim
            rows = (*x.shape[:axis], "*", *x.shape[axis + 1 :])
            facts = [("function", "VocabularyParallel"), ("input", f"{x.dtype} {rows}, {trained(x)}")]
            x = whole(x, axis, spread_text(group, agreed(group, Facts(x.shape[axis], facts))))
        return DTensor.from_local(x, mesh, [Replicate()], run_check=False)

    def _spread(self, parameter: nn.Parameter, mesh: DeviceMesh) -> nn.Parameter:
        if isinstance(parameter, DTensor):
            return parameter
        of_meshes = _SPREAD.setdefault(parameter, {})
        if mesh not in of_meshes:
            parts = distribute_tensor(parameter, mesh, [Shard(0)], src_data_rank=self.src_data_rank)
            of_meshes[mesh] = nn.Parameter(parts, requires_grad=parameter.requires_grad)
        return of_meshes[mesh]


# --- what layers with DTensors compute --------------------------------------------------------------------------------


def _group(x: DTensor, axis: int) -> ProcessGroup | None:
    """The processes over which an axis is spread."""
    of = Scores.of_array({"z": x, "axis": axis})
    return None if of.dimension is None else of.mesh.get_group(of.dimension)


@contextmanager
def telling(weight: DTensor) -> Iterator[None]:
    """Raise an error of this process in all processes that have a part of the weight."""
    try:
        yield
    except Exception as error:
        group = _group(weight, 0)
        if group is not None:
            agreed(group, error)
        raise


def alike(weight: DTensor, function: str, named: Mapping[str, Any]) -> None:
    """Raise an error in all processes that have a part of the weight, unless they pass the same tensors and numbers."""
    group = _group(weight, 0)
    if group is not None:
        agreed(group, Facts(0, [("function", function), *((name, _text(x)) for name, x in named.items())]))


def _text(x: Any) -> str:
    return f"{x.dtype} {tuple(x.shape)}{with_checksum(x)}" if isinstance(x, Tensor) else str(x)


def scores(here: Callable[..., Tensor], h: Tensor, weight: DTensor, bias: Tensor | None) -> Tensor:
    """h W^T + b, spread like the rows of the weight. It is no DTensor if all processes have all rows."""
    of = Scores.of_layer(h, weight)
    w, b = of.part("w", weight), None if bias is None else of.part("bias", bias)
    if of.dimension is None:
        return here(h, w, b)
    with without_autocast(h):
        return of.result(scores_of_part(h, w, b, group=of.mesh.get_group(of.dimension)), like_z=True)


def in_any_order(_: Any, function: str, *arguments: Tensor, **options: Any) -> Tensor:
    """Call a function of a last layer. The processes add up the gradient of h in any order."""
    of = {one.__name__: one for one in (linear_cross_entropy, linear_selected_log_softmax)}[function]
    found: Tensor = full(call(of, arguments, options, reproducible=False))
    return found


def _scores(h: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    found: Tensor = operations.linear_scores.first(operations.linear_scores.arguments(h, w, b))
    return found


@in_graphs(_scores)
def scores_of_part(h: Tensor, w: Tensor, b: Tensor | None, *, group: ProcessGroup | str) -> Tensor:
    """h W^T + b for this process's rows of W. The gradient of h is that of all processes."""
    group = process_group(group)
    sizes = agreed(group, Facts(len(w), [("function", "scores"), ("hidden", _text(h))]))
    return _scores(along(h, SpreadAxes((), spread_text(group, sizes))), w, b)


def of_rows(_: Any, found: DTensor, rows: tuple[int, ...]) -> Tensor:
    """Give an array (N, K) the shape of the rows, (..., K). torch reshapes no DTensor whose parts differ in size."""
    mine, shape = found.to_local(), torch.Size((*rows, found.shape[1]))
    places = [Shard(len(rows)) if isinstance(one, Shard) else one for one in found.placements]
    return of_parts(mine.reshape(*rows, mine.shape[1]), found.device_mesh, places, shape, contiguous(shape))


def best(here: Callable[[Tensor, int], Any], log_p: DTensor, k: int) -> Any:
    """The k largest numbers of every row: the best of the k best of each process."""
    mine, group = log_p.to_local(), cast("ProcessGroup", _group(log_p, 1))
    sizes, rank = agreed(group, Facts(mine.shape[1], [("function", "topk"), ("k", str(k))])), group.rank()
    counts = [min(k, n) for n in sizes]
    values, index = here(mine, counts[rank])
    values, index = (torch.cat(parts_of_all(group, x.mT, counts)).mT for x in (values, index + bounds(sizes)[rank][0]))
    found = here(values, k)  # of equal numbers, those with the lowest columns come first, here as in `index`
    return found._replace(index=index.gather(1, found.index.clamp(min=0)))  # for a row with NaN, -1 of process 0


def draw_columns(_: Any, log_p: DTensor, seed: int, stream: Tensor) -> Tensor:
    """Draw a column for every row of log-probabilities. The result is -1 for a row with NaN."""
    mine, group = log_p.to_local(), cast("ProcessGroup", _group(log_p, 1))
    wrong = torch.stack(of_all(group, mine.isnan().any(1).to(torch.uint8))).any(0)
    found = categorical(torch.where(wrong[:, None], 0, mine), group=group, seed=seed, stream=stream)
    return torch.where(wrong, -1, found)


def rows_of_table(_: Any, table: Tensor, index: Tensor, *, sparse: bool) -> Tensor:
    """table[index], in all processes. Each sends the rows that it has. The gradient of these rows comes back to it."""
    if sparse:
        raise NotImplementedError("sparse: expected False, as gradients of DTensors are dense, got True")
    of = Scores.of_array({"z": table, "axis": 0})
    mine = cast("DTensor", table).redistribute(of.mesh, of.placements).to_local()
    if of.dimension is None:
        return _rows(mine, index.clamp(max=max(len(mine) - 1, 0)))  # instead of _NOWHERE
    return rows_of_parts(mine, index, group=of.mesh.get_group(of.dimension))


def _rows(table: Tensor, index: Tensor) -> Tensor:
    found: Tensor = operations.gathered.first(operations.gathered.arguments(table, index, sparse=False))
    return found


@in_graphs(_rows)
def rows_of_parts(mine: Tensor, index: Tensor, *, group: ProcessGroup | str) -> Tensor:
    """table[index], where `mine` is this process's part of the table."""
    group = process_group(group)
    sizes, rank = agreed(group, Facts(len(mine), [("function", "gathered"), ("classes", _text(index))])), group.rank()
    owner = torch.bucketize(index, torch.tensor([*accumulate(sizes)]), right=True)
    own = _rows(mine, index[owner == rank] - bounds(sizes)[rank][0])
    return cast("Tensor", _OfAll.apply(own, owner, group))  # type: ignore[no-untyped-call]


class _OfAll(torch.autograd.Function):
    """Rows of all processes. `owner` says which process has each of them. A row that none has is 0."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, owner: Tensor, group: ProcessGroup) -> Tensor:
        ctx.mine = owner == group.rank()
        counts = torch.bincount(owner, minlength=group.size())[: group.size()].tolist()
        found = own.new_zeros(len(owner), *own.shape[1:])
        found[owner.argsort(stable=True)[: sum(counts)]] = torch.cat(parts_of_all(group, own, counts))
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *g: Any) -> Any:
        return g[0][ctx.mine], None, None


_NOWHERE = 1 << 62
"""In a graph, the number of a row that no process has. The row is 0."""


def _distinct(index: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct numbers of an index, and the place of each entry's number among them."""
    found: tuple[Tensor, Tensor] = torch.unique(index, return_inverse=True)
    return found


def _as_long(index: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct numbers of an index, in an array of its length. A graph does not know how many there are."""
    nodes, places = _distinct(index)
    return torch.cat([nodes, nodes.new_full((len(index) - len(nodes),), _NOWHERE)]), places


LIBRARY.define("distinct(Tensor index) -> (Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))
LIBRARY.impl("distinct", _as_long, "CPU")
torch.library.register_fake(
    "softargmax::distinct", lambda index: (torch.empty_like(index), torch.empty_like(index)), lib=LIBRARY
)


def of_pairs(
    here: Callable[..., Any], weight: Tensor, bias: Tensor | None, pairs: Any, *, sparse: bool
) -> tuple[Any, Any]:
    """The vectors of the classes in the pairs, in all processes."""
    in_graph = is_fake(pairs.nodes)
    nodes, places = (torch.ops.softargmax.distinct if in_graph else _distinct)(pairs.nodes)
    w, b = (None if x is None else rows_of_table(None, x, nodes, sparse=sparse) for x in (weight, bias))
    found: tuple[Any, Any] = here(w, b, pairs._replace(nodes=places), sparse=sparse)
    return found
