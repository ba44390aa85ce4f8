"""A user's program with NumPy arrays, lists and numbers: results are NumPy arrays."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import softargmax as sa

rng = np.random.default_rng(0)
z = rng.normal(size=(4, 8))
half = z.astype(np.float16)
seen = z > -1.0
y = np.array([0, 1, 2, 3])
q = rng.normal(size=(2, 4, 8))
row = rng.normal(size=8)

# normalize
assert_type(sa.softmax(z), NDArray[Any])
assert_type(sa.softmax([1, 2, 8.0]), NDArray[Any])
assert_type(sa.softmax([[1.0, 2.0], [3.0, 4.0]], axis=None), NDArray[Any])
assert_type(sa.softmax(3.0), NDArray[Any])
assert_type(sa.softmax([np.float32(1.0), z[0, 0]]), NDArray[Any])
assert_type(sa.log_softmax(half, axis=(0, 1), temperature=2, base=2.0, where=seen, dtype="float32"), NDArray[Any])
assert_type(sa.softmax(z, temperature=[[1.0], [2.0], [3.0], [4.0]], dtype=np.float32, out=None), NDArray[Any])
assert_type(sa.softmax(z, where=[True] * 8, dtype=np.dtype(np.float32)), NDArray[Any])
assert_type(sa.softmin(z), NDArray[Any])
assert_type(sa.hardmax(z), NDArray[Any])
assert_type(sa.logsumexp(z, weights=np.abs(z), keepdims=True), NDArray[Any])
assert_type(sa.logsumexp([1j, 2.0]), NDArray[Any])
assert_type(sa.logcumsumexp(z), NDArray[Any])
assert_type(sa.signed_logsumexp(z, z), sa.SignedLog[NDArray[Any]])
assert_type(sa.softmax_with_lse(z).lse, NDArray[Any])
assert_type(sa.softmax_jacobian(z), NDArray[Any])
assert_type(sa.soft_argmax(z, np.arange(8)), NDArray[Any])
assert_type(sa.spatial_soft_argmax(z), NDArray[Any])
assert_type(sa.entropy(z), NDArray[Any])
assert_type(sa.renyi_entropy(z, [0.5, 1.0, 2.0, 3.0]), NDArray[Any])
assert_type(sa.kl_divergence(z, z), NDArray[Any])
assert_type(sa.segment_softmax(row, [0, 3, 8]), NDArray[Any])
assert_type(sa.segment_logsumexp(row, index=np.array([0, 0, 0, 1, 1, 1, 1, 1]), num_segments=2), NDArray[Any])
system = sa.boltzmann([0.0, 1.0], 1.0, weights=[1, 3])
assert_type(system.heat_capacity, NDArray[Any])
p, lse = sa.softmax_with_lse(z)
assert_type(p, NDArray[Any])
assert_type(lse, NDArray[Any])

# sparse
assert_type(sa.sparsemax(z), NDArray[Any])
assert_type(sa.entmax(z, 1.5), NDArray[Any])
assert_type(sa.entmax_loss(z, y, 1.2, weight=np.ones(8)), NDArray[Any])
assert_type(sa.threshold(z).support_size, NDArray[Any])
assert_type(sa.topk_softmax(z, 3), NDArray[Any])

# sample
assert_type(sa.categorical(z, top_k=3, top_p=0.9, seed=0), NDArray[Any])
assert_type(sa.categorical(z, generator=rng, stream=np.arange(4), num_samples=2), NDArray[Any])
assert_type(sa.categorical_with_logprob(z, seed=0).logprob, NDArray[Any])
assert_type(sa.categorical_with_logprob(z, seed=0).index, NDArray[Any])
assert_type(sa.filter_scores(z, top_k=[1, 2, 3, 4]), NDArray[Any])
assert_type(sa.gumbel((2, 3), seed=0), NDArray[Any])
assert_type(sa.gumbel(3, like=half, seed=0), NDArray[Any])
assert_type(sa.gumbel_softmax(z, hard=True), NDArray[Any])
assert_type(sa.boltzmann_policy(z, temperature=0.5), NDArray[Any])
assert_type(sa.speculative_sample(z, z[:3], [1, 2, 3], seed=0), sa.SpeculativeSample[NDArray[Any]])

# loss
assert_type(sa.cross_entropy(z, y, label_smoothing=0.1, reduction="none"), NDArray[Any])
assert_type(sa.cross_entropy([[1.0, 2.0]], [1]), NDArray[Any])
assert_type(sa.cross_entropy_terms(z, y).z_loss, NDArray[Any])
assert_type(sa.cross_entropy_and_gradient(z, y).gradient, NDArray[Any])
assert_type(sa.linear_cross_entropy(z, z, y), NDArray[Any])
assert_type(sa.linear_cross_entropy_and_gradient(z, z, y, bias=np.zeros(4)).dbias, NDArray[Any] | None)
assert_type(sa.selected_log_softmax(z, y), NDArray[Any])
assert_type(sa.distillation(z, z), NDArray[Any])

# attend
assert_type(sa.attention(q, q, q, causal=True, window=(3, None), slopes=[0.5, 0.25]), NDArray[Any])
assert_type(sa.attention([[[1.0]]], [[[1.0]]], [[[1.0]]]), NDArray[Any])
assert_type(sa.attention_with_lse(q, q, q).lse, NDArray[Any])
assert_type(sa.attention_stats(q, q).key_mass, NDArray[Any])
assert_type(sa.attention_vjp(q, q, q, q).bias, NDArray[Any] | None)
assert_type(sa.qk_norm(q, q).k, NDArray[Any])
assert_type(sa.entropy_invariant_scale(512, 64), float)
assert_type(sa.entropy_invariant_scale(np.arange(1, 4), 64), NDArray[Any])
state = sa.attention_state(q, q, q)
assert_type(state, sa.State[NDArray[Any]])
assert_type(state.merge(state).finalize().output, NDArray[Any] | None)
assert_type(sa.State.empty((4,)).fold(z).l, NDArray[Any])

# output, classify, stream
assert_type(sa.output.Unigram([3, 2, 1]).draw(2, seed=0), sa.output.Negatives)
assert_type(sa.output.Tree.huffman(np.array([3, 2, 1])), sa.output.Tree)
assert_type(sa.output.adaptive_cutoffs([3, 2, 1], dim=4), tuple[int, ...])
model = sa.classify.SoftmaxRegression().fit(z, y)
assert_type(model, sa.classify.SoftmaxRegression)
assert_type(model.predict_proba(z), NDArray[Any])
assert_type(model.score(z, y), float)
assert_type(sa.stream.logsumexp(iter([z[0], z[1]]), dtype=np.float64), NDArray[Any])

# core
with sa.using("reference"):
    sa.set_num_threads(sa.get_num_threads())


def confidence(scores: NDArray[np.float32]) -> sa.SoftmaxWithLse[NDArray[Any]]:
    """Users can write annotations with our types."""
    return sa.softmax_with_lse(scores)


assert_type(sa.__version__, str)
confidence(z.astype(np.float32))
