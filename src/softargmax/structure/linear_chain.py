"""Linear chains: the distribution of a path of tags, as in conditional random fields and hidden Markov models."""

from __future__ import annotations

import math
from typing import Any

from softargmax.core import check
from softargmax.core.arrays import (
    as_number,
    device_of,
    followed,
    frozen,
    integer_dtype,
    like,
    namespace,
    row_dtype,
    working_dtype,
)
from softargmax.core.signature import public
from softargmax.core.types import Array, Generator, Integers, Logits, Numbers, Seed, of_arrays
from softargmax.sample import categorical
from softargmax.structure import chain_operations as operations
from softargmax.structure.arguments import integers_of, wrong_classes
from softargmax.structure.chain_operations import Chain, Marginals, Paths
from softargmax.structure.draws import count_of, seed_at, seed_number, streams_of
from softargmax.structure.reference_chain import at_position, ends, plus, with_ends
from softargmax.structure.results import BestPath


@public
def linear_chain(
    emissions: Logits,
    transitions: Numbers,
    /,
    *,
    lengths: Integers | None = None,
    start: Numbers | None = None,
    end: Numbers | None = None,
) -> LinearChain:
    r"""Return the distribution of paths of tags y, whose probability is a softmax over all paths.

    .. math::
        p(y) = \frac{e^{s(y)}}{Z}, \qquad
        s(y) = \sum_{t=1}^{L} E_{t, y_t} + \sum_{t=1}^{L-1} T_{y_t, y_{t+1}}, \qquad
        Z = \sum_{y'} e^{s(y')}

    Parameters
    ----------
    emissions : array_like, shape (..., L, C)
        E, the score of each of C tags at each of L positions. Any array library.
    transitions : array_like, shape (C, C) or (..., L - 1, C, C)
        T, the score of each tag (rows) followed by each tag (columns): the same for all steps, or one matrix per step.
        A score of -inf forbids the step.
    lengths : array of int, shape (...), optional
        The number of positions of each sequence, from 0 to L. Later positions are ignored.
    start, end : array, shape (C,), optional
        Scores that are added at the first and at the last position of a sequence.

    Returns
    -------
    LinearChain
        The distribution: its log Z, marginals, entropy, best paths, draws, and the log-probability of a path.

    Raises
    ------
    TypeError
        If an argument has a wrong type or dtype.
    ValueError
        If an argument has a wrong shape or value.

    Notes
    -----
    The kernels compute in float64, one position after another. They take O(L C^2) time for a sequence, and log Z and
    the marginals of tags hold O(L C) numbers. K best paths take O(K L C^2) time and O(K L C) numbers. The results of a
    sequence have the same bits in every batch, and with any padding; draws do with the same `stream`.

    If a path has the score +inf, log Z is +inf. Then the tags with infinite scores share the probability of the last
    position equally, as in a softmax, and so at each earlier position, given the next tag. The entropy and
    log-probabilities are NaN.

    Gradient: that of log Z with respect to E and T are the marginals of tags and of pairs of tags.

    See Also
    --------
    log_matmul : one step of the recurrence for a batch of states.
    softargmax.nn.LinearChainCRF : a conditional random field as a module.

    References
    ----------
    Lafferty, McCallum & Pereira (2001), Conditional random fields, section 3. ICML.
    Rabiner (1989), A tutorial on hidden Markov models, section III. Proceedings of the IEEE 77.

    Examples
    --------
    A hidden Markov model with two states, observed three times:

    >>> import numpy as np, softargmax
    >>> likelihood = np.log([[0.9, 0.2], [0.9, 0.2], [0.1, 0.8]])  # of the observation, given the state
    >>> step = np.log([[0.7, 0.3], [0.3, 0.7]])
    >>> chain = softargmax.linear_chain(likelihood, step, start=np.log([0.5, 0.5]))
    >>> float(chain.log_z)  # the log-likelihood of the observations
    -2.116562...
    >>> chain.marginals().round(2)
    array([[0.86, 0.14],
           [0.8 , 0.2 ],
           [0.19, 0.81]])
    >>> chain.best().tags
    array([0, 0, 1])
    """
    return LinearChain(emissions, transitions, lengths, start, end)


