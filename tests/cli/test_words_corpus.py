"""Text as classes: tokens, held-out files and vocabularies equal those of simple implementations."""

import os
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.words import written

from softargmax.cli.errors import FailedRunError, WrongUseError
from softargmax.cli.words import corpus
from softargmax.cli.words.vocabulary import BEGIN, COMMONEST, TOKEN, UNKNOWN, Numbering, Vocabulary


@given(st.text())
def test_tokens_cover_all_characters_but_spaces(text):
    tokens = TOKEN.findall(text)
    assert "".join(tokens) == "".join(letter for letter in text if letter == "\n" or not letter.isspace())
    assert all(len(token) == 1 or token.replace("_", "a").isalnum() for token in tokens)


def test_tokens_of_code():
    assert TOKEN.findall("def f_1(x2):\n\treturn 0x1F+3.14 # naïve\n") == [
        *("def", "f_1", "(", "x2", ")", ":", "\n", "return", "0", "x1F", "+", "3", ".", "14", "#", "naïve", "\n")
    ]  # fmt: skip


def by_definition(files, classes):
    """Return the vocabulary and the classes of files, computed in a few lines with a Counter.

    The vocabulary is sorted by decreasing count, then by first occurrence.
    """
    tokens = [[BEGIN, *TOKEN.findall(text)] for text in files]
    counts = Counter(token for file in tokens for token in file if token != BEGIN)
    kept = dict(counts.most_common(classes - 2))
    rest = sum(counts.values()) - sum(kept.values())
    ordered = sorted({UNKNOWN: rest, BEGIN: len(files), **kept}.items(), key=lambda item: -item[1])
    place = {word: i for i, (word, _) in enumerate(ordered)}
    return ordered, [place.get(token, place[UNKNOWN]) for file in tokens for token in file]


@given(st.lists(st.text("abc de(\n", min_size=1), min_size=1, max_size=4), st.data())
def test_vocabulary_equals_counting(files, data):
    numbering = Numbering()
    numbers = np.concatenate([numbering.of([BEGIN, *TOKEN.findall(text)]) for text in files])
    distinct = len(set(numbers.tolist())) - 1
    if not distinct:
        return
    classes = data.draw(st.integers(3, distinct + 2))
    vocabulary, class_of = Vocabulary.of(numbering, numbers, classes)
    ordered, encoded = by_definition(files, classes)
    assert list(zip(vocabulary.words, vocabulary.counts.tolist(), strict=True)) == ordered
    assert class_of[numbers].tolist() == encoded
    assert vocabulary.encoded(files[0]) == encoded[: len(TOKEN.findall(files[0])) + 1]


def test_by_default_tokens_that_occur_twice_are_classes(monkeypatch):
    numbering = Numbering()
    numbers = numbering.of([BEGIN, *"aabbbcd"])
    assert Vocabulary.of(numbering, numbers, None)[0].words == ["b", UNKNOWN, "a", BEGIN]
    monkeypatch.setattr("softargmax.cli.words.vocabulary.COMMONEST", 3)
    assert Vocabulary.of(numbering, numbers, None)[0].words == [UNKNOWN, "b", BEGIN]


@pytest.mark.parametrize("classes", [2, 7, -1])
def test_a_vocabulary_larger_than_the_tokens(classes):
    numbering = Numbering()
    numbers = numbering.of([BEGIN, *"aabc"])
    with pytest.raises(WrongUseError, match=f"--vocab {classes}: expected a number from 3 to 5"):
        Vocabulary.of(numbering, numbers, classes)


def test_files_are_held_out_by_their_names(tmp_path):
    folder = written(tmp_path / "a", files=200, length=20)
    found = corpus.read([str(folder)])
    assert found.facts["files"] + found.facts["held_out_files"] == 200
    assert 2 <= found.facts["held_out_files"] <= 25
    held = {source.name for source in corpus.sources_of([str(folder)]) if source.held_out}
    # After half of the files are deleted, each remaining file is in the same set (training or held out) as before.
    for path in list(folder.iterdir())[::2]:
        path.unlink()
    folder.rename(tmp_path / "b")
    left = {source.name: source.held_out for source in corpus.sources_of([str(tmp_path / "b")])}
    assert len(left) == 100
    assert all(out == (name in held) for name, out in left.items())


