"""Train layers in separate processes, one after the other, so that peak memory is measured for each layer."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from softargmax.cli.errors import FailedRunError
from softargmax.cli.words.settings import Job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import BufferedReader
    from pathlib import Path

    from softargmax.cli.words.corpus import Corpus
    from softargmax.cli.words.vocabulary import Ints

KINDS = (np.int32, np.int32, np.int64)


class Texts(NamedTuple):
    """Training and held-out classes (int32), and the counts (int64) of the K classes."""

    train: Ints
    held_out: Ints
    counts: Ints


def send(pipe: IO[bytes], job: Job, texts: Texts) -> None:
    """Write a job to a pipe: a line of JSON, then the bytes of the arrays."""
    message = {"job": job.as_dict(), "sizes": [len(part) for part in texts]}
    pipe.write(json.dumps(message).encode() + b"\n")
    pipe.writelines(np.ascontiguousarray(part, kind).data for part, kind in zip(texts, KINDS, strict=True))
    pipe.flush()


def received(pipe: BufferedReader) -> tuple[Job, Texts]:
    """Read a job that `send` wrote. Raise EOFError if it is incomplete."""
    message = json.loads(pipe.readline() or b'{"sizes": []}')
    parts = [np.empty(size, kind) for size, kind in zip(message["sizes"], KINDS, strict=False)]
    if not parts or any(pipe.readinto(part.data) < part.nbytes for part in parts):
        raise EOFError
    return Job.of(message["job"]), Texts(*parts)


def trained(job: Job, names: Sequence[str], text: Corpus, folder: Path) -> Iterator[dict[str, Any]]:
    """Train the layers in order, with checkpoints in `folder`, and yield their results. Stop after an interrupt."""
    texts = Texts(text.train, text.held_out, text.vocabulary.counts)
    for name in names:
        settings, path = replace(job.settings, layer=name), folder / f"{name}.safetensors"
        record = train_in_subprocess(replace(job, settings=settings, checkpoint=str(path)), texts)
        if generated := record.pop("generated"):
            record["text"] = text.vocabulary.text([*job.prompt, *generated])
        yield record
        if not record["finished"]:
            break


def train_in_subprocess(job: Job, texts: Texts) -> dict[str, Any]:
    """Train a layer in a separate process and return the results of `JobRun.record` (torch_worker.py).

    An interrupt closes the pipe to the separate process. That process then saves its state and sends the results.
    """
    layer, words = job.settings.layer, [sys.executable, "-m", "softargmax.cli.words.torch_worker"]
    # The child starts a new session, so that only the parent receives the terminal's signals.
    with subprocess.Popen(  # noqa: S603 our own module
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        to, back = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        try:
            with suppress(BrokenPipeError):
                send(to, job, texts)
            message = back.read()
        except KeyboardInterrupt:
            with suppress(BrokenPipeError):
                to.close()
            message = back.read()
            if not message:
                raise
    if not message:
        raise FailedRunError(f"the process of layer {layer} ended with code {process.returncode} and no results")
    record: dict[str, Any] = json.loads(message)
    if "error" in record:
        raise FailedRunError(record["error"])
    return record
