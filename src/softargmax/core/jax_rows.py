"""Parts of the rows of JAX arrays, computed one after the other by a loop of the compiled program.

The rows are split into equal groups, which may be on different devices. Each part has some rows of every group:

    groups    a a a a a a | b b b b b b        parts    a a b b | a a b b | a a b b

Each device therefore computes rows of its own in every part, and XLA moves none. In reverse mode the loop computes each
part again, so its temporaries are not stored.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from jax import numpy as jnp

if TYPE_CHECKING:
    from collections.abc import Callable


class Part(NamedTuple):
    """`size` rows of each group, from the row `start` of the group on. The previous part may have some of them."""

    groups: int
    start: Any
    size: int
    repeated: Any
    """The number of rows in each group that the previous part has, too."""

    def rows_of(self, x: Any) -> Any:
        """Return these rows of an array."""
        of_groups = x.reshape(self.groups, -1, *x.shape[1:])
        return jax.lax.dynamic_slice_in_dim(of_groups, self.start, self.size, 1).reshape(-1, *x.shape[1:])

    def once(self, x: Any) -> Any:
        """Replace repeated rows by 0, in a matrix of the rows of this part."""
        new = jnp.tile(jnp.arange(self.size) >= self.repeated, self.groups)
        return jnp.where(new[:, None], x, 0)


def over_parts(compute: Callable[[Part], tuple[Any, Any]], rows: int, step: int) -> tuple[Any, Any]:
    """Compute parts of about `step` rows. `compute` returns results per row, which are joined, and terms of sums.

    A result of shape (0,) is returned as it is.
    """
    groups = math.gcd(rows, jax.device_count())
    own = rows // groups
    size = max(1, step // groups)
    count = -(-own // size)

    def of_part(number: Any) -> Any:
        start = jnp.minimum(number * size, own - size)
        return compute(Part(groups, start, size, number * size - start))

    once = jax.checkpoint(of_part, prevent_cse=False)

    def add(sums: Any, number: Any) -> Any:
        found, terms = once(number)
        return jax.tree.map(jnp.add, sums, terms), found

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(of_part, 0)[1])
    sums, found = jax.lax.scan(add, zeros, jnp.arange(count))
    return jax.tree.map(lambda x: _joined(x, groups, own) if x.shape[1] else x[0], found), sums


def _joined(x: Any, groups: int, own: int) -> Any:
    """Join results of shape (parts, rows of a part, ...). Repeated rows are taken once."""
    count, size, rest = x.shape[0], x.shape[1] // groups, x.shape[2:]
    x = jnp.moveaxis(x.reshape(count, groups, size, *rest), 0, 1).reshape(groups, count * size, *rest)
    last, repeated = (count - 1) * size, count * size - own
    if repeated:
        x = jnp.concatenate([x[:, :last], x[:, last + repeated :]], 1)
    return x.reshape(groups * own, *rest)


def step_of(arrays: Any, scores: tuple[int, int], of_cpu: tuple[int, int], of_device: int) -> int:
    """Return the approximate number of rows of a part, or 0 if all rows are computed at once.

    `arrays` are all arguments, and `scores` is the shape of the scores. On a CPU, scores above `of_cpu[0]` are split
    into about `of_cpu[1]` parts. On other devices a part has about `of_device` scores. Rows are split only while a
    program is traced, and if JAX does not type the devices of their parts.
    """
    rows, classes = scores
    leaves = [x for x in jax.tree.leaves(arrays) if hasattr(x, "shape")]
    on_cpu = jax.default_backend() == "cpu"
    if rows * classes <= (of_cpu[0] if on_cpu else of_device) or any(map(has_typed_axes, leaves)):
        return 0
    if not any(isinstance(x, jax.core.Tracer) for x in leaves):
        return 0
    return -(-rows // of_cpu[1]) if on_cpu else max(1, of_device // classes)


def has_typed_axes(x: Any) -> bool:
    """True if the array's type says over which devices it is cut (explicit sharding, shard_map with check_vma).

    JAX derives the types of results from those of arguments, for jax.numpy, but neither for our primitives nor for the
    first values of a loop.
    """
    aval = jax.typeof(x) if hasattr(jax, "typeof") else None
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    varying = getattr(getattr(aval, "manual_axis_type", aval), "varying", None) or getattr(aval, "vma", None)
    return bool(varying) or any(kind.name == "Explicit" for kind in getattr(mesh, "axis_types", None) or ())
