"""boltzmann_policy: a softmax policy over actions."""

from __future__ import annotations

import math

from softargmax.core.arrays import namespace, one_axis, row_dtype
from softargmax.core.signature import public
from softargmax.core.types import Array, Logits, Mask, PerRow
from softargmax.normalize import softmax
from softargmax.sample.options import parameter, rows_of


@public
def boltzmann_policy(
    values: Logits, /, *, temperature: PerRow, epsilon: PerRow = 0.0, axis: int = -1, where: Mask | None = None
) -> Array:
    r"""Return the probabilities of actions with these values: a softmax mixed with uniform exploration.

    .. math:: \pi_i = (1 - \epsilon)\,\mathrm{softmax}(q / T)_i + \frac{\epsilon}{n}

    Parameters
    ----------
    values : array_like
        q, shape (..., K): what each action is worth.
    temperature : float or array
        T, at least 0; 0 is greedy with ties shared, and with epsilon the epsilon-greedy policy. An array has one per
        row.
    epsilon : float or array
        From 0 to 1: that much is spread over the n actions in the support. An array has one per row.
    axis : int
        The axis of the actions.
    where : array of bool, optional
        The actions there are.

    Returns
    -------
    array
        pi, of the values' shape and dtype.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape, or a value out of range.

    Notes
    -----
    The edge rows are those of `softmax`: nothing in the support gives 0 everywhere, k values of +inf share the row
    (epsilon with it), NaN makes its row NaN, as does a parameter out of its range where nobody looks (on devices, under
    tracing). Halves are computed in float32. Draw from it with ``categorical(log(pi))``.

    Gradient: (1 - epsilon) times that of `softmax`.

    References
    ----------
    Sutton & Barto (2018), Reinforcement learning, sections 2.2 and 13.1. Cesa-Bianchi, Gentile, Lugosi & Neu (2017),
    Boltzmann exploration done right. arXiv:1705.10257.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.boltzmann_policy([1.0, 2.0, 8.0], temperature=0.0, epsilon=0.3)
    array([0.1, 0.1, 0.8])
    """
    values = rows_of(values, "values")
    axis = one_axis(axis, values.ndim)
    temperature = parameter(temperature, values, "temperature", axis)
    epsilon = parameter(epsilon, values, "epsilon", axis)
    xp, dtype = namespace(values), row_dtype(values.dtype)
    p = softmax(values, axis=axis, temperature=temperature, where=where, dtype=dtype)
    if not (isinstance(epsilon, float) and epsilon == 0.0):
        p = (1.0 - epsilon) * p + epsilon * softmax(values, axis=axis, temperature=math.inf, where=where, dtype=dtype)
    return xp.astype(xp.astype(p, dtype, copy=False), values.dtype, copy=False)
