"""The primitives of this room on torch tensors in CPU memory: the compiled core, as operators without derivatives.

The seed is a tensor, so that a graph that draws its own seed draws anew at each call.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softargmax import _native, sample
from softargmax.core.torch_bridge import Operator, compile_whole
from softargmax.core.torch_memory import view
from softargmax.core.torch_rows import maybe
from softargmax.sample.options import refuse
from softargmax.sample.reference import Drawn

if TYPE_CHECKING:
    from softargmax.core.seeds import Source
    from softargmax.sample.options import Asked

compile_whole(getattr(sample, name) for name in sample.__all__)

_BESIDE = (
    "Tensor? where, Tensor? hi, Tensor? lo, Tensor?[] filters, float beta, float beta_lo, float[] numbers, bool joint"
)


def gumbel(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype, source: Source) -> Tensor:
    """Noise of this shape, a stream to each row along the last axis."""
    return gumbel_noise(source.seed, source.stream, list(shape), dtype)


def keep(z: Tensor, asked: Asked) -> Tensor:
    """Where the filters leave a score."""
    return filter_mask(z.detach(), *_opened(asked))


def draw(z: Tensor, asked: Asked, source: Source, n: int, *, replace: bool, counts: bool) -> Drawn:
    """n draws of each row."""
    index, logprob, support = categorical_draws(z.detach(), *source, *_opened(asked), n, replace, counts)
    return Drawn(index, logprob, support) if counts else Drawn(index, None, None)


def _opened(asked: Asked) -> tuple[Any, ...]:
    hi, lo = asked.scale
    pair = (None, None, hi, lo) if isinstance(hi, float) else (*_columns(hi, lo), 1.0, 0.0)
    numbers = [x if isinstance(x, float) else math.nan for x in asked.filters]
    arrays = [None if x is None or isinstance(x, float) else x.detach().double() for x in asked.filters]
    return asked.where, *pair[:2], arrays, *pair[2:], numbers, asked.joint


def _columns(hi: Tensor, lo: Tensor) -> tuple[Tensor, Tensor]:
    return hi.detach().double(), lo.detach().double().expand(hi.shape).contiguous()


# --- the kernels ------------------------------------------------------------------------------------------------------


def _seed(seed: Tensor) -> int:
    return int(seed) % (1 << 64)


def _streams(stream: Tensor | None) -> Any:
    return None if stream is None else stream.contiguous().numpy()


def _native_beside(
    where: Tensor | None,
    hi: Tensor | None,
    lo: Tensor | None,
    arrays: Any,
    beta: float,
    beta_lo: float,
    numbers: Any,
    joint: bool,
) -> tuple[Any, Any, Any, tuple[Any, ...], bool]:
    filters = tuple(
        view(x) if x is not None else None if math.isnan(number) else number
        for x, number in zip(arrays, numbers, strict=True)
    )
    pair = (beta, beta_lo) if hi is None or lo is None else (view(hi), view(lo))
    return *pair, maybe(where), filters, joint


def _gumbel(seed: Tensor, stream: Tensor | None, shape: list[int], dtype: torch.dtype) -> Tensor:
    out = torch.empty(shape, dtype=dtype)
    _native.gumbel(view(out if shape else out.view(1)), _seed(seed), _streams(stream))
    return out


def _keep(z: Tensor, *beside: Any) -> Tensor:
    out = torch.empty(z.shape, dtype=torch.bool)
    refuse(*_native.keep(view(z), view(out), *_native_beside(*beside)), tuple(z.shape[:-1]))
    return out


def _results(z: Tensor, n: int, counts: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the draws, their log-probabilities and the rows' numbers of classes."""
    rows = z.shape[:-1]
    logprob = z.new_empty((*rows, n) if counts else 0, dtype=torch.float64)
    return (
        z.new_empty((*rows, n), dtype=torch.int64),
        logprob,
        z.new_empty(rows if counts else 0, dtype=torch.int64),
    )


def _rounded(logprob: Tensor, z: Tensor) -> Tensor:
    return logprob if z.dtype is torch.float64 else logprob.float()


