"""A small learnable text, and training jobs on it."""

import numpy as np

from softargmax.cli.words.launch_worker import Texts
from softargmax.cli.words.settings import Job, Settings, Until

WORDS = 23


def written(folder, *, files=60, length=400, seed=0):
    """Write files in which word i is followed by i + 1 or i + 2 (mod WORDS), and sometimes by a rare word."""
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    for place in range(files):
        steps = np.cumsum(rng.integers(1, 3, length)) % WORDS
        rare = rng.random(length) < 0.02
        words = [f"rare{rng.integers(40)}" if odd else f"w{step}" for step, odd in zip(steps, rare, strict=True)]
        (folder / f"text{place}.txt").write_text("\n".join(" ".join(words[i : i + 20]) for i in range(0, length, 20)))
    return folder


def texts(classes=60, length=6000, seed=0):
    """Return a text like that of `written`, as class numbers. Classes from WORDS on are rare."""
    rng = np.random.default_rng(seed)
    train, held_out = (np.cumsum(rng.integers(1, 3, n)) % WORDS for n in (length, length // 4))
    for part in (train, held_out):
        rare = rng.random(len(part)) < 0.02
        part[rare] = rng.integers(WORDS, classes, rare.sum())
    counts = np.bincount(train, minlength=classes)
    return Texts(train.astype(np.int32), held_out.astype(np.int32), counts)


def job(folder, layer="full", *, until=None, digest="text", resume=False, save_every=1e9, evaluated=512, **settings):
    """Return a short job."""
    options = {"dim": 16, "context": 4, "batch": 64, "lr": 0.01} | settings
    path = str(folder / f"{layer}.safetensors")
    until = until or Until(steps=40)
    return Job(Settings(layer, **options), until, path, digest, resume, save_every, evaluated)


TEXTS = texts()


def run(work, given=TEXTS):
    """Run a job to its end, and return the JobRun."""
    from softargmax.cli.words.torch_worker import JobRun

    done = JobRun(work, given)
    done.go(lambda: False)
    return done
