"""Cross-entropy of a last layer's scores, computed a few rows at a time."""

from __future__ import annotations

from typing import Any, Unpack

from softargmax.core.arrays import as_number, differentiated, namespace
from softargmax.core.dispatch import is_native
from softargmax.core.types import Array, Numbers, Target, Vectors
from softargmax.loss import linear_operations as operations
from softargmax.loss.arguments import Layer, LinearCrossEntropy, LinearTerms, LinearVjp
from softargmax.loss.check_options import LinearKeywords, checked_options, takes
from softargmax.loss.cross_entropy import terms_of
from softargmax.loss.linear_inputs import (
    CheckedLayer,
    common_layer,
    flattened,
    layer_of,
    negligible_probability,
    sums_of,
    trained_letters,
    widest_dtype,
)
from softargmax.loss.linear_operations import gradient_letters
from softargmax.loss.results import CrossEntropyTerms, LinearLossAndGradient, ToLayer


@takes(LinearKeywords)
def linear_cross_entropy(
    h: Vectors,
    w: Vectors,
    target: Target,
    *,
    bias: Numbers | None = None,
    exact: bool = False,
    **options: Unpack[LinearKeywords],
) -> Array:
    r"""Return the cross-entropy of a last layer's scores, without storing the scores.

    .. math:: z = h W^T + b, \qquad \mathrm{cross\_entropy}(z, y)

    Parameters
    ----------
    h : array_like
        Hidden vectors (..., D).
    w : array_like
        Output weights (K, D), from the same array library as h. The dtypes of w and h may differ.
    target : array_like
        One class per row: integers of shape (...). Or probabilities of shape (..., K), as in `cross_entropy`.
    bias : array, optional
        b, of shape (K,).
    exact : bool
        If True, gradients include every probability, however small. If False, they may leave out negligible
        probabilities. The notes give a bound of the error.
    **options
        The options of `cross_entropy` except `axis`. Classes run along the last axis of the scores.

    Returns
    -------
    array
        One number, or one per row if `reduction` is "none".

    Raises
    ------
    IndexError, TypeError, ValueError
        As in `cross_entropy`.

    Notes
    -----
    The function stores the scores of a few rows (a part) at a time. The number of scores of a part is at most the
    largest of four numbers: an eighth of the number of all scores, an eighth of the number of entries of w, 2^21, and
    K. Half-precision inputs are multiplied and summed in float32.

    The forward pass also computes the gradients, and saves them for the backward pass, if all three conditions hold:
    autograd records the call, the arrays are torch tensors in CPU memory, and `reduction` is "mean" or "sum". Inside
    `torch.utils.checkpoint` they are not kept, but computed again. Call the function under `torch.no_grad()` if you
    need no gradients.

    Edge rows are as in `cross_entropy`. A class whose bias is -inf is outside the support, except in rows where its
    product of h and w is +inf.

    Gradient: with dz the gradient of `cross_entropy`, the gradients are :math:`dh = dz\,W`, :math:`dW = dz^T h` and
    :math:`db = \sum dz`.

    Unless `exact` is True, probabilities of at most u / K may count as 0 in dz, where u is the rounding unit of the
    sums (2^-24 in float32, 2^-53 in float64). The compiled core sets such probabilities to 0 and skips blocks of zeros.
    The omitted probabilities of a row sum to at most u. Let :math:`g_n` be the factor of p in row n of dz: the incoming
    gradient times :math:`(\tau + 2 c\,\mathrm{lse}) / T`. Row n of dh then changes by at most
    :math:`u\,|g_n| \max_k |w_k|`. A row of dW changes by at most :math:`\frac{u}{K} \sum_n |g_n| |h_n|`. Set `exact` to
    True if the gradients of rare classes matter.

    References
    ----------
    Wijmans et al. (2025), Cut your losses in large-vocabulary language models. arXiv:2411.09009.

    Examples
    --------
    >>> import softargmax
    >>> h, w = [[1.0, 2.0]], [[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]]
    >>> float(softargmax.linear_cross_entropy(h, w, [2]))  # the scores are 1, 2, 8
    0.003384...
    """
    if exact is False and (common := common_layer(h, w, bias, target, options)):
        return as_number(operations.linear_cross_entropy.first(common))
    layer, i = record(h, w, bias, target, options, exact=exact, checked_by_kernel=True)
    if not i.kept:
        i = i._replace(forms=trained_letters(i.layer))
    return as_number(like_rows(operations.linear_cross_entropy.first(i), layer, i.kept))


