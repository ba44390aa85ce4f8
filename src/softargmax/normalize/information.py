"""What a softmax knows: its entropy, and the divergence of two."""

from __future__ import annotations

from typing import Any

from softargmax.core import check
from softargmax.core.axes import squeezed
from softargmax.normalize import divergence_operations, operations
from softargmax.normalize.divergence_operations import KlDivergence
from softargmax.normalize.operations import Scores


def entropy(
    z: Any,
    /,
    *,
    axis: int | tuple[int, ...] | None = -1,
    temperature: Any = 1.0,
    base: float | None = None,
    where: Any = None,
) -> Any:
    r"""The Shannon entropy of the softmax, in nats.

    .. math:: H = -\sum_i p_i \log p_i = \mathrm{lse} - \beta \langle p, z \rangle

    Parameters
    ----------
    z, axis, temperature, base, where
        As in `softmax`. `base` changes the distribution, not the unit.

    Returns
    -------
    array
        One number per row, from 0 to log K; float32 for half scores.

    Notes
    -----
    Formed from p and log p, both accurate, so that a confident row keeps its small entropy. 0 for a row with nothing in
    its support, log k for one with k entries of +inf, NaN for one with a NaN.

    Gradient: with incoming g, :math:`-g\,\beta\,p_i (\log p_i + H)` to z_i.

    References
    ----------
    Cover & Thomas (2006), Elements of Information Theory, section 2.1.

    Examples
    --------
    >>> import softargmax
    >>> float(softargmax.entropy([1.0, 1.0, 1.0, 1.0]))  # log 4
    1.386294...
    >>> float(softargmax.entropy([40.0, 0.0]))
    1.74182...e-16
    """
    z, axes, beta = check.rows(z, axis, temperature, base)
    i = Scores(z, check.optional_mask(where, z), beta, axes, check.row_dtype(None, z))
    return squeezed(operations.entropy.first(i), axes)


def kl_divergence(z_p: Any, z_q: Any, /, *, axis: int | tuple[int, ...] | None = -1, where: Any = None) -> Any:
    r"""The Kullback-Leibler divergence of two softmaxes, from their scores, in nats.

    .. math:: \mathrm{KL}(p \,\|\, q) = \sum_i p_i \log \frac{p_i}{q_i} = \sum_i p_i \log \frac{p_i}{q_i} - p_i + q_i

    Parameters
    ----------
    z_p, z_q : array_like
        Scores of p and of q, which broadcast with each other.
    axis, where
        As in `softmax`; the support of both.

    Returns
    -------
    array
        One number per row, at least 0; float32 for half scores.

    Notes
    -----
    Every term of the second form is at least 0, so terms do not cancel, and near distributions keep their small
    divergence: that of two rows of float64 scores which differ by 1e-9 is right to many digits.
    Terms with p_i = 0 add 0 to the first form; p_i > 0 = q_i gives +inf. A row with nothing in p's support gives 0,
    else a NaN in either support gives NaN.

    Gradient: with incoming g, :math:`g\,p_i (\log(p_i / q_i) - \mathrm{KL})` to z_p and g (q - p) to z_q.

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
    axes = check.axes_of(axis, z_p.ndim)
    i = KlDivergence(z_p, z_q, check.optional_mask(where, z_p), axes, check.row_dtype(None, z_p))
    return squeezed(divergence_operations.kl_divergence.first(i), axes)
