"""boltzmann_policy: a softmax policy over actions."""

from __future__ import annotations

import math

from softargmax.core.arrays import namespace, one_axis, row_dtype
from softargmax.core.signature import public
from softargmax.core.types import Array, Logits, Mask, PerRow
from softargmax.normalize import softmax
from softargmax.sample.check_options import parameter, rows_of


@public
def boltzmann_policy(
    values: Logits, /, *, temperature: PerRow, epsilon: PerRow = 0.0, axis: int = -1, where: Mask | None = None
) -> Array:
    r"""Return a policy over actions: the softmax of their values, mixed with uniform exploration.

    .. math:: \pi_i = (1 - \epsilon)\,\mathrm{softmax}(q / T)_i + \frac{\epsilon}{n}

    Parameters
    ----------
    values : array_like
        q, shape (..., K): the value of each action.
    temperature : float or array
        T, at least 0. At T = 0 the policy is greedy, and ties share the probability. T = 0 with an epsilon above 0 is
        the epsilon-greedy policy. An array has one T per row.
    epsilon : float or array
        The probability, from 0 to 1, that is distributed uniformly over the n actions in the support. An array has one
        epsilon per row.
    axis : int
        The axis of the actions.
    where : array of bool, optional
        True for the actions in the support, as in `softmax`.

    Returns
    -------
    array
        pi, with the shape and dtype of `values`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or dtype.
    ValueError
        If an argument has the wrong shape, or a value is out of range.

    Notes
    -----
    Edge rows are as in `softmax`. A row with an empty support is 0 everywhere. k values of +inf share all of the
    probability, including epsilon. A NaN in the support makes its row NaN. On a device or under tracing, parameters are
    not checked. A parameter out of range then makes its row NaN.

    Half-precision values are computed in float32. Draw from the policy with ``categorical(log(pi))``.

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
