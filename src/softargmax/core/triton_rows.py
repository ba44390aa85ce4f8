"""Blocks of rows in Triton: where the numbers of a row are in memory, and how scores and beta are loaded.

Row number `row` is at (row // inner) outer_stride + (row % inner) inner_stride. triton_launch.py computes the strides.
"""

from __future__ import annotations

import triton
import triton.language as tl

from softargmax.core.triton_math import INF, capped
from softargmax.core.triton_state import any_of, fold, merge, ratio_of_any, rest_of_any, row_sum, terms_of_any

CHUNK = tl.constexpr(1024)
"""How many scores of a rare row are looked at in one step."""
NUMBERS = tl.constexpr(8)
"""How many numbers of each long row there is memory for."""
UNIT, NUMBER, PER_ROW = (tl.constexpr(k) for k in range(3))
"""How beta is passed: beta = 1, a number, or a number per row."""


@triton.jit
def offsets(row, inner, outer_stride, inner_stride, FLAT: tl.constexpr, ALIGN: tl.constexpr = 1):
    """The offset of each row, in elements. FLAT tells that `inner` is the number of rows.

    ALIGN divides the strides. Triton loads several neighbours at once only if it knows their alignment.
    """
    row = row.to(tl.int64)
    if FLAT:
        return row * (inner_stride // ALIGN * ALIGN)
    return (row // inner) * (outer_stride // ALIGN * ALIGN) + (row % inner) * (inner_stride // ALIGN * ALIGN)


@triton.jit
def load_beta(hi_ptr, lo_ptr, at, inside, beta_hi, beta_lo, BETA: tl.constexpr):
    """Return the sign of beta, and |beta| = hi + lo in float32, for each row."""
    if BETA == PER_ROW:
        whole = tl.load(hi_ptr + at, mask=inside, other=1.0).to(tl.float64)
        hi = whole.to(tl.float32)
        rest = tl.where(tl.abs(hi) == INF, 0.0, whole - hi.to(tl.float64))
        lo = (rest + tl.load(lo_ptr + at, mask=inside, other=0.0).to(tl.float64)).to(tl.float32)
    else:
        hi = beta_hi + tl.zeros_like(at).to(tl.float32)
        lo = beta_lo + tl.zeros_like(at).to(tl.float32)
    sign = tl.where(hi < 0.0, -1.0, 1.0)
    return sign, hi * sign, lo * sign


# Blocks of short rows are loaded and stored as (pieces, rows, scores of a piece). For this shape, Triton chooses a
# layout in which a thread has scores of one row. So it computes the numbers of one row only.


@triton.jit
def score_numbers(SCORES: tl.constexpr, PIECES: tl.constexpr):
    """The numbers of the scores of a row, in the shape of a block."""
    if PIECES == 1:
        k = tl.arange(0, SCORES)[None, :]
    else:
        k = tl.arange(0, PIECES)[:, None, None] * (SCORES // PIECES) + tl.arange(0, SCORES // PIECES)[None, None, :]
    return k


@triton.jit
def per_row(numbers, PIECES: tl.constexpr):
    """A number per row, in the shape of a block."""
    return numbers[:, None] if PIECES == 1 else numbers[None, :, None]


@triton.jit
def flat(x, PIECES: tl.constexpr):
    """A block as (rows, scores)."""
    if PIECES > 1:
        x = tl.reshape(tl.permute(x, (1, 0, 2)), [x.shape[1], x.shape[0] * x.shape[2]])
    return x


@triton.jit
def in_pieces(x, PIECES: tl.constexpr):
    """A block (rows, scores) in the shape in which it is stored."""
    if PIECES > 1:
        x = tl.permute(tl.reshape(x, [x.shape[0], PIECES, x.shape[1] // PIECES]), (1, 0, 2))
    return x


@triton.jit
def load_block(ptr, at, inside, other, PIECES: tl.constexpr, WHOLE: tl.constexpr):
    """Load a block of numbers as (rows, scores)."""
    if WHOLE:
        x = tl.load(ptr + at)
    else:
        x = tl.load(ptr + at, mask=inside, other=other)
    return flat(x, PIECES)


@triton.jit
def load_scores(
    z_ptr, at, where_ptr, where_at, inside, sign, BETA: tl.constexpr, MASKED: tl.constexpr, WHOLE: tl.constexpr,
    PIECES: tl.constexpr = 1,
):  # fmt: skip
    """Load a block of scores times the sign of beta. Scores outside the support are -inf.

    WHOLE tells that `inside` is true everywhere.
    """
    x = load_block(z_ptr, at, inside, 0.0, PIECES, WHOLE).to(tl.float32)
    if BETA != UNIT:
        x = x * sign[:, None]
    if MASKED:
        inside = inside & (tl.load(where_ptr + where_at, mask=inside, other=0) != 0)
    return x if WHOLE and not MASKED else tl.where(flat(inside, PIECES), x, -INF)


@triton.jit
def store_block(ptr, at, values, inside, WHOLE: tl.constexpr, PIECES: tl.constexpr = 1):
    """Store a block in the dtype of the memory."""
    values = in_pieces(values, PIECES).to(ptr.dtype.element_ty)
    if WHOLE:
        tl.store(ptr + at, values, eviction_policy="evict_first")
    else:
        tl.store(ptr + at, values, mask=inside, eviction_policy="evict_first")


@triton.jit
def exact_rest(
    z, z_at, z_k, where, where_at, where_k, exists, first, scores, m, sign, hi, lo,
    BETA: tl.constexpr, MASKED: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, SCORES: tl.constexpr,
    PIECES: tl.constexpr = 1, softcap=1.0, SOFTCAP: tl.constexpr = False,
):  # fmt: skip
    """The sum of all terms but one of the largest, for rows of any kind, over SCORES scores from number `first` on.

    Few rows are rare. So their scores are read again, in chunks, and common rows need fewer registers.
    """
    C: tl.constexpr = SCORES if SCORES <= 16 else SCORES // 4 if SCORES <= 4 * CHUNK else CHUNK
    N: tl.constexpr = PIECES * C // SCORES if PIECES * C > SCORES else 1
    y = tl.zeros([m.shape[0], C], tl.float32 if FAST else tl.float64)
    ties = tl.zeros([m.shape[0], C], tl.int32)
    for at in range(0, SCORES, C):
        number = score_numbers(C, N)
        inside = per_row(exists, N) & (number < scores - first - at)
        k = first + at + number.to(tl.int64)
        z_block, where_block = per_row(z_at, N) + k * z_k, per_row(where_at, N) + k * where_k
        x = capped(load_scores(z, z_block, where, where_block, inside, sign, BETA, MASKED, False, N), softcap, SOFTCAP)
        more, tied = terms_of_any(x, m, hi, lo, BETA > 0, FAST)
        y += more.to(y.dtype)
        ties += tied.to(tl.int32)
    return rest_of_any(y, ties, m, hi, lo, BETA > 0, FAST, VECTOR)


@triton.jit
def load_target(target, at, exists, scores, ignore_index):
    """The class of each row, and whether the row is ignored or its class is out of range."""
    t = tl.load(target + at, mask=exists, other=0)
    ignored = t == ignore_index
    return t, ignored, ~ignored & ((t < 0) | (t >= scores))


# --- long rows --------------------------------------------------------------------------------------------------------
#
# Each row is cut into parts. If rows are many, each program has a row: it computes the states of the parts, merges
# them in the order of the parts, and writes results from the last part to the first, because the last parts are still
# in the cache.
#
# If rows are few, programs take turns at tasks of two kinds. A task has a few neighbouring parts of a row. It either
# computes the states of its parts, or writes the results of its parts. The last program that computes states of a row
# also merges the states, and stores numbers per row. Tasks are handed out in an order in which a row is written soon
# after it was read, so that the second read finds it in the cache. A program takes its ticket when it starts. So all
# tasks that a task waits for have been taken by running programs, and waiting always ends. Results have the same bits.


@triton.jit
def next_task(tickets, tasks, ahead, parts, each, TURNS: tl.constexpr):
    """Return the row of a task, its parts from `first` to `last`, and whether it computes states and writes results.

    A row has `tasks` tasks. With TURNS it has as many of each kind, and `ahead` rows are read before the first write.
    """
    if TURNS:
        ticket = tl.atomic_add(tickets, 1)
        turn, task = ticket // tasks, ticket % tasks
        after = turn - ahead
        writes = (after >= 0) & (after % 2 == 0)
        row = tl.where(after < 0, turn, after // 2 + tl.where(writes, 0, ahead))
        reads = ~writes
    else:
        row, task, reads, writes = tl.program_id(0) // tasks, tl.program_id(0) % tasks, True, True
    return row.to(tl.int64), task * each, tl.minimum((task + 1) * each, parts), reads, writes


@triton.jit
def is_last(done, row, tasks):
    """Count a finished task of a row, after its states have been stored. True for the last task."""
    tl.debug_barrier()
    return tl.atomic_add(done + row, 1) == tasks - 1


@triton.jit
def release(done, row):
    """Let the programs go on that write the results of a row."""
    tl.debug_barrier()
    tl.atomic_add(done + row, 1)


@triton.jit
def wait_for(done, row, tasks):
    """Wait until the numbers of a row have been stored."""
    while tl.atomic_add(done + row, 0) <= tasks:
        pass


@triton.jit
def store_state(m_parts, r_parts, row, part, m, r, PARTS: tl.constexpr):
    """Store the state of a part."""
    at = row * PARTS + part + tl.zeros_like(m).to(tl.int64)
    tl.store(m_parts + at, m)
    tl.store(r_parts + at, r)


@triton.jit
def load_parts(numbers, row, parts, other, PARTS: tl.constexpr):
    """One number for each part of a row, as a block of one row. Loads bypass the first cache, which may be old."""
    part = tl.arange(0, PARTS)
    found = tl.load(numbers + row * PARTS + part, mask=part < parts, other=other, cache_modifier=".cg")
    return found[None, :]


@triton.jit
def load_state(m_parts, r_parts, row, parts, hi, lo, SCALED: tl.constexpr, FAST: tl.constexpr, PARTS: tl.constexpr):
    """Merge the states of all parts of a row, as `store_fold` stores them."""
    m, rests = load_parts(m_parts, row, parts, -INF, PARTS), load_parts(r_parts, row, parts, -1.0, PARTS)
    return merge(m, ratio_of_any(rests, m, hi[:, None], lo[:, None], SCALED, FAST), hi, lo, SCALED)


@triton.jit
def load_sum(sums, row, parts, PARTS: tl.constexpr):
    """The sum of one number per part of a row."""
    return row_sum(load_parts(sums, row, parts, 0.0, PARTS), 1, tl.float64)


@triton.jit
def load_number(numbers, row, NUMBER: tl.constexpr):
    """One of the numbers of a row, as a vector of length 1."""
    return tl.load(numbers + row * NUMBERS + NUMBER + tl.zeros([1], tl.int64), cache_modifier=".cg")


@triton.jit
def store_number(numbers, row, NUMBER: tl.constexpr, value):
    """Store one of the numbers of a row."""
    tl.store(numbers + row * NUMBERS + NUMBER + tl.zeros([1], tl.int64), value.to(tl.float32))


@triton.jit
def fold_any(
    x, z, z_at, z_k, where, where_at, where_k, exists, first, scores, sign, hi, lo,
    BETA: tl.constexpr, MASKED: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, SCORES: tl.constexpr,
    softcap=1.0, SOFTCAP: tl.constexpr = False,
):  # fmt: skip
    """Return the maximum of each row, and the sum of all terms but one of the largest, for rows of any kind."""
    m, rest, rare = fold(x, hi, lo, BETA > 0, FAST, VECTOR)
    if any_of(rare):
        exact = exact_rest(
            z, z_at, z_k, where, where_at, where_k, exists, first, scores, m, sign, hi, lo,
            BETA, MASKED, FAST, VECTOR, SCORES, 1, softcap, SOFTCAP,
        )  # fmt: skip
        rest = tl.where(rare, exact, rest)
    return m, rest


@triton.jit
def store_fold(
    x, z, z_at, z_k, where, where_at, where_k, m_parts, r_parts, row, part, scores, sign, hi, lo,
    BETA: tl.constexpr, MASKED: tl.constexpr, FAST: tl.constexpr, VECTOR: tl.constexpr, PARTS: tl.constexpr,
    SCORES: tl.constexpr, softcap=1.0, SOFTCAP: tl.constexpr = False,
):  # fmt: skip
    """Compute and store the state of a part of a row, whose scores are x."""
    m, rest = fold_any(
        x, z, z_at, z_k, where, where_at, where_k, sign == sign, part * SCORES, scores, sign, hi, lo,
        BETA, MASKED, FAST, VECTOR, SCORES, softcap, SOFTCAP,
    )  # fmt: skip
    store_state(m_parts, r_parts, row, part, m, rest, PARTS)
