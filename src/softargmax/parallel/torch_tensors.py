"""Calls of public functions with DTensors: a DTensor in gives a DTensor out.

The placements of z decide. If z is sharded along the axis of the rows, the rows are spread over that dimension of the
mesh. All other dimensions of the mesh have rows of their own. Other arguments are redistributed to fit z. A tensor that
is not a DTensor counts as replicated.
"""

from __future__ import annotations

import functools
import inspect
import math
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from softargmax.core.arrays import like, row_shape
from softargmax.core.check import dtype_of_rows
from softargmax.core.loss_reduction import total_of_rows
from softargmax.core.torch_spreadable import full
from softargmax.loss import linear_selected_log_softmax as whole_linear_selected_log_softmax
from softargmax.loss.results import CrossEntropyTerms
from softargmax.parallel.torch_attention import attention, attention_split_kv
from softargmax.parallel.torch_draws import categorical, categorical_with_logprob
from softargmax.parallel.torch_functions import Group, entropy, kl_divergence, log_softmax, logsumexp, softmax
from softargmax.parallel.torch_graphs import in_graphs
from softargmax.parallel.torch_losses import (
    cross_entropy,
    cross_entropy_terms,
    linear_cross_entropy,
    selected_log_softmax,
)
from softargmax.parallel.torch_spread import Call
from softargmax.sample.operations import FILTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh

LIKE_Z = ("softmax", "log_softmax")
"""Functions whose result is laid out like z."""
PER_ROW = ("logsumexp", "entropy", "kl_divergence", "cross_entropy", "cross_entropy_terms", "selected_log_softmax")
"""Functions of z whose results have one number per row, or several, or are one number."""
OF_LAYERS = ("linear_cross_entropy", "linear_selected_log_softmax")
"""Functions of a layer (h, w, bias). Classes are spread if w is sharded along its first axis."""
OF_DRAWS = ("categorical", "categorical_with_logprob")
"""Functions of z whose results have several numbers per row, or one."""
OF_SEQUENCES = ("attention",)
"""Functions of q, k and v. Sequences are spread if q is sharded along its last axis but one, and keys if only k is."""
_ROWWISE = ("temperature", *FILTERS)
"""Options with one number per row. Their shape may lack the axis of a row."""
ARRAYS = ("target", "index", "weight", "where", "stream", *_ROWWISE)
"""Arguments that may be lists or NumPy arrays, and are then replicated."""


@in_graphs(whole_linear_selected_log_softmax)
def linear_selected_log_softmax(
    *arguments: Any, group: Group = None, reproducible: bool = True, **options: Any
) -> torch.Tensor:
    """Log-probabilities of classes of a layer, of which each process has a part."""
    of_group = Call(group, "linear_selected_log_softmax", reproducible=reproducible)
    return cast("torch.Tensor", of_group.run(whole_linear_selected_log_softmax, *arguments, **options))


SPREAD: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        softmax,
        log_softmax,
        logsumexp,
        entropy,
        kl_divergence,
        cross_entropy,
        cross_entropy_terms,
        selected_log_softmax,
        linear_cross_entropy,
        linear_selected_log_softmax,
        categorical,
        categorical_with_logprob,
    )
}
"""Functions for parts of rows."""


