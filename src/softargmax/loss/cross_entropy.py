"""Cross-entropy of scores and targets, its terms and its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from softargmax.core import check
from softargmax.core.arrays import (
    as_number,
    differentiated,
    dtype_name,
    namespace,
    row_dtype,
    squeezed,
    working_dtype,
)
from softargmax.core.dispatch import is_for_cuda, is_native
from softargmax.core.loss_reduction import reduced
from softargmax.core.scale import UNIT
from softargmax.core.types import Array, Logits, Target
from softargmax.loss import operations, reference
from softargmax.loss.arguments import CrossEntropy, CrossEntropyVjp, GradientOf
from softargmax.loss.check_options import Keywords, checked_options, common_call, takes
from softargmax.loss.results import CrossEntropyTerms, LossAndGradient
from softargmax.normalize import operations as normalize
from softargmax.normalize.operations import LogSumExp, Scores

if TYPE_CHECKING:
    from softargmax.loss.arguments import LossOptions


@takes(Keywords)
def cross_entropy(z: Logits, /, target: Target, **options: Unpack[Keywords]) -> Array:
    r"""Return the cross-entropy between targets and the softmax of scores, in nats.

    Classes run along the last axis by default. In `torch.nn.functional.cross_entropy` they run along axis 1. For scores
    of shape (N, K, d1, ..) pass `axis=1`.

    .. math::
        \ell = -\sum_k m_k \log p_k + c\,\mathrm{lse}^2, \qquad
        m_k = w_k \left((1 - \epsilon)\,t_k + \frac{\epsilon}{n}\right), \qquad
        p = \mathrm{softmax}\!\left(\frac{s \tanh(z / s)}{T}\right)

    Parameters
    ----------
    z : array_like
        Scores, any shape but 0-d, any array library. The K classes run along `axis`.
    target : array_like
        One class per row: integers, of z's shape without `axis`. t is then 1 for this class and 0 for all others. Or
        probabilities t: floats of z's shape. The values of probabilities are not checked. The formula also applies if
        some are negative or if they do not sum to 1.
    axis : int
        The axis of the classes.
    reduction : {"mean", "sum", "none"}
        "none" returns the loss of each row, and "sum" the sum of these losses. "mean" divides that sum by the sum of
        :math:`w_y` over the rows, where y is the class of a row. If the targets are probabilities, it divides by the
        number of rows.
    ignore_index : int
        Rows with this class are ignored. If all rows are ignored or have weight 0, the mean and its gradient are 0
        (torch: NaN).
    weight : array, optional
        w: the weight of each class, at least 0, of shape (K,).
    label_smoothing : float
        :math:`\epsilon`, from 0 to 1: the part of the target that is spread uniformly over the n scores in the support.
    z_loss : float
        c, at least 0. The term :math:`c\,\mathrm{lse}^2` keeps lse near 0. It is not multiplied by class weights. The
        mean divides it by the same number as the rest of the loss.
    softcap : float, optional
        s, above 0. Scores are soft-capped to between -s and s. Entries outside the support stay outside it. By default
        the scores are not soft-capped.
    temperature : float or array
        T, as in `softmax`.
    where : array of bool, optional
        True for the entries in the support, as in `softmax`.
    dtype : dtype, optional
        Floating dtype of the result; defaults to z's dtype, and to float32 for half-precision scores.

    Returns
    -------
    array
        One number, or one per row if `reduction` is "none".

    Raises
    ------
    IndexError
        If a class is out of range. The message names the first such class and its position. On a device or under
        tracing, classes cannot be checked. A row with a class out of range then has a loss of NaN.
    TypeError
        If targets are neither integers nor probabilities of z's shape, or an option has the wrong type.
    ValueError
        If an option is out of its range, or shapes do not match.

    Notes
    -----
    Edge rows:

    - Empty support: the loss is +inf for every target, and the gradient is 0.
    - Target outside the support: the loss is +inf, and the gradient is :math:`\tau p` in the support, with
      :math:`\tau = \sum_k m_k`.
    - k scores of +inf, including the target's score: the loss is log k, and the gradient is 0.
    - NaN in the support: the loss is NaN.
    - Ignored row: the loss and the gradient are 0, even if a score is NaN.

    The small loss of a confident row is accurate. For example, if :math:`z_y` is 20 above the only other score, the
    loss is 2.06e-9.

    Gradient: in the support, with :math:`\tau = \sum_k m_k`, it is :math:`\frac{1}{T}\,(1 - \tanh^2(z_k / s))` times
    :math:`\tau p_k - m_k + 2 c\,\mathrm{lse}\,p_k`. For a target class y, :math:`1 - p_y` does not cancel: it is as
    accurate as the sum of the other probabilities. The gradient is 0 outside the support.

    The forward pass also computes the gradient, and saves it for the backward pass, if all four conditions hold:
    autograd records the call, and of its arguments only z needs a gradient; z is a torch tensor in CPU memory, and not
    in half precision; `reduction` is "mean" or "sum"; and the call is not inside `torch.utils.checkpoint`. Call the
    function under `torch.no_grad()` if you need no gradient.

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
    >>> float(softargmax.cross_entropy([20.0, 0.0], 0))  # torch in float32 returns 0.0
    2.061153...e-09
    """
    i = common_call(z, target, options)
    return as_number(operations.cross_entropy.first(record(z, target, options) if i is None else i))


def record(z: Any, target: Any, options: Keywords) -> CrossEntropy:
    """Check the arguments of a public function and return the operation's arguments."""
    z = check.scores(z)
    loss_options, axis, kept, mean, dtype = checked_options(z, target, options, look=not is_native(z))
    return CrossEntropy(z, loss_options, (axis,), kept, mean, dtype)


