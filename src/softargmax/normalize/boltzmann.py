"""boltzmann: probabilities of the states of a system from their energies, and thermodynamic quantities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softargmax.core import check
from softargmax.core.arrays import as_number, axes_of, device_of, kept_shape, namespace, row_dtype, squeezed
from softargmax.core.row_chunks import by_rows
from softargmax.core.scale import UNIT, Scale
from softargmax.core.signature import public
from softargmax.core.types import Logits, Mask, Numbers, PerRow
from softargmax.normalize import operations
from softargmax.normalize.operations import Expectation, LogSumExp, Scores
from softargmax.normalize.results import Boltzmann
from softargmax.normalize.softmin import falling


@public
@np.errstate(all="ignore")
def boltzmann(
    energies: Logits,
    /,
    temperature: PerRow,
    *,
    k: float = 1.0,
    weights: Numbers | None = None,
    where: Mask | None = None,
    axis: int | tuple[int, ...] | None = -1,
) -> Boltzmann:
    r"""Return the Boltzmann distribution over states of given energies, and its thermodynamic quantities.

    .. math::
        p_i = \frac{g_i\, e^{-\beta E_i}}{Z}, \qquad Z = \sum_i g_i\, e^{-\beta E_i}, \qquad \beta = \frac{1}{kT}

        F = -kT \log Z, \quad U = \langle p, E \rangle, \quad S = \frac{U - F}{T}, \quad
        C = \frac{dU}{dT} = k \beta^2\, \mathrm{Var}_p(E)

    Parameters
    ----------
    energies : array_like
        E, any shape, any array library.
    temperature : float or array
        T. At T = 0 the states with the lowest energy share all of the probability. At infinity p is proportional to
        `weights`: without weights, all states are equally likely. An array has one temperature per row. A list of M
        temperatures with a single system gives M values of each result.
    k : float
        Boltzmann's constant, above 0, in the unit of E / T.
    weights : array, optional
        g, the degeneracies of the states, at least 0. They broadcast with the energies.
    where : array of bool, optional
        True for states that exist. The other states are ignored.
    axis : int, tuple of int, or None
        The axis or axes of a system's states; None for all of them.

    Returns
    -------
    Boltzmann
        p has the energies' shape and dtype. log_partition (log Z), free_energy (F), mean_energy (U), entropy (S) and
        heat_capacity (C) have one number per row. For half-precision energies these numbers are float32.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    A state with E = +inf is forbidden: its p is 0 and it adds nothing to U. In a system without allowed states, p is 0,
    log Z is -inf, F is +inf, and U, S and C are 0. If some energies are -inf, their states share all of the
    probability.

    S is computed as -k sum p log(p / g). The difference U - F would lose digits by cancellation.

    Gradients: the gradient of F with respect to E_i is p_i. The gradient of U with respect to E_i is
    p_i (1 - beta (E_i - U)).

    References
    ----------
    Landau & Lifshitz (1980), Statistical Physics, sections 28 and 31.

    Examples
    --------
    >>> import softargmax
    >>> system = softargmax.boltzmann([0.0, 1.0], 1.0)
    >>> system.p.round(3), float(system.mean_energy), float(system.free_energy)
    (array([0.731, 0.269]), 0.268941..., -0.313261...)
    """
    k = check.positive(k, "k")
    energies = check.scores(energies, "energies")
    energies, axes = check.at_each(temperature, energies, axes_of(axis, energies.ndim))
    scale = check.scale_of(temperature, None, energies, axes, k)
    where = None if where is None else check.mask(where, energies)
    energies, weights = check.weighted(energies, weights)

    def rows(energies: Any, scale: Scale, where: Any, weights: Any) -> Boltzmann:
        return _system(energies, axes, scale, where, weights, k)

    return Boltzmann(*map(as_number, by_rows(rows, axes, energies, scale, where, weights)))


def _system(energies: Any, axes: tuple[int, ...], scale: Scale, where: Any, weights: Any, k: float) -> Boltzmann:
    """Compute all results. The arguments are already checked."""
    xp, wide = namespace(energies), row_dtype(energies.dtype)
    allowed = energies != math.inf
    if where is not None:
        allowed = allowed & where
    if weights is not None:
        allowed = allowed & (weights != 0)

    z, flipped = falling(energies, scale)
    scores = Scores(z, allowed, flipped, axes, wide)

    def mean_of(values: Any) -> Any:
        return squeezed(
            operations.expectation.first(Expectation(scores.z, allowed, scores.beta, values, axes, wide)), axes
        )

    p, log_z = operations.softmax(scores)
    log_z = squeezed(log_z, axes)
    free = squeezed(operations.logsumexp.first(LogSumExp(energies, weights, allowed, flipped, axes, wide)), axes)
    kept = kept_shape(p.shape, axes)
    beta = flipped.hi if not isinstance(flipped.hi, float) else xp.asarray(flipped.hi, dtype=wide, device=device_of(p))
    beta = xp.broadcast_to(xp.astype(beta, wide), kept)

    if weights is None:
        entropy = squeezed(operations.entropy.first(scores), axes)
    else:  # p is proportional to g times the softmax of z
        log_ratio = operations.log_softmax.first(scores)  # log(p / g) plus a constant per row
        log_g = xp.log(xp.astype(xp.where(weights == 0, 1.0, weights), wide))
        scores = scores._replace(z=log_ratio + log_g, beta=UNIT)
        p, lse = operations.softmax(scores)
        entropy = mean_of(lse - log_ratio)
        log_z = log_z + squeezed(lse, axes)
    mean = mean_of(energies)

    inf = xp.full_like(mean, math.inf)
    limit = xp.where(log_z > 0.0, -inf, xp.where(log_z < 0.0, inf, mean))  # the limit of -kT log Z as T -> inf
    free = xp.where(xp.reshape(beta, log_z.shape) == 0.0, limit, free)

    # The variance is 0 at T = 0. It is also 0 if an energy is -inf, because finite energies then have p = 0.
    centre = xp.reshape(xp.where(xp.abs(mean) == math.inf, 0.0, mean), kept)
    constant = (p == 0.0) | (xp.abs(energies) == math.inf)
    deviation = xp.where(constant, 0.0, xp.astype(xp.where(constant, 0.0, energies), wide) - centre)
    deviation = deviation * xp.where(xp.abs(beta) == math.inf, 0.0, beta)
    correction = mean_of(deviation)  # removes the error of the rounded U, which matters for energies like 1e15
    deviation = deviation - xp.reshape(correction, kept)
    heat = k * mean_of(deviation * deviation)
    entropy = k * entropy
    return Boltzmann(xp.astype(p, energies.dtype), log_z, free, mean, entropy, heat)