@of_arrays
class LinearChain:
    """The distribution of paths of tags. `linear_chain` makes it and documents its arguments.

    Examples
    --------
    >>> import softargmax
    >>> chain = softargmax.linear_chain([[0.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]])
    >>> float(chain.entropy()), float(chain.log_prob([1, 0]))
    (1.275350..., -1.006408...)
    """

    def __init__(self, emissions: Any, transitions: Any, lengths: Any, start: Any, end: Any) -> None:
        e = check.scores(emissions, "emissions")
        if e.ndim < 2 or e.shape[-1] == 0:
            raise ValueError(f"emissions: expected shape (..., L, C) with at least one tag, got {tuple(e.shape)}")
        xp = namespace(e)
        self._batch, length, tags = tuple(e.shape[:-2]), e.shape[-2], e.shape[-1]
        e = xp.astype(xp.reshape(e, (math.prod(self._batch), length, tags)), row_dtype(e.dtype))
        t = xp.astype(_transitions(transitions, e, self._batch), e.dtype)
        positions = xp.arange(length, device=device_of(e))
        self._lengths, self._wrong = _lengths(lengths, e, self._batch)
        self._inside = positions < self._lengths[:, None]
        self._chain = Chain(e, t, _tag_scores(start, e, "start"), _tag_scores(end, e, "end"), self._lengths)
        self._found: Any = None

    @property
    def log_z(self) -> Array:
        """log Z, shape (...): the logarithm of the sum of e^score over all paths. It is 0 for an empty sequence."""
        return self._rows(self._partition().log_z)

    @property
    def positions(self) -> Array:
        """The number of positions of all sequences together."""
        return namespace(self._lengths).sum(self._lengths)

    def marginals(self) -> Array:
        """Return the probability of each tag at each position, shape (..., L, C), and 0 beyond the end."""
        return self._shaped(self._marginals(self._chain).to_emissions)

    def pair_marginals(self) -> Array:
        """Return the probability of each pair of tags at positions t and t + 1, shape (..., L - 1, C, C)."""
        return self._shaped(self._marginals(self._with_transitions(self._steps)).to_transitions)

    def entropy(self) -> Array:
        """Return the entropy of the path in nats, shape (...): log Z minus the expected score, in float64.

        The rounding error is that of log Z, so a small entropy of large scores is less accurate.
        """
        chain = self._with_transitions(self._chain.transitions.shape[1])  # so that the sums of items stay apart
        wide, xp = working_dtype(chain.emissions, namespace(chain.emissions)), namespace(chain.emissions)
        e, t = xp.astype(chain.emissions, wide), xp.astype(chain.transitions, wide)
        found = self._marginals(chain._replace(emissions=e, transitions=t))
        e = with_ends(e, chain.start, chain.end, chain.lengths)
        score = _expected(e, found.to_emissions) + _expected(t, found.to_transitions)
        log_z = self._finite_log_z()
        return self._rows(xp.where(log_z == -math.inf, 0.0, log_z - score))

    def score(self, tags: Integers) -> Array:
        """Return the score s(y) of a path, shape (...). Tags beyond the end of a sequence are ignored."""
        return self._rows(self._score(tags))

    def _score(self, tags: Any) -> Any:
        """Return the score in float64. A part of -inf has no gradient. Positions are added one after another."""
        e, (y, wrong), lengths = self._chain.emissions, self._tags(tags), self._lengths
        xp = namespace(e)
        of_tags = xp.take_along_axis(e, y[..., None], axis=-1)
        total = sum_in_order(of_tags[..., 0], self._inside) + sum_in_order(
            self._transitions_of(y), self._after_first(self._inside)
        )
        for place, scores in zip(ends(lengths), (self._chain.start, self._chain.end), strict=True):
            tag = at_position(y[..., None], place)[:, 0]
            total = plus(total, xp.where(lengths > 0, xp.take(scores, tag, axis=0), 0.0))
        return xp.where(wrong, math.nan, total)

    def _transitions_of(self, y: Any) -> Any:
        """Return T of the pairs of a path, (N, L - 1). An index into T itself has a gradient of T's size."""
        t, xp = self._chain.transitions, namespace(y)
        items, steps, tags = t.shape[0], t.shape[1], t.shape[-1]
        device = device_of(y)
        item = xp.arange(y.shape[0], device=device)[:, None] if items > 1 else 0
        step = xp.arange(self._steps, device=device)[None, :] if steps > 1 else 0
        row = (item * steps + step) * tags + y[:, : self._steps]
        found = xp.take(
            xp.reshape(t, (items * steps * tags * tags,)), xp.reshape(row * tags + self._after_first(y), (-1,)), axis=0
        )
        return xp.reshape(found, (y.shape[0], self._steps))

    def log_prob(self, tags: Integers) -> Array:
        """Return the log-probability of a path, s(y) - log Z, shape (...). It is -inf if no path is possible."""
        log_z, score = self._finite_log_z(), self._score(tags)
        xp = namespace(score)
        none = log_z == -math.inf
        return self._rows(xp.where(none, -math.inf, score - xp.where(none, 0.0, log_z)))

    def best(self, num_paths: int | None = None) -> BestPath:
        """Return a path with the largest score (Viterbi), and its score.

        With `num_paths`, the tags (..., num_paths, L) and scores (..., num_paths) of the best paths, from the best. The
        places of paths that do not exist have tags of -1 and a score of -inf. Paths with equal scores are in the order
        of their last tags, then of the tags before them, and so on.
        """
        found = operations.best_paths_of(Paths(self._chain, count_of(num_paths, "num_paths")))
        tags, scores = (x if num_paths is not None else x[:, 0, ...] for x in (found.best, found.scores))
        return BestPath(self._shaped(tags), self._rows(scores))

    def sample(
        self,
        num_samples: int | None = None,
        *,
        seed: Seed | None = None,
        stream: Integers | None = None,
        generator: Generator | None = None,
    ) -> Array:
        """Return paths that are drawn from the distribution, shape (..., L), or (..., num_samples, L).

        A path is drawn from its end. It depends on its sequence, the seed and the sequence's id in `stream` only, and
        has tags of -1 beyond the end. `seed`, `stream` and `generator` are those of `categorical`.
        """
        draws = count_of(num_samples, "num_samples")
        tags = self._draw(
            draws,
            seed_number(self._chain.emissions, seed, generator),
            streams_of(self._chain.emissions, self._batch, stream, draws),
        )
        return self._shaped(tags[:, 0, :] if num_samples is None else tags)

    # --- parts --------------------------------------------------------------------------------------------------------

    @property
    def _steps(self) -> int:
        return max(int(self._chain.emissions.shape[1]) - 1, 0)

    def _after_first(self, x: Any) -> Any:
        """Return the numbers of all positions but the first."""
        return x[:, x.shape[1] - self._steps :]

    def _rows(self, x: Any) -> Any:
        return as_number(self._shaped(namespace(x).astype(x, self._chain.emissions.dtype)))

    def _shaped(self, x: Any) -> Any:
        """Return a result with the shape of the batch. Items with a wrong length get NaN, or -1 for integers."""
        xp = namespace(x)
        if self._wrong is not None:
            none = math.nan if xp.isdtype(x.dtype, "real floating") else -1
            x = xp.where(xp.reshape(self._wrong, (-1, *[1] * (x.ndim - 1))), none, x)
        return xp.reshape(x, (*self._batch, *x.shape[1:]))

    def _partition(self) -> Any:
        if followed(self._chain.emissions):  # a result that is kept could lack its derivative, or be used twice
            return operations.partition_of(self._chain)
        if self._found is None:
            self._found = operations.partition_of(self._chain)
        return self._found

    def _finite_log_z(self) -> Any:
        """Return log Z, and NaN in place of +inf, which differences with scores are made of."""
        log_z = self._partition().log_z
        return namespace(log_z).where(log_z == math.inf, math.nan, log_z)

    def _marginals(self, chain: Chain) -> Any:
        log_z, alpha = self._partition()
        ones = namespace(log_z).ones_like(log_z)
        return operations.marginals_of(Marginals(chain, frozen(alpha), frozen(log_z), ones))

    def _with_transitions(self, steps: int) -> Chain:
        """Return the arguments with separate transitions for each sequence, and for each of `steps` steps."""
        t = self._chain.transitions
        shape = (self._chain.emissions.shape[0], steps, *t.shape[2:])
        return self._chain._replace(transitions=namespace(t).broadcast_to(t[:, : min(steps, t.shape[1]), ...], shape))

    def _tags(self, tags: Any) -> tuple[Any, Any]:
        """Check a path. Return it, with 0 for wrong tags and beyond the end, and which paths have wrong tags.

        Only tags that cannot be read, as in a graph, get this far if they are wrong.
        """
        e = self._chain.emissions
        xp, shape = namespace(e), (*self._batch, e.shape[1])
        y = xp.reshape(integers_of(tags, e, shape, "tags"), tuple(self._inside.shape))
        y = xp.where(self._inside, y, 0)
        wrong = wrong_classes(y, e.shape[2], shape, "tags")
        return xp.where(wrong, 0, y), xp.any(wrong, axis=1)

    def _draw(self, draws: int, seed: Any, streams: Any) -> Any:
        alpha, (e, transitions, _, _, lengths) = self._partition().alpha, self._chain
        xp, size = namespace(e), e.shape[2]
        rows = e.shape[0] * draws
        tag, tags = xp.zeros((rows,), dtype=lengths.dtype, device=device_of(e)), []
        first = (
            xp.arange(rows, dtype=tag.dtype, device=device_of(e)) // draws * size if transitions.shape[0] > 1 else tag
        )
        lengths = _repeated(lengths, draws)
        for t in reversed(range(e.shape[1])):
            z = _repeated(alpha[:, t, :], draws)
            if t < self._steps:
                of_step = xp.permute_dims(transitions[:, 0 if transitions.shape[1] == 1 else t, ...], (0, 2, 1))
                columns = xp.take(xp.reshape(of_step, (-1, size)), first + tag, axis=0)
                z = xp.where((t + 1 < lengths)[:, None], plus(z, xp.astype(columns, z.dtype)), z)
            inside = t < lengths
            z = xp.where(inside[:, None], z, 0.0)
            tag = categorical(z, seed=seed_at(seed, t), stream=streams)
            tags.append(xp.where(inside, tag, -1))
        found = xp.stack(tags[::-1], axis=-1) if tags else xp.zeros((rows, 0), dtype=lengths.dtype)
        return xp.reshape(found, (e.shape[0], draws, e.shape[1]))


