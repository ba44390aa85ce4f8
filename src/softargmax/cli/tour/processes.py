"""Train a last layer in one process, and in two that share its classes. All bits are the same."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from softargmax.cli import render
from softargmax.cli.words import corpus
from softargmax.core.extras import install

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

TOKENS, STEPS, WORLD = 1_000_000, 20, 2


def run(out: Console | None, folder: Path) -> dict[str, Any]:  # noqa: ARG001  a stop's arguments are fixed
    """Train on the standard library's text. The losses of all steps and the trained weights must have the same bits."""
    if find_spec("torch") is None:
        if out is not None:
            out.print(f"torch is not installed, so this stop is skipped: {escape(install('torch'))}")
        return {"ok": True, "skipped": "torch is not installed"}
    from softargmax.cli.tour import torch_last_layer

    text = corpus.read(tokens=TOKENS)
    arguments = text.train, len(text.vocabulary.words), STEPS
    one, several = torch_last_layer.trained(*arguments), torch_last_layer.trained_by(WORLD, *arguments)
    same_losses, same_weights = one.losses == several.losses, one.digests == several.digests
    if out is not None:
        shown = render.table("processes", "classes in each", "seconds", "last loss", "its bits")
        for world, found in ((1, one), (WORLD, several)):
            last = found.losses[-1]
            shown.add_row(
                str(world), f"{arguments[1] // world:,}", f"{found.seconds:.1f}", f"{float.fromhex(last):.6f}", last
            )
        out.print(shown)
        out.print(
            f"{'the same bits' if same_losses else 'DIFFERENT bits'} in the losses of {STEPS} steps, "
            f"{'the same bits' if same_weights else 'DIFFERENT bits'} in the trained weights"
        )
    losses = {"losses": one.losses, "losses_of_processes": several.losses}
    return {"ok": same_losses and same_weights, "processes": WORLD, **losses}
