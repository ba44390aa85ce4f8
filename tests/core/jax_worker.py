"""Programs of their own for tests/core/test_jax_operation.py.

python tests/core/jax_worker.py sharded        checks calls with arrays on four simulated devices
python tests/core/jax_worker.py cut_classes    checks states of rows whose classes are on four simulated devices
python tests/core/jax_worker.py export FILE    writes an exported program
python tests/core/jax_worker.py call FILE      calls it, and prints the bits of the result
"""

from __future__ import annotations

import os
import sys
from functools import partial, reduce
from operator import itemgetter
from pathlib import Path
from typing import Any

if sys.argv[1:2] in (["sharded"], ["cut_classes"]):
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.export  # before JAX 0.6, `import jax` alone does not import it
import numpy as np
from jax import numpy as jnp

import softargmax as s
import softargmax.jax

if hasattr(jax, "shard_map"):
    shard_map, UNCHECKED = jax.shard_map, {"check_vma": False}
else:  # before JAX 0.6
    from jax.experimental.shard_map import shard_map

    UNCHECKED = {"check_rep": False}

Z = (3.0 * np.random.default_rng(0).standard_normal((8, 12))).astype("f4")
Y = np.arange(8) % 12
H = np.random.default_rng(1).standard_normal((5, 12)).astype("f4")
BY_ROW = {
    "softmax": s.softmax,
    "logsumexp": s.logsumexp,
    "cross_entropy": lambda z: s.cross_entropy(z, Y, reduction="none"),
    "its gradient": jax.grad(lambda z: s.cross_entropy(z, Y)),
    "sparsemax": s.sparsemax,
    "entmax_loss": lambda z: s.entmax_loss(z, Y, reduction="none"),
    "gradient of entmax_loss": jax.grad(lambda z: s.entmax_loss(z, Y)),
    "entmax": s.entmax,
    "categorical": lambda z: s.categorical(z, seed=1),
    "linear_cross_entropy": lambda z: s.linear_cross_entropy(z, H, Y % 5, reduction="none"),
    "attention": lambda z: s.attention(*[z.reshape(8, 3, 4)] * 3),
}


def sum_of_squares(f: Any, z: Any) -> Any:
    return (f(z) ** 2).sum()


MOVES = ("all-gather", "all-to-all", "collective-permute")


def sharded() -> None:
    """Rows stay on their devices, under jit and in eager calls. Inside of shard_map the kernels run."""
    mesh, spec = jax.sharding.Mesh(np.array(jax.devices()), ("rows",)), jax.sharding.PartitionSpec("rows")
    z = jax.device_put(Z, jax.sharding.NamedSharding(mesh, spec))
    for name, f in BY_ROW.items():
        wanted = f(jnp.asarray(Z))
        compiled = jax.jit(f).lower(z).compile()
        moved = [kind for kind in MOVES if kind in compiled.as_text()]
        assert not moved, (name, moved)
        for found in (compiled(z), f(z)):
            assert found.sharding.spec[0] == "rows", name
            np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6, err_msg=name)
    np.testing.assert_allclose(jax.jit(s.cross_entropy)(z, Y), s.cross_entropy(Z, Y), rtol=1e-6)
    by_device = jax.jit(shard_map(s.softmax, mesh=mesh, in_specs=spec, out_specs=spec, **UNCHECKED))
    assert softargmax.jax.TARGET in by_device.lower(z).compile().as_text()
    np.testing.assert_array_equal(by_device(z), s.softmax(Z))
    _gradients_in_shard_map(mesh, spec, z)
    _last_layer(jax.sharding.NamedSharding(mesh, spec))
    moved = jax.device_put(Z, jax.devices()[2])
    assert s.softmax(moved).devices() == s.entmax(moved).devices() == {jax.devices()[2]}
    with s.using("native"):
        for f in (s.softmax, jax.vmap(lambda h: s.linear_cross_entropy(h[None], H, Y[:1] % 5))):
            try:
                jax.jit(partial(f))(z)
            except RuntimeError as error:
                assert "one CPU" in str(error)  # noqa: PT017 without pytest
            else:
                raise AssertionError("expected an error, because no kernel serves sharded arrays")
    typed = jax.device_put(Z, jax.sharding.NamedSharding(jax.make_mesh((4,), ("rows",)), spec))  # explicit in new JAX
    for f in (s.softmax, s.logsumexp):
        gradient = jax.grad(partial(sum_of_squares, f))
        for call, own in ((f, f), (jax.jit(f), f), (jax.jit(gradient), gradient)):
            found = call(typed)
            assert found.sharding.spec[0] == "rows"
            np.testing.assert_allclose(found, own(jnp.asarray(Z)), rtol=4e-6, atol=2e-6)


