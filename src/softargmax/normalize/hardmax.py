"""hardmax: the limit of softmax as T -> 0+."""

from __future__ import annotations

from softargmax.core.signature import public
from softargmax.core.types import Array, Logits, Mask
from softargmax.normalize import operations
from softargmax.normalize.softmax import checked


@public
def hardmax(z: Logits, /, *, axis: int | tuple[int, ...] | None = -1, where: Mask | None = None) -> Array:
    r"""Return the limit of softmax as T -> 0+: the arg max as a distribution, in which ties share the probability.

    .. math:: p_i = \frac{[i \in I]}{|I|}, \qquad I = \{i : z_i = \max_j z_j\}

    Parameters
    ----------
    z, axis, where
        As in `softmax`.

    Returns
    -------
    array
        p, of z's shape and dtype.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    Edge rows are as in `softmax`. The softmax converges to the hardmax at every point as T tends to 0. The convergence
    is not uniform: it is arbitrarily slow near a tie.

    Gradient: 0. The hardmax is constant wherever it is continuous.

    References
    ----------
    Gao & Pavel (2017), On the properties of the softmax function with application in game theory and reinforcement
    learning. arXiv:1704.00805.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.hardmax([1.0, 5.0, 5.0])
    array([0. , 0.5, 0.5])
    """
    return operations.softmax.first(checked(z, axis, 0.0, None, where, None, None))
