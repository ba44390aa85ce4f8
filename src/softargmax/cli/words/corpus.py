"""Read text files: find them, split them into training and held-out text, and number the tokens (the classes)."""

from __future__ import annotations

import glob
import hashlib
import os
import sys
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softargmax.cli.errors import FailedRunError
from softargmax.cli.words.vocabulary import BEGIN, TOKEN, Numbering, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from softargmax.cli.words.vocabulary import Ints

HELD_OUT = 20  # one file in 20 is held out, or one twentieth of the text of a single file
PIECE = 1 << 22  # number of characters read at once, rounded up to whole lines
BEGUN = 1  # the token number of BEGIN
APART = ("site-packages", "dist-packages", "__pycache__")


class Corpus(NamedTuple):
    """Training and held-out text as classes (int32). `facts` describe the text for the report."""

    vocabulary: Vocabulary
    train: Ints
    held_out: Ints
    facts: dict[str, Any]

    def digest(self) -> str:
        """Return a hash of the vocabulary's words and counts, and of the training and held-out text."""
        found = hashlib.blake2b("\0".join(self.vocabulary.words).encode(), digest_size=12)
        for part in (self.vocabulary.counts, self.train, self.held_out):
            found.update(np.ascontiguousarray(part).data)
        return found.hexdigest()


class Source(NamedTuple):
    """A file, and its place in the order of reading.

    The place is a hash of the file's path relative to the requested folder.
    """

    place: int
    name: str
    path: Path

    @classmethod
    def of(cls, path: Path, name: str) -> Source:
        """Return the Source of a file, with a hash of `name` as its place."""
        spelled = name.replace(os.sep, "/").encode("utf-8", "surrogateescape")
        return cls(int.from_bytes(hashlib.blake2b(spelled, digest_size=8).digest()), name, path)

    @property
    def held_out(self) -> bool:
        """True if the file is held out, because its hash is in the first twentieth of all hash values."""
        return self.place * HELD_OUT < 1 << 64


def read(words: Sequence[str] = (), *, classes: int | None = None, tokens: int | None = None) -> Corpus:
    """Read files, folders and patterns (the standard library by default), and number their tokens.

    Files are read in the order of a hash of their names. A file is held out if its hash is in the first twentieth of
    all hash values, so every machine holds out the same files. The order of hashes is as good as random, so the first
    `tokens` tokens are a fair sample of the training files. If the hashes would hold out no file or every file, for
    example because there is only one file, the last twentieth of the text is held out instead.
    """
    began = time.perf_counter()
    sources = sorted({source.path.resolve(): source for source in sources_of(words)}.values())
    numbering = Numbering()
    train = numbered([source.path for source in sources if not source.held_out], numbering, tokens)
    held_out = numbered([source.path for source in sources if source.held_out], numbering)
    files = [int(np.count_nonzero(side == BEGUN)) for side in (train, held_out)]
    if not any(files):
        raise FailedRunError(f"{' '.join(words) or stdlib()}: expected text, got none")
    if not all(files):
        whole = np.concatenate([train, held_out])
        train, held_out = np.split(whole, [len(whole) - len(whole) // HELD_OUT])
        train = train[:tokens]
    vocabulary, class_of = Vocabulary.of(numbering, train, classes)
    facts = {
        "files": files[0],
        "held_out_files": files[1],
        "tokens": len(train),
        "held_out_tokens": len(held_out),
        "distinct": int(np.count_nonzero(np.bincount(train)[BEGUN + 1 :])),
        "classes": len(vocabulary.words),
        "unknown": float(vocabulary.counts[vocabulary.unknown] / len(train)),
        "seconds": time.perf_counter() - began,
    }
    return Corpus(vocabulary, class_of[train], class_of[held_out], facts)


def numbered(paths: Iterable[Path], numbering: Numbering, most: int | None = None) -> Ints:
    """Return the token numbers of the files, up to `most` numbers."""
    found = [np.empty(0, np.int32)]
    room = sys.maxsize if most is None else most
    for tokens in (tokens for path in paths for tokens in tokens_in(path)):
        if room <= 0:
            break
        found.append(numbering.of(tokens)[:room])
        room -= len(found[-1])
    return np.concatenate(found)


def tokens_in(path: Path) -> Iterator[list[str]]:
    """Yield lists of the tokens of a file, `BEGIN` first. Stop at a NUL character, which marks a binary file."""
    before = [BEGIN]
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        while piece := "".join(file.readlines(PIECE)):
            if "\0" in piece:
                return
            if tokens := TOKEN.findall(piece):
                yield before + tokens
                before = []


def stdlib() -> Path:
    """Return the folder of Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def sources_of(words: Sequence[str]) -> Iterator[Source]:
    """Yield the files of `words` (files, folders or patterns). By default, yield the standard library's .py files."""
    if not words:
        yield from (source for source in below(stdlib()) if source.path.suffix == ".py")
    for word in words:
        paths = [Path(word)] if Path(word).exists() else [Path(found) for found in glob.glob(word, recursive=True)]  # noqa: PTH207 any pattern
        found = [
            source for path in paths for source in (below(path) if path.is_dir() else [Source.of(path, path.name)])
        ]
        if not found:
            raise FailedRunError(f"{word}: no such file, or a folder without files")
        for source in found:
            if not source.path.is_file():
                raise FailedRunError(f"{source.path}: expected a text file, got something that is not a regular file")
        yield from found


def below(folder: Path) -> Iterator[Source]:
    """Yield the regular files below a folder, except hidden files, site-packages and caches."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in APART and not name.startswith(".")]
        paths = (Path(place, name) for name in names if not name.startswith("."))
        yield from (Source.of(path, str(path.relative_to(folder))) for path in paths if path.is_file())