def test_corpus_depends_only_on_the_set_of_files(tmp_path):
    folder = written(tmp_path / "a")
    words = [str(folder), str(folder / "text1.txt")], [str(folder / "text1.txt"), str(folder / "*.txt"), str(folder)]
    one, other = (corpus.read(given) for given in words)
    assert one.digest() == other.digest()
    assert one.facts["files"] + one.facts["held_out_files"] == 60
    (folder / "text1.txt").write_text("w1 w3")
    assert corpus.read([str(folder)]).digest() != one.digest()
    assert corpus.read([str(folder)], classes=5).digest() != corpus.read([str(folder)]).digest()


def test_limited_tokens_are_a_sample_of_all_files(tmp_path):
    folder = written(tmp_path / "a")
    whole, some = corpus.read([str(folder)], classes=10), corpus.read([str(folder)], classes=10, tokens=1000)
    assert len(some.train) == 1000
    assert len(some.held_out) == len(whole.held_out)
    names = [source.name for source in sorted(corpus.sources_of([str(folder)]))]
    assert names != sorted(names)


def test_single_file_is_split(tmp_path):
    for name in ("a.txt", "b.txt"):  # in a folder, both files would be training files, by the hashes of their names
        (tmp_path / name).write_text("one two three four five six seven eight nine ten " * 100)
        found = corpus.read([str(tmp_path / name)])
        assert (len(found.train), len(found.held_out)) == (951, 50)
        assert len(corpus.read([str(tmp_path / name)], tokens=100).train) <= 100
        words = found.vocabulary.words
        assert [words[i] for i in found.held_out[-3:]] == ["eight", "nine", "ten"]


def test_unusual_files(tmp_path):
    odd = {
        "latin.txt": "caf\xe9 au lait".encode("latin-1"),
        "mark.txt": b"\xef\xbb\xbfone",
        "windows.txt": b"two\r\nthree",
        "mac.txt": b"four\rfive",
        "empty.txt": b"",
        "spaces.txt": b" \t ",
        "binary.bin": b"six\0seven",
        ".hidden": b"eight",
        "no-newline.txt": b"nine",
    }
    for name, data in odd.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    tokens = {
        source.name: [t for part in corpus.tokens_in(source.path) for t in part]
        for source in corpus.sources_of([str(tmp_path)])
    }
    assert tokens == {
        "latin.txt": [BEGIN, "caf", "\ufffd", "au", "lait"],
        "mark.txt": [BEGIN, "one"],
        "windows.txt": [BEGIN, "two", "\n", "three"],
        "mac.txt": [BEGIN, "four", "\n", "five"],
        "empty.txt": [],
        "spaces.txt": [],
        "binary.bin": [],
        "no-newline.txt": [BEGIN, "nine"],
    }


def test_large_files_are_read_by_lines(tmp_path, monkeypatch):
    folder = written(tmp_path / "a", files=3)
    whole = corpus.read([str(folder)]).digest()
    monkeypatch.setattr(corpus, "PIECE", 50)
    assert corpus.read([str(folder)]).digest() == whole
    assert len(list(corpus.tokens_in(folder / "text0.txt"))) > 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing-here"], "nothing-here: no such file, or a folder without files"),
        (["*.none"], "no such file, or a folder without files"),
        (["folder"], "folder: no such file, or a folder without files"),
        (["empty"], "empty: expected text, got none"),
        (["pipe"], "pipe: expected a text file"),
    ],
)
def test_invalid_texts(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FailedRunError, match=message.replace("*", r"\*")):
        corpus.read(words)


def round_trip(text):
    """Return the text that a vocabulary writes for the classes of `text`."""
    vocabulary = Vocabulary([*dict.fromkeys([UNKNOWN, BEGIN, *TOKEN.findall(text)])], np.empty(0))
    return vocabulary.text(vocabulary.encoded(text))


def test_classes_are_written_as_code():
    code = "def f(x, y):\n\nreturn [x.z(1), {y: - 1}]"
    assert round_trip(code) == code


@given(st.text())
def test_written_text_has_the_same_tokens(text):
    assert TOKEN.findall(round_trip(text)) == TOKEN.findall(text)


@pytest.mark.slow
def test_the_standard_library_is_large_enough():
    found = corpus.read()
    assert found.facts["distinct"] > 30_000
    assert found.facts["classes"] == min(COMMONEST, found.facts["classes"])
    assert found.facts["tokens"] > 1_000_000
    assert 0.02 < found.facts["held_out_files"] / found.facts["files"] < 0.09
    assert found.vocabulary.words[0] == "\n"
    assert found.facts["seconds"] < 60
