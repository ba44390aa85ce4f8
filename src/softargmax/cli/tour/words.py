"""A small language model of Python's standard library, trained with three output layers, and text that it writes."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from softargmax.cli import render
from softargmax.cli.words import corpus, report, subprocess_worker
from softargmax.cli.words.settings import Job, Settings, Until
from softargmax.core.extras import install

if TYPE_CHECKING:
    from rich.console import Console

LAYERS = ("full", "sampled", "hierarchical")
TOKENS, STEPS, EVALUATED = 300_000, 120, 8192
PROMPT, WRITTEN, TOP_P = "def ", 60, 0.8


def run(out: Console | None, folder: Path) -> dict[str, Any]:
    """Train for as many steps with each layer; perplexity has to fall far below that of counts alone."""
    for package in ("torch", "safetensors"):
        if find_spec(package) is None:
            if out is not None:
                out.print(f"{package} is not installed, so this stop is left out: {escape(install('words'))}")
            return {"ok": True, "skipped": f"{package} is not installed"}
    text = corpus.read(tokens=TOKENS)
    vocabulary = text.vocabulary
    job = Job(
        Settings(""), Until(steps=STEPS), "", text.digest(), evaluated=EVALUATED, top_p=TOP_P, generate=WRITTEN,
        prompt=vocabulary.encoded(PROMPT), without=[vocabulary.unknown, vocabulary.begin],
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=folder) as checkpoints:
        records = list(subprocess_worker.trained(job, LAYERS, text, Path(checkpoints)))
    picture, best = folder / "words.png", min(records, key=lambda record: float(record["perplexity"]))
    report.draw(records, picture)
    if out is not None:
        out.print(report.about(text.facts))
        shown = render.table("layer", "seconds", "steps", "perplexity")
        shown.add_row("counts alone", "", "", f"{best['unigram']:.1f}")
        for record in records:
            shown.add_row(record["layer"], f"{record['seconds']:.1f}", str(STEPS), f"{record['perplexity']:.1f}")
        out.print(shown)
        out.print(f"{best['layer']}, drawn with top-p {TOP_P}:\n[cyan]{escape(best['text'])}[/]")
        out.print(f"[dim]perplexity over time: {escape(str(picture))}; more of it: softargmax train-words[/]")
    told = ("layer", "seconds", "perplexity", "unigram", "text")
    return {
        "ok": all(record["perplexity"] < record["unigram"] / 2 for record in records),
        "layers": [{key: record[key] for key in told} for record in records],
        "picture": str(picture),
    }