def call(
    function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any], *, reproducible: bool = True
) -> Any:
    """Call a public function some of whose arguments are DTensors.

    `reproducible`: True for sums in the order of the processes, as in `softargmax.parallel.linear_cross_entropy`.
    """
    name = function.__name__
    names = (*LIKE_Z, *PER_ROW, *OF_DRAWS, *OF_LAYERS, *OF_SEQUENCES)
    if name not in names:
        supported = ", ".join(names)
        raise NotImplementedError(f"DTensors are supported by {supported}; for {name}, pass x.full_tensor()")
    bound = inspect.signature(function).bind(*arguments, **options)
    bound.apply_defaults()
    given = _as_tensors(bound.arguments)
    if name in OF_SEQUENCES:
        return _of_sequences(function, **given)
    if given.get("out") is not None:
        raise TypeError("out: not supported with DTensors")
    scores = Scores.of_layer(given["h"], given["w"]) if name in OF_LAYERS else Scores.of_array(given)
    if scores.has_other_rows and given.get("reduction") in ("mean", "sum"):
        of_rows = {**options, "reduction": "none", "dtype": torch.float64}
        rows = call(function, arguments, of_rows, reproducible=reproducible)
        return _reduced(rows, given)
    if name in OF_DRAWS and given["stream"] is None and scores.has_other_rows:
        given["stream"] = torch.arange(math.prod(scores.rows)).reshape(scores.rows)
    local = {key: scores.part(key, x) if isinstance(x, torch.Tensor) else x for key, x in given.items()}
    by_position = [local.pop(key) for key, x in bound.signature.parameters.items() if x.kind is not x.KEYWORD_ONLY]
    if scores.dimension is None:
        found = function(*by_position, **local)
    else:
        local.pop("out", None)
        if not reproducible:
            local["reproducible"] = False
        found = SPREAD[name](*by_position, group=scores.mesh.get_group(scores.dimension), **local)
    to_tensor = functools.partial(scores.result, like_z=name in LIKE_Z, drawn=name in OF_DRAWS)
    return type(found)(*map(to_tensor, found)) if isinstance(found, tuple) else to_tensor(found)


