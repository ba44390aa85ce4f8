"""Exponentials and logarithms in Triton, in float32 and float64.

Kernels are compiled without contraction (`enable_fp_fusion=False`), and every fused step is written `tl.fma`. So the
bits are those of IEEE arithmetic, which Triton's interpreter computes too.
"""

from __future__ import annotations

import triton
import triton.language as tl

INF = tl.constexpr(float("inf"))
LARGEST = tl.constexpr(3.4028234663852886e38)

# --- exponentials: e^(s + q) = power (1 + t), as in math.hpp ----------------------------------------------------------

LOG2E = tl.constexpr(float.fromhex("0x1.715476p+0"))
_LN2_HI = tl.constexpr(float.fromhex("0x1.62e8p-1"))
_LN2_LO = tl.constexpr(float.fromhex("-0x1.e8082ep-16"))
ROUND = tl.constexpr(float.fromhex("0x1.8p+23"))
_Q0 = tl.constexpr(float.fromhex("0x1.fffff8p-2"))
_Q1 = tl.constexpr(float.fromhex("0x1.55548ep-3"))
_Q2 = tl.constexpr(float.fromhex("0x1.555b96p-5"))
_Q3 = tl.constexpr(float.fromhex("0x1.123bd0p-7"))
_Q4 = tl.constexpr(float.fromhex("0x1.685352p-10"))
LIFT = tl.constexpr(62)  # terms are multiplied by 2^62, so that none of them is subnormal
REACH = tl.constexpr(130.0)


@triton.jit
def f32(x: tl.constexpr):
    """A float32 constant."""
    return tl.full([], x, tl.float32)


@triton.jit
def f64(x: tl.constexpr):
    """A float64 constant."""
    return tl.full([], x, tl.float64)


@triton.jit
def exp_term(s, q, magic, PAIR: tl.constexpr):
    """Return t and power. q is read only if PAIR."""
    km = tl.fma(s, f32(LOG2E), magic)
    k = km - magic
    r = tl.fma(k, f32(-_LN2_LO), tl.fma(k, f32(-_LN2_HI), s))
    if PAIR:
        r += q
    u = r * r
    a = tl.fma(tl.fma(f32(_Q4), u, f32(_Q2)), u, f32(_Q0))
    b = tl.fma(f32(_Q3), u, f32(_Q1))
    t = tl.fma(u, tl.fma(r, b, a), r)
    return t, (km.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)


_L2E64 = tl.constexpr(float.fromhex("0x1.71547652b82fep+0"))
_LN2_HI64 = tl.constexpr(float.fromhex("0x1.62e42fefap-1"))
_LN2_LO64 = tl.constexpr(float.fromhex("0x1.cf79abc9e3b3ap-40"))
_ROUND64 = tl.constexpr(float.fromhex("0x1.8p+52"))
_E = tl.constexpr(
    tuple(
        float.fromhex(x)
        for x in (
            "0x1.0p-1", "0x1.555555555555cp-3", "0x1.5555555555541p-5", "0x1.111111110ea06p-7",
            "0x1.6c16c16c1fa9dp-10", "0x1.a01a01b43e0efp-13", "0x1.a01a0176e937cp-16", "0x1.71ddee867a44ep-19",
            "0x1.27e540c3e9a90p-22", "0x1.af6e5b2b81035p-26", "0x1.1ed986d1f5259p-29",
        )
    )
)  # fmt: skip
_W = tl.constexpr(
    tuple(
        float.fromhex(x)
        for x in (
            "0x1.5555555555555p-2", "0x1.9999999999d0dp-3", "0x1.2492492439dc7p-3", "0x1.c71c724b00b54p-4",
            "0x1.745ce1e46b4ebp-4", "0x1.3b202098f5061p-4", "0x1.0f678a3d1e989p-4", "0x1.0f0befb1d6faep-4",
        )
    )
)  # fmt: skip
_L1 = tl.constexpr(float.fromhex("0xaaaaaa.0p-24"))
_L2 = tl.constexpr(float.fromhex("0xccce13.0p-25"))
_L3 = tl.constexpr(float.fromhex("0x91e9ee.0p-25"))
_L4 = tl.constexpr(float.fromhex("0xf89e26.0p-26"))
_LN2_LARGE = tl.constexpr(float.fromhex("0x1.62e3p-1"))
_LN2_SMALL = tl.constexpr(float.fromhex("0x1.2fefa2p-17"))


