"""Draws from the softmax of rows, and the filters that restrict their scores."""

from __future__ import annotations

import math
from typing import Any, TypedDict, Unpack

from softargmax.core._native import plain_axes
from softargmax.core.arrays import as_number, back, device_of, last, namespace, one_axis
from softargmax.core.check import flag
from softargmax.core.scale import UNIT
from softargmax.core.seeds import seed_of
from softargmax.core.signature import public, takes
from softargmax.core.types import Array, Generator, Integers, Logits, Mask, PerRow, Seed
from softargmax.sample import operations
from softargmax.sample.arguments import Distribution, Filters
from softargmax.sample.check_options import ORDERS, number_of_draws, options_of, rows_of, source_of
from softargmax.sample.operations import Categorical, FilterMask
from softargmax.sample.results import CategoricalWithLogprob
from softargmax.sample.undrawable_rows import unsound


class DrawKeywords(TypedDict, total=False):
    """The options of `categorical`."""

    axis: int
    temperature: PerRow
    top_k: PerRow | None
    top_p: PerRow | None
    min_p: PerRow | None
    typical_p: PerRow | None
    epsilon: PerRow | None
    eta: PerRow | None
    where: Mask | None
    num_samples: int | None
    replace: bool
    seed: Seed | None
    stream: Integers | None
    generator: Generator | None
    order: str


_DEFAULTS = {"axis": -1, "temperature": 1.0, "replace": True, "order": ORDERS[0]}
"""All other options default to None."""
_ALL_DEFAULTS: dict[str, Any] = dict.fromkeys(DrawKeywords.__optional_keys__) | _DEFAULTS


@takes(DrawKeywords, _DEFAULTS)
def categorical(z: Logits, /, **options: Unpack[DrawKeywords]) -> Array:
    r"""Draw classes from the softmax of scores, after filters.

    .. math:: \arg\max_i\,(\beta z_i + g_i) \sim \mathrm{softmax}(\beta z), \qquad g_i = -\log(-\log(1 - V_i))

    The :math:`V_i` are independent and uniform between 0 and 1.

    Parameters
    ----------
    z : array_like
        Scores, shape (..., K), any array library.
    axis : int
        The axis of the classes. The result has the other axes.
    temperature : float or array
        T, at least 0. At T = 0 the draw is the arg max (the first of equal maxima). At infinite T the draw is uniform
        over the support.
    top_k : int or array, optional
        Keep the k largest scores. If k is -1, 0, or at least K, all scores are kept.
    top_p : float or array, optional
        p, above 0 and at most 1. Keep the smallest set of most probable classes whose probabilities sum to p or more.
    min_p : float or array, optional
        A fraction from 0 to 1. Keep the classes whose probability is at least this fraction of the largest probability.
    typical_p, epsilon, eta : float or array, optional
        As in `filter_scores`.
    where : array of bool, optional
        True for the classes in the support, as in `softmax`.
    num_samples : int, optional
        The number of draws per row. By default there is one draw per row, and the result has no axis of draws.
    replace : bool
        If True, a class may be drawn more than once.
    seed : int or key of jax.random, optional
        An integer from 0 to 2^64 - 1, or a key, from which 64 random bits are drawn. If neither seed nor generator is
        passed, the seed is drawn from the default generator of z's library.
    stream : array of int, optional
        The id of each row's stream of random numbers. Defaults to the index of the row.
    generator : numpy.random.Generator, numpy.random.RandomState or torch.Generator, optional
        The generator from which the seed is drawn. It cannot be used inside `torch.compile`.
    order : {"top_k_first", "joint"}
        "top_k_first": the filters apply in the order of the arguments above, as in Hugging Face transformers. Each
        filter sees only the classes that the previous filters kept, renormalised. "joint": each filter sees the whole
        row. A class remains if all filters keep it.

    Returns
    -------
    array of int64
        The drawn classes, shape (...), or (..., num_samples) with `num_samples`. Draws without replacement are in the
        order in which they were drawn. The dtype is int32 in JAX without 64-bit mode.

    Raises
    ------
    ValueError
        If an argument is out of range. Also if a row cannot be drawn from, because the row has an empty support,
        contains NaN, or has too few classes for the draws without replacement. The error names the row. On a device or
        under tracing, values are not checked, and the draws of such a row are -1.
    TypeError
        If an argument has the wrong type.

    Notes
    -----
    Temperature and the parameters of the filters are numbers, or arrays with one number per row. If equal scores
    compete for the last places of top_k or top_p, the ones with the lowest indices are kept. k entries of +inf are
    drawn with equal probability. A class of probability 0 is never drawn. Small probabilities are accurate: a class of
    probability 2^-40 is drawn with this probability.

    The draw of a row depends only on the scores and options of this row, the seed and the stream. It does not depend on
    the batch, the threads or the instruction set. The draw is the arg max of ``z / T + gumbel(z.shape, seed=seed)``
    over the kept classes. Draws without replacement are the classes with the largest of these sums, in descending
    order. Each row is processed by one thread. If there are no filters and no log-probabilities, draws with
    replacement read the row once for every 32 draws.

    Under `vmap` (torch, JAX), each mapped call has the same noise as the same call without `vmap`. If a seed is passed,
    all mapped calls therefore have the same noise, unless `stream` or a key is mapped too. Without a seed, torch's
    argument ``randomness`` decides whether the mapped calls have the same noise.

    There is no gradient. Use `gumbel_softmax` for draws that can be differentiated.

    References
    ----------
    Gumbel (1954), Statistical theory of extreme values. Kool, van Hoof & Welling (2019), Stochastic beams and where to
    find them, section 3. arXiv:1903.06059. Holtzman et al. (2020), The curious case of neural text degeneration
    (top-p). arXiv:1904.09751. Nguyen et al. (2024), Min p sampling. arXiv:2407.01082. See also `filter_scores`.

    Examples
    --------
    >>> import softargmax
    >>> z = [[1.0, 2.0, 8.0], [1.0, 1.0, 1.0]]
    >>> softargmax.categorical(z, seed=0)
    array([2, 2])
    >>> softargmax.categorical(z, temperature=[1.0, 2.0], top_k=2, num_samples=5, seed=0).shape
    (2, 5)
    """
    return _of_draws(operations.categorical.first(_checked(z, options)), options.get("num_samples"))


