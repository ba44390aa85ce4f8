"""The gradients of a last layer, which its forward pass computes: reuse, memory and negligible probabilities."""

from __future__ import annotations

import pytest

import softargmax as s
from softargmax.core import _native
from softargmax.loss.linear_operations import linear_cross_entropy

torch = pytest.importorskip("torch")
N, D, K = 1400, 6, 4000
PART = _native.bounds_of_parts(N, D, K, _native.PARTS)[1]  # the rows of the first of three parts


def layer(dtype=None, spread=1.0):
    torch.manual_seed(3)
    h, w, b = torch.randn(N, D) * spread, torch.randn(K, D), torch.randn(K)
    y = torch.randint(K, (N,))
    y[::7] = -100
    return [x.to(dtype or torch.float32).requires_grad_() for x in (h, w, b)], y


def truth(leaves, y, **options):
    wide = [x.detach().double().requires_grad_() for x in leaves]
    loss = torch.nn.functional.cross_entropy(wide[0] @ wide[1].T + wide[2], y, **options)
    return loss.detach(), torch.autograd.grad(loss, wide)


def near(found, wanted, dtype=torch.float32, ulps=8.0):
    for ours, true in zip(found, wanted, strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - true).abs().max() <= ulps * torch.finfo(dtype).eps * true.abs().max()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("gain", [1.0, 65536.0, 0.0, 1e-6])
def test_any_loss_scale(reduction, gain):
    leaves, y = layer()
    loss, wanted = truth(leaves, y, reduction=reduction)
    found = s.linear_cross_entropy(*leaves[:2], y, bias=leaves[2], reduction=reduction)
    assert abs(found.item() - loss.item()) <= 1e-6 * loss.item()
    near(torch.autograd.grad(found * gain, leaves), [gain * g for g in wanted])


def test_a_second_backward_recomputes_gradients():
    leaves, y = layer()
    loss = s.linear_cross_entropy(*leaves[:2], y, bias=leaves[2])
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    kept = [g.clone() for g in first]
    second = torch.autograd.grad(loss * 3, leaves, retain_graph=True)
    third = torch.autograd.grad(loss, leaves)
    assert all(
        torch.equal(a, b) for a, b in zip(first, kept, strict=True)
    )  # later calls do not change a returned gradient
    _, wanted = truth(leaves, y)
    near(first, wanted)
    near(second, [3 * g for g in wanted])
    near(third, wanted)


@pytest.mark.parametrize("gain", [1.0, 3.0])
def test_the_first_backward_returns_gradients_without_a_copy(gain, monkeypatch):
    """The backward pass allocates no second dW."""
    launch, computed = linear_cross_entropy.torch.launch, []
    kernel = launch["cpu"]
    monkeypatch.setitem(launch, "cpu", lambda *arguments: computed.append(kernel(*arguments)) or computed[-1])
    leaves, y = layer()
    loss = s.linear_cross_entropy(*leaves[:2], y, bias=leaves[2]) * gain
    found = torch.autograd.grad(loss, leaves)
    assert [x.data_ptr() for x in found] == [x.data_ptr() for x in computed[0][1:]]
    near(found, [gain * g for g in truth(leaves, y)[1]])


def test_returned_gradients_are_not_shared():
    leaves, y = layer()
    loss, *gradients = s.linear_cross_entropy_and_gradient(*leaves[:2], y, bias=leaves[2])
    before = [g.clone() for g in gradients]
    near(torch.autograd.grad(3 * loss, leaves), [3 * g for g in truth(leaves, y)[1]])
    assert all(torch.equal(a, b) for a, b in zip(gradients, before, strict=True))


def test_only_requested_gradients():
    leaves, y = layer()
    _, wanted = truth(leaves, y)
    for i, leaf in enumerate(leaves):
        alone = [x if x is leaf else x.detach() for x in leaves]
        near(torch.autograd.grad(s.linear_cross_entropy(*alone[:2], y, bias=alone[2]), leaf), wanted[i : i + 1])


def test_losses_of_rows_and_one_vector_in_two_losses():
    leaves, y = layer()
    h, w, b = leaves
    rows = s.linear_cross_entropy(h, w, y, bias=b, reduction="none")
    g = torch.rand(N)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    true = torch.nn.functional.cross_entropy(wide[0] @ wide[1].T + wide[2], y, reduction="none")
    near(torch.autograd.grad((rows * g).sum(), leaves), torch.autograd.grad((true * g).sum(), wide))
    both = s.linear_cross_entropy(h, w, y, bias=b) + s.linear_cross_entropy(h, w, y.flip(0), bias=b)
    also = truth(leaves, y.flip(0))[1]
    near(torch.autograd.grad(both, leaves), [x + z for x, z in zip(truth(leaves, y)[1], also, strict=True)])


