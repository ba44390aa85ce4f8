"""The softmax as physics has it: a system of energies in equilibrium at a temperature."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softargmax.core import check
from softargmax.core.arrays import as_number, axes_of, device_of, kept_shape, namespace, squeezed
from softargmax.core.chunks import by_rows
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
    r"""The Boltzmann distribution over states of given energies, and its thermodynamics.

    .. math::
        p_i = \frac{g_i\, e^{-\beta E_i}}{Z}, \qquad Z = \sum_i g_i\, e^{-\beta E_i}, \qquad \beta = \frac{1}{kT}

        F = -kT \log Z, \quad U = \langle p, E \rangle, \quad S = \frac{U - F}{T}, \quad
        C = \frac{dU}{dT} = k \beta^2\, \mathrm{Var}_p(E)

    Parameters
    ----------
    energies : array_like
        E, any shape, any array library.
    temperature : float or array
        T. 0 is the ground state (degenerate ones share), infinity every state alike; an array has one per row, a
        list of M beside a single system gives M of each result, as in `softmax`.
    k : float
        Boltzmann's constant in the unit of E / T, above 0.
    weights : array, optional
        g, the degeneracies of the states, which broadcast with the energies; at least 0.
    where : array of bool, optional
        The states that there are.
    axis : int, tuple of int, or None
        The axes along which a system's states run.

    Returns
    -------
    Boltzmann
        p, of the energies' shape and dtype, and one number per row of log_partition (log Z), free_energy (F),
        mean_energy (U), entropy (S) and heat_capacity (C); float32 for half energies.

    Notes
    -----
    E = +inf is a forbidden state: p = 0, adds nothing to U. Without a state, p is 0, log Z is -inf, F is +inf and the
    rest 0. Energies of -inf share the system.

    S is the entropy of p, -k sum p log(p / g), without the cancellation of U - F.

    Gradients: of F to E_i, p_i; of U to E_i, p_i (1 - beta (E_i - U)).

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
    xp, wide = namespace(energies), check.row_dtype(None, energies)
    allowed = energies != math.inf
    if where is not None:
        allowed = allowed & where
    if weights is not None:
        allowed = allowed & (weights != 0)

    z, turned = falling(energies, scale)
    of = Scores(z, allowed, turned, axes, wide)

    def mean_of(values: Any) -> Any:
        return squeezed(operations.expectation.first(Expectation(of.z, allowed, of.beta, values, axes, wide)), axes)

    p, log_z = operations.softmax(of)
    log_z = squeezed(log_z, axes)
    free = squeezed(operations.logsumexp.first(LogSumExp(energies, weights, allowed, turned, axes, wide)), axes)
    kept = kept_shape(p.shape, axes)
    beta = turned.hi if not isinstance(turned.hi, float) else xp.asarray(turned.hi, dtype=wide, device=device_of(p))
    beta = xp.broadcast_to(xp.astype(beta, wide), kept)

    if weights is None:
        entropy = squeezed(operations.entropy.first(of), axes)
    else:  # states in proportion to p without degeneracies, times g
        log_ratio = operations.log_softmax.first(of)  # log(p / g) but for a constant
        log_g = xp.log(xp.astype(xp.where(weights == 0, 1.0, weights), wide))
        of = of._replace(z=log_ratio + log_g, beta=UNIT)
        p, more = operations.softmax(of)
        entropy = mean_of(more - log_ratio)
        log_z = log_z + squeezed(more, axes)
    mean = mean_of(energies)

    far = xp.full_like(mean, math.inf)
    limit = xp.where(log_z > 0.0, -far, xp.where(log_z < 0.0, far, mean))  # of -kT log Z
    free = xp.where(xp.reshape(beta, log_z.shape) == 0.0, limit, free)

    # Energies of -inf do not vary: the other states have p = 0. Nor does anything at T = 0.
    centre = xp.reshape(xp.where(xp.abs(mean) == math.inf, 0.0, mean), kept)
    still = (p == 0.0) | (xp.abs(energies) == math.inf)
    deviation = xp.where(still, 0.0, xp.astype(xp.where(still, 0.0, energies), wide) - centre)
    deviation = deviation * xp.where(xp.abs(beta) == math.inf, 0.0, beta)
    rest = mean_of(deviation)  # U was rounded: E may be 1e15
    deviation = deviation - xp.reshape(rest, kept)
    heat = k * mean_of(deviation * deviation)
    entropy = k * entropy
    return Boltzmann(xp.astype(p, energies.dtype), log_z, free, mean, entropy, heat)