def _as_tensors(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert lists and NumPy arrays, which all processes have, to tensors, as a call with plain tensors does."""
    example = next(x for x in given.values() if isinstance(x, DTensor)).to_local()
    return {
        name: like(x, example, name) if name in ARRAYS and not isinstance(x, torch.Tensor | Real | None) else x
        for name, x in given.items()
    }


def _reduced(rows: Any, given: Mapping[str, Any]) -> Any:
    """The sum or mean of the losses of the rows of all processes, in float64. Every process adds all of them, in the
    order in which one process does.
    """
    scores = [x for x in map(given.get, ("z", "h", "w", "bias")) if x is not None]
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in scores))
    to, mean = dtype_of_rows(given["dtype"], torch.empty(0, dtype=dtype)), given["reduction"] == "mean"
    target = weight = None
    if mean and not torch.is_floating_point(given["target"]):
        target, weight = full(given["target"]), full(given["weight"])

    def total(x: Any, weight: Any) -> DTensor:
        found = total_of_rows(full(x), target, weight, given["ignore_index"], mean=mean).to(to)
        return DTensor.from_local(found, x.device_mesh, [Replicate()] * x.device_mesh.ndim, run_check=False)

    if isinstance(rows, CrossEntropyTerms):
        return CrossEntropyTerms(*map(total, rows, (weight, None, None, weight)))
    return total(rows, weight)


def _of_sequences(function: Callable[..., Any], q: Any, k: Any, v: Any, **options: Any) -> DTensor:
    """Call attention. The placements of q decide: processes have parts of the batch, of the heads or of sequences. They
    have parts of the keys where k is sharded along its keys and q is replicated.
    """
    for name, x in options.items():
        if isinstance(x, torch.Tensor) or (name == "dropout" and x):
            raise NotImplementedError(
                f"{name}: not supported with DTensors; call softargmax.parallel.attention with this process's parts"
            )
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, DTensor):
            raise TypeError(f"{name}: expected a DTensor, as q, k and v all are, got {type(x).__name__}")
        if x.ndim < 3 or x.device_mesh != q.device_mesh or x.shape[:-3] != q.shape[:-3]:
            raise ValueError(f"{name}: expected axes (.., heads, length, width), on the mesh and with the batch of q")
    mesh, vectors = q.device_mesh, q.ndim - 1
    places = [Replicate() if isinstance(one, Shard) and one.dim % q.ndim == vectors else one for one in _whole(q)]
    spread_along = [k for k, one in enumerate(places) if isinstance(one, Shard) and one.dim % q.ndim == vectors - 1]
    if len(spread_along) > 1:
        raise ValueError(f"q: expected at most one dimension of the mesh along sequences, got {len(spread_along)}")
    parts = math.prod(
        mesh.size(k) for k, one in enumerate(places) if isinstance(one, Shard) and one.dim % q.ndim == vectors - 2
    )
    heads = [x.shape[-3] for x in (q, k, v)]
    if any(n % parts for n in heads):
        raise ValueError(f"k: expected numbers of heads that {parts} divides, got {', '.join(map(str, heads))}")
    keys_along = [
        dimension
        for dimension, (of_q, of_k) in enumerate(zip(places, _whole(k), strict=True))
        if isinstance(of_q, Replicate) and isinstance(of_k, Shard) and of_k.dim % k.ndim == vectors - 1
    ]
    of_keys = list(places)
    if keys_along and not spread_along and options["alpha"] == 1.0:  # other orders need whole keys
        of_keys[keys_along[0]] = Shard(vectors - 1)
    placed = ((q, places), (k, of_keys), (v, of_keys))
    mine = [x.redistribute(mesh, of_x).to_local(grad_placements=of_x) for x, of_x in placed]
    if spread_along:
        found = attention(*mine, group=mesh.get_group(spread_along[0]), **options)
    elif of_keys != places:
        del options["alpha"]
        found = attention_split_kv(*mine, group=mesh.get_group(keys_along[0]), **options)
    else:
        found = function(*mine, **options)
    shape = torch.Size((*q.shape[:-3], max(heads), q.shape[-2], v.shape[-1]))
    return of_parts(found, mesh, places, shape, contiguous(shape))


class Scores(NamedTuple):
    """The scores of a call: where they are, and so where other arrays must be to fit them."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]
    axis: int

    @classmethod
    def of_array(cls, given: Mapping[str, Any]) -> Scores:
        """The scores of a function whose first argument is z."""
        of_z, z = next(iter(given.items()))
        if not isinstance(z, DTensor):
            raise TypeError(f"{of_z}: expected a DTensor, like other arguments, got {type(z).__name__}")
        axis = given["axis"]
        if not isinstance(axis, int) or not -z.ndim <= axis < z.ndim:
            raise ValueError(f"axis: expected an integer from {-z.ndim} to {z.ndim - 1}, got {axis!r}")
        wrong = f"with DTensors, expected a shape that adds no axes to {tuple(z.shape)}"
        z_q, temperature = given.get("z_q", z), given.get("temperature")
        if hasattr(z_q, "shape") and z_q.shape != z.shape:
            raise ValueError(f"z_q: {wrong}")
        ndim = getattr(temperature, "ndim", 0)
        if ndim > z.ndim or ndim == z.ndim == 1:
            raise ValueError(f"temperature: {wrong}")
        return cls(z.device_mesh, _whole(z), z.shape, z.stride(), axis % z.ndim)

    @classmethod
    def of_layer(cls, h: Any, w: Any) -> Scores:
        """The scores h W^T, which are nowhere."""
        if not isinstance(w, DTensor):
            raise TypeError(f"w: expected a DTensor, like other arguments, got {type(w).__name__}")
        if w.ndim != 2:
            raise ValueError(f"w: expected shape (K, D), got {tuple(w.shape)}")
        if isinstance(h, DTensor) and h.device_mesh != w.device_mesh:
            raise ValueError("h: expected a DTensor on the mesh of w")
        rows = _whole(h) if isinstance(h, DTensor) else (Replicate(),) * w.device_mesh.ndim
        placements: list[Placement] = []
        for of_h, of_w in zip(rows, _whole(w), strict=True):
            if isinstance(of_w, Shard) and of_w.dim % 2:
                raise ValueError("w: expected a DTensor with whole rows, got one that is sharded along its last axis")
            if isinstance(of_w, Shard):
                placements.append(Shard(h.ndim - 1))
            else:
                placements.append(of_h if isinstance(of_h, Shard) and of_h.dim % h.ndim < h.ndim - 1 else Replicate())
        shape = torch.Size((*h.shape[:-1], w.shape[0]))
        return cls(w.device_mesh, tuple(placements), shape, contiguous(shape), h.ndim - 1)

    @property
    def dimension(self) -> int | None:
        """The dimension of the mesh over which rows are spread."""
        ndim = len(self.shape)
        found = [k for k, one in enumerate(self.placements) if isinstance(one, Shard) and one.dim % ndim == self.axis]
        if len(found) > 1:
            raise ValueError(f"z: expected at most one dimension of the mesh along the axis of rows, got {len(found)}")
        return found[0] if found else None

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape without the axis of a row."""
        return row_shape(self.shape, (self.axis,))

    @property
    def has_other_rows(self) -> bool:
        """True if processes have different rows, too."""
        return any(isinstance(one, Shard) for k, one in enumerate(self.placements) if k != self.dimension)

    def part(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return this process's part of an argument."""
        if name in _ROWWISE and 0 < x.ndim < len(self.shape):  # its axes are those of the rows
            x = x.reshape((1,) * (len(self.shape) - 1 - x.ndim) + tuple(x.shape)).unsqueeze(self.axis)
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)
        places: list[Placement]
        if name in ("weight", "w", "bias"):
            places = [Shard(0) if k == self.dimension else Replicate() for k in range(self.mesh.ndim)]
        elif name in ("h", "index", "stream") or (name == "target" and x.ndim < len(self.shape)):
            places = self.of_rows(kept=name == "index" and x.ndim == len(self.shape))
        else:
            places = [self._beside(one, x) for one in self.placements]
        # The gradient of an array that all rows share is a sum over all rows. A process has the sum over its own.
        of_g = [Partial() if isinstance(one, Replicate) and self._has_rows(k) else one for k, one in enumerate(places)]
        found: torch.Tensor = x.redistribute(self.mesh, places).to_local(grad_placements=of_g)
        return found

    def _has_rows(self, k: int) -> bool:
        return k != self.dimension and isinstance(self.placements[k], Shard)

    def _beside(self, placement: Placement, x: torch.Tensor) -> Placement:
        """The placement of an array that broadcasts with the scores."""
        if not isinstance(placement, Shard):
            return placement
        dim = placement.dim % len(self.shape) - len(self.shape) + x.ndim
        return Shard(dim) if dim >= 0 and x.shape[dim] == self.shape[dim] else Replicate()

    def of_rows(self, *, kept: bool) -> list[Placement]:
        """The placements of an array with one number per row. If `kept`, the axis is there with size 1."""
        places: list[Placement] = []
        for k, one in enumerate(self.placements):
            if isinstance(one, Shard) and k != self.dimension:
                dim = one.dim % len(self.shape)
                places.append(Shard(dim - (dim > self.axis and not kept)))
            else:
                places.append(Replicate())
        return places

    def result(self, found: torch.Tensor, *, like_z: bool, drawn: bool = False) -> DTensor:
        """A result as a DTensor. Several draws per row stand along the last axis."""
        if like_z:
            return of_parts(found, self.mesh, self.placements, self.shape, self.stride)
        kept = found.ndim == len(self.shape) and not drawn
        if kept:
            rows = [found.shape[k] if k == self.axis else n for k, n in enumerate(self.shape)]
        else:
            rows = [*self.rows, *found.shape[len(self.rows) :]]
        if found.ndim == 0 and rows:  # a sum or mean over all rows
            rows = []
            places: list[Placement] = [Replicate()] * self.mesh.ndim
        else:
            places = self.of_rows(kept=kept)
        return of_parts(found, self.mesh, places, torch.Size(rows), contiguous(rows))


def _whole(x: DTensor) -> tuple[Placement, ...]:
    """The placements of a DTensor once all but plain shards are brought together: partial sums, strided shards."""
    return tuple(one if type(one) is Shard else Replicate() for one in x.placements)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of an array of this shape."""
    return torch.empty(shape, device="meta").stride()


def of_parts(
    x: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: torch.Size, stride: tuple[int, ...]
) -> DTensor:
    """The DTensor of which every process has a part."""
    return DTensor.from_local(x, mesh, placements, run_check=False, shape=shape, stride=stride)