def _gradients_in_shard_map(mesh: Any, spec: Any, z: Any) -> None:
    """Gradients of the shards, and of weights that all shards share."""

    def loss(z: Any, w: Any) -> Any:
        def of_shard(z: Any, w: Any) -> Any:
            return s.linear_cross_entropy(z, w, jnp.zeros(z.shape[0], int), reduction="none") + s.logsumexp(z)

        every = jax.sharding.PartitionSpec()
        return shard_map(of_shard, mesh=mesh, in_specs=(spec, every), out_specs=spec)(z, w).sum()

    found = jax.jit(jax.grad(loss, (0, 1)))(z, jnp.asarray(H))
    own = jax.grad(
        lambda z, w: s.linear_cross_entropy(z, w, jnp.zeros(8, int), reduction="sum") + s.logsumexp(z).sum(), (0, 1)
    )
    for a, b in zip(found, own(jnp.asarray(Z), jnp.asarray(H)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def _last_layer(sharding: Any) -> None:
    """The scores are computed by parts of rows of every device. Of 399 rows, the last part repeats one."""
    rows, k = 4 * 399, 2048
    rng = np.random.default_rng(2)
    h, w = rng.standard_normal((rows, 4)).astype("f4"), rng.standard_normal((k, 4)).astype("f4")
    y = rng.integers(0, k, rows)
    cut = jax.device_put(h, sharding)

    def loss(h: Any, w: Any) -> Any:
        return s.linear_cross_entropy(h, w, y, reduction="none")

    gradient = jax.grad(lambda h, w: loss(h, w).mean(), (0, 1))
    squares = jax.grad(lambda h, w: sum((x**2).sum() for x in gradient(h, w)))
    for f in (loss, gradient, squares):
        wanted = f(jnp.asarray(h), jnp.asarray(w))
        compiled = jax.jit(f).lower(cut, w).compile()
        assert not [kind for kind in MOVES if kind in compiled.as_text()]
        assert compiled.memory_analysis().temp_size_in_bytes < rows * k * 4 / 4 / 8, "of the scores of a device"
        found = compiled(cut, w)
        assert jax.tree.leaves(found)[0].sharding.spec[0] == "rows"
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7), found, wanted)


def cut_classes() -> None:
    """Each device folds its classes, and the states merge: the recipe of docs/jax.md."""
    mesh, spec = jax.sharding.Mesh(np.array(jax.devices()), ("classes",)), jax.sharding.PartitionSpec(None, "classes")

    def lse(part: Any) -> Any:
        own = s.State.empty(part.shape[:1], like=part).fold(part)
        every = jax.lax.all_gather(own, "classes")
        states = [jax.tree.map(itemgetter(k), every) for k in range(mesh.shape["classes"])]
        return reduce(s.State.merge, states).finalize().lse

    whole = jax.sharding.PartitionSpec()
    of_rows = jax.jit(shard_map(lse, mesh=mesh, in_specs=spec, out_specs=whole, **UNCHECKED))
    z = jax.device_put(Z, jax.sharding.NamedSharding(mesh, spec))
    np.testing.assert_allclose(of_rows(z), s.logsumexp(Z), rtol=2.0**-22)
    gradient = jax.jit(jax.grad(lambda z: of_rows(z).sum()))(z)
    assert gradient.sharding.spec == spec
    np.testing.assert_allclose(gradient, s.softmax(Z), rtol=2e-6, atol=1e-7)


def program(z: Any) -> Any:
    gradient = jax.grad(lambda z: s.cross_entropy(z, Y, reduction="none").sum())(z)
    return s.softmax(z, temperature=0.7), s.logsumexp(z.astype(jnp.bfloat16)), gradient, s.categorical(z, seed=1)


def export(path: str) -> None:
    unchecked = [jax.export.DisabledSafetyCheck.custom_call(softargmax.jax.TARGET)]
    Path(path).write_bytes(jax.export.export(jax.jit(program), disabled_checks=unchecked)(Z).serialize())


def call(path: str) -> None:
    found = jax.export.deserialize(bytearray(Path(path).read_bytes())).call(jnp.asarray(Z))
    own = program(Z)
    for a, b in zip(found, own, strict=True):
        np.testing.assert_array_equal(np.asarray(a, "f8"), np.asarray(b, "f8"))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
