"""Tiles of queries and keys in Triton, for the CUDA kernels of attention: which keys a query sees, and its scores.

Scores are in base 2: s = log2(e) S. The index i of queries and the index j of keys are of shape (M, 1) and (1, N), or
of shape (1, M) and (N, 1) in the kernel that owns keys.
"""

from __future__ import annotations

import triton
import triton.language as tl

from softargmax.attend.arguments import ORDERS
from softargmax.core.triton_maps import LINEAR, SQUARED
from softargmax.core.triton_math import INF, f32
from softargmax.core.triton_philox import four_words, in_order, word_of

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LOW = tl.constexpr(1e30)
"""Scores below -LOW are replaced by -LOW, so that a row of such scores differs from a row without keys."""
LARGE = tl.constexpr(2.0**22)
"""Rows whose scores are larger are computed in float64, because float32 has no digits left for their differences."""
SOFTMAX = tl.constexpr(-1)
MAPS = {1.0: SOFTMAX.value} | dict(zip(ORDERS, (SQUARED.value, LINEAR.value), strict=True))
"""The map from scores to p of each order alpha. Those of orders above 1 are in core/triton_maps.py."""
FOLDED, NUMBER, PER_QUERY = (tl.constexpr(k) for k in range(3))
"""How the scale is passed: a positive number for one step with the exponent, a number, or a number per query."""


@triton.jit
def long(at):
    """A number in int64."""
    return tl.full([], 0, tl.int64) + at


