"""The command train-words: output, files, errors, and resuming after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.cli.words import TEXTS, job, written
from tests.cli.words import run as run_here

from softargmax.cli.words import launch_worker
from softargmax.cli.words.command import layers_named
from softargmax.cli.words.output_layers import LAYERS
from softargmax.cli.words.settings import Until
from softargmax.cli.words.torch_worker import JobRun
from softargmax.core.extras import install

SMALL = ("--steps", 20, "--dim", 16, "--batch", 64, "--evaluate", 256, "--out", "out")


@pytest.fixture
def text(tmp_path):
    return written(tmp_path / "text")


@pytest.mark.slow
def test_train_words(run, text, tmp_path):
    layers = ("--layer", "hierarchical", "--layer", "negative")
    done = run("train-words", text, *layers, *SMALL, "--prompt", "w1 w2", "--generate", 7)
    assert done.code == 0, done.err
    assert done.err == ""
    assert "held out" in done.out
    assert "Perplexity of 256 tokens" in done.out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    one, other = report["layers"]
    assert (one["layer"], other["layer"]) == ("hierarchical", "negative")
    assert f"{one['perplexity']:.2f}" in done.out
    assert 1 < one["perplexity"] < report["text"]["classes"]
    assert other["perplexity"] is None
    assert one["peak"] > one["memory_before"] > 1 << 20
    assert one["steps_per_second"] == pytest.approx(20 / one["seconds"])
    assert one["seconds_per_epoch"] == pytest.approx(one["seconds"] / 20 * (report["text"]["tokens"] // 64), rel=0.02)
    assert one["text"].startswith("w1 w2 ")
    assert one["text"] in done.out
    assert "text" not in other
    assert "<svg" in (tmp_path / "out" / "perplexity.svg").read_text()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("report.json", "perplexity.svg", "hierarchical.safetensors", "negative.safetensors")
    }  # fmt: skip


@pytest.mark.slow
def test_resumed_run_equals_an_uninterrupted_run(run, text, tmp_path):
    words = ("train-words", text, "--layer", "full", "--dim", 16, "--batch", 64, "--json", "--evaluate", 256)
    whole = run(*words, "--steps", 30, "--out", "whole").json()
    run(*words, "--steps", 12, "--out", "parts")
    refused = run(*words, "--steps", 30, "--out", "parts")
    assert refused.code == 1
    assert refused.err == (
        "softargmax: parts/full.safetensors already exists: use --resume to continue it, or another --out\n"
    )
    parts = run(*words, "--steps", 30, "--out", "parts", "--resume").json()
    assert parts["layers"][0]["resumed_at"] == 12
    assert parts["layers"][0]["perplexity"] == whole["layers"][0]["perplexity"]
    one, other = (load_file(tmp_path / name / "full.safetensors") for name in ("whole", "parts"))
    assert all((one[name] == other[name]).all() for name in one)
    other = run(*words, "--steps", 30, "--out", "parts", "--resume", "--seed", 1)
    assert other.code == 1
    assert other.err == "softargmax: parts/full.safetensors was trained with --seed 0, not 1\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--layer", "fully"], 2, "--layer fully: expected one of full, "),
        (["--model", "lstm"], 2, "--model lstm: expected window or attention"),
        (["--steps", "1", "--seconds", "2"], 2, "--steps, --epochs, --seconds: expected one of them"),
        (["--seconds", "nan"], 2, "--seconds nan: expected a finite number above 0"),
        (["--lr", "0"], 2, "--lr 0: expected a finite number above 0"),
        (["--top-p", "1.5"], 2, "--top-p 1.5: expected a number above 0 and at most 1"),
        (
            ["--batch", "100"],
            2,
            "--batch 100: expected a multiple of 16, the tokens that a window model",
        ),
        (["--model", "attention", "--dim", "6"], 2, "--dim 6: expected a multiple of 4"),
        (["--steps", "0"], 2, "--steps"),
        (["--dim", "many"], 2, "--dim"),
        (["--seed", "-1"], 2, "--seed"),
        (["--vocab", "100000"], 2, "--vocab 100000: expected a number from 3 to "),
        (["nothing-here"], 1, "nothing-here: no such file, or a folder without files"),
        (["empty.txt"], 1, "empty.txt: expected text, got none"),
        (["short.txt"], 1, "expected at least 24 tokens to train on for --context 8, got"),
        (["--out", "empty.txt"], 1, "empty.txt: File exists"),
        (["--out", "/proc/out"], 1, "/proc/out: No such file or directory"),
        (["--out", "empty.txt/below"], 1, "empty.txt/below: Not a directory"),
        (["--out", "broken", "--resume"], 1, "broken/full.safetensors is not a complete checkpoint: "),
        (
            ["--dim", "1000000000000"],
            1,
            "the model does not fit in memory; a smaller --dim, --vocab or --batch may help",
        ),
        (["--layer", "sampled", "--lr", "1e38"], 1, "a smaller --lr may help"),
    ],
)
def test_errors_are_one_line(run, text, tmp_path, words, code, message):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_text("one two three")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "full.safetensors").write_bytes(b"\0" * 100)
    source = [] if words[0].endswith(("here", ".txt")) else [text]
    out = [] if "--out" in words else ["--out", "out"]
    length = [] if {"--steps", "--seconds"} & set(words) else ["--steps", "50"]
    layer = [] if "--layer" in words else ["--layer", "full"]
    done = run("train-words", *source, *words, *out, *length, *layer)
    assert done.code == code
    assert done.err.startswith("softargmax: ")
    assert done.err.count("\n") == 1
    assert message in done.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_that_cannot_be_written_to(run, text, tmp_path):
    (tmp_path / "out").mkdir(mode=0o555)
    assert run("train-words", text, *SMALL).err == "softargmax: out: cannot be written to\n"


@pytest.mark.parametrize("package", ["torch", "safetensors", "matplotlib"])
def test_a_missing_package_is_named_before_any_work(run, text, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    done = run("train-words", text, *SMALL)
    assert done.code == 1
    message = f"training needs {package}, which is not installed: {install('words')}"
    assert done.err == f"softargmax: {message}\n"


@pytest.mark.slow
def test_single_text_file(run, tmp_path):
    (tmp_path / "one.txt").write_text("one two three four five six\n" * 100)
    done = run("train-words", "one.txt", "--layer", "full", *SMALL)
    assert done.code == 0
    assert " ".join(done.out.split()).startswith(
        "666 tokens of 1 files, 7 distinct; 9 classes, 0.0% of the tokens unknown"
    )
    assert "35 tokens held out, from the end of the text" in " ".join(done.out.split())


def test_layers_by_name():
    assert layers_named(["sampled", "full", "sampled"]) == ["sampled", "full"]
    assert layers_named(["full", "all"]) == list(LAYERS)


# --- kills -------------------------------------------------------------------------------------------------------


def waited_for(condition, seconds=100):
    """Call a function until it returns a true value, and return that value."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"the condition was still false after {seconds} s"
        time.sleep(0.02)
    return found


