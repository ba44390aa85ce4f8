"""torch.compile of distributions over structures: whole graphs, with the bits of eager calls."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opt_einsum")
cases = importlib.import_module("tests.normalize.torch_cases")

import softargmax as s  # noqa: E402 after the check for torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.filterwarnings(warning) for warning in cases.IGNORED]
TAGS = torch.tensor([[0, 4, 2, 1], [3, 3, 0, 0], [1, 0, 0, 0]])
LENGTHS = torch.tensor([4, 2, 0])
MASK = torch.arange(4) < torch.tensor([[4], [2], [1]])
VALUES = torch.tensor([[0, 4, 1], [3, 2, 0], [1, 0, 2]])


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def chain(e: Any, t: Any) -> s.structure.LinearChain:
    return s.linear_chain(e, t, lengths=LENGTHS, start=t[0], end=t[:, 0])


def graph(e: Any, t: Any) -> s.structure.FactorGraph:
    return s.factor_graph("nab,bc->n", e, t[:, :3], temperature=0.7)


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "chain: log_z": lambda e, t: chain(e, t).log_z,
    "chain: marginals": lambda e, t: chain(e, t).marginals(),
    "chain: pair_marginals": lambda e, t: chain(e, t).pair_marginals(),
    "chain: entropy": lambda e, t: chain(e, t).entropy(),
    "chain: log_prob": lambda e, t: chain(e, t).log_prob(TAGS),
    "chain: best": lambda e, t: chain(e, t).best().tags,
    "chain: best paths": lambda e, t: chain(e, t).best(3).score,
    "chain: sample": lambda e, t: chain(e, t).sample(2, seed=3),
    "graph: log_z": lambda e, t: graph(e, t).log_z,
    "graph: marginals": lambda e, t: graph(e, t).marginals()[0],
    "graph: marginal": lambda e, t: graph(e, t).marginal("ca"),
    "graph: entropy": lambda e, t: graph(e, t).entropy(),
    "graph: log_prob": lambda e, t: graph(e, t).log_prob(VALUES),
    "graph: best": lambda e, t: graph(e, t).best().values,
    "graph: sample": lambda e, t: graph(e, t).sample(2, seed=3),
    "log_einsum": lambda e, t: s.log_einsum("nab,bc->nc", e, t),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_functions_have_the_bits_of_eager_calls(name: str) -> None:
    f = FUNCTIONS[name]
    e, t = cases.draw(3, 4, 5).float().requires_grad_(), cases.draw(5, 5, seed=1).float().requires_grad_()
    wanted, found = f(e, t), torch.compile(f, fullgraph=True, backend="aot_eager")(e, t)
    assert torch.equal(wanted, found)
    assert wanted.requires_grad == found.requires_grad
    if found.requires_grad:
        g = cases.draw(*found.shape, seed=2).float()
        gradients = (torch.autograd.grad(x, (e, t), g, allow_unused=True) for x in (wanted, found))
        for one, other in zip(*gradients, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)


def test_sizes_may_change() -> None:
    """At the second size of a batch, the compiler makes the size dynamic."""
    compiled = torch.compile(
        lambda e, t: (e.logsumexp(0), graph(e, t).log_z, s.linear_chain(e, t).marginals()),
        fullgraph=True,
        backend="aot_eager",
    )
    t = cases.draw(5, 5, seed=1).float()
    for size in (3, 5, 7):
        e = cases.draw(size, 4, 5).float()
        _, log_z, marginals = compiled(e, t)
        assert torch.equal(log_z, graph(e, t).log_z)
        assert torch.equal(marginals, s.linear_chain(e, t).marginals())


def test_a_wrong_temperature_gives_nan() -> None:
    compiled = torch.compile(
        lambda x, T: s.factor_graph("ab->", x, temperature=T).log_z, fullgraph=True, backend="aot_eager"
    )
    x = cases.draw(2, 3).float()
    assert compiled(x, torch.tensor(-1.0)).isnan()
    assert compiled(x, torch.tensor(0.5)) == s.factor_graph("ab->", x, temperature=0.5).log_z


def test_wrong_lengths_tags_and_values_give_nan() -> None:
    """A graph cannot raise an error for a value. In eager calls they are errors."""

    def f(e: Any, t: Any, n: Any, y: Any) -> Any:
        one, other = s.linear_chain(e, t, lengths=n), s.factor_graph("nab,bc->n", e, t)
        values = torch.stack([y[:, 0], y[:, 1], y[:, 0]], dim=1)
        return (
            one.log_z,
            one.log_prob(y),
            other.score(values),
            one.entropy(),
            one.marginals().sum((1, 2)),
            one.best().tags,
        )

    n, y = torch.tensor([4, 9, 2]), TAGS % 4
    y[2, 0], y[0, 3] = 7, 3
    e, t = cases.draw(3, 4, 5).float(), cases.draw(5, 5, seed=1).float()
    *found, tags = torch.compile(f, fullgraph=True, backend="aot_eager")(e, t, n, y)
    wrong = [
        [False, True, False],
        [False, True, True],
        [False, False, True],
        [False, True, False],
        [False, True, False],
    ]
    assert [x.isnan().tolist() for x in found] == wrong
    assert (tags[1] == -1).all()
    with pytest.raises(ValueError, match="lengths: expected"):
        f(e, t, n, y)


def test_a_compiled_module_has_the_bits_of_the_module() -> None:
    crf, e = s.nn.LinearChainCRF(5), cases.draw(3, 4, 5).float()
    compiled = torch.compile(crf, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(e, TAGS, mask=MASK), crf(e, TAGS, mask=MASK))


def test_the_first_call_of_a_process_may_be_compiled() -> None:
    code = """
import torch, softargmax as s
e, t = torch.zeros(2, 3, 2), torch.zeros(2, 2)
f = lambda e, t: s.linear_chain(e, t).log_z + s.factor_graph("nab,bc->n", e, t).log_z
print(torch.compile(f, fullgraph=True, backend="aot_eager")(e, t).double().round(decimals=4).tolist())
"""
    found = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout == "[4.5643, 4.5643]\n"  # log 2^3 + log (3 2 2)
