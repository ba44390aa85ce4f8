"""Operations on JAX arrays: the bits of NumPy's kernels in eager and compiled calls, and all transformations."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tests.oracle.traced import enable_x64

import softargmax as s

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402 after the check for jax
from jax.test_util import check_grads  # noqa: E402

from softargmax.core.jax_operation import JaxOperation  # noqa: E402
from softargmax.jax import TARGET  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

RNG = np.random.default_rng(3)
Z = (3.0 * RNG.standard_normal((4, 6))).astype("f4")
Y, MASK = np.array([0, 5, 2, 1], "i4"), np.arange(6) != 4
SQUARE = RNG.standard_normal((6, 6)).astype("f4")
CALLS: dict[str, Callable[[Any], Any]] = {
    "softmax": s.softmax,
    "softmax, base, where": lambda z: s.softmax(z, base=2.0, where=MASK),
    "log_softmax, axis": lambda z: s.log_softmax(z, axis=0, temperature=0.7),
    "logsumexp": s.logsumexp,
    "softmax_with_lse": s.softmax_with_lse,
    "entropy": s.entropy,
    "logcumsumexp": s.logcumsumexp,
    "cross_entropy": lambda z: s.cross_entropy(z, Y, reduction="none", label_smoothing=0.1),
    "sparsemax": s.sparsemax,
    "entmax": lambda z: s.entmax(z, 1.5),
    "attention": lambda z: s.attention(z[None], z[None], z[None], causal=True)[0],
    "linear_cross_entropy": lambda z: s.linear_cross_entropy(z, SQUARE.astype(z.dtype), Y),
    "log_matmul": lambda z: s.log_matmul(z, Z.T),
    "linear_chain": lambda z: s.linear_chain(z, SQUARE.astype(z.dtype)).log_z,
    "categorical": lambda z: s.categorical(z, seed=3),
}
DIFFERENTIABLE = [name for name in CALLS if name != "categorical"]


def leaves(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple) else [x]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", CALLS)
def test_bits_of_numpy(name: str, dtype: str) -> None:
    z = jnp.asarray(Z, dtype)
    wanted = leaves(CALLS[name](np.asarray(z)))
    for f in (CALLS[name], jax.jit(CALLS[name])):
        for found, own in zip(leaves(f(z)), wanted, strict=True):
            assert isinstance(found, jax.Array)
            assert_array_equal(np.asarray(found).astype("f8"), np.asarray(own).astype(found.dtype).astype("f8"))


def test_refused_values_in_64_bits() -> None:
    """In 64-bit mode `categorical` gets views of XLA's memory, and `cross_entropy` arrays. Both may refuse values."""
    with enable_x64(True):
        z, y = jnp.asarray(Z, "float64"), jnp.asarray([0, 99, -1, 2])
        rows = jnp.resize(z, (4, 5))
        loss = jax.jit(lambda z, y: s.cross_entropy(z, y, reduction="none"))(rows, y)
        assert np.isnan(loss).tolist() == [False, True, True, False]
        assert_array_equal(loss[0], s.cross_entropy(np.asarray(rows[0]), 0))
        drawn = jax.jit(lambda z: s.categorical(z, seed=0))(rows.at[1, 2].set(jnp.nan))
        assert drawn[1] == -1
        assert drawn.dtype == "int64"
        assert jax.jit(s.softmax)(jnp.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("mode", [False, True], ids=["32 bits", "64 bits"])
def test_float64_results(mode: bool, implementation: str) -> None:
    """Without 64-bit mode, dtype="float64" means float32, without a warning."""
    with enable_x64(mode), s.using(implementation):
        z, y = jnp.asarray(Z), jnp.asarray(Y)
        for f in (s.softmax, s.logsumexp, lambda z, dtype: s.cross_entropy(z, y, dtype=dtype)):
            for dtype in ("float64", np.float64, jnp.float64):
                found = f(z, dtype=dtype)
                assert found.dtype == (np.float64 if mode else np.float32)
                if not mode:
                    np.testing.assert_allclose(found, f(z, dtype="float32"), rtol=1e-6)
        for x in s.linear_cross_entropy_terms(z, SQUARE, y, reduction="none"):
            assert x.dtype == np.float32


def test_which_kernels_get_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of the compiled core get views, unless an argument must first be converted."""
    seen, write = [], JaxOperation._write_view

    def noted(self: Any, *a: Any) -> None:
        seen.append(self.operation.name)
        write(self, *a)

    monkeypatch.setattr(JaxOperation, "_write_view", noted)
    z, t = jnp.asarray(Z), 1.0625  # programs with this temperature are new in this process
    for dtype in ("float32", "bfloat16", "float16"):
        jax.jit(lambda z: s.softmax(z, temperature=t, where=z > 0))(z.astype(dtype)).block_until_ready()
    assert seen == ["softmax"] * 3
    jax.jit(lambda z: s.softmax(z, temperature=jnp.full(z.shape[:-1], t)))(z).block_until_ready()
    jax.jit(lambda z: s.cross_entropy(z, jnp.zeros(z.shape[:-1], int), temperature=t))(z).block_until_ready()
    assert seen == ["softmax"] * 3


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_views_of_temperatures(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 64-bit mode kernels read one temperature per row from XLA's memory, also for rows that are not contiguous."""
    seen, prepared = [], JaxOperation.prepared

    def noted(self: Any, *a: Any, **how: Any) -> Any:
        found = prepared(self, *a, **how)
        seen.append(found[1])
        return found

    monkeypatch.setattr(JaxOperation, "prepared", noted)
    z = np.stack([Z, 2 * Z, Z - 1]).astype("f8")
    rows = tuple(n for k, n in enumerate(z.shape) if k != axis % 3)
    per_row = np.arange(1.0, 1 + rows[0] * rows[1]).reshape(rows)
    for t in (per_row, -per_row, per_row[:, :1], per_row[0]):
        wanted = s.softmax(z, axis=axis, temperature=t)
        with enable_x64(True):
            found = jax.jit(lambda z, t: s.softmax(z, axis=axis, temperature=t))(jnp.asarray(z), jnp.asarray(t))
            assert_array_equal(found, wanted)
    assert seen
    assert all(seen)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives_of_both_orders_and_modes(name: str) -> None:
    with enable_x64(True):
        z = jnp.asarray(Z, "float64")
        order = 1 if name in ("sparsemax", "entmax") else 2
        check_grads(lambda z: leaves(CALLS[name](z))[0], (z,), order, eps=1e-5)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_equal_those_of_the_definition(name: str) -> None:
    def total(z: Any) -> Any:
        return sum((jnp.cos(jnp.arange(x.size)).reshape(x.shape) * x).sum() for x in leaves(CALLS[name](z)))

    z = jnp.asarray(Z)
    with s.using("reference"):
        wanted = jax.grad(total)(z)
    for f in (jax.grad(total), jax.jit(jax.grad(total)), jax.grad(jax.checkpoint(total))):
        np.testing.assert_allclose(f(z), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_vmap(name: str, axis: int) -> None:
    z = jnp.stack([jnp.asarray(Z), jnp.asarray(Z[::-1].copy())], axis)
    found = leaves(jax.vmap(CALLS[name], axis)(z))
    each = [leaves(CALLS[name](jnp.take(z, i, axis))) for i in range(2)]
    for k, x in enumerate(found):
        np.testing.assert_allclose(x, jnp.stack([one[k] for one in each]), rtol=1e-6, atol=1e-6)


def test_vmap_over_other_arguments_alone() -> None:
    z, temperatures, classes = jnp.asarray(Z), jnp.array([0.5, 2.0]), jnp.array([[0, 5, 2, 1], [1, 1, 1, 1]])
    found = jax.vmap(lambda t: s.softmax(z, temperature=t))(temperatures)
    np.testing.assert_allclose(found, jnp.stack([s.softmax(z, temperature=t) for t in temperatures]), rtol=1e-6)
    found = jax.vmap(lambda y: s.cross_entropy(z, y, reduction="none"))(classes)
    assert_array_equal(found, jnp.stack([s.cross_entropy(z, y, reduction="none") for y in classes]))
    masks = jnp.stack([jnp.asarray(MASK), ~jnp.asarray(MASK)])
    found = jax.vmap(lambda where: s.logsumexp(z, where=where))(masks)
    assert_array_equal(found, jnp.stack([s.logsumexp(z, where=where) for where in masks]))


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0)])
def test_numbers_and_empty_arrays(shape: tuple[int, ...]) -> None:
    z = np.ones(shape, "f4")
    for f in (s.softmax, s.logsumexp) if shape else ():
        for g in (f, jax.jit(f)):
            assert_array_equal(g(jnp.asarray(z)), f(z))
    for g in (partial(s.softmax, axis=None), jax.jit(partial(s.softmax, axis=None))):
        assert_array_equal(g(jnp.asarray(z)), s.softmax(z, axis=None))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_scan(name: str) -> None:
    """The results and gradients of calls in a loop are those of the calls alone."""

    def total(z: Any) -> tuple[Any, list[Any]]:
        found = leaves(CALLS[name](z))
        return sum((jnp.cos(jnp.arange(x.size)) * x.reshape(-1)).sum() for x in found), found

    def loop(z: Any) -> Any:
        def step(carry: Any, z: Any) -> Any:
            one, found = total(z)
            return carry + one, found

        return jax.lax.scan(step, 0.0, z)

    z = jnp.stack([jnp.asarray(Z), jnp.asarray(Z[::-1] / 2)])
    (_, found), gradient = jax.value_and_grad(loop, has_aux=True)(z)
    for k in range(2):
        (_, alone), own = jax.value_and_grad(total, has_aux=True)(z[k])
        for x, one in zip(found, alone, strict=True):
            assert_array_equal(x[k], one)
        np.testing.assert_allclose(gradient[k], own, rtol=1e-6, atol=1e-7)


