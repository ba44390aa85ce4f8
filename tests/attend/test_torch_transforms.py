"""Attention's torch operators: opcheck, compiled graphs, torch.func transforms, second and forward derivatives."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import softargmax as s  # noqa: E402 not without torch
from softargmax.attend import operations as o  # noqa: E402
from softargmax.attend.arguments import Attention, AttentionVjp, Options, Pages  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")


def draw(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# The arrays are small, because finite differences take one or two calls per element.
QKV = draw(2, 4, 3, 3), draw(2, 2, 5, 3, seed=1), draw(2, 2, 5, 2, seed=2)
NUMBERS: dict[str, Any] = {"left": 2, "right": 1, "softcap": 1.3, "dropout": 0.3}
PLAIN = Options(scale=0.4, mask=None, bias=None, sink=None, alpha=1.0, lengths=None, seeds=None, **NUMBERS)
TENSORS: dict[str, Any] = {
    "scale": draw(4, 3, 1, seed=3),
    "mask": draw(3, 5, seed=4) < 0.7,
    "bias": draw(4, 1, 5, seed=5),
    "sink": draw(4, 1, 1, seed=6),
    "slopes": draw(4, 1, 1, seed=8),
    "lengths": torch.tensor([3, 5]).reshape(2, 1, 1, 1),
    "seeds": torch.arange(16).reshape(2, 4, 1, 2),
    "alpha": draw(1, 4, 1, 1, seed=7).abs() + 1.1,
}
OF_SOFTMAX = [name for name in TENSORS if name != "alpha"]
SUBSETS: list[tuple[str, ...]] = [(), *((name,) for name in TENSORS), tuple(OF_SOFTMAX), tuple(TENSORS)]


def arguments(names: tuple[str, ...]) -> Attention:
    return Attention(*QKV, PLAIN._replace(**{name: TENSORS[name] for name in names}))


def tracked(flat: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in flat
    )


# For orders other than 1, lse is NaN. opcheck's last test fails there, because it does not treat NaN as equal to NaN.
# These are the other tests of opcheck.
NOT_COMPARED: dict[str, Any] = {"test_utils": ("test_schema", "test_autograd_registration", "test_faketensor")}
# With gradients, opcheck also traces the backward pass and takes 4 s per call. Therefore only two subsets are checked
# with gradients: no options, and all options of softmax. `test_derivatives` tests the options one by one.
CHECKED = [*((names, False) for names in SUBSETS), (SUBSETS[0], True), (SUBSETS[-2], True)]


@pytest.mark.slow
@pytest.mark.parametrize(("names", "gradients"), CHECKED, ids=lambda x: "+".join(x) if isinstance(x, tuple) else str(x))
def test_opcheck(names: tuple[str, ...], gradients: bool) -> None:
    i = arguments(names)
    r = o.attention(i)
    g, g_lse = (draw(*x.shape, seed=9) for x in r)
    back = AttentionVjp(g, None if "alpha" in names else g_lse, i, r.output, r.lse.nan_to_num(), "bias" in names)
    for operation, record in ((o.attention, i), (o.attention_vjp, back)):
        flat = operation.torch.flatten(record)
        tests = NOT_COMPARED if "alpha" in names and operation is o.attention else {}
        torch.library.opcheck(operation.torch.overload, tracked(flat) if gradients else flat, **tests)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_opcheck_of_pages(alpha: float) -> None:
    table, lengths = torch.tensor([[3, 1], [0, 9]]), torch.tensor([5, 2]).reshape(2, 1, 1, 1)
    pages = Pages(
        draw(2, 4, 3, 6), draw(4, 3, 2, 6), draw(4, 3, 2, 5), table, PLAIN._replace(lengths=lengths, alpha=alpha)
    )
    flat = o.attention_paged.torch.flatten(pages)
    for given in (flat, tracked(flat)):
        torch.library.opcheck(o.attention_paged.torch.overload, given, **(NOT_COMPARED if alpha != 1.0 else {}))


@pytest.mark.slow
@pytest.mark.parametrize("names", SUBSETS, ids="+".join)
def test_derivatives(names: tuple[str, ...]) -> None:
    """First and second derivatives agree with finite differences, in reverse, forward and mixed mode.

    The test covers output and lse, and every input with a floating dtype.
    """
    rest = o.attention.torch.flatten(arguments(names))
    places = [i for i, x in enumerate(rest) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    inputs = tuple(rest[i].clone().requires_grad_() for i in places)

    def f(*given: Any) -> Any:
        full = list(rest)
        for i, x in zip(places, given, strict=True):
            full[i] = x
        r = o.attention(o.attention.torch.unflatten(*full))
        return r.output if "alpha" in names else tuple(r)

    assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, inputs, check_fwd_over_rev=True, fast_mode=True)


def loss(q: Any, k: Any, v: Any, sink: Any, slopes: Any) -> Any:
    found = s.attention_with_lse(q, k, v, sink=sink, slopes=slopes, causal=True, softcap=2.0)
    return (found.output**2).sum() + found.lse.sin().sum()


def test_transforms() -> None:
    inputs = (*QKV, TENSORS["sink"].flatten(), TENSORS["slopes"].flatten())
    with s.using("reference"):
        wanted = torch.func.grad(loss, (0, 1, 2, 3, 4))(*inputs)
    for f in (torch.func.grad(loss, (0, 1, 2, 3, 4)), torch.func.jacfwd(loss, (0, 1, 2, 3, 4))):
        for x, y in zip(f(*inputs), wanted, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
    stacked = [torch.stack([x, 0.5 * x, -x]) for x in inputs]
    for dims in ((0,) * 5, (0, None, 0, None, 0), (None, 0, None, 0, None)):
        given = [x if dim == 0 else x[0] for x, dim in zip(stacked, dims, strict=True)]
        found = torch.func.vmap(torch.func.grad(loss, (0, 1, 2, 3, 4)), dims)(*given)
        for i in range(3):
            one = [x[i] if dim == 0 else x for x, dim in zip(given, dims, strict=True)]
            for x, y in zip(found, torch.func.grad(loss, (0, 1, 2, 3, 4))(*one), strict=True):
                torch.testing.assert_close(x[i], y, rtol=1e-12, atol=1e-12)


def heads_inside(x: Any) -> Any:
    """The same numbers with heads next to the widths in memory, as models have them."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.slow
