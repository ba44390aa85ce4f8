"""Linear chains on tensors: derivatives, the module, and pytorch-crf."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
cases = importlib.import_module("tests.normalize.torch_cases")
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402 after the check for torch

import softargmax as s  # noqa: E402
from softargmax.structure import chain_operations as o  # noqa: E402

IGNORED = (*cases.IGNORED, "ignore:where received a uint8 condition tensor")  # pytorch-crf's masks
pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]
LENGTHS = torch.tensor([4, 0, 2])
draw = cases.draw


def log_z(e: Any, t: Any) -> Any:
    return s.linear_chain(e, t, lengths=LENGTHS).log_z


SHAPES = {"shared": ((3, 4, 2), (2, 2)), "steps": ((3, 4, 2), (3, 2, 2)), "own": ((3, 4, 2), (3, 3, 2, 2))}
each = pytest.mark.parametrize("shapes", SHAPES.values(), ids=list(SHAPES))


@each
def test_derivatives(shapes: Any) -> None:
    leaves = tuple(draw(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes))
    assert gradcheck(log_z, leaves, check_forward_ad=True, check_batched_grad=False, check_undefined_grad=True)
    assert gradgradcheck(log_z, leaves)


def test_the_gradient_is_the_marginals() -> None:
    e, t = draw(3, 4, 5).requires_grad_(), draw(5, 5, seed=1).requires_grad_()
    chain = s.linear_chain(e, t, lengths=LENGTHS)
    to_e, to_t = torch.autograd.grad(chain.log_z.sum(), (e, t))
    assert torch.equal(to_e, chain.marginals())
    torch.testing.assert_close(to_t, chain.pair_marginals().sum((0, 1)), rtol=1e-13, atol=1e-14)


def test_derivatives_of_marginals_and_entropy() -> None:
    e, t = draw(2, 3, 2).requires_grad_(), draw(2, 2, seed=1).requires_grad_()
    assert gradcheck(lambda e, t: s.linear_chain(e, t).marginals(), (e, t))
    assert gradcheck(lambda e, t: s.linear_chain(e, t).entropy(), (e, t))
    assert gradcheck(lambda e, t: s.linear_chain(e, t).log_prob(torch.zeros(2, 3, dtype=torch.int64)), (e, t))


def test_operators() -> None:
    ends = draw(2, seed=2).requires_grad_(), draw(2, seed=3).requires_grad_()
    chain = o.Chain(draw(3, 4, 2).requires_grad_(), draw(1, 1, 2, 2, seed=1).requires_grad_(), *ends, LENGTHS)
    torch.library.opcheck(o.partition.torch.overload, o.partition.torch.flatten(chain))
    z, alpha = (x.detach() for x in o.partition(chain))
    of = o.Marginals(chain, alpha, z, torch.ones(3, dtype=torch.float64))
    torch.library.opcheck(o.marginals.torch.overload, o.marginals.torch.flatten(of))
    paths = o.Paths(o.Chain(*(x.detach() for x in chain)), 3)
    torch.library.opcheck(o.best_paths.torch.overload, o.best_paths.torch.flatten(paths))


def test_forbidden_steps_have_gradients_of_zero() -> None:
    e, t = draw(1, 4, 3).requires_grad_(), draw(3, 3, seed=1)
    t[0, 1] = -math.inf
    t.requires_grad_()
    s.linear_chain(e, t).log_z.sum().backward()
    assert t.grad[0, 1] == 0
    assert t.grad.isfinite().all()
    assert e.grad.isfinite().all()


def filled(module: Any, seed: int = 0) -> Any:
    with torch.no_grad():
        for k, parameter in enumerate(module.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=seed + k))
    return module


def test_results_without_gradients_do_not_cut_later_gradients() -> None:
    e, t = draw(4, 3).requires_grad_(), draw(3, 3, seed=1).requires_grad_()
    chain = s.linear_chain(e, t)
    with torch.no_grad():
        path = chain.sample(seed=0)
        chain.log_z.item()
    found = torch.autograd.grad(chain.log_prob(path), (e, t))
    wanted = torch.autograd.grad(s.linear_chain(e, t).log_prob(path), (e, t))
    assert all(map(torch.equal, found, wanted))
    assert found[0].abs().max() > 0
    assert abs(float(found[0].sum())) < 1e-12  # observed minus expected


def test_shared_transitions_of_many_sequences() -> None:
    e, t = draw(37, 5, 3), draw(3, 3, seed=1).requires_grad_()
    found = torch.autograd.grad(s.linear_chain(e, t).log_z.sum(), t)[0]
    torch.testing.assert_close(found, s.linear_chain(e, t).pair_marginals().sum((0, 1)), rtol=1e-12, atol=1e-13)


def test_an_empty_batch_and_forbidden_paths_have_gradients_of_zero() -> None:
    crf = s.nn.LinearChainCRF(3)
    crf(torch.zeros(0, 4, 3), torch.zeros(0, 4, dtype=torch.int64)).backward()
    assert all((x.grad == 0).all() for x in crf.parameters())
    t = torch.zeros(2, 2)
    t[0, 1] = -math.inf
    t.requires_grad_()
    s.linear_chain(torch.zeros(2, 2), t).log_prob([0, 1]).backward()
    assert t.grad[0, 1] == 0


MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]).bool()


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "token_mean"])
def test_the_module_agrees_with_pytorch_crf(reduction: str, batch_first: bool) -> None:
    torchcrf = pytest.importorskip("torchcrf")
    ours = filled(s.nn.LinearChainCRF(3, batch_first=batch_first))
    theirs = torchcrf.CRF(3, batch_first=batch_first)
    theirs.load_state_dict(ours.state_dict())
    e, tags, mask = draw(3, 4, 3).float(), torch.randint(3, (3, 4)), MASK
    if not batch_first:
        e, tags, mask = e.transpose(0, 1), tags.T, mask.T
    e1, e2 = e.clone().requires_grad_(), e.clone().requires_grad_()
    loss, wanted = ours(e1, tags, mask, reduction), -theirs(e2, tags, mask=mask, reduction=reduction)
    torch.testing.assert_close(loss, wanted)
    loss.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(e1.grad, e2.grad)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert ours.decode(e, mask) == theirs.decode(e, mask)
    assert ours.decode(e) == theirs.decode(e)


def test_the_module_without_a_peer() -> None:
    crf = filled(s.nn.LinearChainCRF(3))
    e, tags = draw(3, 4, 3).float(), torch.randint(3, (3, 4))
    losses = crf(e, tags, mask=MASK, reduction="none")
    for i, n in enumerate((4, 2, 1)):
        one = crf(e[i : i + 1, :n], tags[i : i + 1, :n])
        torch.testing.assert_close(losses[i], one)
    assert crf(e, tags, mask=MASK, reduction="token_mean") == losses.sum() / 7
    assert "3" in repr(crf)
    state = crf.state_dict()
    assert list(state) == ["start_transitions", "end_transitions", "transitions"]


def test_errors_of_the_module() -> None:
    crf, e = s.nn.LinearChainCRF(3), torch.zeros(2, 4, 3)
    with pytest.raises(ValueError, match="num_tags: expected"):
        s.nn.LinearChainCRF(0)
    with pytest.raises(ValueError, match=r"mask: .*gap"):
        crf.decode(e, torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1]]).bool())
    with pytest.raises(ValueError, match="mask: expected one entry"):
        crf.decode(e, torch.ones(2, 3).bool())
    with pytest.raises(ValueError, match="emissions: expected shape"):
        crf.decode(torch.zeros(2, 4, 2))
    with pytest.raises(ValueError, match="reduction"):
        crf(e, torch.zeros(2, 4, dtype=torch.int64), reduction="max")
    with pytest.raises(IndexError, match="tags"):
        crf(e, torch.full((2, 4), 3))


def test_a_hidden_markov_model_agrees_with_hmmlearn() -> None:
    hmm = pytest.importorskip("hmmlearn.hmm")
    model = hmm.CategoricalHMM(n_components=3, init_params="")
    rng = np.random.default_rng(0)
    model.startprob_, model.transmat_ = rng.dirichlet([1.0] * 3), rng.dirichlet([1.0] * 3, size=3)
    model.emissionprob_ = rng.dirichlet([1.0] * 4, size=3)
    seen = rng.integers(0, 4, (20, 1))
    chain = s.linear_chain(
        np.log(model.emissionprob_[:, seen[:, 0]].T), np.log(model.transmat_), start=np.log(model.startprob_)
    )
    log_likelihood, posteriors = model.score_samples(seen)
    assert float(chain.log_z) == pytest.approx(log_likelihood, rel=1e-12)
    np.testing.assert_allclose(chain.marginals(), posteriors, rtol=1e-9)
    score, tags = model.decode(seen)
    assert float(chain.best().score) == pytest.approx(score, rel=1e-12)
    assert (chain.best().tags == tags).all()
