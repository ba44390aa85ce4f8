"""Checks of seed, stream and generator: the source of a call's random numbers, with one stream per row."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np

from softargmax.core import check
from softargmax.core.arrays import (
    INTEGERS,
    device_of,
    dtype_name,
    is_torch,
    is_traced,
    jax_of,
    kind_of,
    like,
    namespace,
    shown,
)
from softargmax.core.philox import WORD

SEEDS = 1 << 64


class Source(NamedTuple):
    """A 64-bit seed, and a stream, one integer per row. A stream of None stands for the indices of the rows.

    The seed is an int, a 0-d tensor, or two words of 32 bits in a JAX array, the lower bits first.
    """

    seed: Any
    stream: Any


def source(z: Any, rows: tuple[int, ...], seed: Any, stream: Any, generator: Any) -> Source:
    """Check the arguments of a call on z that select its random numbers."""
    return Source(seed_of(z, seed, generator), None if stream is None else stream_of(z, rows, stream))


def seed_of(z: Any, seed: Any, generator: Any) -> Any:
    """Check `seed`, or draw a seed from `generator` or from the default generator of z's library."""
    if seed is not None and generator is not None:
        raise ValueError("seed, generator: expected one of them, got both")
    if seed is None:
        return _drawn(z, generator)
    if is_key(seed):
        return _of_key(z, seed)
    if not check.is_integer(seed):
        hint = "; pass a generator as generator=" if callable(getattr(seed, "random", None)) or _of_torch(seed) else ""
        hint = "; a key of jax.random may be traced" if is_traced(seed) else hint
        raise TypeError(f"seed: expected an integer from 0 to 2^64 - 1, got {shown(seed)}{hint}")
    number = operator.index(seed)
    if not 0 <= number < SEEDS:
        was = "a negative number" if number < 0 else "one above 2^64 - 1"
        raise ValueError(f"seed: expected an integer from 0 to 2^64 - 1, got {was}")
    return _as_seed(z, number)


def is_key(seed: Any) -> bool:
    """True for a key, or an array of keys, of `jax.random`. Keys of the old form are two or four uint32 numbers."""
    if jax_of(seed) is None:
        return False
    return _is_typed(seed) or (seed.dtype == np.uint32 and seed.shape[-1:] in ((2,), (4,)))


def _is_typed(key: Any) -> bool:
    jax = jax_of(key)
    typed: bool = jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    return typed


def _of_key(z: Any, key: Any) -> Any:
    """Return 64 bits that are drawn from the key: two words for a JAX array z, otherwise an integer."""
    jax = jax_of(key)
    if key.ndim != (0 if _is_typed(key) else 1):
        raise ValueError(f"seed: expected one key, got keys of shape {key.shape}; use jax.vmap")
    if kind_of(z) == "jax":
        return jax.random.bits(key, (2,), "uint32")
    if is_traced(key):
        raise TypeError(f"seed: expected a key whose value is known, to draw from {type(z).__name__}, got a traced key")
    with jax.ensure_compile_time_eval():
        words = jax.random.bits(key, (2,), "uint32")
        return _as_seed(z, int(words[0]) | int(words[1]) << 32)


def flipped(seed: Any, bits: int) -> Any:
    """Return the seed with some bits flipped."""
    if jax_of(seed) is None:
        return seed ^ bits
    return seed ^ np.asarray([bits & WORD, bits >> 32], np.uint32)


def _as_seed(z: Any, seed: int) -> Any:
    if not is_torch(z):
        return seed
    import torch

    return torch.full((), seed - SEEDS if seed >= SEEDS >> 1 else seed, dtype=torch.int64, device=z.device)


def _drawn(z: Any, generator: Any) -> Any:
    """Draw 64 random bits. For a tensor z they stay on its device, and a compiled graph draws new bits at each call."""
    if isinstance(generator, np.random.Generator):
        return _as_seed(z, int(generator.integers(SEEDS, dtype=np.uint64)))
    if isinstance(generator, np.random.RandomState):
        return _as_seed(z, int(generator.randint(SEEDS, dtype=np.uint64)))
    if is_torch(z) or _of_torch(generator):
        import torch

        if generator is not None and not isinstance(generator, torch.Generator):
            raise _generator_error(generator)
        device = z.device if generator is None else generator.device
        drawn = torch.randint(-(SEEDS >> 1), (SEEDS >> 1) - 1, (), generator=generator, device=device)
        return drawn.to(z.device) if is_torch(z) else int(drawn) % SEEDS
    if generator is not None:
        raise _generator_error(generator)
    if kind_of(z) == "numpy":
        return int(np.random.randint(SEEDS, dtype=np.uint64))  # noqa: NPY002 users seed it by np.random.seed
    raise ValueError(
        f"seed: expected an integer, as the library of {type(z).__name__} has no default generator, got None"
    )


def _of_torch(generator: Any) -> bool:
    return type(generator).__module__.partition(".")[0] == "torch"


def _generator_error(generator: Any) -> TypeError:
    allowed = "a numpy.random.Generator, numpy.random.RandomState or torch.Generator"
    return TypeError(f"generator: expected {allowed}, got {type(generator).__name__}")


def stream_of(z: Any, rows: tuple[int, ...], stream: Any) -> Any:
    """The rows' streams as a flat array of 64-bit integers, or of narrower integers if z's library has no int64."""
    stream = like(stream, z, "stream")
    if dtype_name(stream.dtype) not in INTEGERS - {"bool"}:
        raise TypeError(f"stream: expected integers, one per row, got dtype {stream.dtype}")
    if tuple(stream.shape) != rows:
        raise ValueError(f"stream: expected the rows' shape, {rows}, got {tuple(stream.shape)}")
    xp = namespace(stream)
    known = xp.__array_namespace_info__().dtypes(device=device_of(stream), kind="integral")
    return xp.reshape(xp.astype(stream, known.get("int64", stream.dtype), copy=False), (-1,))
