"""attention_vjp agrees with torch's derivative of the definition, for every option and pair of options but alpha."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.attend.test_values import BACKENDS, OPTIONS, inputs
from tests.oracle.backends import Backend

import softargmax as s

torch = pytest.importorskip("torch")

NAMES = [name for name in OPTIONS if name != "alpha"]
PAIRS = [(), *((name,) for name in NAMES), *itertools.combinations(NAMES, 2)]
TRACKED = ("scale", "bias", "sink", "slopes")


def incoming() -> tuple[np.ndarray, np.ndarray]:
    rng, q, v = np.random.default_rng(5), inputs()[0], inputs()[2]
    return rng.standard_normal((*q.shape[:-1], v.shape[-1])), rng.standard_normal(q.shape[:-1])


def truth(options: dict[str, Any]) -> list[np.ndarray]:
    """Return the gradients with respect to q, k and v, followed by those with respect to the options in TRACKED."""
    qkv = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in inputs()]
    own = {key: torch.tensor(x) if isinstance(x, np.ndarray) else x for key, x in options.items()}
    leaves = [own[key].requires_grad_() for key in TRACKED if key in own]
    with s.using("reference"):
        found = s.attention_with_lse(*qkv, **own)
    g, g_lse = map(torch.tensor, incoming())
    has_keys = found.lse > -torch.inf
    ((found.output * g).sum() + (torch.where(has_keys, found.lse, 0.0) * g_lse).sum()).backward()
    return [x.grad.numpy() for x in (*qkv, *leaves)]


@pytest.mark.parametrize("names", PAIRS, ids="+".join)
def test_every_pair_of_options(names: tuple[str, ...]) -> None:
    options = {key: value for name in names for key, value in OPTIONS[name].items()}
    wanted = truth(options)
    for backend in BACKENDS:
        own = {key: backend.array(x) if isinstance(x, np.ndarray) else x for key, x in options.items()}
        for dtype, slack in (("float64", 2e-14), ("float32", 4e-6)):
            given = [backend.array(x, dtype) for x in (*inputs(), incoming()[0])]
            with backend.using():
                found = s.attention_vjp(*given, g_lse=backend.array(incoming()[1], dtype), **own)
            kept = [*found[:3], *(getattr(found, key) for key in TRACKED if key in options)]
            assert [x is None for x in found[3:]] == [key not in options for key in TRACKED]
            for x, y in zip(kept, wanted, strict=True):
                np.testing.assert_allclose(
                    backend.back(x), y, atol=slack * max(1.0, abs(y).max()), err_msg=str(backend)
                )


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_hidden_keys_have_no_effect(backend: Backend, bad: float) -> None:
    q, k, v = inputs()
    mask = np.arange(k.shape[-2]) < k.shape[-2] - 1
    arrays = lambda: [backend.array(x, "float64") for x in (q, k, v, incoming()[0])]  # noqa: E731
    with backend.using():
        clean = s.attention_vjp(*arrays(), mask=backend.array(mask), softcap=1.0)
        k[..., -1, :] = v[..., -1, :] = bad
        found = s.attention_vjp(*arrays(), mask=backend.array(mask), softcap=1.0)
    for x, y in zip(found[:3], clean[:3], strict=True):
        np.testing.assert_allclose(backend.back(x), backend.back(y), atol=1e-14)


@pytest.mark.slow
def test_jax_and_lists() -> None:
    jnp = pytest.importorskip("jax.numpy")
    q, k, v = inputs()
    g = incoming()[0].astype(np.float32)
    found = s.attention_vjp(*map(jnp.asarray, (q, k, v, g)), causal=True, sink=jnp.zeros(4))
    wanted = s.attention_vjp(q, k, v, g, causal=True, sink=np.zeros(4))
    for x, y in zip(found, wanted, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            np.testing.assert_allclose(x, y, atol=1e-5)
    listed = s.attention_vjp([[[1.0]]], [[[1.0]]], [[[1.0]]], [[[1.0]]])
    assert isinstance(listed.q, np.ndarray)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("g", np.ones((2, 4, 5, 2)), r"^g: expected shape \(2, 4, 5, 3\), got \(2, 4, 5, 2\)"),
        ("g_lse", np.ones(5), r"^g_lse: expected shape \(2, 4, 5\), got \(5,\)"),
    ],
)
def test_errors(name: str, value: Any, words: str) -> None:
    given = {"g": incoming()[0], "g_lse": incoming()[1], name: value}
    with pytest.raises(ValueError, match=words):
        s.attention_vjp(*inputs(), given["g"], g_lse=given["g_lse"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(dtype: str) -> None:
    """Gradients for half-precision inputs are close to the gradients for the same numbers in float32.

    The output and the gradient of q have the dtype of the inputs.
    """
    narrow = [torch.tensor(x).to(getattr(torch, dtype)) for x in (*inputs(), incoming()[0])]
    found, wanted = (s.attention_vjp(*x, causal=True) for x in (narrow, [x.float() for x in narrow]))
    step = torch.finfo(narrow[0].dtype).eps
    assert s.attention(*narrow[:3]).dtype == found.q.dtype == narrow[0].dtype
    # The backward pass computes delta = <g, output> from the rounded output, which costs a few units of rounding.
    for x, y in zip(found[:3], wanted[:3], strict=True):
        assert (x.float() - y).abs().max() <= 4 * step * y.abs().max()


@pytest.mark.parametrize("shape", [(), (1,), (4,)])
def test_a_half_sink_has_its_gradient_in_float32(shape: tuple[int, ...]) -> None:
    arrays = [x.astype(np.float16) for x in (*inputs(), incoming()[0])]
    found = s.attention_vjp(*arrays, sink=np.zeros(shape, np.float16))
    assert found.sink.dtype == np.float32
    assert found.sink.shape == shape