@takes(DrawKeywords, _DEFAULTS)
def categorical_with_logprob(z: Logits, /, **options: Unpack[DrawKeywords]) -> CategoricalWithLogprob:
    r"""Draw as `categorical` does, and also return log-probabilities and the number of remaining classes.

    .. math:: \log p_i = \beta z_i - \log \sum_{j\,\mathrm{kept}} e^{\beta z_j}

    Parameters
    ----------
    z
        As in `categorical`.
    **options
        The options of `categorical`.

    Returns
    -------
    CategoricalWithLogprob
        index, as `categorical` returns it. logprob, of the same shape: the log-probabilities of the draws in the
        filtered and renormalised distribution, in float32 for half-precision scores. support_size (...): the number of
        classes that could be drawn.

    Raises
    ------
    TypeError, ValueError
        As in `categorical`.

    Notes
    -----
    The draws are those of `categorical` with the same options. At temperature 0, logprob is 0 and support_size is 1.
    Without replacement, logprob is the log-probability that the class has in the first draw. On a device or under
    tracing, a row that cannot be drawn from has logprob NaN and support_size 0.

    There is no gradient. For the gradient of log p, as in policy gradients, use
    ``selected_log_softmax(filter_scores(z, ...), index, temperature=...)``.

    References
    ----------
    Holtzman et al. (2020), The curious case of neural text degeneration. arXiv:1904.09751.

    Examples
    --------
    >>> import softargmax
    >>> drawn = softargmax.categorical_with_logprob([[1.0, 2.0, 8.0], [1.0, 1.0, 1.0]], top_p=0.9, seed=0)
    >>> drawn.logprob.round(4), drawn.support_size
    (array([ 0.    , -1.0986]), array([1, 3]))
    """
    drawn, n = operations.categorical_with_logprob(_checked(z, options)), options.get("num_samples")
    size = as_number(drawn.support_size[..., 0])
    return CategoricalWithLogprob(_of_draws(drawn.index, n), _of_draws(drawn.logprob, n), size)


def _of_draws(x: Any, num_samples: int | None) -> Any:
    """Drop the axis of draws if `num_samples` was not passed."""
    return as_number(x[..., 0]) if num_samples is None else x


_COMMON_OPTIONS = {"seed", "generator"}
_PLAIN = Distribution(UNIT)


