"""Word vectors: skip-gram with negative sampling or with a hierarchical softmax."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.core import _native, check
from softargmax.core.check import integer
from softargmax.core.seeds import seed_of
from softargmax.core.signature import public
from softargmax.output import philox_stream
from softargmax.output.counts import at_least, counts_of, finite, on_host
from softargmax.output.keyed_vectors import KeyedVectors
from softargmax.output.sampler_base import Sampler
from softargmax.output.samplers import Unigram
from softargmax.output.tree import Tree
from softargmax.output.tree_paths import Paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from softargmax.output.philox_stream import Floats, Ints


_TOKENS = 1 << 14  # the number of tokens per call of the kernel
_LINE = 16  # the number of float32 numbers per cache line


class WordVectors(KeyedVectors):
    r"""word2vec: one vector per word, trained to distinguish the neighbours of the word from noise words.

    .. math:: \text{loss} = \sum_{i}\ \sum_{0 < |j - i| \le b_i} -\log \sigma(\langle v_i, w_{j} \rangle)
        - \sum_{k \in S_{ij}} \log \sigma(-\langle v_i, w_k \rangle)

    Here :math:`v_i` is the vector of the i-th token, :math:`w_j` is the weight of the j-th token, and :math:`b_i` is
    uniform on 1, .., window. :math:`S_{ij}` are the noise draws other than token j. With a tree, the binary losses of
    the nodes on the path to token j replace both terms.

    Parameters
    ----------
    counts : array_like
        c, shape (K,): how often each word occurs in the text.
    dim : int
        D, the length of the vectors.
    words : list of str, optional
        The words, in the order of the counts. `WordVectors.of_sentences` finds words and counts. Without words, the
        keys are numbers.
    tree : Tree, optional
        A tree over the words, for the loss of a hierarchical softmax. word2vec uses `Tree.huffman(counts)`.
    sampler : Sampler, optional
        Distribution of the noise; by default `Unigram(counts)`.
    samples : int
        n, the number of noise words per pair.
    window : int
        The maximum distance between the words of a pair.
    threshold : float
        t: if a word's share f of the text is above t, each of its tokens is kept only with probability :math:`\sqrt{t /
        f} + t / f` (at most 1). With 0, all tokens are kept.
    seed : int
        Seed of the initial vectors, the windows, the subsampling and the noise.

    Attributes
    ----------
    vectors : ndarray of float32
        v, shape (K, D); initialised uniformly in :math:`\pm 1 / (2 D)`.
    weight : ndarray of float32
        w, shape (K, D), or (K - 1, D) with a tree; initialised to 0.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    Training is gradient descent on the loss of `softargmax.nn.NegativeSampling` or `softargmax.nn.HierarchicalSoftmax`,
    summed over pairs. The hidden vectors are v, and there are no biases. For each token of a batch, in order, up to 64
    inner products are computed at a time, and then the vectors w in them are updated. The vectors v are updated only at
    the end of the batch. If w were also updated only then, the nodes near a tree's root would diverge. With a batch of
    one token, training is that of word2vec, one window at a time.

    One call of the compiled core computes scores, gradients and updates, in place. The bits of the result are the same
    for any number of threads. (In word2vec, threads race on the vectors.) Vectors are aligned to cache lines unless
    this makes the arrays more than a quarter larger.

    References
    ----------
    Mikolov, Sutskever, Chen, Corrado & Dean (2013), Distributed representations of words and phrases and their
    compositionality, sections 2.1 to 2.3. NeurIPS. arXiv:1310.4546.

    See Also
    --------
    softargmax.nn.NegativeSampling, softargmax.nn.HierarchicalSoftmax

    Examples
    --------
    >>> import numpy as np
    >>> from softargmax.output import WordVectors
    >>> tokens = np.tile([0, 1, 2, 3], 500)
    >>> model = WordVectors(np.bincount(tokens), 8, window=1, samples=2)
    >>> first = model.train(tokens)
    >>> first > model.train(tokens)
    True
    >>> model.vectors.shape
    (4, 8)
    >>> named = WordVectors.of_sentences([["to", "be", "or", "not", "to", "be"]], 4)
    >>> named, named.words
    (WordVectors(4 words, dim=4), ['to', 'be', 'or', 'not'])
    """

    @public
    def __init__(
        self,
        counts: ArrayLike,
        dim: int,
        *,
        words: Iterable[str] | None = None,
        tree: Tree | None = None,
        sampler: Sampler | None = None,
        samples: int = 5,
        window: int = 5,
        threshold: float = 0.0,
        seed: int = 0,
    ) -> None:
        counted: Floats = counts_of(counts).astype(np.float64)
        classes, self._dim, self._window = counted.size, at_least(dim, "dim", 1), at_least(window, "window", 1)
        self._samples, t = at_least(samples, "samples", 0), finite(threshold, "threshold")
        if t < 0:
            raise ValueError(f"threshold: expected 0 or above, got {threshold}")
        if tree is not None and sampler is not None:
            raise ValueError("tree, sampler: expected one of them, got both")
        for name, value, kind in (("tree", tree, Tree), ("sampler", sampler, Sampler)):
            if not (value is None or isinstance(value, kind)):
                raise TypeError(f"{name}: expected a {kind.__name__}, got {type(value).__name__}")
        noise = tree or sampler or Unigram(counted)
        if noise.classes != classes:
            name = "sampler" if tree is None else "tree"
            raise ValueError(f"{name}: expected {classes} classes, one per count, got {noise.classes}")
        self._noise, self._kept = noise, _kept(counted, t)
        self._seed = int(seed_of(np.empty(0), integer(seed, "seed"), None))
        self._pieces = 0  # number of blocks of _TOKENS tokens trained so far; each has its own random stream
        self.vectors = _initial_vectors(self._seed, classes, self._dim)
        self.weight = _table(classes if tree is None else tree.nodes, self._dim)
        self._name(words)

    @classmethod
    def of_sentences(
        cls, sentences: Sequence[Sequence[str]], dim: int, *, min_count: int = 1, **options: Any
    ) -> WordVectors:
        """Return an untrained model with the words of some sentences, sorted by decreasing frequency.

        Parameters
        ----------
        sentences : list of list of str
            The words of each sentence, in order. `train` takes the same list.
        dim : int
            D, the length of the vectors.
        min_count : int
            Words that occur less often than this are dropped.
        **options
            The other options of `WordVectors`, except `words`.

        Returns
        -------
        WordVectors
            An untrained model with the words and counts of the sentences.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type, or no word occurs `min_count` times.
        """
        least = at_least(min_count, "min_count", 1)
        if not _is_sentences(sentences):
            raise TypeError(f"sentences: expected a list of lists of strings, got {sentences!r:.60}")
        counted = Counter(chain.from_iterable(sentences)).most_common()
        words = [word for word, count in counted if count >= least]
        if not words:
            raise ValueError(f"sentences: expected a word that occurs at least {least} times (min_count), got none")
        return cls([count for _, count in counted[: len(words)]], dim, words=words, **options)

    @public
    def train(
        self,
        tokens: ArrayLike | Sequence[Sequence[str]],
        *,
        rate: float = 0.025,
        last_rate: float | None = None,
        batch: int = 16,
    ) -> float:
        """Train on a text, in one pass.

        Parameters
        ----------
        tokens : array_like of int
            The numbers of the words in order, (n,), from 0 to K - 1. The number -1 ends a sentence, and windows do not
            extend beyond the sentence. A model with words also accepts a list of sentences, each a list of words, and
            drops unknown words.
        rate : float
            The step size of gradient descent.
        last_rate : float, optional
            The rate at the end of the text. The rate changes linearly from `rate` to this value. By default the rate is
            constant.
        batch : int
            The number of tokens per batch, each with its window. The batch should be so small that no word occurs often
            in it. Small batches are closer to word2vec, and after little text they give better vectors than large
            batches. Large batches use several threads better than small batches.

        Returns
        -------
        float
            The mean loss of the pairs, or 0 without pairs. The loss of a pair is computed before the pair's update.

        Raises
        ------
        IndexError
            If a token is outside -1 to K - 1.
        TypeError, ValueError
            If an argument has the wrong type or is out of range.
        """
        text = _tokens_of(self._token_numbers(tokens), len(self.vectors))
        first = check.positive(rate, "rate")
        last = first if last_rate is None else check.positive(last_rate, "last_rate")
        rows, total, pairs = at_least(batch, "batch", 1), 0.0, 0
        kept, windows = self._subsampled(text)
        for start in range(0, len(kept), _TOKENS):
            stop = min(len(kept), start + _TOKENS)
            centres, starts, context = _pairs(kept, windows, self._window, start, stop)
            now, then = (first + (last - first) * at / len(kept) for at in (start, stop))
            total += _native.descend(
                vectors=self.vectors,
                weight=self.weight,
                inputs=centres,
                starts=starts,
                target=context,
                **self._kernel_arguments(len(context), self._pieces + start // _TOKENS),
                rate=now,
                last_rate=then,
                batch=rows,
            )
            pairs += len(context)
        self._pieces += -(-len(text) // _TOKENS)
        return total / max(1, pairs)

    def _token_numbers(self, tokens: Any) -> Any:
        """Return sentences as word numbers, with -1 after each sentence. Return word numbers unchanged."""
        if not _is_sentences(tokens):
            return tokens
        if self.words is None:
            raise ValueError("tokens: expected word numbers, because the model has no words (words=), got sentences")
        known = ([self._places[word] for word in line if word in self._places] for line in tokens)
        return np.array([number for line in known for number in (*line, -1)], np.int64)

    def _subsampled(self, text: Ints) -> tuple[Ints, Ints]:
        """Return the tokens that subsampling keeps, and their windows."""
        kept, windows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for piece, start in enumerate(range(0, len(text), _TOKENS)):
            part = text[start : start + _TOKENS]
            drawn = philox_stream.numbers(self._seed, self._pieces + piece, 0, len(part), philox_stream.WINDOWS)
            stay = (part < 0) | (philox_stream.unit(drawn.other_high, drawn.other_low) < self._kept[part])
            kept.append(part[stay])
            windows.append(1 + philox_stream.below(self._window, drawn.high[stay], drawn.low[stay]))
        return np.concatenate(kept), np.concatenate(windows)

    def _kernel_arguments(self, pairs: int, piece: int) -> dict[str, Any]:
        """Return the kernel's arguments for the losses of the targets: noise draws, or the paths of the tree."""
        if isinstance(self._noise, Tree):
            return {"negatives": None, **self._noise.paths._asdict()}
        noise = self._noise.chosen(self._seed, piece, 0, pairs * self._samples)
        return {"negatives": noise, **dict.fromkeys(Paths._fields)}


def _is_sentences(tokens: Any) -> bool:
    """True if the tokens are a list of lists of words."""
    lists = isinstance(tokens, list | tuple) and all(isinstance(line, list | tuple) for line in tokens)
    return lists and bool(tokens) and all(isinstance(word, str) for line in tokens for word in line)


def _table(classes: int, dim: int) -> NDArray[np.float32]:
    """Return zeros, with rows aligned to cache lines unless this makes the array more than a quarter larger.

    The alignment saves 12% of the time of an epoch at D = 100.
    """
    pitch = -(-dim // _LINE) * _LINE
    if 4 * pitch > 5 * dim:
        return np.zeros((classes, dim), np.float32)
    room = np.zeros(classes * pitch + _LINE, np.float32)
    first = -room.ctypes.data // room.itemsize % _LINE
    return room[first : first + classes * pitch].reshape(classes, pitch)[:, :dim]


def _initial_vectors(seed: int, classes: int, dim: int) -> NDArray[np.float32]:
    """Return vectors drawn uniformly in +-1 / (2 D)."""
    found = np.empty(classes * dim, np.float32)
    for stream, start in enumerate(range(0, found.size, _TOKENS)):
        part = found[start : start + _TOKENS]
        drawn = philox_stream.numbers(seed, stream, 0, part.size, philox_stream.BEGINNINGS)
        part[:] = (philox_stream.unit(drawn.high, drawn.low) - 0.5) / dim
    table = _table(classes, dim)
    table[:] = found.reshape(classes, dim)
    return table


def _pairs(text: Ints, windows: Ints, reach: int, start: int, stop: int) -> tuple[Ints, Ints, Ints]:
    """Return three arrays: `centres`, `starts` and `context`.

    `centres` has the tokens at the positions start to stop - 1 of the text, without ends of sentences. The context
    words of centres[i] are context[starts[i]:starts[i + 1]].
    """
    first = max(0, start - reach)
    near = text[first : stop + reach]
    (ends,) = np.nonzero(near < 0)
    (places,) = np.nonzero(text[start:stop] >= 0)
    places += start - first
    window, sentence = windows[first + places], np.searchsorted(ends, places)
    fences = np.concatenate([[-1], ends, [len(near)]])
    low, high = np.maximum(places - window, fences[sentence] + 1), np.minimum(places + window, fences[sentence + 1] - 1)
    count = high - low
    starts = np.concatenate([[0], np.cumsum(count)])
    context = np.arange(starts[-1]) + np.repeat(low - starts[:-1], count)
    context += context >= np.repeat(places, count)
    return near[places], starts, near[context]


def _kept(counts: Floats, threshold: float) -> Floats:
    """Return for each word the probability that its tokens are kept: sqrt(t / f) + t / f, at most 1."""
    total = counts.sum()
    if not threshold or not total:
        return np.ones(counts.size)
    ratio = threshold * total / np.maximum(counts, threshold * total)
    found: Floats = np.minimum(1.0, np.sqrt(ratio) + ratio)
    return found


def _tokens_of(tokens: Any, words: int) -> Ints:
    found: Ints = on_host(tokens, "tokens")
    if found.dtype.kind not in "iu" and found.size:
        raise TypeError(f"tokens: expected integers, got dtype {found.dtype}")
    if found.ndim != 1:
        raise ValueError(f"tokens: expected shape (n,), got {found.shape}")
    wrong = (found < -1) | (found >= words)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise IndexError(f"tokens: expected word numbers from -1 to {words - 1}, got {found[place]} at {place}")
    return found.astype(np.int64, copy=False)
