"""Cross-entropy of scores and targets: the loss, its parts, its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from softargmax.core import check
from softargmax.core.arrays import as_number, differentiated, namespace, squeezed, working_dtype
from softargmax.core.dispatch import is_native
from softargmax.core.loss_reduction import reduced
from softargmax.core.scale import UNIT
from softargmax.core.types import Array, Logits, Target
from softargmax.loss import operations, reference
from softargmax.loss.arguments import CrossEntropy, CrossEntropyVjp, GradientOf
from softargmax.loss.options import Keywords, checked, takes, usual
from softargmax.loss.results import CrossEntropyTerms, LossAndGradient
from softargmax.normalize import operations as normalize
from softargmax.normalize.operations import LogSumExp, Scores

if TYPE_CHECKING:
    from softargmax.loss.arguments import LossOptions


@takes(Keywords)
def cross_entropy(z: Logits, /, target: Target, **options: Unpack[Keywords]) -> Array:
    r"""The cross-entropy of the softmax of scores with targets, in nats.

    Classes run along the last axis. `torch.nn.functional.cross_entropy` has them along axis 1: of scores (N, K, d1, ..)
    that is `axis=1` here.

    .. math::
        \ell = -\sum_k m_k \log p_k + c\,\mathrm{lse}^2, \qquad
        m_k = w_k \left((1 - \epsilon)\,t_k + \frac{\epsilon}{n}\right), \qquad
        p = \mathrm{softmax}\!\left(\frac{s \tanh(z / s)}{T}\right)

    Parameters
    ----------
    z : array_like
        Scores, any shape but 0-d, any array library; the K classes run along `axis`.
    target : array_like
        Classes, integers of the rows' shape; or probabilities t, floats of z's shape. Their values are not checked: the
        loss is what the formula gives, of negative ones and of any sum.
    axis : int
        The axis of the classes.
    reduction : {"mean", "sum", "none"}
        What becomes of the rows' losses. The mean is divided by the sum of the rows' :math:`w_y`, of probabilities by
        the number of rows.
    ignore_index : int
        The class of rows that count nothing. If nothing counts, the mean and its gradient are 0 (torch: NaN).
    weight : array, optional
        w, one per class, at least 0.
    label_smoothing : float
        :math:`\epsilon`, from 0 to 1: that much of the target is spread over the n scores in the support.
    z_loss : float
        c, at least 0: keeps lse near 0. Without class weight; divided like the loss.
    softcap : float, optional
        s: scores are bent to stay between -s and s. What is out of the support stays out.
    temperature : float or array
        T as in `softmax`.
    where : array of bool, optional
        The support as in `softmax`.
    dtype : dtype, optional
        The floating dtype of the result; if None that of z, and float32 for half scores.

    Returns
    -------
    array
        One number, or one per row.

    Raises
    ------
    IndexError
        If a class is out of range: the first such one is named, with its place. (On devices and under tracing, where
        nobody looks, its row is NaN.)
    TypeError
        If targets are neither integers nor probabilities of z's shape, or an option is of a wrong kind.
    ValueError
        If an option is out of its range, or a shape does not fit.

    Notes
    -----
    A row with nothing in its support: +inf whatever its target, gradient 0. A target outside the support: +inf,
    gradient :math:`\tau p` in the support. k scores of +inf share the row: log k, gradient 0. NaN in the support: NaN.
    An ignored row is 0 whatever its scores.

    A confident row keeps its small loss: where :math:`z_y` is 20 above the other it is 2.06e-9.

    Gradient, with :math:`\tau = \sum_k m_k`, in the support: :math:`\frac{1}{T}\,(1 - \tanh^2(z_k / s))` times
    :math:`\tau p_k - m_k + 2 c\,\mathrm{lse}\,p_k`, where :math:`p_y - 1` is formed from what the others have.

    References
    ----------
    Szegedy et al. (2016), Rethinking the Inception architecture, section 7 (label smoothing). arXiv:1512.00567.
    Chowdhery et al. (2022), PaLM, section 5 (z-loss). arXiv:2204.02311.

    Examples
    --------
    >>> import softargmax
    >>> float(softargmax.cross_entropy([[1.0, 2.0, 8.0]], [2]))
    0.003384...
    >>> softargmax.cross_entropy([[1.0, 2.0], [3.0, 1.0]], [0, -100], reduction="none").round(4)
    array([1.3133, 0.    ])
    >>> float(softargmax.cross_entropy([20.0, 0.0], 0))  # torch in float32: 0.0
    2.061153...e-09
    """
    i = usual(z, target, options)
    return as_number(operations.cross_entropy.first(record(z, target, options) if i is None else i))


def record(z: Any, target: Any, options: Keywords) -> CrossEntropy:
    """The operation's arguments, checked."""
    z = check.scores(z)
    asked, axis, kept, mean, dtype = checked(z, target, options, look=not is_native(z))
    return CrossEntropy(z, asked, (axis,), kept, mean, dtype)


