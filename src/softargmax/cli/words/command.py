"""``softargmax train-words``: a language model of Python's standard library, or of any text, with any output layer."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from softargmax import measure
from softargmax.cli import render
from softargmax.cli.errors import FailedRunError, WrongUseError, refused_as
from softargmax.cli.words import corpus, launch_worker, report
from softargmax.cli.words.output_layers import LAYERS
from softargmax.cli.words.settings import CONTEXTS, HEADS, Job, Settings, Until
from softargmax.core.extras import require

ALL, SECONDS, LONG = "all", 60.0, 100
SOURCE = "Files, folders and patterns; Python's standard library by default."

Source = Annotated[list[str] | None, typer.Argument(help=SOURCE, metavar="TEXT")]
Layer = Annotated[list[str], typer.Option("--layer", help=f"May be repeated: {', '.join((*LAYERS, ALL))}.")]
Model = Annotated[str, typer.Option("--model", help=f"{' or '.join(CONTEXTS)}.")]
Dim = Annotated[int, typer.Option("--dim", min=1, help="D, the length of the hidden vectors.")]
Context = Annotated[
    int | None, typer.Option("--context", min=1, help="Tokens of context per prediction (8; attention 64).")
]
Vocab = Annotated[int | None, typer.Option("--vocab", help="K, the number of classes (at most 32768).")]
Tokens = Annotated[int | None, typer.Option("--tokens", min=1, help="Train on at most this many tokens.")]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Train for this many steps.")]
Epochs = Annotated[float | None, typer.Option("--epochs", help="Train for this many passes over the text.")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="Train each layer for this many seconds (60).")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Tokens predicted per step.")]
Rate = Annotated[float, typer.Option("--lr", help="The step size of Adam.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Equal --seed and --steps give equal bits.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for checkpoints, report and picture.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume from the checkpoints in the folder.")]
SaveEvery = Annotated[float, typer.Option("--save-every", help="Seconds between checkpoints.")]
Evaluate = Annotated[int, typer.Option("--evaluate", min=1, help="Held-out tokens for measuring perplexity.")]
Prompt = Annotated[str, typer.Option("--prompt", help="Text to continue after training.")]
Generate = Annotated[int | None, typer.Option("--generate", min=0, help="Tokens to generate (100 with --prompt).")]
TopP = Annotated[float, typer.Option("--top-p", help="Draw from the most probable tokens with this total probability.")]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


def command(  # noqa: PLR0913 one argument per option
    source: Source = None,
    *,
    layer: Layer = ["full", "sampled", "hierarchical"],  # noqa: B006 typer needs the default here
    model: Model = "window",
    dim: Dim = 128,
    context: Context = None,
    vocab: Vocab = None,
    tokens: Tokens = None,
    steps: Steps = None,
    epochs: Epochs = None,
    seconds: Seconds = None,
    batch: Batch = 1024,
    lr: Rate = 0.002,
    seed: Seed = 0,
    out: Out = Path("words-output"),
    resume: Resume = False,
    save_every: SaveEvery = 60.0,
    evaluate: Evaluate = 1 << 14,
    prompt: Prompt = "",
    generate: Generate = None,
    top_p: TopP = 0.9,
    json: Json = False,
) -> None:
    """Train a small language model on real text with any output layer. Report speed, memory and perplexity."""
    names = layers_named(layer)
    above_zero({"--epochs": epochs, "--seconds": seconds, "--lr": lr, "--save-every": save_every, "--top-p": top_p})
    if top_p > 1:
        raise WrongUseError(f"--top-p {top_p:g}: expected a number above 0 and at most 1")
    until = until_of(steps, epochs, seconds)
    settings = settings_of(model, context, dim=dim, batch=batch, lr=lr, seed=seed)
    ready(out, names, resume=resume)
    text = corpus.read(source or (), classes=vocab, tokens=tokens)
    vocabulary, wanted = text.vocabulary, generate if generate is not None else LONG if prompt else 0
    job = Job(
        settings, until, "", text.digest(), resume=resume, save_every=save_every, evaluated=evaluate, top_p=top_p,
        prompt=vocabulary.encoded(prompt), generate=wanted, without=[vocabulary.unknown, vocabulary.begin],
    )  # fmt: skip
    console = render.console()
    if not json:
        console.print(report.about(text.facts))
    found = {"machine": measure.machine(), "text": text.facts, "settings": asdict(settings), "until": asdict(until)}
    records: list[report.Record] = []
    try:
        for record in launch_worker.trained(job, names, text, out):
            records.append(record)
            report.write(out, {**found, "layers": records})
    finally:  # report the finished layers even if a later layer fails
        if records and not json:
            report.printed(console, records, out)
    if json:
        print(render.as_json({**found, "layers": records}))
    if not records[-1]["finished"]:
        raise KeyboardInterrupt


def ready(out: Path, names: list[str], *, resume: bool) -> None:
    """Check packages and the output folder. Reject existing checkpoints unless `resume` is true."""
    with refused_as(FailedRunError):
        require("training needs", "words", torch="torch", safetensors="safetensors", matplotlib="matplotlib")
    out.mkdir(parents=True, exist_ok=True)
    if not os.access(out, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "cannot be written to", str(out))
    there = [str(path) for name in names if (path := out / f"{name}.safetensors").exists()]
    if there and not resume:
        raise FailedRunError(f"{there[0]} already exists: use --resume to continue it, or another --out")


def until_of(steps: int | None, epochs: float | None, seconds: float | None) -> Until:
    """Return the limit at which training ends, from the options for steps, epochs and seconds."""
    if sum(value is not None for value in (steps, epochs, seconds)) > 1:
        raise WrongUseError("--steps, --epochs, --seconds: expected one of them, got several")
    return Until(steps, epochs, SECONDS if steps is None and epochs is None and seconds is None else seconds)


def settings_of(model: str, context: int | None, **others: Any) -> Settings:
    """Check the options of the model, and return them as `Settings`."""
    if model not in CONTEXTS:
        raise WrongUseError(f"--model {model}: expected {' or '.join(CONTEXTS)}")
    settings = Settings("", model, context=context or CONTEXTS[model], **others)
    if settings.batch % settings.length:
        raise WrongUseError(
            f"--batch {settings.batch}: expected a multiple of {settings.length}, the tokens that "
            f"a {model} model predicts at once"
        )
    if model == "attention" and settings.dim % HEADS:
        raise WrongUseError(f"--dim {settings.dim}: expected a multiple of {HEADS}, the heads of an attention model")
    return settings


def layers_named(words: list[str]) -> list[str]:
    """Return the names of ``--layer`` without repeats. `ALL` selects all layers."""
    for word in words:
        if word not in LAYERS and word != ALL:
            raise WrongUseError(f"--layer {word}: expected one of {', '.join((*LAYERS, ALL))}")
    return list(LAYERS) if ALL in words else list(dict.fromkeys(words))


def above_zero(numbers: dict[str, float | None]) -> None:
    """Raise WrongUseError for a value that is not a finite number above 0."""
    for name, value in numbers.items():
        if value is not None and not 0 < value < math.inf:
            raise WrongUseError(f"{name} {value:g}: expected a finite number above 0")
