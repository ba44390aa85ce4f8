"""The state of a softmax: what a block of scores and values comes down to, and how two of them merge.

    m = max_i z_i        l = sum_i exp(z_i - m)        o = sum_i exp(z_i - m) v_i

The maximum's own term is exactly 1, so a state stores r = l - 1, the sum of the rest: a confident row's tail of 1e-18
survives every fold and merge, and lse = m + log1p(r). `empty` (m = -inf, r = -1, o = 0) is the identity of `merge`,
which is associative: blocks may be folded in any grouping, on any machine. Reproduced to accuracy, not to bits.

References
----------
Milakov & Gimelshein (2018), Online normalizer calculation for softmax, https://arxiv.org/abs/1805.02867
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from softargmax.core.dispatch import as_array, device_of, namespace
from softargmax.core.exact import difference, total, working_dtype

INF = math.inf


class Finalized(NamedTuple):
    """What a state says of its scores: output = o / l (None without values) and lse = m + log l."""

    output: Any
    lse: Any


class State(NamedTuple):
    """A softmax over scores seen so far, to be carried across batches, files and machines.

    Parameters
    ----------
    m : array, shape (...)
        The largest score of each row, -inf for an empty one.
    r : array, shape (...)
        l - 1, the sum of exp(z_i - m) without the maximum's own term; -1 for an empty row.
    o : array, shape (..., D), or None
        The sum of exp(z_i - m) v_i, where there are values.

    Notes
    -----
    A score of -inf is not in the support, its value is never looked at. With scores of +inf the row is that of its
    infinities. A NaN makes its row NaN. Temperature is the caller's: give scaled scores.

    Examples
    --------
    >>> import numpy as np
    >>> from softargmax import State
    >>> one = State.empty(()).fold(np.array([1.0, 2.0]))
    >>> two = State.empty(()).fold(np.array([8.0]))
    >>> float(one.merge(two).finalize().lse)
    8.003384...
    """

    m: Any
    r: Any
    o: Any = None

    @property
    def l(self) -> Any:  # noqa: E743 the design's letter
        """The sum of exp(z_i - m): 0 (empty) or at least 1."""
        return 1.0 + self.r

    @classmethod
    def empty(cls, shape: Any = (), width: int | None = None, like: Any = None) -> State:
        """The state of no scores.

        Parameters
        ----------
        shape : tuple of int
            The shape of the rows.
        width : int, optional
            D, the width of the values to come; None for none.
        like : array, optional
            An array whose library, device and precision to use; NumPy's float64 without it.
        """
        like = np.empty(0) if like is None else as_array(like, "like")
        xp = namespace(like)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = {"dtype": working_dtype(like, xp), "device": device_of(like)}
        o = None if width is None else xp.zeros((*shape, width), **kind)
        return cls(xp.full(shape, -INF, **kind), xp.full(shape, -1.0, **kind), o)

    def fold(self, scores: Any, values: Any = None, axis: int = -1) -> State:
        """The state with a block of scores added.

        Parameters
        ----------
        scores : array
            Scaled scores; `axis` runs along the block, the other axes are the rows.
        values : array, shape (..., K, D) or (K, D), optional
            The values of the block's K scores; given if and only if the state has o.
        axis : int
            The axis of `scores` that is folded.
        """
        if (values is None) != (self.o is None):
            raise ValueError("values: a state folds them always or never; State.empty(shape, width=D) is one that does")
        scores = as_array(scores, "scores")
        xp = namespace(scores)
        z = xp.moveaxis(xp.astype(scores, self.m.dtype), axis, -1)
        if z.shape[-1] == 0:
            return self
        with np.errstate(all="ignore"):
            m = xp.max(z, axis=-1)
            d, e = difference(z, m[..., None])
            w = xp.exp(d) * (1.0 + e)
            hi, lo = total(w)
            r = ((hi - 1.0) + lo)[..., 0]
            o = None if values is None else _weighted_sum(w, xp.astype(as_array(values, "values"), w.dtype), xp)
        return self.merge(State(m, r, o))

    def merge(self, *others: State) -> State:
        """The state of all scores of this state and the others, merged from left to right."""
        state = self
        for other in others:
            state = _merge(state, other)
        return state

    def finalize(self) -> Finalized:
        """output = o / l, the softmax's mean of the values (0 for an empty row), and lse = m + log l (-inf)."""
        xp = namespace(self.m)
        with np.errstate(all="ignore"):
            empty = self.r == -1.0
            lse = self.m + xp.log1p(xp.where(empty, 0.0, self.r))
            l = xp.where(empty, 1.0, 1.0 + self.r)
            return Finalized(None if self.o is None else self.o / l[..., None], lse)


def _merge(a: State, b: State) -> State:
    """With the larger maximum in the lead: r = r_lead + exp(m_other - m_lead) l_other, and o likewise."""
    xp = namespace(a.m)
    with np.errstate(all="ignore"):
        first = ~((a.m < b.m) | xp.isnan(b.m))  # a NaN leads
        m, m_other = xp.where(first, a.m, b.m), xp.where(first, b.m, a.m)
        d, e = difference(m_other, m)
        f = xp.exp(d) * (1.0 + e)
        r = xp.where(first, a.r, b.r) + f * (1.0 + xp.where(first, b.r, a.r))
        if a.o is None or b.o is None:
            if a.o is not b.o:
                raise ValueError("other: one state has values and the other has none; both or neither may")
            return State(m, r)
        first, f = first[..., None], f[..., None]
        return State(m, r, xp.where(first, a.o, b.o) + f * xp.where(first, b.o, a.o))


def _weighted_sum(w: Any, values: Any, xp: Any) -> Any:
    """sum_i w_i v_i along the last axis of w, where a weight of 0 silences even a value of NaN or inf."""
    usable = xp.where(w[..., None] == 0.0, 0.0, values)
    return xp.sum(w[..., None] * usable, axis=-2)