def _repeated(x: Any, times: int) -> Any:
    """Repeat each item of the first axis."""
    xp = namespace(x)
    shape = (x.shape[0], times, *x.shape[1:])
    return xp.reshape(xp.broadcast_to(x[:, None, ...], shape), (x.shape[0] * times, *x.shape[1:]))


def _expected(scores: Any, p: Any) -> Any:
    """Return <p, scores> of each item. A probability of 0 counts as 0, even times -inf."""
    xp = namespace(p)
    terms = xp.where(p == 0, 0.0, p * xp.where(p == 0, 0.0, scores))
    of_positions = xp.sum(terms, axis=tuple(range(2, p.ndim)))
    return sum_in_order(of_positions, xp.ones_like(of_positions) == 1.0)


def sum_in_order(x: Any, inside: Any) -> Any:
    """Sum positions one after another in float64, so that padding does not change the order. -inf has no gradient."""
    xp, wide = namespace(x), working_dtype(x, namespace(x))
    terms = xp.where(inside, xp.where(x == -math.inf, -math.inf, x), 0.0)
    return xp.cumulative_sum(xp.astype(terms, wide), axis=1, include_initial=True)[:, -1]


# --- checks -----------------------------------------------------------------------------------------------------------


def _transitions(transitions: Any, e: Any, batch: tuple[int, ...]) -> Any:
    """Return the transitions as (N or 1, L - 1 or 1, C, C)."""
    t = check.scores(like(transitions, e, "transitions"), "transitions")
    xp, (length, tags) = namespace(t), e.shape[1:]
    if tuple(t.shape) == (tags, tags):
        return t[None, None, ...]
    steps = max(length - 1, 0)
    if tuple(t.shape) == (*batch, 1, tags, tags):
        return xp.reshape(t, (e.shape[0], 1, tags, tags))
    if tuple(t.shape[-3:]) != (steps, tags, tags) or not check.broadcasts(tuple(t.shape[:-3]), batch):
        allowed = f"({tags}, {tags}), or a shape that broadcasts with {(*batch, steps, tags, tags)}"
        raise ValueError(f"transitions: expected {allowed}, got {tuple(t.shape)}")
    if math.prod(t.shape[:-3]) == 1:
        return xp.reshape(t, (1, steps, tags, tags))
    return xp.reshape(xp.broadcast_to(t, (*batch, steps, tags, tags)), (e.shape[0], steps, tags, tags))


def _lengths(lengths: Any, e: Any, batch: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the lengths, and None. If lengths cannot be read: 0 in place of wrong ones, and which ones are wrong."""
    xp = namespace(e)
    if lengths is None:
        return xp.full((e.shape[0],), e.shape[1], dtype=integer_dtype(e), device=device_of(e)), None
    n = xp.reshape(integers_of(lengths, e, batch, "lengths"), (-1,))
    wrong = (n < 0) | (n > e.shape[1])
    if not check.inspectable(n):
        return xp.where(wrong, 0, n), wrong
    if bool(xp.any(wrong)):
        raise ValueError(f"lengths: expected integers from 0 to {e.shape[1]}, got some outside this range")
    return n, None


def _tag_scores(scores: Any, e: Any, name: str) -> Any:
    """Return one number per tag in float64, and 0 for None."""
    xp = namespace(e)
    if scores is None:
        return xp.zeros((e.shape[2],), dtype=working_dtype(e, xp), device=device_of(e))
    found = check.scores(like(scores, e, name), name)
    if tuple(found.shape) != (e.shape[2],):
        raise ValueError(f"{name}: expected shape ({e.shape[2]},), got {tuple(found.shape)}")
    return xp.astype(found, working_dtype(e, xp))
