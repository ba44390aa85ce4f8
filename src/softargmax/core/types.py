"""What an argument of a public function is, by name.

Inside the library each is any array that a framework may bring, to the type checker `Any`. The kinds that a user may
give are spelled out where types are shown to users: in `softargmax/__init__.pyi`, which tools/stubs.py writes.
"""

from __future__ import annotations

from types import GenericAlias
from typing import Any, TypeAlias, TypeVar

Array: TypeAlias = Any
"""An array of the kind that came in."""
Logits: TypeAlias = Any
"""Scores: numbers along an axis of classes, which become probabilities. They decide the kind of the result."""
Vectors: TypeAlias = Any
"""Hidden vectors, weights of a layer, queries, keys, values, gradients of them. They decide the kind of the result."""
PerRow: TypeAlias = Any
"""A number for all rows, or one per row: a temperature, an order, a count, a threshold."""
Mask: TypeAlias = Any
"""Booleans, True for what is in the support; broadcast with the scores."""
Target: TypeAlias = Any
"""Classes, as integers, or a probability of each class."""
Numbers: TypeAlias = Any
"""Numbers beside the scores: weights, a bias, one per class or head."""
Integers: TypeAlias = Any
"""Integers: places, lengths, bounds and ids of segments, streams."""
DType: TypeAlias = Any
"""A floating dtype, as the array's library writes it."""
Generator: TypeAlias = Any
"""What random numbers are drawn from: NumPy's or torch's."""
Like: TypeAlias = Any
"""An array whose kind, device and dtype are taken."""

N = TypeVar("N", bound=type[tuple[Any, ...]])


def of_arrays(result: N) -> N:
    """Let a named tuple be written with its kind of array, `SoftmaxWithLse[Tensor]`: annotations may be evaluated."""
    setattr(result, "__class_getitem__", classmethod(GenericAlias))  # noqa: B010 the type has no such attribute
    return result