@takes(Keywords)
def cross_entropy_terms(z: Logits, /, target: Target, **options: Unpack[Keywords]) -> CrossEntropyTerms:
    r"""The cross-entropy with what it is made of: log-denominator, entropy and z-loss of the same softmax.

    .. math::
        \ell, \qquad \mathrm{lse} = \log \sum_k e^{x_k}, \qquad H = -\sum_k p_k \log p_k, \qquad c\,\mathrm{lse}^2

    Parameters
    ----------
    z, target
        As in `cross_entropy`.
    **options
        Those of `cross_entropy`.

    Returns
    -------
    CrossEntropyTerms
        loss (with the z-loss in it), lse, entropy, z_loss: each one number per row, or reduced. The mean of loss and
        z_loss is divided as that of `cross_entropy`, the mean of lse and entropy by the number of rows that count.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `cross_entropy`.

    Notes
    -----
    x are the scores after soft-cap and temperature, as in `cross_entropy`, so that lse is the logarithm of softmax's
    denominator; `logsumexp` with a temperature T is T times that. An ignored row is 0 in every term. A row with nothing
    in its support: loss +inf, lse -inf, entropy 0.

    Gradient: every term has its own; that of the entropy is :math:`-p_k (\log p_k + H)` to :math:`x_k`, of lse
    :math:`p_k`.

    References
    ----------
    Wijmans et al. (2025), Cut your losses in large-vocabulary language models. arXiv:2411.09009.

    Examples
    --------
    >>> import softargmax
    >>> terms = softargmax.cross_entropy_terms([[1.0, 2.0, 8.0], [1.0, 1.0, 1.0]], [2, 0], reduction="none")
    >>> terms.loss.round(4), terms.entropy.round(4)
    (array([0.0034, 1.0986]), array([0.0246, 1.0986]))
    """
    i = record(z, target, options)
    return terms_of(_terms(i), i.asked, i.axes, i.kept, i.mean, i.dtype)


def _terms(i: CrossEntropy) -> CrossEntropyTerms:
    """The terms of every row, each with its own derivative."""
    z, asked, axes = i.z, i.asked, i.axes
    kind = working_dtype(z, namespace(z))
    x = reference.capped(namespace(z).astype(z, kind) if asked.softcap else z, asked.beta, asked.softcap)
    if asked.beta is UNIT:
        lse = normalize.logsumexp.first(LogSumExp(x, None, asked.where, UNIT, axes, kind))
    else:
        lse = normalize.softmax(Scores(x, asked.where, asked.beta, axes, kind)).lse
    entropy = normalize.entropy.first(Scores(x, asked.where, asked.beta, axes, kind))
    lse, entropy = squeezed(lse, axes), squeezed(entropy, axes)
    loss = operations.cross_entropy.first(i._replace(kept=z.ndim - 1, mean=False, dtype=kind))
    xp = namespace(z)
    # Without a z-loss its derivative is 0, not none.
    of_z = asked.z_loss * lse * lse if asked.z_loss else xp.where(xp.isfinite(entropy), 0.0 * entropy, 0.0)
    found = CrossEntropyTerms(loss, lse, entropy, of_z)
    if asked.target is None:
        return found
    ignored = asked.target == asked.ignore_index
    return CrossEntropyTerms(*(xp.where(ignored, 0.0, one) for one in found))


def terms_of(
    rows: CrossEntropyTerms, asked: LossOptions, axes: tuple[int, ...], kept: int, mean: bool, dtype: Any
) -> CrossEntropyTerms:
    """The rows' terms as asked for: the mean of loss and z-loss is weighted, that of the others counts rows."""
    weighed, plain = (reference.weights_of_rows(rows.loss, one, axes) for one in (asked, asked._replace(weight=None)))
    of = (weighed, plain, plain, weighed)
    return CrossEntropyTerms(
        *(reduced(one, count, dtype, kept=kept, mean=mean) for one, count in zip(rows, of, strict=True))
    )


@takes(Keywords)
def cross_entropy_and_gradient(z: Logits, /, target: Target, **options: Unpack[Keywords]) -> LossAndGradient:
    r"""The cross-entropy and its gradient to the scores, in one pass: training without a framework.

    .. math:: \ell, \qquad \frac{\partial \ell}{\partial z}

    Parameters
    ----------
    z, target
        As in `cross_entropy`.
    **options
        Those of `cross_entropy`.

    Returns
    -------
    LossAndGradient
        loss as `cross_entropy` returns it; gradient, of z's shape and dtype, that of the loss, for reduction "none" of
        each row's own.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `cross_entropy`.

    Notes
    -----
    Edge rows and the formula of the gradient are those of `cross_entropy`. Where the row is confident the gradient is
    as exact as where it is not, also on libraries whose own derivative would lose it in p - 1.

    References
    ----------
    Bridle (1990), Probabilistic interpretation of feedforward classification network outputs. Neurocomputing, 227-236.

    Examples
    --------
    >>> import softargmax
    >>> loss, gradient = softargmax.cross_entropy_and_gradient([[1.0, 2.0, 8.0], [1.0, 1.0, 1.0]], [2, 0])
    >>> gradient.round(3)
    array([[ 0.   ,  0.001, -0.002],
           [-0.333,  0.167,  0.167]])
    """
    i = record(z, target, options)
    if not differentiated(i.z, i.asked.weight, i.asked.probabilities, *i.asked.beta):
        loss, gradient = operations.cross_entropy_and_gradient(GradientOf(i, None, 0.0))
        return LossAndGradient(as_number(loss), gradient)
    loss, states = operations.cross_entropy(i)
    states = None if states.shape == (0,) else states
    one = namespace(loss).ones_like(loss)
    return LossAndGradient(loss, operations.cross_entropy_vjp.first(CrossEntropyVjp(i, states, one, 0.0)))
