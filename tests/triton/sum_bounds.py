"""Bounds for the gradients of sums under a softmax: the size of the terms whose roundings they contain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import softargmax as sa

ROUNDINGS = 8 * 2.0**-24
"""p, v and <p, v> have errors of some units of float32, relative to the size of a gradient."""

OF_TRUTH = 2.0**-40
"""What roundings of float64 may change in an expected gradient, which is 0 in a uniform row."""


def sizes(function: Callable[..., Any], *tensors: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    """The size of the gradient in each tensor of scores: the sum of the magnitudes of its terms, for g = 1.

    `values` is an option. Rows with NaN or infinite scores have size 0, because their gradients are 0 or NaN.
    """
    values, options = options.get("values"), {name: x for name, x in options.items() if name != "values"}
    temperature = torch.as_tensor(options.get("temperature", 1.0), dtype=torch.float64, device=tensors[0].device)
    beta = torch.nan_to_num(1.0 / temperature.abs(), posinf=0.0)
    with sa.using("reference"):
        logs = [sa.log_softmax(x.double(), **options) for x in tensors]
    log_p, log_q = logs[0], logs[-1]
    p, q = log_p.exp(), log_q.exp()
    if function is sa.kl_divergence:
        delta = torch.where((p > 0.0) & log_q.isfinite(), log_p - log_q, 0.0).abs()  # also where q is 0 in float64
        size = p * (delta + (p * delta).sum(1, keepdim=True))
        found = [size, size + (q - p).abs()]
    elif function is sa.entropy:
        gap = torch.where(p > 0.0, log_p.amax(1, keepdim=True) - log_p, 0.0)
        found = [p * (gap + (p * gap).sum(1, keepdim=True))]
    else:
        found = [p * (p.shape[1] - 1 if values is None else values.abs().amax())]
    return [(beta * one).nan_to_num(nan=0.0) for one in found]


def within(found: torch.Tensor, expected: torch.Tensor, size: torch.Tensor, g: float = 1.0) -> bool:
    """True if a gradient has an error of `ROUNDINGS`, and of one rounding to its dtype. NaN is where it is expected.

    g is the largest incoming gradient.
    """
    rounding = expected.abs() * torch.finfo(found.dtype).eps / 2 + 2.0**-149
    error = (found.double() - expected).abs()
    near = error <= g * (ROUNDINGS * size + OF_TRUTH) + rounding
    return bool((near | (found.double() == expected) | (found.isnan() & expected.isnan())).all())
