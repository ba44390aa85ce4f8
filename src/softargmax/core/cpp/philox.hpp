// Philox4x32-10: random words that are a function of a key and a counter.
//
// Salmon, Moraes, Dror & Shaw (2011), Parallel random numbers: as easy as 1, 2, 3. A block is four words of 32 bits.
// The key is the seed. The counter has four words: column / 4, the draw, and the two words of the stream. The top bit
// of the draw's word is 0 for the upper 32 bits of a random number and 1 for the lower. Word column % 4 of the
// resulting block belongs to the column. So a column's random number depends only on the seed, the stream, the draw and
// the column.
#pragma once

#include "simd.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME {

typedef std::uint32_t Words __attribute__((vector_size(kRegisterBytes)));
constexpr int kWords = kRegisterBytes / 4;
constexpr int kChunk = 64;  // columns computed at a time: four 512-bit registers

// The upper and lower halves of the products a f in each lane. `product` takes two multiplications, one for the even
// and one for the odd lanes.
struct Product {
    Words high, low;
};
SOFTARGMAX_INLINE Product product(Words a, std::uint32_t f) {
#if defined(__AVX512F__)
    const __m512i x = (__m512i)a, y = _mm512_set1_epi64(f);
    const __m512i even = _mm512_mul_epu32(x, y), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), y);
    return {(Words)_mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_CDAB),
            (Words)_mm512_mask_shuffle_epi32(even, 0xAAAA, odd, _MM_PERM_CDAB)};
#elif defined(__AVX2__) && defined(__FMA__)
    const __m256i x = (__m256i)a, y = _mm256_set1_epi64x(f);
    const __m256i even = _mm256_mul_epu32(x, y), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), y);
    return {(Words)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA),
            (Words)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA)};
#elif defined(__x86_64__)
    const __m128i x = (__m128i)a, y = _mm_set1_epi64x(f), lower = _mm_set1_epi64x(0xFFFFFFFF);
    const __m128i even = _mm_mul_epu32(x, y), odd = _mm_mul_epu32(_mm_srli_epi64(x, 32), y);
    return {(Words)_mm_or_si128(_mm_srli_epi64(even, 32), _mm_andnot_si128(lower, odd)),
            (Words)_mm_or_si128(_mm_and_si128(even, lower), _mm_slli_epi64(odd, 32))};
#else
    Product p;
    for (int i = 0; i < kWords; ++i) {
        const std::uint64_t whole = std::uint64_t{a[i]} * f;
        p.high[i] = static_cast<std::uint32_t>(whole >> 32);
        p.low[i] = static_cast<std::uint32_t>(whole);
    }
    return p;
#endif
}

