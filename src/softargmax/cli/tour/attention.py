"""Attention over handwritten digits: entropy for more and more keys, a causal map, exact retrieval at large beta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape

import softargmax
from softargmax.cli import plot, render
from softargmax.cli.tour.digit_scores import split_digits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console

    Array = np.ndarray[Any, Any]

LENGTHS = 2 ** np.arange(6, 14)
D, QUERIES, SHOWN, NOISE = 64, 64, 60, 0.5
KAPPA = D**0.5 / np.log(LENGTHS[0])  # makes both SCALES equal for LENGTHS[0] keys
SCALES: dict[str, Callable[[int], Any]] = {
    "1 / √d": lambda _: D**-0.5,
    "κ log n / d": lambda n: softargmax.entropy_invariant_scale(n, D, kappa=KAPPA),
}
MAP_SCALE = D**-0.5 / 2  # at the usual scale, D**-0.5, each image attends almost only to itself
BETAS = np.geomspace(1e-4, 10, 21)


def run(out: Console | None, folder: Path) -> dict[str, Any]:
    """Measure the entropy as the number of keys grows, draw a causal map, and retrieve images at increasing beta."""
    parts = split_digits(out)
    if parts is None:
        return {"ok": True, "skipped": "scikit-learn is not installed"}
    rng = np.random.default_rng(0)
    images, test, _, labels = parts
    keys = rng.permutation(shifted(images))
    mean, spread = keys.mean(axis=0), keys.std(axis=0)
    memory, keys = softargmax.qk_norm((test - mean) / spread, (keys - mean) / spread)
    queries = memory[:QUERIES]
    noise = softargmax.qk_norm(*(rng.standard_normal((count, D)) for count in (QUERIES, LENGTHS[-1])))
    entropy = {
        f"{kind}, {name}": np.array([entropy_of(q, k[:n], scale) for n in LENGTHS])
        for kind, (q, k) in (("noise", noise), ("digits", (queries, keys)))
        for name, scale in SCALES.items()
    }
    x = queries[:SHOWN][np.argsort(labels[:SHOWN], kind="stable")]
    p = softargmax.softmax(x @ x.T * MAP_SCALE, where=np.tri(SHOWN, dtype=bool))
    read = softargmax.attention(x[None], x[None], x[None], scale=MAP_SCALE, causal=True)[0]
    noisy = queries + NOISE * rng.standard_normal(queries.shape)
    error = np.array([error_of(noisy, memory, float(beta)) for beta in BETAS])
    picture = folder / "attention.png"
    draw(entropy, p, error, str(picture))
    if out is not None:
        shown = render.table("entropy in nats, n =", *(str(n) for n in LENGTHS))
        for name, row in entropy.items():
            shown.add_row(name, *(f"{value:.2f}" for value in row))
        out.print(shown)
        shown = render.table("a read at beta =", *(f"{beta:.3g}" for beta in BETAS[::4]))
        shown.add_row("relative error", *(f"{value:.2g}" for value in error[::4]))
        out.print(shown)
        out.print(f"[dim]entropies, a causal map and the error: {escape(str(picture))}[/]")
    rise = {name: float(row[-1] - row[0]) for name, row in entropy.items()}
    slower = all(rise[f"{kind}, κ log n / d"] < 0.7 * rise[f"{kind}, 1 / √d"] for kind in ("noise", "digits"))
    soft = np.linalg.norm(memory.mean(axis=0) - queries) / np.linalg.norm(queries)  # the error at uniform weights
    turns = np.all(np.diff(error) < 0) and abs(error[0] / soft - 1) < 1e-3 and error[-1] < 1e-6
    same = np.allclose(p @ x, read, rtol=0, atol=1e-12)
    return {"ok": bool(slower and same and turns), "rise": rise, "error": error, "picture": str(picture)}


def shifted(images: Array) -> Array:
    """Return nine copies of every image, shifted by up to one pixel, to get more keys from real data."""
    wide = np.pad(images.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    return np.concatenate([wide[:, i : i + 8, j : j + 8].reshape(-1, D) for i in range(3) for j in range(3)])


def entropy_of(q: Array, k: Array, scale: Callable[[int], Any]) -> float:
    """Return the mean entropy of the attention of the queries `q` over the keys `k`."""
    return float(softargmax.entropy(q @ k.T * scale(len(k))).mean())


def error_of(q: Array, memory: Array, beta: float) -> float:
    """Return the relative error with which attention retrieves the first rows of `memory` from noisy copies `q`."""
    read = softargmax.attention(q[None], memory[None], memory[None], scale=beta)[0]
    return float(np.linalg.norm(read - memory[: len(q)]) / np.linalg.norm(memory[: len(q)]))


def draw(entropy: dict[str, Array], p: Array, error: Array, output: str) -> None:
    """Draw the entropies, the causal map and the error."""
    figure = plot.pyplot()(figsize=(12.4, 3.9), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for i, (name, row) in enumerate(entropy.items()):
        left.plot(LENGTHS, row, "--" if i % 2 else "-", color=plot.shades(3)[i // 2], linewidth=2, label=name)
    left.set_xscale("log", base=2)
    left.set_xticks(LENGTHS, LENGTHS)
    left.set(xlabel="keys n", ylabel="entropy in nats")
    left.legend(frameon=False, fontsize=9)
    middle.imshow(np.sqrt(p), cmap="viridis", vmin=0)
    middle.set(xlabel="key", ylabel="query")
    right.plot(BETAS, error, color="0.25", linewidth=2)
    right.set(xscale="log", xlabel="beta", ylabel="relative error")
    titles = ("entropy of attention", "√p among images, sorted by digit", "a read becomes exact")
    for panel, title in zip((left, middle, right), titles, strict=True):
        panel.set_title(title, loc="left", fontsize=11)
    plot.tidy(left)
    plot.tidy(right)
    plot.save(figure, output)
