"""Compiled programs call every kernel of the compiled core for functions of arrays, also those of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.core.test_jax_vmap import CALLS as MAPPED
from tests.core.test_jax_vmap import HEADS, OF_LAYERS, Y, Z

import softargmax as s
from softargmax.core import jax_call
from softargmax.core.record import OPERATIONS

jax = pytest.importorskip("jax")
from jax import numpy as jnp  # noqa: E402 after the check for jax

from softargmax.core import jax_operation  # noqa: E402 it imports jax

CUTS = [0, 1, 3]
LAYER, H = {name: OF_LAYERS[name] for name in ("h", "w")}, OF_LAYERS["h"]
OTHERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "cross_entropy, scores": (lambda z: s.cross_entropy(z, Y[0]), {"z": Z}),
    "attention_paged": (
        lambda q: s.attention_paged(q[None], *[jnp.swapaxes(q, 0, 1)[None]] * 2, [[0]], [2]),
        {"q": HEADS["q"]},
    ),
    "segment_log_softmax": (lambda z: s.segment_log_softmax(z, CUTS), {"z": Z}),
    "segment_logsumexp": (lambda z: s.segment_logsumexp(z, CUTS), {"z": Z}),
    "linear_cross_entropy_terms": (lambda h, w: s.linear_cross_entropy_terms(h, w, Y[0], reduction="none"), LAYER),
    "linear_cross_entropy, rows": (lambda h, w: s.linear_cross_entropy(h, w, Y[0], reduction="none"), LAYER),
    "linear_distillation": (lambda h, w: s.linear_distillation(h, w, h[::-1], w / 2), LAYER),
    "best": (lambda e: s.linear_chain(e, jnp.eye(e.shape[-1])).best(), {"e": Z}),
    "threshold": (lambda z: s.threshold(z, 1.5), {"z": Z}),
    "filter_scores": (lambda z: s.filter_scores(z, top_k=2), {"z": Z}),
    "categorical_with_logprob": (lambda z: s.categorical_with_logprob(z, seed=1), {"z": Z}),
    "gumbel_softmax": (lambda z: s.gumbel_softmax(z, seed=1), {"z": Z}),
}


def sum_of_floats(found: Any) -> Any:
    """A number with a derivative in every result."""
    floats = [x for x in jax.tree.leaves(found) if jnp.issubdtype(x.dtype, jnp.floating)]
    return sum(((jnp.where(jnp.isfinite(x), x, 0.0) ** 2).sum() for x in floats), jnp.zeros(()))


def test_programs_call_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers of the room `output` are modules of torch. Packed sequences cannot be traced."""
    called = set()

    def noted(of: Any, how: dict[str, Any]) -> str:
        called.add(of.operation.name)
        return jax_call.text_of(of, how)

    monkeypatch.setattr(jax_operation, "text_of", noted)
    for call, arguments in (MAPPED | OTHERS).values():
        arrays = {name: x[0] for name, x in arguments.items()}
        moving = [name for name, x in arrays.items() if x.dtype == jnp.float32]

        def loss(*given: Any, call: Any = call, arrays: Any = arrays, moving: Any = moving) -> Any:
            return sum_of_floats(call(**{**arrays, **dict(zip(moving, given, strict=True))}))

        jax.jit(lambda x, call=call: call(**x)).lower(arrays)
        jax.jit(jax.value_and_grad(loss, range(len(moving)))).lower(*(arrays[name] for name in moving))
    # Other tests of this process may have defined operations, too.
    ours = [x for x in OPERATIONS if x.room.startswith("softargmax.") and x.room != "softargmax.output"]
    missing = {x.name for x in ours if "cpu" in x.kernels} - called
    assert not missing
