// Matrices of scores, and their exponentials with one power of two per line (row or column).
//
//     e^(beta x) = 2^k e      X: the k of the line's largest score      number: 2^(k - X + lift) e
//
// No number overflows. The product of two numbers does not underflow, unless both are small.
#pragma once

#include <memory>

#include "core/cpp/state.hpp"
#include "core/cpp/strided_tiles.hpp"
#include "structure/args.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::structure {

using core::Factor2D;
using V = Pack<double>;
constexpr std::int64_t kLanes = V::kLanes;
inline std::int64_t whole_packs(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Not a std::vector, because all instruction sets would share one compiled copy of its functions.
template <class T> using Numbers = std::unique_ptr<T[]>;
template <class T> Numbers<T> numbers(std::int64_t count) { return Numbers<T>(new T[static_cast<std::size_t>(count)]); }

// One matrix of a batch. If beta is negative, `sign` is -1, and the formulas use the negated scores and -beta.
struct Matrix2D : Factor2D {
    std::int64_t rows = 0, cols = 0;
    double sign = 1;
    Matrix2D transposed() const { return {{data, type, col, row}, cols, rows, sign}; }
    explicit operator bool() const { return data != nullptr; }

    // Reads n numbers of a row, from column j, and pads them to whole packs with `fill`. Inlined, it would make the
    // module 0.15 MB larger.
    SOFTARGMAX_CALLED void read(std::int64_t i, std::int64_t j, std::int64_t n, double* to, double fill) const {
        if (type == Type::f64) copy(at<double>(i, j), n, to);
        else copy(at<float>(i, j), n, to);
        for (std::int64_t k = 0; sign < 0 && k < n; ++k) to[k] = -to[k];
        std::fill(to + n, to + whole_packs(n), fill);
    }
    template <class T> void copy(const T* from, std::int64_t n, double* to) const {
        if (col == 1) convert(from, n, to);
        else
            for (std::int64_t k = 0; k < n; ++k) to[k] = static_cast<double>(from[k * col]);
    }
    template <class T> T* at(std::int64_t i, std::int64_t j) const {
        return reinterpret_cast<T*>(data) + i * row + j * col;
    }
};
inline Matrix2D matrix(const Matrices& x, std::int64_t item, std::int64_t rows, std::int64_t cols, double sign = 1) {
    char* const data = x.data ? x.data + item * rows * cols * kTypeBytes[static_cast<int>(x.type)] : nullptr;
    return {{data, x.type, cols, 1}, rows, cols, sign};
}

// Numbers below 2^-depth times the largest of their line are replaced by 0. With these values, the product of two
// numbers is normal, and the sum of 2^20 products does not overflow.
template <class T> struct Range;
template <> struct Range<float> {
    static constexpr int depth = 115, lift = 52;
};
template <> struct Range<double> {
    static constexpr int depth = 900, lift = 400;
};

// The largest |beta x| for which `parts_of` is exact.
constexpr double kMostExact = 1 << 14;

enum class Line { row, column };

// Replaces scores by numbers 2^(k - shift + lift) e, and scores up to `low` by 0. With `each`, every score has its own
// shift and low.
SOFTARGMAX_CALLED inline void take_exponentials(double* x, std::int64_t n, const double* shift, const double* low,
                                                bool each, Scale beta, int lift) {
    const V magic = V::all(magic_of<double>(lift));
    V s = V::all(*shift), lowest = V::all(*low);
    for (std::int64_t k = 0; k < n; k += kLanes) {
        if (each) {
            s = V::load_part(shift + k, n - k, 0);
            lowest = V::load_part(low + k, n - k, kInf);
        }
        const V v = V::load(x + k);
        const Parts<V> parts = parts_of(v, beta);
        keep(unless(above(v, lowest), above(v, v)), parts.e * power_of_two(parts.k - s + magic)).store(x + k);
    }
}

template <class T> class Exponentials {
    static constexpr std::int64_t kWidth = 512;  // the number of scores that are converted at once
    const Matrix2D x_;
    const Line by_;
    const Scale beta_;
    const Numbers<T> numbers_;
    const Numbers<double> shift_, low_;  // one per line; scores up to `low` have the number 0

    bool rows() const { return by_ == Line::row; }
    // Calls body(scores, row, column, count) for the pieces of a part of the matrix.
    template <class F>
    void pieces(std::int64_t r, std::int64_t r_end, std::int64_t c, std::int64_t c_end, const F& body) const {
        double x[kWidth];
        for (std::int64_t i = r; i < r_end; ++i)
            for (std::int64_t j = c; j < c_end; j += kWidth) {
                const std::int64_t n = std::min(kWidth, c_end - j);
                x_.read(i, j, n, x, -kInf);
                body(x, i, j, n);
            }
    }
    // Computes shift and low of a line from its largest score, which is NaN if the line has a NaN. The numbers of a
    // line whose largest score is not finite, or too large, are all 0, and its shift is NaN.
    void finish_line(std::int64_t line, double top) {
        const double x = top * beta_.hi;
        const bool usable = std::fabs(x) < kMostExact;
        shift_[line] = usable ? parts_of(top, beta_).k : kNaN;
        low_[line] = usable ? top - Range<T>::depth * 0.69314718055994531 / beta_.hi : kInf;
    }
    SOFTARGMAX_CALLED void fill(std::int64_t r, std::int64_t r_end, std::int64_t c, std::int64_t c_end) {
        const std::int64_t first = rows() ? r : c, lines = rows() ? r_end - r : c_end - c;
        const auto top = numbers<double>(lines + kLanes);
        std::fill_n(top.get(), lines + kLanes, -kInf);
        pieces(r, r_end, c, c_end, [&](const double* x, std::int64_t i, std::int64_t j, std::int64_t n) {
            double* const to = top.get() + (rows() ? i : j) - first;
            V line = V::all(-kInf);
            for (std::int64_t k = 0; k < n; k += kLanes) {
                const V v = V::load(x + k);
                // `max` ignores NaN, and the sum with a NaN is NaN from then on.
                const V best = max(v, rows() ? line : V::load(to + k)) + keep(above(v, v), V::all(kNaN));
                if (rows()) line = best;
                else best.store_part(to + k, n - k);
            }
            if (!rows()) return;
            const bool nan = any(above(line, line)) || *to != *to;
            *to = nan ? kNaN : std::max(*to, max_of(line));
        });
        for (std::int64_t k = 0; k < lines; ++k) finish_line(first + k, top[k]);
        pieces(r, r_end, c, c_end, [&](double* x, std::int64_t i, std::int64_t j, std::int64_t n) {
            const std::int64_t line = rows() ? i : j;
            take_exponentials(x, n, shift_.get() + line, low_.get() + line, !rows(), beta_, Range<T>::lift);
            convert(x, n, numbers_.get() + i * x_.cols + j);
        });
    }

  public:
    Exponentials(const Matrix2D& x, Line by, Scale beta, int threads)
        : x_(x),
          by_(by),
          beta_(beta),
          numbers_(numbers<T>(x.rows * x.cols)),
          shift_(numbers<double>(by == Line::row ? x.rows : x.cols)),
          low_(numbers<double>(by == Line::row ? x.rows : x.cols)) {
        parallel_for(threads, rows() ? x.rows : x.cols, [&](std::int64_t begin, std::int64_t end) {
            if (rows()) fill(begin, end, 0, x.cols);
            else fill(0, x.rows, begin, end);
        });
    }
    T* data() const { return numbers_.get(); }
    const double* shift() const { return shift_.get(); }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::structure
