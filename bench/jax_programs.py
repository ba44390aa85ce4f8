"""Time compiled JAX programs against jax.nn and optax, for the shapes and targets that we promise.

    python -m bench.jax_programs              all cases, about 2 minutes; writes bench/results/jax_programs.json
    python -m bench.jax_programs softmax      only the cases whose names contain these words; writes nothing

Both sides are compiled by `jax.jit` and run on the CPU. "compile" is the time to trace and compile a program for a new
shape. The memory of the last layer is the peak resident memory of a process of its own, minus the memory before the
call and minus the gradients. "temporaries" is the memory that XLA plans for a program beside arguments and results. The
exit code is 1 if a target is missed.
"""

from __future__ import annotations

import itertools
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from bench.peak import measured
from bench.promises import Promise, main
from jax import numpy as jnp
from optax.projections import projection_simplex

import softargmax as sa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PEER, OPTAX = "jax.nn", "optax"
ROWS, CLASSES = 512, 32768
LAYER = 1024, 512, CLASSES
SHARE = 8
"""The last layer takes at most this part of the peer's memory."""
FEW = 8 * ROWS
"""The bytes of one number per row, the most that a program may need for temporaries."""
MEASURE = """
import json, sys
import jax, optax
from jax import numpy as jnp
import softargmax as sa
from bench.peak import peak_of
side, (n, d, k) = sys.argv[1], map(int, sys.argv[2:])
h, w, y = jnp.ones((n, d)) / d, jnp.ones((k, d)), jnp.zeros(n, int)
losses = {
    "softargmax": lambda h, w: sa.linear_cross_entropy(h, w, y),
    "optax": lambda h, w: optax.softmax_cross_entropy_with_integer_labels(h @ w.T, y).mean(),
}
compiled = jax.jit(jax.value_and_grad(losses[side], (0, 1))).lower(h, w).compile()
before, peak, found = peak_of(lambda: jax.block_until_ready(compiled(h, w)))
gradients = sum(x.nbytes for x in found[1])
print(json.dumps({"peak": peak, "beyond": peak - before - gradients, "scores": 4 * n * k}))
"""
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


def by_definition(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that traces f with definitions in place of kernels."""

    def traced(z: Any) -> Any:
        with sa.using("reference"):
            return f(z)

    return traced


def case(name: str, ours: Any, peer: str, other: Any, target: float, *arrays: Any, **more: Any) -> Promise:
    """Return a case whose sides take the same arrays. Its bytes are those of the arrays and of the results."""
    sides = {"softargmax": ready(ours, *arrays), peer: ready(other, *arrays)}
    moved = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((arrays, jax.eval_shape(ours, *arrays))))
    return Promise(name, sides, {peer: target}, moved, **more)


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
    rows, width, _ = LAYER
    work = 3 * rows * width * CLASSES / 16
    h, w, of = normal(rows, width), normal(CLASSES, width, scale=0.04), classes(rows, CLASSES)
    linear = jax.value_and_grad(lambda h, w: sa.linear_cross_entropy(h, w, of), (0, 1))
    plain = jax.value_and_grad(lambda h, w: of_classes(h @ w.T, of).mean(), (0, 1))
    layer = "x".join(map(str, LAYER))
    name = f"jit linear cross-entropy, and backward {layer}"
    yield case(name, linear, OPTAX, plain, 1.2, h, w, rounds=30, multiply_adds=work)
    q = normal(1, 2048, 8, 64)
    heads = "1x8x2048x64"
    attend = sa.jax.dot_product_attention
    yield case(f"jit attention {heads}", attend, PEER, jax.nn.dot_product_attention, 1.2, q, q, q, rounds=100)
    causal = [lambda *x, f=f: f(*x, is_causal=True) for f in (attend, jax.nn.dot_product_attention)]
    yield case(f"jit attention, causal {heads}", causal[0], PEER, causal[1], 1.2, q, q, q, rounds=100)
    yield case("jit sparsemax 512x1000", sa.sparsemax, OPTAX, jax.vmap(projection_simplex), 3.0, normal(512, 1000))
    few = normal(8)
    yield case("jit softmax 8", sa.softmax, PEER, jax.nn.softmax, 1 / 1.5, few)
    yield from compile_times(y)


def compile_times(y: Any) -> Iterator[Promise]:
    """Yield the cases of compile times. For definitions, nothing is promised."""

    def ours(z: Any) -> Any:
        return sa.cross_entropy(z, y % z.shape[1])

    def theirs(z: Any) -> Any:
        return of_classes(z, y % z.shape[1]).mean()

    functions = {
        "softmax": (sa.softmax, PEER, jax.nn.softmax),
        "logsumexp": (sa.logsumexp, PEER, lambda z: jax.nn.logsumexp(z, axis=-1)),
        "cross_entropy": (ours, OPTAX, theirs),
        "the gradient of cross_entropy": (jax.grad(ours), OPTAX, jax.grad(theirs)),
    }
    for name in ("softmax", "the gradient of cross_entropy"):
        f, peer, other = functions[name]
        sides = {"softargmax": compiling(f), peer: compiling(other)}
        yield Promise(f"compile {name}", sides, {peer: 1 / 1.5}, rounds=50)
    for name, (f, peer, other) in functions.items():
        sides = {"softargmax": compiling(by_definition(f)), peer: compiling(other)}
        yield Promise(f"compile {name} by its definition", sides, {}, rounds=50)


def memory() -> tuple[dict[str, Any], bool]:
    """Measure the memory of the last layer and the temporaries of programs. Return them, and True if they are small."""
    found = []
    for side in ("softargmax", OPTAX):
        record = measured(MEASURE, side, *LAYER)
        found.append({"name": f"jit linear cross-entropy, {side}", **record, "what": "beyond"})
        print(found[-1])
    ours, theirs = (one["beyond"] for one in found)
    planned = dict(temporaries())
    print("temporaries of softargmax, bytes", planned)
    return {"memory": found, "temporaries": planned}, SHARE * ours <= theirs and max(planned.values()) <= FEW


def temporaries() -> Iterator[tuple[str, int]]:
    """Yield the bytes that XLA plans for temporaries of our programs."""
    z, y = jax.ShapeDtypeStruct((ROWS, CLASSES), "float32"), classes(ROWS, CLASSES)
    q = jax.ShapeDtypeStruct((1, 8, 2048, 64), "float32")
    programs: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "softmax": (sa.softmax, (z,)),
        "logsumexp": (sa.logsumexp, (z,)),
        "cross_entropy": (lambda z: sa.cross_entropy(z, y), (z,)),
        "sparsemax": (sa.sparsemax, (z,)),
        "attention": (sa.attention, (q, q, q)),
    }
    for name, (f, shapes) in programs.items():
        yield name, jax.jit(f).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


if __name__ == "__main__":
    sys.exit(main(__doc__, promises(), "jax_programs", memory))
