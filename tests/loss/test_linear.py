"""Losses of a last layer equal the losses of its scores, and compute the scores of a few rows at a time."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from tests.loss import truth
from tests.loss.cases import SOFT, THREES, rounded, shown

import softargmax as s
from softargmax.loss import reference_linear
from softargmax.loss.arguments import Layer

RNG = np.random.default_rng(11)
N, D, K = 12, 5, 6
H, W, B = RNG.standard_normal((N, D)) * RNG.choice([1, 20], (N, 1)), RNG.standard_normal((K, D)), RNG.standard_normal(K)


def plain(h: Any, w: Any, b: Any, case: dict[str, Any]) -> tuple[Any, Any]:
    """Return the loss and dz by the naive formula, computed in the dtype of the inputs.

    Tests compare the library's error with the error of this formula.
    """
    kind, target = h.dtype, case["target"]
    z = h @ w.T + b
    support = np.ones(z.shape, bool) if case["where"] is None else np.broadcast_to(case["where"], z.shape)
    s, T = case["softcap"], np.broadcast_to(case["temperature"], N).astype(kind)[:, None]
    x = (z if s is None else (s * np.tanh(z / s)).astype(kind)) / T
    top = np.where(support, x, -np.inf).max(-1, keepdims=True)
    e = np.where(support, np.exp(x - top), 0).astype(kind)
    lse = np.log(e.sum(-1, keepdims=True)) + top
    p = e / e.sum(-1, keepdims=True)
    soft = target.ndim == 2
    t = target if soft else (target[:, None] == np.arange(K)).astype(kind)
    mass = (
        (1 - case["label_smoothing"]) * t + support * case["label_smoothing"] / support.sum(-1, keepdims=True)
    ).astype(kind)
    mass = mass if case["weight"] is None else mass * case["weight"]
    beyond = np.where(support, 0, mass).sum(-1)
    rows = np.where(support, mass * (lse - x), 0).sum(-1) + kind.type(case["z_loss"]) * lse[:, 0] ** 2
    rows = rows + np.where(beyond > 0, np.inf, 0).astype(kind)
    dz = (p * mass.sum(-1, keepdims=True) - support * mass + 2 * kind.type(case["z_loss"]) * lse * p) / T
    dz = dz if s is None else dz * (1 - np.tanh(z / s) ** 2).astype(kind)
    kept = np.ones(N, bool) if soft else target != -100
    count = kept.astype(kind)
    if not soft and case["weight"] is not None:
        count = count * case["weight"][target * kept]
    rows, dz = np.where(kept, rows, 0), np.where(kept[:, None], dz, 0)
    if case["reduction"] == "mean":
        return rows.sum() / count.sum(), dz / count.sum()
    return rows.sum() if case["reduction"] == "sum" else rows, dz


@pytest.mark.parametrize("implementation", ["automatic", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_gradients(dtype: str, implementation: str) -> None:
    """The error is at most 3 ulp of the largest exact number, plus 1.5 times the error of `plain`.

    For float64, the bound also has a term for rounding errors of the scores (`slack`).
    """
    h, w, b = (x.astype(dtype) for x in (H, W, B))
    exact = h.astype(truth.Wide) @ w.astype(truth.Wide).T + b.astype(truth.Wide)
    if dtype == "float64":
        exact = exact.astype(dtype).astype(truth.Wide)  # the exact losses are those of scores rounded to float64
    eps = np.finfo(dtype).eps
    for given in THREES:
        case = rounded(given, dtype)
        options = {name: value for name, value in case.items() if name != "target"}
        wanted = truth.batch(exact.astype(np.float64), **case)
        naive, naive_dz = plain(h, w, b, case)
        with nullcontext() if implementation == "automatic" else s.using(implementation):
            found = s.linear_cross_entropy_and_gradient(h, w, case["target"], bias=b, **options)
            alone = s.linear_cross_entropy(h, w, case["target"], bias=b, **options)
        dz = wanted.gradient
        expected = (wanted.loss, dz @ w.astype(truth.Wide), dz.T @ h.astype(truth.Wide), dz.sum(0))
        naive_results = (naive, naive_dz @ w, naive_dz.T @ h, naive_dz.sum(0))
        assert np.array_equal(alone, found.loss)
        for name, ours, theirs, true in zip(found._fields, found, naive_results, expected, strict=True):
            finite = np.isfinite(true)
            assert np.array_equal(np.isfinite(ours), finite), (name, shown(given))
            unit = eps * np.max(np.abs(true[finite]), initial=0.0)
            errors = [np.max(np.abs(x[finite] - true[finite]), initial=0.0) for x in (ours, theirs)]
            slack = 64 * eps * np.max(np.abs(exact)) * np.max(wanted.scale) if dtype == "float64" else 0.0
            assert errors[0] <= 1.5 * errors[1] + 3 * unit + slack, (name, errors, shown(given))


def test_terms_selection_and_distillation_equal_those_of_the_scores() -> None:
    z = H @ W.T + B
    classes = np.array([0, 1, 2, 3, 4, 5, -100, 0, 1, 2, 3, 4])
    options = {"temperature": 1.7, "softcap": 9.0, "where": RNG.random((N, K)) < 0.9}
    options["where"][np.arange(N), classes % K] = True
    for target in (classes, SOFT):
        ours = s.linear_cross_entropy_terms(H, W, target, bias=B, z_loss=0.1, reduction="none")
        theirs = s.cross_entropy_terms(z, target, z_loss=0.1, reduction="none")
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)
    found = s.linear_selected_log_softmax(H, W, classes, bias=B, **options)
    np.testing.assert_allclose(found, s.selected_log_softmax(z, classes, **options), rtol=1e-12, atol=1e-15)
    teacher = RNG.standard_normal((N, 3)), RNG.standard_normal((K, 3)), RNG.standard_normal(K)
    for divergence in ("forward", "reverse", "js"):
        ours = s.linear_distillation(
            H, W, teacher[0], teacher[1], bias_student=B, bias_teacher=teacher[2], divergence=divergence, **options
        )
        theirs = s.distillation(z, teacher[0] @ teacher[1].T + teacher[2], divergence=divergence, **options)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_rows_of_any_shape() -> None:
    h, y = RNG.standard_normal((2, 3, 2, D)), RNG.integers(0, K, (2, 3, 2))
    options = {
        "temperature": RNG.uniform(0.5, 2, (3, 1)),
        "where": RNG.random((3, 1, K)) < 0.8,
        "weight": RNG.random(K),
    }
    for reduction in ("none", "mean"):
        found = s.linear_cross_entropy(h, W, y, reduction=reduction, **options)
        np.testing.assert_allclose(found, s.cross_entropy(h @ W.T, y, reduction=reduction, **options), rtol=1e-12)


@pytest.mark.no_sanitize  # runs only the reference
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_few_rows_at_a_time(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores are computed for parts of at most 1/64 of the rows. The parts do not change the results."""
    n = 30_000
    pytest.importorskip(library)
    h, y = RNG.standard_normal((n, D)), RNG.integers(0, K, n)
    t = RNG.uniform(0.5, 2, n)
    convert = (lambda x: x) if library == "numpy" else __import__("torch").from_numpy
    sizes: list[int] = []
    product = reference_linear.product

    def seen(given: Layer) -> Any:
        sizes.append(given.h.shape[0])
        return product(given)

    with s.using("reference"):
        whole = s.cross_entropy_and_gradient(h @ W.T, y, temperature=t)
        monkeypatch.setattr(reference_linear, "product", seen)
        given = [convert(x) for x in (h, W, y)]
        found = s.linear_cross_entropy_and_gradient(*given, temperature=convert(t))
        assert len(sizes) > 8
        assert max(sizes) <= n // 64
        loss = s.linear_cross_entropy(*given, temperature=convert(t))
    np.testing.assert_allclose(np.asarray(found.dh), whole.gradient @ W, rtol=1e-11, atol=1e-16)
    np.testing.assert_allclose(np.asarray(found.dw), whole.gradient.T @ h, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose([float(found.loss), float(loss)], [whole.loss] * 2, rtol=1e-13)


def test_masked_vectors_do_not_affect_gradients() -> None:
    """NaN and inf in the vectors of a masked class and of an ignored row do not change any result."""
    h, w = H.copy(), W.copy()
    h[3], w[2] = np.nan, np.inf
    target = np.array([0, 1, 3, -100, 4, 5, 0, 1, 3, 4, 5, 0])
    where = np.arange(K) != 2
    clean_h, clean_w = h.copy(), w.copy()
    clean_h[3], clean_w[2] = 0, 0
    torch = pytest.importorskip("torch")
    for convert in (np.asarray, torch.from_numpy):
        ours, wanted = (
            s.linear_cross_entropy_and_gradient(convert(a), convert(b), convert(target), where=convert(where))
            for a, b in ((h, w), (clean_h, clean_w))
        )
        for x, y in zip(ours[:3], wanted[:3], strict=True):
            np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-13, atol=1e-300)
    leaves = [torch.from_numpy(x).requires_grad_() for x in (h, w)]
    s.linear_cross_entropy(*leaves, torch.from_numpy(target), where=torch.from_numpy(where)).backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)
    assert (leaves[0].grad[3] == 0).all()
    assert (leaves[1].grad[2] == 0).all()


