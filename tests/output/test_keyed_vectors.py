"""Tests of KeyedVectors: nearest words and files, compared with those of gensim, and error messages."""

import numpy as np
import pytest

from softargmax.output import KeyedVectors, WordVectors

gensim = pytest.importorskip("gensim.models")

WORDS = [f"w{i}" for i in range(37)] + ["été", "a-b", "中文"]
VECTORS = np.random.default_rng(0).normal(0, [[10.0 ** (i % 5 - 2)] for i in range(40)], (40, 7)).astype(np.float32)
OURS = KeyedVectors(VECTORS, WORDS)
QUERIES = [
    (["w3"], []),
    (["w1", "w2"], ["w3"]),
    ([], ["w5"]),
    (["été", "中文"], []),
    (["w0", VECTORS[9]], ["a-b"]),
    ([VECTORS[4] + VECTORS[5]], []),
]


def theirs(path, **options):
    """Return the vectors that gensim reads from the file `path`."""
    return gensim.KeyedVectors.load_word2vec_format(str(path), **options)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("positive", "negative"), QUERIES)
def test_gensim_reads_our_files_and_finds_the_same_words(tmp_path, binary, positive, negative):
    OURS.save(tmp_path / "v", binary=binary)
    peer = theirs(tmp_path / "v", binary=binary)
    assert peer.index_to_key == WORDS
    assert peer.vectors.tobytes() == VECTORS.tobytes()
    found, expected = (x.most_similar(positive, negative, topn=40) for x in (OURS, peer))
    assert len(found) == len(expected)
    wide = dict(found)
    # gensim computes cosines in float32: a sum of 7 products, and two divisions by a length
    bound = 32 * np.finfo(np.float32).eps
    assert all(abs(wide[word] - cosine) <= bound for word, cosine in expected)
    ours, peers = ([word for word, _ in x] for x in (found, expected))
    for one, other in zip(ours, peers, strict=True):
        assert one == other or abs(wide[one] - wide[other]) <= bound
    assert [cosine for _, cosine in found] == sorted(wide.values(), reverse=True)


@pytest.mark.parametrize("binary", [False, True])
def test_gensims_files_are_read(tmp_path, binary):
    peer = gensim.KeyedVectors(7)
    peer.add_vectors(WORDS, VECTORS)
    peer.save_word2vec_format(str(tmp_path / "v"), binary=binary)
    found = KeyedVectors.load(tmp_path / "v", binary=binary)
    assert (found.words, found.vectors.tobytes()) == (WORDS, VECTORS.tobytes())
    assert type(WordVectors.load(tmp_path / "v", binary=binary)) is KeyedVectors


def test_word2vecs_own_files_are_read(tmp_path):
    (tmp_path / "t").write_bytes(b"2 3\r\nthe 1 -2.5 1e-3\r\nof 0 0 4\r\n\r\n")  # Windows line ends
    assert KeyedVectors.load(tmp_path / "t").words == ["the", "of"]
    (tmp_path / "t").write_bytes(b"2 3\nthe 1 -2.5 1e-3 \nof 0 0 4 \n")  # word2vec ends its lines with a space
    found = KeyedVectors.load(tmp_path / "t")
    assert found.words == ["the", "of"]
    assert found.vectors.tolist() == np.float32([[1, -2.5, 1e-3], [0, 0, 4]]).tolist()
    first, second = (row.tobytes() for row in found.vectors)
    (tmp_path / "b").write_bytes(b"2 3\nthe " + first + b"\nof " + second + b"\n")
    assert KeyedVectors.load(tmp_path / "b", binary=True).vectors.tobytes() == found.vectors.tobytes()


def test_similarity_is_the_cosine():
    wide = VECTORS.astype(np.float64)
    for first, second in (("w1", "w2"), ("été", 7), (3, 3)):
        a, b = (wide[WORDS.index(x) if isinstance(x, str) else x] for x in (first, second))
        cosine = a @ b / np.sqrt((a @ a) * (b @ b))
        assert abs(OURS.similarity(first, second) - cosine) <= 16 * np.finfo(np.float64).eps
    assert KeyedVectors([[0, 0], [1, 0]], ["zero", "one"]).similarity("zero", "one") == 0


def test_list_with_a_float_is_a_vector():
    found = KeyedVectors([[1, 0], [0.8, 0.6], [0, 1]], np.array(["king", "queen", "woman"]))
    assert repr(found.words) == "['king', 'queen', 'woman']"
    for vector in ([1.0, 0], [np.float32(1), np.float32(0)], [[1, 0]], np.array([1, 0])):
        assert [word for word, _ in found.most_similar(vector)] == ["king", "queen", "woman"]
    assert [word for word, _ in found.most_similar([1, 0])] == ["woman"]  # integers are word numbers, not a vector


