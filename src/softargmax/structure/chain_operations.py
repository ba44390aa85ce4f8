"""Operations of linear chains. The definitions are in reference_chain.py.

    log Z = log sum_y exp(sum_t e(t, y_t) + sum_t T(y_t, y_t+1))

The gradients of log Z are the marginals: p(y_t = j) for emissions, and p(y_t = i, y_t+1 = j) for transitions. Their
derivatives come from the definition. The rules take alpha and log Z from the forward pass as constants, because the
gradients with respect to emissions and transitions include the dependence through them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from softargmax.core import _native
from softargmax.core.operation import Operation, row_sum
from softargmax.core.record import Dense, Gradients, Integers, Packed, Result, Wanted, gradient
from softargmax.structure import reference_chain


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


partition: Operation[Chain, Partition] = Operation(
    "linear_chain",
    Chain,
    Partition(*_PARTITION),
    definition=reference_chain.partition,
    kernels={"cpu": _native.linear_chain},
    vjp=_partition_vjp,
    saved={*Chain._fields, *Partition._fields},
    constant={"lengths", "alpha"},
    always_by_rule=True,
)

marginals: Operation[Marginals, ToScores] = Operation(
    "linear_chain_vjp",
    Marginals,
    ToScores(gradient("emissions"), gradient("transitions")),
    definition=reference_chain.marginals,
    kernels={"cpu": _native.linear_chain_vjp},
    constant={"lengths", "alpha", "log_z"},
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