STUCK = """
import os, sys, time
from softargmax.cli.words import torch_worker
saved, sync = 0, os.fsync
def stuck(fd):
    global saved
    saved += not os.path.isdir(f"/proc/self/fd/{fd}")
    if saved == 3:  # the third checkpoint is written completely, but not yet renamed
        print("stuck", file=sys.stderr, flush=True)
        time.sleep(1000)
    sync(fd)
os.fsync = stuck
torch_worker.main()
"""


@pytest.mark.slow
def test_kill_during_a_write_keeps_the_old_checkpoint(tmp_path):
    whole = run_here(job(tmp_path, until=Until(steps=30)))
    other = tmp_path / "other"
    other.mkdir()
    work = job(other, until=Until(steps=30), save_every=1e-9)  # saves a checkpoint after every step
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", STUCK], **pipes) as process:
        launch_worker.send(process.stdin, work, TEXTS)
        assert process.stderr.readline() == b"stuck\n"
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert [path.name for path in other.iterdir()] == ["full.safetensors"]
    resumed = JobRun(job(other, until=Until(steps=30), resume=True), TEXTS)
    assert resumed.began == 2
    resumed.go(lambda: False)
    one, two = whole.training.tensors(), resumed.training.tensors()
    assert all((one[name] == two[name]).all() for name in one)