@takes(Keywords)
def cross_entropy_terms(z: Logits, /, target: Target, **options: Unpack[Keywords]) -> CrossEntropyTerms:
    r"""Return the cross-entropy together with the lse, the entropy and the z-loss of the same softmax.

    .. math::
        \ell, \qquad \mathrm{lse} = \log \sum_k e^{x_k}, \qquad H = -\sum_k p_k \log p_k, \qquad c\,\mathrm{lse}^2

    Parameters
    ----------
    z, target
        As in `cross_entropy`.
    **options
        The options of `cross_entropy`.

    Returns
    -------
    CrossEntropyTerms
        loss (which includes the z-loss), lse, entropy and z_loss. Each is one number, or one per row if `reduction` is
        "none". For "mean", the sums of loss and z_loss are divided by the same number as in `cross_entropy`. The sums
        of lse and entropy are divided by the number of rows that are not ignored.

    Raises
    ------
    IndexError, TypeError, ValueError
        As in `cross_entropy`.

    Notes
    -----
    :math:`x = s \tanh(z / s) / T` are the scores after soft-cap and temperature. lse is the logarithm of softmax's
    denominator. `logsumexp` with temperature T returns T times lse. All results of an ignored row are 0. A row with an
    empty support has loss +inf, lse -inf and entropy 0.

    Gradient: each of the four results can be differentiated separately. With respect to :math:`x_k`, the gradient of
    the entropy is :math:`-p_k (\log p_k + H)`, and the gradient of lse is :math:`p_k`.

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
    return terms_of(_terms(i), i.options, i.axes, i.kept, i.mean, i.dtype)


def _terms(i: CrossEntropy) -> CrossEntropyTerms:
    """Return loss, lse, entropy and z-loss of every row. Each can be differentiated separately."""
    z, options, axes = i.z, i.options, i.axes
    xp, wide = namespace(z), working_dtype(z, namespace(z))
    kind = wide
    if dtype_name(i.dtype) != "float64" and is_for_cuda(z, "cross_entropy"):
        kind = row_dtype(z.dtype)  # kernels round the numbers of a row to float32
    x = reference.capped(namespace(z).astype(z, kind) if options.softcap else z, options.beta, options.softcap)
    if options.beta is UNIT:
        lse = normalize.logsumexp.first(LogSumExp(x, None, options.where, UNIT, axes, kind))
    else:
        lse = normalize.softmax(Scores(x, options.where, options.beta, axes, kind)).lse
    entropy = normalize.entropy.first(Scores(x, options.where, options.beta, axes, kind))
    loss = operations.cross_entropy.first(i._replace(kept=z.ndim - 1, mean=False, dtype=kind))
    lse, entropy, loss = (xp.astype(x, wide, copy=False) for x in (squeezed(lse, axes), squeezed(entropy, axes), loss))
    # Without a z-loss the term is a 0 that depends on z, so that autograd returns a gradient of 0 and not None.
    z_loss = options.z_loss * lse * lse if options.z_loss else xp.where(xp.isfinite(entropy), 0.0 * entropy, 0.0)
    found = CrossEntropyTerms(loss, lse, entropy, z_loss)
    if options.target is None:
        return found
    ignored = options.target == options.ignore_index
    return CrossEntropyTerms(*(xp.where(ignored, 0.0, one) for one in found))


def terms_of(
    rows: CrossEntropyTerms, options: LossOptions, axes: tuple[int, ...], kept: int, mean: bool, dtype: Any
) -> CrossEntropyTerms:
    """Reduce the terms of the rows. Means of loss and z-loss use class weights. Means of lse and entropy do not."""
    unweighted = options._replace(weight=None)
    weights, ones = (reference.weights_of_rows(rows.loss, one, axes) for one in (options, unweighted))
    counts = (weights, ones, ones, weights)
    return CrossEntropyTerms(
        *(reduced(term, count, dtype, kept=kept, mean=mean) for term, count in zip(rows, counts, strict=True))
    )


@takes(Keywords)
def cross_entropy_and_gradient(z: Logits, /, target: Target, **options: Unpack[Keywords]) -> LossAndGradient:
    r"""Return the cross-entropy and its gradient with respect to the scores, computed in one pass.

    .. math:: \ell, \qquad \frac{\partial \ell}{\partial z}

    Parameters
    ----------
    z, target
        As in `cross_entropy`.
    **options
        The options of `cross_entropy`.

    Returns
    -------
    LossAndGradient
        loss, as `cross_entropy` returns it, and gradient, of z's shape and dtype. If `reduction` is "none", each row of
        the gradient is the gradient of the loss of that row.

    Raises
    ------
    IndexError, TypeError, ValueError
        As in `cross_entropy`.

    Notes
    -----
    With this function you can train without an autograd framework. Edge rows are as in `cross_entropy`.

    Gradient: see the Notes of `cross_entropy` for the formula. The gradient of a confident row is accurate. (The
    losses of some array libraries lose digits of it, because they compute p - 1.)

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
    if not differentiated(i.z, i.options.weight, i.options.probabilities, *i.options.beta):
        loss, gradient = operations.cross_entropy_and_gradient(GradientOf(i, None, 0.0))
        return LossAndGradient(as_number(loss), gradient)
    loss, states = operations.cross_entropy(i)
    states = None if states.shape == (0,) else states
    one = namespace(loss).ones_like(loss)
    return LossAndGradient(loss, operations.cross_entropy_vjp.first(CrossEntropyVjp(i, states, one, 0.0)))