def test_most_similar_excludes_its_words_despite_nan():
    found = KeyedVectors([[1, 0], [np.nan, 0], [0, 1]]).most_similar(0)
    assert [place for place, _ in found] == [2, 1]


def test_numbers_are_keys(tmp_path):
    bare = KeyedVectors(VECTORS)
    assert [(WORDS[place], cosine) for place, cosine in bare.most_similar(3)] == OURS.most_similar("w3")
    assert OURS.most_similar(np.int64(3), topn=2) == OURS.most_similar(["w3"], topn=2)
    assert OURS.most_similar(VECTORS[3].tolist(), topn=1)[0][0] == "w3"
    assert [x in bare for x in (3, 40, "w3", True, [3])] == [True, False, False, False, False]
    assert [x in OURS for x in (3, 40, "w3", "x")] == [True, False, True, False]  # numbers are also valid keys
    assert (list(OURS), list(bare)) == (WORDS, list(range(40)))
    bare.save(tmp_path / "v")
    assert KeyedVectors.load(tmp_path / "v").words == list(map(str, range(40)))
    with pytest.raises(KeyError, match=r"word: expected a number from 0 to 39 .there are no words."):
        bare["w3"]


SENTENCES = [["a", "b", "c", "b"], ["b", "a", "rare"], [], ["c", "b", "a", "c"]] * 30 + [["once", "a"]]


@pytest.mark.parametrize("options", [{}, {"min_count": 2}, {"window": 2, "samples": 3, "seed": 4}])
def test_words_from_sentences(options):
    model = WordVectors.of_sentences(SENTENCES, 4, **options)
    kept = {"a", "b", "c", "rare"} if "min_count" in options else {"a", "b", "c", "rare", "once"}
    assert set(model.words) == kept
    assert repr(model) == f"WordVectors({len(kept)} words, dim=4)"
    counts = [sum(line.count(word) for line in SENTENCES) for word in model.words]
    assert counts == sorted(counts, reverse=True)
    ids = [i for line in SENTENCES for i in (*(model.words.index(x) for x in line if x in kept), -1)]
    options.pop("min_count", 0)
    bare = WordVectors(counts, 4, **options)
    assert model.train(SENTENCES) == bare.train(ids)
    assert model.train([[], []]) == 0
    assert model.vectors.tobytes() == bare.vectors.tobytes()
    assert model["a"].tobytes() == bare[model.words.index("a")].tobytes()


def test_trained_words_of_one_kind_are_nearest(tmp_path):
    rng = np.random.default_rng(0)
    groups = [["cat", "dog", "cow"], ["red", "blue", "green"]]
    text = [rng.choice(groups[i % 2], 6).tolist() for i in range(2000)]
    model = WordVectors.of_sentences(text, 8, window=3, seed=1)
    for _ in range(3):
        model.train(text)
    for group in groups:
        assert {word for word, _ in model.most_similar(group[0], topn=2)} == {*group[1:]}
    model.save(tmp_path / "v", binary=True)
    assert [word for word, _ in theirs(tmp_path / "v", binary=True).most_similar("cat", topn=2)] == [
        word for word, _ in model.most_similar("cat", topn=2)
    ]


