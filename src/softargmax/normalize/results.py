"""Result tuples of the functions that return more than one array."""

from __future__ import annotations

from typing import NamedTuple

from softargmax.core.types import Array, of_arrays


@of_arrays
class SoftmaxWithLse(NamedTuple):
    """Result of `softmax_with_lse`: p, of the scores' shape, and lse = log sum exp(beta z), one number per row.

    The smooth maximum, which `logsumexp` returns, is lse / beta.

    Examples
    --------
    >>> import softargmax
    >>> p, lse = softargmax.softmax_with_lse([1.0, 2.0, 8.0])
    >>> float(lse)
    8.003384...
    """

    p: Array
    lse: Array


@of_arrays
class SignedLog(NamedTuple):
    """Result of `signed_logsumexp`: the sum of each row, as its sign and the logarithm of its magnitude.

    Examples
    --------
    >>> import softargmax
    >>> found = softargmax.signed_logsumexp([2.0, 1.0], [1.0, -1.0])  # e^2 - e
    >>> float(found.log_abs), float(found.sign)
    (1.541324..., 1.0)
    """

    log_abs: Array
    sign: Array


@of_arrays
class Boltzmann(NamedTuple):
    """Result of `boltzmann`: p, of the energies' shape, and five quantities of the system with one number per row.

    Examples
    --------
    >>> import softargmax
    >>> system = softargmax.boltzmann([0.0, 1.0], 1.0)
    >>> float(system.entropy), float(system.heat_capacity)
    (0.582203..., 0.196611...)
    """

    p: Array
    log_partition: Array
    free_energy: Array
    mean_energy: Array
    entropy: Array
    heat_capacity: Array
