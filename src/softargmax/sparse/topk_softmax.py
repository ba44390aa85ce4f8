"""topk_softmax: the softmax of the k largest scores of each row."""

from __future__ import annotations

from softargmax.core import check
from softargmax.core.arrays import namespace, one_axis
from softargmax.core.signature import public
from softargmax.core.types import Array, Logits, Mask, PerRow
from softargmax.normalize import softmax
from softargmax.sample import filter_scores


@public
def topk_softmax(
    z: Logits, /, k: PerRow, *, axis: int = -1, temperature: PerRow = 1.0, where: Mask | None = None
) -> Array:
    r"""Return the softmax over the k largest scores of each row, and 0 elsewhere.

    .. math:: p_i = \frac{[i \in I_k]\, e^{z_i / T}}{\sum_{j \in I_k} e^{z_j / T}}

    Parameters
    ----------
    z : array_like
        Scores, any shape except 0-d, any array library. The result has the same array type, shape and dtype.
    k : int or array
        The number of scores to keep, at least 1. A row with fewer scores keeps all of them. An array has one k per row.
    axis : int
        The axis of a row of scores.
    temperature : float or array
        T as in `softmax`, at least 0.
    where : array of bool, optional
        The support, as in `softmax`.

    Returns
    -------
    array
        p, of z's shape. A row sums to 1, or is 0 if its support is empty.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value. A wrong `axis` raises AxisError, a ValueError.

    Notes
    -----
    Exactly k scores are kept, or the whole support if it is smaller. If equal scores compete for the last places, the
    ones with the lowest indices are kept. Scores are compared exactly, without a tolerance. Edge rows are those of
    `softmax`.

    Gradient: that of `softmax` over the kept scores, and 0 elsewhere.

    See Also
    --------
    filter_scores : top-k and other filters of the scores.
    sparsemax, entmax : continuous sparse maps, whose support size depends on the scores.

    References
    ----------
    Shazeer et al. (2017), Outrageously large neural networks: the sparsely-gated mixture-of-experts layer, section 2.1.
    arXiv:1701.06538.

    Examples
    --------
    >>> import softargmax
    >>> softargmax.topk_softmax([1.0, 4.0, 2.0, 3.0], 2).round(3)
    array([0.   , 0.731, 0.   , 0.269])
    """
    z = check.scores(z)
    if not z.ndim:
        raise ValueError("z: expected at least one axis, along which the k largest scores are kept, got a 0-d array")
    xp, axis = namespace(z), one_axis(axis, z.ndim)
    # T may not be negative: dropped scores become -inf, which would then get the largest probability.
    expected = "a number from 0 on, infinity included"
    temperature = check.within(temperature, z, (axis,), "temperature", lambda t: t >= 0.0, expected)
    front = tuple(i for i in range(z.ndim) if i != axis)
    back = tuple((*front, axis).index(i) for i in range(z.ndim))
    if where is not None:
        where = xp.permute_dims(xp.broadcast_to(check.mask(where, z), tuple(z.shape)), (*front, axis))
    rows = xp.permute_dims(z, (*front, axis))
    last, whole = (z.ndim - 1,), "an integer, 1 or above"
    k = check.within(k, rows, last, "k", lambda k: (k >= 1) & (k % 1 == 0), whole, whole=True)
    kept = filter_scores(rows, top_k=k, where=where)
    return softmax(xp.permute_dims(kept, back), axis=axis, temperature=temperature)