@takes(LinearKeywords)
def linear_cross_entropy_terms(
    h: Vectors, w: Vectors, target: Target, *, bias: Numbers | None = None, **options: Unpack[LinearKeywords]
) -> CrossEntropyTerms:
    r"""Return loss, lse, entropy and z-loss of a last layer's scores, without storing the scores.

    .. math:: z = h W^T + b, \qquad \mathrm{cross\_entropy\_terms}(z, y)

    Parameters
    ----------
    h, w, target, bias, **options
        As in `linear_cross_entropy`.

    Returns
    -------
    CrossEntropyTerms
        loss, lse, entropy and z_loss, as `cross_entropy_terms` returns them.

    Raises
    ------
    IndexError, TypeError, ValueError
        As in `cross_entropy`.

    Notes
    -----
    Edge rows are as in `cross_entropy_terms`. The use of memory is as in `linear_cross_entropy`.

    Gradient: each of the four results can be differentiated separately, with respect to h, w and bias.

    References
    ----------
    Wijmans et al. (2025), Cut your losses in large-vocabulary language models. arXiv:2411.09009.

    Examples
    --------
    >>> import softargmax
    >>> h, w = [[1.0, 2.0]], [[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]]
    >>> float(softargmax.linear_cross_entropy_terms(h, w, [2]).lse)
    8.003384...
    """
    layer, i = record(h, w, bias, target, options)
    rows = CrossEntropyTerms(*operations.linear_terms(LinearTerms(i.layer, i.options, i.sums)))
    found = terms_of(rows, i.options, (1,), i.kept, i.mean, i.dtype)
    return CrossEntropyTerms(*(as_number(like_rows(part, layer, i.kept)) for part in found))


@takes(LinearKeywords)
def linear_cross_entropy_and_gradient(
    h: Vectors,
    w: Vectors,
    target: Target,
    *,
    bias: Numbers | None = None,
    exact: bool = False,
    **options: Unpack[LinearKeywords],
) -> LinearLossAndGradient:
    r"""Return the cross-entropy of a last layer's scores and its gradients with respect to h, w and bias.

    .. math:: \ell, \qquad \frac{\partial \ell}{\partial h}, \quad \frac{\partial \ell}{\partial W}, \quad
        \frac{\partial \ell}{\partial b}

    Parameters
    ----------
    h, w, target, bias, exact, **options
        As in `linear_cross_entropy`.

    Returns
    -------
    LinearLossAndGradient
        loss, as `linear_cross_entropy` returns it, and dh, dw and dbias, with the shapes and dtypes of h, w and bias.
        dbias is None without a bias. If `reduction` is "none", the gradients are those of the sum of the losses.

    Raises
    ------
    IndexError, TypeError, ValueError
        As in `cross_entropy`.

    Notes
    -----
    Edge rows are as in `cross_entropy`. The vectors of masked classes and of ignored rows do not affect any gradient,
    even if they contain NaN or inf.

    Gradient: with dz the gradient of `cross_entropy`, the gradients are :math:`dh = dz\,W`, :math:`dW = dz^T h` and
    :math:`db = \sum dz`.

    On Dask arrays, dW and db are sums of those of the chunks of rows, in float64. So their last bits depend on how the
    rows are cut. They agree with a call in memory to rounding.

    References
    ----------
    Wijmans et al. (2025), Cut your losses in large-vocabulary language models. arXiv:2411.09009.

    Examples
    --------
    >>> import softargmax
    >>> h, w = [[1.0, 2.0]], [[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]]
    >>> softargmax.linear_cross_entropy_and_gradient(h, w, [2]).dh.round(4)
    array([[-0.0058, -0.0077]])
    """
    layer, i = record(h, w, bias, target, options, exact=exact, checked_by_kernel=True)
    forms = gradient_letters([name for name, x in zip(Layer._fields, i.layer, strict=True) if x is not None])
    if differentiated(*i.layer, i.options.weight, i.options.probabilities, *i.options.beta):
        loss = operations.linear_cross_entropy.first(i)
        found = operations.linear_cross_entropy_vjp(LinearVjp(i, namespace(loss).ones_like(loss), forms))
    else:
        loss, *gradients = operations.linear_cross_entropy(i._replace(forms=forms))
        found = ToLayer(*gradients)
    xp = namespace(layer.h)
    dh, dw, db = (x if of is None else xp.astype(x, of.dtype, copy=False) for x, of in zip(found, i.layer, strict=True))
    loss = as_number(like_rows(loss, layer, i.kept))
    return LinearLossAndGradient(loss, xp.reshape(dh, tuple(layer.h.shape)), dw, None if bias is None else db)


def record(
    h: Any,
    w: Any,
    bias: Any,
    target: Any,
    options: Any,
    *,
    exact: bool = False,
    name: str = "target",
    checked_by_kernel: bool = False,
) -> tuple[CheckedLayer, LinearCrossEntropy]:
    """Check the arguments. Return the checked layer, and the operation's arguments with arrays of shape (N, ...).

    Class values are not checked here if the kernel checks them.
    """
    layer = layer_of(h, w, bias)
    options = {**options, "dtype": widest_dtype(options.get("dtype"), layer)}
    look = not (checked_by_kernel and is_native(layer.h))
    loss_options, _, kept, mean, dtype = checked_options(layer.h, target, options, layer.shape, name, look=look)
    return layer, LinearCrossEntropy(
        layer=layer.flat,
        options=flattened(loss_options, layer.shape),
        kept=min(kept, 1),
        mean=mean,
        least=negligible_probability(layer, exact),
        forms="",
        sums=sums_of(layer),
        dtype=dtype,
    )


def like_rows(rows: Any, layer: CheckedLayer, kept: int = 1) -> Any:
    """Reshape one number per row to h's shape without the last axis. Return a single number unchanged."""
    return namespace(rows).reshape(rows, layer.shape[:-1]) if kept else rows
