"""Cross-entropy of scores that are made of hidden vectors, which never exist all at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

from softargmax.core.dispatch import namespace
from softargmax.core.reduce import counts, factor, reduced
from softargmax.loss.implement import implementation
from softargmax.loss.layer import Layer, flattened, layer_of, least_of, wide_of
from softargmax.loss.of_scores import terms_of
from softargmax.loss.options import Beside, LinearKeywords, Options, checked
from softargmax.loss.results import CrossEntropyTerms, LinearLossAndGradient


def linear_cross_entropy(
    h: Any, w: Any, target: Any, /, *, bias: Any = None, exact: bool = False, **options: Unpack[LinearKeywords]
) -> Any:
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
    layer, beside, asked, flat = checked_layer(h, w, bias, target, options)
    flat_asked = replace(asked, axis=1, least=least_of(layer, exact))
    rows = implementation(layer.h).linear_loss(layer.flat, flat, flat_asked)
    return reduced(like_rows(rows, layer), counts(beside, asked), asked)


def linear_cross_entropy_terms(
    h: Any, w: Any, target: Any, /, *, bias: Any = None, **options: Unpack[LinearKeywords]
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
    layer, beside, asked, flat = checked_layer(h, w, bias, target, options)
    rows = implementation(layer.h).linear_terms(layer.flat, flat, replace(asked, axis=1))
    return terms_of(CrossEntropyTerms(*(like_rows(part, layer) for part in rows)), beside, asked)


def linear_cross_entropy_and_gradient(
    h: Any, w: Any, target: Any, /, *, bias: Any = None, exact: bool = False, **options: Unpack[LinearKeywords]
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
    layer, beside, asked, flat = checked_layer(h, w, bias, target, options)
    count = counts(beside, asked)
    run = implementation(layer.h)
    flat_asked = replace(asked, axis=1, least=least_of(layer, exact))
    found = run.linear_loss_and_gradient(layer.flat, factor(count, asked), flat, flat_asked)
    loss = reduced(like_rows(found.loss, layer), count, asked)
    return LinearLossAndGradient(loss, namespace(layer.h).reshape(found.dh, tuple(layer.h.shape)), *found[2:])


def checked_layer(
    h: Any, w: Any, bias: Any, target: Any, options: Any, name: str = "target"
) -> tuple[Layer, Beside, Options, Beside]:
    """The layer, what stands beside its scores and the options; at last what stands beside the scores as rows."""
    layer = layer_of(h, w, bias)
    if "axis" in options:
        raise TypeError("axis: no option here; the classes run along the last axis of the scores")
    asked = {**options, "dtype": wide_of(options.get("dtype"), layer)}
    beside, checked_options = checked(layer.h, target, asked, layer.shape, name)
    return layer, beside, checked_options, flattened(beside, layer.shape)


def like_rows(rows: Any, layer: Layer) -> Any:
    """A number per row in the shape of h's rows."""
    return namespace(rows).reshape(rows, layer.shape[:-1])
