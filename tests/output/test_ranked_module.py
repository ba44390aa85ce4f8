"""AdaptiveSoftmax and DifferentiatedSoftmax as torch modules: half precision, transforms, checkpoints."""

from __future__ import annotations

import copy
import importlib
import pickle

import pytest

torch = pytest.importorskip("torch")
cases = importlib.import_module("tests.output.test_ranked")

from softargmax.core.dispatch import using  # noqa: E402

pytestmark = cases.pytestmark
F64, KINDS, every, filled, layer_of, drawn = (
    getattr(cases, name) for name in ("F64", "KINDS", "every", "filled", "layer_of", "drawn")
)


# --- half precision ---------------------------------------------------------------------------------------------------


@every
def test_half_precision(name: str) -> None:
    y = torch.arange(6) * 7 % 40
    for dtype in (torch.float16, torch.bfloat16):
        hidden = drawn(6, 6, dtype=dtype)
        half = layer_of(name, dtype=dtype)
        wide = copy.deepcopy(half).float()
        for x in (hidden, hidden.float()):
            found = half(x, y)
            assert found.dtype == half.log_prob(x).dtype == half.topk(x, 2).values.dtype == torch.float32
            assert torch.equal(found, wide(x.float(), y))
            assert torch.equal(half.log_prob(x), wide.log_prob(x.float()))
        half(hidden, y).backward()
        wide(hidden.float(), y).backward()
        for ours, theirs in zip(half.parameters(), wide.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad.to(dtype)), "gradients are rounded once"
        for implementation in ("native", "reference"):
            with using(implementation):
                found = wide(hidden.float(), y), wide.log_prob(hidden.float())
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    assert torch.equal(wide(hidden.float(), y), found[0])
                    assert torch.equal(wide.log_prob(hidden.float()), found[1])


# --- transforms -------------------------------------------------------------------------------------------------------


@every
def test_vmap_and_functional_derivatives(name: str) -> None:
    layer, hidden, y = layer_of(name, dtype=F64, reduction="none"), drawn(6, 6), torch.arange(6) * 7
    y[4] = -100
    torch.testing.assert_close(torch.func.vmap(layer)(hidden, y), layer(hidden, y))
    torch.testing.assert_close(torch.func.vmap(layer.log_prob)(hidden), layer.log_prob(hidden))
    h = hidden.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(layer(h, y).sum(), h, create_graph=True)
    torch.testing.assert_close(torch.func.grad(lambda h: layer(h, y).sum())(hidden), wanted)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(layer))(hidden, y), wanted)
    hessian = torch.func.hessian(lambda h: layer(h, y).sum())(hidden)
    (again,) = torch.autograd.grad(wanted[0, 0], h)
    torch.testing.assert_close(hessian[0, 0], again)
    wrong = torch.func.vmap(layer)(hidden, torch.tensor([0, 40, -1, 29, -100, 99]))
    assert wrong.isnan().tolist() == [False, True, True, False, False, True], "NaN for targets out of range"
    assert wrong[4] == 0
    layer.reduction = "mean"
    parameters = dict(layer.named_parameters())
    found = torch.func.grad(lambda p: torch.func.functional_call(layer, p, (hidden, y)))(parameters)
    layer(hidden, y).backward()
    for one, parameter in parameters.items():
        torch.testing.assert_close(found[one], parameter.grad)


@pytest.mark.slow
@every
@pytest.mark.parametrize("method", ["forward", "log_prob", "log_prob_of"])
def test_compiles_without_graph_breaks(name: str, method: str) -> None:
    layer, hidden, y = layer_of(name), drawn(6, 6, dtype=torch.float32), torch.arange(6) * 7
    y[2] = -100
    arguments = (hidden,) if method == "log_prob" else (hidden, y)
    compiled = torch.compile(getattr(layer, method), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arguments), getattr(layer, method)(*arguments))
    if method == "forward":
        gradients = torch.autograd.grad(compiled(*arguments), layer.parameters())
        torch.testing.assert_close(gradients, torch.autograd.grad(layer(*arguments), layer.parameters()))


# --- checkpoints ------------------------------------------------------------------------------------------------------


@every
def test_checkpoint_restores_the_order(name: str) -> None:
    layer, hidden, y = layer_of(name), drawn(6, 6, dtype=torch.float32), torch.arange(6)
    assert "order" in layer.state_dict()
    assert "ranks" not in layer.state_dict()
    fresh = torch.nn.Sequential(KINDS[name](40, device="meta"))
    assert all(x.is_meta for x in fresh.state_dict().values())
    fresh.to_empty(device="cpu").load_state_dict({f"0.{key}": x for key, x in layer.state_dict().items()})
    other = KINDS[name](40)
    other.load_state_dict(layer.state_dict())
    for twin in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), fresh[0], other):
        assert torch.equal(twin(hidden, y), layer(hidden, y))
        assert torch.equal(twin.log_prob(hidden), layer.log_prob(hidden))
        assert torch.equal(twin.sample(hidden, 1), layer.sample(hidden, 1))
        assert torch.equal(twin.topk(hidden, 3).index, layer.topk(hidden, 3).index)
    with pytest.raises(RuntimeError, match="size mismatch for order"):
        KINDS[name](41).load_state_dict(layer.state_dict())
    with pytest.raises(RuntimeError, match=r"size mismatch for (head|weights)"):
        KINDS[name](40, dim=7).load_state_dict(layer.state_dict())
    broken = {**layer.state_dict(), "order": torch.zeros(40, dtype=torch.int64)}
    with pytest.raises(RuntimeError, match="order: expected each class from 0 to 39 once"):
        other.load_state_dict(broken)
    assert torch.equal(other.order, layer.order)


@every
def test_reset_parameters(name: str) -> None:
    layer = KINDS[name](40, dim=6)
    assert all(p.abs().max() <= p.shape[1] ** -0.5 for p in layer.parameters() if p.ndim == 2)
    assert all(p.any() == (p.ndim == 2) for p in layer.parameters())
    filled(layer, 9.0)
    layer.reset_parameters()
    assert all(p.abs().max() <= p.shape[1] ** -0.5 if p.ndim == 2 else not p.any() for p in layer.parameters())
    assert all(p.dtype == torch.float16 for p in KINDS[name](40, dtype=torch.float16).parameters())
