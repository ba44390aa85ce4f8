"""The softmax of a row's k largest scores."""

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
    r"""The softmax over the k largest scores of each row, 0 elsewhere.

    .. math:: p_i = \frac{[i \in I_k]\, e^{z_i / T}}{\sum_{j \in I_k} e^{z_j / T}}

    Parameters
    ----------
    z : array_like
        Scores, any shape but 0-d, any array library; the result is of the same kind, shape and dtype.
    k : int or array
        How many scores keep a probability, 1 or above; more than there are keep all. An array has one per row.
    axis : int
        The axis along which a row of scores runs.
    temperature : float or array
        T as in `softmax`, not negative.
    where : array of bool, optional
        The support as in `softmax`.

    Returns
    -------
    array
        p, of z's shape. A row sums to 1, or is 0 if nothing is in its support.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong kind or dtype; if it has a wrong shape or value (of axis: AxisError, a ValueError).

    Notes
    -----
    Exactly k scores are kept, or the whole support where it is smaller: of equal scores at the boundary those of the
    lowest indices. Scores are compared as they are, however near to each other. The edge rows are those of `softmax`.

    Gradient: that of `softmax` over the scores that are kept, 0 elsewhere.

    See Also
    --------
    filter_scores : this and other choices of scores.
    sparsemax, entmax : sparse maps that choose the number of scores themselves, and are continuous.

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
        raise ValueError("z: 0-d; the k largest scores are those of an axis")
    xp, axis = namespace(z), one_axis(axis, z.ndim)
    # Below 0 the scores that are left out, -inf, would be the largest.
    may = "a number from 0 on, infinity included"
    temperature = check.within(temperature, z, (axis,), "temperature", lambda t: t >= 0.0, may)
    front = tuple(i for i in range(z.ndim) if i != axis)
    back = tuple((*front, axis).index(i) for i in range(z.ndim))
    if where is not None:
        where = xp.permute_dims(xp.broadcast_to(check.mask(where, z), tuple(z.shape)), (*front, axis))
    rows = xp.permute_dims(z, (*front, axis))
    last, whole = (z.ndim - 1,), "an integer, 1 or above"
    k = check.within(k, rows, last, "k", lambda k: (k >= 1) & (k % 1 == 0), whole, whole=True)
    kept = filter_scores(rows, top_k=k, where=where)
    return softmax(xp.permute_dims(kept, back), axis=axis, temperature=temperature)
