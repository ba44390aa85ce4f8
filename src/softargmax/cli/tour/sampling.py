"""Draws: bandits with a softmax policy, and Gumbel-softmax samples, which become one-hot as the temperature falls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape

import softargmax
from softargmax.cli import plot, render

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

ARMS = np.array([0.2, 0.4, 0.5, 0.1, 0.7, 0.3, 0.6, 1.0])
BANDITS, STEPS, EPSILON = 200, 300, 0.02
TEMPERATURES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
FALLING = (10.0, 1.0, 0.3, 0.05)
SCORES = np.array([1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0])
SEED = 7


def run(out: Console | None, folder: Path) -> dict[str, Any]:
    """Play the bandits at each temperature, and draw Gumbel-softmax samples at falling temperatures."""
    reward = [bandits(T) for T in TEMPERATURES]
    samples = np.array([softargmax.gumbel_softmax(SCORES, temperature=T, seed=SEED) for T in FALLING])
    drawn = int(softargmax.categorical(SCORES, seed=SEED))
    picture = folder / "sampling.png"
    draw(reward, samples, str(picture))
    best = int(np.argmax(reward))
    if out is not None:
        shown = render.table("temperature", *(f"{T:g}" for T in TEMPERATURES))
        shown.add_row("mean reward", *(f"{value:.3f}" for value in reward))
        out.print(shown)
        out.print(f"{BANDITS} bandits, {STEPS} steps, {ARMS.size} arms; the largest mean reward is {ARMS.max():g}")
        shown = render.table("Gumbel-softmax at", *(f"z = {z:g}" for z in SCORES))
        for T, row in zip(FALLING, samples, strict=True):
            shown.add_row(f"{T:g}", *(f"{value:.3f}" for value in row))
        out.print(shown)
        out.print(f"[dim]the draw with the same seed is class {drawn}; both pictures: {escape(str(picture))}[/]")
    inside = 0 < best < len(TEMPERATURES) - 1
    one_hot = bool(samples[-1].max() > 0.99 and (samples.argmax(axis=1) == drawn).all())
    return {"ok": inside and one_hot, "reward": reward, "picture": str(picture)}


def bandits(temperature: float) -> float:
    """Return the mean reward of bandits that draw arms from the softmax of the arms' observed mean rewards."""
    rng = np.random.default_rng(SEED)
    total, pulls, reward = np.zeros((BANDITS, ARMS.size)), np.zeros((BANDITS, ARMS.size)), 0.0
    each = np.arange(BANDITS)
    for step in range(STEPS):
        observed = total / np.maximum(pulls, 1)
        policy = softargmax.boltzmann_policy(observed, temperature=temperature, epsilon=EPSILON)
        arm = softargmax.categorical(np.log(policy), seed=step)
        found = ARMS[arm] + rng.standard_normal(BANDITS)
        total[each, arm] += found
        pulls[each, arm] += 1
        reward += float(found.mean())
    return reward / STEPS


def draw(reward: list[float], samples: np.ndarray[Any, Any], output: str) -> None:
    """Plot the mean reward against the temperature, and the samples as rows of squares."""
    figure = plot.pyplot()(figsize=(7.6, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1)
    above.plot(TEMPERATURES, reward, color="0.25", linewidth=2, marker="o")
    above.set_xscale("log")
    above.set_xlabel("temperature of the policy")
    above.set_ylabel("mean reward")
    above.set_title(f"{ARMS.size} arms: mean reward over the policy's temperature", loc="left", fontsize=11)
    below.imshow(samples, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    below.set_yticks(range(len(FALLING)), [f"{T:g}" for T in FALLING])
    below.set_xticks(range(SCORES.size), [f"{z:g}" for z in SCORES])
    below.set_xlabel("score")
    below.set_ylabel("temperature")
    below.set_title("one Gumbel-softmax sample becomes one-hot", loc="left", fontsize=11)
    plot.tidy(above)
    plot.save(figure, output)
