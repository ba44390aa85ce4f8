"""Distillation: the three divergences equal those in mpmath, also on edge rows, and scale with T^2."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import mpmath
import numpy as np
import pytest

import softargmax as s

INF = np.inf
KINDS = ("forward", "reverse", "js")
RNG = np.random.default_rng(4)


def exact(student: Any, teacher: Any, kind: str, T: float = 1.0) -> float:
    """Return the divergence by its definition, in 60 digits."""
    with mpmath.workdps(60):

        def softmax(z: Any) -> list[Any]:
            e = [mpmath.exp(mpmath.mpf(float(x)) / mpmath.mpf(T)) for x in z]
            return [x / mpmath.fsum(e) for x in e]

        def kl(p: list[Any], q: list[Any]) -> Any:
            return mpmath.fsum(a * mpmath.log(a / b) for a, b in zip(p, q, strict=True) if a)

        q, p = softmax(student), softmax(teacher)
        if kind == "js":
            m = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
            return float((kl(p, m) + kl(q, m)) / 2)
        return float(kl(p, q) if kind == "forward" else kl(q, p))


@pytest.mark.parametrize("implementation", ["automatic", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_values(kind: str, implementation: str) -> None:
    """Divergences equal mpmath for scores up to 1e4. The tolerance for close distributions allows for rounded log p."""
    for size in (0.01, 1.0, 30.0, 1e4):
        student, teacher = RNG.standard_normal((2, 6, 9)) * size
        for T in (1.0, 2.5, -0.7):
            wanted = [exact(a, b, kind, T) for a, b in zip(student, teacher, strict=True)]
            with nullcontext() if implementation == "automatic" else s.using(implementation):
                found = s.distillation(student, teacher, divergence=kind, temperature=T, scale=False, reduction="none")
            np.testing.assert_allclose(found, wanted, rtol=1e-12 if size >= 1 else 1e-10, atol=1e-60)


@pytest.mark.parametrize("kind", KINDS)
def test_the_factor_t_squared(kind: str) -> None:
    a, b = RNG.standard_normal((2, 4, 5))
    bare = s.distillation(a, b, divergence=kind, temperature=3.0, scale=False)
    assert s.distillation(a, b, divergence=kind, temperature=3.0) == pytest.approx(9 * bare, rel=1e-14)
    T = np.array([1.0, 2.0, 3.0, 4.0])
    rows = s.distillation(a, b, divergence=kind, temperature=T, scale=False, reduction="none")
    found = s.distillation(a, b, divergence=kind, temperature=T, reduction="none")
    np.testing.assert_allclose(found, T**2 * rows, rtol=1e-14)


@pytest.mark.parametrize(
    ("student", "teacher", "wanted"),
    [
        ([0.0, 1.0], [0.0, 1.0], (0, 0, 0)),
        ([-INF, -INF], [0.0, 1.0], (INF, 0, None)),
        ([0.0, 1.0], [-INF, -INF], (0, INF, None)),
        ([-INF, -INF], [-INF, -INF], (0, 0, 0)),
        ([-INF, 0.0], [0.0, -INF], (INF, INF, np.log(2))),
        ([0.0, 0.0], [0.0, -INF], (np.log(2), INF, 0.75 * np.log(4 / 3))),
        ([np.nan, 0.0], [0.0, 0.0], (np.nan,) * 3),
        ([900.0, 0.0], [0.0, 900.0], (900, 900, np.log(2))),
    ],
    ids=str,
)
def test_edges(student: list[float], teacher: list[float], wanted: tuple[Any, ...]) -> None:
    for kind, value in zip(KINDS, wanted, strict=True):
        if value is not None:
            found = s.distillation([student], [teacher], divergence=kind, reduction="none")
            if kind == "js" and student == [0.0, 0.0]:
                value = exact(student, [0.0, -1e4], "js")  # noqa: PLW2901
            np.testing.assert_allclose(found, [value], rtol=1e-13)


def test_masked_rows_do_not_count_in_the_mean() -> None:
    a, b = RNG.standard_normal((2, 4, 5))
    where = np.array([True, False, True, True])[:, None]
    rows = s.distillation(a, b, where=where, reduction="none")
    assert rows[1] == 0
    assert s.distillation(a, b, where=where) == pytest.approx(rows.sum() / 3, rel=1e-15)
    assert s.distillation(a, b, where=np.zeros((4, 1), bool)) == 0


def test_divergences_are_never_negative_and_js_is_symmetric() -> None:
    a = RNG.standard_normal((50, 8)).astype("float32") * 5
    b = a + RNG.standard_normal((50, 8)).astype("float32") * np.float32(1e-4)
    for kind in KINDS:
        assert (s.distillation(a, b, divergence=kind, reduction="none") >= 0).all()
    ours, theirs = (s.distillation(x, y, divergence="js", reduction="none") for x, y in ((a, b), (b, a)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_torch_agrees() -> None:
    torch = pytest.importorskip("torch")
    a, b = (torch.randn(6, 9, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in (0, 1))
    a.requires_grad_()
    ours = s.distillation(a, b, temperature=2.0, reduction="sum")
    theirs = 4 * torch.nn.functional.kl_div((a / 2).log_softmax(-1), (b / 2).softmax(-1), reduction="sum")
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(x, a)[0] for x in (ours, theirs)))
