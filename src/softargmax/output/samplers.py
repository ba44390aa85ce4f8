"""Distributions for drawing negatives: uniform, Zipf's law, powers of counts, and counts learned during training."""

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
    r"""The uniform distribution: every class has the same probability.

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
        If classes is not an integer.

    Notes
    -----
    `draw`, `expected`, `probabilities` and `log_probabilities` are inherited from `Sampler`. A draw uses 64 random
    bits, so the probability of a class has a relative error of at most K 2^-64. A class is among n distinct draws with
    probability n / K.

    References
    ----------
    Bengio & Senécal (2008), Adaptive importance sampling to accelerate training of a neural probabilistic language
    model, IEEE Transactions on Neural Networks 19 (compares distributions to draw from).

    Examples
    --------
    >>> from softargmax.output import Uniform
    >>> Uniform(4).draw(4, seed=0, unique=True).log_expected  # all four classes are drawn
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
    r"""Zipf's law, for classes sorted by decreasing frequency: log(k + 1) is nearly uniform.

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
        If classes is not an integer.

    Notes
    -----
    `draw`, `expected`, `probabilities` and `log_probabilities` are inherited from `Sampler`. For any K, a draw uses 53
    random bits for u and computes one exponential.

    References
    ----------
    Jean, Cho, Memisevic & Bengio (2015), On using very large target vocabulary for neural machine translation.
    arXiv:1412.2007. TensorFlow's `log_uniform_candidate_sampler` uses the same distribution.

    Examples
    --------
    >>> from softargmax.output import LogUniform
    >>> LogUniform(3).probabilities  # log 2, log 3/2 and log 4/3, each divided by log 4
    array([0.5   , 0.2925, 0.2075])
    """

    @public
    def __init__(self, classes: int) -> None:
        super().__init__(number_of_classes(classes))

    def _distribution(self) -> Floats:
        return np.log1p(1.0 / np.arange(1.0, self._classes + 1.0)) / math.log1p(self._classes)

    def _choose(self, numbers: Numbers) -> Ints:
        found = np.expm1(philox_stream.unit(numbers.high, numbers.low) * math.log1p(self._classes)).astype(np.int64)
        return np.minimum(found, self._classes - 1)  # expm1 can round up to K


class Unigram(Sampler):
    r"""The distribution proportional to a power of the counts.

    .. math:: q_k = c_k^a / \textstyle\sum_j c_j^a \quad (c_k > 0), \qquad q_k = 0 \quad (c_k = 0)

    Parameters
    ----------
    counts : array_like
        c, shape (K,): how often each class occurs, integers or floats, at least 0. A class with count 0 is never drawn.
    power : float
        a, the exponent. With 1, classes are drawn in proportion to their counts. With 0, all classes with a count above
        0 are equally likely. word2vec uses 3/4.

    Raises
    ------
    ValueError
        If a count is negative, NaN or infinite, if all counts are 0, if counts is empty or not one-dimensional, or if
        power is not finite.
    TypeError
        If an argument has the wrong type.

    Notes
    -----
    `draw`, `expected`, `probabilities` and `log_probabilities` are inherited from `Sampler`. Draws use an alias table.
    For any K, a draw needs 64 random bits for the bucket, and 53 random bits for one comparison. The table is built
    once, which takes 5 ms for 100,003 classes.

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
            raise ValueError("counts: expected at least one above 0, got only zeros")
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
        """Return the draws at `count` positions of a stream, from `first` on, by one call of a native kernel."""
        if requested_name() == "reference":
            return super().chosen(seed, stream, first, count)
        found = np.empty(count, np.int64)
        place = {"seed": seed, "stream": stream % SEEDS, "purpose": philox_stream.CANDIDATES, "first": first}
        _native.alias_draws(**self._table._asdict(), index=found, **place)
        return found
