"""The launches of every CUDA kernel, recorded with tensors that have no memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tests.triton.compiled import Launch, different, recorded

from softargmax.attend import triton_kernels as attend_kernels
from softargmax.attend.arguments import Attention, AttentionVjp, Packed, PackedVjp, Pages
from softargmax.attend.check_options import plain_attention_of
from softargmax.core import triton_launch
from softargmax.core.scale import UNIT, Scale
from softargmax.loss import triton_kernels as loss_kernels
from softargmax.loss import triton_linear
from softargmax.loss.arguments import CrossEntropy, Layer, LinearCrossEntropy, LossOptions
from softargmax.normalize import (
    entropy_operations,
    operations,
    prefix_operations,
    segment_operations,
    triton_kernels,
    triton_prefixes,
    triton_segments,
    triton_sums,
    vjp_operations,
)
from softargmax.sample import operations as sampling
from softargmax.sample import triton_filters, triton_ranks
from softargmax.sample import triton_kernels as sample_kernels
from softargmax.sample.arguments import Distribution, Filters
from softargmax.sparse import loss_operations as sparse_losses
from softargmax.sparse import operations as sparse
from softargmax.sparse import triton_kernels as sparse_kernels
from softargmax.sparse import triton_loss as sparse_loss_kernels

SHAPES = ((4096, 100), (4096, 1000), (4096, 4096), (4096, 16384), (64, 131072), (512, 100000))
MODULES = (
    triton_launch, triton_sums, triton_segments, triton_prefixes, triton_linear, sparse_kernels, sparse_loss_kernels,
    sample_kernels, triton_filters, triton_ranks, attend_kernels,
)  # fmt: skip
"""The modules that launch kernels."""


def launches() -> list[Launch]:
    """The launches of every kernel, with each option at least once."""
    with recorded(*MODULES) as found:
        for shape in SHAPES:
            for dtype in (torch.float32, torch.bfloat16):
                z = torch.empty(shape, dtype=dtype, device="meta")
                for call in (*_normalize(z), *_sums(z), *_prefixes(z), *_losses(z), *_sparse(z), *_draws(z)):
                    call()
        for dtype in (torch.float32, torch.bfloat16):
            for call in (*_segments(dtype), *_last_layers(dtype), *_attention(dtype)):
                call()
    return different(found)


def _normalize(z: torch.Tensor) -> Iterator[Any]:
    out, lse = torch.empty_like(z), z.new_empty((len(z), 1), dtype=torch.float32)
    mask = torch.empty_like(z, dtype=torch.bool)
    per_row = Scale(z.new_empty((len(z), 1), dtype=torch.float64), z.new_empty((len(z), 1), dtype=torch.float64))
    plain = operations.Scores(z, None, UNIT, (1,), z.dtype)
    for i in (plain, plain._replace(beta=Scale(0.3, 1e-9)), plain._replace(where=mask, beta=per_row)):
        yield lambda i=i: triton_kernels.softmax(i, (out, lse))
        yield lambda i=i: triton_kernels.softmax(i, (out, None))
        yield lambda i=i: triton_kernels.log_softmax(i, (out, None))
        reduced = operations.LogSumExp(z, None, i.where, i.beta, (1,), torch.float32)
        yield lambda reduced=reduced: triton_kernels.logsumexp(reduced, (lse,))
    yield lambda: triton_kernels.softmax_vjp(vjp_operations.SoftmaxVjp(out, lse, z, UNIT, (1,), z.dtype), (out,))
    yield lambda: triton_kernels.log_softmax_vjp(vjp_operations.LogSoftmaxVjp(out, lse, z, UNIT, (1,), z.dtype), (out,))
    p = torch.empty_like(z, dtype=torch.float32)
    yield lambda: triton_kernels.logsumexp_vjp(vjp_operations.LogSumExpVjp(p, lse, (1,), z.dtype), (out,))


def _sums(z: torch.Tensor) -> Iterator[Any]:
    one, out = z.new_empty((len(z), 1), dtype=torch.float32), torch.empty_like(z)
    mask, values = torch.empty_like(z, dtype=torch.bool), z.new_empty((1, z.shape[1]), dtype=torch.float32)
    per_row = Scale(z.new_empty((len(z), 1), dtype=torch.float64), z.new_empty((len(z), 1), dtype=torch.float64))
    plain = operations.Expectation(z, None, UNIT, None, (1,), torch.float32)
    for of in (plain, plain._replace(where=mask, beta=per_row, values=values)):
        yield lambda of=of: triton_sums.entropy(of, (one,))
        yield lambda of=of: triton_sums.expectation(of, (one,))
        yield lambda of=of: triton_sums.mean_vjp(operations.MeanVjp(of, one, of.where is None), (out,))
        kl = entropy_operations.KlDivergence(z, torch.empty_like(z), of.where, of.beta, (1,), torch.float32)
        yield lambda kl=kl: triton_sums.kl_divergence(kl, (one,))
        slopes = entropy_operations.KlDivergenceVjp(kl, one, True, True)
        yield lambda slopes=slopes: triton_sums.kl_divergence_vjp(slopes, (out, torch.empty_like(z)))
        renyi = entropy_operations.RenyiEntropy(z, of.where, of.beta, of.beta.hi, (1,), torch.float32)
        yield lambda renyi=renyi: triton_sums.renyi_entropy(renyi, (one,))
        of_renyi = entropy_operations.RenyiVjp(renyi, one, one)
        yield lambda i=of_renyi: triton_sums.renyi_entropy_vjp(i, (out,))


def _prefixes(z: torch.Tensor) -> Iterator[Any]:
    out, mask = torch.empty_like(z), torch.empty_like(z, dtype=torch.bool)
    per_row = Scale(z.new_empty((len(z), 1), dtype=torch.float64), z.new_empty((len(z), 1), dtype=torch.float64))
    plain = prefix_operations.LogCumSumExp(z, None, UNIT, (1,), z.dtype)
    for of in (plain, plain._replace(where=mask, beta=per_row)):
        yield lambda of=of: triton_prefixes.logcumsumexp(of, (out,))
        yield lambda of=of: triton_prefixes.prefix_surprisals(of, (out,))
        for backwards in (False, True):
            slopes = prefix_operations.PrefixSlopes(of, z, backwards)
            yield lambda slopes=slopes: triton_prefixes.prefix_slopes(slopes, (out,))


def _segments(dtype: torch.dtype) -> Iterator[Any]:
    for columns in (1, 6):
        z = torch.empty((100000, columns), dtype=dtype, device="meta")
        out, lse = torch.empty_like(z), z.new_empty((2000, columns), dtype=torch.float32)
        beta = Scale(z.new_empty((2000, 1), dtype=torch.float64), z.new_empty((2000, 1), dtype=torch.float64))
        plain = segment_operations.SegmentScores(z, z.new_empty(2001, dtype=torch.int64), UNIT, dtype)
        for i in (plain, plain._replace(beta=beta)):
            yield lambda i=i, out=out, lse=lse: triton_segments.segment_softmax(i, (out, lse))
            yield lambda i=i, out=out: triton_segments.segment_log_softmax(i, (out, None))
            yield lambda i=i, lse=lse: triton_segments.segment_logsumexp(i, (lse,))
            vjp = segment_operations.SegmentVjp(z, lse, out, i.offsets, i.beta, dtype)
            yield lambda vjp=vjp, out=out: triton_segments.segment_softmax_vjp(vjp, (out,))
            yield lambda vjp=vjp, out=out: triton_segments.segment_log_softmax_vjp(vjp, (out,))
        of_lse = segment_operations.SegmentLogSumExpVjp(z, lse, plain.offsets)
        yield lambda i=of_lse, out=out: triton_segments.segment_logsumexp_vjp(i, (out,))


def _losses(z: torch.Tensor) -> Iterator[Any]:
    out, mask = torch.empty_like(z), torch.empty_like(z, dtype=torch.bool)
    target, weight = z.new_empty(len(z), dtype=torch.int64), z.new_empty((1, z.shape[1]), dtype=torch.float32)
    seed = z.new_empty((len(z), 1), dtype=torch.float64)
    options = LossOptions(target, None, None, None, UNIT, -100, 0.0, 0.0, 0.0)
    scaled = options._replace(where=mask, beta=Scale(0.3, 1e-9), z_loss=1e-4)
    per_row, states = Scale(seed, seed), z.new_empty((len(z), 3), dtype=torch.float64)
    soft = options._replace(target=None, probabilities=out)
    for chosen in (
        options,
        scaled,
        options._replace(weight=weight, label_smoothing=0.1),
        options._replace(softcap=30.0),
        options._replace(softcap=30.0, beta=per_row, where=mask, label_smoothing=0.1),
        soft,
        soft._replace(softcap=30.0, beta=per_row, where=mask),
    ):
        i = CrossEntropy(z, chosen, (1,), 1, False, torch.float32)
        yield lambda i=i: loss_kernels.run(i, save=states)
        yield lambda i=i: loss_kernels.run(
            i, seed, out, losses=False, saved=None if i.options.weight is not None else states
        )
        yield lambda i=i: loss_kernels.run(i, seed, out)


def _sparse(z: torch.Tensor) -> Iterator[Any]:
    out, tau = torch.empty_like(z), z.new_empty((len(z), 1), dtype=torch.float32)
    support, mask = z.new_empty((len(z), 1), dtype=torch.int64), torch.empty_like(z, dtype=torch.bool)
    per_row = Scale(z.new_empty((len(z), 1), dtype=torch.float64), z.new_empty((len(z), 1), dtype=torch.float64))
    for alpha in (2.0, 1.5, 1.3):
        plain = sparse.Scores(z, alpha, None, UNIT, (1,))
        yield lambda i=plain: sparse_kernels.entmax(i, (out, None))
        yield lambda i=plain: sparse_kernels.entmax(i, (out, tau))
        yield lambda i=plain: sparse_kernels.threshold(i, (tau, support))
        masked = plain._replace(where=mask, beta=per_row)
        yield lambda i=masked: sparse_kernels.entmax(i, (out, tau))
        vjp = sparse.EntmaxVjp(out, tau, alpha, z, (1,))
        yield lambda i=vjp: sparse_kernels.entmax_vjp(i, (out,))
        loss, roots = z.new_empty((len(z), 1), dtype=torch.float64), z.new_empty((len(z), 1, 5), dtype=torch.float64)
        target = z.new_empty((len(z), 1), dtype=torch.int64)
        of_classes = sparse_losses.OfClasses(z, target, alpha, None, UNIT, (1,), -100)
        for i in (of_classes, of_classes._replace(where=mask, beta=Scale(0.3, 1e-9))):
            yield lambda i=i, loss=loss, roots=roots: sparse_loss_kernels.entmax_loss(i, (loss, roots))
            of_loss = sparse_losses.LossVjp(loss, roots, i)
            yield lambda i=of_loss: sparse_loss_kernels.entmax_loss_vjp(i, (out,))


def _last_layers(dtype: torch.dtype) -> Iterator[Any]:
    h, w = (torch.empty(shape, dtype=dtype, device="meta") for shape in ((64, 256), (32000, 256)))
    options = LossOptions(h.new_empty(64, dtype=torch.int64), None, None, None, UNIT, -100, 0.0, 0.0, 0.0)
    i = LinearCrossEntropy(Layer(h, w, w[:, 0]), options, 0, True, 0.0, "hwb", torch.float32, torch.float32)
    wide = {"dtype": torch.float32}
    gradients = h.new_empty(h.shape, **wide), w.new_empty(w.shape, **wide), w.new_empty(len(w), **wide)
    for chosen in (i, i._replace(options=options._replace(softcap=30.0))):
        yield lambda i=chosen: triton_linear.linear_cross_entropy(i, (h.new_empty((), **wide), *gradients))


def _draws(z: torch.Tensor) -> Iterator[Any]:
    index, seed = z.new_empty((len(z), 1), dtype=torch.int64), z.new_empty((), dtype=torch.int64)
    logprob, g = z.new_empty((len(z), 1), dtype=torch.float32), torch.empty_like(z, dtype=torch.float32)
    kept = torch.empty_like(z, dtype=torch.bool)
    per_row = Scale(z.new_empty((len(z), 1), dtype=torch.float64), z.new_empty((len(z), 1), dtype=torch.float64))
    plain = Distribution(UNIT)
    given = [
        plain,
        Distribution(per_row, kept),
        Distribution(UNIT, None, Filters(top_k=50.0)),
        Distribution(UNIT, None, Filters(top_p=0.9)),
        Distribution(UNIT, kept, Filters(top_k=50.0, top_p=per_row.hi, min_p=0.1, epsilon=0.1, eta=0.1), True),
    ]
    for one in given:
        i = sampling.Categorical(z, one, seed, index if one.where is not None else None, (1,), 1, True)
        yield lambda i=i: sample_kernels.categorical(i, (index,))
        yield lambda i=i: sample_kernels.categorical_with_logprob(i, (index, logprob, index))
        many = i._replace(draws=5, replace=False)
        five = index.expand(-1, 5), logprob.expand(-1, 5)
        yield lambda i=many, five=five: sample_kernels.categorical(i, five[:1])
        yield lambda i=many, five=five: sample_kernels.categorical_with_logprob(i, (*five, index))
        mask = sampling.FilterMask(z, one, (1,))
        yield lambda mask=mask: sample_kernels.filter_mask(mask, (kept,))
    yield lambda: sample_kernels.gumbel(sampling.Noise(z, seed, None, (1,), torch.float32), (g,))


def _attention(dtype: torch.dtype) -> Iterator[Any]:
    for width in (64, 128, 256)[: 3 if dtype.itemsize == 2 else 2]:
        for queries in (1, 256):
            q, k = (
                torch.empty(2, heads, n, width, dtype=dtype, device="meta") for heads, n in ((8, queries), (2, 4096))
            )
            plain = plain_attention_of(q, k, k)
            sink, bias = q.new_empty(8, 1, 1), q.new_empty(queries, 4096)
            lengths = q.new_empty((2, 1, 1, 1), dtype=torch.int64)
            of_queries = q.new_empty((8, queries, 1), dtype=torch.float32)
            dropout = {"seeds": q.new_empty((2, 8, 1, 2), dtype=torch.int64), "dropout": 0.1}
            for options in (
                plain.options,
                plain.options._replace(right=0),
                plain.options._replace(left=100, right=0, softcap=30.0, sink=sink),
                plain.options._replace(bias=bias, mask=torch.empty_like(bias, dtype=torch.bool), lengths=lengths),
                plain.options._replace(scale=of_queries, right=0, slopes=sink),
                plain.options._replace(right=0, **dropout),
                plain.options._replace(left=100, right=0, softcap=30.0, **dropout),
                plain.options._replace(right=0, alpha=1.5),
                plain.options._replace(left=100, right=0, softcap=30.0, sink=sink, alpha=2.0, **dropout),
            ):
                yield from _attention_of(plain._replace(options=options))
            yield from _sequences(plain)


def _sequences(i: Attention) -> Iterator[Any]:
    """Packed sequences and pages, with and without options that need registers."""
    (entries, heads, queries, width), (groups, keys) = i.q.shape, i.k.shape[1:3]
    bounds, sink = i.q.new_empty(9, dtype=torch.int64), i.q.new_empty(heads, 1, 1)
    packed = [x[0].transpose(0, 1).contiguous().transpose(0, 1) for x in i[:3]]
    pages = i.k.new_empty(256, 64, groups, width)
    table, lengths = bounds.new_empty(entries, keys // 64), bounds.new_empty(entries, 1, 1, 1)
    scale = i.q.new_empty((heads, queries, 1), dtype=torch.float32)
    for options in (i.options._replace(right=0), i.options._replace(right=0, left=100, scale=scale, slopes=sink)):
        output, lse = torch.empty_like(i.q), i.q.new_empty(i.q.shape[:-1], dtype=torch.float64)
        of = Pages(i.q, pages, pages, table, options._replace(lengths=lengths))
        yield lambda of=of, output=output: attend_kernels.attention_paged(of, (output, None))
        if queries > 1:
            many = Packed(Attention(*packed, options), bounds, bounds)
            r, of_r = torch.empty_like(packed[0]), lse[0]
            yield lambda many=many, r=r, of_r=of_r: attend_kernels.attention_varlen(many, (r, of_r))
            vjp = PackedVjp(r, None, many, r, of_r)
            found = [torch.empty_like(x) for x in packed]
            of_options = options.scale, None, None, options.slopes
            found += [torch.empty_like(x) if isinstance(x, torch.Tensor) else i.q.new_empty(0) for x in of_options]
            yield lambda vjp=vjp, found=found: attend_kernels.attention_varlen_vjp(vjp, found)


def _attention_of(i: Attention) -> Iterator[Any]:
    output, lse = torch.empty_like(i.q), i.q.new_empty(i.q.shape[:-1], dtype=torch.float64)
    yield lambda: attend_kernels.attention(i, (output, lse))
    none = i.q.new_empty(0)
    options = i.options.scale, i.options.bias, i.options.sink, i.options.slopes
    found = [torch.empty_like(x) for x in (i.q, i.k, i.v)]
    found += [torch.empty_like(x) if isinstance(x, torch.Tensor) else none for x in options]
    yield lambda: attend_kernels.attention_vjp(AttentionVjp(output, None, i, output, lse, True), found)
