"""The state of a softmax: the summary of a block of scores and values, and the merge of two states.

    m = max_i z_i        l = sum_i exp(z_i - m)        o = sum_i exp(z_i - m) v_i

The maximum's own term is exactly 1, so a state stores r = l - 1, the sum of the other terms. Even an r of 1e-18
survives every fold and merge, and lse = m + log1p(r). `empty` (m = -inf, r = -1, o = 0) is the identity of `merge`.
`merge` is associative, so blocks may be folded in any grouping, on any machine. The results agree to rounding error,
but not bit for bit.

References
----------
Milakov & Gimelshein (2018), Online normalizer calculation for softmax, https://arxiv.org/abs/1805.02867
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.core import arrays, check
from softargmax.core.arrays import device_of, namespace, one_axis, working_dtype
from softargmax.core.error_free import difference, total
from softargmax.core.row_chunks import SIZE, cut
from softargmax.core.types import Array, Like, Logits, Numbers, of_arrays

if TYPE_CHECKING:
    from collections.abc import Callable

INF = math.inf


@of_arrays
class Finalized(NamedTuple):
    """The results of a state: output = o / l (None without values) and lse = m + log l.

    If the folded scores are beta z, lse is equal to the lse of `softmax_with_lse`, and `logsumexp` returns lse / beta.
    """

    output: Array | None
    lse: Array


@of_arrays
class State(NamedTuple):
    """The softmax state of all scores folded so far. It can be passed on between batches, files and machines.

    Parameters
    ----------
    m : array, shape (...)
        The largest score of each row, -inf for an empty row.
    r : array, shape (...)
        l - 1, the sum of exp(z_i - m) without the maximum's own term, or -1 for an empty row.
    o : array, shape (..., D), or None
        The sum of exp(z_i - m) v_i, or None without values.

    Notes
    -----
    A score of -inf is not in the support, and its value is not read. Scores of +inf share the row's probability
    equally. A NaN makes the results of its row NaN.

    A state has no temperature. Fold the scaled scores beta z, for example z / T. Then lse is the logarithm of
    softmax's denominator. The smooth maximum that `logsumexp` returns is lse / beta, which is lse times T here.

    Examples
    --------
    >>> import numpy as np
    >>> from softargmax import State
    >>> one = State.empty(()).fold(np.array([1.0, 2.0]))
    >>> two = State.empty(()).fold(np.array([8.0]))
    >>> float(one.merge(two).finalize().lse)
    8.003384...
    >>> lse = State.empty(()).fold(np.array([1.0, 2.0]) / 2).finalize().lse  # at temperature 2
    >>> float(lse), float(lse * 2)  # and `logsumexp` at temperature 2
    (1.474076..., 2.948153...)
    """

    m: Array
    r: Array
    o: Array | None = None

    def __eq__(self, other: object) -> bool:
        """True if both states have the same array library and shapes, and all their numbers are equal."""
        return isinstance(other, State) and all(map(_equal, self, other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        raise TypeError("a State has no hash, because its arrays have none")

    @property
    def l(self) -> Array:  # noqa: E743 the letter of the formula
        """The sum of exp(z_i - m): 0 (empty) or at least 1."""
        return 1.0 + self.r

    @classmethod
    def empty(cls, shape: int | tuple[int, ...] = (), width: int | None = None, like: Like | None = None) -> State:
        """Return the empty state, which contains no scores.

        Parameters
        ----------
        shape : int or tuple of int
            The shape of the rows.
        width : int, optional
            D, the width of the values to be folded, or None if there are no values.
        like : array, optional
            An array whose library and device are used. The default is NumPy. The state is float64 if they support it,
            and float32 otherwise.
        """
        like = np.empty(0) if like is None else _real(arrays.array_of(like, "like"), "like")
        xp = namespace(like)
        sizes = _sizes(shape, "shape")
        kind = {"dtype": working_dtype(like, xp), "device": device_of(like)}
        o = None if width is None else xp.zeros((*sizes, *_sizes((width,), "width")), **kind)
        return cls(xp.full(sizes, -INF, **kind), xp.full(sizes, -1.0, **kind), o)

    def fold(self, scores: Logits, values: Numbers | None = None, axis: int = -1) -> State:
        """Return the state with a block of scores added.

        Parameters
        ----------
        scores : array
            Scaled scores. The block is along `axis`, and the other axes have the state's shape.
        values : array, shape (..., K, D) or (K, D), optional
            The values of the block's K scores. They are required if the state has o, and refused if it has none.
        axis : int
            The axis of `scores` to fold.

        Returns
        -------
        State
            A new state of the same shapes and precision.

        Notes
        -----
        A block without scores, or with scores of -inf alone, changes nothing. Scores of +inf share the row's
        probability with earlier scores of +inf. A NaN makes the results of its row NaN, whatever is folded later. The
        value of a score of -inf is not read.

        Examples
        --------
        >>> import numpy as np
        >>> from softargmax import State
        >>> state = State.empty((2,)).fold(np.array([[1.0, 2.0], [0.0, -np.inf]]))
        >>> state.fold(np.array([[3.0], [0.0]])).finalize().lse
        array([3.40760596, 0.69314718])
        """
        if (values is None) != (self.o is None):
            absent = "None, as the state has no o (State.empty(shape, width=D) makes one with o)"
            allowed = absent if self.o is None else "an array"
            raise ValueError(f"values: expected {allowed}, got {type(values).__name__}")
        scores = arrays.array_of(scores, "scores")
        if not isinstance(scores, arrays.NUMPY) and namespace(scores) is not namespace(self.m):
            raise TypeError(
                f"scores: expected {type(self.m).__name__}, as in the state, got {type(scores).__name__}; "
                "State.empty(shape, like=scores) makes a state of their kind"
            )
        scores = _real(arrays.like(scores, self.m, "scores"), "scores")
        xp = namespace(scores)
        if scores.ndim == 0:
            scores = xp.reshape(scores, (1,))
        one = one_axis(axis, scores.ndim)
        z = xp.permute_dims(scores, (*(i for i in range(scores.ndim) if i != one), one))
        rows, length = tuple(z.shape[:-1]), z.shape[-1]
        if rows != tuple(self.m.shape):
            raise ValueError(
                f"scores: expected the state's shape, {tuple(self.m.shape)}, once axis {axis} is removed, "
                f"got {rows} from shape {tuple(scores.shape)}"
            )
        if values is not None and self.o is not None:
            values = _real(arrays.like(values, self.m, "values"), "values")
            shape, expected = tuple(values.shape), (length, self.o.shape[-1])
            if shape[-2:] != expected or not check.broadcasts(shape[:-2], rows):
                allowed = f"{expected} or {(*rows, *expected)}" if rows else f"{expected}"
                raise ValueError(f"values: expected shape {allowed}, got {shape}")
        if length == 0:
            return self
        if not cut((z, self.m, values)):
            return merged(self, _state_of_block(z, values, self.m.dtype))
        state, step = self, max(1, SIZE // max(1, math.prod(rows)))  # limits temporaries to SIZE scores
        for start in range(0, length, step):
            part = None if values is None else values[..., start : start + step, :]
            state = merged(state, _state_of_block(z[..., start : start + step], part, self.m.dtype))
        return state

    def merge(self, *others: State) -> State:
        """Merge this state with others, from left to right. The result describes the scores of all of them.

        Parameters
        ----------
        *others : State
            States of the same rows. Either all states have values, or none.

        Returns
        -------
        State
            A new state, or this state if there are no others.

        Notes
        -----
        An empty state changes nothing. If the maxima of several states are +inf, their scores of +inf share the row's
        probability. A NaN in any state makes the results of its row NaN.

        Examples
        --------
        >>> import numpy as np
        >>> from softargmax import State
        >>> a, b, c = (State.empty().fold(np.array(part)) for part in ([1.0, 2.0], [-np.inf], [8.0]))
        >>> float(a.merge(b, c).finalize().lse)
        8.003384...
        """
        for other in others:
            _check_rows(self, other)
        state = self
        for other in others:
            state = merged(state, other)
        return state

    def finalize(self) -> Finalized:
        """Return the results: output = o / l, the softmax-weighted mean of the values, and lse = m + log l.

        Returns
        -------
        Finalized
            output of shape (..., D), or None without values, and lse of shape (...).

        Notes
        -----
        An empty row has output 0 and lse -inf. With k scores of +inf the output is the mean of their k values, and lse
        is +inf. In a row with a NaN, both are NaN.

        Examples
        --------
        >>> import numpy as np
        >>> from softargmax import State
        >>> state = State.empty(width=1).fold(np.array([0.0, 0.0, -np.inf]), np.array([[1.0], [2.0], [np.nan]]))
        >>> output, lse = state.finalize()
        >>> float(output[0]), float(lse)
        (1.5, 0.693147...)
        """
        xp = namespace(self.m)
        with np.errstate(all="ignore"):
            empty = self.r == -1.0
            lse = self.m + xp.log1p(xp.where(empty, 0.0, self.r))
            l = xp.where(empty, 1.0, 1.0 + self.r)
            return Finalized(None if self.o is None else self.o / l[..., None], lse)


def _equal(one: Any, other: Any) -> bool:
    """True if a field has equal values in two states."""
    if one is None or other is None:
        return one is other
    xp = namespace(one)
    return xp is namespace(other) and tuple(one.shape) == tuple(other.shape) and bool(xp.all(one == other))


_of_fields = State.__new__


@functools.wraps(_of_fields)
def _made(cls: type[State], *fields: Any, **named: Any) -> State:
    """Make a state from its fields. With fewer than two fields, the error explains how to make a state."""
    if len(fields) + len(named) < 2:
        raise TypeError("State() needs m and r; State.empty() is the state of no scores, and fold adds scores to it")
    return _of_fields(cls, *fields, **named)


setattr(State, "__new__", _made)  # noqa: B010 a NamedTuple's class body may not define __new__


def _state_of_block(z: Any, values: Any, dtype: Any) -> State:
    """The state of a block of scores along the last axis."""
    xp = namespace(z)
    z = xp.astype(z, dtype)
    with np.errstate(all="ignore"):
        m = xp.max(z, axis=-1)
        d, e = difference(z, m[..., None])
        w = xp.exp(d) * (1.0 + e)
        hi, lo = total(w)
        r = ((hi - 1.0) + lo)[..., 0]
        return State(m, r, None if values is None else _weighted_sum(w, xp.astype(values, dtype), xp))


def _sizes(value: Any, name: str) -> tuple[int, ...]:
    """Check sizes of axes and return a tuple. A symbolic size of torch.compile is kept unchanged."""
    sizes = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    what = value if name == "shape" else sizes[0]
    for size in sizes:
        if not hasattr(size, "__index__") or isinstance(size, np.ndarray):
            raise TypeError(f"{name}: expected an integer{' or a tuple of integers' * (name == 'shape')}, got {what!r}")
        if size < 0:
            raise ValueError(f"{name}: expected 0 or more, got {what!r}")
    return tuple(int(size) if isinstance(size, np.integer) else size for size in sizes)


def _real(array: Any, name: str) -> Any:
    """Check that an array has a real dtype.

    Integers stay integers here. They are converted later, in one step, to the state's precision.
    """
    return array if arrays.dtype_name(array.dtype) in arrays.INTEGERS else check.scores(array, name)


def _check_rows(state: State, other: Any) -> None:
    """Check that `other` is a state of the same library and shapes. No number is read."""
    if not isinstance(other, State):
        raise TypeError(f"others: expected a State, got {type(other).__name__}")
    if namespace(other.m) is not namespace(state.m):
        kinds = type(state.m).__name__, type(other.m).__name__
        raise TypeError("others: expected states of {} like the first state, got a state of {}".format(*kinds))
    if tuple(other.m.shape) != tuple(state.m.shape):
        raise ValueError(f"others: expected the first state's rows, {tuple(state.m.shape)}, got {tuple(other.m.shape)}")
    if (other.o is None) != (state.o is None):
        raise ValueError("others: expected values in all states or in none, got values in some")
    if state.o is not None and other.o is not None and tuple(other.o.shape) != tuple(state.o.shape):
        raise ValueError(
            f"others: expected the shape of the first state's o, {tuple(state.o.shape)}, got {tuple(other.o.shape)}"
        )


def merged(a: State, b: State, gap: Callable[[Any, Any], tuple[Any, Any]] = difference) -> State:
    """Merge two states: r = r_lead + exp(gap) l_other, and o likewise. The state with the larger maximum is the lead.

    `gap(m_other, m_lead)` returns m_other - m_lead, or beta times this difference, as a sum of two numbers.
    """
    xp = namespace(a.m)
    with np.errstate(all="ignore"):
        first = ~((a.m < b.m) | xp.isnan(b.m))  # a state with a NaN is the lead
        m, m_other = xp.where(first, a.m, b.m), xp.where(first, b.m, a.m)
        d, e = gap(m_other, m)
        f = xp.exp(d) * (1.0 + e)
        r = xp.where(first, a.r, b.r) + f * (1.0 + xp.where(first, b.r, a.r))
        if a.o is None:
            return State(m, r)
        first, f = first[..., None], f[..., None]
        return State(m, r, xp.where(first, a.o, b.o) + f * xp.where(first, b.o, a.o))


def _weighted_sum(w: Any, values: Any, xp: Any) -> Any:
    """sum_i w_i v_i along the last axis of w. A weight of 0 gives 0 even if the value is NaN or inf."""
    usable = xp.where(w[..., None] == 0.0, 0.0, values)
    return xp.sum(w[..., None] * usable, axis=-2)
