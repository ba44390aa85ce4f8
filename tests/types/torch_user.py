"""A user's program with tensors: functions and modules return tensors."""

from __future__ import annotations

import tempfile
from typing import assert_type

import numpy as np
import torch
from torch import Tensor

import softargmax as sa

torch.manual_seed(0)
z = torch.randn(4, 8)
scale = torch.nn.Parameter(torch.ones(4, 1))
y = torch.tensor([0, 1, 2, 3])
q = torch.randn(2, 4, 8)

# normalize
assert_type(sa.softmax(z), Tensor)
assert_type(sa.softmax(scale, temperature=scale), Tensor)
assert_type(sa.softmax(z, temperature=np.ones((4, 1)), where=z > -1.0, dtype=torch.float64), Tensor)
assert_type(sa.log_softmax(z, where=[True] * 8, dtype="float64", out=None), Tensor)
assert_type(sa.logsumexp(z, weights=z.abs()), Tensor)
assert_type(sa.softmax_with_lse(z), sa.SoftmaxWithLse[Tensor])
assert_type(sa.softmax_with_lse(z).lse, Tensor)
assert_type(sa.boltzmann(z, scale).entropy, Tensor)
assert_type(sa.segment_softmax(z[0], torch.tensor([0, 3, 8])), Tensor)
assert_type(sa.entropy(z) - sa.kl_divergence(z, z), Tensor)

# sparse
assert_type(sa.entmax(z, scale), Tensor)
assert_type(sa.threshold(z, 2.0).tau, Tensor)
assert_type(sa.sparsemax_loss(z, y), Tensor)

# sample
assert_type(sa.categorical(z, generator=torch.Generator(), stream=[3, 1, 4, 5]), Tensor)
assert_type(sa.categorical_with_logprob(z, seed=0).support_size, Tensor)
assert_type(sa.gumbel((2, 3), like=z), Tensor)
assert_type(sa.gumbel_softmax(z, temperature=0.5), Tensor)

# loss
assert_type(sa.cross_entropy(z, y, weight=torch.ones(8)), Tensor)
assert_type(sa.cross_entropy(z, torch.softmax(z, -1)), Tensor)
assert_type(sa.linear_cross_entropy(z, z, y), Tensor)
assert_type(sa.linear_cross_entropy_and_gradient(z, z, y).dw, Tensor)
assert_type(sa.linear_distillation(z, z, z, z), Tensor)

# attend
assert_type(sa.attention(q, q, q, bias=torch.zeros(4, 4), alpha=1.5), Tensor)
assert_type(sa.attention_vjp(q, q, q, q).q, Tensor)
assert_type(sa.entropy_invariant_scale(16, 64, torch.ones(())), Tensor)
assert_type(sa.State.empty((4,), like=z).fold(z).merge().finalize().lse, Tensor)

# nn
assert_type(sa.nn.Softmax()(z), Tensor)
assert_type(sa.nn.LogSoftmax(temperature=scale)(z, where=z > -1.0), Tensor)
assert_type(sa.nn.Entmax(1.5)(z), Tensor)
assert_type(sa.nn.Sparsemax()(z), Tensor)
assert_type(sa.nn.EntmaxLoss()(z, y), Tensor)
assert_type(sa.nn.GumbelSoftmax(hard=True)(z), Tensor)
assert_type(sa.nn.CrossEntropyLoss(z_loss=1e-4)(z, y), Tensor)
assert_type(sa.nn.LinearCrossEntropyLoss()(z, z, y), Tensor)
attention = sa.nn.Attention(8, 2)
assert_type(attention(q), Tensor)
assert_type(attention.new_cache(2, 4).append(torch.ones(2, 2, 1, 4), torch.ones(2, 2, 1, 4)).k, Tensor)

# output
sampler = sa.output.LogUniform(8)
assert_type(sa.nn.FullSoftmax(8, 8)(z, y), Tensor)
assert_type(sa.nn.SampledSoftmax(8, sampler, samples=3)(z, y), Tensor)
assert_type(sa.nn.NCE(8, sampler, samples=3)(z, y), Tensor)
assert_type(sa.nn.AdaptiveSoftmax(8, 8, [4]).log_prob(z), Tensor)
assert_type(sa.nn.HierarchicalSoftmax(8, sa.output.Tree.balanced(8)).topk(z, 2).index, Tensor)

# parallel
torch.distributed.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
assert_type(sa.parallel.softmax(z, temperature=scale), Tensor)
assert_type(sa.parallel.cross_entropy(z, y, label_smoothing=0.1, weight=torch.ones(8)), Tensor)
assert_type(sa.parallel.cross_entropy_terms(z, y, z_loss=0.1).lse, Tensor)
assert_type(sa.parallel.linear_cross_entropy(z, z, y, reproducible=False), Tensor)
assert_type(sa.parallel.linear_cross_entropy(z, z, y, by="rows"), Tensor)
assert_type(sa.parallel.categorical_with_logprob(z, top_k=2, seed=0).index, Tensor)
assert_type(sa.parallel.attention(q[None], q[None], q[None], causal=True, by="parts"), Tensor)
torch.distributed.destroy_process_group()
