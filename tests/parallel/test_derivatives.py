"""First and second derivatives through a group, by torch's gradcheck and gradgradcheck in float64.

Every process differentiates the same function of the whole scores: it takes its part, calls the spread function, and
joins the results of all processes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.parallel.cases import cuts
from tests.parallel.workers import Workers
from torch import Tensor

import softargmax

COLUMNS = 5
BOUNDS = {2: [0, 2, 5], 3: [0, 2, 2, 5]}
ALL = {"label_smoothing": 0.1, "z_loss": 0.1, "reduction": "none"}


class Split(torch.autograd.Function):
    """This process's part of a tensor that all have. The gradients of all parts are joined."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        bounds, rank = BOUNDS[group.size()], group.rank()
        return x[..., bounds[rank] : bounds[rank + 1]].clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return Join.apply(g, ctx.group), None


class Join(torch.autograd.Function):
    """The parts of all processes, one after the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        parts: list[Any] = [None] * group.size()
        dist.all_gather_object(parts, x, group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return Split.apply(g, ctx.group), None


def checked(group: Any, name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    z = torch.randn(3, COLUMNS, dtype=torch.float64, requires_grad=True)
    target = [torch.tensor([0, 4, 2])] if name == "cross_entropy" else []

    def function(z: Tensor) -> Tensor:
        mine = Split.apply(z, group)
        found = getattr(softargmax.parallel, name)(mine, *target, group=group, **options)
        return Join.apply(found, group) if found.shape == mine.shape else found

    assert torch.autograd.gradcheck(function, (z,))
    assert torch.autograd.gradgradcheck(function, (z,))


@pytest.mark.parametrize("options", [{}, {"temperature": 0.6}], ids=["plain", "temperature"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "entropy"])
def test_maps_and_sums(workers: Workers, name: str, options: dict[str, Any]) -> None:
    for world in (2, 3):
        workers.run(world, checked, name, options)


def test_losses(workers: Workers) -> None:
    for world in (2, 3):
        workers.run(world, checked, "cross_entropy", ALL)


def layer_checked(group: Any, options: dict[str, Any]) -> None:
    """A last layer, of which each process has rows of W and b. The gradient of h is that of all processes."""
    torch.manual_seed(0)
    h, w, b = (torch.randn(n, dtype=torch.float64, requires_grad=True) for n in ((3, 2), (COLUMNS, 2), (COLUMNS,)))
    target = torch.tensor([0, 4, 2])

    def function(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        of_mine, bias = Split.apply(w.T, group).T, Split.apply(b, group)
        return softargmax.parallel.linear_cross_entropy(h, of_mine, target, bias=bias, group=group, **options)

    assert torch.autograd.gradcheck(function, (h, w, b))
    assert torch.autograd.gradgradcheck(function, (h, w, b))


@pytest.mark.parametrize("options", [{}, ALL], ids=["mean", "all"])
def test_layers(workers: Workers, options: dict[str, Any]) -> None:
    for world in (2, 3):
        workers.run(world, layer_checked, options)


def by_temperature(group: Any) -> None:
    """The gradient with respect to a temperature per row sums over all processes."""
    torch.manual_seed(0)
    z, t = torch.randn(4, 9001, dtype=torch.float64), torch.rand(4, 1, dtype=torch.float64) + 0.5
    bounds, rank = cuts("even", group.size()), group.rank()
    g = torch.randn(4, 9001, dtype=torch.float64)
    part = slice(bounds[rank], bounds[rank + 1])
    first, other = torch.randn(4, 1, dtype=torch.float64), torch.randn(4, 9001, dtype=torch.float64)
    for kind in ("even", "empty"):
        bounds = cuts(kind, group.size())
        part = slice(bounds[rank], bounds[rank + 1])
        whole, mine = t.clone().requires_grad_(), t.clone().requires_grad_()
        softargmax.kl_divergence(z, other, temperature=whole).backward(first[:, 0])
        parts = z[:, part], other[:, part]
        softargmax.parallel.kl_divergence(*parts, temperature=mine, group=group).backward(first[:, 0])
        torch.testing.assert_close(mine.grad, whole.grad, rtol=1e-9, atol=1e-9)
    bounds = cuts("even", group.size())
    part = slice(bounds[rank], bounds[rank + 1])
    for name in ("softmax", "log_softmax"):
        whole, mine = t.clone().requires_grad_(), t.clone().requires_grad_()
        getattr(softargmax, name)(z, temperature=whole).backward(g)
        getattr(softargmax.parallel, name)(z[:, part], temperature=mine, group=group).backward(g[:, part])
        torch.testing.assert_close(mine.grad, whole.grad, rtol=1e-12, atol=1e-12)


def test_the_gradient_of_a_temperature(workers: Workers) -> None:
    workers.run(3, by_temperature)


def twice(group: Any) -> None:
    """Second derivatives that mix scores and temperature."""
    torch.manual_seed(0)
    z, t = torch.randn(2, 5, dtype=torch.float64), torch.rand(2, 1, dtype=torch.float64) + 0.5
    of_z, of_t = torch.randn(2, 5, dtype=torch.float64), torch.randn(2, 1, dtype=torch.float64)
    bounds, rank = BOUNDS[group.size()], group.rank()
    mine = slice(bounds[rank], bounds[rank + 1])
    for name in ("softmax", "log_softmax", "logsumexp", "entropy"):
        found = []
        for part, function, options in (
            (slice(None), getattr(softargmax, name), {}),
            (mine, getattr(softargmax.parallel, name), {"group": group}),
        ):
            x, s = z[:, part].clone().requires_grad_(), t.clone().requires_grad_()
            y = function(x, temperature=s, **options)
            weights = of_z[:, part] if y.ndim == 2 and y.shape == x.shape else of_t[:, 0]
            first = torch.autograd.grad(y, (x, s), weights * torch.cos(y.detach()), create_graph=True)
            second = torch.autograd.grad(first, (x, s), (of_z[:, part], of_t))
            found.append([*(one.detach() for one in first), *second])
        (whole_x, whole_s, whole_xx, whole_ss), (x, s, xx, ss) = found
        for one, other in ((x, whole_x[:, mine]), (s, whole_s), (xx, whole_xx[:, mine]), (ss, whole_ss)):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_second_derivatives_with_a_temperature(workers: Workers) -> None:
    for world in (2, 3):
        workers.run(world, twice)