def test_a_bias_of_minus_inf_removes_classes() -> None:
    bias = np.where(np.arange(K) == 2, -np.inf, B)
    found = s.linear_cross_entropy_and_gradient(H, W, [0] * N, bias=bias, label_smoothing=0.2)
    wanted = s.cross_entropy(H @ W.T + B, [0] * N, where=np.arange(K) != 2, label_smoothing=0.2)
    assert found.loss == pytest.approx(wanted, rel=1e-13)
    assert found.dbias[2] == 0
    assert (found.dw[2] == 0).all()
    assert s.linear_cross_entropy([[np.inf]], [[-1.0], [0.5]], [0], bias=[np.inf, 0.0]) == np.inf


MEMORY = """
import sys
import numpy as np, softargmax as s
from bench.peak import peak_of
n, d, k = 1024, 16, 8192
rng = np.random.default_rng(0)
h, w, y = (rng.standard_normal(x).astype("float32") for x in ((n, d), (k, d))), None, rng.integers(0, k, n)
h, w = h
make = (lambda x: x) if sys.argv[1] == "numpy" else __import__("torch").from_numpy
h, w, y = make(h), make(w), make(y)
def run(h, w, y):
    if sys.argv[1] == "numpy":
        return s.linear_cross_entropy_and_gradient(h, w, y)
    h.requires_grad_(), w.requires_grad_()
    s.linear_cross_entropy(h, w, y).backward()
with s.using("reference"):
    _, few, _ = peak_of(lambda: run(make(np.ones((300, d), "float32")), w, y[:300]))
    _, all, _ = peak_of(lambda: run(h, w, y))
print((all - few) / (n * k * 4))
"""