def worker(*arguments: str) -> None:
    """Run jax_worker.py, which fails if a check fails."""
    script = str(Path(__file__).with_name("jax_worker.py"))
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("what", ["sharded", "cut_classes"])
def test_four_simulated_devices(what: str) -> None:
    worker(what)


@pytest.mark.slow
def test_an_exported_program_runs_in_another_process(tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    worker("export", str(tmp_path / "program"))
    worker("call", str(tmp_path / "program"))


CLASSES = np.array([0, 9, 2, -1])
WRONG: dict[str, Any] = {
    "cross_entropy": (partial(s.cross_entropy, reduction="none"), [Z, CLASSES]),
    "selected_log_softmax": (s.selected_log_softmax, [Z, CLASSES]),
    "linear_cross_entropy": (lambda h, y: s.linear_cross_entropy(h, SQUARE, y, reduction="none"), [Z, CLASSES]),
    "entmax_loss": (partial(s.entmax_loss, reduction="none"), [Z, CLASSES]),
    "sparsemax_loss": (partial(s.sparsemax_loss, reduction="none"), [Z, CLASSES]),
    "offsets": (s.segment_softmax, [Z[:, 0], np.array([0, 5])]),
    "key_lengths": (lambda q, n: s.attention(q, q, q, key_lengths=n), [Z.reshape(3, 1, 4, 2), np.array([2, 5, -1])]),
    "row without support": (partial(s.categorical, seed=1), [np.full((2, 3), -np.inf, "f4")]),
    "temperature": (lambda z, t: s.softmax(z, temperature=t), [Z, np.array([[1.0], [np.nan], [2.0], [np.nan]], "f4")]),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=list(WRONG))
def test_wrong_values_give_nan_or_minus_one(case: Any) -> None:
    call, given = case
    arrays = [jnp.asarray(x) for x in given]
    with s.using("reference"):
        wanted = np.asarray(call(*arrays))
    bad = wanted == -1 if wanted.dtype.kind == "i" else np.isnan(wanted)
    assert bad.any()
    for f in (call, jax.jit(call)):
        np.testing.assert_allclose(f(*arrays), wanted, rtol=1e-6)


@pytest.mark.parametrize("f", [s.attention, lambda *a, **k: s.attention_with_lse(*a, **k).lse], ids=["output", "lse"])
def test_lengths_out_of_range(f: Any) -> None:
    """The results and gradients of an entry with a wrong length are NaN. Those of the other entries are as before."""
    q, right, wrong = jnp.asarray(Z.reshape(3, 1, 4, 2)) / 4, jnp.array([2, 4, 0]), jnp.array([2, 5, -1])

    def call(q: Any, lengths: Any) -> Any:
        return f(q, q, q, key_lengths=lengths)

    def gradient(q: Any, lengths: Any) -> Any:
        return jax.grad(lambda q: (call(q, lengths) ** 2).sum())(q)

    for name in ("native", "reference"):
        for of in (call, gradient):
            with s.using(name):
                found = jax.jit(partial(of))(q, wrong)
                np.testing.assert_allclose(found[0], of(q, right)[0], rtol=1e-5, atol=1e-6)
            assert np.isnan(found[1:]).all()


@pytest.mark.parametrize("name", ["cross_entropy", "selected_log_softmax", "linear_cross_entropy", "entmax_loss"])
@pytest.mark.parametrize("transformed", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_gradients_of_losses_with_wrong_classes(name: str, transformed: Any) -> None:
    """The gradients of the other rows are as before."""
    call, _ = WRONG[name]
    gradient = transformed(jax.grad(lambda z, y: call(z, y)[jnp.array([0, 2])].sum()))
    right = gradient(jnp.asarray(Z), jnp.array([0, 1, 2, 3]))
    found = gradient(jnp.asarray(Z), jnp.asarray(CLASSES))
    np.testing.assert_allclose(found[jnp.array([0, 2])], right[jnp.array([0, 2])], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("transformed", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_gradients_that_functions_return_have_derivatives(transformed: Any) -> None:
    """dh of `linear_cross_entropy_and_gradient` depends on h, as the gradient of the loss does."""
    w, h = jnp.asarray(SQUARE), jnp.asarray(Z)

    def returned(h: Any) -> Any:
        return (s.linear_cross_entropy_and_gradient(h, w, Y).dh ** 2).sum()

    def taken(h: Any) -> Any:
        return (jax.grad(lambda h: s.linear_cross_entropy(h, w, Y))(h) ** 2).sum()

    def of_scores(z: Any) -> Any:
        return (s.cross_entropy_and_gradient(z, Y).gradient ** 2).sum()

    np.testing.assert_allclose(transformed(jax.grad(returned))(h), jax.grad(taken)(h), rtol=1e-5, atol=1e-7)
    wanted = jax.grad(lambda z: (jax.grad(s.cross_entropy)(z, Y) ** 2).sum())(h)
    np.testing.assert_allclose(transformed(jax.grad(of_scores))(h), wanted, rtol=1e-5, atol=1e-7)


def test_a_loss_and_its_gradient_take_one_pass() -> None:
    """The program has one call, which computes both. Forward mode ignores tangents outside `where`."""
    z, w = jnp.asarray(Z), jnp.asarray(SQUARE)
    program = jax.jit(jax.value_and_grad(s.cross_entropy)).lower(z, Y).as_text()
    assert program.count(f"@{TARGET}(") == 1
    of_layer = jax.value_and_grad(lambda h, w: s.linear_cross_entropy(h, w, Y), (0, 1))
    assert jax.jit(of_layer).lower(z, w).as_text().count(f"@{TARGET}(") == 1
    where = jnp.asarray(MASK)
    tangent = jnp.where(where, jnp.cos(jnp.arange(6.0)), jnp.nan)[None] * jnp.ones((4, 1))  # ignored outside `where`
    y = jnp.array([0, 5, 2, 1])
    _, found = jax.jvp(lambda z: s.cross_entropy(z, y, where=where), (z,), (tangent,))
    gradient = jax.grad(lambda z: s.cross_entropy(z, y, where=where))(z)
    np.testing.assert_allclose(found, jnp.where(where, gradient * tangent, 0.0).sum(), rtol=1e-5)


def test_calls_in_threads() -> None:
    f = jax.jit(s.softmax_with_lse)
    rows = [jnp.asarray(Z + k) for k in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for z, (p, lse) in zip(rows, pool.map(f, rows), strict=True):
            assert_array_equal(p, s.softmax(np.asarray(z)))
            assert_array_equal(lse, s.logsumexp(np.asarray(z)))


def test_large_results_are_written_in_place() -> None:
    """XLA has no temporary arrays but the classes with those out of range replaced. Kernels write into XLA's memory."""
    z = jnp.zeros((512, 8192))
    for f in (s.softmax, s.logsumexp, partial(s.cross_entropy, target=jnp.zeros(512, int))):
        assert jax.jit(f).lower(z).compile().memory_analysis().temp_size_in_bytes <= 4 * 512


def test_using() -> None:
    z = jnp.asarray(Z)
    for name in ("native", "reference"):
        with s.using(name):
            program = jax.jit(partial(s.softmax)).lower(z).as_text()  # a new function, as jit keeps programs
        assert (TARGET in program) == (name == "native")
    with s.using("triton"), pytest.raises(RuntimeError, match="jax"):
        s.softmax(z)


def test_derivatives_of_integers_and_of_unused_results() -> None:
    """Integer arguments have float0 tangents, and only the results that are used have cotangents."""
    z, y = jnp.asarray(Z), jnp.asarray(Y)
    dz, dy = jax.grad(s.cross_entropy, argnums=(0, 1), allow_int=True)(z, y)
    assert dy.dtype == jax.dtypes.float0
    assert_array_equal(dz, jax.grad(s.cross_entropy)(z, y))
    for k in range(2):
        found = jax.grad(lambda z, k=k: s.softmax_with_lse(z)[k].sum())(z)
        np.testing.assert_allclose(found, [0 * Z, s.softmax(Z)][k], atol=1e-6)
    _, tangent = jax.jvp(lambda z: s.categorical(z, seed=1), (z,), (z,))
    assert tangent.dtype == jax.dtypes.float0