def test_mean_when_no_row_counts():
    leaves, y = layer()
    loss = s.linear_cross_entropy(*leaves[:2], torch.full_like(y, -100), bias=leaves[2])
    assert loss.item() == 0
    assert all(not g.any() for g in torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype):
    leaves, y = layer(dtype)
    loss, wanted = truth(leaves, y)
    found = s.linear_cross_entropy(*leaves[:2], y, bias=leaves[2])
    assert found.dtype == torch.float32
    assert abs(found.item() - loss.item()) <= 1e-6 * loss.item()
    for ours, true in zip(torch.autograd.grad(found, leaves), wanted, strict=True):
        assert ours.dtype == dtype
        step = torch.finfo(dtype)
        assert (
            (ours.double() - true).abs()
            <= 0.51 * step.eps * true.abs() + 1e-6 * true.abs().max() + step.tiny * step.eps
        ).all()


def test_masked_nonfinite_inputs_give_finite_gradients():
    leaves, y = layer()
    with torch.no_grad():
        leaves[1][5] = float("inf")
        leaves[0][y == -100] = float("nan")
    where = torch.ones(K, dtype=torch.bool)
    where[5] = False
    y = torch.where(y == 5, -100, y)
    loss = s.linear_cross_entropy(*leaves[:2], y, bias=leaves[2], where=where)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, leaves))


def test_negligible_probabilities():
    """By default, gradients leave out negligible probabilities. The error is within the documented bound."""
    leaves, y = layer(spread=30.0)
    h, w, b = leaves
    found, exact = (
        torch.autograd.grad(s.linear_cross_entropy(h, w, y, bias=b, reduction="sum", exact=e), leaves)
        for e in (False, True)
    )
    u, kept = 2.0**-24, (y != -100).double()
    dh, dw = (abs(x.double() - z.double()) for x, z in zip(found[:2], exact[:2], strict=True))
    rounding = 2 * u  # the rounding units of `found` and `exact` together
    assert (dh.norm(dim=1) <= u * kept * w.norm(dim=1).max() + 8 * rounding * exact[0].norm(dim=1)).all()
    bound = u / K * (kept * h.norm(dim=1)).sum()
    assert (dw.norm(dim=1) <= bound + 8 * rounding * exact[1].norm(dim=1)).all()
    rare = exact[1].abs().sum(1) > 0
    assert rare.all()
    assert (exact[2] != found[2]).any()  # some probabilities were left out
    p = torch.softmax((h @ w.T + b).double(), -1).detach()
    assert ((p <= u / K).sum() > 1000) & ((p * kept[:, None] > u / K).sum() > 1000)


@pytest.mark.parametrize("exact", [1, None, "yes"])
def test_exact_is_true_or_false(exact):
    leaves, y = layer()
    with pytest.raises(TypeError, match="exact"):
        s.linear_cross_entropy(*leaves[:2], y, exact=exact)


def test_the_caller_may_change_returned_gradients():
    leaves, y = layer()
    loss = s.linear_cross_entropy(*leaves[:2], y, bias=leaves[2])
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    kept = [g.clone() for g in first]
    for g in first:
        g.data.mul_(7)
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(loss, leaves), kept, strict=True))


def test_compiled_graphs_check_classes():
    h, w = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3)
    y = torch.tensor([0, 1, 5, 2])
    compiled = torch.compile(lambda h: s.linear_cross_entropy(h, w, y), backend="aot_eager", fullgraph=True)
    with pytest.raises(IndexError, match=r"target: expected 0 to 4, or -100 \(ignored\), got 5 at \(2,\)"):
        compiled(h)


