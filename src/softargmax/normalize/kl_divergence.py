"""The Kullback-Leibler divergence of two softmaxes."""

from __future__ import annotations

from softargmax.core import check
from softargmax.core.arrays import namespace, row_dtype, squeezed
from softargmax.core.signature import public
from softargmax.core.types import Array, Logits, Mask, PerRow
from softargmax.normalize import entropy_operations
from softargmax.normalize.entropy_operations import KlDivergence


@public
def kl_divergence(
    z_p: Logits,
    z_q: Logits,
    /,
    *,
    axis: int | tuple[int, ...] | None = -1,
    temperature: PerRow = 1.0,
    base: float | None = None,
    where: Mask | None = None,
    keepdims: bool = False,
) -> Array:
    r"""Return the Kullback-Leibler divergence of two softmaxes from their scores, in nats.

    .. math::
        \mathrm{KL}(p \,\|\, q) = \sum_i p_i \log \frac{p_i}{q_i}
        = \sum_i \left(p_i \log \frac{p_i}{q_i} - p_i + q_i\right)

    Parameters
    ----------
    z_p, z_q : array_like
        Scores of p and of q. They broadcast with each other.
    axis, temperature, base, where
        As in `softmax`, applied to both z_p and z_q. `base` changes the distributions. The result is in nats for every
        base.
    keepdims : bool
        Keep the reduced axes with size 1.

    Returns
    -------
    array
        One number per row, at least 0. float32 for half-precision scores.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    Every term of the second sum above is at least 0, so the terms do not cancel. The small divergence of two close
    distributions is therefore accurate. For example, the divergence of two rows of float64 scores that differ by 1e-9
    is right to many digits. The same is true at a high temperature, if it is passed as `temperature`. Dividing the
    scores by the temperature before the call would lose digits.

    A term of the first sum with p_i = 0 counts as 0. A term with p_i > 0 and q_i = 0 makes the result +inf. A row in
    which p has an empty support gives 0. In all other rows, a NaN in the support of p or q gives NaN.

    Gradient: with incoming g, the gradient with respect to z_p is
    :math:`g\,\beta\,p_i (\log(p_i / q_i) - \mathrm{KL})`, and with respect to z_q it is :math:`g\,\beta\,(q_i - p_i)`.

    References
    ----------
    Kullback & Leibler (1951), On information and sufficiency. Annals of Mathematical Statistics 22.

    Examples
    --------
    >>> import softargmax
    >>> float(softargmax.kl_divergence([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]))
    1.150420...
    >>> float(softargmax.kl_divergence([1.0, 2.0, 3.0], [11.0, 12.0, 13.0]))
    0.0
    """
    z_p, z_q = check.together(check.scores(z_p, "z_p"), z_q, "z_q")
    z_p, axes, beta = check.rows(z_p, axis, temperature, base)
    z_q = namespace(z_p).broadcast_to(z_q, tuple(z_p.shape))  # an array of temperatures adds leading axes
    i = KlDivergence(z_p, z_q, check.optional_mask(where, z_p), beta, axes, row_dtype(z_p.dtype))
    return squeezed(entropy_operations.kl_divergence.first(i), axes, keepdims)
