"""Log-probabilities of selected classes, for example of the tokens of a text under a language model."""

from __future__ import annotations

from typing import Any

from softargmax.core import check
from softargmax.core.arrays import as_number, device_of, like, namespace, one_axis, row_shape
from softargmax.core.signature import public
from softargmax.core.targets import IGNORE
from softargmax.core.types import Array, DType, Integers, Logits, Mask, Numbers, PerRow, Vectors
from softargmax.loss import linear_operations, operations
from softargmax.loss.arguments import CrossEntropy
from softargmax.loss.check_options import checked_options
from softargmax.loss.linear_cross_entropy import like_rows, record


@public
def selected_log_softmax(
    z: Logits,
    /,
    index: Integers,
    *,
    axis: int = -1,
    ignore_index: int = IGNORE,
    softcap: float | None = None,
    temperature: PerRow = 1.0,
    where: Mask | None = None,
    dtype: DType | None = None,
) -> Array:
    r"""Return the log-probability of one or several classes of each row, without computing those of all classes.

    .. math:: \log p_y = x_y - \mathrm{lse}, \qquad x = \frac{s \tanh(z / s)}{T}

    Parameters
    ----------
    z : array_like
        Scores, any shape but 0-d, any array library. The K classes run along `axis`.
    index : array_like
        y, for one class per row: integers, of z's shape without `axis`. For m classes per row: integers, of z's shape
        but with size m along `axis`. Each of the m classes takes one pass over z. For many classes, `log_softmax`
        followed by a gather is faster than this function.
    axis, ignore_index, softcap, temperature, where, dtype
        As in `cross_entropy`. The result of an ignored row is 0.

    Returns
    -------
    array
        The log-probabilities, at most 0, of the shape of `index`.

    Raises
    ------
    IndexError, TypeError, ValueError
        As in `cross_entropy`.

    Notes
    -----
    The result is -inf for a class outside the support, and for a row with an empty support. For the
    likely class of a confident row, the result is close to 0 and accurate.

    Gradient: with incoming g and without soft-cap, it is :math:`\frac{g}{T} (\delta_{ky} - p_k)` in the support. The
    difference :math:`1 - p_y` does not cancel: it is as accurate as the sum of the other probabilities.

    References
    ----------
    Blanchard, Higham & Higham (2021), Accurately computing the log-sum-exp and softmax functions.
    IMA Journal of Numerical Analysis 41. https://doi.org/10.1093/imanum/draa038

    Examples
    --------
    >>> import softargmax
    >>> softargmax.selected_log_softmax([[1.0, 2.0, 8.0], [1.0, 1.0, 1.0]], [2, 0]).round(4)
    array([-0.0034, -1.0986])
    >>> softargmax.selected_log_softmax([[1.0, 2.0, 8.0]], [[2, 1]]).round(4)
    array([[-0.0034, -6.0034]])
    """
    z = check.scores(z)
    index = like(index, z, "index")
    options = {"axis": axis, "ignore_index": ignore_index, "softcap": softcap, "temperature": temperature}
    options |= {"reduction": "none", "where": where, "dtype": dtype}
    several = index.ndim == z.ndim > 0
    along = one_axis(axis, z.ndim) if several else axis
    if several and row_shape(index.shape, (along,)) != row_shape(z.shape, (along,)):
        raise ValueError(
            f"index: expected z's shape {tuple(z.shape)} except along axis {along}, got {tuple(index.shape)}"
        )

    def log_p(classes: Any) -> Any:
        loss_options, axis, kept, mean, dtype = checked_options(z, classes, options, name="index")
        return 0.0 - operations.cross_entropy.first(CrossEntropy(z, loss_options, (axis,), kept, mean, dtype))

    if not several:
        return as_number(log_p(index))
    xp, before = namespace(z), (slice(None),) * along
    if not index.shape[along]:
        return xp.zeros(tuple(index.shape), dtype=check.dtype_of_rows(dtype, z), device=device_of(z))
    return xp.stack([log_p(index[(*before, j, ...)]) for j in range(index.shape[along])], axis=along)


@public
def linear_selected_log_softmax(
    h: Vectors,
    w: Vectors,
    index: Integers,
    *,
    bias: Numbers | None = None,
    ignore_index: int = IGNORE,
    softcap: float | None = None,
    temperature: PerRow = 1.0,
    where: Mask | None = None,
    dtype: DType | None = None,
) -> Array:
    r"""Return the log-probability of one class per row of a last layer's scores, without storing the scores.

    .. math:: z = h W^T + b, \qquad \log p_y

    Parameters
    ----------
    h, w, bias
        As in `linear_cross_entropy`.
    index : array_like
        y: integers of shape (...), one class per row.
    ignore_index, softcap, temperature, where, dtype
        As in `cross_entropy`. The result of an ignored row is 0.

    Returns
    -------
    array
        One number per row, at most 0.

    Raises
    ------
    IndexError, TypeError, ValueError
        As in `cross_entropy`.

    Notes
    -----
    Edge rows are as in `selected_log_softmax`. The use of memory is as in `linear_cross_entropy`.

    Gradient: with dz the gradient of `selected_log_softmax`, the gradients are :math:`dh = dz\,W`, :math:`dW = dz^T h`
    and :math:`db = \sum dz`.

    References
    ----------
    Wijmans et al. (2025), Cut your losses in large-vocabulary language models. arXiv:2411.09009.

    Examples
    --------
    >>> import softargmax
    >>> h, w = [[1.0, 2.0]], [[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]]
    >>> softargmax.linear_selected_log_softmax(h, w, [0]).round(4)
    array([-7.0034])
    """
    options = {"ignore_index": ignore_index, "softcap": softcap, "temperature": temperature}
    options |= {"reduction": "none", "where": where, "dtype": dtype}
    layer, i = record(h, w, bias, index, options, name="index")
    return as_number(0.0 - like_rows(linear_operations.linear_cross_entropy.first(i), layer))
