"""The distributions that negatives are drawn from: uniform, Zipf's, counts to a power, what was seen so far."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from softargmax.core import _native
from softargmax.core.dispatch import requested_name
from softargmax.core.seeds import SEEDS
from softargmax.core.signature import public
from softargmax.output import philox_stream
from softargmax.output.adaptive_unigram import Learned
from softargmax.output.alias import alias_table
from softargmax.output.counts import counts_of, finite, number_of_classes, powers
from softargmax.output.sampler_base import Negatives, Sampler

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from softargmax.output.philox_stream import Floats, Ints, Numbers

__all__ = ["Learned", "LogUniform", "Negatives", "Sampler", "Uniform", "Unigram"]


class Uniform(Sampler):
    r"""Every class alike.

    .. math:: q_k = 1 / K

    Parameters
    ----------
    classes : int
        K, 1 or above.

    Raises
    ------
    ValueError
        If classes is below 1.
    TypeError
        If classes is no integer.

    Notes
    -----
    `draw`, `expected`, `probabilities` and `log_probabilities` are those of `Sampler`. A draw takes 64 random bits, so
    that q is right to K 2^-64. The probability of a class to be among n distinct draws is n / K.

    References
    ----------
    Bengio & Senécal (2008), Adaptive importance sampling to accelerate training of a neural probabilistic language
    model, IEEE Transactions on Neural Networks 19 (which distribution to draw from).

    Examples
    --------
    >>> from softargmax.output import Uniform
    >>> Uniform(4).draw(4, seed=0, unique=True).log_expected  # each of the four is sure to come
    array([0., 0., 0., 0.])
    """

    @public
    def __init__(self, classes: int) -> None:
        super().__init__(number_of_classes(classes))

    def _distribution(self) -> Floats:
        return np.full(self._classes, 1.0 / self._classes)

    def _choose(self, numbers: Numbers) -> Ints:
        return philox_stream.below(self._classes, numbers.high, numbers.low)

    def _included(self, n: int) -> Floats:
        return np.full(self._classes, n / self._classes)


class LogUniform(Sampler):
    r"""Zipf's law, for classes that are sorted by falling frequency: log k is uniform.

    .. math:: q_k = \frac{\log(k + 2) - \log(k + 1)}{\log(K + 1)}, \qquad
        k = \lfloor (K + 1)^u \rfloor - 1, \quad u \sim U[0, 1)

    Parameters
    ----------
    classes : int
        K, 1 or above. Class 0 is the most frequent.

    Raises
    ------
    ValueError
        If classes is below 1.
    TypeError
        If classes is no integer.

    Notes
    -----
    `draw`, `expected`, `probabilities` and `log_probabilities` are those of `Sampler`. u has 53 random bits. A draw
    costs one exponential function, whatever K is.

    References
    ----------
    Jean, Cho, Memisevic & Bengio (2015), On using very large target vocabulary for neural machine translation.
    arXiv:1412.2007. It is the distribution of TensorFlow's `log_uniform_candidate_sampler`.

    Examples
    --------
    >>> from softargmax.output import LogUniform
    >>> LogUniform(3).probabilities  # log 2, log 3/2, log 4/3 over log 4
    array([0.5   , 0.2925, 0.2075])
    """

    @public
    def __init__(self, classes: int) -> None:
        super().__init__(number_of_classes(classes))

    def _distribution(self) -> Floats:
        return np.log1p(1.0 / np.arange(1.0, self._classes + 1.0)) / math.log1p(self._classes)

    def _choose(self, numbers: Numbers) -> Ints:
        found = np.expm1(philox_stream.unit(numbers.high, numbers.low) * math.log1p(self._classes)).astype(np.int64)
        return np.minimum(found, self._classes - 1)  # the exponential function may round up to K


class Unigram(Sampler):
    r"""Counts to a power.

    .. math:: q_k = c_k^a / \textstyle\sum_j c_j^a \quad (c_k > 0), \qquad q_k = 0 \quad (c_k = 0)

    Parameters
    ----------
    counts : array_like
        c, shape (K,): how often each class was seen, integers or not, at least 0. A class of count 0 is never drawn.
    power : float
        a: 1 draws as often as counted, 0 all that were counted alike; 3/4 is word2vec's.

    Raises
    ------
    ValueError
        If a count is negative, NaN or infinite, if all are 0, if counts is not one-dimensional or empty; if power is
        not finite.
    TypeError
        If an argument is of a wrong kind.

    Notes
    -----
    `draw`, `expected`, `probabilities` and `log_probabilities` are those of `Sampler`. An alias table makes a draw one
    random bucket (64 bits) and one comparison (53 bits), whatever K is. It is made once, in 5 ms for 100,003
    classes.

    References
    ----------
    Walker (1977), An efficient method for generating discrete random variables with general distributions, ACM TOMS 3.
    Vose (1991), A linear algorithm for generating random numbers with a given distribution, IEEE TSE 17. Mikolov et al.
    (2013), Distributed representations of words and phrases and their compositionality, section 2.2 (the power 3/4).
    arXiv:1310.4546.

    Examples
    --------
    >>> from softargmax.output import Unigram
    >>> sampler = Unigram([16, 0, 1])
    >>> sampler.probabilities
    array([0.8889, 0.    , 0.1111])
    >>> sorted(sampler.draw(2, seed=0, unique=True).index.tolist())
    [0, 2]
    """

    @public
    def __init__(self, counts: ArrayLike, *, power: float = 0.75) -> None:
        found, a = counts_of(counts).astype(np.float64), finite(power, "power")
        if not found.any():
            raise ValueError("counts: all are 0; at least one has to be above 0")
        super().__init__(found.size)
        self._q = powers(found, a)
        self._q.setflags(write=False)
        self._table = alias_table(self._q)

    def _distribution(self) -> Floats:
        return self.probabilities

    def _choose(self, numbers: Numbers) -> Ints:
        bucket = philox_stream.below(self._classes, numbers.high, numbers.low)
        return self._table.pick(bucket, philox_stream.unit(numbers.other_high, numbers.other_low))

    def chosen(self, seed: int, stream: int, first: int, count: int) -> Ints:
        """The same draws, all at once where the compiled core serves."""
        if requested_name() == "reference":
            return super().chosen(seed, stream, first, count)
        found = np.empty(count, np.int64)
        place = {"seed": seed, "stream": stream % SEEDS, "purpose": philox_stream.CANDIDATES, "first": first}
        _native.alias_draws(**self._table._asdict(), index=found, **place)
        return found