@triton.jit
def exp_term64(x):
    """e^x = power (1 + t) in float64, for x from -700 to 700. Return t and power."""
    k = tl.fma(x, f64(_L2E64), f64(_ROUND64)) - f64(_ROUND64)
    r = tl.fma(k, f64(-_LN2_LO64), tl.fma(k, f64(-_LN2_HI64), x))
    t = f64(_E[10])
    for j in tl.static_range(9, -1, -1):
        t = tl.fma(t, r, f64(_E[j]))
    return tl.fma(r * r, t, r), ((k.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def exp64(x):
    """e^x for x <= 700, in float64. 0 below -700."""
    t, power = exp_term64(tl.where(x < -700.0, 0.0, x))
    return tl.where(x < -700.0, 0.0, tl.fma(t, power, power))


@triton.jit
def less_one(x):
    """e^x - 1 for x <= 0 in float64, rounded to float32, with a small relative error. -1 below -40."""
    y = tl.where(x < -40.0, 0.0, x)
    s = y.to(tl.float32)
    t, power = exp_term(s, (y - s.to(tl.float64)).to(tl.float32), f32(ROUND + 127.0), True)
    return tl.where(x < -40.0, -1.0, tl.fma(t, power, power - 1.0))


@triton.jit
def log64(u, lost):
    """log(u + lost) for u >= 0, in float64. `lost` is at most the rounding error of u. It only matters near u = 1."""
    bits = u.to(tl.int64, bitcast=True)
    e = (bits - 0x3FE6A09E667F3BCD) >> 52  # u = 2^e f with sqrt(1/2) <= f < sqrt(2)
    f = (bits - (e << 52)).to(tl.float64, bitcast=True)
    d = f - 1.0
    s = d / (2.0 + d)
    w = s * s
    p = f64(_W[7])
    for j in tl.static_range(6, -1, -1):
        p = tl.fma(p, w, f64(_W[j]))
    half = 0.5 * d * d
    of_f = d - (half - s * (half + 2.0 * w * p))
    k = e.to(tl.float64)
    found = tl.fma(k, f64(_LN2_HI64), tl.fma(k, f64(_LN2_LO64), tl.where(e == 0, lost, 0.0)) + of_f)
    return tl.where(u == 0.0, -INF, tl.where(u < INF, found, u))


@triton.jit
def log1p64(r):
    """log(1 + r) for r >= -1, in float64."""
    u = 1.0 + r
    return log64(u, r - (u - 1.0))


@triton.jit
def two_sum64(a, b):
    """a + b as the rounded sum and its error."""
    s = a + b
    part = s - a
    return s, (a - (s - part)) + (b - part)


@triton.jit
def log_pair64(hi, lo):
    """log(hi + lo) as a pair, for a positive normal hi, operation by operation as in math.hpp."""
    bits = hi.to(tl.int64, bitcast=True)
    e = (bits - 0x3FE6A09E667F3BCD) >> 52
    f = (bits - (e << 52)).to(tl.float64, bitcast=True)
    t, t_lo = two_sum64(f - 1.0, lo * ((1023 - e) << 52).to(tl.float64, bitcast=True))
    k = e.to(tl.float64)
    s = t / (2.0 + t)
    u = s * s
    half = 0.5 * t * t
    q = f64(_W[7])
    for j in tl.static_range(6, -1, -1):
        q = tl.fma(q, u, f64(_W[j]))
    tail = s * tl.fma(2.0 * u, q, half)
    rest = t_lo * (1.0 - t * (1.0 - t))
    half_low = tl.fma(0.5 * t, t, -half)
    head, head_lo = two_sum64(t, -half)
    total, total_lo = two_sum64(k * f64(_LN2_HI64), head)
    low = total_lo + (tl.fma(k, f64(_LN2_LO64), head_lo) + ((tail - half_low) + rest))
    return two_sum64(total, low)


@triton.jit
def less_one64(x):
    """e^x - 1 for x <= 0, in float64, with a small relative error. -1 below -40."""
    t, power = exp_term64(tl.where(x < -40.0, 0.0, x))
    return tl.where(x < -40.0, -1.0, tl.fma(t, power, power - 1.0))


@triton.jit
def log1p(r):
    """log(1 + r), rounded to float32, for r >= -1 in float64. The polynomial is that of the C library FreeBSD's."""
    u = (1.0 + r).to(tl.float32)
    lost = ((1.0 - u.to(tl.float64)) + r).to(tl.float32)  # 1 + r = u + lost
    bits = u.to(tl.int32, bitcast=True)
    e = (bits - 0x3F3504F3) >> 23  # u = 2^e f with sqrt(1/2) <= f < sqrt(2)
    d = (bits - (e << 23)).to(tl.float32, bitcast=True) - 1.0
    s = d / (2.0 + d)
    z = s * s
    w = z * z
    p = tl.fma(z, tl.fma(w, f32(_L3), f32(_L1)), w * tl.fma(w, f32(_L4), f32(_L2)))
    half = 0.5 * d * d
    k = e.to(tl.float32)
    low = tl.fma(k, f32(_LN2_SMALL), lost / u)
    found = tl.fma(k, f32(_LN2_LARGE), d - (half - tl.fma(s, half + p, low)))
    return tl.where(u == 0.0, -INF, tl.where(u < INF, found, u))


@triton.jit
def exp_block(y):
    """e^y of a block of numbers y <= 0, rounded to float32."""
    y = tl.maximum(y, -REACH, propagate_nan=tl.PropagateNan.ALL)
    t, power = exp_term(y, 0.0, f32(ROUND + 127.0 + LIFT), False)
    return tl.fma(t, power, power) * f32(2.0**-62)


# --- the soft-cap s tanh(x / s) ---------------------------------------------------------------------------------------
#
#     e = exp(-2 |x| / s) - 1        tanh(|x| / s) = -e / (2 + e)        1 - tanh^2 = 4 (1 + e) / (2 + e)^2

_FLAT = tl.constexpr(43.0)  # from 43 s on, a score is s, and the slope is below 2^-121 and counts as 0


@triton.jit
def _cap_exponent(x, softcap):
    """-2 |x| / s in float32, and its rounding error."""
    factor = -2.0 / (f32(0.0) + softcap).to(tl.float64)
    hi = factor.to(tl.float32)
    lo = (factor - hi.to(tl.float64)).to(tl.float32)
    x = tl.minimum(tl.abs(x), softcap * _FLAT, propagate_nan=tl.PropagateNan.ALL)
    s = x * hi
    return s, tl.fma(x, lo, tl.fma(x, hi, -s))


@triton.jit
def capped(x, softcap, SOFTCAP: tl.constexpr):
    """s tanh(x / s) in float32, within 2.5 ulp. Scores of -inf are outside the support, and stay -inf."""
    if SOFTCAP:
        s, q = _cap_exponent(x, softcap)
        t, power = exp_term(s, 0.0, f32(ROUND + 127.0), False)
        e = tl.fma(t, power, power - 1.0)
        low = tl.fma(q, 1.0 + e, tl.fma(t, power, (power - 1.0) - e))  # exp(s + q) - 1 = e + low
        d = 2.0 + e
        v = 1.0 / d
        y = e * v
        rest = tl.fma(-y, d, e) + tl.fma(-y, (2.0 - d) + e + low, low)  # e + low - y (2 + e + low)
        y = tl.fma(y, softcap, (rest * v) * softcap)
        x = tl.where(x == -INF, x, tl.where(x > 0.0, -y, y))
    return x


@triton.jit
def cap_slope(x, softcap):
    """1 - tanh^2(x / s) in float32, with a small relative error."""
    s, q = _cap_exponent(x, softcap)
    t, power = exp_term(s, q, f32(ROUND + 127.0), True)
    p = tl.fma(t, power, power)
    v = 1.0 / (1.0 + p)
    return tl.where(tl.abs(x) > softcap * _FLAT, 0.0, 4.0 * p * v * v)
