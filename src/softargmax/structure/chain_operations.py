"""Operations of linear chains. The definitions are in reference_chain.py.

    log Z = log sum_y exp(sum_t e(t, y_t) + sum_t T(y_t, y_t+1))

The gradients of log Z are the marginals: p(y_t = j) for emissions, and p(y_t = i, y_t+1 = j) for transitions. Their
derivatives come from the definition. The rules take alpha and log Z from the forward pass as constants, because the
gradients with respect to emissions and transitions include the dependence through them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from softargmax.core import _native
from softargmax.core.arrays import mapped, namespace
from softargmax.core.operation import Operation, row_sum
from softargmax.core.record import Dense, Gradients, Integers, Packed, Result, Wanted, gradient
from softargmax.core.vmap_rows import Batched
from softargmax.structure import reference_chain

if TYPE_CHECKING:
    from collections.abc import Sequence


class Chain(NamedTuple):
    """Emissions (N, L, C), transitions (N or 1, L - 1 or 1, C, C), and the length of each sequence, (N,).

    `start` and `end`, (C,) in float64, are added to the emissions of a sequence's first and last position.
    """

    emissions: Packed
    transitions: Packed
    start: Dense
    end: Dense
    lengths: Integers


class Partition(NamedTuple):
    """log Z of each sequence, and alpha (N, L, C): the logarithms of the sums over all beginnings of paths."""

    log_z: Any
    alpha: Any


class Paths(NamedTuple):
    """A chain, and the number of best paths."""

    of: Chain
    num_paths: int


class BestPaths(NamedTuple):
    """The largest scores (N, K), and the tags of their paths (N, K, L), -1 beyond the end."""

    scores: Any
    best: Any


class Marginals(NamedTuple):
    """Arguments of the operation that returns g times the marginals: a chain, and its results."""

    of: Chain
    alpha: Dense
    log_z: Dense
    g: Dense


class ToScores(NamedTuple):
    """The gradients with respect to emissions and transitions."""

    to_emissions: Any
    to_transitions: Any


_PARTITION = (
    Result("emissions", "float64", "(emissions.shape[0],)"),
    Result("emissions", "float64", "tuple(emissions.shape)"),
)


def _partition_vjp(i: Chain, r: Partition, g: Partition, _wanted: Wanted) -> Gradients:
    found = marginals(Marginals(i, r.alpha, r.log_z, g.log_z))
    first, last = (
        row_sum(reference_chain.at_position(found.to_emissions, place), (0,))[0]
        for place in reference_chain.ends(i.lengths)
    )
    return {"emissions": found.to_emissions, "transitions": found.to_transitions, "start": first, "end": last}


# --- vmap: the items of all calls are the items of one call -----------------------------------------------------------


class _Calls:
    """The arguments of `size` calls, which vmap maps, as those of one call."""

    def __init__(self, chain: Chain, dims: Chain, size: int) -> None:
        self.chain, self.dims, self.size = chain, dims, size
        self.items, self.own = (
            x.shape[0 if dim is None or dim % x.ndim else 1]
            for x, dim in ((chain.emissions, dims.emissions), (chain.transitions, dims.transitions))
        )

    def joined(self, x: Any, dim: Any) -> Any:
        """Join the items of all calls: (N, ...) of each call to (calls N, ...)."""
        x = mapped(x, dim, self.size)
        return namespace(x).reshape(x, (self.size * self.items, *x.shape[2:]))

    def split(self, results: Sequence[Any]) -> tuple[Any, ...]:
        """Split the items of results again."""
        return tuple(namespace(x).reshape(x, (self.size, self.items, *x.shape[1:])) for x in results)

    def chain_of_all(self, *, shared: bool) -> Chain | None:
        """Return the chain of all items, or None if they cannot be in one chain: if calls have starts or ends of their
        own, or transitions that all of their items share. If `shared`, all items of all calls may share transitions.
        """
        chain, dims = self.chain, self.dims
        if dims.start is not None or dims.end is not None:
            return None
        transitions = chain.transitions
        if not (shared and dims.transitions is None and self.own == 1):
            if self.own != self.items:
                return None
            transitions = self.joined(transitions, dims.transitions)
        emissions, lengths = self.joined(chain.emissions, dims.emissions), self.joined(chain.lengths, dims.lengths)
        return chain._replace(emissions=emissions, transitions=transitions, lengths=lengths)


def _batch(i: Chain, dims: Chain, size: int) -> Batched | None:
    calls = _Calls(i, dims, size)
    chain = calls.chain_of_all(shared=True)
    return None if chain is None else Batched(chain, split=calls.split)


def _batch_paths(i: Paths, dims: Paths, size: int) -> Batched | None:
    found = _batch(i.of, dims.of, size)
    return None if found is None else found._replace(i=i._replace(of=found.i))


def _batch_marginals(i: Marginals, dims: Marginals, size: int) -> Batched | None:
    calls = _Calls(i.of, dims.of, size)
    chain = calls.chain_of_all(shared=False)  # the gradient of shared transitions would be a sum over all calls
    if chain is None:
        return None
    return Batched(Marginals(chain, *map(calls.joined, i[1:], dims[1:])), split=calls.split)


partition: Operation[Chain, Partition] = Operation(
    "linear_chain",
    Chain,
    Partition(*_PARTITION),
    definition=reference_chain.partition,
    kernels={"cpu": _native.linear_chain},
    vjp=_partition_vjp,
    saved={*Chain._fields, *Partition._fields},
    constant={"lengths", "alpha"},
    batch=_batch,
    always_by_rule=True,
)

marginals: Operation[Marginals, ToScores] = Operation(
    "linear_chain_vjp",
    Marginals,
    ToScores(gradient("emissions"), gradient("transitions")),
    definition=reference_chain.marginals,
    kernels={"cpu": _native.linear_chain_vjp},
    constant={"lengths", "alpha", "log_z"},
    batch=_batch_marginals,
)

best_paths: Operation[Paths, BestPaths] = Operation(
    "linear_chain_best",
    Paths,
    BestPaths(
        Result("emissions", "float64", "(emissions.shape[0], num_paths)"),
        Result("emissions", "int64", "(emissions.shape[0], num_paths, emissions.shape[1])"),
    ),
    definition=reference_chain.best_paths,
    kernels={"cpu": _native.linear_chain_best},
    batch=_batch_paths,
    differentiable=False,
)


# --- the operations as nodes of compiled graphs (core/torch_compile.py) -----------------------------------------------


def partition_of(i: Chain) -> Partition:
    """Return log Z and alpha."""
    return partition(i)


def marginals_of(i: Marginals) -> ToScores:
    """Return g times the marginals."""
    return marginals(i)


def best_paths_of(i: Paths) -> BestPaths:
    """Return the best paths."""
    return best_paths(i)