def _categorical(z: Tensor, seed: Tensor, stream: Tensor | None, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    *beside, n, replace, counts = arguments
    index, logprob, support = _results(z, n, counts)
    found = _native.categorical(
        view(z),
        index.view(-1).numpy(),
        _seed(seed),
        _streams(stream),
        *_native_beside(*beside),
        n,
        replace,
        logprob=logprob.view(-1).numpy() if counts else None,
        support=support.view(-1).numpy() if counts else None,
    )
    refuse(*found, tuple(z.shape[:-1]), n)
    return index, _rounded(logprob, z), support


def _fake_categorical(z: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    index, logprob, support = _results(z, rest[-3], rest[-1])
    return index, _rounded(logprob, z), support


# --- vmap: a mapped call has the noise it has alone; where `randomness` gives each a seed, they run one by one --------


def _tensors(f: Any, x: Any, dim: Any) -> Any:
    """f(tensor, its mapped axis) in place of every tensor among arguments."""
    if isinstance(x, (list, tuple)):
        return [_tensors(f, each, d) for each, d in zip(x, dim, strict=True)]
    return f(x, dim) if isinstance(x, Tensor) else x


def _one_by_one(operator: Any, size: int, dims: Any, arguments: Any) -> tuple[Any, Any]:
    def call(i: int) -> Any:
        return operator(*_tensors(lambda x, dim: x if dim is None else x.select(dim, i), arguments, dims))

    each = [call(i) for i in range(size)]
    if isinstance(each[0], Tensor):
        return torch.stack(each), 0
    return tuple(torch.stack(parts) for parts in zip(*each, strict=True)), (0,) * len(each[0])


def _first(size: int, rank: int) -> Any:
    """Brings the mapped axis to the front of what stands beside scores of this rank."""

    def front(x: Tensor, dim: int | None) -> Tensor:
        x = x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
        return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:]).expand(size, *(-1,) * rank)

    return front


def _rank(z: Tensor, dim: int | None) -> int:
    return z.ndim - (dim is not None)


def _batch_keep(operator: Any, size: int, dims: Any, arguments: Any) -> tuple[Any, Any]:
    return operator(*_tensors(_first(size, _rank(arguments[0], dims[0])), arguments, dims)), 0


def _batch_draws(operator: Any, size: int, dims: Any, arguments: Any) -> tuple[Any, Any]:
    if dims[1] is not None:
        return _one_by_one(operator, size, dims, arguments)
    z, seed, stream, *beside = arguments
    front = _first(size, _rank(z, dims[0]))
    z, *beside = _tensors(front, [z, *beside], [dims[0], *dims[3:]])
    stream = torch.arange(math.prod(z.shape[1:-1])) if stream is None else stream
    counts = 0 if beside[-1] else None  # not asked for, they are empty
    return operator(z, seed, _first(size, 1)(stream, dims[2]).reshape(-1), *beside), (0, counts, counts)


def _batch_gumbel(operator: Any, size: int, dims: Any, arguments: Any) -> tuple[Any, Any]:
    if dims[0] is not None:
        return _one_by_one(operator, size, dims, arguments)
    seed, stream, shape, dtype = arguments
    return operator(seed, stream.movedim(dims[1], 0).reshape(-1), [size, *shape], dtype), 0


gumbel_noise = Operator(
    "gumbel(Tensor seed, Tensor? stream, SymInt[] shape, ScalarType dtype) -> Tensor",
    None,
    kernel=_gumbel,
    fake=lambda seed, _stream, shape, dtype: seed.new_empty(shape, dtype=dtype),
    batch=_batch_gumbel,
)
filter_mask = Operator(
    f"filter_mask(Tensor z, {_BESIDE}) -> Tensor",
    None,
    kernel=_keep,
    fake=lambda z, *_: z.new_empty(z.shape, dtype=torch.bool),
    batch=_batch_keep,
)
categorical_draws = Operator(
    f"categorical(Tensor z, Tensor seed, Tensor? stream, {_BESIDE}, int draws, bool replace, bool counts)"
    " -> (Tensor, Tensor, Tensor)",
    None,
    kernel=_categorical,
    fake=_fake_categorical,
    batch=_batch_draws,
)
