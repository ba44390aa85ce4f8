"""The matrix product of the log semiring."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softargmax.core import check
from softargmax.core.arrays import device_of, like, namespace, row_dtype, squeezed
from softargmax.core.operation import is_number
from softargmax.core.scale import Scale
from softargmax.core.signature import public
from softargmax.core.types import Array, Logits, Mask, PerRow
from softargmax.structure import operations
from softargmax.structure.operations import Factors
from softargmax.structure.reference import zero_of


@public
def log_matmul(
    a: Logits,
    b: Logits,
    /,
    *,
    temperature: PerRow = 1.0,
    base: float | None = None,
    where_a: Mask | None = None,
    where_b: Mask | None = None,
) -> Array:
    r"""Return the product of two matrices in the log semiring: a matrix product of exponentials, as logarithms.

    .. math::
        c_{ij} = \frac{1}{\beta} \log \sum_k e^{\beta (a_{ik} + b_{kj})}, \qquad
        \beta = \frac{\ln(\mathrm{base})}{T}

    At T = 0 it is the product of the max-plus (tropical) semiring, :math:`\max_k (a_{ik} + b_{kj})`.

    Parameters
    ----------
    a : array_like, shape (..., I, K) or (K,)
        Logarithms, for example log-probabilities. Any array library.
    b : array_like, shape (..., K, J) or (K,)
        The batch axes of a and b broadcast. As in `numpy.matmul`, vectors have no axis in the result.
    temperature : float or array
        T, a number, or an array that broadcasts with the batch. A negative T gives the smooth minimum.
    base : float, optional
        Base of the exponentials; defaults to e.
    where_a, where_b : array of bool, optional
        True for the entries of a and of b in the support. They broadcast with a and b. All other entries are ignored.

    Returns
    -------
    array, shape (..., I, J)
        The product, in the dtype of a and b. It is -inf (T < 0: +inf) for an element without terms.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value.

    Notes
    -----
    Entries of -inf (T < 0: +inf) are outside the support. The term of k is left out if a_ik or b_kj is outside, even if
    the other one is NaN or inf. T = inf is treated as in `logsumexp`.

    The function takes the time of about three matrix products, and never stores all terms. It multiplies exponentials
    that are scaled by a power of two for each row of a and each column of b. If an element's sum is then too small, or
    its logarithm too near to 0, the element is computed again, term by term in float64. So the product is also right if
    the largest term of an element is far from the largest entries of its row and column. Its error is below 4 ulp of
    max(\|largest term\|, \|result\|). An element depends on its row of a and column of b only.

    Gradient: with incoming g and the terms' shares :math:`p_{ikj} = e^{\beta (a_{ik} + b_{kj} - c_{ij})}`, a softmax
    over k, the gradients are :math:`\sum_j g_{ij} p_{ikj}` and :math:`\sum_i g_{ij} p_{ikj}`. They are products of
    exponentials, too. At T = 0 equal maxima share the gradient equally.

    See Also
    --------
    logsumexp : the sum of the log semiring.

    References
    ----------
    Goodman (1999), Semiring parsing. Computational Linguistics 25. https://aclanthology.org/J99-4004
    Pachter & Sturmfels (2004), Tropical geometry of statistical models, section 2. https://arxiv.org/abs/q-bio/0311009

    Examples
    --------
    Two steps of a Markov chain with two states:

    >>> import numpy as np, softargmax
    >>> step = np.log([[0.9, 0.1], [0.5, 0.5]])
    >>> np.exp(softargmax.log_matmul(step, step)).round(2)
    array([[0.86, 0.14],
           [0.7 , 0.3 ]])
    >>> softargmax.log_matmul([[0.0, 1.0]], [[2.0], [0.0]], temperature=0)  # the best of two paths
    array([[2.]])
    """
    a = check.scores(a, "a")
    b = check.scores(like(b, a, "b"), "b")
    xp, dtype = namespace(a), check.wider(a, b)
    vectors = tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1)
    in_a, in_b = _mask(where_a, a, "where_a", 0), _mask(where_b, b, "where_b", 1)
    a, b = _matrix(a, "a", 0), _matrix(b, "b", 1)
    batch = _batch(a, b, temperature)
    if batch is None or a.shape[-1] != b.shape[-2]:
        fits = f"(..., {a.shape[-1]}, J), with a batch that broadcasts with {tuple(a.shape[:-2])}"
        raise ValueError(f"b: expected shape {fits}, got {tuple(b.shape)}")
    items = xp.zeros((*batch, 1, 1), dtype=a.dtype, device=device_of(a))
    beta = check.scale_of(temperature, base, items, (len(batch), len(batch) + 1), rows="the batch")
    a, b = (_in_support(xp.astype(x, row_dtype(dtype), copy=False), mask, beta) for x, mask in ((a, in_a), (b, in_b)))
    c = xp.astype(_product(a, b, beta, batch), dtype, copy=False)
    return squeezed(c, vectors) if vectors else c


def _mask(where: Any, x: Any, name: str, axis: int) -> Any:
    """Return a checked mask, with the additional axis of a vector."""
    if where is None:
        return None
    mask = check.mask(where, x, name=name)
    return namespace(mask).expand_dims(mask, axis=axis) if x.ndim == 1 and mask.ndim == 1 else mask


def _matrix(x: Any, name: str, axis: int) -> Any:
    """Return an array of at least two axes. A vector becomes a row (axis 0) or a column (axis 1)."""
    if x.ndim == 0:
        raise ValueError(f"{name}: expected at least one axis, got a number")
    return namespace(x).expand_dims(x, axis=axis) if x.ndim == 1 else x


def _batch(a: Any, b: Any, temperature: Any) -> tuple[int, ...] | None:
    """Return the shape of the batch, or None if a and b do not broadcast. Several temperatures add axes to it."""
    try:
        batch = np.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    except ValueError:
        return None
    try:
        return np.broadcast_shapes(batch, check.shape_of(temperature) or ())
    except ValueError:
        return batch  # `check.scale_of` raises the error


def _in_support(x: Any, mask: Any, beta: Scale) -> Any:
    """Replace the entries outside the mask by -inf (beta < 0: +inf)."""
    if mask is None:
        return x
    return namespace(x).where(mask, x, zero_of(beta, x.dtype))


def _product(a: Any, b: Any, beta: Scale, batch: tuple[int, ...]) -> Any:
    """Return the product of batches of matrices. A matrix that is shared by the batch is not copied."""
    xp, shape = namespace(a), (*batch, a.shape[-2], b.shape[-1])
    if is_number(beta) and batch and math.prod(b.shape[:-2]) == 1:
        rows, shared = xp.reshape(a, (math.prod(a.shape[:-1]), a.shape[-1])), xp.reshape(b, b.shape[-2:])
        return xp.reshape(operations.log_matmul.first(Factors(rows, shared, beta)), shape)
    if is_number(beta) and batch and math.prod(a.shape[:-2]) == 1:
        turned = _product(xp.matrix_transpose(b), xp.matrix_transpose(a), beta, batch)
        return xp.matrix_transpose(turned)
    a, b = (xp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    if not is_number(beta):
        beta = Scale(*(xp.zeros((*batch, 1, 1), dtype=x.dtype, device=device_of(x)) + x for x in beta))
    return operations.log_matmul.first(Factors(a, b, beta))