@triton.jit
def load_tile(x, row, column, stride, inside, MASKED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Load a tile of a matrix: its rows `row` (a column vector) and its columns `column` (a row vector)."""
    at = x + row * stride + column
    if MASKED and WIDTH != PADDED:
        return tl.load(at, mask=inside & (column < WIDTH), other=0.0)
    if MASKED:
        return tl.load(at, mask=inside & (column >= 0), other=0.0)
    if WIDTH != PADDED:
        return tl.load(at, mask=(row >= 0) & (column < WIDTH), other=0.0)
    return tl.load(at)


@triton.jit
def keys_of(x, entry, head, at, x_b, x_h, x_l, PAGED: tl.constexpr):
    """The address of key or value `at` of a head: in an entry of the batch, or in the first page."""
    of_head = x + head * x_h + long(at) * x_l
    if PAGED:
        return of_head
    return of_head + entry * x_b


@triton.jit
def load_keys(
    x, at, n, stride, inside, table, page, page_stride,
    PAGED: tl.constexpr, MASKED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Load the keys or values at + n. In pages, number j is in the page table[j // page], in place j % page."""
    column = tl.arange(0, PADDED)[None, :]
    if PAGED:
        j = at + n[:, None]
        if MASKED:
            number = tl.load(table + j // page, mask=inside, other=0)
        else:
            number = tl.load(table + j // page)
        row = number.to(tl.int64) * page_stride + (j % page).to(tl.int64) * stride
        return load_tile(x, row, column, 1, inside, MASKED, WIDTH, PADDED)
    return load_tile(x + long(at) * stride, n[:, None], column, stride, inside, MASKED, WIDTH, PADDED)


@triton.jit
def tile_of(tile, queries, keys, bounds, cu_q, cu_k, sequences, PACKED: tl.constexpr, SIZE: tl.constexpr):
    """Where a tile of queries or keys begins in its sequence, where the queries and the keys of the sequence begin in
    a packed batch, and how many the sequence has.

    `bounds` is cu_q for tiles of queries, and cu_k for tiles of keys. The tiles of sequence s are those from
    bounds[s] // SIZE + s on. Some sequences have one more than they need, which begins behind their last row.
    """
    if PACKED:
        low, high = tile * 0, tile * 0 + sequences
        while high - low > 1:
            middle = (low + high) // 2
            before = tl.load(bounds + middle) // SIZE + middle <= tile
            low, high = tl.where(before, middle, low), tl.where(before, high, middle)
        first = tl.maximum(tile - tl.load(bounds + low) // SIZE - low, 0) * SIZE  # wrong bounds may begin above 0
        at_q, at_k = tl.load(cu_q + low), tl.load(cu_k + low)
        queries, keys = tl.load(cu_q + low + 1) - at_q, tl.load(cu_k + low + 1) - at_k
        return first, at_q, at_k, tl.maximum(queries, 0), tl.maximum(keys, 0)
    return tile * SIZE, 0, 0, queries, keys


@triton.jit
def load_count(length, keys, LENGTHS: tl.constexpr):
    """The number of keys of an entry of the batch."""
    return tl.load(length).to(tl.int32) if LENGTHS else keys


@triton.jit
def range_of_keys(first, last, place, count, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, N: tl.constexpr):
    """The keys that the queries first..last - 1 see, as three ranges of whole tiles of N keys: begin, a, b and end.

    All these queries see all keys from a to b.
    """
    begin, a, b, end = count * 0, count * 0, count, count
    if RIGHT:
        b = tl.minimum(count, tl.maximum(first + place + right + 1, 0))
        end = tl.minimum(count, tl.maximum(last + place + right, 0))
    if LEFT:
        begin = tl.maximum(first + place - left, 0) // N * N
        a = (tl.maximum(last - 1 + place - left, 0) + N - 1) // N * N
    end = (end + N - 1) // N * N
    a = tl.maximum(tl.minimum(a, end), begin)
    b = tl.maximum(tl.minimum(b // N * N, end), a)
    return begin, a, b, end


@triton.jit
def range_of_queries(
    first, last, place, queries, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, M: tl.constexpr
):
    """The queries that see the keys first..last - 1, as three ranges of whole tiles of M queries: begin, a, b and end.

    All queries from a to b see all these keys. Without LEFT, the last tile may reach beyond the queries.
    """
    begin, a, b, end = queries * 0, queries * 0, queries, queries
    if RIGHT:
        begin = tl.minimum(tl.maximum(first - place - right, 0), queries) // M * M
        a = (tl.minimum(tl.maximum(last - 1 - place - right, 0), queries) + M - 1) // M * M
    if LEFT:
        b = tl.minimum(queries, tl.maximum(first - place + left + 1, 0))
        end = tl.minimum(queries, tl.maximum(last - place + left, 0))
    else:
        b = (b + M - 1) // M * M
    end = (end + M - 1) // M * M
    a = tl.maximum(tl.minimum(a, end), begin)
    b = tl.maximum(tl.minimum(b // M * M, end), a)
    return begin, a, b, end


@triton.jit
def sees(
    i, j, place, queries, count, left, right, mask, mask_l, mask_k,
    ENDS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, MASK: tl.constexpr, BOUNDS: tl.constexpr = True,
):  # fmt: skip
    """True where query i sees key j. Without ENDS, only the mask decides. BOUNDS hides keys that do not exist."""
    seen = (i >= 0) & (j >= 0)
    if ENDS:
        if RIGHT and BOUNDS:
            seen = j <= tl.minimum(i + (place + right), count - 1)
        elif RIGHT:
            seen = j <= i + (place + right)
        elif BOUNDS:
            seen = seen & (j < count)
        if LEFT:
            seen = seen & (j >= i + (place - left))
    if MASK:
        at = mask + i.to(tl.int64) * mask_l + j.to(tl.int64) * mask_k
        seen = seen & (tl.load(at, mask=(i < queries) & (j < count), other=0) != 0)
    return seen


@triton.jit
def scores_of(
    raw, i, j, place, queries, count, scale, softcap, bias, bias_l, bias_k, slope,
    SOFTCAP: tl.constexpr, BIAS: tl.constexpr, SLOPES: tl.constexpr,
):  # fmt: skip
    """Return the scores in base 2 of products `raw` = q k^T, and the slope 1 - tanh^2 of the soft-cap.

    `scale` is in base 2, or if there is a soft-cap, log2(e) scale / softcap. -inf becomes NaN under a soft-cap.
    """
    if SOFTCAP:
        x = raw * scale
        e = tl.exp2(-2.0 * tl.abs(x))
        t = (1.0 - e) / (1.0 + e)
        steep = 1.0 - t * t
        s = tl.where(raw == -INF, float("nan"), tl.where(x < 0.0, -t, t) * (softcap * LOG2E))
    else:
        s = raw * scale
        steep = s
    if BIAS:
        at = bias + i.to(tl.int64) * bias_l + j.to(tl.int64) * bias_k
        s = tl.fma(tl.load(at, mask=(i < queries) & (j < count), other=0.0).to(tl.float32), f32(LOG2E), s)
    if SLOPES:
        s = tl.fma(tl.abs(i + place - j).to(tl.float32), -slope, s)
    return s, steep


@triton.jit
def visible_scores(
    raw, i, j, place, queries, count, left, right, scale, softcap, slope, mask, mask_l, mask_k, bias, bias_l, bias_k,
    ENDS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr,
    BIAS: tl.constexpr, SLOPES: tl.constexpr,
):  # fmt: skip
    """The scores of `scores_of`, and -inf for keys that a query does not see."""
    s, _ = scores_of(
        raw, i, j, place, queries, count, scale, softcap, bias, bias_l, bias_k, slope, SOFTCAP, BIAS, SLOPES
    )
    if ENDS or MASK or BIAS:
        seen = sees(i, j, place, queries, count, left, right, mask, mask_l, mask_k, ENDS, LEFT, RIGHT, MASK)
        if BIAS:
            seen = seen & (s != -INF)
        s = tl.where(seen, tl.maximum(s, -LOW, propagate_nan=tl.PropagateNan.ALL), -INF)
    return s


@triton.jit
def powers_of(v, MAP: tl.constexpr):
    """p = v^(1/a) and p^(2 - alpha), from v = (d + t)_+ (core/triton_maps.py)."""
    if MAP == LINEAR:
        return v, tl.where(v > 0.0, 1.0, 0.0 * v)
    return v * v, v


@triton.jit
def load_scale(scale, at, inside, number, softcap, SCALE: tl.constexpr, SOFTCAP: tl.constexpr):
    """The scale for `scores_of`, with one number per query if SCALE is PER_QUERY."""
    if SCALE == PER_QUERY:
        found = tl.load(scale + at, mask=inside, other=0.0).to(tl.float32) * LOG2E
        if SOFTCAP:
            found = tl.div_rn(found, softcap + 0.0 * found)
    else:
        found = number
    return found


@triton.jit
def is_strange(o):
    """True for rows that have a NaN or inf."""
    return tl.max((~(tl.abs(o) < INF)).to(tl.int32), axis=1) > 0


# --- dropout: an entry of p is dropped if its random word is below `drop_below` (dropout.py) --------------------------


@triton.jit
def load_seed(seeds, seeds_k):
    """The dropout seed of a head, from its two words. The second is `seeds_k` numbers after the first."""
    return tl.load(seeds) | (tl.load(seeds + seeds_k) << 32)


@triton.jit
def kept(i, first, seed, drop_below, N: tl.constexpr):
    """True for the entries of a tile that dropout keeps. i has shape (M, 1); the keys are first..first + N - 1.

    The seed is a number, or has shape (M, 1). `first` is a multiple of 4.
    """
    query, low = i.to(tl.int64), drop_below.to(tl.uint32)
    a, b, c, d = four_words(first, seed, query, 0 * query, 0, N)
    return in_order((a >= low).to(tl.int8), (b >= low).to(tl.int8), (c >= low).to(tl.int8), (d >= low).to(tl.int8)) != 0


@triton.jit
def keep_factors(i, j, seed, drop_below, gain):
    """The factors of p in float64, 0 or gain = 1 / (1 - rate), for queries i and keys j that broadcast."""
    none = 0 * (i + j).to(tl.int64)
    word = word_of(none + j, none + seed, none + i, none, 0)
    return (word >= drop_below.to(tl.uint32)).to(tl.float64) * gain
