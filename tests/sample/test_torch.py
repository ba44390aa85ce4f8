"""torch: derivatives of relaxed draws in every mode, operators, compiled graphs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import softargmax as sa  # noqa: E402
from softargmax.core.scale import UNIT, Scale  # noqa: E402
from softargmax.sample import operations as o  # noqa: E402
from softargmax.sample.arguments import Distribution, Filters  # noqa: E402

# Warnings that torch's forward mode and compiler raise about their own code.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.*is deprecated:FutureWarning"),
]


def scores(*shape: int, dtype: Any = torch.float64, seed: int = 0) -> Any:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["native", "reference"])
def either(request: pytest.FixtureRequest) -> Any:
    with sa.using(request.param):
        yield request.param


@pytest.mark.parametrize("axis", [-1, 0])
def test_gradients_of_every_order(axis: int, either: str) -> None:
    z, t = scores(3, 4).requires_grad_(), torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([True, True, False, True])

    def f(z: Any, t: Any) -> Any:
        return sa.gumbel_softmax(z, temperature=t, seed=5, axis=axis, where=mask)

    assert torch.autograd.gradcheck(f, (z, t), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, (z, t), check_fwd_over_rev=True)


def test_straight_through(either: str) -> None:
    """Hard draws are exactly one-hot. Their first, second and forward-mode derivatives are those of the soft draws."""
    z, g = scores(5, 7).requires_grad_(), scores(5, 7, seed=1)

    def sample(z: Any, hard: bool) -> Any:
        return sa.gumbel_softmax(z, temperature=0.8, seed=3, hard=hard)

    hard, soft = sample(z, True), sample(z, False)
    assert set(hard.detach().reshape(-1).tolist()) == {0.0, 1.0}
    assert (hard.sum(-1) == 1).all()
    assert torch.equal(hard.argmax(-1), sa.categorical(z.detach(), seed=3))
    for a, b in zip(*([*torch.autograd.grad(y, z, g, create_graph=True)] for y in (hard, soft)), strict=True):
        assert torch.equal(a, b)
        assert a.abs().max() > 0
        second = [torch.autograd.grad(x, z, g, retain_graph=True)[0] for x in (a, b)]
        assert torch.equal(*second)
        assert second[0].abs().max() > 0
    tangents = [torch.func.jvp(lambda z, h=h: sample(z, h), (z.detach(),), (g,))[1] for h in (True, False)]
    assert torch.equal(*tangents)
    assert tangents[0].abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_computed_in_float32(dtype: Any, either: str) -> None:
    z = scores(20, 30, dtype=torch.float32).to(dtype).requires_grad_()
    y = sa.gumbel_softmax(z, seed=2, temperature=0.3)
    assert y.dtype == dtype
    assert torch.equal(y, sa.gumbel_softmax(z.float(), seed=2, temperature=0.3).to(dtype))
    y.sum().backward()
    assert z.grad.dtype == dtype


def test_edge_rows_of_relaxed_draws(either: str) -> None:
    inf, nan = torch.inf, torch.nan
    z = torch.tensor([[-inf, -inf, -inf], [1.0, nan, 2.0], [inf, 1.0, inf], [1.0, -inf, 2.0]], requires_grad=True)
    for hard in (False, True):
        y = sa.gumbel_softmax(z, hard=hard, seed=1)
        values = y.detach()
        assert (values[0] == 0).all()
        assert values[1].isnan().all()
        assert values[2, 1] == values[3, 1] == 0
        assert values[2].sum() == pytest.approx(1)
        assert torch.autograd.grad(y[[0, 2, 3]].sum(), z)[0][[0, 2]].abs().max() == 0
    counts = sum(sa.gumbel_softmax(z[2], hard=True, seed=s).detach() for s in range(300))
    assert 100 < counts[0] < 200
    assert (sa.gumbel_softmax(torch.tensor([2.0, 2.0, 1.0]), temperature=0.0, hard=True, seed=0).sum()) == 1
    masked = sa.gumbel_softmax(
        torch.tensor([nan, 0.0, inf]), where=torch.tensor([False, True, False]), seed=0, hard=True
    )
    assert masked.tolist() == [0, 1, 0]


def test_the_largest_entry_of_a_relaxed_draw_is_the_draw() -> None:
    z = scores(100, 50)
    for temperature in (0.1, 1.0, 10.0):
        y = sa.gumbel_softmax(z, temperature=temperature, seed=8)
        assert torch.equal(y.argmax(-1), sa.categorical(z, seed=8))
    by_column = sa.gumbel_softmax(z.T.contiguous(), axis=0, seed=8, hard=True)
    assert torch.equal(by_column.argmax(0), sa.categorical(z, seed=8))
    streams = torch.arange(100).flip(0)
    assert torch.equal(sa.gumbel_softmax(z.flip(0), seed=8, stream=streams), sa.gumbel_softmax(z, seed=8).flip(0))


def test_filtered_scores_pass_gradients_through() -> None:
    z = scores(4, 9).requires_grad_()
    kept = sa.filter_scores(z, top_k=3)
    (gradient,) = torch.autograd.grad(kept, z, torch.ones_like(z), retain_graph=True)
    assert torch.equal(gradient, (kept > -torch.inf).double())
    index = sa.categorical(z, top_k=3, seed=0)
    log_p = sa.selected_log_softmax(kept, index)
    expected = torch.softmax(kept.detach(), -1)
    (gradient,) = torch.autograd.grad(log_p.sum(), z)
    assert torch.allclose(gradient, torch.nn.functional.one_hot(index, 9) - expected)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"top_k": 3, "top_p": 0.9, "temperature": 0.7},
    {"top_k": torch.tensor([1, 2, 3]), "temperature": torch.tensor([0.0, 1.0, 2.0]), "min_p": torch.tensor(0.1)},
    {"where": torch.tensor([True] * 5 + [False]), "num_samples": 4, "replace": False, "order": "joint"},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=", ".join)
def test_compiled_draws_are_those_of_eager_code(options: dict[str, Any]) -> None:
    z = scores(3, 6, dtype=torch.float32)
    stream = torch.tensor([5, 6, 7])
    compiled = torch.compile(
        lambda z: tuple(sa.categorical_with_logprob(z, seed=9, stream=stream, **options)), fullgraph=True
    )
    for a, b in zip(compiled(z), sa.categorical_with_logprob(z, seed=9, stream=stream, **options), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(
        torch.compile(lambda z: sa.categorical(z, seed=9, **options), fullgraph=True, backend="aot_eager")(z),
        sa.categorical(z, seed=9, **options),
    )


@pytest.mark.slow
def test_compiled_relaxed_draws() -> None:
    z = scores(8, 6, dtype=torch.float32).requires_grad_()
    for hard in (False, True):
        compiled = torch.compile(
            lambda z, h=hard: sa.gumbel_softmax(z, temperature=0.5, hard=h, seed=4), fullgraph=True
        )
        eager = sa.gumbel_softmax(z, temperature=0.5, hard=hard, seed=4)
        found = compiled(z)
        assert torch.allclose(found, eager, atol=1e-7)
        g = scores(8, 6, dtype=torch.float32, seed=3)
        assert torch.allclose(*(torch.autograd.grad(y, z, g)[0] for y in (found, eager)), atol=1e-6)


@pytest.mark.slow
def test_a_compiled_graph_without_a_seed_draws_anew() -> None:
    z = torch.zeros(4, 10_000)
    compiled = torch.compile(lambda z: (sa.categorical(z), sa.gumbel_softmax(z)), fullgraph=True)
    first, second = compiled(z), compiled(z)
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(first[1], second[1])


@pytest.mark.slow
def test_compiled_rows_that_cannot_be_drawn_from() -> None:
    """A compiled graph raises the error of an eager call, because the operator runs on CPU memory and reads values.

    Relaxed draws give NaN for such rows.
    """
    compiled = torch.compile(lambda z: sa.categorical(z, seed=0), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match=r"NaN in row \(1,\)"):
        compiled(torch.tensor([[0.0, 1.0], [torch.nan, 0.0]]))
    compiled = torch.compile(lambda z, k: sa.categorical(z, top_k=k, seed=0), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match=r"out of range in row \(1,\)"):
        compiled(torch.zeros(2, 3), torch.tensor([2, -2]))
    compiled = torch.compile(lambda z, t: sa.categorical(z, temperature=t, seed=0), fullgraph=True, backend="aot_eager")
    for bad in (-1.0, torch.nan):
        with pytest.raises(ValueError, match=r"out of range in row \(1,\)"):
            compiled(torch.zeros(2, 3), torch.tensor([2.0, bad]))
    compiled = torch.compile(lambda z, k: sa.filter_scores(z, top_k=k), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match=r"out of range in row \(1,\)"):
        compiled(torch.zeros(2, 3), torch.tensor([2.0, 2.5]))
    relaxed = torch.compile(
        lambda z, t: sa.gumbel_softmax(z, temperature=t, seed=0), fullgraph=True, backend="aot_eager"
    )
    assert relaxed(torch.zeros(2, 3), torch.tensor([2.0, -1.0])).isnan().all(-1).tolist() == [False, True]


@pytest.mark.slow
def test_compiled_guesses_that_are_no_classes() -> None:
    z, guesses = torch.zeros(3, 3, 5), torch.tensor([[1, 4], [1, 5], [-1, 2]])
    compiled = torch.compile(
        lambda z, g: tuple(sa.speculative_sample(z, z[:, :2], g, seed=0)), fullgraph=True, backend="aot_eager"
    )
    for tokens, accepted in (
        compiled(z, guesses),
        torch.vmap(lambda g: sa.speculative_sample(z[0], z[0, :2], g, seed=0))(guesses),
    ):
        assert accepted.tolist() == [2, 0, 0]
        assert (tokens[1:] == -1).all()
        assert tokens[0, :2].tolist() == [1, 4]
        assert 0 <= tokens[0, 2] < 5


def test_a_generator_stays_outside_of_graphs() -> None:
    """A generator cannot enter a compiled graph, neither in our draws nor in torch.randint."""
    generator = torch.Generator().manual_seed(0)
    for draw in (lambda z, g: sa.categorical(z, generator=g), lambda _, g: torch.randint(9, (3,), generator=g)):
        with pytest.raises(Exception, match="Generator"):
            torch.compile(draw, fullgraph=True, backend="aot_eager")(torch.zeros(2, 3), generator)


Z = scores(3, 6, dtype=torch.float32)
SEED, STREAM = torch.tensor(-5), torch.tensor([[1], [2], [3]])
NUMBERS = Distribution(Scale(0.5, 0.0), None, Filters(top_k=2.0))
ROWS = Distribution(
    Scale(torch.ones(3, 1, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)),
    torch.ones(6, dtype=torch.bool),
    Filters(top_k=torch.tensor([[1], [2], [3]]), top_p=torch.full((3, 1), 0.9, dtype=torch.float64)),
    joint=True,
)
CHECKS = {
    "gumbel": (o.gumbel, o.Noise(Z.T, SEED, None, (0,), torch.float32)),
    "gumbel, streams": (o.gumbel, o.Noise(Z, SEED, STREAM, (1,), torch.bfloat16)),
    "filter_mask": (o.filter_mask, o.FilterMask(Z, NUMBERS, (1,))),
    "filter_mask, rows": (o.filter_mask, o.FilterMask(Z.bfloat16().T.contiguous().T, ROWS, (1,))),
    "categorical": (o.categorical, o.Categorical(Z, NUMBERS, SEED, STREAM, (1,), 4, replace=True)),
    "categorical, rows": (o.categorical, o.Categorical(Z.double(), ROWS, SEED, None, (1,), 1, replace=False)),
    "with logprob": (
        o.categorical_with_logprob,
        o.Categorical(Z.half(), Distribution(UNIT), SEED, None, (1,), 2, replace=False),
    ),
}


@pytest.mark.parametrize("name", CHECKS)
def test_opcheck(name: str) -> None:
    operation, i = CHECKS[name]
    torch.library.opcheck(operation.torch.overload, operation.torch.flatten(i))


@pytest.mark.parametrize("mapped", [False, True])
def test_the_core_serves_tensors(mapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(o.categorical, "define", None)
    draw = torch.vmap(lambda z: sa.categorical(z, seed=0)) if mapped else lambda z: sa.categorical(z, seed=0)
    assert draw(scores(2, 3, 4).requires_grad_()).shape == (2, 3)


def test_draws_are_constants() -> None:
    """Draws have no gradient and a tangent of 0, even if the scores are differentiated."""
    z = scores(3, 6).requires_grad_()
    drawn = sa.categorical_with_logprob(z, top_k=2, seed=0)
    assert not any(x.requires_grad for x in drawn)
    compiled = torch.compile(lambda z: sa.categorical_with_logprob(z, top_k=2, seed=0).logprob, backend="aot_eager")
    assert not compiled(z).requires_grad
    _, tangent = torch.func.jvp(lambda z: sa.categorical_with_logprob(z, seed=0).logprob, (z.detach(),), (z.detach(),))
    assert (tangent == 0).all()


def test_the_module() -> None:
    layer = sa.nn.GumbelSoftmax(0, temperature=torch.nn.Parameter(torch.tensor(0.5)), hard=True)
    z = scores(6, 3, dtype=torch.float32)
    y = layer(z, generator=torch.Generator().manual_seed(0))
    assert torch.equal(y, layer(z, generator=torch.Generator().manual_seed(0)))
    assert (y.sum(0) == 1).all()
    (y * z).sum().backward()
    assert layer.temperature.grad.abs() > 0
    assert layer(z, where=torch.arange(6)[:, None] == 2)[2].tolist() == [1, 1, 1]
    assert "dim=0" in repr(layer)
    assert repr(sa.nn.GumbelSoftmax()) == "GumbelSoftmax(dim=-1, temperature=1.0, hard=False)"
    assert "temperature" in dict(sa.nn.GumbelSoftmax(temperature=torch.tensor(2.0)).named_buffers())
