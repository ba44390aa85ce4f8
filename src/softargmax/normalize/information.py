"""What a softmax knows: its entropy, and the divergence of two."""

from __future__ import annotations

from typing import Any

import numpy as np

from softargmax.core import check
from softargmax.core.chunks import by_rows
from softargmax.core.dispatch import implementation, namespace
from softargmax.core.exact import row_sum
from softargmax.core.scale import UNIT


@np.errstate(all="ignore")
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
    run, z, axes, scale = check.rowwise("normalize", z, axis, temperature, base)
    where = None if where is None else check.mask(where, z)
    wide = check.row_dtype(None, z)

    def rows(z: Any, scale: Any, where: Any) -> Any:
        p = run.softmax(z, axes, scale, where, wide, None)
        log_p = run.log_softmax(z, axes, scale, where, wide, None)
        return row_sum(-p * supported(p, log_p), axes)

    return by_rows(rows, axes, z, scale, where)


@np.errstate(all="ignore")
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
    Every term of the second form is at least 0, so terms do not cancel. log p and log q are rounded before they are
    subtracted: a divergence far below the square of that rounding is not resolved.
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
    xp = namespace(z_p)
    where = None if where is None else check.mask(where, z_p)
    axes, wide, run = check.axes_of(axis, z_p.ndim), check.row_dtype(None, z_p), implementation("normalize", z_p)

    def rows(z_p: Any, z_q: Any, where: Any) -> Any:
        p, q = (run.softmax(z, axes, UNIT, where, wide, None) for z in (z_p, z_q))
        log_p, log_q = (run.log_softmax(z, axes, UNIT, where, wide, None) for z in (z_p, z_q))
        # The term is p (delta - 1 + exp(-delta)), delta = log p - log q: near 0 an error of delta counts by delta only.
        delta = supported(p, log_p) - supported(p, log_q)
        near = xp.abs(delta) < 1.0
        small = xp.where(near, delta, 0.0)
        far = xp.where(near, 0.0, delta)
        terms = xp.where(near & (p > 0.0), p * (small + xp.expm1(-small)), (p * far - p) + q)
        return xp.where(row_sum(p, axes) == 0.0, 0.0, row_sum(terms, axes))  # 0 where p has nothing in its support

    return by_rows(rows, axes, z_p, z_q, where)


def supported(p: Any, values: Any) -> Any:
    """The values where p is not 0, and 0 elsewhere: what multiplies p in a sum over the support."""
    return namespace(p).where(p == 0.0, 0.0, values)
