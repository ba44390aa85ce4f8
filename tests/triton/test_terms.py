"""Terms of the loss and distillation by the CUDA kernels, in Triton's interpreter: values, edges and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.oracle.truth import ulp_error

import softargmax as sa
from softargmax.core import dispatch

if not dispatch.INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1: run `make test-triton`", allow_module_level=True)

import torch

from softargmax.loss import triton_kernels as loss_kernels
from softargmax.normalize import triton_kernels, triton_sums

INF, NAN = float("inf"), float("nan")
TARGET = torch.tensor([1, 0, -100, 4])
OPTIONS: list[dict[str, Any]] = [{}, {"z_loss": 0.01, "label_smoothing": 0.1}, {"temperature": 0.7}]


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """All calls run the CUDA kernels. The names of operations that definitions computed are collected."""
    defined: list[str] = []
    for module in (loss_kernels, triton_kernels, triton_sums):
        define = module.define

        def noted(operation: Any, *arguments: Any, define: Callable[..., Any] = define) -> None:
            defined.append(operation.name)
            define(operation, *arguments)

        monkeypatch.setattr(module, "define", noted)
    with sa.using("triton"):
        yield defined


def scores(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3.0).to(dtype)


def terms(z: torch.Tensor, **options: Any) -> tuple[Any, torch.Tensor]:
    """The terms of each row, and the gradient of a weighted sum of them."""
    leaf = z.clone().requires_grad_()
    found = sa.cross_entropy_terms(leaf, TARGET, reduction="none", **options)
    total = 0.5 * found.loss + 2.0 * found.lse - found.entropy + 3.0 * found.z_loss
    return found, torch.autograd.grad(total.sum(), leaf)[0]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [5, 100])
def test_terms(triton: list[str], classes: int, dtype: torch.dtype, options: dict[str, Any]) -> None:
    z = scores(4, classes, dtype=dtype)
    found, slope = terms(z, **options)
    assert not triton
    with sa.using("native"):
        expected, right = terms(z.double(), **options)
    span = 4.0 * (z.double().amax(1) - z.double().amin(1)).numpy()
    largest = np.maximum(z.double().abs().amax(1).numpy(), np.abs(expected.lse.detach().numpy()))
    for name, at in (("lse", largest / options.get("temperature", 1.0)), ("entropy", None), ("z_loss", None)):
        error = ulp_error(getattr(found, name).detach().numpy(), getattr(expected, name).detach().numpy(), at=at)
        assert error.max() <= (3 if name != "z_loss" else 8), name  # z_loss is c lse^2
    error = ulp_error(found.loss.detach().numpy(), expected.loss.detach().numpy())
    fast = 0.0 if dtype is torch.float32 else 8.0 + span / 2  # relative errors of 2^-20, and 2^-24 for each unit
    assert (error <= 4 + fast).all()
    p = sa.softmax(z.double(), temperature=options.get("temperature", 1.0))
    gap = -p.log()
    size = 2.0 * p + 1.0 / classes + torch.nn.functional.one_hot(TARGET.clamp(0), classes)
    size = (size + 2.0 * p * (gap + (p * gap).sum(1, keepdim=True)) + 6.0 * 0.02 * p * gap.amax()) / 0.7
    unit = 2.0**-24 if dtype is torch.float32 else 2.0**-9
    assert ((slope.double() - right).abs() <= (16 * 2.0**-24 + 2.0 * unit * (dtype is not torch.float32)) * size).all()
    assert (slope[2] == 0.0).all()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reduced_terms(triton: list[str], reduction: str) -> None:
    z = scores(4, 7)
    found = sa.cross_entropy_terms(z, TARGET, reduction=reduction)
    assert not triton
    with sa.using("native"):
        expected = sa.cross_entropy_terms(z.double(), TARGET, reduction=reduction)
    for one, right in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        assert abs(float(one) - float(right)) <= 4 * 2.0**-23 * max(abs(float(right)), 4 * float(z.abs().max()))


def test_special_rows_and_float64() -> None:
    z = scores(4, 6)
    z[0, 1], z[1], z[3, 0] = INF, -INF, NAN
    for dtype in (torch.float32, torch.float64):
        found = sa.cross_entropy_terms(z, TARGET, reduction="none", dtype=dtype)
        with sa.using("native"):
            expected = sa.cross_entropy_terms(z.double(), TARGET, reduction="none")
        for one, right in zip(found, expected, strict=True):
            assert one.dtype == dtype
            bound = 3 if dtype is torch.float32 else 8
            assert ulp_error(one.numpy(), right.to(torch.float64).numpy()).max() <= bound


def test_softcapped_terms_are_within_their_bound() -> None:
    z = scores(4, 6) * 10.0
    found = sa.cross_entropy_terms(z, TARGET, reduction="none", softcap=20.0)
    with sa.using("native"):
        expected = sa.cross_entropy_terms(z.double(), TARGET, reduction="none", softcap=20.0)
    for one, right in zip(found, expected, strict=True):  # soft-capped scores are at most 20, with an error of 5 ulp
        assert ((one.double() - right).abs() <= 2 * 5 * 2.0**-23 * 20.0 * (1.0 + right.abs())).all()


def distillation(student: torch.Tensor, teacher: torch.Tensor, **options: Any) -> tuple[Any, ...]:
    leaves = student.clone().requires_grad_(), teacher.clone().requires_grad_()
    found = sa.distillation(*leaves, reduction="none", **options)
    return found.detach(), *torch.autograd.grad(found.sum(), leaves)


@pytest.mark.parametrize("kind", ["forward", "reverse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_distillation(triton: list[str], masked: bool, dtype: torch.dtype, kind: str) -> None:
    student, teacher = scores(4, 9, dtype=dtype), scores(4, 9, dtype=dtype, seed=1)
    options: dict[str, Any] = {"divergence": kind, "temperature": 2.0}
    if masked:
        options["where"] = torch.rand(4, 9, generator=torch.Generator().manual_seed(2)) > 0.3
    found = distillation(student, teacher, **options)
    assert not triton
    with sa.using("native"):
        expected = distillation(student.double(), teacher.double(), **options)
        logs = [sa.log_softmax(x.double(), temperature=2.0, where=options.get("where")) for x in (student, teacher)]
    assert ulp_error(found[0].numpy(), expected[0].numpy()).max() <= 3.5
    p, q = (one.exp() for one in logs)
    delta = torch.where(p > 0.0, logs[0] - logs[1], 0.0).abs().amax(1, keepdim=True)
    size = 2.0 * ((p + q) * (1.0 + 2.0 * delta))  # T^2 / T
    for one, right in zip(found[1:], expected[1:], strict=True):
        allowed = 8 * 2.0**-24 * size + right.abs() * torch.finfo(dtype).eps / 2 + 2.0**-149
        assert ((one.double() - right).abs() <= allowed).all()


def test_distillation_of_special_rows_and_means(triton: list[str]) -> None:
    student, teacher = scores(5, 4), scores(5, 4, seed=1)
    student[0, 1], student[1, 0], teacher[2], teacher[3, 0], teacher[4, 1] = -INF, NAN, -INF, INF, -INF
    for kind in ("forward", "reverse"):
        found = sa.distillation(student, teacher, divergence=kind, reduction="none")
        with sa.using("native"):
            expected = sa.distillation(student.double(), teacher.double(), divergence=kind, reduction="none")
        assert ulp_error(found.numpy(), expected.numpy()).max() <= 3.5
    where = torch.tensor([[True], [True], [False], [True], [True]]).expand(5, 4)
    plain = scores(5, 4), scores(5, 4, seed=1)
    found = sa.distillation(*plain, where=where)
    assert not triton
    with sa.using("native"):
        expected = sa.distillation(plain[0].double(), plain[1].double(), where=where)
    assert ulp_error(found.numpy(), expected.numpy()) <= 4


def test_a_huge_temperature_is_finite() -> None:
    student, teacher = scores(3, 5), scores(3, 5, seed=1)
    found = sa.distillation(student, teacher, temperature=1e20)
    assert found.isfinite()


def test_the_definition_serves_other_divergences() -> None:
    student, teacher = scores(3, 5), scores(3, 5, seed=1)
    for options in ({"divergence": "js"}, {"softcap": 10.0}, {"dtype": torch.float64}):
        found = sa.distillation(student, teacher, **options)
        with sa.using("native"):
            expected = sa.distillation(student.double(), teacher.double(), **options)
        assert ulp_error(found.double().numpy(), expected.double().numpy(), dtype="float32") <= 1