// Stores the words of four registers in the order of the columns. Register j contains word j of each block, so squares
// of 4 x 4 words are transposed. The transposition moves words only within groups of 16 bytes. So `in_order` assigns
// blocks to lanes in such a way that the stored words are in order.
SOFTARGMAX_INLINE void store_transposed(Words a, Words b, Words c, Words d, std::uint32_t* to) {
    Words y[4];
#if defined(__AVX512F__)
    const auto turn = [](Words p, Words q, bool upper) SOFTARGMAX_LAMBDA {
        const __m512i x = (__m512i)p, y = (__m512i)q;
        return upper ? _mm512_unpackhi_epi32(x, y) : _mm512_unpacklo_epi32(x, y);
    };
    const __m512i s = turn(a, b, false), t = turn(c, d, false), u = turn(a, b, true), v = turn(c, d, true);
    y[0] = (Words)_mm512_unpacklo_epi64(s, t);
    y[1] = (Words)_mm512_unpackhi_epi64(s, t);
    y[2] = (Words)_mm512_unpacklo_epi64(u, v);
    y[3] = (Words)_mm512_unpackhi_epi64(u, v);
#elif defined(__AVX2__) && defined(__FMA__)
    const auto turn = [](Words p, Words q, bool upper) SOFTARGMAX_LAMBDA {
        const __m256i x = (__m256i)p, y = (__m256i)q;
        return upper ? _mm256_unpackhi_epi32(x, y) : _mm256_unpacklo_epi32(x, y);
    };
    const __m256i s = turn(a, b, false), t = turn(c, d, false), u = turn(a, b, true), v = turn(c, d, true);
    y[0] = (Words)_mm256_unpacklo_epi64(s, t);
    y[1] = (Words)_mm256_unpackhi_epi64(s, t);
    y[2] = (Words)_mm256_unpacklo_epi64(u, v);
    y[3] = (Words)_mm256_unpackhi_epi64(u, v);
#else
    const Words s = __builtin_shufflevector(a, b, 0, 4, 1, 5), t = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const Words u = __builtin_shufflevector(a, b, 2, 6, 3, 7), v = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    y[0] = __builtin_shufflevector(s, t, 0, 1, 4, 5);
    y[1] = __builtin_shufflevector(s, t, 2, 3, 6, 7);
    y[2] = __builtin_shufflevector(u, v, 0, 1, 4, 5);
    y[3] = __builtin_shufflevector(u, v, 2, 3, 6, 7);
#endif
    std::memcpy(to, y, sizeof y);
}
SOFTARGMAX_INLINE Words in_order() {
    Words offset;
    for (int i = 0; i < kWords; ++i) offset[i] = static_cast<std::uint32_t>(i % 4 * (kWords / 4) + i / 4);
    return offset;
}

// The random words of one row and one draw.
class Philox {
    static constexpr int kRounds = 10;
    std::uint32_t key_[kRounds][2];
    std::uint32_t draw_, stream_[2];

    struct Block {
        Words a, b, c, d;
    };
    // Half 0 gives the upper 32 bits of each column's random number, and half 1 the lower 32 bits.
    SOFTARGMAX_INLINE Block rounds(Words counter, std::uint32_t half) const {
        Block x{counter, Words{} + (draw_ | half << 31), Words{} + stream_[0], Words{} + stream_[1]};
#pragma GCC unroll 10
        for (int i = 0; i < kRounds; ++i) {
            const Product p = product(x.a, 0xD2511F53), q = product(x.c, 0xCD9E8D57);
            x = {q.high ^ x.b ^ key_[i][0], q.low, p.high ^ x.d ^ key_[i][1], p.low};
        }
        return x;
    }

  public:
    Philox(std::uint64_t seed, std::uint64_t stream, std::uint32_t draw)
        : draw_(draw), stream_{static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)} {
        std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
        for (auto& key : key_) {
            key[0] = k0;
            key[1] = k1;
            k0 += 0x9E3779B9;
            k1 += 0xBB67AE85;
        }
    }
    // The words of kChunk adjacent columns. `first` must be a multiple of 4.
    SOFTARGMAX_INLINE void adjacent(std::int64_t first, std::uint32_t half, std::uint32_t* to) const {
        const Words counter = in_order() + static_cast<std::uint32_t>(first / 4);
        for (std::uint32_t i = 0; i < kChunk / 4; i += kWords) {
            const Block x = rounds(counter + i, half);
            store_transposed(x.a, x.b, x.c, x.d, to + 4 * i);
        }
    }
    // The words of a list of at most kChunk columns. Each column takes one block.
    void scattered(const std::int64_t* columns, std::int64_t count, std::uint32_t half, std::uint32_t* to) const {
        for (std::int64_t i = 0; i < count; i += kWords) {
            Words counter{};
            for (std::int64_t j = 0; j < kWords && i + j < count; ++j)
                counter[j] = static_cast<std::uint32_t>(columns[i + j] / 4);
            const Block x = rounds(counter, half);
            std::uint32_t words[4][kWords];
            std::memcpy(words, &x, sizeof words);
            for (std::int64_t j = 0; j < kWords && i + j < count; ++j) to[i + j] = words[columns[i + j] % 4][j];
        }
        for (std::int64_t i = count; i < kChunk; ++i) to[i] = 0;
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME
