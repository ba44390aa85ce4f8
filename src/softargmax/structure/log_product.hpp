// The product of two matrices in the log semiring: c_ij = log(sum_k e^(beta (a_ik + b_kj))) / beta.
//
// With the exponentials A_ik and B_kj of exponentials.hpp, e^(beta c_ij) = 2^(X_i + Y_j - 2 lift) sum_k A_ik B_kj. So
// most of the work is a matrix product. An element is computed by `Terms` instead if its sum is so small that products
// may have underflowed, or if the logarithm of its sum is so near 0 that rounding errors would be many ulp. This choice
// depends on the element's row of a and column of b only, so its bits are the same in every batch.
#pragma once

#include <atomic>

#include "structure/terms.hpp"

namespace softargmax::SOFTARGMAX_ISA_NAME::structure {

// Sums of at least 2^-kNear times the products of the largest numbers are used. The products that were replaced by 0
// are smaller by 2^(depth - near): 2^51 (float) and 2^300 (double).
template <class T> constexpr int kNear = sizeof(T) == 4 ? 64 : 600;

template <class T> Factor2D factor(const T* data, std::int64_t row, std::int64_t col) {
    return {reinterpret_cast<char*>(const_cast<T*>(data)), kTypeOf<T>, row, col};
}
template <class T>
void product(const Factor2D& a, const Factor2D& b, std::int64_t rows, std::int64_t depth, std::int64_t cols, T* out,
             int threads) {
    if (rows == 0 || cols == 0) return;
    core::product({a, b, rows, cols, depth, reinterpret_cast<char*>(out), cols, nullptr, false, false, threads});
}

// The product for logarithms, whose sums are cut into parts of kPart terms. If all terms are equal, their rounding
// errors have the same sign: without parts, c would have an error of 8 ulp for 512 terms.
constexpr std::int64_t kPart = 64;
template <class T>
void product_in_parts(const T* a, const T* b, std::int64_t rows, std::int64_t depth, std::int64_t cols, T* out,
                      int threads) {
    for (std::int64_t d = 0; d == 0 || d < depth; d += kPart)
        core::product({factor(a + d, depth, 1), factor(b + d * cols, cols, 1), rows, cols, std::min(kPart, depth - d),
                       reinterpret_cast<char*>(out), cols, nullptr, d > 0, false, threads});
}

// Copies kLanes columns of b, from column j, as depth x kLanes numbers.
inline void read_columns(const Matrix2D& b, std::int64_t j, double* to, double fill) {
    for (std::int64_t k = 0; k < b.rows; ++k) b.read(k, j, std::min(kLanes, b.cols - j), to + k * kLanes, fill);
}

// Logarithms of sums of products: c = (log sum + (X + Y - lift) ln 2) / beta.
class Logarithms {
    const Scale beta_;
    const Twofold unit_ = inverse(Twofold{beta_.hi, beta_.lo});
    const double sign_, lift_, least_, most_;

  public:
    Logarithms(Scale beta, double sign, int lift, int near, double most)
        : beta_(beta), sign_(sign), lift_(lift), least_(std::ldexp(1.0, lift - near)), most_(most) {}
    // Replaces n sums of a row by c, or by NaN if c would be inaccurate. True if there is a NaN.
    SOFTARGMAX_CALLED bool take(double* x, std::int64_t n, double x_shift, const double* y_shift) const {
        const V ln2_hi = V::all(Exp<double>::ln2_hi), ln2_lo = V::all(Exp<double>::ln2_lo), one = V::all(1);
        bool missing = false;
        for (std::int64_t j = 0; j < n; j += kLanes) {
            const V sum = V::load_part(x + j, n - j, 1);
            const V shift = V::all(x_shift - lift_) + V::load_part(y_shift + j, n - j, 0);
            const Two<V> log = log_pair(Two<V>{sum, V::all(0)}), s = two_sum(shift * ln2_hi, log.hi);
            const Two<V> lse{s.hi, s.lo + fma(shift, ln2_lo, log.lo)};
            const Two<V> c = beta_.unit() ? lse : times(lse, Two<V>{V::all(unit_.hi), V::all(unit_.lo)});
            const auto in = unless(above(sum, V::all(least_)), above(sum, V::all(most_)));
            const auto good = unless(in, above(one, lse.hi * lse.hi));
            const V found =
                keep(good, V::all(sign_) * (c.hi + c.lo)) + keep(unless(equal(one, one), good), V::all(kNaN));
            found.store_part(x + j, n - j);
            missing = missing || std::any_of(x + j, x + std::min(n, j + kLanes), [](double c) { return c != c; });
        }
        return missing;
    }
};

template <class T> class LogProduct {
    static constexpr std::int64_t kRows = 64;  // rows of a piece of `compute_missing`
    static constexpr std::int64_t kWidth = 512;  // elements of a row that are converted at once
    const Matrix2D a_, b_;
    const Scale beta_;
    const int threads_;
    T* const c_;
    double* const wide_;  // c in double, or null

    std::int64_t rows() const { return a_.rows; }
    std::int64_t cols() const { return b_.cols; }

    // Computes c from the sums in c. Elements that are left for `compute_missing` become NaN. Returns true if there are
    // any.
    bool take_logarithms(const double* x_shift, const double* y_shift) {
        const Logarithms logarithms(beta_, a_.sign, 2 * Range<T>::lift, kNear<T>, std::numeric_limits<T>::max());
        std::atomic<bool> some{false};
        parallel_for(threads_, rows(), [&](std::int64_t begin, std::int64_t end) {
            double x[kWidth];
            bool here = false;
            for (std::int64_t i = begin; i < end; ++i)
                for (std::int64_t j = 0; j < cols(); j += kWidth) {
                    T* const at = c_ + i * cols() + j;
                    const std::int64_t n = std::min(kWidth, cols() - j);
                    convert(at, n, x);
                    here = logarithms.take(x, n, x_shift[i], y_shift + j) || here;
                    convert(x, n, at);
                    if (wide_) std::copy_n(x, n, wide_ + i * cols() + j);
                }
            if (here) some = true;
        });
        return some;
    }
    void compute_missing() {
        const std::int64_t across = (cols() + kLanes - 1) / kLanes, down = (rows() + kRows - 1) / kRows;
        parallel_each(threads_, across * down, [&](std::int64_t piece) {
            const std::int64_t j = piece % across * kLanes, n = std::min(kLanes, cols() - j);
            const std::int64_t begin = piece / across * kRows, end = std::min(rows(), begin + kRows);
            Numbers<double> columns;
            Terms terms(a_.cols, beta_);
            for (std::int64_t i = begin; i < end; ++i) {
                T* const at = c_ + i * cols() + j;
                if (std::none_of(at, at + n, [](T c) { return c != c; })) continue;
                if (!columns) {
                    columns = numbers<double>(b_.rows * kLanes + 1);
                    read_columns(b_, j, columns.get(), -kInf);
                }
                terms.load(a_, i, columns.get());
                terms.fold();
                for (std::int64_t g = 0; g < n; ++g) {
                    if (at[g] == at[g]) continue;
                    const double c = a_.sign * terms.result(g);
                    at[g] = static_cast<T>(c);
                    if (wide_) wide_[i * cols() + j + g] = c;
                }
            }
        });
    }

  public:
    LogProduct(const Matrix2D& a, const Matrix2D& b, Scale beta, int threads, T* c, double* wide)
        : a_(a), b_(b), beta_(beta), threads_(threads), c_(c), wide_(wide) {}
    SOFTARGMAX_CALLED void compute() {
        if (beta_.hi == 0 || std::isinf(beta_.hi)) {
            std::fill_n(c_, rows() * cols(), std::numeric_limits<T>::quiet_NaN());
            return compute_missing();
        }
        {
            const Exponentials<T> x(a_, Line::row, beta_, threads_), y(b_, Line::column, beta_, threads_);
            if (rows() > 0 && cols() > 0) product_in_parts(x.data(), y.data(), rows(), a_.cols, cols(), c_, threads_);
            if (!take_logarithms(x.shift(), y.shift())) return;
        }
        compute_missing();
    }
};

}  // namespace softargmax::SOFTARGMAX_ISA_NAME::structure
