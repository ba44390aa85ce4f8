"""The base class of samplers: draws of negatives, with or without replacement, and the expected counts of classes."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from softargmax.core.check import integer
from softargmax.core.seeds import seed_of
from softargmax.core.signature import public
from softargmax.core.types import Array, Integers, Like
from softargmax.output import philox_stream
from softargmax.output.counts import MOST, classes_of, to_library_of
from softargmax.output.inclusion_probability import inclusion_probabilities

if TYPE_CHECKING:
    from softargmax.output.philox_stream import Floats, Ints, Numbers


SAMPLERS: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The samplers by number. Compiled graphs refer to a sampler by its number."""
_numbers = itertools.count()


class Negatives(NamedTuple):
    """Result of a sampler's `draw`: the classes, and the log of each class's expected count.

    Attributes
    ----------
    index : ndarray of int64
        The classes, shape (n,), in the order in which they were drawn.
    log_expected : ndarray of float64
        Shape (n,): log(n q), or for distinct draws the log of the probability that the class is drawn. Sampled softmax
        subtracts these numbers from the scores.

    Examples
    --------
    >>> from softargmax.output import Uniform
    >>> negatives = Uniform(8).draw(2, seed=0)
    >>> negatives.log_expected  # log(2 / 8)
    array([-1.3863, -1.3863])
    """

    index: Integers
    log_expected: Array


