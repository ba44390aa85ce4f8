"""Cross-entropy of scores that are made of hidden vectors, which never exist all at once."""

from __future__ import annotations

from typing import Any, Unpack

from softargmax.core.arrays import as_number, differentiated, namespace, trained
from softargmax.core.types import Array, Numbers, Target, Vectors
from softargmax.loss import linear_operations as operations
from softargmax.loss.arguments import Layer, LinearCrossEntropy, LinearTerms, LinearVjp
from softargmax.loss.cross_entropy import terms_of
from softargmax.loss.linear_inputs import Given, flattened, layer_of, least_of, sums_of, wide_of
from softargmax.loss.linear_operations import letters
from softargmax.loss.options import LinearKeywords, checked, takes
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
    r"""The cross-entropy of the scores of a last layer, without holding the scores.

    .. math:: z = h W^T + b, \qquad \mathrm{cross\_entropy}(z, y)

    Parameters
    ----------
    h : array_like
        Hidden vectors (..., D).
    w : array_like
        Output weights (K, D), of h's library; its dtype may differ.
    target : array_like
        Classes, integers of shape (...); or probabilities (..., K), as in `cross_entropy`.
    bias : array, optional
        b, one per class.
    exact : bool
        Whether every probability counts in gradients, however small (see the notes).
    **options
        Those of `cross_entropy` but `axis`: the classes run along the scores' last axis.

    Returns
    -------
    array
        One number, or one per row.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `cross_entropy`.

    Notes
    -----
    Scores exist for a few rows at a time: at most an eighth of them at once. Half-precision inputs are multiplied and
    added up in float32. On tensors in CPU memory the forward of a mean or a sum that may be differentiated forms the
    gradients, and keeps them for the backward: where there will be none, call it under `torch.no_grad()`.

    Edge rows are those of `cross_entropy`. A class that b = -inf puts out of the support stays out.

    Gradient: with dz that of `cross_entropy`, :math:`dh = dz\,W`, :math:`dW = dz^T h`, :math:`db = \sum dz`.
    Probabilities of at most u / K, with u the rounding of the sums (2^-24, in float64 2^-53), may be taken as 0 in dz
    (the compiled core does, and skips what is 0 throughout): together they are at most u in a row. So with g what p is
    multiplied by in a row's dz, its incoming gradient times :math:`(\tau + 2 c\,\mathrm{lse}) / T`, a row of dh changes
    by at most :math:`u\,|g| \max_k |w_k|`, and a row of dW by at most :math:`\frac{u}{K} \sum_n |g_n| |h_n|`. With
    `exact` they count, as the gradients of rare classes may want.

    References
    ----------
    Wijmans et al. (2025), Cut your losses in large-vocabulary language models. arXiv:2411.09009.

    Examples
    --------
    >>> import softargmax
    >>> h, w = [[1.0, 2.0]], [[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]]
    >>> float(softargmax.linear_cross_entropy(h, w, [2]))  # of the scores 1, 2, 8
    0.003384...
    """
    layer, i = record(h, w, bias, target, options, exact=exact)
    if not i.kept:
        i = i._replace(forms=letters([name for name, x in zip(Layer._fields, i.layer, strict=True) if trained(x)]))
    return as_number(like_rows(operations.linear_cross_entropy.first(i), layer, i.kept))


@takes(LinearKeywords)
def linear_cross_entropy_terms(
    h: Vectors, w: Vectors, target: Target, *, bias: Numbers | None = None, **options: Unpack[LinearKeywords]
) -> CrossEntropyTerms:
    r"""The linear cross-entropy with what it is made of.

    .. math:: z = h W^T + b, \qquad \mathrm{cross\_entropy\_terms}(z, y)

    Parameters
    ----------
    h, w, target, bias, **options
        As in `linear_cross_entropy`.

    Returns
    -------
    CrossEntropyTerms
        loss, lse, entropy, z_loss as `cross_entropy_terms` returns them.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `cross_entropy`.

    Notes
    -----
    Edge rows are those of `cross_entropy_terms`, memory is that of `linear_cross_entropy`.

    Gradient: every term has its own, to h, w and bias.

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
    rows = CrossEntropyTerms(*operations.linear_terms(LinearTerms(i.layer, i.asked, i.sums)))
    found = terms_of(rows, i.asked, (1,), i.kept, i.mean, i.dtype)
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
    r"""The linear cross-entropy and its gradients to h, w and bias.

    .. math:: \ell, \qquad \frac{\partial \ell}{\partial h}, \quad \frac{\partial \ell}{\partial W}, \quad
        \frac{\partial \ell}{\partial b}

    Parameters
    ----------
    h, w, target, bias, exact, **options
        As in `linear_cross_entropy`.

    Returns
    -------
    LinearLossAndGradient
        loss as `linear_cross_entropy` returns it; dh, dw and dbias of the shapes and dtypes of h, w and bias, None
        without one. For reduction "none" they are those of the sum.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `cross_entropy`.

    Notes
    -----
    Edge rows are those of `cross_entropy`. Vectors of masked classes and of ignored rows have no part in a gradient,
    NaN or inf included.

    Gradient: :math:`dh = dz\,W`, :math:`dW = dz^T h`, :math:`db = \sum dz`.

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
    layer, i = record(h, w, bias, target, options, exact=exact)
    forms = letters([name for name, x in zip(Layer._fields, i.layer, strict=True) if x is not None])
    if differentiated(*i.layer, i.asked.weight, i.asked.probabilities, *i.asked.beta):
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
    h: Any, w: Any, bias: Any, target: Any, options: Any, *, exact: bool = False, name: str = "target"
) -> tuple[Given, LinearCrossEntropy]:
    """The layer as it was given, and the operation's arguments: checked, and laid out as rows."""
    layer = layer_of(h, w, bias)
    given = {**options, "dtype": wide_of(options.get("dtype"), layer)}
    asked, _, kept, mean, dtype = checked(layer.h, target, given, layer.shape, name)
    return layer, LinearCrossEntropy(
        layer=layer.flat,
        asked=flattened(asked, layer.shape),
        kept=min(kept, 1),
        mean=mean,
        least=least_of(layer, exact),
        forms="",
        sums=sums_of(layer),
        dtype=dtype,
    )


def like_rows(rows: Any, layer: Given, kept: int = 1) -> Any:
    """A number per row in the shape of h's rows; of all rows, as it is."""
    return namespace(rows).reshape(rows, layer.shape[:-1]) if kept else rows
