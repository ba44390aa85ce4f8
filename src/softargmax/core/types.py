"""Type aliases for the arguments of public functions.

Inside the library each alias is `Any`: any array of any framework. The stubs for users list the accepted types.
tools/stubs.py writes them to `softargmax/__init__.pyi`.
"""

from __future__ import annotations

from types import GenericAlias
from typing import Any, TypeAlias, TypeVar

Array: TypeAlias = Any
"""An array of the kind that was passed."""
Logits: TypeAlias = Any
"""Scores: numbers along an axis of classes, which become probabilities. They decide the kind of the result."""
Vectors: TypeAlias = Any
"""Hidden vectors, a layer's weights, queries, keys, values, or their gradients. They decide the kind of the result."""
PerRow: TypeAlias = Any
"""A number for all rows, or one per row: a temperature, an order, a count, a threshold."""
Mask: TypeAlias = Any
"""Booleans that broadcast with the scores; True marks the support."""
Target: TypeAlias = Any
"""Classes as integers, or a probability for each class."""
Numbers: TypeAlias = Any
"""Numbers that belong to the scores: weights, or a bias with one number per class or head."""
Integers: TypeAlias = Any
"""Integers: indices, lengths, streams, and bounds or ids of segments."""
DType: TypeAlias = Any
"""A floating dtype of the array's library."""
Seed: TypeAlias = Any
"""An integer from 0 to 2^64 - 1, or a key of `jax.random`."""
Generator: TypeAlias = Any
"""A random generator of NumPy or torch."""
Like: TypeAlias = Any
"""An array that sets the kind and the device of the result."""

N = TypeVar("N", bound=type[Any])


def of_arrays(result: N) -> N:
    """Make a class of arrays accept the type of its arrays in annotations, for example `SoftmaxWithLse[Tensor]`."""
    setattr(result, "__class_getitem__", classmethod(GenericAlias))  # noqa: B010 the type has no such attribute
    return result