@pytest.mark.slow
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_memory_of_the_reference(library: str) -> None:
    """The peak memory of 1024 rows exceeds that of 300 rows by at most an eighth of the memory of all scores."""
    if library == "torch":
        pytest.importorskip("torch")
    out = subprocess.run([sys.executable, "-c", MEMORY, library], check=True, capture_output=True, text=True).stdout
    assert float(out) <= 1 / 8, out


MEMORY_OF_BIAS = """
import numpy as np, softargmax as s
from bench.peak import peak_of
n, d, k = 64, 512, 32768
h, w, y, bias = np.ones((n, d), "float32"), np.ones((k, d), "float32"), np.zeros(n, int), np.zeros(k, "float32")
def peak():
    _, found, _ = peak_of(lambda: s.linear_cross_entropy_and_gradient(h, w, y, bias=bias))
    return found
peak()
plain = peak()
bias[1] = -np.inf
masked = peak()
h[0, 0] = np.inf
print((masked - plain) / w.nbytes, (peak() - plain) / w.nbytes)
"""


@pytest.mark.slow
@pytest.mark.no_sanitize  # the address sanitizer keeps freed memory
def test_a_masked_class_or_a_wrong_row_copies_no_weights() -> None:
    out = subprocess.run([sys.executable, "-c", MEMORY_OF_BIAS], check=True, capture_output=True, text=True).stdout
    assert all(float(x) < 0.1 for x in out.split()), out
