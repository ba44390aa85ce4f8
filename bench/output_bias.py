"""Measure the gradient bias of sampled losses against the full softmax, by number of draws.

    python -m bench.output_bias        about a minute; writes bench/results/output_bias.json

There are K = 10,000 classes, D = 32, and 64 rows. As in a trained model, scores are the log of Zipf's law plus normal
numbers with a standard deviation of 3. The targets are drawn from the model itself. The gradient with respect to h is
averaged over 400 steps. In each step, all rows share new draws. The bias is |mean - truth| / |truth| over all rows.
After it, in parentheses, the program prints the noise: the standard error of the mean, divided by |truth|. For NCE and
negative sampling, theory gives no bound of the bias at a fixed number of draws.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from bench.machine import machine

from softargmax import nn
from softargmax.output import LogUniform, Uniform, Unigram

CLASSES, DIM, ROWS, STEPS, SPREAD = 10_000, 32, 64, 400, 3.0
DRAWS = (16, 64, 256, 1024)
OUT = Path(__file__).parent / "results" / "output_bias.json"


def layers(n: int, counts: Any) -> dict[str, Any]:
    """Return every layer, with n draws."""
    uniform, zipf, power = Uniform(CLASSES), LogUniform(CLASSES), Unigram(counts)
    return {
        "sampled, uniform": nn.SampledSoftmax(DIM, uniform, samples=n, unique=False),
        "sampled, log-uniform": nn.SampledSoftmax(DIM, zipf, samples=n, unique=False),
        "sampled, log-uniform, distinct": nn.SampledSoftmax(DIM, zipf, samples=n),
        "sampled, counts^0.75": nn.SampledSoftmax(DIM, power, samples=n, unique=False),
        "importance, log-uniform": nn.ImportanceSampledSoftmax(DIM, zipf, samples=n),
        "NCE, log-uniform": nn.NCE(DIM, zipf, samples=n, log_z=0.0),
        "negative sampling, counts^0.75": nn.NegativeSampling(DIM, power, samples=n, shared=True),
    }


def gradient(layer: Any, h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the gradient of one step with respect to h."""
    leaf = h.clone().requires_grad_()
    (found,) = torch.autograd.grad(layer(leaf, y), leaf)
    return found.double()


def bias(layer: Any, h: torch.Tensor, y: torch.Tensor, truth: torch.Tensor) -> tuple[float, float]:
    """Return the distance between the mean gradient and the true gradient, and the standard error of the mean gradient.

    Both are divided by the norm of the true gradient.
    """
    total, squares = torch.zeros_like(truth), torch.zeros_like(truth)
    for _ in range(STEPS):
        g = gradient(layer, h, y)
        total += g
        squares += g * g
    mean = total / STEPS
    noise = ((squares / STEPS - mean * mean).clamp(min=0) / STEPS).sum().sqrt()
    size = truth.norm()
    return float((mean - truth).norm() / size), float(noise / size)


def main() -> None:
    """Measure the bias of every layer, print the table and write the result."""
    generator = torch.Generator().manual_seed(0)
    zipf = torch.from_numpy(LogUniform(CLASSES).probabilities)
    h = torch.randn(ROWS, DIM, generator=generator)
    weight = torch.randn(CLASSES, DIM, generator=generator) * SPREAD / DIM**0.5
    prior = (zipf.log() - SPREAD**2 / 2).float()
    full = nn.FullSoftmax(DIM, CLASSES, reduction="sum")
    with torch.no_grad():
        full.weight.copy_(weight)
        full.bias.copy_(prior)
        y = full.sample(h, seed=1)
    truth = gradient(full, h, y)
    found: dict[str, dict[str, tuple[float, float]]] = {}
    print(f"{'|mean - truth| / |truth| (noise)':40s}", *(f"{n:>16d}" for n in DRAWS))
    for n in DRAWS:
        for name, layer in layers(n, (1e8 * zipf).long()).items():
            layer.reduction = "sum"
            with torch.no_grad():
                layer.weight.copy_(weight)
                layer.bias.copy_(prior)
            found.setdefault(name, {})[str(n)] = bias(layer, h, y, truth)
    for name, row in found.items():
        print(f"{name:40s}", *(f"{far:8.4f} ({noise:.4f})" for far, noise in row.values()))
    record = {"machine": machine(), "classes": CLASSES, "dim": DIM, "rows": ROWS, "steps": STEPS, "bias": found}
    OUT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