# A server process that imports all modules once, also those that the first optimiser imports. Each job runs in a forked
# child.
SERVING = """
import os, sys
import torch._dynamo
from softargmax.cli.words import torch_worker
for path in map(str.strip, sys.stdin):
    if not (child := os.fork()):
        os.dup2(os.open(path, os.O_RDONLY), 0)
        torch_worker.main()
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@pytest.mark.slow
def test_kills_at_any_time_leave_a_complete_checkpoint(tmp_path):
    began, folder, pipe = 0, tmp_path / "checkpoints", tmp_path / "pipe"
    folder.mkdir()
    os.mkfifo(pipe)
    work = job(folder, dim=512, until=Until(steps=10**6), save_every=1e-9, resume=True)
    path, pipes = Path(work.checkpoint), {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-u", "-c", SERVING], text=True, **pipes) as server:
        for pause in (0.0, 0.003, 0.011, 0.05, 0.123):
            before = began and path.stat().st_ino
            print(pipe, file=server.stdin, flush=True)
            child = int(server.stdout.readline())
            with pipe.open("wb") as to:
                launch_worker.send(to, work, TEXTS)
                waited_for(lambda before=before: path.exists() and path.stat().st_ino != before)
                time.sleep(pause)
                os.kill(child, signal.SIGKILL)
                assert int(server.stdout.readline()) == -signal.SIGKILL
            # A temporary file remains if the kill came after the file was complete and before it was renamed.
            for left in folder.glob(".*.part"):
                assert load_file(left)
                left.unlink()
            assert [file.name for file in folder.iterdir()] == ["full.safetensors"]
            found = JobRun(work, TEXTS).began
            assert found > began
            began = found


def child_of(process):
    """Return the ids of the children of a process."""
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def restore_sigint():
    """Restore the default handling of SIGINT. Background processes of a shell, and their children, ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_interrupt_or_kill_saves_the_current_state(tmp_path, text, sent):
    words = ["train-words", text, "--layer", "full", "--steps", 10**6, "--save-every", 0.01, *SMALL[2:]]
    line = [sys.executable, "-m", "softargmax.cli", *map(str, words)]
    path = tmp_path / "out" / "full.safetensors"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": restore_sigint}
    with subprocess.Popen(line, cwd=tmp_path, start_new_session=True, **pipes) as process:
        waited_for(path.exists)
        (child,) = child_of(process)
        if sent == signal.SIGINT:
            os.killpg(process.pid, sent)  # Ctrl-C sends SIGINT to the whole process group
        else:
            process.send_signal(sent)
        out, err = process.communicate(timeout=100)
    if sent == signal.SIGINT:
        assert process.returncode == 130
        assert err == b"softargmax: interrupted\n"
        assert b"full" in out
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert not report["layers"][0]["finished"]
    waited_for(lambda: not Path(f"/proc/{child}").exists())
    assert {path.name for path in path.parent.iterdir()} <= {"full.safetensors", "report.json", "perplexity.svg"}
    assert load_file(path)


@pytest.mark.slow
def test_interrupt_before_training_begins(tmp_path, text):
    line = [sys.executable, "-m", "softargmax.cli", "train-words", str(text), *map(str, SMALL)]
    options = {"cwd": tmp_path, "start_new_session": True, "preexec_fn": restore_sigint}
    with subprocess.Popen(line, stderr=subprocess.PIPE, **options) as process:
        waited_for(lambda: child_of(process))
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert err == b"softargmax: interrupted\n"


@pytest.mark.slow
def test_killed_training_process_is_reported(run, text, monkeypatch):
    monkeypatch.setattr(launch_worker, "send", lambda pipe, *_: pipe.close())
    done = run("train-words", text, "--layer", "full", *SMALL)
    assert done.code == 1
    assert done.err == "softargmax: the process of layer full ended with code 1 and no results\n"
