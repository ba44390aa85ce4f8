"""The native operations of softargmax.structure on NumPy memory that the caller places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softargmax.core import _native

Array = NDArray[Any]
Place = Callable[[Array], Array]
TAGS = (1, 3, 4, 8, 9, 17, 33)
SIZES = [(1, 1, 1), (3, 5, 7), (4, 8, 16), (9, 17, 33), (2, 70, 130)]


def products(dtype: str, rows: int, depth: int, cols: int, place: Place) -> None:
    """Call the log matrix product and its sums, with two items, on scores with zeros of the semiring."""
    rng = np.random.default_rng([rows, depth, cols])
    shapes = {"a": (2, rows, depth), "b": (2, depth, cols)}
    a, b = (
        place(np.where(rng.random(n) < 0.1, -np.inf, rng.standard_normal(n)).astype(dtype)) for n in shapes.values()
    )
    c, wide = (place(np.empty((2, rows, cols), kind)) for kind in (dtype, np.float64))
    beta = tuple(place(np.array(x)) for x in ([1.0, 0.3], [0.0, 1e-18]))
    _native.log_matmul(a=a, b=b, beta=beta, c=c, wide=wide)
    given = {"w": rng.standard_normal(c.shape), "x": rng.standard_normal(a.shape), "y": rng.standard_normal(b.shape)}
    weights = {name: place(array.astype(dtype)) for name, array in given.items()}
    to = {f"to_{name}": place(np.empty(x.shape, dtype)) for name, x in (("a", a), ("b", b), ("c", c))}
    _native.log_matmul_sums(a=a, b=b, wide=wide, beta=beta, **weights, **to)


def chains(dtype: str, tags: int, place: Place, *, steps: int, infinite: bool) -> None:
    """Call the operations of linear chains on four sequences of up to six positions, one of them empty."""
    rng = np.random.default_rng([tags, steps])
    e = rng.standard_normal((4, 6, tags))
    e[1, 2, -1] = np.inf if infinite else -np.inf
    chain = {
        "emissions": place(e.astype(dtype)),
        "transitions": place(rng.standard_normal((1 if steps == 1 else 4, steps, tags, tags)).astype(dtype)),
        "start": place(rng.standard_normal(tags)),
        "end": place(rng.standard_normal(tags)),
        "lengths": place(np.array([6, 4, 0, 1])),
    }
    log_z, alpha = place(np.empty(4)), place(np.empty((4, 6, tags)))
    _native.linear_chain(**chain, log_z=log_z, alpha=alpha)
    to = {f"to_{name}": place(np.empty_like(chain[name])) for name in ("emissions", "transitions")}
    _native.linear_chain_vjp(**chain, alpha=alpha, log_z=log_z, g=place(np.ones(4)), **to)
    for k in (1, 5):
        scores, best = place(np.empty((4, k))), place(np.empty((4, k, 6), np.int64))
        _native.linear_chain_best(**chain, num_paths=k, scores=scores, best=best)


def calls(dtype: str, place: Place) -> int:
    """Make all calls, and return their number."""
    for sizes in SIZES:
        products(dtype, *sizes, place)
    for tags in TAGS:
        for steps in (1, 5):
            for infinite in (False, True):
                chains(dtype, tags, place, steps=steps, infinite=infinite)
    return 2 * len(SIZES) + 4 * 4 * len(TAGS)
