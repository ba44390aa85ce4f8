"""Time the training of word vectors against gensim's word2vec: skip-gram with negative sampling or a Huffman tree.

    python -m bench.word2vec                all cases, about 10 minutes on 2 cores; writes bench/results/word2vec.json
    python -m bench.word2vec negative       only the cases whose names contain these words; writes nothing

The text is the source of Python's standard library, which `softargmax train-words` also uses. It consists of the first
1,000,000 tokens, without words that occur less than 5 times. Vectors have 100 numbers. Windows are 5 words, and each
pair of words has 5 noise words. Frequent words are subsampled with threshold 1e-3. Each side trains one epoch, with 2
threads or workers. "softargmax" is `softargmax.output.WordVectors`. "softargmax" and gensim use rates that fall from
0.025 to 0.0001. "our modules" is an `Embedding` and a layer of `softargmax.nn`, trained with SparseAdam at a rate of
0.002.

Two numbers measure what a side has learned after one epoch. The first is the mean loss of its vectors on held-out
files. The second is the share of the 10 nearest neighbours of 500 frequent words that gensim also finds. A run of
gensim with another seed shows how much agreement to expect. The exit code is 1 if gensim is faster, or if its loss is
lower by more than 2%.
"""

from __future__ import annotations

import sys
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from bench.promises import Promise, main
from gensim.models import Word2Vec

from softargmax import nn
from softargmax.cli.words.corpus import read
from softargmax.output import Tree, Unigram, WordVectors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKENS, HELD_OUT, DIM, WINDOW, SAMPLES, THRESHOLD, LEAST = 1_000_000, 60_000, 100, 5, 5, 1e-3, 5
FIRST_RATE, LAST_RATE = 0.025, 1e-4
BATCH, ADAM_RATE = 4096, 2e-3
SLACK = 1.02
Vectors = tuple[np.ndarray, np.ndarray]


class Text:
    """The text as numbers of words: 0 is the most frequent word, and -1 marks the start of a file."""

    def __init__(self) -> None:
        corpus = read()
        vocabulary = corpus.vocabulary
        number = np.arange(len(vocabulary.words))
        number[vocabulary.unknown], number[vocabulary.begin] = -2, -1
        text = number[corpus.train]
        text = text[text > -2][:TOKENS]
        counts = np.bincount(text[text >= 0], minlength=len(number))
        kept = np.flatnonzero(counts >= LEAST)
        renumbered = np.full(len(number) + 2, -2)
        renumbered[-1], renumbered[kept] = -1, np.arange(len(kept))
        self.counts = counts[kept]
        self.tokens, self.held_out = (
            found[found > -2] for found in (renumbered[text], renumbered[number[corpus.held_out]])
        )
        self.held_out = self.held_out[:HELD_OUT]

    @cached_property
    def tree(self) -> Tree:
        """Return the Huffman tree of the counts."""
        return Tree.huffman(self.counts)

    @cached_property
    def sentences(self) -> list[list[str]]:
        """Return sentences of at most 10,000 words, because gensim would cut longer sentences."""
        files = [part[part >= 0] for part in np.split(self.tokens, np.flatnonzero(self.tokens < 0))]
        return [[str(word) for word in file[at : at + 10_000]] for file in files for at in range(0, len(file), 10_000)]


@cache
def text() -> Text:
    """Return the text, which is read only once."""
    return Text()


