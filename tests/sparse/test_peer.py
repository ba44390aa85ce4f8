"""Comparison with the entmax package (1.3): agreement on ordinary rows, and rows for which that package fails."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
peer = pytest.importorskip("entmax")
cases = importlib.import_module("tests.sparse.torch_cases")

import softargmax as s  # noqa: E402 after the check for torch


@pytest.mark.parametrize("spread", [0.3, 1.0, 10.0])
def test_agreement(spread: float) -> None:
    z = spread * cases.draw(20, 50)
    torch.testing.assert_close(s.sparsemax(z), peer.sparsemax(z), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(s.entmax(z), peer.entmax15(z), rtol=1e-10, atol=1e-13)
    for alpha in (1.1, 1.25, 1.75, 2.5):
        bisected = peer.entmax_bisect(z, alpha, n_iter=100)
        torch.testing.assert_close(s.entmax(z, alpha), bisected, rtol=1e-7, atol=1e-9)
    orders = torch.linspace(1.1, 2.4, 20, dtype=torch.float64)[:, None]
    torch.testing.assert_close(s.entmax(z, orders), peer.entmax_bisect(z, orders, n_iter=100), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9, 0.99, 0.999])
def test_agreement_below_order_1(alpha: float) -> None:
    """The difference is at most the effect of two errors of the peer.

    The peer's p do not sum to exactly 1, and its v = a z - tau is rounded.
    """
    for spread in (0.3, 1.0, 10.0):
        z = spread * cases.draw(20, 50)
        other = peer.entmax_bisect(z, alpha, n_iter=100, ensure_sum_one=False)
        a, v = alpha - 1, other ** (alpha - 1)
        missed = (other.sum(-1, keepdim=True) - 1).abs() / (other / v).sum(-1, keepdim=True)
        # The rounding error of the peer's v = a z - tau, divided by a.
        rounded = 2.0**-52 * ((a * z).abs() + (v - a * z).abs()) / abs(a)
        off = (s.entmax(z, alpha) / other - 1).abs()
        assert (off <= (missed + 2 * rounded) / v + 2.0**-50).all(), spread


def test_first_derivatives_agree() -> None:
    g, orders = cases.draw(6, 9, seed=3), torch.linspace(1.2, 2.2, 6, dtype=torch.float64)[:, None]
    found = []
    for f in (s.entmax, lambda z, a: peer.entmax_bisect(z, a, n_iter=100)):
        z, a = cases.draw(6, 9).requires_grad_(), orders.clone().requires_grad_()
        f(z, a).backward(g)
        found.append((z.grad, a.grad))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-5, atol=1e-6)


def peer_result(f: Any) -> str:
    """Return "NaN" or "numbers" for the peer's result, or the name of its error."""
    try:
        result = f()
    except (IndexError, RuntimeError) as error:
        return type(error).__name__
    return "NaN" if result.isnan().any() else "numbers"


def test_results_where_the_peer_fails() -> None:
    """Where the peer returns NaN or raises, softargmax returns finite values."""
    nothing = torch.full((3,), -math.inf)
    assert peer_result(lambda: peer.sparsemax(nothing)) in ("IndexError", "RuntimeError", "NaN")
    assert (s.sparsemax(nothing) == 0).all()
    half = cases.draw(4, 300).bfloat16()
    assert s.entmax(half).isfinite().all()
    assert (s.entmax(half).double().sum(-1) - 1).abs().max() < 300 * 2.0**-9
    wide = torch.tensor([1.0, 1.0, -4.0], dtype=torch.float64, requires_grad=True)

    def second(f: Any) -> Any:
        (first,) = torch.autograd.grad((f(wide) ** 2).sum(), wide, create_graph=True)
        return torch.autograd.grad(first.sum() + (first**2).sum(), wide)[0]

    assert peer_result(lambda: second(lambda z: peer.entmax_bisect(z, 1.5))) != "numbers"
    assert second(lambda z: s.entmax(z, 1.5)).isfinite().all()
