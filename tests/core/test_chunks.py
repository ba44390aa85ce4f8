"""Composed functions on large arrays: the same bits in chunks, and little memory."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest

import softargmax as s


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), (1, 2), None])
def test_many_rows_are_taken_in_chunks(axis: Any) -> None:
    """Above core.chunks.SIZE scores, NumPy's arrays are cut along their rows: the same bits."""
    z = np.random.default_rng(4).standard_normal((30, 90, 120))
    where = np.random.default_rng(5).random((90, 120)) < 0.8
    t = np.linspace(0.5, 2, 30 * 90 * 120).reshape(z.shape).mean(axis) if axis is not None else 1.5
    small = np.s_[3:5] if axis not in (0, None, (0, 2)) else np.s_[:]
    for function in (s.entropy, s.soft_argmax):
        whole = function(z, axis=axis, temperature=t, where=where)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("softargmax.core.chunks.SIZE", 1 << 30)
            assert np.array_equal(function(z, axis=axis, temperature=t, where=where), whole)
        part = function(z[small], axis=axis, temperature=t if axis is None else t[small], where=where)
        assert np.array_equal(part, whole[small] if axis is not None else whole)
    chunked = s.kl_divergence(z, z[::-1], axis=axis, where=where)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softargmax.core.chunks.SIZE", 1 << 30)
        assert np.array_equal(s.kl_divergence(z, z[::-1], axis=axis, where=where), chunked)


def test_entropy_needs_no_temporary_of_the_scores_size() -> None:
    z = np.ones((1024, 4096), np.float32)
    for function in (s.entropy, s.soft_argmax, lambda x: s.kl_divergence(x, x)):
        function(z[:1])
        tracemalloc.start()
        function(z)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < z.nbytes / 2, function


def test_systems_are_taken_in_chunks() -> None:
    rng = np.random.default_rng(7)
    energies, t = rng.standard_normal((900, 1000)), rng.uniform(0.5, 2, 900)
    options = {"weights": rng.integers(0, 4, 1000), "where": rng.random((900, 1)) < 0.9}
    for axis, temperature in ((1, t), (0, 1.5)):
        where = options["where"] if axis == 1 else None
        chunked = s.boltzmann(energies, temperature, axis=axis, weights=options["weights"], where=where)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("softargmax.core.chunks.SIZE", 1 << 30)
            whole = s.boltzmann(energies, temperature, axis=axis, weights=options["weights"], where=where)
        for name, a, b in zip(whole._fields, chunked, whole, strict=True):
            assert np.array_equal(a, b), name


@pytest.mark.parametrize("name", ["entropy", "soft_argmax", "kl_divergence"])
def test_nor_for_tensors_without_derivatives(name: str) -> None:
    """A process of its own: its peak grows by less than a quarter of the scores, 64 MiB."""
    pytest.importorskip("torch")
    call = {"kl_divergence": "lambda x: softargmax.kl_divergence(x, x)"}.get(name, f"softargmax.{name}")
    code = f"""
import re, softargmax, torch
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
z, f = torch.ones(4096, 4096), {call}
f(z[:64])
before = peak()
f(z)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 16


def test_tensors_with_derivatives_are_taken_whole() -> None:
    torch = pytest.importorskip("torch")
    teacher, student = torch.zeros(600, 1000), torch.zeros(600, 1000, requires_grad=True)
    t = torch.tensor(1.5, requires_grad=True)
    for result in (s.kl_divergence(teacher, student), s.entropy(teacher, temperature=t)):
        assert result.grad_fn.name() != "CatBackward0"
    assert not s.kl_divergence(teacher, student.detach()).requires_grad


def test_tensors_in_chunks_have_the_bits_of_the_whole() -> None:
    torch = pytest.importorskip("torch")
    z = torch.from_numpy(np.random.default_rng(4).standard_normal((300, 2000)))
    for function in (s.entropy, s.soft_argmax):
        chunked = function(z)
        whole = function(z.clone().requires_grad_())
        assert whole.requires_grad
        assert torch.equal(chunked, whole.detach())
        assert chunked.tolist() == function(z.numpy()).tolist()
