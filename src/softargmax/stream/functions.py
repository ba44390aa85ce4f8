"""The public functions of streams: check the arguments, open the source, run the passes."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core.arrays import kept_shape
from softargmax.stream.check_options import (
    MEMORY,
    bytes_of,
    check_progress,
    check_target,
    job_of,
    one_axis,
    open_source,
    refuse_others,
    scale_of,
)
from softargmax.stream.npy import new_npy
from softargmax.stream.passes import normalise, reduce
from softargmax.stream.piece_fold import of_pieces
from softargmax.stream.stores import ArrayStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import DTypeLike

    from softargmax.stream.stores import Array, Store

    Path = str | os.PathLike[str]
    Source = Path | Array | Sequence[Array]
    Axis = int | tuple[int, ...] | None
    Progress = Callable[[int, int], None]


def softmax(
    source: Source,
    target: Path | None = None,
    *,
    axis: Axis = -1,
    temperature: float = 1.0,
    base: float | None = None,
    dtype: DTypeLike | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Array:
    r"""Softmax of an array that may be larger than memory, written to a file or to an array in memory.

    .. math:: p_i = \exp(\beta z_i) / \sum_j \exp(\beta z_j), \qquad \beta = \ln(\mathrm{base})/T

    The source is read in windows, which are parts that fit in `memory`. The result has the same bits as
    `softargmax.softmax` of the whole array.

    Parameters
    ----------
    source : path of a ``.npy`` file, array, or sequence of arrays
        The scores z: float16, float32, float64, integers or booleans. The arrays of a sequence are concatenated along
        `axis`. Arrays may be memory-mapped, but a path is better, because the system decides how much of a mapped file
        is in memory. Rows longer than a window are read twice, so an iterator raises TypeError.
    target : path, optional
        The ``.npy`` file to write, in the storage order of the source. The file appears under its name only when it is
        complete. After an interrupt, an error or a full disk, an existing file of this name is unchanged. Without a
        target, the result is an array in memory.
    axis : int, tuple of int or None
        The axes along which the probabilities sum to 1; None for all axes.
    temperature, base : float
        As in `softargmax.softmax`, but each is one number for the whole array.
    dtype : dtype, optional
        The dtype of the result; defaults to the dtype of the scores, or float64 for integers and booleans.
    memory : int
        The number of bytes that the stream may use for its windows, at least 1 MiB.
    progress : callable, optional
        Called after each window as ``progress(done, total)``, with the bytes of the source read so far and in total.

    Returns
    -------
    ndarray
        The probabilities: in memory, or mapped read-only from the target.

    See Also
    --------
    softargmax.softmax : softmax of an array in memory, with a description of the edge rows.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, softargmax
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> np.save(folder / "scores.npy", np.array([[0.0, 1.0, 2.0], [2.0, 2.0, 2.0]]))
    >>> softargmax.stream.softmax(folder / "scores.npy", folder / "probabilities.npy").sum(axis=1)
    array([1., 1.])
    """
    options = {"temperature": temperature, "base": base, "dtype": dtype}
    return _normalised("softmax", source, target, axis, options, memory=memory, progress=progress)


def log_softmax(
    source: Source,
    target: Path | None = None,
    *,
    axis: Axis = -1,
    temperature: float = 1.0,
    base: float | None = None,
    dtype: DTypeLike | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Array:
    r"""Log-softmax of an array that may be larger than memory, written to a file or to an array in memory.

    .. math:: \log p_i = \beta z_i - \log \sum_j \exp(\beta z_j), \qquad \beta = \ln(\mathrm{base})/T

    The result has the same bits as `softargmax.log_softmax` of the whole array.

    Parameters
    ----------
    source, target, axis, temperature, base, dtype, memory, progress
        As in `softargmax.stream.softmax`.

    Returns
    -------
    ndarray
        The logarithms of the probabilities: in memory, or mapped read-only from the target.

    Examples
    --------
    >>> import numpy as np, softargmax
    >>> pieces = [np.array([40.0]), np.array([0.0])]  # one row in two pieces
    >>> softargmax.stream.log_softmax(pieces)[0] == -np.log1p(np.exp(-40.0))
    np.True_
    """
    options = {"temperature": temperature, "base": base, "dtype": dtype}
    return _normalised("log_softmax", source, target, axis, options, memory=memory, progress=progress)


def logsumexp(
    source: Source | Iterable[Array],
    *,
    axis: Axis = -1,
    temperature: float = 1.0,
    base: float | None = None,
    keepdims: bool = False,
    dtype: DTypeLike | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Array:
    r"""Log-sum-exp (the smooth maximum) of an array that may be larger than memory, or of pieces as they arrive.

    .. math:: \frac{1}{\beta} \log \sum_i \exp(\beta z_i), \qquad \beta = \ln(\mathrm{base})/T

    The result has the same bits as `softargmax.logsumexp` of the whole array, however the pieces are cut.

    Parameters
    ----------
    source : path of a ``.npy`` file, array, or iterable of arrays
        The scores z. The arrays of an iterable are concatenated along `axis`. Each array is read once, so the iterable
        may be a generator. All arrays must have the same dtype, and the same shape except for the length along `axis`.
    axis : int, tuple of int or None
        The axes to reduce; one int for an iterable.
    temperature, base, dtype, memory, progress
        As in `softargmax.stream.softmax`. The arrays of an iterable are not cut to fit `memory`. The total size of an
        iterable is unknown, so `progress` receives the bytes read so far as both arguments. For float16 scores, `dtype`
        defaults to float32.
    keepdims : bool
        If true, keep the reduced axes with length 1.

    Returns
    -------
    ndarray
        One value per row, in memory.

    Examples
    --------
    >>> import numpy as np, softargmax
    >>> pieces = (np.full(1000, float(k)) for k in range(10))
    >>> float(softargmax.stream.logsumexp(pieces))
    16.3663
    """
    options = {"temperature": temperature, "base": base, "dtype": dtype}
    if not isinstance(source, str | os.PathLike | np.ndarray):
        refuse_others(source)
        scale = scale_of(temperature, base)
        bytes_of(memory)
        check_progress(progress)
        return of_pieces(source, one_axis(axis), options, scale, keepdims=keepdims, progress=progress)
    with ExitStack() as stack:
        store = open_source(source, axis, stack)
        job = job_of(store, axis, options, memory, progress, lse=True)
        return _rows_as_array(reduce(store, job), store, job.axes, keepdims=keepdims)


def _normalised(
    name: str, source: Source, target: Path | None, axis: Axis, options: dict[str, Any], **rest: Any
) -> Array:
    """Open the source, create the target, run the passes, and return the result."""
    with ExitStack() as stack:
        store = open_source(source, axis, stack)
        job = job_of(store, axis, options, **rest)
        fortran = len(store.order) > 1 and store.order == tuple(range(len(store.order)))[::-1]
        if target is None:
            result = np.empty(store.shape, job.dtype, order="F" if fortran else "C")
            normalise(name, store, ArrayStore(result), job)
            return result
        check_target(source, target)
        if job.dtype.kind != "f":
            raise TypeError(f"dtype: expected float16, float32 or float64 for a .npy file, got {job.dtype}")
        with new_npy(target, store.shape, job.dtype, fortran=fortran) as new:
            normalise(name, store, new, job)
    mapped: Array = np.load(target, mmap_mode="r" if store.shape and 0 not in store.shape else None, allow_pickle=False)
    return mapped


def _rows_as_array(flat: Array, store: Store, axes: Sequence[int], *, keepdims: bool) -> Array:
    """Reshape the values of rows, in storage order, to the shape of the result. `keepdims` keeps the reduced axes."""
    kept = [dim for dim in store.order if dim not in axes]
    back = sorted(range(len(kept)), key=kept.__getitem__)
    values = flat.reshape([store.shape[dim] for dim in kept]).transpose(back)
    if keepdims:
        return values.reshape(kept_shape(store.shape, tuple(axes)))
    return values[()]