def pairs(tokens: np.ndarray, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of a word and a word in its window, as two arrays. `windows` has each token's window size."""
    sentence = np.cumsum(tokens < 0)
    found = []
    for far in range(1, WINDOW + 1):
        near = (sentence[far:] == sentence[:-far]) & (tokens[far:] >= 0) & (tokens[:-far] >= 0)
        for words, beside, window in (
            (tokens[far:], tokens[:-far], windows[far:]),
            (tokens[:-far], tokens[far:], windows[:-far]),
        ):
            chosen = near & (window >= far)
            found.append((words[chosen], beside[chosen]))
    words, beside = (np.concatenate(part) for part in zip(*found, strict=True))
    return words, beside


# --- sides ------------------------------------------------------------------------------------------------------------


def ours(*, on_tree: bool) -> tuple[Callable[[], object], Callable[[], Vectors]]:
    """Return two functions: one trains `WordVectors` for an epoch, the other returns its vectors and weight."""
    tree = text().tree if on_tree else None
    model = WordVectors(text().counts, DIM, tree=tree, window=WINDOW, samples=SAMPLES, threshold=THRESHOLD)
    return lambda: model.train(text().tokens, rate=FIRST_RATE, last_rate=LAST_RATE), lambda: (
        model.vectors,
        model.weight,
    )


def modules(*, on_tree: bool) -> tuple[Callable[[], object], Callable[[], Vectors]]:
    """Return two functions: one trains an embedding and a layer for an epoch, the other returns their weights."""
    classes = len(text().counts)
    embedding = torch.nn.Embedding(classes, DIM, sparse=True)
    torch.nn.init.uniform_(embedding.weight, -0.5 / DIM, 0.5 / DIM)
    options: Any = {"bias": False, "sparse": True}
    layer: Any = nn.HierarchicalSoftmax(DIM, text().tree, **options) if on_tree else None
    layer = layer or nn.NegativeSampling(DIM, Unigram(text().counts), samples=SAMPLES, **options)
    torch.nn.init.zeros_(layer.weight)
    optimiser = torch.optim.SparseAdam([embedding.weight, layer.weight], ADAM_RATE)
    share = THRESHOLD * text().counts.sum() / text().counts
    stay = np.append(np.minimum(1, np.sqrt(share) + share), 1.0)
    rng = np.random.default_rng(0)

    def epoch() -> None:
        for piece in np.array_split(text().tokens, max(1, TOKENS // (1 << 16))):
            kept = piece[rng.random(len(piece)) < stay[piece]]
            words, beside = pairs(kept, rng.integers(1, WINDOW + 1, len(kept)))
            order = rng.permutation(len(words))
            for start in range(0, len(words), BATCH):
                chosen = order[start : start + BATCH]
                optimiser.zero_grad()
                layer(embedding(torch.from_numpy(words[chosen])), torch.from_numpy(beside[chosen])).backward()
                optimiser.step()

    return epoch, lambda: (embedding.weight.detach().numpy(), layer.weight.detach().numpy())


def gensims(*, on_tree: bool, seed: int = 1) -> tuple[Callable[[], object], Callable[[], Vectors], Any]:
    """Return a function that trains gensim for an epoch, one that returns its weights, and the paths of its tree."""
    model = Word2Vec(
        vector_size=DIM, window=WINDOW, sample=THRESHOLD, min_count=1, sg=1, workers=2, seed=seed, epochs=1,
        hs=int(on_tree), negative=0 if on_tree else SAMPLES, alpha=FIRST_RATE, min_alpha=LAST_RATE,
    )  # fmt: skip
    model.build_vocab(text().sentences)
    words = [str(word) for word in range(len(text().counts))]
    place = [model.wv.key_to_index[word] for word in words]
    paths = None
    if on_tree:
        codes, points = ([model.wv.get_vecattr(word, name) for word in words] for name in ("code", "point"))
        offsets = np.cumsum([0, *map(len, codes)])
        paths = offsets, np.concatenate(points).astype(np.int64), 1 - 2 * np.concatenate(codes).astype(np.int64)
    return (
        lambda: model.train(text().sentences, total_examples=model.corpus_count, epochs=1),
        lambda: (model.wv.vectors[place], model.syn1 if on_tree else model.syn1neg[place]),
        paths,
    )


# --- quality ----------------------------------------------------------------------------------------------------------


def held_out_loss(found: Vectors, paths: Any) -> float:
    """Return the mean loss of the held-out pairs of words, with noise words or along tree paths."""
    vectors, weight = (torch.from_numpy(np.ascontiguousarray(x)) for x in found)
    words, beside = pairs(text().held_out, np.full(len(text().held_out), 2))
    if paths is None:
        noise = Unigram(text().counts).draw(SAMPLES * len(words), seed=99).index.reshape(-1, SAMPLES)
        nodes, signs = np.column_stack([beside, noise]), np.array([1] + [-1] * SAMPLES)
        counts, signs = np.full(len(words), 1 + SAMPLES), np.tile(signs, len(words))
    else:
        offsets, path_nodes, path_signs = paths
        counts = offsets[beside + 1] - offsets[beside]
        place = np.arange(counts.sum()) + np.repeat(offsets[beside] - np.cumsum(counts) + counts, counts)
        nodes, signs = path_nodes[place], path_signs[place]
    rows, nodes, total = torch.from_numpy(np.repeat(words, counts)), torch.from_numpy(nodes.reshape(-1)).long(), 0.0
    for part in torch.arange(len(rows)).split(1 << 18):
        scores = (vectors[rows[part]] * weight[nodes[part]]).sum(1) * torch.from_numpy(signs)[part]
        total -= float(torch.nn.functional.logsigmoid(scores).double().sum())
    return total / len(words)


def neighbours(vectors: np.ndarray) -> np.ndarray:
    """Return the 10 nearest words of each of 500 words: the 51st to 550th by frequency."""
    v = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    frequent = np.argsort(-text().counts)[50:550]
    found: np.ndarray = np.argsort(-(v[frequent] @ v.T), axis=1)[:, 1:11]
    return found


def learned() -> tuple[dict[str, Any], bool]:
    """Train each side once from the start. Return the losses and agreements, and True if our losses are low enough."""
    record: dict[str, Any] = {"tokens": len(text().tokens), "words": len(text().counts), "quality": {}}
    kept = True
    for name, on_tree in KINDS.items():
        peer, other = gensims(on_tree=on_tree), gensims(on_tree=on_tree, seed=2)
        tree = text().tree.paths if on_tree else None
        sides = {"softargmax": (*ours(on_tree=on_tree), tree), "our modules": (*modules(on_tree=on_tree), tree)}
        sides |= {"gensim": peer, "gensim, another seed": other}
        found: dict[str, Any] = {}
        for side, (epoch, vectors, paths) in sides.items():
            epoch()
            found[side] = {"loss": held_out_loss(vectors(), paths), "near": neighbours(vectors()[0])}
        near = found["gensim"]["near"]
        for side in found.values():
            side["agreement"] = float(
                np.mean([len(set(a) & set(b)) / 10 for a, b in zip(side.pop("near"), near, strict=True)])
            )
        print(name, found, flush=True)
        record["quality"][name] = found
        kept = kept and found["softargmax"]["loss"] <= SLACK * found["gensim"]["loss"]
    return record, kept


KINDS = {"negative sampling": False, "hierarchical": True}


def promises() -> Iterator[Promise]:
    """Yield the cases of negative sampling and of the tree."""
    for name, on_tree in KINDS.items():
        sides = {"softargmax": ours(on_tree=on_tree)[0], "gensim": gensims(on_tree=on_tree)[0]}
        sides["our modules"] = modules(on_tree=on_tree)[0]
        yield Promise(f"{name}, {len(text().tokens):,} words", sides, {"gensim": 1.0}, rounds=5)


if __name__ == "__main__":
    sys.exit(main(__doc__, promises(), "word2vec", learned))
