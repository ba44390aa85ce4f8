"""Factor graphs: the distribution of a configuration whose score is a sum of tables."""

from __future__ import annotations

import functools
import math
from typing import Any

from softargmax.core import check
from softargmax.core.arrays import as_number, device_of, followed, integer_dtype, namespace, row_dtype, working_dtype
from softargmax.core.signature import public
from softargmax.core.types import Array, Generator, Integers, Logits, PerRow, Seed, of_arrays
from softargmax.normalize import softmax
from softargmax.sample import categorical
from softargmax.structure.arguments import integers_of, operands_of, wrong_classes
from softargmax.structure.contraction import (
    Semiring,
    Table,
    arranged,
    contract,
    contracted,
    outsides,
    plan_of,
    shapes_of,
)
from softargmax.structure.draws import count_of, seed_at, seed_number, streams_of
from softargmax.structure.reference_chain import plus
from softargmax.structure.results import BestConfiguration


@public
def factor_graph(subscripts: str, /, *factors: Logits, temperature: PerRow = 1.0) -> FactorGraph:
    r"""Return the distribution of a configuration x of discrete variables, a softmax over all configurations.

    .. math::
        p(x) = \frac{e^{s(x) / T}}{Z}, \qquad s(x) = \sum_f \theta_f(x_f), \qquad Z = \sum_{x'} e^{s(x') / T}

    This is a Gibbs distribution with the energy -s, and a Markov random field whose cliques are the factors.

    Parameters
    ----------
    subscripts : str
        The variables of each factor, one letter per axis, then "->" and the letters of the batch, if there is one:
        ``"a,ab,bc->"``, or ``"na,nab,bc->n"``. The variables are the letters that are not in the batch. Any letter of
        Unicode can stand for a variable (`opt_einsum.get_symbol`).
    *factors : array_like
        :math:`\theta_f`, the scores of the values of a factor's variables. Any array library. A score of -inf forbids
        them. Scores must be below inf.
    temperature : float or array of shape ()
        T, above 0.

    Returns
    -------
    FactorGraph
        The distribution: its log Z, marginals, entropy, best configurations, draws, and the log-probability of a
        configuration.

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
    Variables are eliminated one after another, with `log_matmul`, in the order that opt_einsum finds. On a tree this
    takes time in proportion to the number of factors; on a graph with loops it takes exponential time in the graph's
    treewidth. All sums are in float64. The order does not depend on the size of the batch.

    See Also
    --------
    log_einsum : log Z, and sums over some of the variables, as a function.
    linear_chain : the same for chains, with kernels of its own.

    References
    ----------
    Koller & Friedman (2009), Probabilistic graphical models, chapters 4, 9, 10 and 13. MIT Press.
    Dechter (1999), Bucket elimination: a unifying framework for reasoning. Artificial Intelligence 113.

    Examples
    --------
    Three magnets in a ring, which prefer to point in the same direction, and one of them up:

    >>> import numpy as np, softargmax
    >>> alike, up = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0.0, 0.5])
    >>> ring = softargmax.factor_graph("ab,bc,ca,a->", alike, alike, alike, up)
    >>> ring.variables
    'abc'
    >>> ring.marginal("b").round(3)
    array([0.425, 0.575])
    >>> ring.best()
    BestConfiguration(values=array([1, 1, 1]), score=np.float64(3.5))
    """
    return FactorGraph(subscripts, factors, temperature)