@pytest.mark.parametrize(
    ("error", "message", "made"),
    [
        (
            ValueError,
            r"vectors: expected shape \(K, D\) with K and D at least 1, got \(0, 3\)",
            lambda: KeyedVectors(np.empty((0, 3)), []),
        ),
        (
            ValueError,
            r"vectors: expected shape \(K, D\) with K and D at least 1, got \(3,\)",
            lambda: KeyedVectors([1.0, 2.0, 3.0]),
        ),
        (TypeError, "vectors: expected numbers, got dtype <U1", lambda: KeyedVectors([["a"]])),
        (ValueError, "words: expected 2, one per vector, got 1", lambda: KeyedVectors(np.ones((2, 2)), ["a"])),
        (
            ValueError,
            "words: expected each word once, got 'a' at 0 and 2",
            lambda: KeyedVectors(np.ones((3, 2)), ["a", "b", "a"]),
        ),
        (TypeError, "words: expected a list of strings, got 'ab'", lambda: KeyedVectors(np.ones((2, 2)), "ab")),
        (TypeError, r"words: expected a list of strings, got \[1, 2\]", lambda: KeyedVectors(np.ones((2, 2)), [1, 2])),
        (
            ValueError,
            "words: expected each word once, got 'a' at 0 and 1",
            lambda: WordVectors([1, 2], 3, words=["a", "a"]),
        ),
        (ValueError, "words: expected 2, one per vector, got 3", lambda: WordVectors([1, 2], 3, words=["a", "b", "c"])),
        (ValueError, "a word that occurs at least 9 times", lambda: WordVectors.of_sentences([["a"]], 3, min_count=9)),
        (
            TypeError,
            r"sentences: expected a list of lists of strings, got \['a'\]",
            lambda: WordVectors.of_sentences(["a"], 3),
        ),
        (
            TypeError,
            r"sentences: expected a list of lists of strings, got \[\]",
            lambda: WordVectors.of_sentences([], 3),
        ),
        (
            ValueError,
            "expected word numbers, because the model has no words",
            lambda: WordVectors([1, 2], 3).train([["a"]]),
        ),
        (KeyError, "expected one of the 40 words, got 'x'", lambda: OURS["x"]),
        (KeyError, "'word: expected a number from 0 to 39, got 40'", lambda: OURS.similarity("w1", 40)),
        (TypeError, "word: expected a word or its number, got 1.5", lambda: OURS[1.5]),
        (ValueError, "positive, negative: expected one word or more, got none", OURS.most_similar),
        (
            ValueError,
            r"positive, negative: expected vectors of shape \(7,\), got \(2,\)",
            lambda: OURS.most_similar([1.0, 2.0]),
        ),
        (
            TypeError,
            "positive, negative: expected a word, a vector or a list of these, got 1.5",
            lambda: OURS.most_similar(1.5),
        ),
        (
            TypeError,
            "positive, negative: expected numbers, got dtype <U2",
            lambda: OURS.most_similar(np.array(["w1", "w2"])),
        ),
        (TypeError, "words: expected a list of strings, got 5", lambda: KeyedVectors(np.ones((2, 2)), 5)),
        (TypeError, "has no argument rte; use rate", lambda: WordVectors([1, 2], 3).train([0, 1], rte=1)),
        (ValueError, "a word that occurs at least 1 times", lambda: WordVectors.of_sentences([[], []], 3)),
        (ValueError, "topn: expected 1 or more, got 0", lambda: OURS.most_similar("w1", topn=0)),
        (TypeError, "has no argument restrict_vocab", lambda: OURS.most_similar("w1", restrict_vocab=3)),
    ],
)
def test_errors(error, message, made):
    with pytest.raises(error, match=message):
        made()


@pytest.mark.parametrize("word", ["New York", "a\u00a0b", "", "a\n"])
def test_words_with_spaces_cannot_be_saved(tmp_path, word):
    for binary in (False, True):
        with pytest.raises(ValueError, match="without spaces"):
            KeyedVectors([[1.0], [2.0]], ["a", word]).save(tmp_path / "v", binary=binary)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("data", "binary", "message"),
    [
        (b"", False, "the numbers of words and of dimensions in the first line, got b''"),
        (b"the 1 2\n", False, "in the first line, got b'the 1 2'"),
        (b"0 3\n", False, "one word and one dimension, got 0 and 3"),
        (b"2 2\na 1 2\n", False, "expected 2 words of 2 dimensions, as its first line says, got fewer"),
        (b"2 2\naaaa 1.25 2.25\n", False, "expected 2 words, as its first line says, got 1"),
        (b"2 2\na 1 2\nb 1 2\nc 1 2\n", False, "expected 2 words, as its first line says, got 3"),
        (b"2 2\na 1 2\nb 1 2 3\n", False, "line 3: expected 2 dimensions, as the first line says, got 3"),
        (b"2 2\na 1 2\nb 1 x\n", False, "line 3: could not convert"),
        (b"2 2\na 1 2\na 3 4\n", False, "words: expected each word once, got 'a' at 0 and 1"),
        (b"1 2\n\xff 1 2\n", False, "line 2: expected UTF-8, got b'\\\\xff'"),
        (b"2 1\na \0\0\0\0\n", True, "expected 2 words of 1 dimensions, as its first line says, got fewer"),
        (b"2 1\naaaaaaa \0\0\0\0\n", True, "expected 2 words, as its first line says, got an incomplete word 2"),
        (b"1 1\na \0\0\0\0\nb \0\0\0\0", True, "expected 1 words of 1 dimensions, got 7 more bytes after them"),
        (
            b"9999999999999 9\na 1\n",
            True,
            "expected 9999999999999 words of 9 dimensions, as its first line says, got fewer",
        ),
    ],
)
def test_invalid_files(tmp_path, data, binary, message):
    (tmp_path / "v").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        KeyedVectors.load(tmp_path / "v", binary=binary)
