"""The process that trains one layer: it reads a job from standard input and writes the results to standard output.

`launch_worker.py` starts this process. When standard input is closed, for example because the parent process is
killed, the training saves its state and ends.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from softargmax.cli.app import RUN_ERRORS, sentence
from softargmax.cli.errors import FailedRunError
from softargmax.cli.file_conversion import peak_memory
from softargmax.cli.words import launch_worker, torch_checkpoint
from softargmax.cli.words.progress import bar
from softargmax.cli.words.torch_text import continued
from softargmax.cli.words.torch_training import HeldOut, Training

if TYPE_CHECKING:
    from collections.abc import Callable

    from softargmax.cli.words.launch_worker import Texts
    from softargmax.cli.words.settings import Job

# The perplexity is first measured after FIRST seconds of training, then each time the seconds have grown by the
# factor GROWTH.
FIRST, GROWTH = 1.0, 1.4


class JobRun:
    """The training of one layer, with its perplexity curve and its checkpoints."""

    def __init__(self, job: Job, texts: Texts) -> None:
        self.job, self.texts, self.memory_before = job, texts, peak_memory()
        self.training = Training(job.settings, texts.train, texts.counts)
        self.held_out = HeldOut(job.settings, texts.held_out, job.evaluated)
        self.kept: dict[str, Any] = {"curve": [], "peak": 0}
        if job.resume and Path(job.checkpoint).exists():
            self.kept = torch_checkpoint.load(job.checkpoint, self.training, job.digest)
        self.began, self.stopped = self.training.step, False

    def go(self, stop: Callable[[], bool]) -> None:
        """Train until the job is done or `stop` returns True."""
        training, saved = self.training, time.perf_counter()
        with bar(self.job.settings.layer) as tell:
            while not self.stopped and self.share() < 1:
                training.advance()
                tell(self.share(), f"step {training.step}  loss {training.loss:.2f}  {self.perplexity_text()}")
                if training.seconds >= self.due():
                    self.measure()
                if time.perf_counter() - saved >= self.job.save_every:
                    self.save()
                    saved = time.perf_counter()
                self.stopped = stop()
        if training.step > self.began:
            if not self.stopped:
                self.measure()
            self.save()

    def share(self) -> float:
        """Return the fraction of the job that is done."""
        return self.job.until.share(self.training.step, self.training.per_epoch, self.training.seconds)

    def due(self) -> float:
        """Return the seconds of training after which the perplexity is measured next."""
        return GROWTH * self.kept["curve"][-1]["seconds"] if self.kept["curve"] else FIRST

    def measure(self) -> None:
        """Measure the perplexity and add it to the curve, unless the curve has a point for this step."""
        curve, training = self.kept["curve"], self.training
        if not curve or curve[-1]["step"] < training.step:
            perplexity = self.held_out.perplexity(training.model)
            curve.append({"step": training.step, "seconds": training.seconds, "perplexity": perplexity})

    @property
    def perplexity(self) -> float | None:
        """The last measured perplexity, or None if there is none."""
        return self.kept["curve"][-1]["perplexity"] if self.kept["curve"] else None

    def perplexity_text(self) -> str:
        """Return the perplexity as text for the progress bar."""
        return "" if self.perplexity is None else f"perplexity {self.perplexity:.1f}"

    def save(self) -> None:
        """Write a checkpoint."""
        self.kept["peak"] = max(self.kept["peak"], peak_memory())
        torch_checkpoint.save(self.job.checkpoint, self.training, self.job.digest, self.kept)

    def generated(self) -> list[int]:
        """Return the continuation of the prompt.

        The list is empty if no text is requested, the training was stopped, or the layer defines no p.
        """
        job = self.job
        if not job.generate or self.stopped or self.perplexity is None:
            return []
        return continued(
            self.training.model, job.prompt, job.generate, job.top_p, job.settings.seed, without=job.without
        )

    def record(self) -> dict[str, Any]:
        """Return the results of the training, for the report."""
        training = self.training
        return {
            "layer": self.job.settings.layer,
            "finished": not self.stopped,
            "steps": training.step,
            "resumed_at": self.began,
            "seconds": training.seconds,
            "steps_per_second": training.step / training.seconds,
            "seconds_per_epoch": training.per_epoch * training.seconds / training.step,
            "tokens_per_step": training.tokens_per_step,
            "perplexity": self.perplexity,
            "unigram": self.held_out.unigram(self.texts.counts),
            "held_out_tokens": self.held_out.tokens,
            "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
            "memory_before": self.memory_before,
            "threads": torch.get_num_threads(),
            "generated": self.generated(),
            **self.kept,
        }


def main() -> None:
    """Read a job, run it, and print its results or its error as JSON."""
    with os.fdopen(sys.stdin.fileno(), "rb", closefd=False) as pipe:
        try:
            run = JobRun(*launch_worker.received(pipe))
            run.go(lambda: bool(select.select([pipe], [], [], 0)[0]))
            record = run.record()
        except EOFError:
            sys.exit(1)
        except (FailedRunError, *RUN_ERRORS) as error:
            record = {"error": sentence(error)}
        except RuntimeError as error:  # torch raises RuntimeError when memory runs out
            if "allocate memory" not in str(error):
                raise
            record = {"error": "the model does not fit in memory; a smaller --dim, --vocab or --batch may help"}
    print(json.dumps(record))


if __name__ == "__main__":
    main()