def _checked(z: Any, options: DrawKeywords) -> Categorical:
    if options.keys() <= _COMMON_OPTIONS and (axes := plain_axes(z, -1)):  # these checks take 1 us instead of 10 us
        return Categorical(z, _PLAIN, seed_of(z, options.get("seed"), options.get("generator")), None, axes, 1, True)
    requested = {**_ALL_DEFAULTS, **options}
    z = rows_of(z)
    axis = one_axis(requested["axis"], z.ndim)
    filters = {name: requested[name] for name in Filters._fields}
    distribution = options_of(z, axis, requested["temperature"], requested["where"], requested["order"], **filters)
    z = last(z, axis)
    replace, n = flag(requested["replace"], "replace"), number_of_draws(requested["num_samples"])
    if not replace and n > z.shape[-1] > 0:
        raise ValueError(
            f"num_samples: expected at most {z.shape[-1]}, the number of classes, "
            f"for draws without replacement, got {n}"
        )
    axis = z.ndim - 1
    seed, stream = source_of(z, axis, requested["seed"], requested["stream"], requested["generator"])
    return Categorical(z, distribution, seed, stream, (axis,), n, replace)


@public
def filter_scores(  # noqa: PLR0913 options are keywords
    z: Logits,
    /,
    *,
    temperature: PerRow = 1.0,
    top_k: PerRow | None = None,
    top_p: PerRow | None = None,
    min_p: PerRow | None = None,
    typical_p: PerRow | None = None,
    epsilon: PerRow | None = None,
    eta: PerRow | None = None,
    where: Mask | None = None,
    order: str = ORDERS[0],
    axis: int = -1,
) -> Array:
    r"""Return the scores, with -inf for every class that the filters remove.

    .. math:: z'_i = z_i \text{ if } i \text{ is kept, else } -\infty

    Parameters
    ----------
    z, axis, temperature, top_k, top_p, min_p, where, order
        As in `categorical`. The filters see probabilities at this temperature. The kept scores are not divided by the
        temperature.
    typical_p : float or array, optional
        A number above 0 and at most 1. Sort the classes by :math:`|-\log p - H|`, where H is the entropy. Keep the
        first classes of this order until their probabilities sum to this number or more.
    epsilon : float or array, optional
        Keep the classes with p of at least epsilon.
    eta : float or array, optional
        Keep the classes with p of at least :math:`\min(\eta, \sqrt{\eta}\, e^{-H})`, where H is the entropy.

    Returns
    -------
    array
        The filtered scores, with z's shape and dtype.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    The filters apply in the order top_k, top_p, min_p, typical_p, epsilon, eta. Each filter sees only the classes that
    the previous filters kept, renormalised. With ``order="joint"``, each filter sees the whole row.

    At least one class remains. typical_p always keeps the most typical class. Every other filter always keeps the
    largest of the scores that it sees. min_p, epsilon and eta also keep all scores equal to the largest. With "joint",
    the class with the largest score remains if no class is kept by all filters.

    The filters do not change a row that contains NaN or has an empty support. On a device or under tracing, parameters
    are not checked. A parameter out of range then makes its row NaN.

    ``softmax(filter_scores(z, temperature=T, ...), temperature=T)`` is the distribution that `categorical` draws from.

    Gradient: 1 for kept scores, 0 for removed scores.

    References
    ----------
    Meister et al. (2023), Locally typical sampling, TACL 11. arXiv:2202.00666. Hewitt, Manning & Liang (2022),
    Truncation sampling as language model desmoothing (epsilon, eta). arXiv:2210.15191. See also `categorical`.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.filter_scores([1.0, 4.0, 2.0, 3.0], top_k=2)
    array([-inf,   4., -inf,   3.])
    >>> softargmax.filter_scores([1.0, 4.0, 2.0, 3.0], top_p=0.8, temperature=2.0)
    array([-inf,   4.,   2.,   3.])
    """
    z = rows_of(z)
    filters = {
        "top_k": top_k, "top_p": top_p, "min_p": min_p, "typical_p": typical_p, "epsilon": epsilon, "eta": eta
    }  # fmt: skip
    axis = one_axis(axis, z.ndim)
    distribution, z = options_of(z, axis, temperature, where, order, **filters), last(z, axis)
    kept = operations.filter_mask.first(FilterMask(z, distribution, (z.ndim - 1,)))
    xp, wrong = namespace(z), unsound(distribution)
    filtered = xp.where(kept, z, xp.asarray(-math.inf, dtype=z.dtype, device=device_of(z)))
    if wrong is not None:
        filtered = xp.where(wrong, xp.asarray(math.nan, dtype=z.dtype, device=device_of(z)), filtered)
    return back(filtered, axis)
