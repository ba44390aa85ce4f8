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
from softargmax.core.types import Array, Generator, Integers, Logits, Mask, PerRow
from softargmax.sample import operations
from softargmax.sample.arguments import Distribution, Filters
from softargmax.sample.operations import Categorical, FilterMask
from softargmax.sample.options import ORDERS, distribution_of, number_of_draws, rows_of, source_of
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
    seed: int | None
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

    Parameters
    ----------
    z : array_like
        Scores, shape (..., K), any array library.
    axis : int
        The axis of the classes. Rows run along it. Results have the other axes.
    temperature : float or array
        T, at least 0. With 0 the draw is the arg max, the first of equal scores. With infinity it is uniform over the
        support.
    top_k : int or array, optional
        Keep the k largest scores. -1, 0, and K or more keep all.
    top_p : float or array, optional
        Keep the fewest most probable classes whose probabilities sum to p or more; above 0 and at most 1.
    min_p : float or array, optional
        Keep the classes whose probability is at least this fraction, 0 to 1, of the largest one.
    typical_p, epsilon, eta : float or array, optional
        As in `filter_scores`.
    where : array of bool, optional
        True for the classes in the support, as in `softmax`.
    num_samples : int, optional
        Number of draws per row. The default is one draw per row; then the result has no axis for draws.
    replace : bool
        If True, a class may be drawn more than once.
    seed : int, optional
        0 to 2^64 - 1. Without seed and generator, a seed is drawn from the default generator of z's library.
    stream : array of int, optional
        The stream of random numbers of each row; by default the index of the row.
    generator : numpy.random.Generator, numpy.random.RandomState or torch.Generator, optional
        The generator from which a seed is drawn; not inside `torch.compile`.
    order : {"top_k_first", "joint"}
        "top_k_first": each filter sees the classes that the filters before it kept, renormalised, in the order of the
        arguments above, as in Hugging Face transformers. "joint": each filter sees the whole row, and the classes that
        all filters keep remain.

    Returns
    -------
    array of int64
        The drawn classes, shape (...), or (..., num_samples) with `num_samples`. Draws without replacement are in the
        order in which they were drawn. The dtype is int32 in JAX without 64-bit mode.

    Raises
    ------
    ValueError
        If an argument is out of range, or if a row cannot be drawn from: its support is empty, it contains NaN, or it
        has fewer classes than draws without replacement. The error names the row. On a device or under tracing, values
        cannot be checked; there the index of such a row is -1.
    TypeError
        If an argument has the wrong type.

    Notes
    -----
    Temperature and the parameters of the filters are numbers, or arrays with one number per row. If equal scores lie at
    the boundary of top_k or top_p, those with the smallest columns are kept. k entries of +inf are drawn with equal
    probability. A class of probability 0 is never drawn; a class of probability 2^-40 is drawn that often.

    The draw of a row depends only on its scores, its options, the seed and the stream. It does not depend on the batch,
    the threads or the instruction set. It is the arg max of ``z / T + gumbel(z.shape, seed=seed)`` over the kept
    classes. Draws without replacement are the classes with the largest of these numbers, in descending order. One
    thread processes a row. Without filters and log-probabilities it reads the row once for every 32 draws.

    Under `vmap` (torch, JAX) each mapped call has the same noise as the call on its own. So with a seed all calls have
    the same noise, unless `stream` is mapped too. Without a seed, torch's ``randomness=`` decides.

    There is no gradient; `gumbel_softmax` has one.

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
        index, as `categorical` returns it; logprob, of the same shape, in the filtered and renormalised distribution
        (float32 for half-precision scores); and support_size (...), the number of classes that could be drawn.

    Raises
    ------
    TypeError, ValueError
        As `categorical`.

    Notes
    -----
    The draws are those of `categorical` with the same options. At temperature 0, logprob is 0 and support_size is 1.
    Without replacement, logprob is the log-probability of the class in the first draw. On a device or under tracing, a
    row that cannot be drawn from has logprob NaN and support_size 0.

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
    given = {**_ALL_DEFAULTS, **options}
    z = rows_of(z)
    axis = one_axis(given["axis"], z.ndim)
    filters = {name: given[name] for name in Filters._fields}
    distribution = distribution_of(z, axis, given["temperature"], given["where"], given["order"], **filters)
    z = last(z, axis)
    replace, n = flag(given["replace"], "replace"), number_of_draws(given["num_samples"])
    if not replace and n > z.shape[-1] > 0:
        raise ValueError(
            f"num_samples: expected at most {z.shape[-1]}, the number of classes, without replacement, got {n}"
        )
    axis = z.ndim - 1
    seed, stream = source_of(z, axis, given["seed"], given["stream"], given["generator"])
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
        As in `categorical`. The filters see probabilities at this temperature. The kept scores are not divided by it.
    typical_p : float or array, optional
        Keep the classes whose :math:`-\log p` is nearest to the entropy H: the fewest whose probabilities sum to this
        number or more.
    epsilon : float or array, optional
        Keep the classes with p at least epsilon.
    eta : float or array, optional
        Keep the classes with p at least :math:`\min(\epsilon, \sqrt{\epsilon}\, e^{-H})`, where epsilon is this number.

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
    The filters apply in the order top_k, top_p, min_p, typical_p, epsilon, eta. Each sees the remaining classes,
    renormalised; with "joint" each sees the whole row. At least one class remains: the one with the largest score.
    min_p, epsilon and eta then keep all classes with an equal score. typical_p alone keeps the most typical class
    instead.

    The filters do not change a row that contains NaN or has an empty support. On a device or under tracing, parameters
    are not checked; one out of range makes its row NaN.

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
    distribution, z = distribution_of(z, axis, temperature, where, order, **filters), last(z, axis)
    kept = operations.filter_mask.first(FilterMask(z, distribution, (z.ndim - 1,)))
    xp, wrong = namespace(z), unsound(distribution)
    left = xp.where(kept, z, xp.asarray(-math.inf, dtype=z.dtype, device=device_of(z)))
    if wrong is not None:
        left = xp.where(wrong, xp.asarray(math.nan, dtype=z.dtype, device=device_of(z)), left)
    return back(left, axis)
