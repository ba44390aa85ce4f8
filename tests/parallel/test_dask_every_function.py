"""Every function that takes Dask arrays: bits of arrays in memory for all chunks, in processes and on a cluster."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import dask.array as da
import numpy as np
import pytest
from tests.parallel.dask_cases import (
    CHUNKS,
    COLUMNS,
    LOSSES,
    RNG,
    ROWS,
    TARGET,
    TEMPERATURES,
    WEIGHT,
    lazily,
    same,
    scores,
)

import softargmax
from softargmax.parallel import parts
from softargmax.parallel.dask_tasks import NAMES

_H, _W = RNG.standard_normal((ROWS, 3, 8)).astype(np.float32), RNG.standard_normal((70, 8)).astype(np.float32)
_CLASSES = RNG.integers(0, 70, (ROWS, 3))
_Z = RNG.standard_normal((ROWS, COLUMNS)).astype(np.float32)
EVERY: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    **{name: (scores(), (), {}) for name in ("softmax", "log_softmax", "softmin", "hardmax", "logsumexp", "entropy")},
    "renyi_entropy": (scores(), (TEMPERATURES + 3.0,), {}),
    "kl_divergence": (scores(), (_Z,), {}),
    "soft_argmax": (scores(), (WEIGHT,), {}),
    "cross_entropy": (scores(), (TARGET,), LOSSES["all"]),
    "cross_entropy_terms": (scores(), (TARGET,), LOSSES["all"]),
    "cross_entropy_and_gradient": (scores(), (TARGET,), LOSSES["all"]),
    "selected_log_softmax": (scores(), (abs(TARGET),), {}),
    **{name: (_Z, (), {}) for name in ("sparsemax", "entmax", "logcumsumexp")},
    "topk_softmax": (_Z, (3,), {}),
    "filter_scores": (_Z, (), {"top_k": 50, "top_p": 0.9}),
    "gumbel_softmax": (_Z, (), {"seed": 3}),
    "sparsemax_loss": (_Z, (abs(TARGET),), {}),
    "entmax_loss": (_Z, (abs(TARGET),), {}),
    "categorical": (_Z, (), {"seed": 3, "num_samples": 2}),
    "categorical_with_logprob": (_Z, (), {"seed": 3, "top_p": 0.9}),
    "linear_cross_entropy": (_H, (_W, _CLASSES), {"label_smoothing": 0.1}),
    "linear_cross_entropy_terms": (_H, (_W, _CLASSES), {"label_smoothing": 0.1}),
    "linear_selected_log_softmax": (_H, (_W, _CLASSES), {}),
    "linear_cross_entropy_and_gradient": (_H, (_W, _CLASSES), {"reduction": "none"}),
}
"""Scores, other arguments and options of each function that takes Dask arrays."""
OF_H: dict[str, Any] = {
    "one": (6, 3, 8), "rows": (2, 3, 8), "blocks": (6, 1, 8), "thousands": (1, 1, 1), "both": (3, 2, 5),
    "two blocks": (4, 3, (7, 1)), "first score": ((1, 5), 3, 4), "ragged": ((1, 5), (2, 1), (3, 5)),
    "empty": ((0, 6), (3, 0), 8), "thirds": (2, 1, 3),
}  # fmt: skip
"""Chunks of h, with the names of those of z."""
every_function = pytest.mark.parametrize("name", EVERY)


@pytest.fixture(scope="module")
def processes() -> Iterator[Any]:
    """Two processes for Dask's scheduler of processes."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_every_function_has_a_case() -> None:
    assert set(EVERY) == set(NAMES)


def both(name: str, chunks: str, change: Callable[[Any], Any] = lambda x: x) -> list[tuple[Any, Any]]:
    """The results of a call on Dask arrays and in memory. Each array has chunks of its own."""
    z, more, options = EVERY[name]

    def cut(x: Any, chunks: Any) -> Any:
        return change(da.from_array(x, chunks=chunks)) if isinstance(x, np.ndarray) else x

    lazy_z = cut(z, (OF_H if z is _H else CHUNKS)[chunks])
    lazy_more = [cut(x, 4 if np.size(x) < 100 else 1000) for x in more]
    lazy_options = {key: cut(x, 1000) for key, x in options.items()}
    with np.errstate(all="ignore"):
        expected = getattr(softargmax, name)(z, *more, **options)
        found = lazily(getattr(softargmax, name), lazy_z, *lazy_more, **lazy_options)
    pairs = list(zip(found, expected, strict=True)) if isinstance(expected, tuple) else [(found, expected)]
    if name == "linear_cross_entropy_and_gradient":
        pairs = pairs[:2]  # dw is a sum over rows (test_gradients_of_last_layers), and there is no bias
    for one, other in pairs:
        assert (one.shape, one.dtype, one.ndim) == (np.shape(other), other.dtype, one._meta.ndim)
    return pairs


@every_function
@pytest.mark.parametrize("chunks", CHUNKS)
def test_every_function_with_all_chunks(name: str, chunks: str) -> None:
    for one, other in both(name, chunks):
        same(one.compute(scheduler="threads"), other)


@every_function
def test_every_function_in_processes_and_on_a_cluster(name: str, cluster: Any, processes: Any) -> None:
    for scheduler in ({"scheduler": cluster}, {"scheduler": "processes", "pool": processes}):
        for one, other in both(name, "both"):
            same(one.compute(**scheduler), other)


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("name", ["softmax", "cross_entropy_and_gradient", "linear_cross_entropy"])
def test_all_chunks_in_processes_and_on_a_cluster(name: str, chunks: str, cluster: Any, processes: Any) -> None:
    for scheduler in ({"scheduler": cluster}, {"scheduler": "processes", "pool": processes}):
        for one, other in both(name, chunks):
            same(one.compute(**scheduler), other)


def test_read_only_chunks_are_not_copied() -> None:
    x = np.arange(6.0).reshape(2, 3)
    x.flags.writeable = False
    assert parts.block([[x]]) is x


def _misaligned(x: Any) -> Any:
    memory = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    memory[...] = x
    memory.flags.writeable = False
    return memory


@every_function
def test_every_function_with_chunks_that_are_read_only_and_not_aligned(name: str) -> None:
    for chunks in ("both", "rows"):
        for one, other in both(name, chunks, lambda x: x.map_blocks(_misaligned)):
            same(one.compute(scheduler="threads"), other)


@every_function
def test_chunks_that_are_not_what_the_dask_array_says(name: str) -> None:
    """They would change results without an error."""
    z, more, options = EVERY[name]
    array = da.from_array(z, chunks=(2, *z.shape[1:]))
    for wrong in (lambda x: x.astype(np.float64), lambda x: x[..., :-1]):
        found = getattr(softargmax, name)(array.map_blocks(wrong, dtype=z.dtype, meta=array._meta), *more, **options)
        message = (
            r"^chunk \(\d(, 0)+\): (z|z_p|h): expected float32 of shape \(2, .*, as the Dask array says, got float"
        )
        with pytest.raises(ValueError, match=message):
            (found[0] if isinstance(found, tuple) else found).compute(scheduler="synchronous")
