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
    from softargmax.sample.options import Asked
    from softargmax.sample.seeds import Source

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


gumbel_noise = Operator(
    "gumbel(Tensor seed, Tensor? stream, SymInt[] shape, ScalarType dtype) -> Tensor",
    None,
    kernel=_gumbel,
    fake=lambda seed, _stream, shape, dtype: seed.new_empty(shape, dtype=dtype),
)
filter_mask = Operator(
    f"filter_mask(Tensor z, {_BESIDE}) -> Tensor",
    None,
    kernel=_keep,
    fake=lambda z, *_: z.new_empty(z.shape, dtype=torch.bool),
)
categorical_draws = Operator(
    f"categorical(Tensor z, Tensor seed, Tensor? stream, {_BESIDE}, int draws, bool replace, bool counts)"
    " -> (Tensor, Tensor, Tensor)",
    None,
    kernel=_categorical,
    fake=_fake_categorical,
)
