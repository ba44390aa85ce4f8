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
_ASKED: dict[str, Any] = dict.fromkeys(DrawKeywords.__optional_keys__) | _DEFAULTS


@takes(DrawKeywords, _DEFAULTS)
def categorical(z: Logits, /, **options: Unpack[DrawKeywords]) -> Array:
    r"""Draw classes from the softmax of scores, after filters.

    .. math:: \arg\max_i\,(\beta z_i + g_i) \sim \mathrm{softmax}(\beta z), \qquad g_i = -\log(-\log(1 - V_i))

    Parameters
    ----------
    z : array_like
        Scores, shape (..., K), any array library.
    axis : int
        The axis of the classes. A row runs along it; results have the other axes.
    temperature : float or array
        T, at least 0. 0 is the arg max (of equal scores, the first); infinity is uniform over the support.
    top_k : int or array, optional
        Keep the k largest; -1, 0 and K or more keep all.
    top_p : float or array, optional
        Keep the smallest set of most probable classes whose mass reaches p, above 0 and at most 1.
    min_p : float or array, optional
        Keep classes with at least this fraction, 0 to 1, of the largest probability.
    typical_p, epsilon, eta : float or array, optional
        As in `filter_scores`.
    where : array of bool, optional
        The support as in `softmax`.
    num_samples : int, optional
        Number of draws per row; by default one, without an axis of its own.
    replace : bool
        Whether a class may be drawn again.
    seed : int, optional
        0 to 2^64 - 1. Without seed and generator, one is drawn from the default generator of z's library.
    stream : array of int, optional
        The stream of random numbers of each row; by default the index of the row.
    generator : numpy.random.Generator, numpy.random.RandomState or torch.Generator, optional
        The generator that a seed is drawn from; not inside `torch.compile`.
    order : {"top_k_first", "joint"}
        "top_k_first": each filter sees what the filters before it (in the order above) kept, renormalised, as in
        Hugging Face transformers. "joint": each filter sees the whole row, and the kept sets are intersected.

    Returns
    -------
    array of int64
        Shape (...), or (..., num_samples) with `num_samples`. Draws without replacement are in the order in which they
        were drawn. (int32 in JAX without 64-bit mode.)

    Raises
    ------
    ValueError
        If a row has an empty support or a NaN in it (the error names the row), or fewer classes than draws without
        replacement; if an argument is out of range. On devices and under tracing values are not read: there the index
        of such a row is -1.
    TypeError
        If an argument has the wrong type.

    Notes
    -----
    Temperature and the parameters of the filters are numbers, or arrays with one number per row. Of equal scores at the
    boundary of top_k and top_p, those with the smallest column are kept. k entries of +inf share the row. A class of
    probability 0 is never drawn; one of probability 2^-40 is drawn at its rate.

    The draw of a row depends on its scores, its options, seed and stream only, not on the batch, the threads or the
    instruction set. It is the arg max of ``z / T + gumbel(z.shape, seed=seed)`` over the kept classes. Draws without
    replacement are the largest of these numbers in order. One thread processes a row. Without filters and
    log-probabilities it reads the row once for every 32 draws.

    Under `vmap` (torch, JAX) a mapped call has the noise that it has alone. So with a seed all calls have the same
    noise, unless `stream` is mapped too; without a seed torch's ``randomness=`` decides.

    No gradient: `gumbel_softmax` has one.

    References
    ----------
    Gumbel (1954), Statistical theory of extreme values. Kool, van Hoof & Welling (2019), Stochastic beams and where to
    find them, section 3. arXiv:1903.06059. Holtzman et al. (2020), The curious case of neural text degeneration
    (top-p). arXiv:1904.09751. Nguyen et al. (2024), Min p sampling. arXiv:2407.01082. And as `filter_scores`.

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
    r"""Draw as `categorical`, and return also log-probabilities and the number of remaining classes.

    .. math:: \log p_i = \beta z_i - \log \sum_{j\,\mathrm{kept}} e^{\beta z_j}

    Parameters
    ----------
    z
        As in `categorical`.
    **options
        Those of `categorical`.

    Returns
    -------
    CategoricalWithLogprob
        index; logprob, of the same shape, in the filtered and renormalised distribution (float32 for half scores); and
        support_size (...), how many classes could have been drawn.

    Raises
    ------
    TypeError, ValueError
        As `categorical`.

    Notes
    -----
    The draws are those of `categorical` with the same options. At temperature 0 logprob is 0 and support_size 1.
    Without replacement, logprob is that of a first draw. On a device or under tracing, a row that cannot be drawn from
    has NaN and 0.

    No gradient. For the gradient of log p, as in policy gradients, use
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
    """Return one number per draw, or per row if `num_samples` was not passed."""
    return as_number(x[..., 0]) if num_samples is None else x


_OF_USUAL = {"seed", "generator"}
_PLAIN = Distribution(UNIT)


def _checked(z: Any, options: DrawKeywords) -> Categorical:
    if options.keys() <= _OF_USUAL and (axes := plain_axes(z, -1)):  # one plain draw: checks take 1 us, not 10
        return Categorical(z, _PLAIN, seed_of(z, options.get("seed"), options.get("generator")), None, axes, 1, True)
    given = {**_ASKED, **options}
    z = rows_of(z)
    axis = one_axis(given["axis"], z.ndim)
    filters = {name: given[name] for name in Filters._fields}
    distribution = distribution_of(z, axis, given["temperature"], given["where"], given["order"], **filters)
    z = last(z, axis)
    replace, n = flag(given["replace"], "replace"), number_of_draws(given["num_samples"])
    if not replace and n > z.shape[-1] > 0:
        raise ValueError(f"num_samples: {n} without replacement, of {z.shape[-1]} classes")
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
        As in `categorical`. The temperature is that of the probabilities the filters look at; the scores that are kept
        are not divided by it.
    typical_p : float or array, optional
        Keep the smallest set of classes whose :math:`-\log p` is nearest to the entropy H and whose mass reaches this.
    epsilon : float or array, optional
        Keep those with p at least epsilon.
    eta : float or array, optional
        Keep those with p at least :math:`\min(\epsilon, \sqrt{\epsilon}\, e^{-H})`, epsilon being this number.

    Returns
    -------
    array
        Of z's shape and dtype.

    Raises
    ------
    TypeError, ValueError
        If an argument is of a wrong kind or out of its range.

    Notes
    -----
    One after the other, in the order top_k, top_p, min_p, typical_p, epsilon, eta, each on what is left, renormalised;
    or with "joint" each on the whole row. At least one class survives: the top one (all that equal it, of min_p,
    epsilon and eta), of typical_p alone the most typical. A row of NaN, and one with nothing in its support, stay. On
    devices and under tracing, where nobody looks, the row of a parameter out of its range is NaN.

    ``softmax(filter_scores(z, temperature=T, ...), temperature=T)`` is the distribution `categorical` draws from.

    Gradient: 1 where a score is kept, else 0.

    References
    ----------
    Meister et al. (2023), Locally typical sampling, TACL 11. arXiv:2202.00666. Hewitt, Manning & Liang (2022),
    Truncation sampling as language model desmoothing (epsilon, eta). arXiv:2210.15191. And as `categorical`.

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