@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch._prims_common.check` is deprecated:FutureWarning")
def test_forward_mode_through_the_gradient_and_without_grad_mode():
    h, w = torch.randn(4, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    y, v = torch.tensor([0, 1, 4, 2]), torch.randn(4, 3, dtype=torch.float64)
    fw = torch.autograd.forward_ad
    wanted = torch.func.jvp(torch.func.grad(lambda h: torch.nn.functional.cross_entropy(h @ w.T, y)), (h,), (v,))[1]
    with fw.dual_level():
        dual = fw.make_dual(h.clone().requires_grad_(), v)
        (g,) = torch.autograd.grad(s.linear_cross_entropy(dual, w, y), dual)
        assert torch.allclose(fw.unpack_dual(g).tangent, wanted)
    with torch.no_grad():
        moved = torch.func.jvp(lambda h: s.linear_cross_entropy_and_gradient(h, w, y).dh, (h,), (v,))[1]
        assert torch.allclose(moved, wanted)
        z, t = h @ w.T, v @ w.T
        loss = torch.func.jvp(lambda z: s.cross_entropy_and_gradient(z, y).loss, (z,), (t,))[1]
        assert torch.allclose(loss, torch.func.jvp(lambda z: torch.nn.functional.cross_entropy(z, y), (z,), (t,))[1])


def test_class_weights_of_a_batch():
    """Under vmap over class weights, each mean divides by the sum of its weights. Gradients equal those of a loop."""
    z, y = torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 0.0]], dtype=torch.float64), torch.tensor([0, 2])
    weights = torch.tensor([[1.0, 1.0, 1.0], [5.0, 1.0, 0.1]], dtype=torch.float64, requires_grad=True)
    mapped = torch.func.vmap(lambda w: s.cross_entropy(z, y, weight=w))(weights).sum()
    looped = sum(s.cross_entropy(z, y, weight=w) for w in weights)
    (found,), (wanted,) = (torch.autograd.grad(x, weights) for x in (mapped, looped))
    assert torch.allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("weighted", [torch.bfloat16, torch.float16, torch.float64])
def test_class_weights_of_any_dtype_weigh_the_mean(dtype: torch.dtype, weighted: torch.dtype) -> None:
    """The mean divides by the sum of the weights. The error is at most that of scores summed in float32."""
    generator = torch.Generator().manual_seed(5)
    h, w = (torch.randn(n, 32, generator=generator).to(dtype) for n in (64, 50))
    weight = (0.5 + torch.rand(50, generator=generator)).to(weighted)
    y = torch.randint(50, (64,), generator=generator)
    loss = torch.nn.functional.cross_entropy(h.double() @ w.double().T, y, weight=weight.double())
    bound = 2 * 32 * 2.0**-24 * float((h.double().abs() @ w.double().abs().T).max())
    for one in (w, w.requires_grad_()):
        found = s.linear_cross_entropy(h, one, y, weight=weight, dtype=torch.float64)
        assert abs(found.item() - loss.item()) <= bound


@pytest.mark.parametrize("row", [0, PART, N - 1], ids=["first part", "second part", "last part"])
def test_an_ignored_row_of_nan_changes_no_bit(row: int) -> None:
    """In any part of the rows, an ignored row of NaN changes no loss and no other gradient. Its own gradient is 0."""
    leaves, y = layer()
    y[row] = -100
    found = []
    for value in (0.5, float("nan")):
        with torch.no_grad():
            leaves[0][row] = value
        loss = s.linear_cross_entropy(*leaves[:2], y, bias=leaves[2])
        found.append((loss, *torch.autograd.grad(loss, leaves)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert not found[1][1][row].any()


def test_a_row_has_the_same_gradient_in_every_part() -> None:
    """The gradient of a row of h has the same bits for the row alone, and for the row in any of three parts."""
    assert N / 3 < PART < N / 2
    (h, w, b), y = layer()
    whole = torch.autograd.grad(s.linear_cross_entropy(h, w, y, bias=b, reduction="sum"), h)[0]
    for row in (1, PART - 1, PART, 2 * PART - 1, 2 * PART, N - 2):
        own = h[row : row + 1].detach().requires_grad_()
        loss = s.linear_cross_entropy(own, w, y[row : row + 1], bias=b, reduction="sum")
        assert torch.equal(torch.autograd.grad(loss, own)[0][0], whole[row])


def test_nonfinite_inputs_reach_the_losses_of_every_part() -> None:
    """A NaN in h and an infinite class vector make the same losses nonfinite, with and without gradients."""
    (h, w, _), y = layer()
    with torch.no_grad():
        w[5, 0] = float("inf")
        h[[10, PART + 10, 2 * PART + 10], 1] = float("nan")
        y[y == 5] = 6  # torch has NaN for a target's score of inf
        alone = s.linear_cross_entropy(h, w, y, reduction="none")
        beside_gradients = s.linear_cross_entropy_and_gradient(h, w, y, reduction="none").loss
        truth = torch.nn.functional.cross_entropy(h.double() @ w.double().T, y, reduction="none")
    assert torch.equal(alone.isfinite(), truth.isfinite())
    assert torch.equal(alone.nan_to_num(), beside_gradients.nan_to_num())
    assert torch.equal(alone.isnan(), beside_gradients.isnan())
