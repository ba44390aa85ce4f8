"""What the operations with more than one result return: tuples with names."""

from __future__ import annotations

from typing import Any, NamedTuple


class SoftmaxWithLse(NamedTuple):
    """What `softmax_with_lse` returns: p of the scores' shape, and one number per row, lse = log sum exp(beta z).

    The smooth maximum that `logsumexp` returns is lse / beta.

    Examples
    --------
    >>> import softargmax
    >>> p, lse = softargmax.softmax_with_lse([1.0, 2.0, 8.0])
    >>> float(lse)
    8.003384...
    """

    p: Any
    lse: Any


class SignedLog(NamedTuple):
    """What `signed_logsumexp` returns: a number per row as the logarithm of its size and its sign.

    Examples
    --------
    >>> import softargmax
    >>> found = softargmax.signed_logsumexp([2.0, 1.0], [1.0, -1.0])  # e^2 - e
    >>> float(found.log_abs), float(found.sign)
    (1.541324..., 1.0)
    """

    log_abs: Any
    sign: Any


class Boltzmann(NamedTuple):
    """What `boltzmann` returns, a system in thermal equilibrium: p of the energies' shape, the rest one number per row.

    Examples
    --------
    >>> import softargmax
    >>> system = softargmax.boltzmann([0.0, 1.0], 1.0)
    >>> float(system.entropy), float(system.heat_capacity)
    (0.582203..., 0.196611...)
    """

    p: Any
    log_partition: Any
    free_energy: Any
    mean_energy: Any
    entropy: Any
    heat_capacity: Any