@of_arrays
class FactorGraph:
    """The distribution of a configuration. `factor_graph` makes it and documents its arguments.

    Attributes
    ----------
    variables : str
        The letters of the variables, in the order in which they first occur. Configurations have this order.

    Examples
    --------
    >>> import softargmax
    >>> graph = softargmax.factor_graph("a,ab->", [0.0, 1.0], [[0.0, 1.0], [1.0, 0.0]])
    >>> round(float(graph.log_z), 4), round(float(graph.log_prob([1, 0])), 4)
    (2.6265, -0.6265)
    """

    def __init__(self, subscripts: str, factors: tuple[Any, ...], temperature: Any) -> None:
        arrays = operands_of(factors, "factors")
        xp = namespace(arrays[0])
        self._dtype = arrays[0].dtype
        self._plan = plan_of(subscripts, shapes_of(arrays), "")
        if "->" not in subscripts:
            raise ValueError(f"subscripts: expected '->' and the letters of the batch, got {subscripts!r}")
        twice = [labels for labels in self._plan.inputs if len(set(labels)) < len(labels)]
        if twice:
            raise ValueError(f"subscripts: expected different letters in each factor, got {twice[0]!r}")
        self.variables = "".join(x for x in dict.fromkeys("".join(self._plan.inputs)) if x not in self._plan.output)
        if not self.variables:
            raise ValueError(f"subscripts: expected a letter that is not in the batch, got {subscripts!r}")
        for i, x in enumerate(arrays):
            infinite = x == math.inf
            if check.inspectable(infinite) and bool(xp.any(infinite)):
                raise ValueError(f"factors[{i}]: expected scores below inf, got inf")
        self._factors = [xp.astype(x, working_dtype(x, xp)) for x in self._plan.without_broadcast_axes(arrays)]
        number = xp.zeros((), dtype=self._factors[0].dtype, device=device_of(arrays[0]))
        allowed = "a finite number above 0"
        temperature = check.within(
            temperature, number, (), "temperature", lambda t: (t > 0.0) & (t < math.inf), allowed, "all terms"
        )
        empty = [label for label in self.variables if self._plan.sizes[label] == 0]
        if empty:
            raise ValueError(f"factors: expected variables with at least one value, got none for {empty[0]!r}")
        self._semiring = Semiring(temperature, None, -math.inf)
        self._found: list[Table] | None = None

    @property
    def log_z(self) -> Array:
        """log Z, with the shape of the batch: the logarithm of the sum of e^(score / T) over all configurations."""
        return self._rows(self._whole(self._tables()) / self._semiring.temperature)

    def marginals(self) -> tuple[Array, ...]:
        """Return the probability of each entry of each factor: an array for each factor.

        Its axes are those of the batch, and then those of the factor's variables, in the factor's order.
        """
        return tuple(namespace(p).astype(p, self._dtype, copy=False) for p in self._marginals(self._tables()))

    @public
    def marginal(self, variables: str) -> Array:
        """Return the joint probability of some variables, such as "ac": the axes of the batch, then these variables."""
        variables = "".join(variables)
        if not variables or not set(variables) <= set(self.variables):
            raise ValueError(f"variables: expected letters out of {self.variables!r}, got {variables!r}")
        if len(set(variables)) < len(variables):
            raise ValueError(f"variables: expected different letters, got {variables!r}")
        subscripts = f"{','.join(self._plan.inputs)}->{self._plan.output}{variables}"
        plan = plan_of(subscripts, shapes_of(self._factors), variables)
        p = self._probabilities(contract(plan, self._factors, self._semiring)[-1], variables)
        return namespace(p).astype(p, self._dtype, copy=False)

    def entropy(self) -> Array:
        """Return the entropy of the configuration in nats, with the shape of the batch: log Z minus E[score] / T."""
        tables = self._tables()
        whole = self._whole(tables)
        xp, score = namespace(whole), 0.0
        for z, labels, p in zip(self._factors, self._plan.inputs, self._marginals(tables), strict=True):
            scores = arranged(Table(z, labels), self._plan.output + self._own(labels))
            terms = xp.where(p == 0.0, 0.0, p * xp.where(p == 0.0, 0.0, scores))
            score = score + xp.sum(self._items(terms), axis=-1)
        return self._rows(xp.where(whole == -math.inf, 0.0, (whole - score) / self._semiring.temperature))

    @public
    def score(self, values: Integers) -> Array:
        """Return the score s(x) of a configuration, with the shape of the batch."""
        return self._rows(self._score_of(values))

    @public
    def log_prob(self, values: Integers) -> Array:
        """Return the log-probability of a configuration. It is -inf if no configuration is possible."""
        whole, score = self._whole(self._tables()), self._score_of(values)
        xp, none = namespace(whole), whole == -math.inf
        log_p = (score - xp.where(none, 0.0, whole)) / self._semiring.temperature
        return self._rows(xp.where(none, -math.inf, log_p))

    def best(self) -> BestConfiguration:
        """Return a configuration with the largest score, and its score."""
        limit = Semiring(0.0, None, -math.inf)
        values = self._draw(contract(self._plan, self._factors, limit), limit, 1, 0, None)[:, 0, :]
        score = self._score(namespace(values).where(values < 0, 0, values))
        return BestConfiguration(self._shaped(values), self._rows(score))

    @public
    def sample(
        self,
        num_samples: int | None = None,
        *,
        seed: Seed | None = None,
        stream: Integers | None = None,
        generator: Generator | None = None,
    ) -> Array:
        """Return configurations that are drawn from the distribution, shape (..., V), or (..., num_samples, V).

        The variables are drawn in the reverse of the order in which they are eliminated. A draw depends on its factors,
        the seed and the id of its item in `stream` only. `seed`, `stream` and `generator` are those of `categorical`.
        """
        draws = count_of(num_samples, "num_samples")
        z, tables = self._factors[0], self._tables()
        none = self._whole(tables) == -math.inf
        if check.inspectable(none) and bool(namespace(none).any(none)):
            raise ValueError("factors: expected a configuration with a score above -inf to draw, got none")
        seed, streams = seed_number(z, seed, generator), streams_of(z, self._batch, stream, draws)
        values = self._draw(tables, self._semiring, draws, seed, streams)
        return self._shaped(values[:, 0, :] if num_samples is None else values)

    # --- parts --------------------------------------------------------------------------------------------------------

    @property
    def _batch(self) -> tuple[int, ...]:
        return tuple(self._plan.sizes[label] for label in self._plan.output)

    def _own(self, labels: str) -> str:
        """Return the labels that are not in the batch."""
        return "".join(label for label in labels if label not in self._plan.output)

    def _rows(self, x: Any) -> Any:
        xp = namespace(x)
        return as_number(xp.reshape(xp.astype(x, row_dtype(self._dtype), copy=False), self._batch))

    def _shaped(self, x: Any) -> Any:
        return namespace(x).reshape(x, (*self._batch, *x.shape[1:]))

    def _tables(self) -> list[Table]:
        if followed(self._factors[0]):  # results that are kept could lack their derivatives, or be used twice
            return contract(self._plan, self._factors, self._semiring)
        if self._found is None:
            self._found = contract(self._plan, self._factors, self._semiring)
        return self._found

    def _items(self, x: Any) -> Any:
        """Return an array whose first axes are those of the batch as a matrix, with a row for each item."""
        items, batch = math.prod(self._batch), len(self._batch)
        return namespace(x).reshape(x, (items, math.prod(x.shape[batch:])))

    def _whole(self, tables: list[Table]) -> Any:
        """Return the smooth maximum of the scores of each item, T log Z."""
        return self._items(arranged(tables[-1], self._plan.output))[:, 0]

    def _marginals(self, tables: list[Table]) -> list[Any]:
        every = self._plan.output + self.variables
        found = zip(self._plan.inputs, tables, outsides(self._plan, tables, self._semiring), strict=False)
        return [self._probabilities(contracted(x, outer, every, self._semiring), labels) for labels, x, outer in found]

    def _probabilities(self, joint: Table, labels: str) -> Any:
        """Return the softmax of a table over its variables, in the order of the labels, after the axes of the batch."""
        scores = arranged(joint, self._plan.output + self._own(labels))
        p = softmax(self._items(scores), temperature=self._semiring.temperature)
        return namespace(p).reshape(p, tuple(scores.shape))

    def _score_of(self, values: Any) -> Any:
        """Check a configuration of each item, and return their scores. Wrong values that cannot be read give NaN."""
        z, shape = self._factors[0], (*self._batch, len(self.variables))
        found, xp = integers_of(values, z, shape, "values"), namespace(z)
        sizes = xp.asarray([self._plan.sizes[x] for x in self.variables], dtype=integer_dtype(z), device=device_of(z))
        wrong = self._items(wrong_classes(found, sizes, shape, "values"))
        return xp.where(xp.any(wrong, axis=1), math.nan, self._score(xp.where(wrong, 0, self._items(found))))

    def _indices(self, draws: int) -> dict[str, Any]:
        """Return the index of each label of the batch, for each draw of each item."""
        z = self._factors[0]
        xp = namespace(z)
        item = xp.arange(math.prod(self._batch) * draws, dtype=integer_dtype(z), device=device_of(z)) // draws
        return dict(zip(self._plan.output, _unraveled(item, self._batch), strict=True))

    def _score(self, values: Any) -> Any:
        """Return the score of a configuration of each item."""
        at = self._indices(1) | {label: values[:, i] for i, label in enumerate(self.variables)}
        tables = (Table(*x) for x in zip(self._factors, self._plan.inputs, strict=True))
        return functools.reduce(plus, [_taken(table, at, "", values.shape[0]) for table in tables])

    def _draw(self, tables: list[Table], semiring: Semiring, draws: int, seed: Any, streams: Any) -> Any:
        """Draw (N, draws, V). From the last step to the first, draw the variables over which the step sums.

        Their scores are those of the tables that the step takes, at the values of the variables that are already drawn.
        """
        plan, items = self._plan, math.prod(self._batch)
        xp = namespace(tables[-1].scores)
        none = self._items(arranged(tables[-1], plan.output)) == -math.inf
        of_draw = xp.reshape(xp.broadcast_to(none, (items, draws)), (items * draws, 1))
        at = self._indices(draws)
        for number, step in reversed(list(enumerate(plan.steps))):
            taken = [tables[one] for one in step.operands]
            over = "".join(x for x in dict.fromkeys("".join(table.labels for table in taken)) if x not in at)
            if over:
                scores = functools.reduce(plus, [_taken(table, at, over, items * draws) for table in taken])
                sizes = tuple(plan.sizes[label] for label in over)
                rows = xp.where(of_draw, 0.0, xp.reshape(scores, (items * draws, math.prod(sizes))))
                drawn = categorical(rows, temperature=semiring.temperature, seed=seed_at(seed, number), stream=streams)
                at |= zip(over, _unraveled(drawn, sizes), strict=True)
        found = xp.reshape(
            xp.stack([at[label] for label in self.variables], axis=-1), (items, draws, len(self.variables))
        )
        return xp.where(none[:, :, None], -1, found)


def _unraveled(index: Any, sizes: tuple[int, ...]) -> list[Any]:
    """Return the index of each axis for a position in row-major order."""
    found: list[Any] = []
    for size in reversed(sizes):
        found.insert(0, index % size)
        index = index // size
    return found


def _taken(table: Table, at: dict[str, Any], over: str, rows: int) -> Any:
    """Return the scores of a table at the indices of its other labels, (rows, ..) with an axis per label of `over`.

    The axis of a label that the table does not have has a size of 1.
    """
    fixed = "".join(label for label in table.labels if label in at)
    scores = arranged(table, fixed + over)
    xp, shape = namespace(scores), tuple(scores.shape)
    row = xp.zeros((rows,), dtype=integer_dtype(scores), device=device_of(scores))
    for label, size in zip(fixed, shape, strict=False):
        row = row * size + at[label]
    flat = xp.reshape(scores, (math.prod(shape[: len(fixed)]), *shape[len(fixed) :]))
    return xp.take(flat, row, axis=0)
