"""Errors of calls that do not match a signature name the public function and its arguments."""

from __future__ import annotations

import importlib
import inspect
import types
import typing
from typing import Any

import numpy as np
import pytest

import softargmax as s

Z, Q, Y = np.ones((2, 3)), np.ones((2, 3, 4)), [0, 1]

# Calls as users of SciPy, torch, entmax, Hugging Face and FlashAttention write them.
HABITS = [
    (lambda: s.softmax(Z, dim=-1), "softmax() has no argument dim; use axis"),
    (lambda: s.softmax(Z, tempreture=1), "softmax() has no argument tempreture; use temperature"),
    (lambda: s.softmax(input=Z), "softmax() has no argument input; pass z by position"),
    (lambda: s.softmax(z=Z), "softmax() has no argument z; pass z by position"),
    (s.softmax, "softmax() needs z"),
    (lambda: s.get_num_threads(1), "get_num_threads() takes none by position, got 1"),
    (lambda: s.entmax(Z, dim=1), "entmax() has no argument dim; use axis"),
    (lambda: s.sparsemax(Z, mask=Z > 0), "sparsemax() has no argument mask; use where"),
    (lambda: s.hardmax(Z, n=1), "hardmax() has no argument n; it takes z, axis, where"),
    (lambda: s.logsumexp(Z, b=Z), "logsumexp() has no argument b; use weights"),
    (lambda: s.logsumexp(Z, keepdim=True), "logsumexp() has no argument keepdim; use keepdims"),
    (lambda: s.gumbel_softmax(Z, tau=1), "gumbel_softmax() has no argument tau; use temperature"),
    (lambda: s.categorical(Z, rng=1), "categorical() has no argument rng; use generator"),
    (lambda: s.attention(Q, Q, Q, is_causal=True), "attention() has no argument is_causal; use causal"),
    (lambda: s.attention(Q, Q, Q, attn_mask=Q), "attention() has no argument attn_mask; use mask"),
    (lambda: s.attention(Q, Q, Q, dropout_p=0.1), "attention() has no argument dropout_p; use dropout"),
    (lambda: s.attention(Q, Q), "attention() needs v"),
    (lambda: s.attention(Q, v=Q), "attention() needs k"),
    (lambda: s.attention(Q, Q, Q, q=Q), "attention() got q by position and by name"),
    (lambda: s.categorical(Z, size=3, tau=1), "categorical() has no argument size; use num_samples"),
    (lambda: s.cross_entropy(Z, Y, dim=1), "cross_entropy() has no argument dim; use axis"),
    (lambda: s.cross_entropy(Z, labels=Y), "cross_entropy() has no argument labels; use target"),
    (lambda: s.linear_cross_entropy(Z, Z, Y, b=1), "linear_cross_entropy() has no argument b; it takes h, w, target,"),
    (
        lambda: s.output.adaptive_cutoffs([3, 2, 1], 64),
        "adaptive_cutoffs() takes 1 by position (counts), got 2; give the others by name: dim=,",
    ),
    (s.output.Tree, "Tree() needs children"),
    (
        lambda: s.softmax(Z, 1),
        "softmax() takes 1 by position (z), got 2; give the others by name: axis=, temperature=, base=, where=,",
    ),
    (
        lambda: s.attention(Q, Q, Q, None),
        "attention() takes 3 by position (q, k, v), got 4; give the others by name: scale=, causal=,",
    ),
]
MODULES = [
    (lambda nn: nn.Softmax(axis=1), "Softmax() has no argument axis; use dim"),
    (
        lambda nn: nn.Softmax(1, 2.0),
        "Softmax() takes 1 by position (dim), got 2; give the others by name: temperature=",
    ),
    (
        lambda nn: nn.CrossEntropyLoss(size_average=True),
        "CrossEntropyLoss() has no argument size_average; it takes weight, reduction,",
    ),
    (lambda nn: nn.FullSoftmax(3), "FullSoftmax() needs classes"),
    (lambda nn: nn.TargetSampledSoftmax(3, reduction="sum"), "TargetSampledSoftmax() needs "),
    (lambda nn: nn.SampledSoftmax(3), "SampledSoftmax() needs sampler, samples"),
    (lambda nn: nn.GumbelSoftmax(tau=1.0), "GumbelSoftmax() has no argument tau; use temperature"),
]


@pytest.mark.parametrize(("call", "says"), HABITS, ids=[says.split(";")[0] for _, says in HABITS])
def test_habits(call: Any, says: str) -> None:
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value).startswith(says)
    assert error.value.__cause__ is None
    assert error.value.__context__ is None


@pytest.mark.parametrize(("call", "says"), MODULES, ids=[says.split(";")[0] for _, says in MODULES])
def test_habits_with_modules(call: Any, says: str) -> None:
    """Errors name Softmax, not the private base class that defines its options."""
    pytest.importorskip("torch")
    with pytest.raises(TypeError) as error:
        call(importlib.import_module("softargmax.nn"))
    assert str(error.value).startswith(says)


def test_arguments_that_may_be_passed_by_name() -> None:
    h, w = np.ones((2, 3)), np.arange(12.0).reshape(4, 3)
    assert s.cross_entropy(Z, target=Y) == s.cross_entropy(Z, Y)
    assert s.linear_cross_entropy(h=h, w=w, target=Y) == s.linear_cross_entropy(h, w, Y)
    assert s.selected_log_softmax(Z, index=Y).tolist() == s.selected_log_softmax(Z, Y).tolist()
    assert s.sparsemax_loss(Z, target=Y) == s.sparsemax_loss(Z, Y)
    assert s.entmax_loss(Z, target=Y, alpha=1.3) == s.entmax_loss(Z, Y, 1.3)
    assert s.distillation(z_student=Z, z_teacher=Z) == 0
    assert (s.attention(q=Q, k=Q, v=Q) == s.attention(Q, Q, Q)).all()


def test_errors_inside_a_function_are_not_changed() -> None:
    with pytest.raises(
        TypeError, match=r"^z: expected dtype float16, bfloat16, float32, float64, an integer or bool, got <U1"
    ):
        s.softmax(["a"])
    with pytest.raises(TypeError, match=r"^causal: "):
        s.attention(Q, Q, Q, causal="yes")


@pytest.mark.parametrize("name", [name for name in s.__all__ if isinstance(getattr(s, name), types.FunctionType)])
def test_every_public_function_has_these_errors(name: str) -> None:
    function = getattr(s, name)
    with pytest.raises(TypeError, match=rf"^{name}\(\) has no argument wrong; it takes "):
        function(wrong=1)
    takes = inspect.signature(function).parameters
    if "__signature__" in vars(function):  # functions with shared options show them in the signature
        assert typing.get_type_hints(function).keys() - {"return"} == takes.keys()
    assert not any(x.kind is x.VAR_KEYWORD for x in takes.values())


def test_rooms_are_loaded_lazily() -> None:
    for room in ("classify", "nn", "output", "stream"):
        assert room in dir(s)
    assert s.output.Uniform(3).classes == 3
