"""Contractions in the log semiring, written as in `numpy.einsum`."""

from __future__ import annotations

from softargmax.core.arrays import as_number, namespace, row_dtype
from softargmax.core.signature import public
from softargmax.core.types import Array, Logits, PerRow
from softargmax.structure.arguments import operands_of, semiring_of
from softargmax.structure.contraction import arranged, contract, plan_of, shapes_of


@public
def log_einsum(
    subscripts: str,
    /,
    *operands: Logits,
    temperature: PerRow = 1.0,
    base: float | None = None,
) -> Array:
    r"""Return a contraction in the log semiring: `numpy.einsum` of exponentials, as logarithms.

    .. math::
        c_{\mathrm{out}} = \frac{1}{\beta} \log \sum_{\mathrm{others}} e^{\beta (a_{..} + b_{..} + \dots)}, \qquad
        \beta = \frac{\ln(\mathrm{base})}{T}

    The sum runs over all labels that are not in the result. At T = 0 it is their maximum. If the operands are the
    factors of a graph, the contraction without labels in the result is the graph's log Z.

    Parameters
    ----------
    subscripts : str
        One label, a letter, for each axis of each operand, then "->" and the labels of the result: ``"ab,bc->ac"`` is
        `log_matmul`. "..." stands for axes that broadcast. Without "->" the result has the labels that occur once, in
        alphabetical order. A label that occurs twice in an operand selects its diagonal. If 52 letters are not enough,
        any letter of Unicode is a label (`opt_einsum.get_symbol`).
    *operands : array_like
        Tables of scores (logarithms), any array library.
    temperature : float or array of shape ()
        T. A negative T gives the smooth minimum.
    base : float, optional
        Base of the exponentials; defaults to e.

    Returns
    -------
    array
        The contraction, in the dtype of the operands. It is -inf (T < 0: +inf) for an element without terms.

    Raises
    ------
    ImportError
        If opt_einsum is not installed.
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value.

    Notes
    -----
    The operands are multiplied two at a time with `log_matmul`, in the order that opt_einsum finds for their shapes.
    The order, and so the bits of an element, do not depend on the size of labels that all operands and the result have.
    Entries of -inf (T < 0: +inf) are outside the support, as in `log_matmul`. Each product adds an error of at most 4
    ulp of the largest score.

    The gradient with respect to an operand is the marginal probability of its entries. At T = 0 it is 1 for the entries
    of the best configuration, and equal maxima of a product share it.

    See Also
    --------
    factor_graph : marginals, entropy, the best configuration and draws.
    log_matmul : the product of two matrices.

    References
    ----------
    Goodman (1999), Semiring parsing. Computational Linguistics 25. https://aclanthology.org/J99-4004
    Smith & Gray (2018), opt_einsum. Journal of Open Source Software 3(26), 753.

    Examples
    --------
    log Z of a cycle of three variables with two values each:

    >>> import numpy as np, softargmax
    >>> alike = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> round(float(softargmax.log_einsum("ab,bc,ca->", alike, alike, alike)), 4)
    4.0339
    """
    arrays = operands_of(operands, "operands")
    dtype = arrays[0].dtype
    semiring = semiring_of(temperature, base, arrays[0])
    plan = plan_of(subscripts, shapes_of(arrays))
    xp = namespace(arrays[0])
    arrays = [xp.astype(x, row_dtype(dtype), copy=False) for x in plan.without_broadcast_axes(arrays)]
    tables = contract(plan, arrays, semiring)
    return as_number(xp.astype(arranged(tables[-1], plan.output), dtype, copy=False))