def test_results_keep_the_order_of_the_axes_in_memory() -> None:
    q, k, v = heads_inside(draw(2, 4, 3, 3)), heads_inside(QKV[1]), heads_inside(draw(2, 2, 5, 3, seed=2))
    i, plain = Attention(q, k, v, PLAIN), Attention(*(x.contiguous() for x in (q, k, v)), PLAIN)
    r = o.attention(i)
    assert r.output.stride() == q.stride()
    assert torch.equal(r.output, o.attention(plain).output)
    back = AttentionVjp(draw(2, 4, 3, 3, seed=9), None, i, r.output, r.lse, to_bias=False)
    wanted = o.attention_vjp(back._replace(of=plain))
    for found, x, of_plain in zip(o.attention_vjp(back)[:3], (q, k, v), wanted[:3], strict=True):
        assert found.stride() == x.stride()
        assert torch.equal(found, of_plain)
    assert o.attention(i._replace(v=heads_inside(QKV[2]))).output.is_contiguous()  # it has another width
    for operation, record in ((o.attention, i), (o.attention_vjp, back)):
        torch.library.opcheck(operation.torch.overload, operation.torch.flatten(record))


def test_a_compiled_graph_has_the_same_bits() -> None:
    inputs = [
        [x.float().requires_grad_() for x in (*QKV, TENSORS["sink"].flatten(), TENSORS["slopes"].flatten())]
        for _ in range(2)
    ]
    torch.compile(loss, fullgraph=True, backend="aot_eager")(*inputs[0]).backward()
    loss(*inputs[1]).backward()
    for x, y in zip(*inputs, strict=True):
        assert torch.equal(x.grad, y.grad)


@pytest.mark.parametrize(
    "names",
    [(), ("mask", "scale", "sink"), ("bias",), ("slopes", "lengths"), ("alpha", "bias", "sink", "slopes")],
    ids="+".join,
)
def test_a_few_queries_at_a_time(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """First and second derivatives do not depend on how many queries the definition processes at a time."""
    i = arguments(names)

    def hessian_row(q: Any) -> Any:
        output, lse = o.attention(i._replace(q=q))
        return (output.sin().sum() + (0.0 if "alpha" in names else lse.sum())) ** 2

    found = []
    for size in (1, 1 << 20):
        monkeypatch.setattr("softargmax.attend.operations.SCORES", size)
        q = i.q.clone()
        found.append([torch.func.grad(hessian_row)(q), torch.func.jvp(torch.func.grad(hessian_row), (q,), (q,))[1]])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