class Sampler(ABC):
    r"""Base class of the samplers: a distribution Q over K classes from which negatives are drawn.

    .. math:: S = (c_1, \dots, c_n), \qquad c_i \sim Q, \qquad E\,\#\{i : c_i = k\} = n\, q_k

    Notes
    -----
    A draw depends only on Q, the seed, the stream and the draw's position. So 10 draws equal the first 10 of 100 draws.

    With ``unique=True``, repeated classes are rejected until n distinct classes are found. This is successive sampling:
    each draw is from Q, renormalised to the classes not yet drawn. If K + 1024 tries do not find n distinct classes,
    each class not yet drawn gets a random arrival time with an exponential distribution of rate q. The classes that
    arrive first are the remaining draws. They have the same distribution as with rejection, and rare classes do not
    take long to find. Also with ``unique=True``, 10 draws equal the first 10 of 100 draws.

    Without replacement, the expected count of a class is its inclusion probability: the probability that it is drawn.
    This probability is integrated numerically, once for each n, with an error below 1e-14
    (`softargmax.output.inclusion_probability`). TensorFlow uses :math:`1 - (1 - q)^t` instead, where t is the number of
    tries in the call. The largest relative error of this formula over all classes was measured in 30 batches with
    `LogUniform`, K = 100,003 and n = 1024. It was 1.6% in the median batch and 6% in the worst batch.

    References
    ----------
    Yates & Grundy (1953), Selection without replacement from within strata with probability proportional to size, J.
    Royal Statistical Society B 15 (successive sampling). Rosén (1997), On sampling with probability proportional to
    size, J. Statistical Planning and Inference 62.

    Examples
    --------
    >>> from softargmax.output import LogUniform
    >>> sampler = LogUniform(1000)
    >>> sampler.draw(5, seed=0, stream=3).index.shape
    (5,)
    >>> sampler.expected([1, 999], 100)
    array([5.8688, 0.0145])
    >>> sampler.expected([1, 999], 100, unique=True)
    array([0.9999 , 0.02400])
    """

    @public
    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._inclusion: dict[int, Floats] = {}
        self._q: Floats | None = None
        self._register()

    def _register(self) -> None:
        """Give the sampler a number that is unique in this process. Compiled graphs find the sampler by this number."""
        self.number = next(_numbers)
        SAMPLERS[self.number] = self

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._register()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(classes={self._classes})"

    @abstractmethod
    def _distribution(self) -> Floats:
        """Return Q, shape (K,), which sums to 1."""

    @abstractmethod
    def _choose(self, numbers: Numbers) -> Ints:
        """Return the class that is drawn at each position, from the random numbers of the position."""

    @property
    def classes(self) -> int:
        """K, the number of classes."""
        return self._classes

    @property
    def probabilities(self) -> Floats:
        """Q, shape (K,), float64, with the sum 1. The array is read-only."""
        if self._q is None:
            self._q = self._distribution()
            self._q.setflags(write=False)
        return self._q

    def log_probabilities(self, index: Integers) -> Array:
        """Return the log-probabilities of classes.

        Parameters
        ----------
        index : array_like of int
            Classes, any shape.

        Returns
        -------
        array of float64
            log q, with the shape, library and device of index. It is -inf for a class that is never drawn.

        Raises
        ------
        IndexError
            If a class is outside 0 to K - 1.
        TypeError
            If index is not an array of integers.
        """
        with np.errstate(divide="ignore"):
            found: Floats = np.log(self.probabilities[classes_of(index, "index", self._classes)])
        return to_library_of(found, index, "index")

    def expected(self, index: Integers, n: int, *, unique: bool = False) -> Array:
        """Return the expected counts of classes among n draws.

        Parameters
        ----------
        index : array_like of int
            Classes, any shape.
        n : int
            The number of draws, 0 or above.
        unique : bool
            If True, the draws are distinct (without replacement).

        Returns
        -------
        array of float64
            n q, or with `unique` the probability that the class is among n distinct draws. The array has the shape,
            library and device of index.

        Raises
        ------
        IndexError
            If a class is outside 0 to K - 1.
        ValueError
            If n is negative or, with `unique`, larger than the number of classes with q > 0.
        TypeError
            If an argument has the wrong type.
        """
        found = classes_of(index, "index", self._classes)
        return to_library_of(self._expected(found, self._number(n, unique=unique), unique=unique), index, "index")

    def draw(self, n: int, *, seed: int, stream: int = 0, unique: bool = False, like: Like = None) -> Negatives:
        """Draw n classes.

        Parameters
        ----------
        n : int
            The number of draws, 0 or above.
        seed : int
            Seed of the random numbers, from 0 to 2^64 - 1.
        stream : int
            Any 64-bit integer, for example the number of the step. It selects one of the seed's streams of random
            numbers.
        unique : bool
            If True, the draws are distinct (see the Notes of `Sampler`).
        like : array, optional
            Array that determines the library and device of the results; NumPy arrays by default.

        Returns
        -------
        Negatives
            index (n,) int64 and log_expected (n,) float64.

        Raises
        ------
        ValueError
            If n is negative or, with `unique`, larger than the number of classes with q > 0, or if seed is out of
            range.
        TypeError
            If an argument has the wrong type.
        """
        n = self._number(n, unique=unique)
        if seed is None:
            raise TypeError("seed: expected an integer from 0 to 2^64 - 1, got None")
        key, stream = seed_of(np.empty(0), seed, None), integer(stream, "stream")
        index = self._distinct(n, key, stream) if unique else self.chosen(key, stream, 0, n)
        found = Negatives(index, np.log(self._expected(index, n, unique=unique)))
        return found if like is None else Negatives(*(to_library_of(one, like, "like") for one in found))

    def chosen(self, seed: int, stream: int, first: int, count: int) -> Ints:
        """Return the draws at `count` positions of a stream, from `first` on. The arguments are not checked."""
        return self._choose(philox_stream.numbers(seed, stream, first, count))

    def _number(self, n: Any, *, unique: bool) -> int:
        number = integer(n, "n")
        if not 0 <= number <= MOST:
            raise ValueError(f"n: expected an integer from 0 to 2^31 - 1, got {number}")
        if unique and number > (support := int(np.count_nonzero(self.probabilities))):
            raise ValueError(
                f"n: expected at most {support}, the number of classes with a probability above 0, got {number}"
            )
        return number

    def _expected(self, index: Ints, n: int, *, unique: bool) -> Floats:
        if not unique:
            return self.probabilities[index] * n
        found = self._inclusion.get(n)
        if found is None:
            found = self._inclusion[n] = self._included(n)
        return found[index]

    def _included(self, n: int) -> Floats:
        return inclusion_probabilities(self.probabilities, n)

    def _changed(self) -> None:
        """Clear the caches after a change of Q."""
        self._q, self._inclusion = None, {}

    def _distinct(self, n: int, seed: int, stream: int) -> Ints:
        seen = np.zeros(self._classes, dtype=bool)
        parts: list[Ints] = []
        found, tried, most = 0, 0, self._classes + 1024
        while found < n and tried < most:
            count = min(max(2 * (n - found), tried), most - tried)
            fresh = self.chosen(seed, stream, tried, count)
            fresh = fresh[~seen[fresh]]
            fresh = fresh[np.sort(np.unique(fresh, return_index=True)[1])]
            seen[fresh] = True
            parts.append(fresh)
            found, tried = found + fresh.size, tried + count
        if found < n:
            numbers = philox_stream.numbers(seed, stream, 0, self._classes, philox_stream.ARRIVALS)
            left = np.flatnonzero(~seen & (self.probabilities > 0.0))
            times = np.log(philox_stream.exponential(numbers.high[left], numbers.low[left])) - np.log(
                self.probabilities[left]
            )
            parts.append(left[np.argsort(times, kind="stable")])
        return np.concatenate([*parts, np.empty(0, np.int64)])[:n]
