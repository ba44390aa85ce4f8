"""Time compiled JAX programs against jax.nn and optax, for the shapes and targets that we promise.

    python -m bench.jax_programs              all cases, about 2 minutes; writes bench/results/jax_programs.json
    python -m bench.jax_programs softmax      only the cases whose names contain these words; writes nothing

Both sides are compiled by `jax.jit` and run on the CPU. "compile" is the time to trace and compile a program for a new
shape. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import itertools
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from bench.promises import Promise, main
from jax import numpy as jnp
from optax.projections import projection_simplex

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PEER, OPTAX = "jax.nn", "optax"
ROWS, CLASSES = 512, 32768
of_classes = optax.softmax_cross_entropy_with_integer_labels


def normal(*shape: int, scale: float = 1.0) -> Any:
    """Return normal numbers in float32."""
    return jnp.asarray(scale * np.random.default_rng(len(shape)).standard_normal(shape), "float32")


def classes(rows: int, count: int) -> Any:
    """Return random classes."""
    return jnp.asarray(np.random.default_rng(1).integers(0, count, rows))


def ready(f: Callable[..., Any], *arrays: Any) -> Callable[[], Any]:
    """Return a call of the compiled function that waits for its results."""
    compiled = jax.jit(f)
    return lambda: jax.block_until_ready(compiled(*arrays))


def compiling(f: Callable[..., Any]) -> Callable[[], Any]:
    """Return a function that compiles f for a shape that it has not seen."""
    columns = itertools.count(2)
    return lambda: jax.jit(partial(f)).lower(jnp.zeros((ROWS, next(columns)))).compile()


def case(name: str, ours: Any, peer: str, other: Any, target: float, *arrays: Any, **more: Any) -> Promise:
    """Return a case whose sides take the same arrays."""
    sides = {"softargmax": ready(ours, *arrays), peer: ready(other, *arrays)}
    return Promise(name, sides, {peer: target}, sum(x.nbytes for x in arrays), **more)


def promises() -> Iterator[Promise]:
    """Yield every case."""
    z, y = normal(ROWS, CLASSES), classes(ROWS, CLASSES)
    shape = f"{ROWS}x{CLASSES}"
    yield case(f"jit softmax {shape}", sa.softmax, PEER, jax.nn.softmax, 2.0, z)
    yield case(f"jit logsumexp {shape}", sa.logsumexp, PEER, lambda z: jax.nn.logsumexp(z, axis=-1), 2.0, z)

    def ours(z: Any) -> Any:
        return sa.cross_entropy(z, y)

    def theirs(z: Any) -> Any:
        return of_classes(z, y).mean()

    yield case(f"jit cross_entropy {shape}", ours, OPTAX, theirs, 2.0, z)
    both = jax.value_and_grad(ours), jax.value_and_grad(theirs)
    yield case(f"jit cross_entropy, and backward {shape}", both[0], OPTAX, both[1], 2.0, z)
    h, w, of = normal(1024, 512), normal(CLASSES, 512, scale=0.04), classes(1024, CLASSES)
    linear = jax.value_and_grad(lambda h, w: sa.linear_cross_entropy(h, w, of), (0, 1))
    plain = jax.value_and_grad(lambda h, w: of_classes(h @ w.T, of).mean(), (0, 1))
    yield case(f"jit linear cross-entropy, and backward 1024x512x{CLASSES}", linear, OPTAX, plain, 1.2, h, w, rounds=30)
    q = normal(1, 2048, 8, 64)
    heads = "1x8x2048x64"
    attend = sa.jax.dot_product_attention
    yield case(f"jit attention {heads}", attend, PEER, jax.nn.dot_product_attention, 1.2, q, q, q, rounds=100)
    causal = [lambda *x, f=f: f(*x, is_causal=True) for f in (attend, jax.nn.dot_product_attention)]
    yield case(f"jit attention, causal {heads}", causal[0], PEER, causal[1], 1.2, q, q, q, rounds=100)
    yield case("jit sparsemax 512x1000", sa.sparsemax, OPTAX, jax.vmap(projection_simplex), 3.0, normal(512, 1000))
    few = normal(8)
    yield case("jit softmax 8", sa.softmax, PEER, jax.nn.softmax, 1 / 1.5, few)
    compiled = {"softargmax": compiling(sa.softmax), PEER: compiling(jax.nn.softmax)}
    yield Promise("compile softmax", compiled, {PEER: 1 / 1.5}, rounds=50)
    compiled = {"softargmax": compiling(jax.grad(lambda z: sa.cross_entropy(z, y % z.shape[1]))),
                OPTAX: compiling(jax.grad(lambda z: of_classes(z, y % z.shape[1]).mean()))}  # fmt: skip
    yield Promise("compile the gradient of cross_entropy", compiled, {OPTAX: 1 / 1.5}, rounds=50)


if __name__ == "__main__":
    sys.exit(main(__doc__, promises(), "jax_programs"))
