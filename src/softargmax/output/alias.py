"""Alias tables: draw from any distribution over K classes with one random bucket and one comparison.

Walker (1977), An efficient method for generating discrete random variables with general distributions, ACM TOMS 3. Vose
(1991), A linear algorithm for generating random numbers with a given distribution, IEEE TSE 17.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from softargmax.output.philox_stream import Floats, Ints


class AliasTable(NamedTuple):
    """K buckets of probability 1/K. Bucket i gives class i if u < threshold[i], and class alias[i] otherwise."""

    threshold: Floats
    alias: Ints

    def pick(self, bucket: Ints, u: Floats) -> Ints:
        """Return the class of each bucket for uniform u in [0, 1). A class of probability 0 is never returned."""
        return np.where(u < self.threshold[bucket], bucket, self.alias[bucket])


def alias_table(probabilities: Floats) -> AliasTable:
    r"""Return the alias table of probabilities (K,) whose sum is 1.

    Let q be the probability of a class. If K q < 1, the class's bucket is light, with the deficit 1 - K q. If K q > 1,
    the bucket is heavy, with the excess K q - 1. Vose's construction fills the light buckets in order from the excess
    of one heavy bucket j. The last light bucket that bucket j fills, i(j), can take more than the excess that is left.
    Bucket j then has a deficit itself. The next heavy bucket fills this deficit first, and then the next light buckets.
    :math:`D_i` is the sum of the deficits of the light buckets up to bucket i. :math:`E_j` is the sum of the excesses
    of the heavy buckets up to bucket j:

    .. math:: \mathrm{alias}(i) = \min\{j : E_j > D_{i-1}\}, \qquad \mathrm{threshold}(j) = 1 - (D_{i(j)} - E_j),
        \quad i(j) = \min\{i : D_i \ge E_j\}

    The code stores deficits and excesses as integers, so the sums D and E are exact. At K = 10^5, the integer 1 stands
    for 2^-45 of a bucket. The rounding errors of all q are added to the most probable class. They change the
    probability of this class by a relative 1e-12, or by 1e-9 if all q round in the same direction. For K = 100,003,
    this function takes 6 ms (one thread of a Zen 4). A Python loop over K takes several times as long.

    References
    ----------
    Hübschle-Schneider & Sanders (2022), Parallel weighted random sampling, ACM TOMS 48, section 4. arXiv:1903.00227.
    """
    classes, scaled = probabilities.size, probabilities * probabilities.size
    bucket = 1 << (62 - classes.bit_length())
    steps = np.rint(scaled * bucket).astype(np.int64)
    steps[np.argmax(steps)] += classes * bucket - int(steps.sum())
    light, heavy = np.flatnonzero(steps < bucket), np.flatnonzero(steps > bucket)
    lacking, over = np.cumsum(bucket - steps[light]), np.cumsum(steps[heavy] - bucket)  # both have the same last entry

    threshold, alias = np.ones(classes), np.arange(classes, dtype=np.int64)
    threshold[light] = scaled[light]
    alias[light] = heavy[np.searchsorted(over, lacking - (bucket - steps[light]), side="right")]
    last_filled = np.searchsorted(lacking, over[:-1], side="left")
    threshold[heavy[:-1]] = 1.0 - (lacking[last_filled] - over[:-1]) / bucket
    alias[heavy[:-1]] = heavy[1:]
    return AliasTable(threshold, alias)
